//! A member's part in a mean that is averaged slice by slice.
//!
//! It averages the slices whose turn is its own, and one more if two others do not agree on it or are late. What it says of a
//! proposal is one word. Who says otherwise of a slice that this member has averaged itself is struck, and a closing that rests on
//! such a slice is false.

use std::collections::BTreeSet;

use fednode_core::masked::{Bytes32, Proposal};
use fednode_core::{
    BlobId, BlobRef, Body, Fault, NodeId, Round, SliceMean, Slices, Slicing, Timestamp, slicing,
};
use serde::{Deserialize, Serialize};

use super::Exchange;
use crate::chain::{self, Verdict};
use crate::event::{Note, Output, Purpose, SliceOrder, SliceReport, Timer};
use crate::follower::{Closed, Follower};
use crate::node::shared::Shared;
use crate::slices::{self, Line, SaidSlice, Turn};

/// Proposals of a round that a member averages for: so many of members, and as many of aggregators.
const MOST_PROPOSALS: usize = 3;

/// What a member averages in a round.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Averaging {
    jobs: Vec<Job>,
    /// Who was struck for another mean of a slice than this member has.
    struck: BTreeSet<NodeId>,
}

/// One proposal.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Job {
    /// Who proposed it.
    #[serde(default)]
    by: Option<NodeId>,
    of: Bytes32,
    slicing: Slicing,
    proposal: Proposal,
    /// From then on slices that two others have not averaged are its turn, too.
    late: Timestamp,
    until: Timestamp,
    ordered: BTreeSet<u32>,
    answered: BTreeSet<u32>,
    means: Vec<SliceMean>,
}

impl Averaging {
    /// Visits the slices that this member has averaged.
    pub(super) fn blobs(&self) -> impl Iterator<Item = BlobId> + '_ {
        let means = self.jobs.iter().flat_map(|job| &job.means);
        means.map(|mean| mean.mean.id)
    }

    /// Returns until when slices may come, if some are under way.
    pub(super) fn until(&self, now: Timestamp) -> Option<Timestamp> {
        let ends = self.jobs.iter().map(|job| job.until);
        ends.max().filter(|until| *until > now)
    }

    /// Averages what is proposed, as far as it is this member's turn.
    pub(super) fn advance(&mut self, shared: &mut Shared, round: Round) {
        if !slicing::may_be_in(&shared.spec, &shared.schedule, round) {
            return;
        }
        self.look_for_proposals(shared, round);
        for job in &mut self.jobs {
            let line = Line::of(shared.draws, round, &job.proposal.members);
            let said = shared.view.slices(round, job.of);
            for slice in job.due(shared, &line, &said) {
                job.ordered.insert(slice);
                let order = job.order(shared, round, slice);
                shared.outbox.push(Output::Slice(Box::new(order)));
            }
            // Means are computed alike everywhere, to the bit. So another mean of the same parts is a lie.
            let liars = slices::counted(&said, &line, job.slicing);
            let liars = liars.filter(|said| job.contradicts(said.slice, said.mean));
            for liar in liars.map(|said| said.author) {
                if liar != shared.me && self.struck.insert(liar) {
                    let reason =
                        format!("said another mean of a slice of round {round} than it has");
                    shared.outbox.strike(liar, reason);
                }
            }
        }
    }

    fn look_for_proposals(&mut self, shared: &mut Shared, round: Round) {
        let is_known = |proposal: &Proposal| self.jobs.iter().any(|job| job.proposal == *proposal);
        let new = shared.view.proposals(round);
        let new = new.filter(|(_, proposal)| !is_known(proposal));
        let mut new: Vec<(NodeId, Proposal)> = new.map(|(by, it)| (by, it.clone())).collect();
        // Whoever closes first comes first, so that others cannot take up all the room.
        new.sort_by_key(|(author, _)| shared.rank(round, *author));
        for (author, proposal) in new {
            let is_taken = |job: &Job| job.proposal == proposal || job.by == Some(author);
            if !self.has_room(shared, author) || self.jobs.iter().any(is_taken) {
                continue;
            }
            let Some(job) = Job::of(shared, round, author, proposal) else {
                continue;
            };
            self.jobs.push(job);
            let late = self.jobs.iter().map(|job| job.late);
            if let Some(next) = late.filter(|late| *late > shared.now).min() {
                shared.outbox.set_timer(Timer::Slices(round), next);
            }
        }
    }

    /// Tells whether there is room for a proposal of this author. Each has one, so that nobody takes up the room of others.
    fn has_room(&self, shared: &Shared, author: NodeId) -> bool {
        let is_aggregator = |node| shared.view.is_aggregator(node);
        let is_alike = |job: &&Job| job.by.is_some_and(is_aggregator) == is_aggregator(author);
        self.jobs.iter().filter(is_alike).count() < MOST_PROPOSALS
    }

    /// A slice is averaged, or cannot be: the member says so.
    pub(super) fn on_sliced(&mut self, shared: &mut Shared, report: &SliceReport) {
        let Some(job) = self.jobs.iter_mut().find(|job| job.of == report.of) else {
            return;
        };
        let slice = report.slice;
        job.answered.insert(slice);
        for lost in &report.lost {
            shared.view.doubt(*lost);
        }
        for (node, why) in &report.left_out {
            shared.view.doubt(*node);
            if !report.excused.contains(node) {
                let reason = format!("shared part refused: {why}");
                shared.outbox.strike(*node, reason);
            }
        }
        if let Some(mean) = report.mean {
            job.means.retain(|known| known.slice != slice);
            job.means.push(SliceMean { slice, mean });
            job.means.sort_unstable_by_key(|mean| mean.slice);
            shared.keep_slice(report.round, mean.id);
        }
        // One word for all of them.
        if job.answered.len() < job.ordered.len() || job.means.is_empty() {
            return;
        }
        let word = Slices {
            of: job.of,
            means: job.means.clone(),
        };
        shared.outbox.publish(report.round, Body::Slices(word));
    }

    /// Returns a slice of a closing's mean that is another one than this member has averaged, and what it is.
    pub(super) fn false_slice(&self, shared: &Shared, closed: &Closed) -> Option<(u32, BlobRef)> {
        let said = Follower::slices(&shared.view, closed)?;
        let of = slices::proposal_of(&closed.global).id(closed.round);
        let job = self.jobs.iter().find(|job| job.of == of)?;
        let mut own = job.means.iter();
        let false_one = own.find(|own| {
            let said = said.get(own.slice as usize);
            said.is_some_and(|(_, mean)| *mean != own.mean)
        });
        false_one.map(|own| (own.slice, own.mean))
    }
}

