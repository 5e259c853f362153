//! Memory: what nobody can want any more is forgotten, so that a long run needs no more than a short one.

use fednode_core::{FederationSpec, Round};

use super::super::world::Machine;
use super::World;

/// Rounds that a blob outlives its own, beside the interval between refreshes: what a straggler may still ask for.
const KEPT_ROUNDS: u32 = 3;
/// Adverts kept per member for those who come back; an author's last few are among them.
const KEPT_ADVERTS: usize = 40;

/// Returns how many rounds before that of the slowest node the blobs are kept.
pub fn kept_rounds(spec: &FederationSpec) -> u32 {
    let refresh = spec.exchange.experts.as_ref().map_or(1, |experts| experts.refresh_every);
    refresh.saturating_add(KEPT_ROUNDS)
}

impl World<'_> {
    /// Forgets the blobs of rounds that every node that is up has left behind.
    pub(super) fn forget_old_blobs(&mut self) {
        if !self.queue.scheduled().is_multiple_of(32) {
            return; // The search visits every member.
        }
        let up = self.members.iter().enumerate().filter(|(number, _)| self.network.is_up(*number));
        let rounds = up.filter_map(|(_, member)| match &member.machine {
            Machine::Node(node) => Some(node.state().round),
            Machine::Aggregator(_) => None,
        });
        let slowest = rounds.min().unwrap_or(Round(0));
        let newer = self.born.split_off(&Round(slowest.0.saturating_sub(kept_rounds(&self.spec))));
        for blob in std::mem::replace(&mut self.born, newer).into_values().flatten() {
            self.contents.remove(&blob);
            for holder in self.holders.remove(&blob).unwrap_or_default() {
                self.members[holder].held.remove(&blob);
            }
        }
    }

    pub(super) fn forget_old_adverts(&mut self) {
        let most = KEPT_ADVERTS * self.members.len();
        if self.adverts.len() > 2 * most {
            self.adverts.drain(..most);
        }
    }
}
