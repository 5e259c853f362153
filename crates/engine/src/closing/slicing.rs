//! Closing a round whose mean is averaged slice by slice.
//!
//! ```text
//! updates heard ──propose──► words of members ──all slices──► put together ──► mean
//!                                 │
//!                                 └──too late──► parts fetched, averaged as a whole
//! ```

use std::collections::BTreeMap;

use fednode_core::draw::DrawSeed;
use fednode_core::masked::{Bytes32, Proposal};
use fednode_core::{AdvertId, Member, NodeId, Round, Slicing, Timestamp, slicing};
use serde::{Deserialize, Serialize};

use super::{Base, Closer, Mean, Part, Step, Surroundings, weights};
use crate::event::{JoinOrder, JoinPurpose, JoinReport};
use crate::slices::{self, Line, SaidSlice};

/// How far the slices of a round are.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Division {
    proposed: Option<Proposed>,
    /// They did not come in time: the parts are averaged as a whole.
    is_given_up: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Proposed {
    round: Round,
    of: Bytes32,
    proposal: Proposal,
    slicing: Slicing,
    /// Until then slices are waited for.
    until: Timestamp,
    /// The slices that are being put together.
    used: Vec<[SaidSlice; 2]>,
}

impl Closer {
    /// Tells whether a part of this round is averaged in slices, so that it need not be fetched here.
    pub(super) fn divides(&self, round: Round, size: u64) -> bool {
        let may_be = slicing::may_be_in(&self.spec, &self.schedule, round);
        may_be && slices::is_large(size) && !self.slicing.is_given_up
    }

    /// Tells whether the mean of the parts that have this base is averaged in slices.
    pub(super) fn is_divided(&self, base: Base, seed: DrawSeed) -> bool {
        if self.slicing.is_given_up || self.spec.round.slices < 2 {
            return false;
        }
        // Asked at every input, so members are looked for no longer than needed.
        self.waits_for_slices() || {
            let (round, members) = self.members(base, seed);
            common_size(&members).is_some_and(|size| self.divides(round, size))
        }
    }

    /// Tells whether members were asked to average slices.
    pub(super) fn waits_for_slices(&self) -> bool {
        self.slicing.proposed.is_some()
    }

    /// Returns what to do next to have the slices of a mean, if there is anything.
    pub(super) fn next_slices(
        &mut self,
        base: Base,
        seed: DrawSeed,
        around: Surroundings<'_>,
    ) -> Option<Step> {
        if self.is_averaging {
            return None;
        }
        let Some(proposed) = &mut self.slicing.proposed else {
            return self.propose_slices(base, seed, around.now);
        };
        let said = around.view.slices(proposed.round, proposed.of);
        let line = Line::of(seed, proposed.round, &proposed.proposal.members);
        if let Some(used) = slices::complete(&said, &line, proposed.slicing) {
            let slices = used.iter();
            let named = |[one, two]: &[SaidSlice; 2]| ([one.author, two.author], one.mean);
            let order = JoinOrder {
                round: proposed.round,
                purpose: JoinPurpose::Close,
                slices: slices.map(named).collect(),
                closer: None,
                // Slices that came at the last moment have a grace time to be fetched, too.
                until: proposed.until.max(around.now + self.spec.round.grace()),
            };
            proposed.used = used;
            self.is_averaging = true;
            return Some(Step::Join(order));
        }
        (around.now >= proposed.until).then(|| self.give_up_slices())
    }

    fn propose_slices(&mut self, base: Base, seed: DrawSeed, now: Timestamp) -> Option<Step> {
        let (round, mut members) = self.members(base, seed);
        let size = common_size(&members)?;
        // Parts of another size are of another model. Weights are of those who are counted.
        members.retain(|member| member.shared.size == size);
        self.weigh(round, &mut members);
        if members.len() < self.spec.fewest_members() as usize {
            return None;
        }
        let Some(slicing) = slices::slicing_of(&self.spec, &self.schedule, round, &members) else {
            return Some(self.give_up_slices());
        };
        let proposal = Proposal {
            members,
            parent: base.parent,
            previous: base.previous,
        };
        self.slicing.proposed = Some(Proposed {
            round,
            of: proposal.id(round),
            proposal: proposal.clone(),
            slicing,
            until: now + slices::patience(size, &self.spec.round),
            used: Vec::new(),
        });
        Some(Step::Propose(round, proposal))
    }

