//! Which closed round to follow.
//!
//! Closed rounds form a chain: each names the mean it follows (`parent`) and how many members were counted so far
//! (`history`). A node follows the chain with the most history; of two closings of one round (the aggregator's and an
//! acting one's, or two acting ones') the lower rank wins until the node has moved on. History cannot be invented: a
//! majority of the members must have signed, each in an advert of its own, that it trained what it is counted with.
//! Each must also have signed that it trained from the mean that is followed, for that round or a later one. So nobody
//! can count members that are not there, or say that all rounds are done. On our own chain the history must be ours
//! plus the members, on another no more than so many rounds can have counted.

use fednode_core::draw::{DrawSeed, draw};
use fednode_core::{FederationSpec, Global, Lineage, MAX_MEMBERS, NodeId, Round, Schedule};

use crate::state::Head;
use crate::view::View;

/// Bytes that any part may have, however small the mean.
const SLACK: u64 = 64 << 10;

/// What to do with an announced closed round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It follows our head.
    Next,
    /// Another chain with more history: follow it.
    Switch,
    /// Nothing new.
    Old,
    /// Perhaps good, but not enough of its members have confirmed it yet.
    Unconfirmed,
    /// It is false by what its own members signed.
    False(String),
}

/// Judges an announced closed round.
pub(crate) fn judge(
    head: &Head,
    initial: Lineage,
    round: Round,
    global: &Global,
    view: &View,
    spec: &FederationSpec,
    schedule: &Schedule,
) -> Verdict {
    let is_ours = head.mean.is_some_and(|mean| mean.id == global.mean.id);
    // Another closing of a round that this node has already followed comes too late, whoever signed it.
    let is_sibling = head.parent == Some(global.parent);
    // A round in which nothing was learned has the mean of the one before, and the next one has its parent.
    let is_later = round > head.round;
    let stands_still = head.mean.map(|mean| mean.id) == head.parent;
    let is_done = is_ours && !is_later || is_sibling && !(stands_still && is_later);
    if is_done || global.history <= head.history {
        return Verdict::Old;
    }
    let follows = global.parent == lineage_of(head, initial);
    let falsehood = bounds_broken(head, round, global, spec, schedule)
        .or_else(|| contradiction(round, global, view, spec, schedule))
        .or_else(|| history_broken(head, global).filter(|_| follows));
    if let Some(falsehood) = falsehood {
        return Verdict::False(falsehood);
    }
    // The sums of everybody's statistics are no model: only who has the model that they were gathered with can use them.
    if !follows && schedule.gathers_statistics_in(round) {
        return Verdict::Old;
    }
    let is_confirmed = 2 * view.confirmed(round, global) > global.members.len();
    match (is_confirmed, follows) {
        (false, _) => Verdict::Unconfirmed,
        (true, true) => Verdict::Next,
        (true, false) => Verdict::Switch,
    }
}

/// Says which bound of any closed round this one breaks. It convicts its author: whoever signs must have known better.
fn bounds_broken(
    head: &Head,
    round: Round,
    global: &Global,
    spec: &FederationSpec,
    schedule: &Schedule,
) -> Option<String> {
    let members = global.members.len() as u64;
    if members < u64::from(spec.fewest_members()) {
        return Some(format!(
            "a round of {members} members, fewer than are needed"
        ));
    }
    // No more than MAX_MEMBERS are counted in a round, so history has a ceiling that nobody can talk away.
    if global.history > u64::from(round.0).saturating_mul(MAX_MEMBERS as u64) {
        return Some(format!(
            "a history of {}, more than {round} rounds can have counted",
            global.history
        ));
    }
    // The size is judged before a byte is fetched: it is what the store reserves.
    let is_too_large = global.mean.size > most_bytes(head, round, schedule);
    is_too_large.then(|| {
        format!(
            "a mean of {} bytes, far more than the one before it",
            global.mean.size
        )
    })
}

/// Says which member is counted otherwise than by its own advert.
fn contradiction(
    round: Round,
    global: &Global,
    view: &View,
    spec: &FederationSpec,
    schedule: &Schedule,
) -> Option<String> {
    let weighting = schedule.weighting(round, &spec.exchange);
    let node = view.contradiction(round, global, weighting)?;
    Some(format!(
        "it counts {} otherwise than that node signed",
        node.short()
    ))
}

/// Says how a round that follows our head counts wrong: it must count on from our history. Of another chain only the
/// ceiling is known.
fn history_broken(head: &Head, global: &Global) -> Option<String> {
    let added = head.history + global.members.len() as u64;
    (global.history != added)
        .then(|| format!("a history of {} where {added} were counted", global.history))
}

/// Returns how many bytes a part or a mean can have at most that follows the head: what is announced is reserved before
/// a byte of it comes. The sums of statistics are as large as they are, also for whoever is rounds behind.
pub(crate) fn most_bytes(head: &Head, round: Round, schedule: &Schedule) -> u64 {
    match head.mean {
        Some(mean) if !schedule.gathers_statistics_in(round) => {
            mean.size.saturating_mul(4).saturating_add(SLACK)
        }
        Some(_) | None => u64::MAX,
    }
}

/// Returns the lineage of the head: its mean, or what everybody started from.
pub(crate) fn lineage_of(head: &Head, initial: Lineage) -> Lineage {
    head.mean.map_or(initial, |mean| mean.id)
}

/// Who closes a round first. The aggregator comes before every acting one; those are ordered by a hash that nobody
/// can choose, because the round and the federation are in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// An aggregator by role.
    Aggregator,
    /// A node in its place.
    Acting([u8; 32]),
}

