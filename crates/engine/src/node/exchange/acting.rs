//! Closing a round in the aggregator's place.
//!
//! The nodes whose updates are known are ordered by a hash of seed, round and node id; each acts after the one
//! before it has had its grace time. The announcement names every member, so anybody can recompute the mean.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fednode_core::{BlobId, BlobRef, Body, Local, NodeId, Round, Timestamp};
use serde::{Deserialize, Serialize};

use crate::chain::{self, Rank};
use crate::closing::{Base, Closer, Mean, Offered, Step};
use crate::event::{Arrival, AverageReport, Fetch, FetchKind, JoinReport, Note, Output, Timer};
use crate::node::shared::Shared;
use crate::slices;
use crate::status::{Cause, Waiting};
use crate::view::{Update, View};

/// Parts that are asked of a node for one closing: its update, one of a later round, and one after a restart.
const MOST_ASKED: usize = 3;

/// Returns the most bytes that a part of a round can have: by the mean before it or, if that says nothing, by other parts.
fn most_bytes(shared: &Shared, round: Round) -> u64 {
    let by_mean = chain::most_bytes(shared.chain.head(), round, &shared.schedule);
    by_mean.unwrap_or_else(|| chain::most_by_others(&shared.view, shared.spec.nodes))
}

/// A round being closed by this node.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(in crate::node) struct Acting {
    closer: Closer,
    /// What the members must have trained from.
    base: Base,
    /// The end of the first grace time.
    until: Timestamp,
    /// The parts that were asked of each node.
    asked: BTreeMap<NodeId, Vec<BlobRef>>,
    /// The round that is closed.
    round: Round,
    /// The most bytes that a part can have.
    most: u64,
    /// The round of the head, if there is one: what follows it is of a later one.
    head: Option<Round>,
    /// The newest round of which updates are counted, where others train in later ones.
    newest: Option<Round>,
    /// Whether it has said the closed round. It may begin anew then: perhaps that counted too few.
    #[serde(default)]
    has_closed: bool,
}

impl Acting {
    /// Begins to close a round: fetches the parts of all updates that follow the same closed round as this node.
    pub(in crate::node) fn begin(shared: &mut Shared, round: Round) -> Self {
        let base = shared.base();
        let mut acting = Self {
            closer: Closer::new(shared.spec.clone(), shared.schedule.clone()),
            base,
            until: shared.now + shared.spec.round.grace(),
            asked: BTreeMap::new(),
            round,
            most: most_bytes(shared, round),
            head: shared
                .chain
                .head()
                .closing
                .map(|_| shared.chain.head().round),
            // Where only some train in a round, those of a later one have given this one up.
            newest: (shared.spec.round.participation < 1.0).then_some(round),
            has_closed: false,
        };
        shared.outbox.note(Note::Acting(round));
        // Nothing is on its way then, so no arrival would lead to the mean.
        if !acting.fetch_counted(shared, acting.until) {
            acting.close_if_ready(shared);
        }
        acting
    }

    /// Fetches the parts of all updates that count and are not known yet. Tells whether there are any.
    fn fetch_counted(&mut self, shared: &mut Shared, until: Timestamp) -> bool {
        let (base, broadcast_set, view) = (self.base, shared.broadcast_set, &shared.view);
        // Updates of whatever round: who is ahead because it gave up waiting is counted, too. So is who went on from a
        // closing that this node does not follow, with what it said before.
        let counted = view.nodes().newest_that(move |update| {
            base.is_of(update.local) && broadcast_set.contains(update.node, update.round)
        });
        let wanted: Vec<(NodeId, BlobRef)> = counted
            .filter_map(|update| Some((update.node, self.offer(update, view)?)))
            .collect();
        for (node, blob) in &wanted {
            fetch(shared, *node, *blob, until);
        }
        !wanted.is_empty()
    }

