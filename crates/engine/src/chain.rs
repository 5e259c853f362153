//! Which closed round to follow.
//!
//! Closed rounds form a chain: each names the one that it follows, by the hash of all that it says. A closing is a
//! certificate. For each member it names the advert in which that member signed its part, its samples and the closing that
//! it follows itself. Whoever lacks one of these adverts asks for it by name. So nobody is counted who did not say so, and
//! nobody is blamed for what another node signed.
//!
//! A closing of the next round is followed if it counts a quorum ([`crate::quorum`]). Another chain is followed if more
//! nodes stand behind it ([`crate::support`]). Of two closings of one round the lower rank wins until the node has moved on.

use std::cell::OnceCell;
use std::time::Duration;

use fednode_core::draw::{DrawSeed, draw};
use fednode_core::masked::Proposal;
use fednode_core::{
    AdvertId, BlobRef, BroadcastSet, FederationSpec, Global, Lineage, Member, NodeId, Round,
    Schedule, Timestamp,
};

use crate::certificate::{self, Confirmation};
use crate::event::{Lacking, Timer};
use crate::follower::{Announced, Follower};
use crate::masks::Sum;
use crate::outbox::Outbox;
use crate::state::Head;
use crate::view::View;

/// Bytes that any part may have, however small the mean.
pub(crate) const SLACK: u64 = 64 << 10;
/// Bytes that a part may have where no mean says how large parts are, whatever others announced.
pub(crate) const UNCOMPARED_BYTES: u64 = 16 << 20;

/// What to do with an announced closed round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It follows our head.
    Next,
    /// Another chain with more nodes behind it: follow it.
    Switch,
    /// Nothing new.
    Old,
    /// Another chain that too few stand behind so far. This node itself signed these adverts on it, and has forgotten them.
    Outvoted(Vec<Lacking>),
    /// Perhaps good: these adverts of its members were not heard yet, or it counts too few members for now.
    Unconfirmed(Vec<Lacking>),
    /// It is false by itself, or by what its members signed.
    False(String),
}

/// What a machine judges closed rounds by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Judge<'a> {
    pub(crate) spec: &'a FederationSpec,
    pub(crate) schedule: &'a Schedule,
    pub(crate) broadcast_set: BroadcastSet,
    pub(crate) view: &'a View,
    pub(crate) head: &'a Head,
    /// Who takes part in masked sums.
    pub(crate) chain: &'a Follower,
    pub(crate) me: NodeId,
    /// Whether this machine trains itself in the round.
    pub(crate) trains: bool,
    /// Whether this machine is the aggregator.
    pub(crate) aggregates: bool,
    /// What everybody starts from; an aggregator does not know it.
    pub(crate) initial: Option<Lineage>,
    /// How long the round has been waited for.
    pub(crate) waited: Duration,
}

