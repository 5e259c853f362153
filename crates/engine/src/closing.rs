//! Closing a round: collecting members' shared parts until the round can be averaged.
//!
//! ```text
//! collecting ──enough parts: order_mean──► averaging ──a mean of enough members──► closed
//!     ▲                                        │
//!     └──── too few are left: without them ────┘
//! ```
//!
//! The bootstrap aggregator and a node that acts in its place use the same machine. It knows nothing of time; its owner
//! asks whether everybody is in, or a quorum, and decides when the grace is over.

mod counts;
mod masking;
mod slicing;

use counts::Counts;
pub(crate) use masking::{Masking, Surroundings};
use slicing::Division;

use std::collections::BTreeMap;
use std::sync::Arc;

use fednode_core::draw::{DrawSeed, draw};
use fednode_core::masked::Proposal;
use fednode_core::{
    AdvertId, BlobId, BlobRef, ClosingId, FederationSpec, Lineage, Local, MAX_MEMBERS, Member,
    NodeId, Round, Schedule, Weighting,
};
use serde::{Deserialize, Serialize};

use crate::encoding::schedule_of_default_spec;
use crate::event::{Arrival, AverageOrder, AverageReport, FetchKind, JoinOrder, Purpose};
use crate::outbox::Outbox;
use crate::view::{Update, View};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Part {
    Wanted,
    Held,
    Failed,
    /// Its slices are fetched by others.
    Elsewhere,
}

impl Part {
    /// Tells whether a closing may count it.
    fn counts(self) -> bool {
        matches!(self, Self::Held | Self::Elsewhere)
    }
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Offer {
    round: Round,
    base: Base,
    shared: BlobRef,
    n_samples: u32,
    /// The advert that says so.
    advert: AdvertId,
    part: Part,
}

impl Offer {
    /// Tells whether a mean of this base counts it.
    fn counts(&self, base: Base) -> bool {
        self.part.counts() && self.base == base
    }
}

/// What all members of a closing must have trained from: the closing before it, and the mean of that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Base {
    pub(crate) previous: Option<ClosingId>,
    pub(crate) parent: Lineage,
}

impl Base {
    /// Returns what an update was trained from.
    fn of(local: &Local) -> Self {
        Self {
            previous: local.follows,
            parent: local.parent,
        }
    }

    /// Tells whether an update was trained from it.
    pub(crate) fn is_of(&self, local: &Local) -> bool {
        Self::of(local) == *self
    }
}

/// The members' parts of the round being closed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Closer {
    /// Says how parts are weighted.
    #[serde(skip)]
    spec: Arc<FederationSpec>,
    #[serde(skip, default = "schedule_of_default_spec")]
    schedule: Arc<Schedule>,
    offers: BTreeMap<NodeId, Offer>,
    /// Whose part a blob is; parts of equal content are one blob.
    owners: BTreeMap<BlobId, Vec<NodeId>>,
    /// How many of the offers are what. An image does without.
    #[serde(skip)]
    counts: Counts,
    /// The mean is being computed, or is already announced.
    is_averaging: bool,
    /// The adverts of the members whose mean was ordered last, and its round.
    ordered: Vec<AdvertId>,
    #[serde(default)]
    ordered_round: Option<Round>,
    /// Those have no mean, so it is not ordered again.
    is_futile: bool,
    /// Where sums are masked: how far this one is.
    #[serde(default)]
    masked: Masking,
    /// Where means are averaged in slices: how far this one is.
    #[serde(default)]
    slicing: Division,
}

/// The mean of a round that can be closed.
#[derive(Debug)]
pub(crate) struct Mean {
    pub(crate) round: Round,
    pub(crate) blob: BlobRef,
    pub(crate) members: Vec<Member>,
    /// The words that took the masks off, where sums are masked.
    pub(crate) unmasked: Vec<(NodeId, AdvertId)>,
    /// The words that name its slices, where it was averaged in slices.
    pub(crate) slices: Vec<(NodeId, AdvertId)>,
    /// What its members had trained from when they were proposed, where it was averaged in slices.
    pub(crate) proposed: Option<Base>,
}