impl Rank {
    /// Returns the rank of a node that acts as aggregator in a round.
    pub(crate) fn acting(seed: DrawSeed, round: Round, node: NodeId) -> Self {
        Self::Acting(draw(b"fednode acting aggregator 1", seed, round, node))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fednode_core::{
        Advert, Averaging, BlobId, BlobRef, Body, FederationId, Local, Member, Rule, Sequence,
        Timestamp, Weighting,
    };

    use super::*;

    fn blob(n: u8) -> BlobRef {
        BlobRef {
            id: BlobId::from_bytes([n; 32]),
            size: 1,
        }
    }

    fn global(parent: u8, members: u8, history: u64) -> Global {
        let member = |n| Member {
            node: NodeId::from_bytes([n; 32]),
            shared: blob(100 + n),
            weight: 1.0,
        };
        let members = (0..members).map(member).collect();
        Global {
            members,
            mean: blob(50),
            parent: blob(parent).id,
            history,
        }
    }

    /// What a member said of round 4: what it trained, from what.
    fn update(n: u8, parent: u8) -> Arc<Advert> {
        let local = Local {
            shared: Some(blob(100 + n)),
            ..Local::new(blob(parent).id, 10)
        };
        Arc::new(Advert {
            federation: FederationId::from_bytes([0; 32]),
            author: NodeId::from_bytes([n; 32]),
            sequence: Sequence {
                incarnation: 1,
                counter: 0,
            },
            round: Round(4),
            issued_at: Timestamp(0),
            expires_at: Timestamp(0),
            body: Body::Local(local),
        })
    }

    /// Round 3 is followed; six nodes have said what they trained in round 4 from its mean.
    fn known() -> (Head, View) {
        let head = Head {
            round: Round(3),
            mean: Some(blob(7)),
            parent: Some(blob(6).id),
            history: 30,
        };
        let mut view = View::new(2);
        (1..=6).for_each(|n| assert!(view.record(&update(n, 7))));
        (head, view)
    }

    /// Judges a round that follows `known`, under a spec.
    fn verdict(head: &Head, spec: &FederationSpec, round: u32, global: &Global) -> Verdict {
        let (initial, schedule) = (blob(0).id, Schedule::of(spec));
        let (_, view) = known();
        judge(head, initial, Round(round), global, &view, spec, &schedule)
    }

    #[test]
    fn follows_its_own_chain_and_refuses_invented_history() {
        let ((head, _), spec) = (known(), FederationSpec::default());
        let judge_in = |round, global| verdict(&head, &spec, round, &global);
        let judge = |global| judge_in(4, global);
        let is_false = |global| matches!(judge(global), Verdict::False(_));
        assert_eq!(judge(global(7, 5, 35)), Verdict::Next);
        assert!(is_false(global(7, 5, 36)));
        assert!(is_false(global(7, 1, 31)), "too few members");
        assert_eq!(judge(global(5, 5, 30)), Verdict::Old);
        assert_eq!(
            judge(global(6, 6, 31)),
            Verdict::Old,
            "the round that was followed is closed a second time"
        );
        assert_eq!(
            judge(global(5, 5, 1_000)),
            Verdict::Unconfirmed,
            "nobody confirms another chain"
        );
        assert_eq!(
            judge_in(99, global(7, 5, 35)),
            Verdict::Unconfirmed,
            "nor that all rounds are done"
        );
        assert!(is_false(global(5, 5, u64::MAX)), "not in four rounds");
        let mut strangers = global(7, 5, 35);
        for member in &mut strangers.members {
            member.node = NodeId::from_bytes([99; 32]);
        }
        assert_eq!(
            judge(strangers),
            Verdict::Unconfirmed,
            "nobody is counted who is not there"
        );
        let mut large = global(7, 5, 35);
        large.mean.size = 1 << 20;
        assert!(is_false(large), "far larger than the mean before");
        let mut heavy = global(7, 5, 35);
        heavy.members[0].weight = 1e12;
        assert!(is_false(heavy), "every member counts the same");
    }

    #[test]
    fn sums_of_statistics_are_weighted_by_samples() {
        let (head, _) = known();
        let mut spec = FederationSpec::default();
        (spec.rounds, spec.statistics.enabled) = (4, true);
        spec.exchange.averaging = Some(Averaging {
            weighting: Weighting::Uniform,
            rule: Rule::default(),
        });
        let sums = |parent, history, weight| {
            let mut sums = global(parent, 5, history);
            for member in &mut sums.members {
                member.weight = weight;
            }
            sums
        };
        let judge = |global| verdict(&head, &spec, 4, &global);
        assert_eq!(
            judge(sums(7, 35, 10.0)),
            Verdict::Next,
            "weighted by the samples of each, whatever the algorithm says"
        );
        assert!(matches!(judge(sums(7, 35, 1.0)), Verdict::False(_)));
        assert_eq!(
            judge(sums(5, 1_000, 10.0)),
            Verdict::Old,
            "the sums of another chain's features"
        );
        let behind = Head {
            round: Round(1),
            mean: Some(blob(6)),
            parent: Some(blob(5).id),
            history: 10,
        };
        let mut large = sums(7, 35, 10.0);
        large.mean.size = 1 << 20;
        assert_eq!(
            verdict(&behind, &spec, 4, &large),
            Verdict::Old,
            "sums convict nobody of who is behind, however large"
        );
    }

    #[test]
    fn the_aggregator_outranks_everybody() {
        let seed = DrawSeed::of(1);
        let acting = |n| Rank::acting(seed, Round(1), NodeId::from_bytes([n; 32]));
        assert!(Rank::Aggregator < acting(1).min(acting(2)));
        assert_ne!(acting(1) < acting(2), acting(2) < acting(1));
    }
}
