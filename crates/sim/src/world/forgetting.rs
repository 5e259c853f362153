//! Memory: what nobody can want any more is forgotten, so that a long run needs no more than a short one.

use fednode_core::{BlobId, BlobRef, Round};

use super::{Born, Member, NameSet, World};
use crate::world::Machine;

/// Rounds that blobs outlive their own: what a straggler may still ask for, and what is being fetched. Parts of a round's
/// mean do not: who has left that round wants the mean.
pub const KEPT_ROUNDS: u32 = 1;
/// Looks in a round, at equal numbers of local updates that have ended: a look visits every member.
const LOOKS_PER_ROUND: usize = 4;
/// New parts after which a look is worth it whatever the rounds, since each stands for an older one that may go.
const WORTH_A_LOOK: u64 = 64 << 20;
/// Adverts kept per member for those who come back; an author's last few are among them.
const KEPT_ADVERTS: usize = 40;

impl World<'_> {
    /// Forgets the blobs of rounds that every node that is up has left behind, but for those that a machine says it will
    /// still need: its own newest, and older versions that stand in for experts that did not come.
    pub(super) fn forget_old_blobs(&mut self) {
        self.trained += 1;
        let is_worth_it = self.trained_bytes >= WORTH_A_LOOK;
        if self.trained * LOOKS_PER_ROUND < self.scenario.nodes && !is_worth_it {
            return;
        }
        (self.trained, self.trained_bytes) = (0, 0);
        let up = self
            .members
            .iter()
            .enumerate()
            .filter(|(number, _)| self.network.is_up(*number));
        let rounds = up.filter_map(|(_, member)| match &member.machine {
            Machine::Node(node) => Some(node.round()),
            Machine::Aggregator(_) => None,
        });
        let newest = rounds.min().unwrap_or_default();
        if newest <= self.oldest_round && !is_worth_it {
            return;
        }
        self.oldest_round = newest;
        let needed = self.needed_blobs();
        let oldest = Round(newest.0.saturating_sub(KEPT_ROUNDS));
        let (born, parts) = (
            std::mem::take(&mut self.born),
            std::mem::take(&mut self.parts),
        );
        self.born = self.forget_before(oldest, born, &needed);
        self.parts = self.forget_before(newest, parts, &needed);
    }

    /// Enters a blob that was just made as one that is averaged.
    pub(super) fn set_apart(&mut self, round: Round, part: BlobRef) {
        self.trained_bytes += part.size;
        let Some(made) = self.born.get_mut(&round) else {
            return;
        };
        if let Some(at) = made.iter().rposition(|made| *made == part.id) {
            self.parts.entry(round).or_default().push(made.remove(at));
        }
    }

    /// Forgets what was made before a round and is not needed; returns the others.
    fn forget_before(&mut self, oldest: Round, mut made: Born, needed: &NameSet<BlobId>) -> Born {
        for (_, blobs) in made.range_mut(..oldest) {
            blobs.retain(|blob| {
                let is_needed = needed.contains(blob);
                if !is_needed {
                    self.contents.remove(blob);
                    self.proxies.remove(blob);
                    for holder in self.holders.remove(blob).unwrap_or_default() {
                        self.members[holder].held.remove(blob);
                    }
                }
                is_needed
            });
        }
        made.retain(|_, blobs| !blobs.is_empty());
        made
    }

    /// Returns what the members need, those that may come back too.
    fn needed_blobs(&self) -> NameSet<BlobId> {
        let needed = |member: &Member| match &member.machine {
            Machine::Node(node) => node.needed_blobs(),
            Machine::Aggregator(aggregator) => aggregator.needed_blobs(),
        };
        self.members.iter().flat_map(needed).collect()
    }

    pub(super) fn forget_old_adverts(&mut self) {
        let most = KEPT_ADVERTS * self.members.len();
        if self.adverts.len() > 2 * most {
            self.adverts.drain(..most);
        }
    }
}