impl Mean {
    /// Tells whether it can be announced by whoever follows this: words that name slices are of one proposal.
    pub(crate) fn is_of(&self, base: Base) -> bool {
        self.proposed.is_none_or(|proposed| proposed == base)
    }
}

/// What an update offers whoever closes a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offered {
    /// Nothing that is new, or that counts.
    Nothing,
    /// A part, to be fetched.
    Part(BlobRef),
    /// A part of which others fetch the slices.
    Elsewhere,
}

/// What whoever closes a round does next.
#[derive(Debug)]
pub(crate) enum Step {
    /// It computes.
    Average(AverageOrder),
    /// It asks the members whether these are added up, or to average them.
    Propose(Round, Proposal),
    /// It puts slices together.
    Join(JoinOrder),
    /// It fetches all parts, and averages them itself.
    Fetch(Vec<(NodeId, BlobRef)>),
}

impl Closer {
    /// Starts collecting.
    pub(crate) fn new(spec: Arc<FederationSpec>, schedule: Arc<Schedule>) -> Self {
        Self {
            spec,
            schedule,
            offers: BTreeMap::new(),
            owners: BTreeMap::new(),
            counts: Counts::default(),
            is_averaging: false,
            ordered: Vec::new(),
            ordered_round: None,
            is_futile: false,
            masked: Masking::default(),
            slicing: Division::default(),
        }
    }

    /// Takes the spec back, which no image holds, and counts what is on offer.
    pub(crate) fn adopt_spec(&mut self, spec: &Arc<FederationSpec>, schedule: &Arc<Schedule>) {
        (self.spec, self.schedule) = (Arc::clone(spec), Arc::clone(schedule));
        self.counts = Counts::of(self.offers.values());
    }

    /// Takes note of a local update and of what it offers. Parts of those who are doubted are fetched here, whoever needs slices.
    pub(crate) fn offer(&mut self, update: Update<'_>, view: &View) -> Offered {
        let is_doubtful = view.is_doubtful(update.node);
        self.take_in(update, is_doubtful)
            .unwrap_or(Offered::Nothing)
    }

    fn take_in(&mut self, update: Update<'_>, is_doubtful: bool) -> Option<Offered> {
        let Update {
            node,
            round,
            id,
            local,
        } = update;
        let shared = local.shared?;
        let known = self.offers.get(&node);
        // Adverts come in any order: a late one of an earlier round does not replace a newer one.
        if known.is_some_and(|offer| offer.round > round) {
            return None;
        }
        // The same part in another advert: after a restart an update is said again.
        if let Some(known) = self
            .offers
            .get_mut(&node)
            .filter(|offer| (offer.round, offer.shared) == (round, shared))
        {
            self.counts.take_out(known);
            (known.advert, known.n_samples) = (id, local.n_samples);
            known.base = Base::of(local);
            self.counts.add(known);
            return None;
        }
        let n_samples = local.n_samples;
        // A part that weighs nothing would hold up the round without changing its mean.
        let weighting = self.schedule.weighting(round, &self.spec.exchange);
        if weighting == Weighting::Samples && n_samples == 0 {
            return None;
        }
        // A node counts once, with its newest part: the former one leaves all counts first.
        self.remove(node);
        let part = if !is_doubtful && self.divides(round, shared.size) {
            Part::Elsewhere
        } else {
            Part::Wanted
        };
        let offer = Offer {
            round,
            base: Base::of(local),
            shared,
            n_samples,
            advert: id,
            part,
        };
        self.counts.add(&offer);
        self.offers.insert(node, offer);
        self.owners.entry(shared.id).or_default().push(node);
        Some(match part {
            Part::Elsewhere => Offered::Elsewhere,
            _ => Offered::Part(shared),
        })
    }