    /// Returns those of whom nobody could get a slice, and whose part has not come since: slices wait for them no more.
    pub(crate) fn withheld(&self) -> Vec<NodeId> {
        if self.slicing.is_given_up {
            self.wanted()
        } else {
            Vec::new()
        }
    }

    /// What was proposed follows another closed round than this machine by now.
    pub(super) fn forget_proposal(&mut self) {
        self.slicing.proposed = None;
    }

    /// Weighs members as if no others had trained.
    fn weigh(&self, round: Round, members: &mut [Member]) {
        let samples = |member: &Member| self.offers.get(&member.node).map_or(0, |it| it.n_samples);
        let samples: Vec<u32> = members.iter().map(samples).collect();
        let weighting = self.schedule.weighting(round, &self.spec.exchange);
        let weights = weights(&samples, weighting, self.spec.round.max_weight);
        for (member, weight) in members.iter_mut().zip(weights) {
            member.weight = weight;
        }
    }

    /// Returns until when slices are waited for.
    pub(crate) fn slices_until(&self) -> Option<Timestamp> {
        self.slicing.proposed.as_ref().map(|it| it.until)
    }

    /// The parts are averaged as a whole. Returns the parts to fetch.
    fn give_up_slices(&mut self) -> Step {
        // For the rest of the round: what kept slices away would do so again.
        self.slicing = Division {
            proposed: None,
            is_given_up: true,
        };
        let mut wanted = Vec::new();
        for (node, offer) in &mut self.offers {
            if offer.part == Part::Elsewhere {
                // Parts that others average count as held. From here on they are fetched.
                self.counts.take_out(offer);
                offer.part = Part::Wanted;
                self.counts.add(offer);
                wanted.push((*node, offer.shared));
            }
        }
        Step::Fetch(wanted)
    }

    /// Takes slices that were put together. Without a mean the parts are averaged as a whole.
    pub(crate) fn on_joined(&mut self, report: &JoinReport) -> Result<Mean, Option<Step>> {
        let proposed = self.slicing.proposed.as_ref();
        let Some(proposed) = proposed.filter(|it| self.is_averaging && it.is_of(report)) else {
            return Err(None);
        };
        match report.mean {
            Some(blob) => Ok(Mean {
                round: proposed.round,
                blob,
                members: proposed.proposal.members.clone(),
                unmasked: Vec::new(),
                slices: proposed.words(),
                proposed: Some(Base {
                    previous: proposed.proposal.previous,
                    parent: proposed.proposal.parent,
                }),
            }),
            None => {
                self.is_averaging = false;
                Err(Some(self.give_up_slices()))
            }
        }
    }
}

impl Proposed {
    fn is_of(&self, report: &JoinReport) -> bool {
        let used = self.used.iter().map(|[one, _]| &one.mean.id);
        self.round == report.round && used.eq(&report.slices)
    }

    fn words(&self) -> Vec<(NodeId, AdvertId)> {
        let words = self.used.iter().flatten();
        words.map(|said| (said.author, said.advert)).collect()
    }
}

/// Returns the size that most parts have; of two the smaller one.
fn common_size(members: &[Member]) -> Option<u64> {
    let mut sizes: BTreeMap<u64, usize> = BTreeMap::new();
    for member in members {
        *sizes.entry(member.shared.size).or_default() += 1;
    }
    let common = sizes.into_iter().rev().max_by_key(|(_, n)| *n);
    common.map(|(size, _)| size)
}
