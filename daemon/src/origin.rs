//! What a node's samples are, kept in its state folder, so that `evaluate` and `personalise` need not be told again.
//!
//! ```toml
//! data = "digits"
//! shard = "1/2"
//! partition_file = ""          # paths from the root, wherever the node was started
//! ```

use std::path::{Path, absolute};

use fednode_data::source;
use fednode_runtime::exit::ExitCode;
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::failure::{OrFail, fail};

/// Its name in a state folder.
pub(crate) const FILE: &str = "data.toml";

/// Where a node's samples come from; keys of `node.toml`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Origin {
    data: String,
    shard: String,
    partition_file: String,
}

/// Writes down what the settings say.
///
/// # Errors
/// None that a setting could cause.
pub(crate) fn text(config: &Config) -> anyhow::Result<String> {
    let origin = Origin {
        data: rooted_source(&config.data),
        shard: config.shard.clone(),
        partition_file: if config.partition_file.is_empty() {
            String::new()
        } else {
            rooted(&config.partition_file)
        },
    };
    toml::to_string(&origin).or_fail(ExitCode::Internal)
}

/// Puts what is kept in a state folder into settings; without any, they stay as they are.
///
/// # Errors
/// Fails if it cannot be read.
pub(crate) fn recall(config: &mut Config) -> anyhow::Result<()> {
    let path = Path::new(&config.state).join(FILE);
    if !path.exists() {
        return Ok(());
    }
    let failed = |error: &dyn std::fmt::Display| {
        fail(
            ExitCode::State,
            format!(
                "cannot read `{}`: {error}; say --data and --shard",
                path.display()
            ),
        )
    };
    let text = std::fs::read_to_string(&path).map_err(|error| failed(&error))?;
    let origin: Origin =
        toml::from_str(&text).map_err(|error: toml::de::Error| failed(&error.message()))?;
    Origin {
        data: config.data,
        shard: config.shard,
        partition_file: config.partition_file,
    } = origin;
    Ok(())
}

/// Says how the samples of a state folder differ from those that the settings name; nothing where they are the same, or
/// nobody was here before.
pub(crate) fn change(config: &Config) -> Option<String> {
    let mut before = config.clone();
    recall(&mut before).ok()?;
    // What a file of index lists says is held by the spec's hash, wherever the file is now.
    let whole = |config: &Config| {
        format!("{} {}", rooted_source(&config.data), config.shard)
            .trim()
            .to_owned()
    };
    (whole(&before) != whole(config)).then(|| {
        format!(
            "what this node knows it learned from `{}`, and now it is given `{}`",
            whole(&before),
            whole(config)
        )
    })
}

/// Returns a data source whose paths, if it has any, begin at the root.
pub(crate) fn rooted_source(text: &str) -> String {
    source::with_paths(text, rooted)
}

fn rooted(path: &str) -> String {
    absolute(path).map_or_else(
        |_| path.to_owned(),
        |path| path.to_string_lossy().into_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_comes_back_with_paths_from_the_root() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().to_string_lossy().into_owned();
        let settings = Config {
            state: state.clone(),
            ..Config::default()
        };
        let mut unknown = settings.clone();
        recall(&mut unknown).unwrap();
        assert_eq!(unknown, settings, "nothing was kept");
        assert_eq!(change(&settings), None);

        let kept = Config {
            data: "csv:no.csv,label=x".into(),
            shard: "2/3".into(),
            partition_file: "lists".into(),
            ..settings
        };
        std::fs::write(folder.path().join(FILE), text(&kept).unwrap()).unwrap();
        let mut found = Config {
            state,
            ..Config::default()
        };
        recall(&mut found).unwrap();
        let here = std::env::current_dir().unwrap();
        assert_eq!(
            found.data,
            format!("csv:{},label=x", here.join("no.csv").display())
        );
        let lists = here.join("lists").display().to_string();
        assert_eq!(
            (found.shard.as_str(), &found.partition_file),
            ("2/3", &lists)
        );

        assert_eq!(change(&kept), None);
        let other = change(&Config {
            shard: "1/3".into(),
            ..kept
        })
        .unwrap();
        assert!(
            other.contains("no.csv,label=x 2/3`") && other.ends_with("no.csv,label=x 1/3`"),
            "{other}"
        );

        std::fs::write(folder.path().join(FILE), "data = 3").unwrap();
        let error = recall(&mut found).unwrap_err().to_string();
        assert!(
            error.contains("data.toml") && error.lines().count() == 1,
            "{error}"
        );
    }
}