    /// Records that a blob is held, or cannot be had.
    pub(crate) fn resolve(&mut self, arrival: Arrival) {
        let ends = |offer: &Offer| arrival.ends_wait_for(&offer.shared, FetchKind::Shared);
        for node in self.owners.get(&arrival.id()).into_iter().flatten() {
            // What is held stays so, whatever else somebody asked for under its name.
            let Some(offer) = self
                .offers
                .get_mut(node)
                .filter(|offer| !offer.part.counts() && ends(offer))
            else {
                continue;
            };
            self.counts.take_out(offer);
            offer.part = match arrival {
                Arrival::Held(_) => Part::Held,
                Arrival::Failed(..) => Part::Failed,
            };
            self.counts.add(offer);
        }
    }

    /// Tells whether a node's part is held.
    pub(crate) fn holds(&self, node: NodeId) -> bool {
        let offer = self.offers.get(&node);
        offer.is_some_and(|offer| offer.part.counts())
    }

    /// Forgets a node's part: it left, was banned, or was screened out.
    pub(crate) fn remove(&mut self, node: NodeId) {
        let Some(offer) = self.offers.remove(&node) else {
            return;
        };
        self.counts.take_out(&offer);
        if let Some(owners) = self.owners.get_mut(&offer.shared.id) {
            owners.retain(|owner| *owner != node);
        }
    }

    /// Tells whether every expected node's part is held or known to be out of reach.
    pub(crate) fn all_in(&self, mut expected: impl Iterator<Item = NodeId>) -> bool {
        self.counts.wanted() == 0 && expected.all(|node| self.offers.contains_key(&node))
    }

