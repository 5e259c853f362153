//! Exchanging: the experts of the plan, the round's mean and, in refresh rounds, everybody's proxies.
//!
//! The plan was computed from the proxies of an earlier round (FedMoE-DA's stale A, `moe-systems` §1.3), so fetching
//! starts while this node still trains, from whoever is done; the experts themselves are this round's. What does not arrive in time is dropped and the row is
//! renormalised, or an older version of at most I rounds stands in (U14). Nobody waits longer than the deadline.

use std::collections::{BTreeMap, BTreeSet};

use fednode_core::{
    BlobId, BlobRef, ExpertId, Global, Local, LocalReport, MAX_EXPERTS, NodeId, PlanRow, Round,
    Timestamp,
};

use super::Node;
use super::planning::{use_of, weigh_by_use, weighs_by_use};
use crate::event::{FetchKind, MergeOrder, Note, Output, Timer};
use crate::state::Phase;
use crate::status::Waiting;

/// Where a closed round's mean is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mean {
    Wanted,
    Held,
    Failed,
}

/// A closed round that the node is about to follow.
#[derive(Debug)]
pub(super) struct Candidate {
    pub(super) author: NodeId,
    pub(super) round: Round,
    pub(super) global: Global,
    pub(super) mean: Mean,
    /// Whether a recomputation of the mean is still being waited for.
    pub(super) on_trial: bool,
}

/// What is being waited for, and what has arrived.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) round: Round,
    started: Timestamp,
    rows: Vec<PlanRow>,
    /// Whose experts the rows name.
    owners: BTreeSet<NodeId>,
    /// Whether the proxies of those who are alike were asked for, where not everybody's are.
    shortlisted: bool,
    /// Owners of planned experts whose update of this round is not known yet.
    owners_awaited: BTreeSet<NodeId>,
    /// Members of the closed round, or where none is closed all who are there, whose update, and with it their proxies, is
    /// not known yet.
    pub(super) updates_awaited: BTreeSet<NodeId>,
    experts_awaited: BTreeMap<BlobId, (BlobRef, Vec<ExpertId>)>,
    sources: BTreeMap<ExpertId, BlobRef>,
    pub(super) candidate: Option<Candidate>,
    /// Whether the round needs a mean that nobody has provided.
    pub(super) needs_mean: bool,
    /// Whether this node only follows the chain in this round: it neither trained nor needs the mean.
    pub(super) only_follows: bool,
    /// Means that could neither be fetched nor recomputed.
    pub(super) unreachable: BTreeSet<BlobId>,
    /// Where nothing is averaged: a quorum is done, and the others have the grace time.
    pub(super) in_grace: bool,
    /// The round is closed and its stragglers have had their time.
    grace_over: bool,
}

impl Exchange {
    /// An exchange that waits for nothing but the mean that a joining node adopts.
    pub(super) fn to_adopt(round: Round, now: Timestamp) -> Self {
        Self {
            round,
            started: now,
            rows: Vec::new(),
            owners: BTreeSet::new(),
            shortlisted: false,
            owners_awaited: BTreeSet::new(),
            updates_awaited: BTreeSet::new(),
            experts_awaited: BTreeMap::new(),
            sources: BTreeMap::new(),
            candidate: None,
            needs_mean: true,
            only_follows: false,
            unreachable: BTreeSet::new(),
            in_grace: false,
            grace_over: false,
        }
    }