    /// Another node's update arrived: its part is fetched if it counts.
    ///
    /// No node is asked for more than a few parts. Otherwise some could keep the round open: by announcing part after part
    /// that nobody can fetch.
    pub(super) fn on_update(&mut self, shared: &mut Shared, update: Update<'_>) {
        let (node, now) = (update.node, shared.now);
        let asked = self.asked.get(&node).map_or(0, Vec::len);
        if asked >= MOST_ASKED || !self.base.is_of(update.local) {
            return;
        }
        // What takes the place of something else has no more time than that had, until its time is over.
        let until = if asked == 0 || now >= self.until {
            now + shared.spec.round.grace()
        } else {
            self.until
        };
        self.raise_most(shared, update, until);
        match self.offer(update, &shared.view) {
            Some(blob) => fetch(shared, node, blob, until),
            // Where slices of it are fetched by others, nothing else would wake this one.
            None if shared.spec.round.slices > 1 => self.close_if_ready(shared),
            None => {}
        }
    }

    /// Raises the most bytes that a part can have once enough others announced as much, and fetches what is small enough then.
    fn raise_most(&mut self, shared: &mut Shared, update: Update<'_>, until: Timestamp) {
        let size = update.local.shared.map_or(0, |part| part.size);
        // The bound is four times another part. So smaller ones leave it as it is, and not all are looked at each time.
        if size.saturating_mul(4) <= self.most {
            return;
        }
        let most = most_bytes(shared, self.round);
        if most > self.most {
            self.most = most;
            self.fetch_counted(shared, until);
        }
    }

    /// Takes note of an update and returns the blob to fetch, if it counts and is not known yet.
    fn offer(&mut self, update: Update<'_>, view: &View) -> Option<BlobRef> {
        let shared = update.local.shared;
        let is_too_large = shared.is_some_and(|shared| shared.size > self.most);
        let is_too_new = self.newest.is_some_and(|newest| update.round > newest);
        let is_too_old = self.head.is_some_and(|head| update.round <= head);
        if is_too_large || is_too_new || is_too_old {
            return None;
        }
        let node = update.node;
        let Offered::Part(part) = self.closer.offer(update, view) else {
            return None;
        };
        self.asked.entry(node).or_default().push(part);
        Some(part)
    }

    /// Doubts whoever announced a part that cannot be had, unless another of its parts is here.
    pub(in crate::node) fn doubt(&self, view: &mut View, arrival: Arrival) {
        let ends = |part: &BlobRef| arrival.ends_wait_for(part, FetchKind::Shared);
        if arrival.is_held() {
            return;
        }
        for (node, parts) in &self.asked {
            if parts.iter().any(ends) && !self.closer.holds(*node) {
                view.doubt(*node);
            }
        }
    }

    /// Takes the spec of the node back, which no image holds.
    pub(in crate::node) fn adopt_spec(&mut self, shared: &Shared) {
        self.closer.adopt_spec(&shared.spec, &shared.schedule);
    }

    pub(super) fn resolve(&mut self, arrival: Arrival) {
        self.closer.resolve(arrival);
    }

    pub(super) fn remove(&mut self, node: NodeId) {
        self.closer.remove(node);
    }

    /// Tells whether the mean is being computed. Whoever began anew now would not know it when it comes.
    pub(in crate::node) fn is_computing(&self) -> bool {
        self.closer.is_averaging() && !self.has_closed
    }

    /// Returns what the closing of the round waits for.
    pub(super) fn waiting(&self, me: NodeId, round: Round, since: Duration) -> Waiting {
        let mut wanted = self.closer.wanted();
        let is_own = |node: &NodeId| *node == me;
        if !wanted.iter().all(is_own) {
            wanted.retain(|node| !is_own(node));
            let what = format!("shared parts, to close round {round}");
            return Waiting::new(Cause::Parts, what, since).from_peers(wanted);
        }
        if self.closer.has_proposed() && !self.closer.is_averaging() {
            let what = match self.closer.slices_until() {
                Some(_) => format!("slices of the mean, to close round {round}"),
                None => format!("words that take masks off, to close round {round}"),
            };
            return Waiting::new(Cause::Evidence, what, since);
        }
        let (cause, what) = if self.closer.is_averaging() || !wanted.is_empty() {
            (Cause::OwnWork, "the mean, to close")
        } else {
            (Cause::Quorum, "enough shared parts to close")
        };
        Waiting::new(cause, format!("{what} round {round}"), since)
    }