    /// Visits the parts on offer.
    pub(crate) fn blobs(&self) -> impl Iterator<Item = BlobId> + '_ {
        self.offers.values().map(|offer| offer.shared.id)
    }

    /// Tells whether parts of other rounds than the one that is closed do not count: where only some nodes train in a round,
    /// those of another one have a round of their own. Masks are of one round, too.
    fn is_of_one_round(&self) -> bool {
        self.spec.round.participation < 1.0 || self.schedule.masks()
    }

    /// Returns the expected nodes whose update was not heard, for `status`.
    pub(crate) fn unheard(&self, expected: impl Iterator<Item = NodeId>) -> Vec<NodeId> {
        expected
            .filter(|node| !self.offers.contains_key(node))
            .collect()
    }

    /// Returns the nodes whose part is on its way, for `status`.
    pub(crate) fn wanted(&self) -> Vec<NodeId> {
        self.owners_of(Part::Wanted)
    }

    /// Returns the nodes whose part cannot be had, for `status`.
    pub(crate) fn failed(&self) -> Vec<NodeId> {
        self.owners_of(Part::Failed)
    }

    fn owners_of(&self, part: Part) -> Vec<NodeId> {
        let offers = self.offers.iter().filter(|(_, offer)| offer.part == part);
        offers.map(|(node, _)| *node).collect()
    }

    /// Returns the members to average, in node order, and the round that their mean closes.
    ///
    /// Only parts with the given base count. With more than [`MAX_MEMBERS`] a draw that everybody can repeat decides.
    /// The round is the members' median, so that no minority can move it; all are weighted as in that round, whatever they
    /// trained for.
    pub(crate) fn members(&self, base: Base, seed: DrawSeed) -> (Round, Vec<Member>) {
        let mut chosen: Vec<(NodeId, Offer)> = self
            .offers
            .iter()
            .filter(|(_, offer)| offer.counts(base))
            .map(|(node, offer)| (*node, *offer))
            .collect();
        let mut rounds: Vec<Round> = chosen.iter().map(|(_, offer)| offer.round).collect();
        rounds.sort_unstable();
        let round = rounds
            .get(rounds.len().saturating_sub(1) / 2)
            .copied()
            .unwrap_or_default();
        // Where everybody trains in every round, a straggler of another round is better than nobody.
        chosen.retain(|(_, offer)| offer.round == round || !self.is_of_one_round());
        // The announcement names all members, and it must fit into one advert.
        if chosen.len() > MAX_MEMBERS {
            chosen.sort_by_cached_key(|(node, _)| draw(b"fednode members 1", seed, round, *node));
            chosen.truncate(MAX_MEMBERS);
            chosen.sort_by_key(|(node, _)| *node);
        }
        let weighting = self.schedule.weighting(round, &self.spec.exchange);
        if weighting == Weighting::Samples {
            chosen.retain(|(_, offer)| offer.n_samples > 0);
        }
        let samples: Vec<u32> = chosen.iter().map(|(_, offer)| offer.n_samples).collect();
        let weights = weights(&samples, weighting, self.spec.round.max_weight);
        let member = |((node, offer), weight): ((NodeId, Offer), f64)| Member {
            node,
            shared: offer.shared,
            weight,
            advert: offer.advert,
        };
        (round, chosen.into_iter().zip(weights).map(member).collect())
    }

    /// Tells whether the mean is being computed, or is announced already.
    pub(crate) fn is_averaging(&self) -> bool {
        self.is_averaging
    }

    /// Orders the mean of the parts that have this base; nothing if they are too few, if it was ordered already, or if the
    /// same parts were found to have none.
    pub(crate) fn order_mean(&mut self, base: Base, seed: DrawSeed) -> Option<AverageOrder> {
        if self.is_averaging {
            return None;
        }
        let (round, members) = self.members(base, seed);
        let adverts: Vec<AdvertId> = members.iter().map(|member| member.advert).collect();
        let is_known = self.is_futile && adverts == self.ordered;
        if is_known || members.len() < self.spec.fewest_members() as usize {
            return None;
        }
        self.note_order(round, adverts);
        Some(AverageOrder {
            round,
            purpose: Purpose::Close,
            members,
            masked: None,
        })
    }

    /// A mean of these members is being computed.
    fn note_order(&mut self, round: Round, adverts: Vec<AdvertId>) {
        (self.is_averaging, self.is_futile) = (true, false);
        (self.ordered_round, self.ordered) = (Some(round), adverts);
    }

    /// Tells whether a report answers the order that is open. It may answer one of a closing that this one has replaced.
    fn is_answer(&self, report: &AverageReport) -> bool {
        let mut counted = report.members.iter().map(|member| member.advert);
        let is_of_round = self.ordered_round.is_none_or(|it| it == report.round);
        self.is_averaging && is_of_round && counted.all(|advert| self.ordered.contains(&advert))
    }

    /// Takes a mean that was ordered. Whose part was screened out is struck, unless its
    /// size alone is at fault; whose part is lost is not. What is left has other
    /// weights, so another mean must be ordered then.
    pub(crate) fn on_averaged(
        &mut self,
        report: AverageReport,
        outbox: &mut Outbox,
    ) -> Option<Mean> {
        if !self.is_answer(&report) {
            return None;
        }
        let is_whole = report.lost.is_empty() && report.rejected.is_empty();
        if let Some(reason) = report.impossible.filter(|_| is_whole) {
            // Computed again from the same parts it would fail again, at once and for ever.
            self.is_futile = true;
            let parts = self.ordered.len();
            tracing::warn!(round = %report.round, parts, reason, "parts have no mean: the round waits for others");
        }
        for node in report.lost {
            self.remove(node);
        }
        for (node, reason) in report.rejected {
            self.remove(node);
            let reason = format!("shared part refused: {reason}");
            if report.excused.contains(&node) {
                tracing::warn!(round = %report.round, node = %node.short(), "{reason}");
            } else {
                outbox.strike(node, reason);
            }
        }
        let mean = report.mean.filter(|_| is_whole).map(|blob| Mean {
            round: report.round,
            blob,
            members: report.members,
            unmasked: self.masked.words_used(),
            slices: Vec::new(),
            proposed: None,
        });
        if mean.is_none() {
            self.is_averaging = false;
            self.masked.on_no_mean(&self.ordered, is_whole);
        }
        mean
    }

    /// Lets another mean be ordered: the one that was computed cannot be announced.
    pub(crate) fn reopen(&mut self) {
        self.is_averaging = false;
        self.forget_proposal();
    }
}

