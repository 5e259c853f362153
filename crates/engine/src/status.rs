//! What a machine is doing and what it waits for, for people.

use std::time::Duration;

use fednode_core::{NodeId, Round};

use crate::state::{Head, Phase};

/// What a machine is doing.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    /// The phase.
    pub phase: Phase,
    /// The round that is being worked on.
    pub round: Round,
    /// The newest closed round.
    pub head: Head,
    /// What it waits for, most important first.
    pub waiting: Vec<Waiting>,
}

/// One thing that is waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// What.
    pub what: String,
    /// From whom; empty if it is not a peer's to give.
    pub whom: Vec<NodeId>,
    /// How long already.
    pub since: Duration,
}

impl Waiting {
    /// Something that no peer owes us.
    pub fn new(what: impl Into<String>, since: Duration) -> Self {
        Self {
            what: what.into(),
            whom: Vec::new(),
            since,
        }
    }

    /// Something that certain peers owe us.
    pub fn from_peers(what: impl Into<String>, whom: Vec<NodeId>, since: Duration) -> Self {
        Self {
            what: what.into(),
            whom,
            since,
        }
    }
}
