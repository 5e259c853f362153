//! The plan: which experts are mixed into the own ones this round, and how much each counts.

use fednode_core::{ExpertOffer, FederationSpec, Local, NodeId, PlanRow, Round, Slot, Weighting};

use super::following;
use super::shared::Shared;
use crate::event::Note;

pub(super) fn weighs_by_use(spec: &FederationSpec) -> bool {
    spec.exchange
        .experts
        .as_ref()
        .is_some_and(|experts| experts.weighting == Weighting::Samples)
}

/// Multiplies the weight of each source by the share of its owner's samples that chose it. An owner whose update of this
/// round is not known may be stood in for by an older expert, of which the mean share is assumed.
pub(super) fn weigh_by_use<'a>(
    rows: &mut [PlanRow],
    offers: impl Fn(NodeId) -> Option<&'a [ExpertOffer]>,
) {
    let n_experts = rows.len().max(1) as f64;
    for source in rows.iter_mut().flat_map(|row| &mut row.sources) {
        let offers = offers(source.expert.owner);
        source.weight *=
            offers.map_or(1.0 / n_experts, |offers| use_of(offers, source.expert.slot));
    }
}

/// Returns the share of an owner's samples that chose this expert; at most 1, whatever the owner claims.
pub(super) fn use_of(offers: &[ExpertOffer], slot: Slot) -> f64 {
    let total: f64 = offers
        .iter()
        .map(|offer| f64::from(offer.samples_routed))
        .sum();
    let routed = offers
        .get(usize::from(slot.0))
        .map_or(0.0, |offer| f64::from(offer.samples_routed));
    if total > 0.0 { routed / total } else { 0.0 }
}

/// Returns the other nodes whose proxies of the newest refresh are known, those with the most similar expert first;
/// nobody where there are no proxies.
pub(super) fn ranked_by_similarity(shared: &Shared) -> Vec<NodeId> {
    let newest = shared.schedule.refresh_before(shared.memory.round.next());
    let known = newest.and_then(|round| {
        let lineage = shared.view.nodes().local(shared.me, round)?.lineage;
        Some(shared.view.nodes().proxies(round, lineage))
    });
    let ranking = known.map(|known| fednode_mix::plan::ranking(shared.me, &known));
    let ranking = ranking.unwrap_or_default().into_iter();
    ranking.map(|(node, _)| node).collect()
}

/// Computes the own rows of A from the newest refresh round before this one, if that is not done yet (Eq. 8 to 10).
pub(super) fn renew(shared: &mut Shared) {
    let Some(exchange) = &shared.spec.exchange.experts else {
        return;
    };
    let round = shared.memory.round;
    // Where statistics are gathered nothing was trained: experts stay as they are, and are not mixed once more.
    if shared.schedule.gathers_statistics_in(round) {
        shared.memory.plan = None;
        return;
    }
    // A node that rested in the last refresh has no newer plan; one that has outlived its rounds is none.
    let plan = &mut shared.memory.plan;
    plan.take_if(|plan| plan.round.0 + exchange.refresh_every < round.0);
    let Some(last) = shared.schedule.refresh_before(round) else {
        return;
    };
    if plan.as_ref().is_some_and(|plan| plan.round == last) {
        return;
    }
    // Proxies compare only within one lineage: that in which this node published its own.
    let me = shared.me;
    let Some(lineage) = shared
        .view
        .nodes()
        .local(me, last)
        .map(|local| local.lineage)
    else {
        return;
    };
    let known = shared.view.nodes().proxies(last, lineage);
    // Without its own proxies a node has nothing to compare the others with.
    if known.contains_key(&me) {
        let renewed = fednode_mix::plan::plan(me, last, lineage, &known, exchange);
        shared.memory.plan = Some(renewed);
        let renamings = fednode_mix::plan::renamings(me, &known, exchange);
        for renaming in renamings {
            // Once is enough: the classes of a node hardly ever change their names.
            if shared.memory.told_renamed.insert(renaming.node) {
                let (node, classes) = (renaming.node, renaming.classes);
                shared.outbox.note(Note::Renamed { node, classes });
            }
        }
        following::follow_nearest(shared, last, &known);
    }
}

/// Returns what an owner of planned experts offers: its update of this round, or, of one that rests in it, the newest
/// that is not too old to stand in.
pub(super) fn offer_of(shared: &Shared, owner: NodeId, round: Round) -> Option<&Local> {
    if shared.cohort.contains(owner) {
        return shared.view.nodes().local(owner, round);
    }
    let (newest, local) = shared.view.nodes().newest_local(owner)?;
    (newest >= oldest_to_mix(shared, round)).then_some(local)
}

/// Returns the round of the oldest expert that may stand in for its owner's one of this round.
pub(super) fn oldest_to_mix(shared: &Shared, round: Round) -> Round {
    Round(round.0.saturating_sub(shared.refresh_every()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fednode_core::{BlobId, BlobRef, ExpertId};

    /// An expert that nobody chose is no source, however similar; a boast counts as one whole share.
    #[test]
    fn sources_count_by_their_use() {
        let id = |byte, slot| ExpertId {
            owner: NodeId::from_bytes([byte; 32]),
            slot: Slot(slot),
        };
        let source = |expert| fednode_core::Source {
            expert,
            similarity: 1.0,
            weight: 0.25,
        };
        let sources = vec![
            source(id(1, 0)),
            source(id(1, 1)),
            source(id(2, 0)),
            source(id(3, 0)),
        ];
        let mut rows = vec![
            PlanRow {
                slot: Slot(0),
                sources,
            },
            PlanRow {
                slot: Slot(1),
                sources: Vec::new(),
            },
        ];
        let offer = |samples_routed| {
            let blob = BlobRef {
                id: BlobId::of(b""),
                size: 0,
            };
            ExpertOffer {
                blob,
                samples_routed,
            }
        };
        let (mine, boast) = ([offer(30), offer(90)], [offer(u32::MAX), offer(0)]);
        weigh_by_use(&mut rows, |owner| match owner.as_bytes()[0] {
            1 => Some(&mine),
            2 => Some(&boast),
            _ => None,
        });
        let weights: Vec<f64> = rows[0].sources.iter().map(|source| source.weight).collect();
        assert_eq!(weights, [0.0625, 0.1875, 0.25, 0.125]);
        assert_eq!(use_of(&boast, Slot(1)), 0.0);
    }
}
