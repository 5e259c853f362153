//! Parameters that a federation starts from, instead of drawn ones: a file beside the spec, which names it by its hash.

use std::path::Path;
use std::sync::Arc;

use fednode_core::{BlobId, ConfigError, FederationSpec, ParamSet};
use fednode_learn::Learner;
use fednode_runtime::exit::ExitCode;

use crate::failure::{OrFail, fail};

/// Reads a safetensors file, and names its parameters by the hash of their canonical form.
///
/// # Errors
/// Names the file and what is wrong with it.
pub fn read(path: &Path) -> Result<(ParamSet, BlobId), ConfigError> {
    let shown = path.display();
    let bytes = std::fs::read(path).map_err(|error| {
        ConfigError(format!(
            "cannot read the initial parameters `{shown}`: {error}"
        ))
    })?;
    let params = ParamSet::import(&bytes).map_err(|error| {
        ConfigError(format!(
            "`{shown}` holds no parameters to start from: {error}"
        ))
    })?;
    let name = BlobId::of(&params.to_bytes());
    Ok((params, name))
}

/// Reads what a federation starts from; nothing if that is drawn.
///
/// # Errors
/// Says which file is missing, or that it is another one than the spec's.
pub fn of(spec: &FederationSpec, file: Option<&Path>) -> anyhow::Result<Option<Arc<ParamSet>>> {
    let wanted = spec.fingerprints.initial;
    let refuse = |text: String| Err(fail(ExitCode::Configuration, text));
    let Some(file) = file else {
        return match wanted {
            None => Ok(None),
            Some(wanted) => refuse(format!(
                "the federation starts from the parameters {wanted}: name their file with --initial"
            )),
        };
    };
    let (params, name) = read(file).or_fail(ExitCode::Configuration)?;
    match wanted {
        None => refuse(
            "the federation starts from drawn parameters: leave out `initial`, or put it into the spec with \
                      `fednode init --initial FILE`"
                .to_owned(),
        ),
        Some(wanted) if wanted == name => Ok(Some(Arc::new(params))),
        Some(wanted) => refuse(format!("`{}` holds the parameters {name}, the federation starts from {wanted}", file.display())),
    }
}

/// Lets a new learner start from them.
///
/// # Errors
/// Fails if its model has none of them.
pub fn start(learner: &mut Learner, initial: Option<&ParamSet>) -> anyhow::Result<()> {
    let Some(initial) = initial else {
        return Ok(());
    };
    let taken = learner
        .start_from(initial)
        .or_fail(ExitCode::Configuration)?;
    tracing::info!(
        taken,
        of = learner.state().len(),
        "parameters to start from; the others are drawn"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_the_one_that_the_spec_names() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, value: f32| {
            let mut params = ParamSet::new();
            params.insert("w", &[1], vec![value]).unwrap();
            let path = folder.path().join(name);
            std::fs::write(&path, params.to_bytes()).unwrap();
            path
        };
        let (right, wrong) = (file("right", 1.0), file("wrong", 2.0));
        let drawn = FederationSpec::default();
        let mut spec = drawn.clone();
        spec.fingerprints.initial = Some(read(&right).unwrap().1);
        spec.validate().unwrap();
        assert_ne!(spec.id(), drawn.id(), "another start is another federation");
        assert_eq!(of(&spec, Some(&right)).unwrap().unwrap().n_values(), 1);
        assert!(of(&drawn, None).unwrap().is_none());
        let refusals = [
            (&spec, None, "name their file with --initial"),
            (&spec, Some(wrong.as_path()), "the federation starts from"),
            (&drawn, Some(right.as_path()), "leave out `initial`"),
            (
                &spec,
                Some(folder.path()),
                "cannot read the initial parameters",
            ),
        ];
        for (spec, file, expected) in refusals {
            let error = of(spec, file).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        std::fs::write(&wrong, b"no model").unwrap();
        assert!(
            of(&spec, Some(&wrong))
                .unwrap_err()
                .to_string()
                .contains("holds no parameters to start from")
        );
    }
}