impl Judge<'_> {
    /// Judges an announced closed round.
    pub(crate) fn judge(&self, said: Announced<'_>) -> Verdict {
        let Announced {
            author,
            round,
            global,
            ..
        } = said;
        let head = self.head;
        // Nobody goes back behind a closed round.
        if head.chain().any(|id| id == said.id) {
            return Verdict::Old;
        }
        let follows = global.previous == head.closing;
        if let Some(falsehood) = self.bounds_broken(round, global, follows) {
            return Verdict::False(falsehood);
        }
        if follows && (!self.is_parent(global.parent) || self.is_over(round)) {
            return Verdict::Old;
        }
        // What follows the head is good without it, but where something else is odd.
        let backing = OnceCell::new();
        let is_stronger = || self.is_stronger(said, backing.get_or_init(|| self.backing(said)));
        // Votes come before signatures. Else a chain that nobody follows would make all ask for its adverts.
        if !follows && !is_stronger() {
            let may_gain = |backing| self.may_gain(said, backing);
            return if backing.get().is_some_and(may_gain) {
                Verdict::Outvoted(self.forgotten(said))
            } else {
                Verdict::Old
            };
        }
        // The sums of everybody's statistics are no model: only who has the model that they were gathered with can use them.
        if !follows && self.schedule.gathers_statistics_in(round) {
            return Verdict::Old;
        }
        match self.confirm(round, global) {
            Confirmation::False(falsehood) => Verdict::False(falsehood),
            Confirmation::Lacking(members) => Verdict::Unconfirmed(lacking_of(&members, author)),
            Confirmation::Full if !follows => Verdict::Switch,
            Confirmation::Full if self.is_enough(said) => Verdict::Next,
            // Where most have gone on from it, there is nothing else to wait for.
            Confirmation::Full if is_stronger() => Verdict::Next,
            // Nor where it came before its turn, and too few are left to close the round otherwise.
            Confirmation::Full if self.is_the_only_one_left(said) => Verdict::Next,
            Confirmation::Full => Verdict::Unconfirmed(Vec::new()),
        }
    }

    /// Tells whether every member of a closing has signed what it is counted with.
    pub(crate) fn is_confirmed(&self, said: Announced<'_>) -> bool {
        self.confirm(said.round, said.global) == Confirmation::Full
    }

    /// Names the advert of this node that a later closing of another chain counts and that this node does not know.
    ///
    /// Its folder is a backup, or a disk that lost the last moments. Its newest update has its vote, so without that advert it
    /// would stand by a round that it left long ago. In a federation of two nothing would ever outvote it.
    fn forgotten(&self, said: Announced<'_>) -> Vec<Lacking> {
        let is_later = said.round > self.head.round;
        let mut members = said.global.members.iter();
        let own = members.find(|member| member.node == self.me && is_later);
        let unknown = own.filter(|member| self.view.signed(member).is_none());
        let unknown = unknown.map(|member| (member.node, member.advert));
        let unknown: Vec<(NodeId, AdvertId)> = unknown.into_iter().collect();
        lacking_of(&unknown, said.author)
    }

    /// Says which bound this closing breaks. It convicts its author: whoever signs must have known better.
    fn bounds_broken(&self, round: Round, global: &Global, follows: bool) -> Option<String> {
        let members = global.members.len() as u64;
        if members < u64::from(self.spec.fewest_members()) {
            return Some(format!(
                "a round of {members} members, fewer than are needed"
            ));
        }
        if follows && self.head.closing.is_some() && !self.is_parent(global.parent) {
            return Some("another mean than that of the round that it follows".to_owned());
        }
        // Sizes are judged before a byte is fetched: they are what the store reserves, and how long a transfer may take.
        let parts = global.members.iter().map(|member| member.shared.size);
        let most = most_bytes(self.head, round, self.schedule);
        // The sums of all groups are in one mean.
        let sums = self.schedule.most_sums(round);
        let largest = parts.fold(global.mean.size / sums, u64::max);
        let is_too_large = follows && most.is_some_and(|most| largest > most);
        is_too_large.then(|| {
            format!("a mean or a part of {largest} bytes, far more than the mean before it")
        })
    }

    /// Tells whether a round is not after the head's. What follows the head was trained after it.
    fn is_over(&self, round: Round) -> bool {
        self.head.closing.is_some() && round <= self.head.round
    }

    /// Tells whether a round with this parent goes on from the head.
    fn is_parent(&self, parent: Lineage) -> bool {
        let mean = self.head.mean.map(|mean| mean.id);
        // Before the first part comes an aggregator does not know what everybody starts from.
        mean.or(self.initial).is_none_or(|mean| mean == parent)
    }

    /// Holds every member against the advert that it signed.
    fn confirm(&self, round: Round, global: &Global) -> Confirmation {
        let confirmation = self.confirm_members(round, global);
        let said = |node, advert| self.view.word(node, advert);
        if confirmation != Confirmation::Full {
            return confirmation;
        }
        if !self.schedule.masks() {
            let closing = (round, global);
            return certificate::confirm_slices(self.spec, self.schedule, closing, said);
        }
        // Who does not know the roster any more, after a restart, believes those who do.
        match self.chain.sum_for(self.view, global.previous, round) {
            Some(sum) => certificate::confirm_masks(&sum, (round, global), said),
            None => Confirmation::Full,
        }
    }

    /// Holds every member against its update alone.
    fn confirm_members(&self, round: Round, global: &Global) -> Confirmation {
        let signed = |member: &Member| self.view.signed(member);
        certificate::confirm(self.spec, self.schedule, (round, global), signed)
    }

    /// Returns the closing that a proposal leads to, without a mean; `None` if it does not follow this machine's closed round.
    fn next_as_proposed(&self, proposal: &Proposal) -> Option<Global> {
        // The mean is not known yet. One of no bytes breaks no bound of size.
        let mean = BlobRef {
            id: proposal.parent,
            size: 0,
        };
        let closing = proposal.clone().closed(mean, Vec::new());
        let follows = closing.previous == self.head.closing && self.is_parent(closing.parent);
        follows.then_some(closing)
    }

    /// Judges a proposal of whose parts to average in slices: whether all of them have signed so, and follow the same closed
    /// round as this machine.
    pub(crate) fn judge_division(
        &self,
        round: Round,
        author: NodeId,
        proposal: &Proposal,
    ) -> Verdict {
        let Some(closing) = self.next_as_proposed(proposal) else {
            return Verdict::Old;
        };
        if let Some(falsehood) = self.bounds_broken(round, &closing, true) {
            return Verdict::False(falsehood);
        }
        match self.confirm_members(round, &closing) {
            Confirmation::False(falsehood) => Verdict::False(falsehood),
            Confirmation::Lacking(lacking) => Verdict::Unconfirmed(lacking_of(&lacking, author)),
            Confirmation::Full => Verdict::Next,
        }
    }

    /// Judges a proposal of whose masked parts to add up: whether to agree to it now.
    pub(crate) fn judge_proposal(&self, sum: &Sum, author: NodeId, proposal: &Proposal) -> Verdict {
        let round = sum.round();
        let Some(closing) = self.next_as_proposed(proposal) else {
            return Verdict::Old;
        };
        let mut members = closing.members.iter();
        let fits = |member: &Member| sum.admits(member.node, member.shared.id, closing.parent);
        if !members.all(fits) || !matches!(sum.survivors(&closing.members), Some(Ok(_))) {
            return Verdict::False("it proposes parts that cannot be added up".to_owned());
        }
        match self.confirm_members(round, &closing) {
            Confirmation::False(falsehood) => Verdict::False(falsehood),
            Confirmation::Lacking(lacking) => Verdict::Unconfirmed(lacking_of(&lacking, author)),
            // A member agrees once in a round. Having agreed to too few, it could not agree to more.
            Confirmation::Full if self.is_enough_to_add_up(author, round, &closing.members) => {
                Verdict::Next
            }
            Confirmation::Full => Verdict::Unconfirmed(Vec::new()),
        }
    }
}