impl Exchange {
    /// A closing rests on a slice that this node has averaged itself, and that is something else: two have lied alike.
    pub(super) fn convict_averagers(
        &mut self,
        shared: &mut Shared,
        closed: &Closed,
        (slice, actual): (u32, BlobRef),
    ) {
        let round = closed.round;
        shared.view.refute(closed.global.id(round));
        let pair = closed.global.slices.chunks_exact(2).nth(slice as usize);
        for (accused, evidence) in pair.into_iter().flatten().copied() {
            shared.outbox.note(Note::CheatFound {
                node: accused,
                round,
            });
            let fault = Fault {
                accused,
                evidence,
                actual: actual.id,
                slice: Some(slice),
            };
            shared.outbox.publish(round, Body::Fault(fault));
            let reason = format!("signed a false mean for round {round}");
            shared.ban(Some(self), accused, reason);
        }
        self.call_for_another(shared);
    }
}

impl Job {
    /// Takes a proposal, if this member is in it and all others have signed what is proposed.
    fn of(shared: &mut Shared, round: Round, author: NodeId, proposal: Proposal) -> Option<Self> {
        let members = &proposal.members;
        let slicing = slices::slicing_of(&shared.spec, &shared.schedule, round, members)?;
        if !members.iter().any(|member| member.node == shared.me) {
            return None;
        }
        let judge = shared.judge(std::time::Duration::ZERO);
        match judge.judge_division(round, author, &proposal) {
            Verdict::Next => {}
            Verdict::Unconfirmed(lacking) => {
                let when = (shared.now, shared.spec.as_ref(), round);
                chain::ask_for(lacking, &mut shared.view, &mut shared.outbox, when);
                return None;
            }
            _ => return None,
        }
        let patience = slices::patience(slicing.size(), &shared.spec.round);
        Some(Self {
            by: Some(author),
            of: proposal.id(round),
            slicing,
            proposal,
            late: shared.now + patience / 2,
            until: shared.now + patience,
            ordered: BTreeSet::new(),
            answered: BTreeSet::new(),
            means: Vec::new(),
        })
    }

    /// Returns the slices whose turn is this member's now.
    fn due(&self, shared: &Shared, line: &Line, said: &[SaidSlice]) -> Vec<u32> {
        let is_late = shared.now >= self.late;
        let all = 0..self.slicing.n_slices();
        let open = all.filter(|slice| !self.ordered.contains(slice));
        let is_due = |slice: &u32| match line.turn(shared.me, *slice, self.slicing) {
            Turn::Now => true,
            Turn::Later => {
                let words = slices::counted(said, line, self.slicing);
                let means = words.filter(|said| said.slice == *slice);
                let means: Vec<BlobId> = means.map(|said| said.mean.id).collect();
                let agree = means.windows(2).all(|pair| pair[0] == pair[1]);
                // Where two disagree a third decides, and where two are late somebody else helps.
                !agree || is_late && means.len() < 2
            }
            Turn::Never => false,
        };
        open.filter(is_due).collect()
    }

    /// Tells whether this member has averaged a slice itself, and has another mean of it.
    fn contradicts(&self, slice: u32, mean: BlobRef) -> bool {
        let mut own = self.means.iter();
        own.any(|own| own.slice == slice && own.mean != mean)
    }

    fn order(&self, shared: &Shared, round: Round, slice: u32) -> SliceOrder {
        SliceOrder {
            round,
            purpose: Purpose::Close,
            of: self.of,
            slice,
            slicing: self.slicing,
            members: self.proposal.members.clone(),
            base: shared.chain.head().mean.map(|mean| mean.id),
            until: self.until,
        }
    }
}
