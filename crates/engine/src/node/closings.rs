//! Closings that a node remembers one by one: those that it followed last, and those whose mean it refused.
//!
//! ```text
//! announced ──► followed: the newest may still be accused
//!           └─► refused: not looked at again, until another one is followed
//! ```

use std::collections::VecDeque;

use fednode_core::ClosingId;
use serde::{Deserialize, Serialize};

use crate::follower::Closed;

/// Closings that are remembered as refused, the newest ones.
const MOST_REFUSED: usize = 64;

/// Closings that may still be accused when the node has gone on: members keep their parts for two rounds more.
const RECENT: usize = 2;

/// The closings that were followed or refused lately.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Closings {
    /// Closings of the next round whose mean this node could not take over, since the head moved last.
    refused: VecDeque<ClosingId>,
    /// Those that were followed last, the newest last.
    followed: VecDeque<Closed>,
}

impl Closings {
    /// The head has moved: what was refused before is looked at again.
    pub(super) fn on_followed(&mut self, closed: Closed) {
        self.refused.clear();
        self.followed.push_back(closed);
        if self.followed.len() > RECENT {
            self.followed.pop_front();
        }
    }

    /// Visits those that were followed last.
    pub(super) fn followed(&self) -> impl Iterator<Item = &Closed> {
        self.followed.iter()
    }

    /// A closing's mean was refused: it is not looked at again until the head moves, unless most go on from it. Otherwise
    /// the same one would be chosen in every round.
    pub(super) fn refuse(&mut self, closed: &Closed) {
        let id = closed.id();
        if self.is_refused(id) {
            return;
        }
        // A view keeps a few closings of each author, so what makes room is hardly offered any more.
        if self.refused.len() >= MOST_REFUSED {
            self.refused.pop_front();
        }
        self.refused.push_back(id);
    }

    /// Tells whether a closing was refused since the head moved last.
    pub(super) fn is_refused(&self, closing: ClosingId) -> bool {
        self.refused.contains(&closing)
    }
}