/// Names the adverts of members that are lacking.
fn lacking_of(adverts: &[(NodeId, AdvertId)], named_by: NodeId) -> Vec<Lacking> {
    let lacking = |(author, advert): &(NodeId, AdvertId)| Lacking {
        advert: *advert,
        author: *author,
        named_by,
    };
    adverts.iter().map(lacking).collect()
}

/// Returns how many bytes a part, a mean or the sum of a group can have at most that follows the head: what is announced is
/// reserved before a byte of it comes. The sums of statistics are as large as they are, also for whoever is rounds behind, and say
/// nothing of the parts that follow them where a federation goes on. Then nothing is known.
pub(crate) fn most_bytes(head: &Head, round: Round, schedule: &Schedule) -> Option<u64> {
    let are_sums = |round| schedule.gathers_statistics_in(round);
    let says = |_: &BlobRef| !are_sums(round) && !are_sums(head.round);
    let mean = head.mean.filter(says)?;
    Some(mean.size.saturating_mul(4).saturating_add(SLACK))
}

/// Returns how many bytes a part can have by what others announced, where no mean says how large parts are: four times what more
/// than a third have announced. Liars are fewer, so one of those is honest.
pub(crate) fn most_by_others(view: &View, n_nodes: u32) -> u64 {
    let sizes = view.nodes().newest_updates();
    let mut sizes: Vec<u64> = sizes
        .filter_map(|update| Some(update.local.shared?.size))
        .collect();
    let third = n_nodes as usize / 3;
    let have = if third < sizes.len() {
        *sizes.select_nth_unstable_by(third, |a, b| b.cmp(a)).1
    } else {
        0
    };
    have.saturating_mul(4).max(UNCOMPARED_BYTES)
}