/// Returns what members with so many samples weigh in a mean.
///
/// Samples are a member's own word. So none weighs more than `most` times the median; 0 sets no bound.
pub fn weights(samples: &[u32], weighting: Weighting, most: f64) -> Vec<f64> {
    if weighting == Weighting::Uniform {
        return vec![1.0; samples.len()];
    }
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    let median = sorted.get(sorted.len().saturating_sub(1) / 2).copied();
    let bound = match most {
        0.0 => f64::INFINITY,
        most => most * f64::from(median.unwrap_or_default()),
    };
    samples.iter().map(|n| f64::from(*n).min(bound)).collect()
}

#[cfg(test)]
mod tests {
    use fednode_core::{Averaging, Exchange, Rule};

    use super::*;

    fn node(n: u8) -> NodeId {
        NodeId::from_bytes([n; 32])
    }

    /// What members trained from: nothing was closed before.
    fn base(parent: u8) -> Base {
        let parent = BlobId::from_bytes([parent; 32]);
        Base {
            previous: None,
            parent,
        }
    }

    fn offer(closing: &mut Closer, n: u8, round: u32, local: &Local) -> Offered {
        let update = Update {
            node: node(n),
            round: Round(round),
            id: AdvertId::of(&[n, round as u8]),
            local,
        };
        closing.offer(update, &View::new(2))
    }

    fn local(parent: u8, shared: u8, n_samples: u32) -> Local {
        let id = |n| BlobId::from_bytes([n; 32]);
        let shared = Some(BlobRef {
            id: id(shared),
            size: 1,
        });
        Local {
            shared,
            ..Local::new(id(parent), n_samples)
        }
    }

    fn closer_of(spec: FederationSpec) -> Closer {
        let schedule = Schedule::of(&spec);
        Closer::new(Arc::new(spec), Arc::new(schedule))
    }

    fn empty() -> Closer {
        let averaging = Averaging {
            weighting: Weighting::Samples,
            rule: Rule::default(),
        };
        let exchange = Exchange {
            averaging: Some(averaging),
            experts: None,
            everybody_first: false,
            prepares: false,
            total: None,
        };
        closer_of(FederationSpec {
            exchange,
            rounds: 2000,
            ..FederationSpec::default()
        })
    }

    fn collect(offers: &[(u8, u32, Local)]) -> Closer {
        let mut closing = empty();
        for (n, round, local) in offers {
            offer(&mut closing, *n, *round, local);
            closing.resolve(Arrival::Held(local.shared.unwrap().id));
        }
        closing
    }

    #[test]
    fn counts_only_members_of_one_parent_weighted_by_samples() {
        let closing = collect(&[
            (1, 4, local(9, 11, 5)),
            (2, 4, local(9, 12, 7)),
            (3, 4, local(8, 13, 1)),
        ]);
        assert_eq!(closing.common_parent(), Some(BlobId::from_bytes([9; 32])));
        let (round, members) = closing.members(base(9), DrawSeed::of(0));
        assert_eq!(round, Round(4));
        assert_eq!(
            members
                .iter()
                .map(|m| (m.node, m.weight))
                .collect::<Vec<_>>(),
            [(node(1), 5.0), (node(2), 7.0)]
        );
    }

    #[test]
    fn a_minority_cannot_move_the_round() {
        let closing = collect(&[
            (1, 4, local(9, 11, 1)),
            (2, 4, local(9, 12, 1)),
            (3, 1000, local(9, 13, 1)),
        ]);
        assert_eq!(closing.members(base(9), DrawSeed::of(0)).0, Round(4));
    }

