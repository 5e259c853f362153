//! A mean that is averaged slice by slice, so that nobody fetches all parts of all.
//!
//! ```text
//! updates ──propose──► members, each in its places in a line: slice of all parts ──mean of it──► word
//!                                                                                                  │
//! everybody: slices ──put together──► mean ◄──── closing that names two words for each slice ◄─────┘
//! ```
//!
//! Whoever closes the round asks all members whose updates it counts (`Proposal`). Members stand in a line that all draw alike.
//! Two of them average each slice of all parts, and say so in their words (`Slices`). If they do not agree, or if one of them says
//! nothing, a third one does. The closing names two members' words for each slice, so nobody can falsify one alone. Whoever has
//! averaged a slice itself follows no closing with another one. The mean is the slices one after the other, so whoever has them can check it.
//! Each slice can be recomputed later from a slice of each part, and convicts those who signed it.
//!
//! If slices do not come in time, whoever closes the round fetches all parts and averages them, as without slices. This is
//! Reduce-Scatter and All-Gather (Rabenseifner 2004), with each slice reduced twice: a process moves three to four times its
//! part each way, however many there are.

use std::time::Duration;

use fednode_core::draw::{DrawSeed, draw};
use fednode_core::masked::{Bytes32, Proposal};
use fednode_core::spec::RoundSpec;
use fednode_core::{
    AdvertId, BlobId, BlobRef, FederationSpec, Global, Member, NodeId, Round, SEGMENT_BYTES,
    Schedule, Slicing, Timestamp,
};
use serde::{Deserialize, Serialize};

use crate::event::Purpose;

/// Bytes per second that a slow link brings.
const SLOW: u64 = 1 << 20;

/// A slice of a mean to compute: of these members' parts, of which the slice is fetched first. Carried out by
/// [`crate::execute::average_slice`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SliceOrder {
    /// The round.
    pub round: Round,
    /// Why.
    pub purpose: Purpose,
    /// The proposal that names the members.
    pub of: Bytes32,
    /// The number of the slice.
    pub slice: u32,
    /// How parts are divided.
    pub slicing: Slicing,
    /// Whose parts, in node order.
    pub members: Vec<Member>,
    /// The mean before, which this member and the others should hold: the difference is fewer bytes.
    pub base: Option<BlobId>,
    /// When to give up.
    pub until: Timestamp,
}

/// What became of a slice.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SliceReport {
    /// The order's round.
    pub round: Round,
    /// The order's purpose.
    pub purpose: Purpose,
    /// The order's proposal.
    pub of: Bytes32,
    /// The number of the slice.
    pub slice: u32,
    /// The mean of the slice, now in the store; `None` if it could not be computed.
    pub mean: Option<BlobRef>,
    /// Members whose slice could not be had.
    pub lost: Vec<NodeId>,
    /// Members that are not in the mean of this slice, and why. Whoever recomputes it leaves them out, too.
    pub left_out: Vec<(NodeId, String)>,
    /// Of those left out, who are not to blame: an unscaled table makes an honest member's parameters large.
    pub excused: Vec<NodeId>,
}

impl SliceReport {
    /// Makes the report of an order of which nothing came yet.
    pub fn of(order: &SliceOrder) -> Self {
        Self {
            round: order.round,
            purpose: order.purpose,
            of: order.of,
            slice: order.slice,
            mean: None,
            lost: Vec::new(),
            left_out: Vec::new(),
            excused: Vec::new(),
        }
    }
}

/// Why slices are put together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum JoinPurpose {
    /// To close a round.
    Close,
    /// To follow a closed round.
    Follow,
    /// To check what somebody else signed; the trial of that number.
    Verify(u32),
}

/// Slices to fetch, and to put together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinOrder {
    /// The round.
    pub round: Round,
    /// Why.
    pub purpose: JoinPurpose,
    /// The slices in their order, and which two averaged each.
    pub slices: Vec<([NodeId; 2], BlobRef)>,
    /// Who has all of them, beside these: whoever closed the round.
    pub closer: Option<NodeId>,
    /// When to give up.
    pub until: Timestamp,
}

/// What became of slices that were to be put together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinReport {
    /// The order's round.
    pub round: Round,
    /// The order's purpose.
    pub purpose: JoinPurpose,
    /// The slices.
    pub slices: Vec<BlobId>,
    /// What they are together, now in the store; `None` if one of them could not be had.
    pub mean: Option<BlobRef>,
}

