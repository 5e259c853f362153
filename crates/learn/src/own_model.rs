//! Nodes of different models in one federation: what is shared must be the same for all, the rest is a node's own affair.

use burn::tensor::Device;
use fednode_core::{ConfigError, FederationSpec, Layout};

use crate::algorithm::{self, Algorithm, Role};
use crate::error::LearnError;

/// Returns the spec as the learner of one node needs it: with the model that falls to the node by its number, counting
/// from 0.
pub fn by_number(spec: &FederationSpec, number: usize) -> FederationSpec {
    let mut own = spec.clone();
    own.model.name = spec.model.name.of_node(number).into();
    own
}

/// Returns the spec as the learner of a node needs it that has chosen this model.
///
/// # Errors
/// Says which shared parameter it would change, besides the causes of [`crate::Learner::new`] that lie in the spec.
pub fn chosen(spec: &FederationSpec, model: &str) -> Result<FederationSpec, LearnError> {
    let mut own = by_number(spec, 0);
    let common = shared(&own)?;
    own.model.name = model.into();
    compare(&common, &shared(&own)?, &own, spec.model.name.first())?;
    Ok(own)
}

/// Checks that the algorithm of a spec can be built, and that the models that it gives to its nodes go together.
///
/// # Errors
/// As [`chosen`].
pub fn check(spec: &FederationSpec) -> Result<(), LearnError> {
    shared(spec)?;
    spec.model
        .name
        .iter()
        .try_for_each(|name| chosen(spec, name).map(drop))
}

/// Returns names and shapes of what nodes share: the averaged part, then one expert.
fn shared(spec: &FederationSpec) -> Result<Vec<Layout>, LearnError> {
    let algorithm = algorithm::build(spec, &Device::flex())?;
    Ok([Role::Shared, Role::Expert(fednode_core::Slot(0))]
        .map(|role| layout(algorithm.as_ref(), role))
        .into())
}

fn layout(algorithm: &dyn Algorithm, role: Role) -> Layout {
    algorithm
        .parts()
        .iter()
        .filter(|part| part.role == role)
        .flat_map(|part| part.layout())
        .collect()
}

fn compare(
    common: &[Layout],
    own: &[Layout],
    spec: &FederationSpec,
    model: &str,
) -> Result<(), LearnError> {
    let differs = |(common, own): (&Layout, &Layout)| {
        let names = common.keys().chain(own.keys());
        names
            .into_iter()
            .find(|name| common.get(*name) != own.get(*name))
            .cloned()
    };
    let Some(name) = common.iter().zip(own).find_map(differs) else {
        return Ok(());
    };
    let advice = if algorithm::find(&spec.algorithm)?
        .hyper
        .iter()
        .any(|hyper| hyper.name == "small_model")
    {
        "; set `small_model` to one that all share"
    } else {
        ""
    };
    let (algorithm, own) = (&spec.algorithm, spec.model.name.first());
    Err(ConfigError(format!(
        "a node cannot have model `{own}` where others have `{model}`: algorithm `{algorithm}` shares `{name}`, which is not \
         the same in both{advice}"
    ))
    .into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use fednode_core::HyperValue;

    fn spec(algorithm: &str, small_model: Option<&str>) -> FederationSpec {
        let mut spec = FederationSpec {
            algorithm: algorithm.into(),
            ..FederationSpec::default()
        };
        spec.model.name = "cnn-1,cnn-3,cnn-5".into();
        spec.hyper.extend(
            small_model.map(|name| ("small_model".to_owned(), HyperValue::Text(name.into()))),
        );
        spec
    }

    #[test]
    fn models_go_together_where_nothing_of_them_is_shared() {
        for algorithm in ["pfedmoe", "fml", "fedkd", "fedapen"] {
            check(&spec(algorithm, Some("cnn-5"))).unwrap();
            let error = check(&spec(algorithm, None)).unwrap_err().to_string();
            assert!(
                error.contains("cannot have model `cnn-3`") && error.contains("set `small_model`"),
                "{error}"
            );
        }
        for algorithm in ["local", "fedproto", "fd"] {
            check(&spec(algorithm, None)).unwrap();
        }
        for algorithm in ["fedavg", "fedper", "fedmoe-da"] {
            let error = check(&spec(algorithm, None)).unwrap_err().to_string();
            assert!(
                error.contains(&format!("algorithm `{algorithm}` shares `")),
                "{error}"
            );
        }
    }

    #[test]
    fn nodes_have_their_models_in_turn() {
        let names = ["cnn-1", "cnn-3", "cnn-5", "cnn-1"];
        for (number, name) in names.into_iter().enumerate() {
            let own = by_number(&spec("local", None), number).model.name;
            assert_eq!(own, name.into());
        }
        let plain = FederationSpec::default();
        assert_eq!(by_number(&plain, 3), plain);
        let error = chosen(&spec("local", None), "cnn-6")
            .unwrap_err()
            .to_string();
        assert!(error.contains("unknown model `cnn-6`"), "{error}");
    }
}
