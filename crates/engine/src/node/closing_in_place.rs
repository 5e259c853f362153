//! Closing a round in the aggregator's place.
//!
//! The nodes whose updates are known are ordered by a hash of federation, round and node id; each acts after the one
//! before it has had its grace time. The announcement names every member, so anybody can recompute the mean.

use std::sync::Arc;

use fednode_core::{BlobId, BlobRef, Body, Global, Local, NodeId, Round};

use super::Node;
use crate::chain::{self, Rank};
use crate::closing::Closing;
use crate::event::{AverageOrder, AverageReport, Fetch, FetchKind, Note, Output, Purpose, Timer};
use crate::state::Phase;

/// How many acting aggregators are tried before a node goes on alone.
const ATTEMPTS: u32 = 4;

/// A round being closed by this node.
#[derive(Debug)]
pub(super) struct Acting {
    closing: Closing,
    /// The most bytes that a part can have.
    most: u64,
    /// The newest round of which updates are counted, where others train in later ones.
    newest: Option<Round>,
    /// The mean is being computed, or is already announced.
    busy: bool,
}

impl Acting {
    pub(super) fn offer(&mut self, node: NodeId, round: Round, local: &Local) -> Option<BlobRef> {
        let is_too_large = local.shared.is_some_and(|shared| shared.size > self.most);
        let is_too_new = self.newest.is_some_and(|newest| round > newest);
        if is_too_large || is_too_new {
            None
        } else {
            self.closing.offer(node, round, local)
        }
    }

    pub(super) fn resolve(&mut self, blob: BlobId, held: bool) {
        self.closing.resolve(blob, held);
    }

    pub(super) fn remove(&mut self, node: NodeId) {
        self.closing.remove(node);
    }

    /// Visits the parts on offer.
    pub(super) fn blobs(&self) -> impl Iterator<Item = BlobId> + '_ {
        self.closing.blobs()
    }
}

impl Node {
    /// The aggregator had its time: the first in order acts now, the others after it.
    pub(super) fn on_takeover(&mut self, round: Round) {
        if !self.lacks_mean_of(round) {
            return;
        }
        let grace = self.spec.round.grace();
        self.set_timer(Timer::GiveUp(round), self.now + grace * (ATTEMPTS + 1));
        if !self.can_act(round) {
            return;
        }
        let own = self.acting_rank(round, self.me);
        let before = self
            .acting_candidates(round)
            .filter(|node| self.acting_rank(round, *node) < own)
            .count() as u32;
        self.set_timer(Timer::Act(round), self.now + grace * before.min(ATTEMPTS));
    }

    /// Without an aggregator, and with everybody's update here, there is nothing to wait for.
    pub(super) fn act_if_alone_first(&mut self) {
        if self.view.has_aggregator()
            || self.acting.is_some()
            || !self.lacks_mean_of(self.state.round)
        {
            return;
        }
        let round = self.state.round;
        let counts = |node| self.audience.hears(node, round) && self.cohort.contains(node);
        let is_in = |node| !counts(node) || self.view.local(node, round).is_some();
        let everybody = self.view.neighbours().all(is_in);
        let enough = self.acting_candidates(round).count() >= self.spec.fewest_members() as usize;
        let own = self.acting_rank(round, self.me);
        if self.can_act(round)
            && everybody
            && enough
            && self
                .acting_candidates(round)
                .all(|node| self.acting_rank(round, node) >= own)
        {
            self.on_turn_to_act(round);
        }
    }

    /// Tells whether this node may close the round: its own update is among those that all hear.
    fn can_act(&self, round: Round) -> bool {
        self.audience.hears(self.me, round) && self.view.local(self.me, round).is_some()
    }

    fn lacks_mean_of(&self, round: Round) -> bool {
        let exchange = self
            .exchange
            .as_ref()
            .filter(|exchange| exchange.round == round);
        self.state.phase == Phase::Exchanging
            && exchange.is_some_and(super::Exchange::lacks_candidate)
    }

