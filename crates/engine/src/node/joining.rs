//! Joining: meet the others, then follow the newest closed round, or begin with everybody.
//!
//! A latecomer adopts the current shared part, trains a round from it and only then publishes: before that its proxies
//! would live in another feature space. A restarted node joins too; if the federation has not
//! moved on, it continues in the phase that its checkpoint names.

use std::collections::BTreeSet;
use std::time::Duration;

use fednode_core::{FederationSpec, NodeId, Timestamp};
use serde::{Deserialize, Serialize};

use super::exchange::Exchange;
use super::exchanging::Exchanging;
use super::merging::Merging;
use super::phase::Phase;
use super::pooling::Pooling;
use super::shared::Shared;
use super::training::Training;
use crate::event::Timer;
use crate::masks::Sums;
use crate::state::Phase as PhaseName;
use crate::status::{Cause, Waiting};

/// Direct connections that are enough to begin, however large the federation: nobody connects to everybody.
const ENOUGH_PEERS: usize = 16;
/// How often joining looks again without being woken.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// A node that has not begun yet.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Joining {
    since: Timestamp,
    /// Whether what others know has been pulled: before that, silence means nothing.
    is_synced: bool,
    /// Since when there have been enough nodes to begin.
    #[serde(default)]
    enough: Option<Timestamp>,
    /// The phase that a checkpoint named, while the node finds out whether the federation has moved on.
    resume: Option<PhaseName>,
    /// The fetching of the newest mean.
    pub(super) adoption: Option<Box<Exchange>>,
}

impl Joining {
    pub(super) fn new(resume: Option<PhaseName>) -> Self {
        Self {
            since: Timestamp::default(),
            is_synced: false,
            enough: None,
            resume,
            adoption: None,
        }
    }

    pub(super) fn on_start(&mut self, now: Timestamp) {
        self.since = now;
    }

    pub(super) fn on_synced(&mut self) {
        self.is_synced = true;
    }

    pub(super) fn to_resume(&self) -> PhaseName {
        self.resume.unwrap_or(PhaseName::Joining)
    }

    /// Time has passed: a mean that cannot be had is given up, so that another one may be found.
    pub(super) fn look_again(&mut self, shared: &mut Shared) {
        self.adoption.take_if(|adoption| adoption.mean.is_stuck());
        shared
            .outbox
            .set_timer(Timer::Join, shared.now + LOOK_AGAIN);
    }

    /// Looks for a better closed round than the one that is being adopted.
    pub(super) fn consider_globals(&mut self, shared: &mut Shared) {
        if let Some(adoption) = &mut self.adoption
            && let Some(closed) = adoption.find_better(shared)
        {
            adoption.pursue(shared, closed);
        }
    }

    pub(super) fn advance(mut self, shared: &mut Shared) -> Phase {
        // Without anything to share, waiting for others would only cost time.
        if is_alone_by_design(&shared.spec) {
            return self.begin(shared);
        }
        let waited = shared.now.since(self.since);
        // A node that comes back does not wait for ever for peers that may be gone.
        let patience_over = self.resume.is_some() && waited > shared.spec.round.grace();
        if !self.is_synced && !patience_over {
            return Phase::Joining(self);
        }
        // Without means there is no chain to catch up with: whoever comes late begins with round 1.
        if shared.averages() {
            self.follow_newest_global(shared);
        }
        match self
            .adoption
            .take_if(|adoption| adoption.mean.ready().is_some())
        {
            Some(adoption) => return Merging::adopt(shared, adoption),
            None if self.adoption.is_some() => return Phase::Joining(self),
            None => {}
        }
        let under_way = shared.chain.is_unconfirmed() && waited < under_way_for(shared);
        let is_complete = self.is_complete(shared);
        if !under_way && (self.resume.is_some() || is_complete) {
            return self.begin(shared);
        }
        Phase::Joining(self)
    }

    /// Tells whether those who are here may begin. Where there is a masked sum ahead, they wait a while for the rest: who has not met the
    /// others has no part in it.
    fn is_complete(&mut self, shared: &Shared) -> bool {
        let present = shared.n_present();
        if present < n_needed(shared) {
            self.enough = None;
            return false;
        }
        let since = *self.enough.get_or_insert(shared.now);
        let is_over = shared.now.since(since) >= shared.spec.round.grace();
        is_over || present >= shared.n_expected().min(ENOUGH_PEERS) || !has_sum_ahead(shared)
    }

