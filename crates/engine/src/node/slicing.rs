//! Means that are averaged in slices, as a node follows and tries them.

use fednode_core::draw::draw;
use fednode_core::{AdvertId, BlobId, NodeId, Round};

use super::shared::{Shared, longest_transfer};
use super::{Node, audit};
use crate::event::{
    Arrival, JoinOrder, JoinPurpose, JoinReport, Output, Purpose, SliceOrder, SliceReport,
};
use crate::follower::{Closed, Follower};
use crate::slices::{self, SaidSlice};
use crate::trials::What;

impl Shared {
    /// Keeps a slice for as long as parts are kept.
    pub(super) fn keep_slice(&mut self, round: Round, slice: BlobId) {
        self.slices.push_back((round, slice));
        let oldest = self.memory.round.0.saturating_sub(1);
        self.slices.retain(|(round, _)| round.0 >= oldest);
    }

    /// Visits the slices that are kept for others.
    pub(super) fn slices(&self) -> impl Iterator<Item = BlobId> + '_ {
        self.slices.iter().map(|(_, slice)| *slice)
    }

    /// Recomputes one slice of a closing's mean: that which is accused, else one of a draw that nobody else knows. Returns
    /// whether a trial began.
    pub(super) fn begin_trial_of_slice(
        &mut self,
        closed: Closed,
        accuser: Option<NodeId>,
        accused: Option<u32>,
    ) -> bool {
        let members = &closed.global.members;
        let slicing = slices::slicing_of(&self.spec, &self.schedule, closed.round, members);
        let said = Follower::slices(&self.view, &closed);
        let (Some(slicing), Some(said)) = (slicing, said) else {
            return false;
        };
        let drawn = draw(
            b"fednode audited slice 1",
            self.audits,
            closed.round,
            self.me,
        );
        let drawn = u32::from_le_bytes([drawn[0], drawn[1], drawn[2], drawn[3]]);
        let slice = accused.unwrap_or(drawn % slicing.n_slices());
        let mut pairs = closed.global.slices.chunks_exact(2);
        let pair = pairs.nth(slice as usize);
        let Some(((_, mean), pair)) = said.get(slice as usize).zip(pair) else {
            return false;
        };
        let word = |(author, advert): (NodeId, AdvertId)| SaidSlice {
            author,
            advert,
            slice,
            mean: *mean,
        };
        let what = What::Slice([pair[0], pair[1]].map(word));
        let (round, members) = (closed.round, members.clone());
        let of = slices::proposal_of(&closed.global).id(round);
        let number = self.trials.begin_slices(closed, accuser, what);
        // Nobody waits longer for a part that cannot be had than members do that average it.
        let until = self.now + slices::patience(slicing.size(), &self.spec.round);
        self.outbox.push(Output::Slice(Box::new(SliceOrder {
            round,
            purpose: Purpose::Verify(number),
            of,
            slice,
            slicing,
            members,
            base: self.chain.head().mean.map(|mean| mean.id),
            until,
        })));
        true
    }

    /// Puts the slices of a closing's mean together: to follow it, or as a trial of whoever says what they are together.
    /// Returns false if there are none, or if a word that names them is not known.
    pub(super) fn join_slices(&mut self, closed: &Closed, purpose: JoinPurpose) -> bool {
        let Some(slices) = Follower::slices(&self.view, closed) else {
            return false;
        };
        let until = self.now + longest_transfer(closed.global.mean.size, &self.spec.round);
        self.outbox.push(Output::Join(Box::new(JoinOrder {
            round: closed.round,
            purpose,
            slices,
            closer: Some(closed.author),
            until,
        })));
        true
    }

    /// Puts slices together as a trial of whoever says what they are together. Returns whether a trial began.
    pub(super) fn begin_trial_of_slices(&mut self, closed: Closed, accuser: NodeId) -> bool {
        if Follower::slices(&self.view, &closed).is_none() {
            return false;
        }
        let accuser = Some(accuser);
        let number = self
            .trials
            .begin_slices(closed.clone(), accuser, What::Slices);
        self.join_slices(&closed, JoinPurpose::Verify(number))
    }
}

impl Node {
    pub(super) fn handle_sliced(&mut self, report: &SliceReport) {
        let shared = &mut self.shared;
        match report.purpose {
            Purpose::Close => {
                if let Some(exchange) = self.phase.exchange_mut() {
                    exchange.on_sliced(shared, report);
                }
            }
            Purpose::Verify(number) => {
                audit::on_recomputed(&mut self.phase, shared, number, report.mean);
            }
        }
    }

    pub(super) fn handle_joined(&mut self, report: &JoinReport) {
        match report.purpose {
            JoinPurpose::Close => {
                if let Some(exchange) = self.phase.exchange_mut() {
                    exchange.on_joined_to_close(&mut self.shared, report);
                }
            }
            JoinPurpose::Follow => self.follow_joined(report),
            JoinPurpose::Verify(number) => {
                audit::on_recomputed(&mut self.phase, &mut self.shared, number, report.mean);
            }
        }
    }

    /// The slices of the mean that is about to be followed are here. If they are another mean than was signed, that convicts whoever
    /// signed it. If one of them cannot be had, the mean is fetched as a whole.
    fn follow_joined(&mut self, report: &JoinReport) {
        let exchange = self.phase.exchange_mut();
        let Some(closed) = exchange.and_then(|exchange| exchange.mean.candidate().cloned()) else {
            return;
        };
        let slices = Follower::slices(&self.shared.view, &closed).unwrap_or_default();
        // The report may be about a candidate whose place another closing has taken.
        if !slices.iter().map(|(_, slice)| &slice.id).eq(&report.slices) {
            return;
        }
        match report.mean {
            Some(mean) if mean.id == closed.global.mean.id => {
                self.handle_arrival(Arrival::Held(mean.id));
            }
            Some(actual) => audit::on_false_join(&mut self.phase, &mut self.shared, closed, actual),
            None => {
                if let Some(exchange) = self.phase.exchange_mut() {
                    exchange.fetch_whole(&mut self.shared, &closed);
                }
            }
        }
    }
}
