//! Why a run ends before its time.

use fednode_core::work::WorkError;

/// Why a run fails.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Events and answers do not belong together: the history is of another run, or was made by another version of the
    /// state machines.
    #[error("what is known of the interrupted run is not of this run")]
    NotThisRun,
    /// A member could not do its work, for this reason.
    #[error(transparent)]
    Work(#[from] WorkError),
}