    #[test]
    fn the_round_on_offer_is_the_median_and_changes_with_the_parts() {
        let mut closing = empty();
        assert_eq!(closing.round(), None);
        for (n, round, median) in [
            (1, 9, 9),
            (2, 4, 4),
            (3, 5, 5),
            (4, 5, 5),
            (5, 9, 5),
            (1, 10, 5),
        ] {
            offer(&mut closing, n, round, &local(9, 10 * n + round as u8, 1));
            assert_eq!(closing.round(), Some(Round(median)), "after {n}");
        }
        closing.remove(node(3));
        closing.remove(node(4));
        assert_eq!(closing.round(), Some(Round(9)), "4, 9, 10");
    }

    #[test]
    fn members_of_other_rounds_are_weighted_by_the_closing_round() {
        let averaging = Averaging {
            weighting: Weighting::Uniform,
            rule: Rule::default(),
        };
        let exchange = Exchange {
            averaging: Some(averaging),
            experts: None,
            everybody_first: false,
            prepares: false,
            total: None,
        };
        let mut spec = FederationSpec {
            exchange,
            rounds: 4,
            ..FederationSpec::default()
        };
        spec.statistics.enabled = true;
        let weights = |rounds: [u32; 3]| {
            let mut closing = closer_of(spec.clone());
            for (n, round) in (1..).zip(rounds) {
                offer(&mut closing, n, round, &local(9, 10 + n, 5 * u32::from(n)));
                closing.resolve(Arrival::Held(BlobId::from_bytes([10 + n; 32])));
            }
            let (_, members) = closing.members(base(9), DrawSeed::of(0));
            members
                .iter()
                .map(|member| member.weight)
                .collect::<Vec<_>>()
        };
        assert_eq!(weights([3, 3, 4]), [1.0, 1.0, 1.0], "a round of training");
        assert_eq!(
            weights([3, 4, 4]),
            [5.0, 10.0, 15.0],
            "the round of statistics"
        );
    }

    #[test]
    fn where_only_some_train_in_a_round_parts_of_another_do_not_count() {
        for (participation, counted) in [(1.0, 3), (0.5, 2)] {
            let mut spec = FederationSpec::default();
            spec.round.participation = participation;
            let mut closing = closer_of(spec);
            for (n, round) in [(1, 3), (2, 4), (3, 4)] {
                offer(&mut closing, n, round, &local(9, 10 + n, 5));
                closing.resolve(Arrival::Held(BlobId::from_bytes([10 + n; 32])));
            }
            let (round, members) = closing.members(base(9), DrawSeed::of(0));
            assert_eq!(
                (round, members.len(), closing.n_held_of(base(9))),
                (Round(4), counted, counted),
                "{participation}"
            );
        }
    }

    #[test]
    fn a_node_without_samples_is_not_a_member() {
        let mut closing = empty();
        assert_eq!(
            offer(&mut closing, 1, 1, &local(9, 11, 0)),
            Offered::Nothing
        );
        assert_eq!(closing.blobs().count(), 0);
    }

    #[test]
    fn nobody_weighs_more_than_the_bound_allows() {
        let weigh = |samples: &[u32], most| weights(samples, Weighting::Samples, most);
        assert_eq!(
            weigh(&[500, 400, u32::MAX, 600], 3.0),
            [500.0, 400.0, 1500.0, 600.0]
        );
        assert_eq!(weigh(&[5, 7], 3.0), [5.0, 7.0]);
        assert_eq!(
            weigh(&[5, 70], 1.0),
            [5.0, 5.0],
            "of two the smaller is the median"
        );
        assert_eq!(weigh(&[5, 700, 6], 0.0), [5.0, 700.0, 6.0], "no bound");
        assert_eq!(weights(&[5, 700], Weighting::Uniform, 3.0), [1.0, 1.0]);
    }