/// Asks for adverts by name, first those who named them, unless they come by themselves in a moment.
pub(crate) fn ask_for(
    lacking: Vec<Lacking>,
    view: &mut View,
    outbox: &mut Outbox,
    (now, spec, round): (Timestamp, &FederationSpec, Round),
) {
    if lacking.is_empty() {
        return;
    }
    // Gossip may be bringing them.
    let moment = spec.round.grace() / 4;
    outbox.ask(view.take_due(lacking, now, now - moment));
    outbox.set_timer(Timer::Look(round), now + moment);
}

/// Returns the lineage of the head: its mean, or what everybody started from.
pub(crate) fn lineage_of(head: &Head, initial: Lineage) -> Lineage {
    head.mean.map_or(initial, |mean| mean.id)
}

/// Who closes a round first. The aggregator comes before every acting one; those are ordered by a hash with the
/// round and the federation in it, so that another one comes first in each round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// An aggregator by role.
    Aggregator,
    /// A node in its place.
    Acting([u8; 32]),
    /// Who is banned, or did not deliver before: it comes after everybody else.
    Doubtful([u8; 32]),
}

impl Rank {
    /// Returns the rank of a node that acts as aggregator in a round.
    pub(crate) fn acting(seed: DrawSeed, round: Round, node: NodeId) -> Self {
        Self::Acting(draw(b"fednode acting aggregator 1", seed, round, node))
    }