    /// Visits the foreign blobs that are here or on their way.
    pub(super) fn blobs(&self) -> impl Iterator<Item = BlobId> + '_ {
        let mean = self
            .candidate
            .iter()
            .map(|candidate| candidate.global.mean.id);
        self.sources
            .values()
            .map(|blob| blob.id)
            .chain(self.experts_awaited.keys().copied())
            .chain(mean)
    }

    /// Records that a blob is held, or cannot be had.
    pub(super) fn resolve(&mut self, blob: BlobId, held: bool) {
        if let Some((blob, experts)) = self.experts_awaited.remove(&blob)
            && held
        {
            self.sources
                .extend(experts.into_iter().map(|expert| (expert, blob)));
        }
        if let Some(candidate) = self
            .candidate
            .as_mut()
            .filter(|candidate| candidate.global.mean.id == blob)
            && candidate.mean != Mean::Held
        {
            candidate.mean = if held { Mean::Held } else { Mean::Failed };
        }
    }

    /// Stops waiting for experts of which every owner is lost: another holder would have delivered them by now.
    fn drop_experts_of_lost(&mut self, is_lost: impl Fn(NodeId) -> bool) {
        self.experts_awaited
            .retain(|_, (_, experts)| !experts.iter().all(|expert| is_lost(expert.owner)));
    }

    pub(super) fn withdraw(&mut self, owner: NodeId, blobs: &[BlobId]) {
        self.sources
            .retain(|expert, blob| expert.owner != owner || !blobs.contains(&blob.id));
    }

    /// Visits the nodes whose updates are waited for.
    pub(super) fn awaited(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.owners.iter().chain(&self.updates_awaited).copied()
    }

    /// Tells whether this is the time for the shortlist: nothing else is waited for, and there was none yet.
    pub(super) fn is_first_shortlist(&mut self) -> bool {
        self.is_complete() && !std::mem::replace(&mut self.shortlisted, true)
    }

    /// Drops the candidate if this node closed it; returns whether it did.
    pub(super) fn drop_candidate_of(&mut self, author: NodeId) -> bool {
        let is_its = self
            .candidate
            .as_ref()
            .is_some_and(|candidate| candidate.author == author);
        if is_its {
            self.candidate = None;
        }
        is_its
    }

    /// Returns the mean to adopt once it is held and, where that was asked for, recomputed.
    pub(super) fn ready_mean(&self) -> Option<BlobRef> {
        let ready = |candidate: &&Candidate| candidate.mean == Mean::Held && !candidate.on_trial;
        self.candidate
            .as_ref()
            .filter(ready)
            .map(|candidate| candidate.global.mean)
    }

    /// Tells whether the mean cannot be had, neither fetched nor recomputed.
    pub(super) fn is_stuck(&self) -> bool {
        self.candidate
            .as_ref()
            .is_some_and(|candidate| candidate.mean == Mean::Failed && !candidate.on_trial)
    }

    /// Tells whether a mean was given up because nobody can deliver it.
    pub(super) fn is_unreachable(&self, mean: BlobId) -> bool {
        self.unreachable.contains(&mean)
    }

    /// Tells whether the round still lacks a mean to adopt.
    pub(super) fn lacks_candidate(&self) -> bool {
        self.needs_mean && self.candidate.is_none()
    }

    /// Tells whether there is still no mean that could be adopted.
    pub(super) fn lacks_mean(&self) -> bool {
        self.needs_mean && self.ready_mean().is_none()
    }

    /// Returns the foreign experts that are held.
    pub(super) fn fetched(&self) -> Vec<(ExpertId, BlobRef)> {
        self.sources
            .iter()
            .map(|(expert, blob)| (*expert, *blob))
            .collect()
    }

    fn experts_of(&self, owner: NodeId) -> BTreeSet<ExpertId> {
        let sources = self
            .rows
            .iter()
            .flat_map(|row| &row.sources)
            .map(|source| source.expert);
        sources.filter(|expert| expert.owner == owner).collect()
    }

    fn missing_experts(&self, me: NodeId) -> Vec<ExpertId> {
        let sources = self
            .rows
            .iter()
            .flat_map(|row| &row.sources)
            .map(|source| source.expert);
        let missing =
            sources.filter(|expert| expert.owner != me && !self.sources.contains_key(expert));
        missing.collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn is_complete(&self) -> bool {
        self.owners_awaited.is_empty()
            && self.updates_awaited.is_empty()
            && self.experts_awaited.is_empty()
            && (!self.needs_mean || self.ready_mean().is_some())
    }
}

impl Node {
    /// Starts fetching the planned experts of this round from those who are already done with it, while this node still
    /// trains (`moe-systems` §1.3: the plan of a round is known before it begins).
    pub(super) fn open_exchange(&mut self) {
        let round = self.state.round;
        self.update_plan();
        self.follow_the_planned();
        self.forget_strangers();
        let mut exchange = Exchange::to_adopt(round, self.now);
        exchange.needs_mean = false;
        exchange.rows = self
            .state
            .plan
            .as_ref()
            .map(|plan| plan.rows.clone())
            .unwrap_or_default();
        let owners: BTreeSet<NodeId> = self
            .state
            .plan
            .iter()
            .flat_map(|plan| plan.foreign_experts(self.me))
            .map(|expert| expert.owner)
            .collect();
        let speaks = |owner: &NodeId| !self.view.has_left(*owner) && self.cohort.contains(*owner);
        exchange.owners_awaited = owners.iter().copied().filter(speaks).collect();
        exchange.owners.clone_from(&owners);
        self.exchange = Some(exchange);
        for owner in owners {
            self.resolve_owner(owner, round);
        }
    }

