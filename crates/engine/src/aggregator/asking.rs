//! How many parts are asked of each node.

use std::collections::BTreeMap;
use std::time::Duration;

use fednode_core::{NodeId, Timestamp};
use serde::{Deserialize, Serialize};

/// Parts that are asked of a node within a deadline. An honest node has one, one more after a restart, and one of each round
/// that it goes on to alone, which takes a deadline.
const MOST_ASKED: u32 = 8;

/// The parts that were asked of each node for the open round.
///
/// Without a bound a node could announce part after part, each of a later round, and have all of them fetched.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Asking(BTreeMap<NodeId, Asked>);

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Asked {
    since: Timestamp,
    parts: u32,
}

impl Asking {
    /// Tells whether another part may be asked of a node.
    pub(super) fn may_ask(&self, node: NodeId, now: Timestamp, deadline: Duration) -> bool {
        let asked = self.0.get(&node);
        asked.is_none_or(|it| it.parts < MOST_ASKED || now >= it.since + deadline)
    }

    /// A part was asked of a node.
    pub(super) fn note(&mut self, node: NodeId, now: Timestamp, deadline: Duration) {
        let fresh = Asked {
            since: now,
            parts: 0,
        };
        let asked = self.0.entry(node).or_insert(fresh);
        if now >= asked.since + deadline {
            *asked = fresh;
        }
        asked.parts += 1;
    }
}
