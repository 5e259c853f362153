//! The orders that need numbers, as pure functions over whoever can load a blob.
//!
//! The daemon calls them on a worker thread with the store behind `load`; the simulator with a map. This is gate four
//! for hostile input: shape, finiteness and norm against our own model, in one place.

mod masked;
mod slices;

use std::collections::BTreeMap;
use std::sync::Arc;

use fednode_core::limits::MAX_NORM_RATIO;
use fednode_core::work::{MemberStatistics, PeerExpert};
use fednode_core::{
    BlobId, ExpertId, FederationSpec, Layout, Member, MixedIn, NodeId, ParamSet, PlanRow, Round,
    Schedule, Slot, Source, stack,
};
use fednode_mix::matching::{self, Gives};
use fednode_mix::statistics::robust::{self, Limits};
use fednode_mix::{Part, ScreenFault, merge as mix, rule, screen};

pub use self::slices::{LoadBytes, average_slice};
use crate::event::{AverageOrder, AverageReport, MergeOrder, MergeReport, Purpose};

/// Loads a held blob's parameters; `None` if it is not held or not decodable.
pub type Load<'a> = &'a mut dyn FnMut(&BlobId) -> Option<Arc<ParamSet>>;

/// Experts that changed, and the adopted shared part.
#[derive(Debug, Default)]
pub struct Adoption {
    /// The mixed experts by slot; those that nothing was mixed into are left out.
    pub experts: Vec<(Slot, Arc<ParamSet>)>,
    /// Experts of others that nothing was done to, for an algorithm that judges them itself.
    pub peers: Vec<PeerExpert>,
    /// The new shared part.
    pub shared: Option<Arc<ParamSet>>,
    /// The others' statistics that the shared part is the mean of; nothing unless it is one, and all of them are here.
    pub statistics: Vec<MemberStatistics>,
    /// The weights that were really used, by slot, after what was missing or refused.
    pub used: Vec<(Slot, Vec<(ExpertId, f64)>)>,
    /// Whose experts those were, without the own ones, by node.
    pub mixed: Vec<MixedIn>,
}

/// Screens and mixes experts (FedMoE-DA Eq. 11) and screens the shared part.
///
/// `own_shared` is the node's own version of the shared part, against which the mean's shape and norm are judged.
pub fn merge(
    order: &MergeOrder,
    spec: &FederationSpec,
    me: NodeId,
    own_shared: Option<&ParamSet>,
    load: Load<'_>,
) -> (Adoption, MergeReport) {
    let mut adoption = Adoption::default();
    let mut report = MergeReport {
        round: order.round,
        ..MergeReport::default()
    };
    let gives = spec.exchange.experts.as_ref().map(matching::gives);
    for row in &order.rows {
        let own = order.own.get(usize::from(row.slot.0));
        let Some(own) = own.and_then(|blob| load(&blob.id)) else {
            continue;
        };
        // Each row is screened against the own expert of that slot: it is the only one that is known to be sound.
        let candidates = load_row(order, row, me, load);
        let accepted = screen_row(&own, candidates, spec, &mut report);
        let own_id = ExpertId {
            owner: me,
            slot: row.slot,
        };
        if gives == Some(Gives::Each) {
            let peers = hand_over(row, own_id, &accepted);
            adoption.used.push((row.slot, weights(own_id, &peers)));
            adoption.peers.extend(peers);
            continue;
        }
        let mut available = |expert: ExpertId| match expert {
            _ if expert == own_id => Some(Arc::clone(&own)),
            _ => accepted.get(&expert).cloned(),
        };
        // A row that cannot be mixed leaves the own expert as it is.
        let Ok(merged) = mix::merge_row(row, &mut available) else {
            continue;
        };
        // An expert that nothing was mixed into is the one that the trainer has already.
        if merged.is_mixed(own_id) {
            adoption.experts.push((row.slot, merged.params));
        }
        adoption.used.push((row.slot, merged.sources));
    }
    adoption.mixed = by_owner(&order.rows, &adoption.used, me);
    if let (Some(blob), Some(own)) = (order.adopt, own_shared) {
        adoption.shared = screened_mean(blob.id, own, spec, load, &mut report);
        if adoption.shared.is_some() {
            adoption.statistics = statistics_of_others(order, me, own, load);
        }
    }
    // An expert that several rows name is refused once.
    report.rejected.sort_by_key(|(expert, _)| *expert);
    report.rejected.dedup_by(|a, b| a.0 == b.0);
    (adoption, report)
}