    /// Returns what an owner of planned experts offers: its update of this round, or, of one that rests in it, the newest
    /// that is not too old to stand in.
    fn offer_of(&self, owner: NodeId, round: Round) -> Option<&Local> {
        if self.cohort.contains(owner) {
            return self.view.local(owner, round);
        }
        let (newest, local) = self.view.newest_local(owner)?;
        (newest >= self.oldest_to_mix(round)).then_some(local)
    }

    /// Returns the round of the oldest expert that may stand in for its owner's one of this round.
    fn oldest_to_mix(&self, round: Round) -> Round {
        let every = self
            .spec
            .exchange
            .experts
            .as_ref()
            .map_or(1, |experts| experts.refresh_every);
        Round(round.0.saturating_sub(every))
    }

    pub(super) fn enter_exchange(&mut self) {
        let round = self.state.round;
        self.state.phase = Phase::Exchanging;
        self.outputs.push(Output::Save);
        if self
            .exchange
            .as_ref()
            .is_none_or(|exchange| exchange.round != round)
        {
            self.cohort = self.cohort_of(round);
            self.open_exchange();
        }
        let needs_mean = self.spec.exchange.averaging.is_some();
        if let Some(exchange) = &mut self.exchange {
            (exchange.started, exchange.needs_mean) = (self.now, needs_mean);
        }
        self.want_everybodys_proxies();
        self.wait_for_the_mean(round);
        self.wait_for_others(round);
    }

    /// Sets the times after which the round goes on without whatever is late, and looks whether it is closed already.
    pub(super) fn wait_for_the_mean(&mut self, round: Round) {
        self.set_timer(
            Timer::Deadline(round),
            self.now + self.spec.round.deadline(),
        );
        if self.spec.exchange.averaging.is_some() {
            let patience = match self.view.has_aggregator() {
                true => self.spec.round.deadline(),
                false => self.spec.round.grace(),
            };
            self.set_timer(Timer::Takeover(round), self.now + patience);
        }
        self.consider_globals();
    }

    /// Proxies that came before this node's own update was ready are fetched now.
    fn want_everybodys_proxies(&mut self) {
        let round = self.state.round;
        if !self.spec.refreshes_in(round) || self.spec.uses_sketches() {
            return;
        }
        let lineage = self.state.lineage;
        let comparable: Vec<(NodeId, Local)> = self
            .view
            .locals(round)
            .filter(|(node, local)| {
                local.lineage == lineage && !self.view.has_proxies(*node, round)
            })
            .map(|(node, local)| (node, local.clone()))
            .collect();
        for (node, local) in comparable {
            self.want_proxies(node, round, &local);
        }
    }

    /// Starts fetching the planned experts of a node whose update of this round has arrived.
    pub(super) fn resolve_owner(&mut self, owner: NodeId, round: Round) {
        let Some(exchange) = self
            .exchange
            .as_mut()
            .filter(|exchange| exchange.round == round)
        else {
            return;
        };
        exchange.updates_awaited.remove(&owner);
        if !exchange.owners.contains(&owner) {
            return; // Nearly everybody, in a large federation.
        }
        let offers = self
            .offer_of(owner, round)
            .map(|local| local.experts.clone());
        let (Some(offers), Some(exchange)) = (offers, &mut self.exchange) else {
            return;
        };
        exchange.owners_awaited.remove(&owner);
        let mut wanted = Vec::new();
        let by_use = weighs_by_use(&self.spec);
        // All experts are alike in size: another one is none, or a name that somebody else's blob has.
        let own = self
            .state
            .report
            .as_ref()
            .and_then(|report| report.experts.first());
        let size = own.map(|own| own.blob.size);
        for expert in exchange.experts_of(owner) {
            let Some(offer) = offers.get(usize::from(expert.slot.0)) else {
                continue;
            };
            if by_use && offer.samples_routed == 0
                || size.is_some_and(|size| offer.blob.size != size)
            {
                continue;
            }
            let (_, experts) = exchange
                .experts_awaited
                .entry(offer.blob.id)
                .or_insert_with(|| {
                    wanted.push((
                        offer.blob,
                        self.state.held.get(&expert).map(|held| held.blob.id),
                    ));
                    (offer.blob, Vec::with_capacity(MAX_EXPERTS.min(4)))
                });
            if !experts.contains(&expert) {
                experts.push(expert);
            }
        }
        for (blob, before) in wanted {
            self.fetch_after(before, blob, FetchKind::Expert, vec![owner]);
        }
    }

