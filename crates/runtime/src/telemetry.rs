//! Logs: one line per event, for people or as JSON, to standard error or a file.
//!
//! Standard output belongs to a command's result and is never logged to.

use std::fs::OpenOptions;
use std::io;
use std::path::PathBuf;
use std::sync::Mutex;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

/// What is logged unless `FEDNODE_LOG` says otherwise: our own news, and only trouble of libraries. What gossip thinks of
/// a peer that restarted is neither.
const DEFAULT_FILTER: &str = "warn,libp2p_gossipsub=error,fednode=info,fedboot=info,fednode_runtime=info,\
    fednode_net=info,fednode_engine=info,fednode_store=info,fednode_learn=info,fednode_data=info";
/// The environment variable that overrides the filter.
pub const FILTER_VARIABLE: &str = "FEDNODE_LOG";

/// The form of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// For people.
    #[default]
    Human,
    /// One JSON object per line.
    Json,
}

impl std::str::FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "human" => Ok(Self::Human),
            "json" => Ok(Self::Json),
            _ => Err(format!("`{text}` is no log format: use `human` or `json`")),
        }
    }
}

/// Where log lines go.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Target {
    /// Standard error.
    #[default]
    Stderr,
    /// The end of a file.
    File(PathBuf),
}

/// Tells why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The file cannot be written.
    #[error("log file {path} cannot be opened: {source}")]
    File {
        /// The file.
        path: String,
        /// The cause.
        source: io::Error,
    },
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
/// Fails if the file cannot be opened, the filter is malformed, or logging is set up already.
pub fn install(format: Format, target: &Target) -> Result<(), TelemetryError> {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter()?)
        .with_ansi(
            *target == Target::Stderr
                && format == Format::Human
                && io::IsTerminal::is_terminal(&io::stderr()),
        )
        .with_writer(writer(target)?);
    let installed = match format {
        Format::Human => builder.compact().with_target(false).try_init(),
        Format::Json => builder.json().flatten_event(true).try_init(),
    };
    installed.map_err(|_| TelemetryError::Twice)
}

fn filter() -> Result<EnvFilter, TelemetryError> {
    match std::env::var(FILTER_VARIABLE) {
        Ok(text) => {
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
        Err(_) => Ok(EnvFilter::new(DEFAULT_FILTER)),
    }
}

fn writer(target: &Target) -> Result<BoxMakeWriter, TelemetryError> {
    match target {
        Target::Stderr => Ok(BoxMakeWriter::new(io::stderr)),
        Target::File(path) => {
            let opened = OpenOptions::new().create(true).append(true).open(path);
            let file = opened.map_err(|source| TelemetryError::File {
                path: path.display().to_string(),
                source,
            })?;
            Ok(BoxMakeWriter::new(Mutex::new(file)))
        }
    }
}
