//! Parameters that a federation starts from, instead of drawn ones: a file beside the spec, which names it by its hash.
//!
//! Its parameters may have other names than the model's. `FILE,names=MAP` says which are which. MAP is TOML: the name here
//! on the left, that in the file on the right. It is looked for beside FILE. A name stands for itself and for all that
//! begins with it and a dot. The hash is of the parameters as they are named here, so members may bring them in different
//! files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fednode_core::{BlobId, ConfigError, FederationSpec, ParamSet, Tensor};
use fednode_learn::Learner;
use fednode_runtime::exit::ExitCode;

use crate::failure::{OrFail, fail};

/// What stands between a file and the names of its parameters.
const NAMES: &str = ",names=";

/// Divides what was given into the file and what names it, as it was written; nothing if the file's own names stand.
fn divided(given: &Path) -> (&Path, Option<&str>) {
    match given.to_str().and_then(|text| text.split_once(NAMES)) {
        Some((file, names)) => (Path::new(file), Some(names)),
        None => (given, None),
    }
}

/// Makes the path of the file absolute, if there is such a file. Names stay beside it.
pub fn absolute(given: &Path) -> PathBuf {
    let (file, names) = divided(given);
    let file = file.canonicalize().unwrap_or_else(|_| file.to_owned());
    let mut whole = file.into_os_string();
    if let Some(names) = names {
        whole.push(NAMES);
        whole.push(names);
    }
    whole.into()
}

/// Reads a safetensors file, renames its parameters if the path says how, and names them by the hash of their canonical form.
///
/// # Errors
/// Names the file and what is wrong with it.
pub fn read(given: &Path) -> Result<(ParamSet, BlobId), ConfigError> {
    let (path, names) = divided(given);
    let names = names.map(|names| path.with_file_name(names));
    let shown = path.display();
    let bytes = std::fs::read(path).map_err(|error| {
        ConfigError(format!(
            "cannot read the initial parameters `{shown}`: {error}"
        ))
    })?;
    let mut params = ParamSet::import(&bytes).map_err(|error| {
        ConfigError(format!(
            "`{shown}` holds no parameters to start from: {error}"
        ))
    })?;
    if let Some(names) = names {
        let fault = |fault: String| {
            ConfigError(format!(
                "the names in `{}` cannot be used: {fault}",
                names.display()
            ))
        };
        let text = std::fs::read_to_string(&names).map_err(|error| fault(error.to_string()))?;
        let map: BTreeMap<String, String> =
            toml::from_str(&text).map_err(|error| fault(error.message().to_owned()))?;
        params = renamed(params, &map).map_err(fault)?;
    }
    let name = BlobId::of(&params.to_bytes());
    Ok((params, name))
}

/// Gives parameters the names that a map has for them; those that it does not name keep theirs.
///
/// # Errors
/// Says which name is of no parameter, or of two.
fn renamed(params: ParamSet, map: &BTreeMap<String, String>) -> Result<ParamSet, String> {
    let mut unused: BTreeSet<&str> = map.values().map(String::as_str).collect();
    if unused.len() < map.len() {
        return Err("two names on the left have the same on the right".to_owned());
    }
    let mut renamed = ParamSet::new();
    for (theirs, tensor) in params.into_tensors() {
        // The longest name decides: `conv1` may go elsewhere than `conv1.bias`.
        let fitting = map.iter().filter_map(|(ours, begin)| {
            let rest = theirs.strip_prefix(begin.as_str())?;
            (rest.is_empty() || rest.starts_with('.')).then_some((begin, ours, rest))
        });
        let name = match fitting.max_by_key(|(begin, ..)| begin.len()) {
            Some((begin, ours, rest)) => {
                unused.remove(begin.as_str());
                format!("{ours}{rest}")
            }
            None => theirs,
        };
        let shape = tensor.shape().to_vec();
        renamed
            .insert(&name, &shape, tensor.into_values())
            .map_err(|error| error.to_string())?;
    }
    match unused.first() {
        None => Ok(renamed),
        Some(name) => Err(format!(
            "the file has no parameter `{name}`, and none below it"
        )),
    }
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

/// Lets a new learner start from them. Returns which of them its model has not, in words.
///
/// # Errors
/// Fails if its model has none of them.
pub fn start(learner: &mut Learner, initial: Option<&ParamSet>) -> anyhow::Result<Option<String>> {
    let Some(initial) = initial else {
        return Ok(None);
    };
    let taken = learner
        .start_from(initial)
        .or_fail(ExitCode::Configuration)?;
    let state = learner.state();
    tracing::info!(
        taken,
        of = state.len(),
        "parameters to start from; the others are drawn"
    );
    let fits =
        |name: &str, tensor: &Tensor| state.get(name).map(Tensor::shape) == Some(tensor.shape());
    let mut left_out = initial.iter().filter(|(name, tensor)| !fits(name, tensor));
    Ok(left_out.next().map(|(name, tensor)| {
        let more = match left_out.count() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let shape = tensor.shape();
        format!("the model has no parameter `{name}` of shape {shape:?}{more} to start from: what it has there is drawn")
    }))
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

    #[test]
    fn parameters_get_the_names_that_a_map_says() {
        let folder = tempfile::tempdir().unwrap();
        let mut params = ParamSet::new();
        for (name, value) in [
            ("conv1.weight", 1.0),
            ("conv1.bias", 2.0),
            ("conv10.weight", 3.0),
            ("fc.weight", 4.0),
        ] {
            params.insert(name, &[1], vec![value]).unwrap();
        }
        let file = folder.path().join("theirs.safetensors");
        std::fs::write(&file, params.to_bytes()).unwrap();
        let map = folder.path().join("names.toml");
        let by_map = |text: &str| {
            std::fs::write(&map, text).unwrap();
            let path = format!("{},names={}", file.display(), map.display());
            read(Path::new(&path)).map(|(params, _)| {
                params
                    .iter()
                    .map(|(name, tensor)| format!("{name} {}", tensor.values()[0]))
                    .collect::<Vec<_>>()
            })
        };
        let there = folder.path().canonicalize().unwrap();
        let given = format!(
            "{}/./theirs.safetensors,names=names.toml",
            folder.path().display()
        );
        let absolute = absolute(Path::new(&given));
        assert_eq!(absolute, there.join("theirs.safetensors,names=names.toml"));
        let names = by_map("\"layers.0\" = \"conv1\"\nshift = \"conv1.bias\"").unwrap();
        assert_eq!(
            names,
            [
                "conv10.weight 3",
                "fc.weight 4",
                "layers.0.weight 1",
                "shift 2"
            ]
        );
        for (text, says) in [
            (
                "\"layers.0\" = \"conv\"",
                "the file has no parameter `conv`, and none below it",
            ),
            ("\"fc\" = \"conv1\"", "fc.weight"),
            ("layers = 3", "expected a string"),
            ("a = \"conv1\"\nb = \"conv1\"", "two names on the left"),
        ] {
            let error = by_map(text).unwrap_err().0;
            assert!(
                error.contains("names.toml` cannot be used: ") && error.contains(says),
                "{error}"
            );
        }
    }
}