/// Returns the mean to adopt, or notes why it is not adopted.
fn screened_mean(
    mean: BlobId,
    own: &ParamSet,
    spec: &FederationSpec,
    load: Load<'_>,
    report: &mut MergeReport,
) -> Option<Arc<ParamSet>> {
    let Some(mean) = load(&mean) else {
        report.lost_mean = true;
        return None;
    };
    match screened(&mean, own, spec) {
        Ok(()) => Some(mean),
        Err(fault) => {
            report.refused_mean = Some(fault.to_string());
            None
        }
    }
}

/// Screens a mean. Of sums of groups each is as the own part is, and all are screened.
fn screened(mean: &ParamSet, own: &ParamSet, spec: &FederationSpec) -> Result<(), ScreenFault> {
    let total = spec.exchange.total;
    let is_grouped = total.is_some_and(|total| total.group.is_some());
    let most = Schedule::of(spec).most_sums(Round(spec.rounds)) as usize;
    let groups = || stack::unstacked(mean, &own.layout(), most);
    let groups = is_grouped.then(groups).flatten();
    let is_screened = |part: &ParamSet| screen::screen(part, own, largest_norm_ratio(spec));
    match groups {
        Some(groups) => groups.iter().try_for_each(is_screened),
        None => is_screened(mean),
    }
}

/// Returns how many times as large as the own shared part an adopted one may be.
///
/// A total is as large as all parts together. Whether it can be one of samples is judged by whoever knows what they are.
fn largest_norm_ratio(spec: &FederationSpec) -> f64 {
    match spec.exchange.total {
        Some(_) => f64::INFINITY,
        None => MAX_NORM_RATIO,
    }
}

/// Returns the statistics of the other members, or nothing if one of them is not here or of another form.
fn statistics_of_others(
    order: &MergeOrder,
    me: NodeId,
    own: &ParamSet,
    load: Load<'_>,
) -> Vec<MemberStatistics> {
    let others = order.members.iter().filter(|member| member.node != me);
    let layout = own.layout();
    let statistics = others.map(|member| {
        let params = load(&member.shared.id)?;
        let fits = params.check_layout(&layout).is_ok();
        fits.then_some(MemberStatistics {
            node: member.node,
            weight: member.weight,
            params,
        })
    });
    statistics.collect::<Option<Vec<_>>>().unwrap_or_default()
}

/// Returns the experts of a row that arrived and passed, in the order of the row. What did not come has no weight: the
/// others and the own one have the more.
fn hand_over(
    row: &PlanRow,
    own: ExpertId,
    accepted: &BTreeMap<ExpertId, Arc<ParamSet>>,
) -> Vec<PeerExpert> {
    let is_here = |expert| expert == own || accepted.contains_key(&expert);
    let here = row.sources.iter().filter(|source| is_here(source.expert));
    let total: f64 = here.clone().map(|source| source.weight).sum();
    let peer = |source: &Source| {
        let params = Arc::clone(accepted.get(&source.expert)?);
        let weight = source.weight / total;
        // Without any weight in the row the shares would be no numbers.
        weight.is_finite().then_some(PeerExpert {
            expert: source.expert,
            weight,
            params,
        })
    };
    here.filter_map(peer).collect()
}

/// Returns how much each counts, the own expert first.
fn weights(own: ExpertId, peers: &[PeerExpert]) -> Vec<(ExpertId, f64)> {
    let of_peers = peers.iter().map(|peer| (peer.expert, peer.weight));
    let total: f64 = peers.iter().map(|peer| peer.weight).sum();
    std::iter::once((own, 1.0 - total))
        .chain(of_peers)
        .collect()
}