impl JoinReport {
    /// Makes the report of an order.
    pub fn of(order: &JoinOrder, mean: Option<BlobRef>) -> Self {
        Self {
            round: order.round,
            purpose: order.purpose,
            slices: order.slices.iter().map(|(_, slice)| slice.id).collect(),
            mean,
        }
    }
}

/// A slice of a mean, and who says so where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SaidSlice {
    pub(crate) author: NodeId,
    pub(crate) advert: AdvertId,
    pub(crate) slice: u32,
    pub(crate) mean: BlobRef,
}

/// Returns how the mean of these members is divided in a round; `None` if it is not. All parts must have one size.
pub(crate) fn slicing_of(
    spec: &FederationSpec,
    schedule: &Schedule,
    round: Round,
    members: &[Member],
) -> Option<Slicing> {
    let size = members.first()?.shared.size;
    let is_alike = members.iter().all(|member| member.shared.size == size);
    let slicing = Slicing::of(spec, schedule, round, (size, members.len()));
    slicing.filter(|_| is_alike)
}

/// Returns what a closing was proposed as.
pub(crate) fn proposal_of(global: &Global) -> Proposal {
    Proposal {
        members: global.members.clone(),
        parent: global.parent,
        previous: global.previous,
    }
}

/// Tells whether parts of this size may be divided, if they are of enough members.
pub(crate) fn is_large(size: u64) -> bool {
    size > SEGMENT_BYTES
}

/// How long the slices of a part of this size may take. Half of it is for those whose turn it is.
pub(crate) fn patience(size: u64, times: &RoundSpec) -> Duration {
    let slow = Duration::from_millis(size.saturating_mul(1000) / SLOW);
    // What comes after them has as much time.
    (times.grace() + slow).min(times.deadline() / 2)
}

/// The members in the order in which they average slices.
pub(crate) struct Line(Vec<NodeId>);

/// Whose turn a slice is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It is averaged by this member and another one.
    Now,
    /// If these two do not agree, or if one of them is late.
    Later,
    /// Others average it.
    Never,
}

impl Line {
    pub(crate) fn of(seed: DrawSeed, round: Round, members: &[Member]) -> Self {
        let mut line: Vec<NodeId> = members.iter().map(|member| member.node).collect();
        // The round is in the draw, so that no two members have a slice together in every round.
        line.sort_by_cached_key(|node| draw(b"fednode slices 1", seed, round, *node));
        Self(line)
    }

    /// Tells whose turn a slice is, as a member sees it.
    pub(crate) fn turn(&self, node: NodeId, slice: u32, slicing: Slicing) -> Turn {
        let all = self.0.len();
        let Some(place) = self.0.iter().position(|other| *other == node) else {
            return Turn::Never;
        };
        // The first of the line have a slice each. Those after them have the second turns, as far as they go.
        let second = match slicing.n_slices() as usize % all {
            // A step of none would name the first member twice.
            0 => 1 % all,
            step => step,
        };
        // Of two members there is no third: its place is that of one who has its turn anyway.
        let third = match (second + 1) % all {
            0 => 1 % all,
            step => step,
        };
        let first = slice as usize;
        match (place + all - first % all) % all {
            0 => Turn::Now,
            step if step == second => Turn::Now,
            step if step == third => Turn::Later,
            _ => Turn::Never,
        }
    }
}

/// Leaves those words that count: of whose turn a slice is, and of its size.
pub(crate) fn counted<'a>(
    said: &'a [SaidSlice],
    line: &'a Line,
    slicing: Slicing,
) -> impl Iterator<Item = &'a SaidSlice> + Clone {
    said.iter().filter(move |said| {
        let is_known = said.slice < slicing.n_slices();
        is_known
            && said.mean.size == slicing.len(said.slice)
            && line.turn(said.author, said.slice, slicing) != Turn::Never
    })
}

/// Returns two members' words for each slice, as the closing names them, if there are; else nothing.
pub(crate) fn complete(
    said: &[SaidSlice],
    line: &Line,
    slicing: Slicing,
) -> Option<Vec<[SaidSlice; 2]>> {
    let counted = counted(said, line, slicing);
    let of = |slice| {
        let words = counted.clone().filter(move |said| said.slice == slice);
        let other = |one: &SaidSlice| {
            let mut others = words.clone();
            // In the order of authors, so that nobody is a pair with itself and each pair is looked at once.
            let two = others.find(|two| two.author > one.author && two.mean == one.mean)?;
            Some([*one, *two])
        };
        words.clone().find_map(other)
    };
    (0..slicing.n_slices()).map(of).collect()
}