    /// Stops waiting for the update of a node that left or was banned.
    pub(super) fn give_up_on(&mut self, node: NodeId) {
        if let Some(exchange) = &mut self.exchange {
            exchange.owners_awaited.remove(&node);
            exchange.updates_awaited.remove(&node);
        }
        for waiting in self.proxies_wanted.values_mut() {
            waiting.retain(|(wanted, _)| *wanted != node);
        }
        self.proxies_wanted.retain(|_, waiting| !waiting.is_empty());
    }

    /// Looks for a closed round to follow, a better one than the candidate if there is one.
    pub(super) fn consider_globals(&mut self) {
        if self.exchange.is_none()
            || !matches!(self.state.phase, Phase::Exchanging | Phase::Joining)
        {
            return;
        }
        let Some((author, round, global)) = self.best_global() else {
            return;
        };
        let known = self
            .exchange
            .as_ref()
            .and_then(|exchange| exchange.candidate.as_ref());
        if known.is_none_or(|known| known.author != author || known.global != global) {
            self.follow(author, round, global);
        }
    }

    /// Makes a closed round the candidate: fetches its mean, recomputes it where that is due.
    pub(super) fn follow(&mut self, author: NodeId, round: Round, global: Global) {
        if self.rests_without_the_mean_of(round) {
            return self.follow_resting(author, round, global);
        }
        let on_trial = self.must_verify(author, round, &global);
        let Some(exchange) = &mut self.exchange else {
            return;
        };
        if self.state.phase == Phase::Exchanging && self.spec.refreshes_in(exchange.round) {
            let members = global.members.iter().map(|member| member.node);
            let unknown = members.filter(|node| self.view.local(*node, exchange.round).is_none());
            let me = self.me;
            exchange.updates_awaited = unknown
                .filter(|node| *node != me && !self.view.has_left(*node))
                .collect();
        }
        let mean = global.mean;
        // Whoever was counted is likely to hold the mean by now; a few of them back the author up.
        let backups = global
            .members
            .iter()
            .map(|member| member.node)
            .filter(|node| *node != author)
            .take(4);
        let from = [author].into_iter().chain(backups).collect();
        let candidate = Candidate {
            author,
            round,
            global: global.clone(),
            mean: Mean::Wanted,
            on_trial,
        };
        exchange.candidate = Some(candidate);
        self.set_timer(
            Timer::Grace(self.state.round),
            self.now + self.spec.round.grace(),
        );
        self.fetch(mean, FetchKind::Shared, from);
        if on_trial {
            self.start_trial(author, round, global, None);
        }
    }

    /// Merges when everything is here.
    pub(super) fn try_to_merge(&mut self) {
        self.fetch_shortlist();
        let proxies_awaited = !self.proxies_wanted.is_empty();
        let Some(exchange) = self
            .exchange
            .as_ref()
            .filter(|exchange| !exchange.only_follows)
        else {
            return;
        };
        if exchange.is_stuck() {
            return self.recompute_lost_mean();
        }
        if exchange.is_complete() && !proxies_awaited {
            self.merge();
        }
    }

    pub(super) fn merge(&mut self) {
        let oldest = self.oldest_to_mix(self.state.round);
        let Some(mut exchange) = self.exchange.take() else {
            return;
        };
        let mut missing = exchange.missing_experts(self.me);
        if weighs_by_use(&self.spec) {
            let report = self.state.report.as_ref();
            let own = report
                .filter(|report| report.round == exchange.round)
                .map(|report| report.experts.as_slice());
            let offers = |owner| match owner == self.me {
                true => own,
                false => self
                    .offer_of(owner, exchange.round)
                    .map(|local| local.experts.as_slice()),
            };
            let mut rows = std::mem::take(&mut exchange.rows);
            weigh_by_use(&mut rows, offers);
            missing.retain(|expert| {
                offers(expert.owner).is_none_or(|offers| use_of(offers, expert.slot) > 0.0)
            });
            exchange.rows = rows;
        }
        let mut unavailable = Vec::new();
        for expert in missing {
            match self
                .state
                .held
                .get(&expert)
                .filter(|held| held.round >= oldest)
            {
                Some(held) => {
                    exchange.sources.insert(expert, held.blob);
                }
                None => unavailable.push(expert),
            }
        }
        let order = MergeOrder {
            round: exchange.round,
            adopt: exchange.ready_mean(),
            rows: exchange.rows.clone(),
            own: self
                .state
                .report
                .as_ref()
                .map(LocalReport::experts_to_mix)
                .unwrap_or_default(),
            sources: exchange.sources.clone(),
        };
        let round = exchange.round;
        self.exchange = Some(exchange);
        if !unavailable.is_empty() {
            self.note(Note::MissingExperts {
                round,
                experts: unavailable,
            });
        }
        self.state.phase = Phase::Merging;
        self.merging_since = self.now;
        self.acting = None;
        self.outputs.push(Output::Merge(order));
    }