/// Adds up by owner what was used of others.
fn by_owner(rows: &[PlanRow], used: &[(Slot, Vec<(ExpertId, f64)>)], me: NodeId) -> Vec<MixedIn> {
    let mut owners: BTreeMap<NodeId, MixedIn> = BTreeMap::new();
    for (slot, sources) in used {
        let weights: BTreeMap<ExpertId, f64> = sources.iter().copied().collect();
        let planned = rows
            .iter()
            .filter(|row| row.slot == *slot)
            .flat_map(|row| &row.sources);
        for source in planned.filter(|source| source.expert.owner != me) {
            let Some(weight) = weights.get(&source.expert) else {
                continue;
            };
            let (node, similarity) = (source.expert.owner, source.similarity);
            let mixed = owners.entry(node).or_insert(MixedIn {
                node,
                similarity,
                weight: 0.0,
            });
            mixed.similarity = mixed.similarity.max(similarity);
            mixed.weight += weight / used.len() as f64;
        }
    }
    owners.into_values().collect()
}

fn load_row(
    order: &MergeOrder,
    row: &PlanRow,
    me: NodeId,
    load: Load<'_>,
) -> Vec<(ExpertId, Arc<ParamSet>)> {
    let blob_of = |expert: ExpertId| {
        if expert.owner == me {
            order.own.get(usize::from(expert.slot.0)).copied()
        } else {
            order.sources.get(&expert).copied()
        }
    };
    let own = ExpertId {
        owner: me,
        slot: row.slot,
    };
    let others = row
        .sources
        .iter()
        .filter(|source| source.weight != 0.0 && source.expert != own);
    let others = others.map(|source| source.expert);
    others
        .filter_map(|expert| Some((expert, load(&blob_of(expert)?.id)?)))
        .collect()
}

fn screen_row(
    own: &ParamSet,
    candidates: Vec<(ExpertId, Arc<ParamSet>)>,
    spec: &FederationSpec,
    report: &mut MergeReport,
) -> BTreeMap<ExpertId, Arc<ParamSet>> {
    let experts = spec.exchange.experts.as_ref();
    let matching = experts.and_then(|experts| matching::find(experts.matching.name()));
    let admits = experts.zip(matching.and_then(|matching| matching.admits));
    let most = matching.map_or(MAX_NORM_RATIO, |matching| matching.most_norm_ratio);
    let mut accepted = Vec::new();
    for (expert, params) in candidates {
        let screened = screen::screen(&params, own, most);
        if screened.as_ref().is_err_and(ScreenFault::is_mistake) {
            report.excused.push(expert);
        }
        let judged = screened.map_err(|fault| fault.to_string());
        match judged.and_then(|()| {
            admits.map_or(Ok(()), |(exchange, admits)| admits(own, &params, exchange))
        }) {
            Ok(()) => accepted.push((expert, params)),
            Err(fault) => report.rejected.push((expert, fault)),
        }
    }
    // Distances are judged among those that passed: a huge expert must not stretch the median.
    let max_distance = experts.and_then(|experts| experts.max_distance);
    let far = max_distance
        .map(|multiple| screen::far_sources(own, &accepted, multiple))
        .unwrap_or_default();
    accepted
        .into_iter()
        .filter(|(expert, _)| !far.contains(expert))
        .collect()
}

