//! Memory: what nobody can want any more is forgotten, so that a long run needs no more than a short one.

use fednode_core::{BlobId, Round};

use super::super::world::Machine;
use super::{NameSet, World};

/// Rounds that all blobs outlive their own: what a straggler may still ask for, and what is being fetched.
pub const KEPT_ROUNDS: u32 = 1;
/// Local updates between two looks, as a share of the nodes: the look visits every member.
const LOOKS_PER_ROUND: usize = 4;
/// Adverts kept per member for those who come back; an author's last few are among them.
const KEPT_ADVERTS: usize = 40;

impl World<'_> {
    /// Forgets the blobs of rounds that every node that is up has left behind, but for those that a machine says it will
    /// still need: its own newest, and older versions that stand in for experts that did not come.
    pub(super) fn forget_old_blobs(&mut self) {
        self.begun += 1;
        if self.begun * LOOKS_PER_ROUND < self.scenario.nodes {
            return;
        }
        self.begun = 0;
        let up = self.members.iter().enumerate().filter(|(number, _)| self.network.is_up(*number));
        let rounds = up.filter_map(|(_, member)| match &member.machine {
            Machine::Node(node) => Some(node.state().round),
            Machine::Aggregator(_) => None,
        });
        let oldest = Round(rounds.min().unwrap_or_default().0.saturating_sub(KEPT_ROUNDS));
        if oldest <= self.oldest_kept {
            return;
        }
        self.oldest_kept = oldest;
        let needed = self.needed_blobs();
        let newer = self.born.split_off(&oldest);
        for (round, blobs) in std::mem::replace(&mut self.born, newer) {
            let (kept, forgotten): (Vec<_>, Vec<_>) = blobs.into_iter().partition(|blob| needed.contains(blob));
            if !kept.is_empty() {
                self.born.insert(round, kept);
            }
            for blob in forgotten {
                self.contents.remove(&blob);
                self.proxies.remove(&blob);
                for holder in self.holders.remove(&blob).unwrap_or_default() {
                    self.members[holder].held.remove(&blob);
                }
            }
        }
    }

    /// Returns what the nodes need, those that may come back too.
    fn needed_blobs(&self) -> NameSet<BlobId> {
        let nodes = self.members.iter().filter_map(|member| match &member.machine {
            Machine::Node(node) => Some(node),
            Machine::Aggregator(_) => None,
        });
        nodes.flat_map(|node| node.needed_blobs()).collect()
    }

    pub(super) fn forget_old_adverts(&mut self) {
        let most = KEPT_ADVERTS * self.members.len();
        if self.adverts.len() > 2 * most {
            self.adverts.drain(..most);
        }
    }
}