    /// The round is closed and its stragglers have had their time: their experts are not waited for any longer.
    pub(super) fn on_grace_over(&mut self, round: Round) {
        if let Some(exchange) = self
            .exchange
            .as_mut()
            .filter(|exchange| exchange.round == round)
        {
            exchange.owners_awaited.clear();
            exchange.updates_awaited.clear();
            exchange.grace_over = true;
            exchange.drop_experts_of_lost(|owner| self.view.is_lost(owner));
            self.drop_proxies_of_the_lost();
        }
        self.recompute_slow_mean();
    }

    /// Nobody waits longer than the grace time for the proxies of whoever is gone, or was not counted: what a member
    /// announced and nobody can deliver must not hold up a round.
    fn drop_proxies_of_the_lost(&mut self) {
        let candidate = self
            .exchange
            .as_ref()
            .and_then(|exchange| exchange.candidate.as_ref());
        let counted = candidate.map(|candidate| &candidate.global.members);
        let is_counted = |node: NodeId| {
            counted.is_none_or(|members| members.iter().any(|member| member.node == node))
        };
        let comes = |node: NodeId| {
            !self.view.is_lost(node) && !self.view.has_left(node) && is_counted(node)
        };
        self.proxies_wanted
            .retain(|_, waiting| waiting.iter().any(|(node, _)| comes(*node)));
    }

    /// A connection is lost: nobody waits for a dead node's experts longer than the grace time, and a dead aggregator
    /// is replaced without waiting for the deadline.
    pub(super) fn handle_peer_down(&mut self, node: NodeId) {
        let had_aggregator = self.view.has_aggregator();
        self.view.disconnect(node);
        let Some(exchange) = &mut self.exchange else {
            return;
        };
        if self.spec.exchange.averaging.is_none() {
            // Members of a closed round have said all; who is not one and has said nothing will not.
            exchange.updates_awaited.remove(&node);
        }
        let takeover =
            (had_aggregator && !self.view.has_aggregator() && exchange.lacks_candidate())
                .then_some(Timer::Takeover(exchange.round));
        if exchange.grace_over {
            exchange.drop_experts_of_lost(|owner| self.view.is_lost(owner));
            self.drop_proxies_of_the_lost();
        }
        if let Some(takeover) = takeover {
            self.set_timer(takeover, self.now + self.spec.round.grace());
        }
    }

    pub(super) fn on_deadline(&mut self, round: Round) {
        self.on_grace_over(round);
        if let Some(exchange) = self
            .exchange
            .as_mut()
            .filter(|exchange| exchange.round == round)
        {
            exchange.experts_awaited.clear();
            self.proxies_wanted.clear();
        }
    }

    pub(super) fn waiting_in_exchange(&self, now: Timestamp) -> Vec<Waiting> {
        let Some(exchange) = &self.exchange else {
            return Vec::new();
        };
        let since = now.since(exchange.started);
        let mut waiting = Vec::new();
        if exchange.lacks_candidate() {
            let who = if self.view.has_aggregator() {
                "the aggregator"
            } else {
                "an acting aggregator"
            };
            waiting.push(Waiting::new(
                format!("{who} to close round {}", exchange.round),
                since,
            ));
        } else if exchange.lacks_mean() {
            let author = exchange
                .candidate
                .iter()
                .map(|candidate| candidate.author)
                .collect();
            waiting.push(Waiting::from_peers("the round's mean", author, since));
        }
        let awaited: BTreeSet<NodeId> = exchange
            .owners_awaited
            .union(&exchange.updates_awaited)
            .copied()
            .collect();
        if !awaited.is_empty() {
            waiting.push(Waiting::from_peers(
                "local updates",
                awaited.into_iter().collect(),
                since,
            ));
        }
        let owners: BTreeSet<NodeId> = exchange
            .experts_awaited
            .values()
            .flat_map(|(_, experts)| experts)
            .map(|expert| expert.owner)
            .collect();
        if !owners.is_empty() {
            waiting.push(Waiting::from_peers(
                "experts",
                owners.into_iter().collect(),
                since,
            ));
        }
        if !self.proxies_wanted.is_empty() {
            let from: BTreeSet<NodeId> = self
                .proxies_wanted
                .values()
                .flatten()
                .map(|(node, _)| *node)
                .collect();
            waiting.push(Waiting::from_peers(
                "proxies",
                from.into_iter().collect(),
                since,
            ));
        }
        waiting
    }
}