#[cfg(test)]
mod tests {
    use fednode_core::AdvertId;

    use super::*;

    #[test]
    fn every_slice_has_two_turns_and_every_member_as_few_as_can_be() {
        let mut spec = FederationSpec::default();
        spec.round.slices = 8;
        let schedule = Schedule::of(&spec);
        for n in [2, 3, 7, 8, 9, 12, 16, 40] {
            let member = |n: u8| Member {
                node: NodeId::from_bytes([n; 32]),
                shared: BlobRef {
                    id: BlobId::from_bytes([n; 32]),
                    size: 20 * SEGMENT_BYTES,
                },
                weight: 1.0,
                advert: AdvertId::of(&[n]),
            };
            let members: Vec<Member> = (0..n).map(member).collect();
            let slicing = slicing_of(&spec, &schedule, Round(1), &members).unwrap();
            assert_eq!(slicing.n_slices(), u32::from(n).min(8));
            let line = Line::of(DrawSeed::of(7), Round(1), &members);
            let slices = 0..slicing.n_slices();
            let turns = |slice, turn| {
                let nodes = members.iter().map(|member| member.node);
                nodes
                    .filter(|node| line.turn(*node, slice, slicing) == turn)
                    .count()
            };
            for slice in slices.clone() {
                assert_eq!(turns(slice, Turn::Now), 2, "{n} members, slice {slice}");
                assert_eq!(turns(slice, Turn::Later), usize::from(n > 2));
            }
            let own = |node| {
                let is_its = |slice: &u32| line.turn(node, *slice, slicing) == Turn::Now;
                slices.clone().filter(is_its).count()
            };
            let most = members.iter().map(|member| own(member.node)).max().unwrap();
            let fair = (2 * slicing.n_slices() as usize).div_ceil(usize::from(n));
            assert_eq!(most, fair, "{n} members");
            let mut mixed = members.clone();
            mixed[0].shared.size += 4;
            assert_eq!(slicing_of(&spec, &schedule, Round(1), &mixed), None);
        }
    }

    #[test]
    fn nobody_settles_a_slice_alone() {
        let mut spec = FederationSpec::default();
        spec.round.slices = 2;
        let member = |n: u8| Member {
            node: NodeId::from_bytes([n; 32]),
            shared: BlobRef {
                id: BlobId::from_bytes([n; 32]),
                size: 2 * SEGMENT_BYTES,
            },
            weight: 1.0,
            advert: AdvertId::of(&[n]),
        };
        let members: Vec<Member> = (0..3).map(member).collect();
        let schedule = Schedule::of(&spec);
        let slicing = slicing_of(&spec, &schedule, Round(1), &members).unwrap();
        let said = |n: u8, slice, mean: u8| SaidSlice {
            author: NodeId::from_bytes([n; 32]),
            advert: AdvertId::of(&[n]),
            slice,
            mean: BlobRef {
                id: BlobId::from_bytes([mean; 32]),
                size: SEGMENT_BYTES,
            },
        };
        let line = Line::of(DrawSeed::of(7), Round(1), &members);
        let of_first = [said(0, 0, 9), said(1, 0, 9)];
        let complete = |rest: &[SaidSlice]| {
            let all = [of_first.as_slice(), rest].concat();
            super::complete(&all, &line, slicing).map(|it| it[1].map(|said| said.author))
        };
        assert_eq!(complete(&[]), None);
        assert_eq!(complete(&[said(0, 1, 8)]), None);
        assert_eq!(
            complete(&[said(0, 1, 8), said(0, 1, 8)]),
            None,
            "twice the same"
        );
        assert_eq!(complete(&[said(0, 1, 8), said(1, 1, 7)]), None);
        assert_eq!(
            complete(&[said(0, 1, 8), said(7, 1, 8)]),
            None,
            "a stranger"
        );
        let both = [1, 2].map(|n| NodeId::from_bytes([n; 32]));
        let three = [said(0, 1, 8), said(1, 1, 7), said(2, 1, 7)];
        assert_eq!(complete(&three), Some(both));
    }
}