/// Computes a mean; when closing, members that do not fit the rest are left out first.
///
/// Parts are loaded one after the other, twice, so that an aggregator's memory grows with the number of members only
/// under a rule that needs all parts at once. Returns the mean's parameters beside the report; whoever stores them enters
/// their name as [`AverageReport::mean`].
pub fn average(
    order: &AverageOrder,
    spec: &FederationSpec,
    load: Load<'_>,
) -> (Option<ParamSet>, AverageReport) {
    if let Some(masked) = order.masked.as_deref() {
        return masked::average(order, masked, load);
    }
    let mut report = AverageReport::of(order);
    let Some(averaging) = &spec.exchange.averaging else {
        return (None, report);
    };
    // The first pass only measures, so that no more than two parts are in memory at a time.
    // Whoever closes leaves out what does not fit the median part. Whoever verifies must take what was counted, all of it.
    let measured = measure(order, load, &mut report.lost);
    let reference = match order.purpose {
        Purpose::Close => match reference_of(&measured, load, &mut report) {
            Some(reference) => Some(reference),
            None => return (None, report),
        },
        Purpose::Verify(_) if measured.len() < order.members.len() => return (None, report),
        Purpose::Verify(_) => None,
    };
    let mut admitted = Admitted {
        waiting: measured.into_iter(),
        reference,
        load,
        report: &mut report,
        is_incomplete: false,
    };
    // Statistics have a rule of their own, whatever that of training is.
    let combined = if Schedule::of(spec).gathers_statistics_in(order.round) {
        robust::combine(&mut admitted, limits_of(spec))
    } else {
        rule::combine(&averaging.rule, &mut admitted).map(|mean| (mean, Vec::new()))
    };
    let is_incomplete = admitted.is_incomplete;
    match combined {
        Ok((mean, doubts)) => {
            let doubts = report.members.iter().zip(doubts);
            report.disbelieved = doubts
                .filter_map(|(member, doubt)| Some((member.node, doubt?.to_string())))
                .collect();
            (Some(mean).filter(|_| !is_incomplete), report)
        }
        Err(error) => {
            report.impossible = Some(error.to_string());
            (None, report)
        }
    }
}

fn limits_of(spec: &FederationSpec) -> Limits {
    Limits {
        distance: spec.statistics.max_distance,
        weight: spec.round.max_weight,
    }
}

/// Loads the part that others are judged against. Without one the report says why.
fn reference_of(
    parts: &[Measured],
    load: Load<'_>,
    report: &mut AverageReport,
) -> Option<Arc<ParamSet>> {
    let Some(member) = reference_member(parts) else {
        report.impossible = Some("no part has finite numbers only".to_owned());
        return None;
    };
    let reference = load(&member.shared.id);
    if reference.is_none() {
        report.lost.push(member.node);
    }
    reference
}

/// The parts that are averaged, loaded when the rule asks for them. What becomes of each member is reported.
struct Admitted<'a> {
    waiting: std::vec::IntoIter<Measured>,
    /// What parts are judged against; nothing where all of them must be there, as they were when the round was closed.
    reference: Option<Arc<ParamSet>>,
    load: Load<'a>,
    report: &'a mut AverageReport,
    /// Whether a part is gone that had to be there.
    is_incomplete: bool,
}

impl Iterator for Admitted<'_> {
    type Item = Part;

    fn next(&mut self) -> Option<Part> {
        loop {
            let member = self.waiting.next()?.member;
            let Some(params) = (self.load)(&member.shared.id) else {
                self.report.lost.push(member.node);
                if self.reference.is_some() {
                    continue;
                }
                self.is_incomplete = true;
                return None;
            };
            let judge =
                |reference: &Arc<ParamSet>| screen::screen(&params, reference, MAX_NORM_RATIO);
            if let Some(Err(fault)) = self.reference.as_ref().map(judge) {
                if fault.is_mistake() {
                    self.report.excused.push(member.node);
                }
                self.report.rejected.push((member.node, fault.to_string()));
                continue;
            }
            self.report.members.push(member);
            return Some(Part {
                weight: member.weight,
                params,
            });
        }
    }
}

/// What is remembered of a part between the two passes.
struct Measured {
    member: Member,
    layout: Layout,
    norm: f64,
}

fn measure(order: &AverageOrder, load: Load<'_>, lost: &mut Vec<NodeId>) -> Vec<Measured> {
    let mut parts = Vec::new();
    for member in &order.members {
        match load(&member.shared.id) {
            Some(params) => parts.push(Measured {
                member: *member,
                layout: params.layout(),
                norm: screen::norm(&params),
            }),
            None => lost.push(member.node),
        }
    }
    parts
}

