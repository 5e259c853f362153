//! Merging: the numbers are computed elsewhere; here the order is put together, and the result becomes the node's new
//! standing.

use fednode_core::{BlobId, ExpertId, LocalReport, Member, Round, Stage, Timestamp};
use serde::{Deserialize, Serialize};

use super::exchange::Exchange;
use super::phase::Phase;
use super::planning::{self, use_of, weigh_by_use, weighs_by_use};
use super::pooling::Pooling;
use super::shared::Shared;
use super::training::Training;
use crate::event::{MergeOrder, MergeReport, Note, Output};
use crate::state::Held;

/// A node whose trainer merges.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Merging {
    pub(super) since: Timestamp,
    pub(super) exchange: Box<Exchange>,
}

impl Merging {
    /// Adopts the mean of a closed round, and mixes nothing: for a node that joins.
    pub(super) fn adopt(shared: &mut Shared, mut exchange: Box<Exchange>) -> Phase {
        shared.outbox.push(Output::Merge(MergeOrder {
            round: shared.memory.round,
            adopt: exchange.mean.hand_over(),
            members: statistics_of(shared, &exchange),
            rows: vec![],
            own: vec![],
            sources: [].into(),
        }));
        let since = shared.now;
        Phase::Merging(Self { since, exchange })
    }

    /// Merges what is here. Older versions stand in for experts that did not come, unless they are too old.
    pub(super) fn begin(shared: &mut Shared, mut exchange: Box<Exchange>) -> Phase {
        let round = exchange.round();
        // What is missing now stays out of the mix: the trainer renormalises each row over what it is given.
        let mut missing = exchange.experts.missing(shared.me);
        if weighs_by_use(&shared.spec) {
            drop_unused(shared, &mut exchange, &mut missing);
        }
        let oldest = planning::oldest_to_mix(shared, round);
        missing.retain(|expert| {
            let held = shared.memory.held.get(expert);
            let stand_in = held.filter(|held| held.round >= oldest);
            if let Some(held) = stand_in {
                exchange.experts.stand_in(*expert, held.blob);
            }
            stand_in.is_none()
        });
        if !missing.is_empty() {
            let experts = missing;
            shared.outbox.note(Note::MissingExperts { round, experts });
        }
        // Whoever merges has given up closing the round itself.
        exchange.acting = None;
        let own = shared.memory.report.as_ref();
        shared.outbox.push(Output::Merge(MergeOrder {
            round,
            adopt: exchange.mean.hand_over(),
            members: statistics_of(shared, &exchange),
            rows: exchange.experts.rows().to_vec(),
            own: own.map(LocalReport::experts_to_mix).unwrap_or_default(),
            sources: exchange.experts.held().clone(),
        }));
        let since = shared.now;
        Phase::Merging(Self { since, exchange })
    }

    /// Takes over what was merged and goes on to the next round, or to what comes after the last one.
    pub(super) fn on_merged(mut self, shared: &mut Shared, report: &MergeReport) -> Phase {
        for (expert, reason) in &report.rejected {
            let reason = format!("expert {expert} refused: {reason}");
            if report.excused.contains(expert) {
                tracing::warn!(round = %report.round, "{reason}");
            } else {
                shared.outbox.strike(expert.owner, reason);
            }
        }
        let merged = shared.memory.round;
        self.remember_sources(shared, report);
        // The closed round may be ahead of this one: then the rounds between are skipped.
        let last = self.adopt_candidate(shared, report);
        // Whoever comes so late that nothing is left to train is where the others are.
        shared.memory.round = merged.max(last);
        match shared.schedule.after(last) {
            Some(Stage::Prepare | Stage::Train(_) | Stage::GatherStatistics) => {
                shared.note_rejoined(merged, last.next());
                Training::begin(shared, last.next())
            }
            Some(Stage::Pool) => Pooling::begin(shared),
            None => Phase::finish(shared),
        }
    }