    /// Returns the rank of a node that is doubtful.
    pub(crate) fn doubtful(seed: DrawSeed, round: Round, node: NodeId) -> Self {
        Self::Doubtful(draw(b"fednode acting aggregator 1", seed, round, node))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fednode_core::{
        Accepted, Advert, Averaging, BlobId, Body, ClosingId, FederationId, Local, Role, Rule,
        Sequence, Timestamp, Weighting,
    };

    use super::*;
    use crate::quorum::ATTEMPTS;
    use crate::view::Recorded;

    const AGGREGATOR: u8 = 200;
    const LIAR: u8 = 9;

    fn node(n: u8) -> NodeId {
        NodeId::from_bytes([n; 32])
    }

    fn blob(n: u8) -> BlobRef {
        BlobRef {
            id: BlobId::from_bytes([n; 32]),
            size: 1,
        }
    }

    /// The name of a closing that a mean stands for.
    fn closing(mean: u8) -> ClosingId {
        ClosingId::from_bytes([mean; 32])
    }

    fn update_id(n: u8, round: u32, follows: u8) -> AdvertId {
        AdvertId::of(&[n, round as u8, follows])
    }

    /// What a node said of a round: what it trained, from which mean.
    fn update(n: u8, round: u32, follows: u8, n_samples: u32) -> Arc<Accepted> {
        let local = Local {
            shared: Some(blob(100 + n)),
            follows: Some(closing(follows)),
            ..Local::new(blob(follows).id, n_samples)
        };
        let advert = Advert {
            federation: FederationId::from_bytes([0; 32]),
            author: node(n),
            sequence: Sequence {
                incarnation: 1,
                counter: u64::from(round),
            },
            round: Round(round),
            issued_at: Timestamp(0),
            expires_at: Timestamp(0),
            body: Body::Local(local),
        };
        let id = update_id(n, round, follows);
        Arc::new(Accepted { id, advert })
    }

    /// A closing of a round that counts these nodes, as they signed it.
    fn closed(round: u32, members: &[u8], follows: u8, weight: f64) -> Global {
        let member = |n: &u8| Member {
            node: node(*n),
            shared: blob(100 + n),
            weight,
            advert: update_id(*n, round, follows),
        };
        Global {
            members: members.iter().map(member).collect(),
            mean: blob(50),
            parent: blob(follows).id,
            previous: Some(closing(follows)),
            unmasked: Vec::new(),
            slices: Vec::new(),
        }
    }

    /// A machine that follows round 3, which counted nine nodes. It has heard their updates of round 4.
    struct Machine {
        spec: FederationSpec,
        view: View,
        head: Head,
        waited: Duration,
        /// Who says what is judged.
        author: NodeId,
    }

    impl Machine {
        fn new(weighting: Weighting) -> Self {
            let mut spec = FederationSpec::default();
            let rule = Rule::default();
            spec.exchange.averaging = Some(Averaging { weighting, rule });
            let head = Head {
                round: Round(3),
                mean: Some(blob(7)),
                parent: Some(blob(6).id),
                closing: Some(closing(7)),
                ancestors: vec![closing(6), closing(5)],
                counted: (1..=9).map(node).collect(),
            };
            let mut machine = Self {
                spec,
                view: View::new(3),
                head,
                waited: Duration::ZERO,
                author: node(AGGREGATOR),
            };
            machine.view.connect(node(AGGREGATOR), Role::Aggregator);
            for n in 1..=9 {
                machine.view.connect(node(n), Role::Node);
                machine.hear(&update(n, 4, 7, 10));
            }
            machine
        }

        fn hear(&mut self, advert: &Arc<Accepted>) {
            assert_eq!(self.view.record(advert), Recorded::News);
        }

        fn verdict(&self, round: u32, global: &Global) -> Verdict {
            let schedule = Schedule::of(&self.spec);
            let chain = Follower::new(self.head.clone(), None);
            let judge = Judge {
                spec: &self.spec,
                schedule: &schedule,
                broadcast_set: BroadcastSet::of(&self.spec),
                view: &self.view,
                head: &self.head,
                chain: &chain,
                me: node(1),
                trains: true,
                aggregates: false,
                initial: Some(blob(0).id),
                waited: self.waited,
            };
            judge.judge(Announced {
                author: self.author,
                round: Round(round),
                advert: AdvertId::of(b"announcement"),
                id: global.id(Round(round)),
                global: &Arc::new(global.clone()),
            })
        }
    }

    const ALL: [u8; 9] = [1, 2, 3, 4, 5, 6, 7, 8, 9];

    fn is_false(verdict: &Verdict) -> bool {
        matches!(verdict, Verdict::False(_))
    }

    #[test]
    fn a_closing_of_what_a_quorum_signed_is_followed() {
        let machine = Machine::new(Weighting::Uniform);
        assert_eq!(machine.verdict(4, &closed(4, &ALL, 7, 1.0)), Verdict::Next);
        assert_eq!(
            machine.verdict(4, &closed(4, &ALL[1..], 7, 1.0)),
            Verdict::Next
        );
        // Nobody follows it, and all follow the head.
        let again = closed(3, &ALL, 6, 1.0);
        assert_eq!(
            machine.verdict(3, &again),
            Verdict::Old,
            "round 3 closed once more"
        );
    }

    #[test]
    fn not_even_one_stranger_is_counted() {
        let machine = Machine::new(Weighting::Samples);
        let mut ghost = closed(4, &ALL, 7, 10.0);
        let stranger = Member {
            node: node(99),
            weight: 1e300,
            advert: update_id(99, 4, 7),
            ..ghost.members[0]
        };
        ghost.members.push(stranger);
        let lacking = Lacking {
            advert: update_id(99, 4, 7),
            author: node(99),
            named_by: node(AGGREGATOR),
        };
        assert_eq!(
            machine.verdict(4, &ghost),
            Verdict::Unconfirmed(vec![lacking])
        );
    }

    #[test]
    fn two_of_nine_close_no_round() {
        let mut machine = Machine::new(Weighting::Uniform);
        let two = closed(4, &[1, LIAR], 7, 1.0);
        assert_eq!(machine.verdict(4, &two), Verdict::Unconfirmed(vec![]));
        machine.waited = machine.spec.round.grace();
        assert_eq!(machine.verdict(4, &two), Verdict::Unconfirmed(vec![]));
        machine.waited = machine.spec.round.deadline();
        assert_eq!(
            machine.verdict(4, &two),
            Verdict::Unconfirmed(vec![]),
            "nine were heard"
        );
        machine.view = View::new(3);
        for n in [1, LIAR] {
            machine.hear(&update(n, 4, 7, 10));
        }
        assert_eq!(
            machine.verdict(4, &two),
            Verdict::Next,
            "nobody else has said anything"
        );
    }

    #[test]
    fn who_is_gone_is_not_expected_after_the_grace_time() {
        let mut machine = Machine::new(Weighting::Uniform);
        machine.head.counted = (1..=20).map(node).collect();
        let nine = closed(4, &ALL, 7, 1.0);
        assert_eq!(machine.verdict(4, &nine), Verdict::Unconfirmed(vec![]));
        machine.waited = machine.spec.round.grace();
        assert_eq!(machine.verdict(4, &nine), Verdict::Next);
    }

    /// An aggregator and a node may close a round at one moment. Others may see the other closing first, and go on from it.
    #[test]
    fn another_closing_of_the_newest_round_may_gain_votes_until_all_are_cast() {
        let mut machine = Machine::new(Weighting::Uniform);
        let again = closed(3, &ALL[..5], 6, 1.0);
        machine.view = View::new(3);
        for n in 1..=9 {
            machine.view.connect(node(n), Role::Node);
            machine.hear(&update(n, 3, 6, 10));
        }
        assert_eq!(
            machine.verdict(3, &again),
            Verdict::Outvoted(vec![]),
            "no vote yet"
        );
        for n in 1..=8 {
            machine.hear(&update(n, 4, 7, 10));
        }
        assert_eq!(
            machine.verdict(3, &again),
            Verdict::Outvoted(vec![]),
            "one vote is open"
        );
        machine.hear(&update(9, 4, 7, 10));
        assert_eq!(
            machine.verdict(3, &again),
            Verdict::Old,
            "all follow the head"
        );
    }

    #[test]
    fn nobody_is_led_back_by_a_round_that_is_over() {
        let mut machine = Machine::new(Weighting::Uniform);
        // Updates of round 3, which everybody has heard of nodes 1 and 9, close it a second time.
        for n in [1, LIAR] {
            machine.view.record(&update(n, 3, 6, 10));
        }
        let old = closed(3, &[1, LIAR], 6, 1.0);
        assert_eq!(
            machine.verdict(3, &old),
            Verdict::Old,
            "another closing of the round"
        );
        // The head is two rounds further, on another chain: nobody's newest update stands behind the old one.
        machine.head.ancestors = vec![closing(66), closing(65)];
        assert_eq!(
            machine.verdict(3, &old),
            Verdict::Old,
            "updates that are over count for nobody"
        );
    }

    #[test]
    fn one_or_two_cannot_say_that_all_rounds_are_done() {
        let mut machine = Machine::new(Weighting::Uniform);
        for n in [8, LIAR] {
            machine.hear(&update(n, 99, 60, 10));
        }
        let end = closed(99, &[8, LIAR], 60, 1.0);
        assert_eq!(
            machine.verdict(99, &end),
            Verdict::Outvoted(vec![]),
            "seven stand behind the head"
        );
        let ours = closed(99, &ALL, 7, 1.0);
        assert!(matches!(
            machine.verdict(99, &ours),
            Verdict::Unconfirmed(_)
        ));
    }

    #[test]
    fn a_chain_with_more_nodes_behind_it_is_followed() {
        let mut machine = Machine::new(Weighting::Uniform);
        for n in 4..=9 {
            machine.hear(&update(n, 5, 60, 10));
        }
        let theirs = closed(5, &ALL[3..], 60, 1.0);
        assert_eq!(machine.verdict(5, &theirs), Verdict::Switch);
    }

    /// Two nodes closed rounds 4 and 5. One was then restored from a backup of round 3, and trained round 4 again.
    #[test]
    fn who_was_restored_from_a_backup_goes_over_to_the_chain_that_it_has_forgotten() {
        let mut machine = Machine::new(Weighting::Uniform);
        machine.view = View::new(3);
        machine.spec.nodes = 2;
        machine.head.counted = vec![node(1), node(2)];
        machine.view.connect(node(2), Role::Node);
        machine.author = node(2);
        machine.waited = machine.spec.round.grace() * 2;
        machine.hear(&update(1, 4, 7, 10));
        machine.hear(&update(2, 5, 8, 10));
        let theirs = closed(5, &[1, 2], 8, 1.0);
        let own = update(1, 5, 8, 10);
        let lacking = Lacking {
            advert: own.id,
            author: node(1),
            named_by: node(2),
        };
        let asked = machine.verdict(5, &theirs);
        assert_eq!(asked, Verdict::Outvoted(vec![lacking]));
        machine.hear(&own);
        assert_eq!(machine.verdict(5, &theirs), Verdict::Switch);
    }

    #[test]
    fn a_closer_is_not_convicted_by_what_a_member_signed() {
        let machine = Machine::new(Weighting::Uniform);
        let mut honest = closed(4, &ALL, 7, 1.0);
        // What member 4 told the closer, under the same number.
        (honest.members[3].shared, honest.members[3].advert) = (blob(200), AdvertId::of(b"other"));
        let Verdict::Unconfirmed(lacking) = machine.verdict(4, &honest) else {
            panic!("it is judged without the advert that it names");
        };
        assert_eq!(lacking.len(), 1);
    }

    #[test]
    fn what_contradicts_the_adverts_that_it_names_is_false() {
        let machine = Machine::new(Weighting::Samples);
        let breaks = |change: &dyn Fn(&mut Global)| {
            let mut global = closed(4, &ALL, 7, 10.0);
            change(&mut global);
            machine.verdict(4, &global)
        };
        assert_eq!(breaks(&|_| ()), Verdict::Next);
        assert!(is_false(&breaks(
            &|global| global.members[2].shared = blob(200)
        )));
        assert!(is_false(&breaks(&|global| global.members[2].weight = 11.0)));
        assert!(is_false(&breaks(&|global| global.members.truncate(1))));
        assert!(
            is_false(&breaks(&|global| global.mean.size = 1 << 20)),
            "far too large"
        );
        assert!(
            is_false(&breaks(&|global| global.parent = blob(5).id)),
            "another mean"
        );
        let other = |global: &mut Global| global.members[2].advert = update_id(4, 4, 7);
        let verdict = breaks(&other);
        assert!(
            matches!(verdict, Verdict::Unconfirmed(_)),
            "another node's advert"
        );
    }

    #[test]
    fn who_closes_a_round_out_of_turn_is_not_followed() {
        let mut machine = Machine::new(Weighting::Uniform);
        let all = closed(4, &ALL, 7, 1.0);
        let seed = machine.spec.draw_seed();
        let mut line = ALL.map(node);
        line.sort_by_key(|node| Rank::acting(seed, Round(4), *node));
        machine.author = line[0];
        let is_followed = |machine: &Machine| machine.verdict(4, &all) == Verdict::Next;
        assert!(!is_followed(&machine), "the aggregator is here");
        machine.waited = machine.spec.round.deadline();
        assert!(is_followed(&machine), "and silent");
        machine.waited = Duration::ZERO;
        machine.view.disconnect(node(AGGREGATOR));
        assert!(is_followed(&machine), "the first in line");
        machine.author = line[2];
        let grace = machine.spec.round.grace();
        for (graces, follows) in [(0, false), (1, false), (2, true)] {
            machine.waited = grace * graces;
            assert_eq!(is_followed(&machine), follows, "the third after {graces}");
        }
    }

    /// An aggregator comes back. One node sees it only after it has closed the round itself and gone on.
    #[test]
    fn a_closing_out_of_turn_that_half_have_gone_on_from_is_followed_after_the_grace_time() {
        for (n_nodes, gone_on, is_followed) in
            [(2, 1, true), (4, 1, false), (4, 2, true), (9, 4, false)]
        {
            let mut machine = Machine::new(Weighting::Uniform);
            let all = &ALL[..n_nodes];
            machine.view = View::new(3);
            machine.view.connect(node(AGGREGATOR), Role::Aggregator);
            machine.head.counted = all.iter().map(|n| node(*n)).collect();
            for n in all {
                machine.view.connect(node(*n), Role::Node);
                machine.hear(&update(*n, 4, 7, 10));
            }
            let theirs = closed(4, all, 7, 1.0);
            for n in &all[n_nodes - gone_on..] {
                let mut next = Accepted::clone(&update(*n, 5, 50, 10));
                let Body::Local(local) = &mut next.advert.body else {
                    unreachable!("it is an update");
                };
                local.follows = Some(theirs.id(Round(4)));
                machine.hear(&Arc::new(next));
            }
            machine.author = node(ALL[n_nodes - 1]);
            let at_once = machine.verdict(4, &theirs);
            assert_eq!(
                at_once,
                Verdict::Unconfirmed(vec![]),
                "the aggregator may close it"
            );
            machine.waited = machine.spec.round.grace();
            let later = machine.verdict(4, &theirs) == Verdict::Next;
            assert_eq!(later, is_followed, "{gone_on} of {n_nodes}");
            machine.view.doubt(machine.author);
            assert!(
                machine.verdict(4, &theirs) != Verdict::Next,
                "its author did not deliver before"
            );
        }
    }

    /// One of two closed a round, was revoked before the other followed, and came back with another key and with what it had.
    #[test]
    fn what_a_revoked_member_closed_is_followed_once_it_has_gone_on_from_it_with_another_key() {
        let theirs = closed(4, &[1, 2], 7, 1.0);
        let verdict = |goes_on_from: ClosingId, graces: u32| {
            let mut machine = Machine::new(Weighting::Uniform);
            machine.view = View::new(3);
            machine.head.counted = vec![node(1), node(2)];
            for n in [1, 2, 3] {
                machine.view.connect(node(n), Role::Node);
            }
            machine.hear(&update(1, 4, 7, 10));
            machine.hear(&update(2, 4, 7, 10));
            machine.view.ban(node(2));
            let mut again = Accepted::clone(&update(3, 5, 50, 10));
            let Body::Local(local) = &mut again.advert.body else {
                unreachable!("it is an update");
            };
            local.follows = Some(goes_on_from);
            machine.hear(&Arc::new(again));
            machine.author = node(2);
            machine.waited = machine.spec.round.grace() * graces;
            machine.verdict(4, &theirs)
        };
        let closing_of_4 = theirs.id(Round(4));
        assert_eq!(verdict(closing_of_4, ATTEMPTS), Verdict::Next);
        let waits = Verdict::Unconfirmed(vec![]);
        let is_not_in_turn = "whose word counts no more comes last";
        assert_eq!(
            verdict(closing_of_4, ATTEMPTS - 1),
            waits,
            "{is_not_in_turn}"
        );
        let follows_another = "it has gone on from another closing";
        assert_eq!(verdict(closing(60), ATTEMPTS), waits, "{follows_another}");
    }

    #[test]
    fn samples_that_nobody_has_weigh_three_medians() {
        let mut machine = Machine::new(Weighting::Samples);
        machine.view = View::new(3);
        machine.view.connect(node(AGGREGATOR), Role::Aggregator);
        for n in 1..=9 {
            machine.view.connect(node(n), Role::Node);
            let n_samples = if n == LIAR { u32::MAX } else { 10 };
            machine.hear(&update(n, 4, 7, n_samples));
        }
        let mut global = closed(4, &ALL, 7, 10.0);
        global.members[8].weight = f64::from(u32::MAX);
        assert!(is_false(&machine.verdict(4, &global)));
        global.members[8].weight = 30.0;
        assert_eq!(machine.verdict(4, &global), Verdict::Next);
    }

    #[test]
    fn sums_of_statistics_are_weighted_by_samples() {
        let mut machine = Machine::new(Weighting::Uniform);
        (machine.spec.rounds, machine.spec.statistics.enabled) = (4, true);
        assert_eq!(
            machine.verdict(4, &closed(4, &ALL, 7, 10.0)),
            Verdict::Next,
            "weighted by the samples of each, whatever the algorithm says"
        );
        assert!(is_false(&machine.verdict(4, &closed(4, &ALL, 7, 1.0))));
        for n in 1..=9 {
            machine.hear(&update(n, 5, 60, 10));
        }
        let mut others = closed(4, &ALL, 60, 10.0);
        others.mean.size = 1 << 20;
        assert_eq!(
            machine.verdict(4, &others),
            Verdict::Old,
            "the sums of another chain's features, however large"
        );
    }

    #[test]
    fn the_aggregator_outranks_everybody() {
        let seed = DrawSeed::of(1);
        let acting = |n| Rank::acting(seed, Round(1), node(n));
        assert!(Rank::Aggregator < acting(1).min(acting(2)));
        assert_ne!(acting(1) < acting(2), acting(2) < acting(1));
    }
}