/// Returns whose part has the median norm among those with the most common layout: what a minority of liars cannot choose.
/// Of two it is the smaller one, since only what is too large is refused.
fn reference_member(parts: &[Measured]) -> Option<Member> {
    let mut by_layout: BTreeMap<&Layout, Vec<&Measured>> = BTreeMap::new();
    for part in parts.iter().filter(|part| part.norm.is_finite()) {
        by_layout.entry(&part.layout).or_default().push(part);
    }
    let mut common = by_layout.into_values().max_by_key(Vec::len)?;
    // By norm: a liar can make its part as large as it likes, but not the median.
    common.sort_by(|a, b| a.norm.total_cmp(&b.norm));
    common
        .get(common.len().saturating_sub(1) / 2)
        .map(|part| part.member)
}

#[cfg(test)]
mod tests {
    use fednode_core::{
        AdvertId, Averaging, BlobRef, Exchange, ExpertExchange, Matching, PeersPerExpert, Round,
        Rule, Source, Weighting,
    };

    use super::*;

    fn part(values: [f32; 3]) -> ParamSet {
        let mut params = ParamSet::new();
        params.insert("w", &[3], values.to_vec()).unwrap();
        params
    }

    /// Closes a round of five honest parts and a lie of nine times their size, then audits it from the adverts alone.
    /// Returns how far the mean is from the honest point, and whether the audit gets the same bits.
    fn close_and_audit(rule: &str) -> (f64, bool) {
        let honest = [
            [1.0, 2.0, 2.0],
            [1.1, 2.0, 1.9],
            [0.9, 2.1, 2.0],
            [1.0, 1.9, 2.1],
            [1.0, 2.05, 1.95],
        ];
        let parts = honest
            .map(part)
            .into_iter()
            .chain([part([-9.0, -18.0, -18.0])]);
        let held: BTreeMap<BlobId, Arc<ParamSet>> = parts
            .map(|params| (params.to_blob().0.id, Arc::new(params)))
            .collect();
        let member = |(byte, params): (u8, &Arc<ParamSet>)| Member {
            node: NodeId::from_bytes([byte; 32]),
            shared: BlobRef::of(&params.to_blob().1),
            advert: AdvertId::of(&[byte]),
            weight: 1.0,
        };
        let mut order = AverageOrder {
            round: Round(1),
            purpose: Purpose::Close,
            masked: None,
            members: (1..).zip(held.values()).map(member).collect(),
        };
        let spec = FederationSpec {
            exchange: Exchange {
                averaging: Some(Averaging {
                    weighting: Weighting::Uniform,
                    rule: Rule::named(rule),
                }),
                ..Exchange::default()
            },
            ..FederationSpec::default()
        };
        let mut load = |id: &BlobId| held.get(id).cloned();
        let (closed, report) = average(&order, &spec, &mut load);
        let closed = closed.unwrap();
        assert_eq!(report.rejected, [], "the screen lets a lie of this size in");
        order.purpose = Purpose::Verify(0);
        order.members = report.members;
        let audited = average(&order, &spec, &mut load).0;
        let error = screen::distance(&closed, &part([1.0, 2.0, 2.0]));
        (error, audited.as_ref() == Some(&closed))
    }

    #[test]
    fn a_scaled_lie_ruins_the_mean_and_no_robust_rule() {
        for row in rule::choices() {
            let (error, is_confirmed) = close_and_audit(row.name);
            assert!(is_confirmed, "{}: an audit gets other bits", row.name);
            assert_eq!(error > 4.0, row.name == "mean", "{}: {error}", row.name);
            assert_eq!(error < 0.2, row.name != "mean", "{}: {error}", row.name);
        }
    }