    /// Begins to fetch the mean of the newest closed round, if there is one ahead of this node.
    fn follow_newest_global(&mut self, shared: &mut Shared) {
        if self.adoption.is_some() {
            return;
        }
        let waited = shared.now.since(self.since);
        let Some(closed) = shared.best_global(None, waited) else {
            return;
        };
        // A node that resumes in the very round that was closed next goes through its exchange as usual.
        if self.resume.is_some() && closed.round <= shared.memory.round {
            return;
        }
        let mut adoption = Exchange::to_adopt(shared);
        // The mean is fetched and, if it must be, recomputed like that of any other round.
        adoption.pursue(shared, closed);
        self.adoption = Some(adoption);
    }

    fn begin(self, shared: &mut Shared) -> Phase {
        let round = shared.memory.round;
        let closing = shared.chain.head().closing;
        shared.stragglers.begin(closing, shared.now);
        match self.resume {
            None => Training::begin(shared, round.next()),
            Some(PhaseName::Exchanging | PhaseName::Merging)
                if shared.memory.own_update().is_some() =>
            {
                Exchanging::resume(shared)
            }
            Some(PhaseName::Pooling) => Pooling::begin(shared),
            // The update of this round was not finished, or is lost. The round is trained anew.
            Some(_) => Training::begin(shared, round),
        }
    }

    pub(super) fn waiting(&self, shared: &Shared, now: Timestamp) -> Vec<Waiting> {
        let since = now.since(self.since);
        if let Some(adoption) = &self.adoption {
            let mean = adoption.for_the_mean(shared, since);
            let newest = || Waiting::new(Cause::Mean, "the newest mean", since);
            return vec![mean.unwrap_or_else(newest)];
        }
        let times = &shared.spec.round;
        vec![if !self.is_synced {
            let whom = shared
                .view
                .company()
                .neighbours()
                .chain(shared.view.company().aggregators());
            let what = "a first peer that tells what it knows";
            let wait = Waiting::new(Cause::FirstPeer, what, since).from_peers(whom.collect());
            // A node that comes back goes on without anybody after a while.
            let patience = if shared.chain.is_unconfirmed() {
                under_way_for(shared)
            } else {
                times.grace()
            };
            match self.resume {
                Some(_) => wait.for_at_most(patience.saturating_sub(since)),
                None => wait,
            }
        } else if shared.chain.is_unconfirmed() && since < under_way_for(shared) {
            let said = shared.view.globals().map(|said| said.author);
            let is_other = |node: &NodeId| *node != shared.me && !shared.view.is_banned(*node);
            let whom: BTreeSet<NodeId> = said.filter(is_other).collect();
            let what = "updates that the newest closing counts";
            Waiting::new(Cause::Evidence, what, since)
                .from_peers(whom.into_iter().collect())
                .for_at_most(under_way_for(shared).saturating_sub(since))
        } else {
            self.for_members(shared, now)
        }]
    }

    fn for_members(&self, shared: &Shared, now: Timestamp) -> Waiting {
        let (present, round) = (shared.n_present(), shared.memory.round.next());
        let what = |needed| format!("{needed} nodes to begin round {round} ({present} are here)");
        match self.enough {
            Some(enough) => {
                let left = shared.spec.round.grace().saturating_sub(now.since(enough));
                let all = shared.n_expected().min(ENOUGH_PEERS);
                Waiting::new(Cause::Members, what(all), now.since(self.since)).for_at_most(left)
            }
            None => Waiting::new(
                Cause::Members,
                what(n_needed(shared)),
                now.since(self.since),
            ),
        }
    }
}

/// Returns how long a closed round that cannot be followed yet keeps a node from beginning: the federation is under way.
///
/// One that follows the node's own closed round, and counts too few, may be waiting for the node itself.
fn under_way_for(shared: &Shared) -> Duration {
    let (chain, times) = (&shared.chain, &shared.spec.round);
    if chain.lacks_evidence() || chain.head().closing.is_none() {
        times.deadline()
    } else {
        times.grace()
    }
}

/// An algorithm that shares nothing needs nobody, and neither does a federation of one.
fn is_alone_by_design(spec: &FederationSpec) -> bool {
    let exchange = &spec.exchange;
    (exchange.averaging.is_none() && exchange.experts.is_none()) || spec.nodes == 1
}

/// Tells whether a masked sum needs those who begin the next round.
fn has_sum_ahead(shared: &Shared) -> bool {
    let sums = Sums::of(&shared.spec, &shared.schedule);
    sums.is_some_and(|sums| sums.depend_on_the_beginning_of(shared.memory.round.next()))
}

/// Returns how many nodes must be here before the first round begins, or the first that was added.
fn n_needed(shared: &Shared) -> usize {
    let quorum = shared.spec.round.quorum_of(shared.n_expected());
    quorum.min(ENOUGH_PEERS)
}
