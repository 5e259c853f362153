//! When a run is over, and what it can forget until then, so that a long run needs no more memory than a short one.

use fednode_core::{BlobId, Round};
use fednode_engine::names::NameSet;
use fednode_engine::{Note, Phase};

use super::blobs::Blobs;
use super::ground::Ground;

/// Rounds that blobs outlive their own: what a straggler may still ask for, and what is being fetched. Parts of a round's
/// mean do not: who has left that round wants the mean.
pub const KEPT_ROUNDS: u32 = 1;
/// Looks in a round, at equal numbers of local updates that have ended: a look visits every member.
const LOOKS_PER_ROUND: usize = 4;
/// New parts after which a look is worth it whatever the rounds, since each stands for an older one that may go.
const WORTH_A_LOOK: u64 = 64 << 20;

/// Whether all is done.
#[derive(Debug)]
pub(super) struct End {
    pending_incidents: usize,
    /// How often a node said that it is done, since the start.
    finished: usize,
    /// Whether anything changed since that was looked at.
    changed: bool,
}

impl End {
    pub(super) fn new(pending_incidents: usize) -> Self {
        Self {
            pending_incidents,
            finished: 0,
            changed: true,
        }
    }

    pub(super) fn incident_is_over(&mut self) {
        (self.pending_incidents, self.changed) = (self.pending_incidents - 1, true);
    }

    pub(super) fn on_note(&mut self, note: &Note) {
        if *note == Note::Finished {
            (self.finished, self.changed) = (self.finished + 1, true);
        }
    }

    /// Tells whether everybody is done. Visits every member only if something changed and as many as are up have said so.
    pub(super) fn is_here(&mut self, ground: &Ground<'_>) -> bool {
        let nodes = ground.scenario.nodes;
        let has_changed = std::mem::take(&mut self.changed);
        if !has_changed || self.pending_incidents > 0 || self.finished < ground.network.n_up(nodes)
        {
            return false;
        }
        let is_done = |number: usize| ground.members[number].machine.is_in(Phase::Serving);
        (0..nodes).all(|number| !ground.network.is_up(number) || is_done(number))
    }
}

/// Forgets what nobody can want any more.
#[derive(Debug, Default)]
pub(super) struct Forgetting {
    /// Local updates that have ended since the last look.
    trained: usize,
    /// The round that all nodes had reached then.
    oldest_round: Round,
}

impl Forgetting {
    /// A local update ended. Forgets the blobs of rounds that every node that is up has left behind, but for those that
    /// a machine says it will still need. Those are its own newest, and older versions that stand in for experts that
    /// did not come.
    pub(super) fn on_trained(&mut self, ground: &Ground<'_>, blobs: &mut Blobs) {
        self.trained += 1;
        let is_worth_it = blobs.parts_bytes() >= WORTH_A_LOOK;
        if self.trained * LOOKS_PER_ROUND < ground.scenario.nodes && !is_worth_it {
            return;
        }
        self.trained = 0;
        blobs.reset_parts_bytes();
        let members = ground.members.iter().enumerate();
        let up = members.filter(|(number, _)| ground.network.is_up(*number));
        let rounds = up.filter_map(|(_, member)| member.machine.round());
        let newest = rounds.min().unwrap_or_default();
        if newest <= self.oldest_round && !is_worth_it {
            return;
        }
        self.oldest_round = newest;
        // Those that are down may come back, so what they need stays as well.
        let needed = ground.members.iter();
        let needed: NameSet<BlobId> = needed
            .flat_map(|member| member.machine.needed_blobs())
            .collect();
        let oldest = Round(newest.0.saturating_sub(KEPT_ROUNDS));
        blobs.forget_before(oldest, newest, &needed);
    }
}