    /// Slot 0 of this node at (1, 2, 2), of Ann nearby, of Bob not finite, of Cid not there.
    #[test]
    fn experts_to_be_judged_are_screened_and_not_mixed() {
        let [me, ann, bob, cid] = [1, 2, 3, 4].map(|byte| NodeId::from_bytes([byte; 32]));
        let expert = |owner| ExpertId {
            owner,
            slot: Slot(0),
        };
        let blobs: Vec<(BlobRef, Arc<ParamSet>)> =
            [[1.0, 2.0, 2.0], [2.0, 2.0, 1.0], [f32::NAN, 0.0, 0.0]]
                .map(|values| {
                    let params = part(values);
                    (BlobRef::of(&params.to_bytes()), Arc::new(params))
                })
                .into();
        let source = |owner| Source {
            expert: expert(owner),
            similarity: 1.0,
            weight: 0.25,
        };
        let order = MergeOrder {
            round: Round(2),
            members: vec![],
            rows: vec![PlanRow {
                slot: Slot(0),
                sources: [me, ann, bob, cid].map(source).into(),
            }],
            own: vec![blobs[0].0],
            sources: BTreeMap::from([(expert(ann), blobs[1].0), (expert(bob), blobs[2].0)]),
            adopt: None,
        };
        let mut spec = FederationSpec::default();
        let mut merged = |matching: &str| {
            spec.exchange.experts = Some(ExpertExchange::by(
                Matching::named(matching),
                PeersPerExpert::ALL,
            ));
            let load = &mut |id: &BlobId| {
                let found = blobs.iter().find(|(blob, _)| blob.id == *id);
                found.map(|(_, params)| Arc::clone(params))
            };
            merge(&order, &spec, me, None, load)
        };
        let (mixed, _) = merged("similarity");
        assert_eq!((mixed.experts.len(), mixed.peers.len()), (1, 0));
        let (each, report) = merged("each");
        let of_ann = PeerExpert {
            expert: expert(ann),
            weight: 0.5,
            params: Arc::clone(&blobs[1].1),
        };
        assert_eq!(each.peers, [of_ann]);
        assert!(each.experts.is_empty() && each.shared.is_none());
        let used = vec![(expert(me), 0.5), (expert(ann), 0.5)];
        assert_eq!(each.used, [(Slot(0), used)]);
        assert_eq!(each.mixed.len(), 1);
        assert_eq!(report.rejected.len(), 1);
        assert_eq!(report.rejected[0].0, expert(bob));
    }

    #[test]
    fn owner_adds_up_the_use_of_its_expert() {
        let [me, ann, bob] = [1, 2, 3].map(|byte| NodeId::from_bytes([byte; 32]));
        let expert = |owner, slot| ExpertId {
            owner,
            slot: Slot(slot),
        };
        let row = |slot, sources: &[(ExpertId, f64)]| PlanRow {
            slot: Slot(slot),
            sources: sources
                .iter()
                .map(|(expert, similarity)| Source {
                    expert: *expert,
                    similarity: *similarity,
                    weight: 0.0,
                })
                .collect(),
        };
        let rows = [
            row(
                0,
                &[
                    (expert(me, 0), 1.0),
                    (expert(ann, 0), 0.5),
                    (expert(ann, 1), 0.75),
                    (expert(bob, 0), -0.5),
                ],
            ),
            row(
                1,
                &[
                    (expert(me, 1), 1.0),
                    (expert(ann, 0), 0.25),
                    (expert(bob, 1), 0.125),
                ],
            ),
        ];
        // Bob's second expert was planned and did not come.
        let used = [
            (
                Slot(0),
                vec![
                    (expert(me, 0), 0.25),
                    (expert(ann, 0), 0.25),
                    (expert(ann, 1), 0.375),
                    (expert(bob, 0), 0.125),
                ],
            ),
            (Slot(1), vec![(expert(me, 1), 0.5), (expert(ann, 0), 0.5)]),
        ];
        let expected = [
            MixedIn {
                node: ann,
                similarity: 0.75,
                weight: (0.25 + 0.375 + 0.5) / 2.0,
            },
            MixedIn {
                node: bob,
                similarity: -0.5,
                weight: 0.0625,
            },
        ];
        assert_eq!(by_owner(&rows, &used, me), expected);
    }
}
