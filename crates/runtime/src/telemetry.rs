//! Logs: one line per event, for people or as JSON, to standard error.
//!
//! Standard output belongs to a command's result and is never logged to.

use std::io::{self, IsTerminal};

use serde::{Deserialize, Serialize};
use tracing_subscriber::EnvFilter;

/// What is logged unless `FEDNODE_LOG` says otherwise: our own news, and only trouble of libraries. What gossip thinks of
/// a peer that restarted is neither.
const DEFAULT_FILTER: &str = "warn,libp2p_gossipsub=error,fednode=info,fedboot=info,fednode_runtime=info,\
    fednode_net=info,fednode_engine=info,fednode_store=info,fednode_learn=info,fednode_data=info";
/// The environment variable that overrides the filter.
pub const FILTER_VARIABLE: &str = "FEDNODE_LOG";

/// The form of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// For people.
    #[default]
    Human,
    /// One JSON object per line.
    Json,
}

/// Tells why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter is malformed.
    #[error("`{FILTER_VARIABLE}` is not a log filter: {0}")]
    Filter(String),
    /// Somebody else set logging up in this process.
    #[error("logging is already set up in this process")]
    Twice,
}

/// Sets logging up for the whole process.
///
/// # Errors
/// Fails if the filter is malformed, or logging is set up already.
pub fn install(format: Format) -> Result<(), TelemetryError> {
    let text = std::env::var(FILTER_VARIABLE).ok();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter(text.as_deref())?)
        // A line that cannot be written is dropped: saying so on the same standard error would panic.
        .log_internal_errors(false)
        .with_ansi(format == Format::Human && io::stderr().is_terminal())
        .with_writer(io::stderr);
    let installed = match format {
        Format::Human => builder.compact().with_target(false).try_init(),
        Format::Json => builder.json().flatten_event(true).try_init(),
    };
    installed.map_err(|_| TelemetryError::Twice)
}

/// Makes the filter of a text; without one, or of an empty one, the default.
fn filter(text: Option<&str>) -> Result<EnvFilter, TelemetryError> {
    // Service managers pass variables that somebody left empty.
    let Some(text) = text.filter(|text| !text.trim().is_empty()) else {
        return Ok(EnvFilter::new(DEFAULT_FILTER));
    };
    // A lone word is a level; taken for the name of a part it would turn off all the others.
    let is_level = |word: &str| word.parse::<tracing::level_filters::LevelFilter>().is_ok();
    if let Some(word) = text
        .split(',')
        .map(str::trim)
        .find(|word| word.bytes().all(|b| b.is_ascii_alphanumeric()) && !is_level(word))
    {
        return Err(TelemetryError::Filter(format!(
            "`{word}` is no level: error, warn, info, debug or trace"
        )));
    }
    EnvFilter::try_new(text).map_err(|error| TelemetryError::Filter(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_filter_is_the_default() {
        let default = filter(None).unwrap().to_string();
        for empty in ["", "  "] {
            assert_eq!(filter(Some(empty)).unwrap().to_string(), default);
        }
        assert_ne!(filter(Some("debug")).unwrap().to_string(), default);
    }

    #[test]
    fn a_word_that_is_no_level_is_named() {
        let error = filter(Some("fednode_net=trace,loud")).unwrap_err();
        assert!(error.to_string().contains("`loud` is no level"), "{error}");
    }
}
