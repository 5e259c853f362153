//! The roll call: who is a member no more is turned away and not heard of, and the application hears of revocations.
//!
//! It looks whenever the book of members has changed, and now and then because certificates expire.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use fednode_core::NodeId;

use super::base::Base;
use super::hello::Reception;
use super::presence::Presence;
use crate::event::Event;

/// How often it is looked whether certificates of peers have expired.
const EVERY: Duration = Duration::from_secs(10);

/// What was done about the book of members so far.
#[derive(Debug)]
pub(super) struct RollCall {
    /// How many changes of the book were acted on.
    heeded: u64,
    next: Instant,
    /// Whose revocation was told.
    revoked: BTreeSet<NodeId>,
}

impl RollCall {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            heeded: 0,
            next: now,
            revoked: BTreeSet::new(),
        }
    }

    /// Does what follows from new statements of the organiser, and from certificates that expire.
    pub(super) fn tick(
        &mut self,
        base: &mut Base,
        reception: &mut Reception,
        presence: &mut Presence,
        now: Instant,
    ) {
        let Some(book) = base.config.members.clone() else {
            return;
        };
        let changes = book.changes();
        if changes == self.heeded && now < self.next {
            return;
        }
        (self.heeded, self.next) = (changes, now + EVERY);
        reception.turn_out(base);
        presence.turn_out(base);
        for node in book.revoked() {
            if self.revoked.insert(node) {
                tracing::warn!(node = %node.short(), "the organiser has revoked a member");
                base.tell(Event::Revoked { node });
            }
        }
    }
}
