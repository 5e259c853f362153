//! Which algorithms predict a number instead of a class, and how they exchange then (`data.target`).
//!
//! Those whose loss is a mean over samples of what the model's outputs are off by, and that know of classes nowhere else. Profile
//! `agreement` of FedMoE-DA exchanges sums of ridge regression in place of statistics of classes.

use fednode_core::{ConfigError, FederationSpec, Matching};

use crate::{agreement, regression};

/// The algorithms whose models may have one output that is a number.
const ALGORITHMS: &[&str] = &[
    "fedavg",
    "local",
    "fedper",
    "lg-fedavg",
    "fedrep",
    "fedbabu",
    "fedprox",
    "scaffold",
    "fedbn",
    "fedavg-ft",
    "ditto",
];

/// Lets a spec exchange what numbers need, if it predicts a number.
///
/// # Errors
/// Names the key to change where something is wanted that is for classes alone.
pub(super) fn fill(spec: &mut FederationSpec) -> Result<(), ConfigError> {
    if spec.data.target.is_none() {
        return Ok(());
    }
    let refuse = |text: String| Err(ConfigError(format!("`data.target` is a number: {text}")));
    if spec.statistics.enabled {
        return refuse("`statistics.enabled` is about classes, leave it out".to_owned());
    }
    if spec.pool.is_enabled() {
        return refuse("`pool` is for classes, leave it out".to_owned());
    }
    let sums = [agreement::MATCHING, agreement::OF_SITES];
    let experts = spec.exchange.experts.as_mut();
    if let Some(experts) = experts.filter(|experts| sums.contains(&experts.matching.name())) {
        experts.matching = Matching::named(regression::MATCHING);
        regression::check(spec)?;
        return regression::check_privacy(spec);
    }
    if spec.privacy.epsilon.is_some() {
        return refuse(
            "`privacy.epsilon` takes `fedmoe-da` as it is by default, with `privacy.sums=masked`"
                .to_owned(),
        );
    }
    if ALGORITHMS.contains(&spec.algorithm.as_str()) {
        return Ok(());
    }
    refuse(format!(
        "`{}` is for classes; take `fedmoe-da` with profile `agreement`, or one of {}",
        spec.algorithm,
        ALGORITHMS.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Hyper, Kind, TABLE, fedmoe_da, fill_exchange};
    use fednode_core::HyperValue;
    use fednode_core::spec::{Preset, Target};

    fn spec(algorithm: &str) -> FederationSpec {
        let mut spec = FederationSpec {
            algorithm: algorithm.into(),
            ..FederationSpec::default()
        };
        spec.data.target = Some(Target {
            name: "y".into(),
            range: [0.0, 1.0],
        });
        (spec.fingerprints.classes, spec.fingerprints.input) = (1, [1, 1, 3]);
        spec.model.name = "linear".into();
        spec
    }

    #[test]
    fn algorithms_of_classes_are_refused_with_those_that_can() {
        for row in TABLE {
            let filled = fill_exchange(&mut spec(row.name));
            match ALGORITHMS.contains(&row.name) {
                true => assert_eq!(filled, Ok(()), "{}", row.name),
                false => {
                    let error = filled.unwrap_err().0;
                    assert!(error.contains("`agreement`, or one of fedavg"), "{error}");
                }
            }
        }
    }

    /// So nothing has to be checked of `hyper.base`.
    #[test]
    fn every_base_beside_agreement_can_predict_numbers() {
        let is_base = |hyper: &&Hyper| hyper.name == "base";
        let base = fedmoe_da::ROW.hyper.iter().find(is_base).unwrap();
        let Kind::Choice(names) = base.kind else {
            panic!("`base` is one of some words")
        };
        assert!(names.iter().all(|name| ALGORITHMS.contains(name)));
    }

    #[test]
    fn agreement_exchanges_sums_of_ridge_regression() {
        let mut agreeing = spec("fedmoe-da");
        let profile = HyperValue::Text("agreement".into());
        agreeing.hyper.insert("profile".into(), profile);
        fill_exchange(&mut agreeing).unwrap();
        let matching = agreeing.exchange.experts.as_ref().unwrap().matching.name();
        assert_eq!(matching, regression::MATCHING);
        let refused = |change: fn(&mut FederationSpec)| {
            let mut spec = agreeing.clone();
            change(&mut spec);
            fill_exchange(&mut spec).unwrap_err().0
        };
        assert!(refused(|spec| spec.privacy.epsilon = Some(4.0)).contains("`privacy.epsilon`"));
        assert!(refused(|spec| spec.fingerprints.input = [1, 1, 600]).contains("512 features"));
        assert!(refused(|spec| spec.pool.preset = Some(Preset::Fixed)).contains("`pool`"));
    }
}