    /// Visits the parts on offer.
    pub(super) fn blobs(&self) -> impl Iterator<Item = BlobId> + '_ {
        self.closer.blobs()
    }

    /// Orders the mean once every part is held or known to be out of reach.
    pub(in crate::node) fn close_if_ready(&mut self, shared: &mut Shared) {
        // Nobody is expected by name: the parts on offer are those of all who had spoken by the time this node began.
        if !self.closer.all_in(std::iter::empty()) {
            return;
        }
        let base = shared.base();
        let step = self.closer.next(base, shared.draws, shared.surroundings());
        match step {
            Some(Step::Average(order)) => shared.outbox.push(Output::Average(order)),
            Some(Step::Propose(round, proposal)) => {
                let words = shared.now + shared.surroundings().patience;
                let until = self.closer.slices_until().unwrap_or(words);
                shared.outbox.set_timer(Timer::Unmask(round), until);
                shared.outbox.publish(round, Body::Propose(proposal));
            }
            Some(Step::Join(order)) => shared.outbox.push(Output::Join(Box::new(order))),
            Some(Step::Fetch(parts)) => self.fetch_all(shared, parts),
            None => {}
        }
    }

    /// Slices did not come: fetches all parts.
    fn fetch_all(&mut self, shared: &mut Shared, parts: Vec<(NodeId, BlobRef)>) {
        let largest = parts.iter().map(|(_, part)| part.size).max();
        let patience = slices::patience(largest.unwrap_or_default(), &shared.spec.round);
        self.until = shared.now + patience;
        for (node, blob) in parts {
            self.asked.entry(node).or_default().push(blob);
            fetch(shared, node, blob, self.until);
        }
    }

    /// Slices were put together: publishes the closed round.
    pub(super) fn on_joined(&mut self, shared: &mut Shared, report: &JoinReport) {
        match self.closer.on_joined(report) {
            Ok(mean) if !mean.is_of(shared.base()) => self.closer.reopen(),
            Ok(mean) => self.announce(shared, mean),
            Err(Some(Step::Fetch(parts))) => self.fetch_all(shared, parts),
            Err(_) => {}
        }
    }

    /// The mean is computed: publishes the closed round. If some members' parts are of no use, it is computed anew.
    pub(super) fn on_averaged(&mut self, shared: &mut Shared, report: AverageReport) {
        shared.view.doubt_refused(&report);
        let Some(mean) = self.closer.on_averaged(report, &mut shared.outbox) else {
            return self.close_if_ready(shared);
        };
        self.announce(shared, mean);
    }

    fn announce(&mut self, shared: &mut Shared, mean: Mean) {
        let (parent, round) = (shared.parent(), mean.round);
        let global = shared.chain.close(parent, mean);
        shared.outbox.publish(round, Body::from(global));
        self.has_closed = true;
    }
}

/// Fetches a member's part. The others wait for this, so it has a short time; a part that cannot be had is not counted.
fn fetch(shared: &mut Shared, node: NodeId, blob: BlobRef, until: Timestamp) {
    let fetch = Fetch {
        blob,
        kind: FetchKind::Shared,
        from: vec![node],
        base: shared.chain.head().mean.map(|mean| mean.id),
        until,
    };
    shared.outbox.push(Output::Fetch(fetch));
}

/// Tells whether this node may close a round: its own update is among those that all hear.
pub(in crate::node) fn can_act(shared: &Shared, round: Round) -> bool {
    shared.broadcast_set.contains(shared.me, round)
        && shared.view.nodes().local(shared.me, round).is_some()
}

/// Returns how many nodes act before this one.
pub(in crate::node) fn place_in_line(shared: &Shared, round: Round) -> u32 {
    // Every node computes the same line, so at most the first in it act, and nobody need agree on a
    // leader.
    let own = rank(shared, round, shared.me);
    candidates(shared, round)
        .filter(|node| rank(shared, round, *node) < own)
        .count() as u32
}