    /// Visits the nodes that can act for the round: those that all hear, with an update that follows the same closed round.
    fn acting_candidates(&self, round: Round) -> impl Iterator<Item = NodeId> + '_ {
        let parent = chain::lineage_of(&self.state.head, self.initial);
        let fitting = self
            .view
            .locals(round)
            .filter(move |(_, local)| local.parent == parent);
        fitting
            .map(|(node, _)| node)
            .filter(move |node| self.audience.hears(*node, round))
    }

    fn acting_rank(&self, round: Round, node: NodeId) -> Rank {
        Rank::acting(self.draws, round, node)
    }

    pub(super) fn on_turn_to_act(&mut self, round: Round) {
        if self.spec.exchange.averaging.is_none() || !self.lacks_mean_of(round) {
            return;
        }
        let parent = chain::lineage_of(&self.state.head, self.initial);
        // Where only some train in a round, those of a later one have given this one up.
        let newest = (self.spec.round.participation < 1.0).then_some(round);
        let most = chain::most_bytes(&self.state.head, round, &self.spec);
        let mut acting = Acting {
            closing: Closing::new(Arc::clone(&self.spec)),
            most,
            newest,
            busy: false,
        };
        let is_counted = |node, newest, local: &Local| {
            local.parent == parent && self.audience.hears(node, newest)
        };
        let fresh = self
            .view
            .newest_locals()
            .filter(|(node, newest, local)| is_counted(*node, *newest, local));
        let wanted: Vec<(NodeId, BlobRef)> = fresh
            .filter_map(|(node, newest, local)| Some((node, acting.offer(node, newest, local)?)))
            .collect();
        self.acting = Some(acting);
        self.note(Note::Acting(round));
        for (node, blob) in wanted {
            // A short deadline: the others wait for this, and a part that cannot be had is simply not counted.
            let until = self.now + self.spec.round.grace();
            let base = self.state.head.mean.map(|mean| mean.id);
            let fetch = Fetch {
                blob,
                kind: FetchKind::Shared,
                from: vec![node],
                base,
                until,
            };
            self.outputs.push(Output::Fetch(fetch));
        }
    }

    pub(super) fn close_in_place_if_ready(&mut self) {
        let parent = chain::lineage_of(&self.state.head, self.initial);
        let Some(acting) = self.acting.as_mut().filter(|acting| !acting.busy) else {
            return;
        };
        if !acting.closing.all_in(std::iter::empty()) {
            return;
        }
        let (round, members) = acting.closing.members(parent, self.draws);
        if members.len() < self.spec.fewest_members() as usize {
            return;
        }
        acting.busy = true;
        self.outputs.push(Output::Average(AverageOrder {
            round,
            purpose: Purpose::Close,
            members,
        }));
    }

    pub(super) fn handle_averaged(&mut self, report: AverageReport) {
        match report.purpose {
            Purpose::Close => self.on_average_to_close(report),
            Purpose::Verify(trial) => self.on_recomputed(trial, report.mean),
        }
    }

    fn on_average_to_close(&mut self, report: AverageReport) {
        let Some(acting) = &mut self.acting else {
            return;
        };
        let enough = report.members.len() >= self.spec.fewest_members() as usize;
        for node in report.lost {
            acting.closing.remove(node);
        }
        for (node, reason) in report.rejected {
            acting.closing.remove(node);
            let reason = format!("shared part refused: {reason}");
            self.outputs.push(Output::Strike { node, reason });
        }
        let (Some(mean), true) = (report.mean, enough) else {
            acting.busy = false;
            return;
        };
        let parent = chain::lineage_of(&self.state.head, self.initial);
        let history = self.state.head.history + report.members.len() as u64;
        let global = Global {
            members: report.members,
            mean,
            parent,
            history,
        };
        self.publish(report.round, Body::Global(global));
    }

    /// Nobody closed the round in time: what has arrived is merged, the own shared part stays.
    pub(super) fn on_nobody_closed(&mut self, round: Round) {
        let stuck = self
            .exchange
            .as_ref()
            .is_some_and(|exchange| exchange.round == round && exchange.lacks_mean());
        if self.state.phase != Phase::Exchanging || !stuck {
            return;
        }
        self.note(Note::Isolated(round));
        self.on_deadline(round);
        if let Some(exchange) = &mut self.exchange {
            exchange.candidate = None;
        }
        self.merge();
    }
}
