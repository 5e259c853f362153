//! What a machine is doing and what it waits for, for people.
//!
//! Every phase but the last one waits for something, and each wait names its cause. Who shows it to people adds what only
//! the network knows: who is connected, who refuses whom, which address does not answer.

use std::time::Duration;

use fednode_core::{NodeId, Round};
use serde::{Deserialize, Serialize};

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

/// Why a machine waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// Its own trainer, merge or mean is at work.
    OwnWork,
    /// Nobody has told yet what others know.
    FirstPeer,
    /// Too few members are here.
    Members,
    /// Nobody whose turn it is has closed the round.
    Closing,
    /// Too few updates were heard to close the round.
    Quorum,
    /// A closing names adverts that were not heard, or comes before its turn.
    Evidence,
    /// The mean of a closed round is on its way.
    Mean,
    /// Shared parts of members are on their way.
    Parts,
    /// Local updates of others are not out yet.
    Updates,
    /// Experts are on their way.
    Experts,
    /// Proxies are on their way.
    Proxies,
    /// Private modules are on offer or on their way.
    Modules,
}

/// One thing that is waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// Why.
    pub cause: Cause,
    /// What.
    pub what: String,
    /// From whom; empty if it is not a peer's to give.
    pub whom: Vec<NodeId>,
    /// How long already.
    pub since: Duration,
    /// How long at most from now, where the wait ends by itself.
    pub ends_in: Option<Duration>,
}

impl Waiting {
    /// Something that no peer owes us.
    pub fn new(cause: Cause, what: impl Into<String>, since: Duration) -> Self {
        Self {
            cause,
            what: what.into(),
            whom: Vec::new(),
            since,
            ends_in: None,
        }
    }

    /// Names the peers that owe it.
    #[must_use]
    pub fn from_peers(self, whom: Vec<NodeId>) -> Self {
        Self { whom, ..self }
    }

    /// Says when it ends by itself, at the latest.
    #[must_use]
    pub fn for_at_most(self, left: Duration) -> Self {
        let ends_in = Some(left);
        Self { ends_in, ..self }
    }
}