/// Tells whether there is nothing to wait for: the updates of all that all hear are here, and this node is the first.
pub(in crate::node) fn is_first_of_all(shared: &Shared, round: Round) -> bool {
    let counts = |node| shared.broadcast_set.contains(node, round) && shared.cohort.contains(node);
    // A neighbour whose update nobody hears cannot hold up the round.
    let waits = |node| counts(node) && shared.is_waited_for(node);
    let is_in = |node| !waits(node) || shared.view.nodes().local(node, round).is_some();
    can_act(shared, round)
        && shared.view.company().neighbours().all(is_in)
        && candidates(shared, round).count() >= shared.spec.fewest_members() as usize
        && is_quorum_heard(shared, round)
        && place_in_line(shared, round) == 0
}

/// Tells whether all have spoken whom the last closing counts, in the first round that was added after an end. There members come back
/// one after the other, so whoever is not here yet is not gone.
pub(in crate::node) fn are_back(shared: &Shared, round: Round) -> bool {
    let end = shared.schedule.since();
    if end == Round::ZERO || round != end.next() {
        return true;
    }
    let gone = shared.gone();
    let mut unheard = unheard(shared, round).into_iter();
    unheard.all(|node| gone.contains(&node))
}

/// Tells whether as many updates of a round were heard as a closing of it must count.
pub(in crate::node) fn is_quorum_heard(shared: &Shared, round: Round) -> bool {
    let heard: Vec<NodeId> = candidates(shared, round).collect();
    shared
        // Seen as after the grace time: whoever is not there by then is not expected.
        .judge(shared.spec.round.grace())
        .is_quorum_of(heard, round)
}

/// Returns the others who are expected to take part in a round and of whom no update was heard that could be counted.
pub(in crate::node) fn unheard(shared: &Shared, round: Round) -> Vec<NodeId> {
    let (view, base) = (&shared.view, shared.base());
    let counted = shared.chain.head().counted.iter().copied();
    let expected: BTreeSet<NodeId> = counted.chain(view.company().neighbours()).collect();
    let speaks = |node| shared.broadcast_set.contains(node, round) && shared.cohort.contains(node);
    let is_unheard = |node: &NodeId| {
        let local = view.nodes().local(*node, round);
        let counts = |local: &Local| local.shared.is_some() && base.is_of(local);
        *node != shared.me && !view.has_left(*node) && !local.is_some_and(counts)
    };
    let expected = expected.into_iter().filter(|node| speaks(*node));
    expected.filter(is_unheard).collect()
}

/// Returns until when those are waited for who are here and have said nothing, if anybody is. The quorum was there at `quorum`.
/// Who is doubted is not expected, so it is not waited for either.
pub(in crate::node) fn stragglers_until(
    shared: &Shared,
    round: Round,
    quorum: Timestamp,
) -> Option<Timestamp> {
    let (closing, company) = (shared.chain.head().closing, shared.view.company());
    let unheard = unheard(shared, round).into_iter();
    let is_good = |node| !shared.view.is_doubtful(node) && shared.is_waited_for(node);
    let counts = |node: &NodeId| company.has_neighbour(*node) && is_good(*node);
    let until = shared
        .stragglers
        .until(closing, quorum, unheard.filter(counts));
    until.filter(|until| shared.now < *until)
}

/// Returns the other node that acts first for a round, if there is one.
pub(super) fn next_in_line(shared: &Shared, round: Round) -> Vec<NodeId> {
    let others = candidates(shared, round).filter(|node| *node != shared.me);
    let first = others.min_by_key(|node| rank(shared, round, *node));
    first.into_iter().collect()
}

/// Visits the nodes that can act for the round: those that all hear, with an update that follows the same closed round.
fn candidates(shared: &Shared, round: Round) -> impl Iterator<Item = NodeId> + '_ {
    let base = shared.base();
    let locals = shared.view.nodes().locals(round);
    let fitting = locals.filter(move |(_, local)| base.is_of(local));
    fitting
        .map(|(node, _)| node)
        .filter(move |node| shared.broadcast_set.contains(*node, round))
}

fn rank(shared: &Shared, round: Round, node: NodeId) -> Rank {
    Rank::acting(shared.draws, round, node)
}