    #[test]
    fn the_same_part_said_again_is_counted_with_the_newer_advert() {
        let mut closing = collect(&[(1, 4, local(9, 11, 5)), (2, 4, local(9, 12, 5))]);
        let again = AdvertId::of(b"after a restart");
        let local = local(9, 11, 5);
        let update = Update {
            node: node(1),
            round: Round(4),
            id: again,
            local: &local,
        };
        assert_eq!(
            closing.offer(update, &View::new(2)),
            Offered::Nothing,
            "its part is here"
        );
        let (_, members) = closing.members(base(9), DrawSeed::of(0));
        assert_eq!(members[0].advert, again);
    }

    #[test]
    fn a_mean_that_cannot_be_is_ordered_once() {
        let mut closing = collect(&[(1, 4, local(9, 11, 5)), (2, 4, local(9, 12, 5))]);
        let seed = DrawSeed::of(0);
        let order = closing.order_mean(base(9), seed).unwrap();
        let report = AverageReport {
            members: order.members.clone(),
            impossible: Some("nobody is believed".to_owned()),
            ..AverageReport::of(&order)
        };
        let mut outbox = Outbox::default();
        assert!(closing.on_averaged(report, &mut outbox).is_none());
        assert_eq!(closing.order_mean(base(9), seed), None, "the same parts");
        let third = local(9, 13, 5);
        offer(&mut closing, 3, 4, &third);
        closing.resolve(Arrival::Held(third.shared.unwrap().id));
        let order = closing.order_mean(base(9), seed);
        assert_eq!(order.map(|order| order.members.len()), Some(3));
    }

    /// Somebody else closed the round for which it was ordered, and another mean was ordered since.
    #[test]
    fn a_late_mean_of_other_members_is_not_taken_for_the_open_one() {
        let mut closing = collect(&[(1, 4, local(9, 11, 5)), (2, 4, local(9, 12, 5))]);
        let open = closing.order_mean(base(9), DrawSeed::of(0)).unwrap();
        let mean = |parts: [u8; 2]| {
            let mut before = collect(&parts.map(|n| (n, 4, local(8, 20 + n, 5))));
            let order = before.order_mean(base(8), DrawSeed::of(0)).unwrap();
            (order, BlobRef::of(&parts))
        };
        let report = |order: &AverageOrder, mean| AverageReport {
            mean: Some(mean),
            members: order.members.clone(),
            ..AverageReport::of(order)
        };
        let mut outbox = Outbox::default();
        let (late, of_others) = mean([3, 4]);
        let taken = closing.on_averaged(report(&late, of_others), &mut outbox);
        assert!(taken.is_none() && closing.is_averaging());
        let own = BlobRef::of(b"mean");
        let taken = closing.on_averaged(report(&open, own), &mut outbox);
        assert_eq!(taken.map(|mean| mean.blob), Some(own));
    }

    #[test]
    fn an_unreachable_part_does_not_hold_up_the_round() {
        let mut closing = collect(&[(1, 1, local(9, 11, 1))]);
        let expected = || [node(1), node(2)].into_iter();
        assert!(!closing.all_in(expected()));
        offer(&mut closing, 2, 1, &local(9, 12, 1));
        assert!(!closing.all_in(expected()));
        let part = local(1, 12, 5).shared.unwrap();
        // Somebody else announced the same blob with another size, or as an expert: that says nothing of the part.
        let falsely = BlobRef { size: 2, ..part };
        closing.resolve(Arrival::Failed(falsely, FetchKind::Shared));
        closing.resolve(Arrival::Failed(part, FetchKind::Expert));
        assert_eq!(closing.failed(), []);
        closing.resolve(Arrival::Failed(part, FetchKind::Shared));
        assert!(closing.all_in(expected()));
        assert_eq!(closing.n_held_of(base(9)), 1);
    }
}
