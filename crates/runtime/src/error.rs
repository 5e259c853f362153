//! Why a member stopped before it was done, and with which exit code.

use fednode_core::work::WorkError;
use fednode_core::{Absence, Refusal};
use fednode_net::JoinRefusal;
use fednode_store::OpenError;

use crate::exit::ExitCode;

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
    /// This node is no member.
    #[error(
        "this node {0}: ask the organiser for a ticket (`fednode invite` makes one), then run `fednode join TICKET`, or `fednode rotate-key TICKET` if its key was revoked"
    )]
    Membership(Absence),
    /// The organiser does not admit this node.
    #[error(transparent)]
    NotAdmitted(JoinRefusal),
    /// The organiser has revoked this node while it ran.
    #[error(
        "the organiser has revoked this node's membership: with a new ticket of the organiser's, `fednode rotate-key TICKET` brings it back"
    )]
    Revoked,
    /// Another process uses this node's key.
    #[error(
        "another process uses this node's key and was started later: every node needs a key of its own"
    )]
    Superseded,
    /// The trainer failed.
    #[error(transparent)]
    Trainer(#[from] WorkError),
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
            // The owner's budget is a setting: no restart helps before somebody changes it.
            Self::Configuration(_) | Self::Trainer(WorkError::Withheld(_)) => {
                ExitCode::Configuration
            }
            Self::State(_) | Self::StateContent(_) | Self::Superseded => ExitCode::State,
            Self::Network(_) => ExitCode::Network,
            Self::Refused { .. } | Self::Membership(_) | Self::NotAdmitted(_) | Self::Revoked => {
                ExitCode::Refused
            }
            Self::Interrupted | Self::Trainer(WorkError::Abandoned) => ExitCode::Interrupted,
            Self::Trainer(WorkError::Data(_)) => ExitCode::Data,
            Self::Trainer(WorkError::Died) => ExitCode::Device,
            Self::Trainer(WorkError::Training(_)) => ExitCode::Training,
            Self::Trainer(
                WorkError::Misfit(_) | WorkError::WrongAnswer | WorkError::Crowded(_),
            )
            | Self::Internal(_) => ExitCode::Internal,
        }
    }
}
