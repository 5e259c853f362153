//! Quorum: whether a closing counts enough of those who are there.
//!
//! Any two updates have a mean. If the first two that are out closed a round, one member could close every round with
//! itself and a single other. So a closing that follows the head must count a quorum of the members of the closing
//! before it, and of those who were only late for that one. Whoever has left, was banned or is gone is not expected any
//! more. Each machine judges that for itself, by its own clock and its own connections, so nobody can vote others out.
//!
//! ```text
//! waiting ──grace time──► who is not there is not expected, and  ──deadline──► only those are expected
//!                         more than half will do for an aggregator             whose update was heard
//! ```
//!
//! A closing comes in turn: from an aggregator, or from the next in line. One that came before its turn is followed after the
//! grace time where half have gone on from it, since the rest are too few to close the round otherwise.
//!
//! A closing may name a key that counts no more, because its owner came back with another one. The owner has signed that it goes on from
//! that closing. So as many nodes that go on from it are counted as it names that are banned.
//!
//! Whoever is here and lets a round wait until its deadline, twice, is not expected either, until it is counted in others.
//!
//! Whoever publishes an update whose part cannot be had or cannot be counted, or closes a round whose mean cannot be had, is
//! not expected either until that changes. A machine finds out about parts when it closes the round itself. So where one of
//! three has a part that is of no use, the two others close the round one after the other, and each follows the first.

use std::collections::BTreeSet;
use std::time::Duration;

use fednode_core::spec::RoundSpec;
use fednode_core::{Local, Member, NodeId, Round};

use crate::chain::{Judge, Rank};
use crate::cohort::Cohort;
use crate::follower::Announced;
use crate::view::Update;

/// How many nodes act one after the other before a round is given up.
pub(crate) const ATTEMPTS: u32 = 4;

/// How long a machine has waited for the round to be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Patience {
    /// Less than the grace time.
    Waiting,
    /// At least the grace time.
    GraceOver,
    /// The deadline is over: a small round is better than none, if nobody is left out.
    DeadlineOver,
}

impl Patience {
    /// Returns how patient a machine is after it has waited for so long.
    pub(crate) fn after(waited: Duration, times: &RoundSpec) -> Self {
        match () {
            () if waited >= times.deadline() => Self::DeadlineOver,
            () if waited >= times.grace() => Self::GraceOver,
            () => Self::Waiting,
        }
    }
}