    /// Keeps the foreign experts: an owner that is late next time may be stood in for by them.
    fn remember_sources(&self, shared: &mut Shared, report: &MergeReport) {
        let (round, every) = (shared.memory.round, shared.refresh_every());
        let held = &mut shared.memory.held;
        for (expert, blob) in self.exchange.experts.held() {
            let fresh = Held { round, blob: *blob };
            let known = held.entry(*expert).or_insert(fresh);
            // A version that stood in again is as old as it was.
            if known.blob != *blob {
                *known = fresh;
            }
        }
        let is_refused = |expert: &ExpertId| {
            report
                .rejected
                .iter()
                .any(|(rejected, _)| rejected == expert)
        };
        // What was refused would be refused again, so it stands in for nothing.
        held.retain(|expert, held| held.round.0 + every >= round.0 && !is_refused(expert));
    }

    /// Follows the closed round, or goes on alone, and returns the last round that is over.
    fn adopt_candidate(&mut self, shared: &mut Shared, report: &MergeReport) -> Round {
        let merged = shared.memory.round;
        let closed = self.exchange.mean.take();
        let members = closed.as_ref().map(|closed| closed.global.members.len());
        shared.outbox.note(Note::RoundClosed {
            round: closed.as_ref().map_or(merged, |closed| closed.round),
            by: closed.as_ref().map(|closed| closed.author),
            members: members.unwrap_or_default() as u32,
        });
        match (closed, &report.refused_mean) {
            (Some(closed), None) if !report.lost_mean => {
                // Only here the head moves: until the trainer has the mean, a restart goes on from the one before.
                shared.follow(&closed);
                shared.memory.lineage = closed.global.mean.id;
                return closed.round;
            }
            (Some(closed), Some(reason)) => {
                // Its author is not to blame for what its members sent, nor its members for this node's model. Whether it
                // is the mean of these parts is found out beside the next round: a false one convicts its author.
                tracing::warn!(round = %merged, by = %closed.author.short(), reason, "a mean was refused");
                shared.closings.refuse(&closed);
                if closed.author != shared.me {
                    shared.begin_trial(closed, None);
                }
            }
            // Nobody closed the round, or the mean is not held any more, for which nobody is to blame.
            _ => {}
        }
        keep_own_lineage(shared);
        merged
    }
}

/// Returns whose statistics the mean is made of, if it is one of statistics: a node judges them by its own.
fn statistics_of(shared: &Shared, exchange: &Exchange) -> Vec<Member> {
    let closed = exchange.mean.candidate();
    let closed = closed.filter(|closed| shared.schedule.gathers_statistics_in(closed.round));
    closed.map_or(Vec::new(), |closed| closed.global.members.clone())
}

/// Weighs the plan's rows by the use that owners make of their experts, and waits for none that nobody uses.
fn drop_unused(shared: &Shared, exchange: &mut Exchange, missing: &mut Vec<ExpertId>) {
    let round = exchange.round();
    let own = shared.memory.report.as_ref();
    let own = own.filter(|report| report.round == round);
    let own = own.map(|report| report.experts.as_slice());
    let offers = |owner| {
        if owner == shared.me {
            own
        } else {
            planning::offer_of(shared, owner, round).map(|local| local.experts.as_slice())
        }
    };
    weigh_by_use(exchange.experts.rows_mut(), offers);
    missing.retain(|expert| {
        let offers = offers(expert.owner);
        offers.is_none_or(|offers| use_of(offers, expert.slot) > 0.0)
    });
}

/// Nobody closed the round: from here on the node's own version is what its proxies compare in. Where nothing is averaged
/// the lineage never changes.
fn keep_own_lineage(shared: &mut Shared) {
    if !shared.averages() {
        return;
    }
    let own = shared.memory.own_update().and_then(|report| report.shared);
    if let Some(own) = own {
        // Under masks the update's part is not the node's model, and may be what others started from.
        let name = [own.id.as_bytes().as_slice(), shared.me.as_bytes()].concat();
        let masks = shared.schedule.masks();
        shared.memory.lineage = if masks { BlobId::of(&name) } else { own.id };
    }
}
