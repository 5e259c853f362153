//! What a node's samples are, kept in its state folder, so that `evaluate` and `personalise` need not be told again.
//!
//! ```toml
//! shard = "1/2"
//!
//! [data]                       # paths from the root, wherever the node was started
//! kind = "csv"
//! file = "/srv/ward.csv"
//!
//! [began_with]                 # of data of its own, the rows that there were at first: what was appended since is trained on
//! rows = 200
//! hash = "…"
//! ```

use std::path::{Path, PathBuf, absolute};

use fednode_config::from_table;
use fednode_data::{Beginning, DataSource};
use fednode_runtime::exit::ExitCode;
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::failure::{OrFail, fail};
use crate::shard::Shard;

/// Its name in a state folder.
pub const FILE: &str = "data.toml";

/// Where a node's samples come from; keys of `node.toml`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Origin {
    shard: Option<Shard>,
    partition_file: Option<PathBuf>,
    backbone: Option<PathBuf>,
    data: DataSource,
    #[serde(default)]
    began_with: Option<Beginning>,
}

/// Writes down what the settings say, and which rows the node began with.
///
/// # Errors
/// None that a setting could cause.
pub fn text(config: &Config, began_with: Option<&Beginning>) -> anyhow::Result<String> {
    let origin = Origin {
        began_with: began_with.cloned(),
        data: rooted_source(&config.data),
        shard: config.shard,
        partition_file: config.partition_file.as_deref().map(rooted),
        backbone: config.backbone.as_deref().map(rooted),
    };
    toml::to_string(&origin).or_fail(ExitCode::Internal)
}

/// Puts what is kept in a state folder into settings; without any, they stay as they are.
///
/// # Errors
/// Fails if it cannot be read.
pub fn recall(config: &mut Config) -> anyhow::Result<()> {
    let Some(origin) = read(config)? else {
        return Ok(());
    };
    Origin {
        data: config.data,
        shard: config.shard,
        partition_file: config.partition_file,
        backbone: config.backbone,
        ..
    } = origin;
    Ok(())
}

/// Returns the rows that the node of a state folder began with, if the settings name the same data. What cannot be read tells
/// nothing.
pub fn began_with(config: &Config) -> Option<Beginning> {
    let origin = read(config).ok()??;
    let is_same = rooted_source(&config.data).to_string() == origin.data.to_string();
    origin.began_with.filter(|_| is_same)
}

fn read(config: &Config) -> anyhow::Result<Option<Origin>> {
    let path = config.state().join(FILE);
    if !path.exists() {
        return Ok(None);
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
    let mut table: toml::Table = text
        .parse()
        .map_err(|error: toml::de::Error| failed(&error.message()))?;
    // An empty text stood for none once.
    table.retain(|_, value| value.as_str() != Some(""));
    from_table(table).map(Some).map_err(|error| failed(&error))
}

/// Says how the samples of a state folder differ from those that the settings name; nothing where they are the same, or
/// nobody was here before.
pub fn change(config: &Config) -> Option<String> {
    let mut before = config.clone();
    recall(&mut before).ok()?;
    // What a file of index lists says is held by the spec's hash, wherever the file is now.
    let whole = |config: &Config| {
        let source = rooted_source(&config.data).to_string();
        match config.shard {
            Some(shard) => format!("{source} {shard}"),
            None => source,
        }
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
pub fn rooted_source(source: &DataSource) -> DataSource {
    source.clone().with_paths(rooted)
}

fn rooted(path: &Path) -> PathBuf {
    absolute(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Storage;

    fn settings(state: &Path) -> Config {
        Config {
            storage: Storage {
                state: state.to_owned(),
                ..Storage::default()
            },
            ..Config::default()
        }
    }

    #[test]
    fn stored_origin_comes_back_with_absolute_paths() {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(folder.path());
        let mut unknown = settings.clone();
        recall(&mut unknown).unwrap();
        assert_eq!(unknown, settings, "nothing was kept");
        assert_eq!(change(&settings), None);

        let kept = Config {
            data: "csv:no.csv,label=x".parse().unwrap(),
            shard: Some(Shard { index: 2, of: 3 }),
            partition_file: Some("lists".into()),
            ..settings.clone()
        };
        std::fs::write(folder.path().join(FILE), text(&kept, None).unwrap()).unwrap();
        let mut found = settings.clone();
        recall(&mut found).unwrap();
        let here = std::env::current_dir().unwrap();
        assert_eq!(
            found.data.to_string(),
            format!("csv:{},label=x", here.join("no.csv").display())
        );
        assert_eq!(
            (found.shard, found.partition_file),
            (kept.shard, Some(here.join("lists")))
        );

        assert_eq!(change(&kept), None);
        let other = change(&Config {
            shard: Some(Shard { index: 1, of: 3 }),
            ..kept
        })
        .unwrap();
        assert!(
            other.contains("no.csv,label=x 2/3`") && other.ends_with("no.csv,label=x 1/3`"),
            "{other}"
        );

        std::fs::write(folder.path().join(FILE), "data = 3").unwrap();
        let error = recall(&mut settings.clone()).unwrap_err().to_string();
        assert!(
            error.contains("data.toml") && error.lines().count() == 1,
            "{error}"
        );
    }

    #[test]
    fn old_form_of_an_origin_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let old = "data = \"csv:/no.csv,label=x\"\nshard = \"\"\npartition_file = \"\"\n";
        std::fs::write(folder.path().join(FILE), old).unwrap();
        let mut found = settings(folder.path());
        recall(&mut found).unwrap();
        assert_eq!(found.data.to_string(), "csv:/no.csv,label=x");
        assert_eq!((found.shard, found.partition_file), (None, None));
    }
}