impl Judge<'_> {
    /// Returns how patient the machine is with the round.
    pub(crate) fn patience(&self) -> Patience {
        Patience::after(self.waited, &self.spec.round)
    }

    /// Tells whether a closing that follows the head counts enough members to be followed, and comes in its turn.
    pub(crate) fn is_enough(&self, said: Announced<'_>) -> bool {
        self.is_in_turn(said.author, said.round) && self.is_large_enough(said)
    }

    /// Tells whether a proposal of whose parts to add up names enough members, and comes in its turn.
    pub(crate) fn is_enough_to_add_up(
        &self,
        author: NodeId,
        round: Round,
        members: &[Member],
    ) -> bool {
        self.is_in_turn(author, round) && self.are_enough(author, round, &names(members))
    }

    /// Tells whether nobody else can close a round any more, though this closing came before its turn: whoever made it had not
    /// seen the aggregator yet.
    ///
    /// Half have gone on from it, so the rest are no majority that an aggregator could close the round with. What it had closed
    /// before they went on has had the grace time to come.
    pub(crate) fn is_the_only_one_left(&self, said: Announced<'_>) -> bool {
        self.patience() >= Patience::GraceOver
            && !self.view.is_doubtful(said.author)
            && self.backing(said).have_half_gone_on()
            && self.is_large_enough(said)
    }

    /// Tells whether somebody closes a round not before its turn. Of two who closed it at once some would follow the one
    /// and some the other.
    fn is_in_turn(&self, author: NodeId, round: Round) -> bool {
        let view = self.view;
        let is_good = |node| node == self.me || !view.is_doubtful(node);
        if author == self.me || view.is_aggregator(author) && is_good(author) {
            return true;
        }
        // Whoever judges may be the aggregator itself.
        if self.aggregates || view.company().has_aggregator() {
            // Until then the aggregator may still wait for stragglers.
            return self.patience() == Patience::DeadlineOver;
        }
        let seed = self.spec.draw_seed();
        let rank = |node| Rank::acting(seed, round, node);
        let follows = |local: &Local| local.follows == self.head.closing;
        let line = view.nodes().locals(round);
        let before = line.filter(|(node, local)| follows(local) && rank(*node) < rank(author));
        // The turn of a doubted node is the last one, so that it keeps nobody else from closing.
        let places = if is_good(author) {
            before.count()
        } else {
            usize::MAX
        };
        let places = u32::try_from(places).unwrap_or(u32::MAX).min(ATTEMPTS);
        self.waited >= self.spec.round.grace() * places
    }

    fn is_large_enough(&self, said: Announced<'_>) -> bool {
        let mut nodes = names(&said.global.members);
        if self.are_enough(said.author, said.round, &nodes) {
            return true;
        }
        let banned = |node: &&NodeId| self.view.is_banned(**node);
        let banned = nodes.iter().filter(banned).count();
        let stands_in = |update: &Update<'_>| {
            let (node, view) = (update.node, self.view);
            let is_here = view.is_connected(node) && !view.is_doubtful(node);
            update.local.follows == Some(said.id) && is_here && !nodes.contains(&node)
        };
        let others = self.view.nodes().newest_updates().filter(stands_in);
        let others: Vec<NodeId> = others.map(|update| update.node).take(banned).collect();
        nodes.extend(others);
        self.are_enough(said.author, said.round, &nodes)
    }

    fn are_enough(&self, author: NodeId, round: Round, nodes: &BTreeSet<NodeId>) -> bool {
        let nodes = nodes.iter().copied();
        let is_aggregator = self.view.is_aggregator(author) && !self.view.is_banned(author);
        // An aggregator knows best who can be reached, but a member's closing must not profit from that.
        if is_aggregator && self.patience() >= Patience::GraceOver {
            self.is_most_of(nodes, round)
        } else {
            self.is_quorum_of(nodes, round)
        }
    }

    /// Tells whether these nodes are a quorum of those who are expected.
    pub(crate) fn is_quorum_of(
        &self,
        nodes: impl IntoIterator<Item = NodeId>,
        round: Round,
    ) -> bool {
        let (counted, expected) = (self.count(nodes), self.expected(round));
        let is_late = self.patience() == Patience::DeadlineOver;
        // Who is here and follows another closing may come back: a small part does not go on without the others.
        counted >= self.spec.round.quorum_of(expected).min(expected)
            && (!is_late || 2 * counted > self.heard(round, |_| true))
    }

    fn is_most_of(&self, nodes: impl IntoIterator<Item = NodeId>, round: Round) -> bool {
        2 * self.count(nodes) > self.expected(round)
    }

    /// Counts those of these nodes who can be expected.
    fn count(&self, nodes: impl IntoIterator<Item = NodeId>) -> usize {
        let is_late = self.patience() == Patience::DeadlineOver;
        let is_known = |node| {
            is_late || self.head.counted.is_empty() || self.head.counts(node) || self.keeps_up(node)
        };
        // With liars that are banned by now a closing must not reach what it lacks in others.
        let is_waited_for = |node| is_late || self.is_waited_for(node);
        let counts =
            |node: &NodeId| is_known(*node) && is_waited_for(*node) && !self.view.is_banned(*node);
        nodes.into_iter().filter(counts).count()
    }

    /// Counts those whose part in a round is expected: the members of the round before, or all who are here where those
    /// say nothing of this round.
    fn expected(&self, round: Round) -> usize {
        if self.patience() == Patience::DeadlineOver {
            return self.heard(round, |local| local.follows == self.head.closing);
        }
        if !self.head.counted.is_empty() {
            let late = self.view.nodes().newest_updates().map(|update| update.node);
            let late = late.filter(|node| !self.head.counts(*node) && self.keeps_up(*node));
            let expected = self.head.counted.iter().copied().chain(late);
            let is_one = |node: &NodeId| self.is_waited_for(*node) && self.is_there(*node, round);
            return expected.filter(is_one).count();
        }
        let cohort = Cohort::draw(self.spec, self.schedule, round, self.view.nodes().known());
        let trains = |node| self.broadcast_set.contains(node, round) && cohort.contains(node);
        let counts = |node: &NodeId| trains(*node) && !self.view.is_doubtful(*node);
        let others = self.view.company().neighbours().filter(counts).count();
        let trainees = others + usize::from(self.trains && trains(self.me));
        trainees.min(self.spec.surely_trained())
    }

    /// Counts those whose update of a round was heard, of the updates that are meant.
    fn heard(&self, round: Round, is_meant: impl Fn(&Local) -> bool) -> usize {
        let heard = self.view.nodes().locals(round);
        let heard = heard.filter(|(node, local)| {
            let is_one = self.broadcast_set.contains(*node, round);
            // Who publishes no part cannot be counted, so it must not make the others too few.
            is_one && local.shared.is_some() && is_meant(local) && !self.view.is_doubtful(*node)
        });
        heard.count()
    }

    /// Tells whether a node that was not counted in the newest round was only late: its update was of that round, or of the
    /// one before.
    fn keeps_up(&self, node: NodeId) -> bool {
        let newest = self.view.nodes().newest_local(node);
        newest
            .is_some_and(|(round, local)| local.shared.is_some() && round.next() >= self.head.round)
    }

    /// Tells whether a node has not held up too many rounds. This machine waits for itself.
    fn is_waited_for(&self, node: NodeId) -> bool {
        node == self.me || self.view.is_waited_for(node, self.spec)
    }

    /// Tells whether a member of the round before can still be expected to take part in this one.
    fn is_there(&self, node: NodeId, round: Round) -> bool {
        let view = self.view;
        if node == self.me {
            // Its own part may be of no use beside the others'.
            return !view.is_doubtful(node);
        }
        if view.has_left(node) || view.is_lost(node) || view.is_doubtful(node) {
            return false;
        }
        // Not everybody is connected with everybody. Who is not, and says nothing, is gone after the grace time.
        let speaks = view.is_connected(node) || view.nodes().local(node, round).is_some();
        speaks || self.patience() == Patience::Waiting
    }
}

fn names(members: &[Member]) -> BTreeSet<NodeId> {
    members.iter().map(|member| member.node).collect()
}
