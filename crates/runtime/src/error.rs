//! Why a member stopped before it was done, and with which exit code.

use fednode_core::Refusal;
use fednode_store::OpenError;

use crate::exit::ExitCode;
use crate::trainer::TrainerError;

/// Why a member could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The configuration is wrong.
    #[error("{0}")]
    Configuration(String),
    /// The state folder cannot be opened.
    #[error(transparent)]
    State(#[from] OpenError),
    /// Something in the state folder cannot be read or written.
    #[error("{0}")]
    StateContent(String),
    /// The network cannot be used.
    #[error("{0}")]
    Network(String),
    /// Every configured peer refuses this node.
    #[error("refused by {peer}: {refusal}")]
    Refused {
        /// A peer that refuses, with its address.
        peer: String,
        /// Why.
        refusal: Refusal,
    },
    /// Another process uses this node's key.
    #[error(
        "another process uses this node's key and was started later: every node needs a key of its own"
    )]
    Superseded,
    /// The trainer failed.
    #[error(transparent)]
    Trainer(#[from] TrainerError),
    /// It was told to stop before it was done.
    #[error("stopped before it was done: start it again with the same state folder to go on")]
    Interrupted,
    /// A defect of this software.
    #[error("internal error: {0}")]
    Internal(String),
}

impl RunError {
    /// Returns the exit code for a process that ends with this.
    pub const fn exit_code(&self) -> ExitCode {
        match self {
            Self::Configuration(_) => ExitCode::Configuration,
            Self::State(_) | Self::StateContent(_) | Self::Superseded => ExitCode::State,
            Self::Network(_) => ExitCode::Network,
            Self::Refused { .. } => ExitCode::Refused,
            Self::Interrupted | Self::Trainer(TrainerError::Abandoned) => ExitCode::Interrupted,
            Self::Trainer(TrainerError::Data(_)) => ExitCode::Data,
            Self::Trainer(TrainerError::Died) => ExitCode::Device,
            Self::Trainer(TrainerError::Training(_)) => ExitCode::Training,
            Self::Trainer(TrainerError::Misfit(_)) | Self::Internal(_) => ExitCode::Internal,
        }
    }
}
