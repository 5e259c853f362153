//! Trials: recomputations of means that somebody else signed.
//!
//! A closed round names its members and their parts by hash, so its mean can be recomputed by anybody. A small machine
//! that nodes and aggregators share: it keeps what each trial waits for and what came of it. Who is tried, and what
//! follows from it, is its owner's affair.

use std::collections::BTreeSet;

use fednode_core::{AdvertId, BlobId, BlobRef, Fault, Global, NodeId, Round};
use serde::{Deserialize, Serialize};

use crate::event::{Arrival, AverageOrder, FetchKind, Purpose};
use crate::follower::Closed;
use crate::masks::Masked;
use crate::slices::SaidSlice;

/// A recomputation under way, or over.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Trial {
    /// What tells its answer from those to others.
    number: u32,
    closed: Closed,
    /// Members' parts that are not here yet.
    awaited: BTreeSet<BlobRef>,
    accuser: Option<NodeId>,
    outcome: Outcome,
    /// How masks come off, where sums are masked.
    #[serde(default)]
    masked: Option<Box<Masked>>,
    /// What is recomputed.
    #[serde(default)]
    what: What,
}

impl Trial {
    fn known(&self) -> Known {
        match self.outcome {
            Outcome::Open => Known::Open,
            Outcome::Impossible => Known::Impossible,
            Outcome::Recomputed => Known::Recomputed,
        }
    }
}

/// What is recomputed of a mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[expect(
    clippy::large_enum_variant,
    reason = "a node runs a handful of trials at a time"
)]
pub(crate) enum What {
    /// All of it, from its members' parts.
    #[default]
    Mean,
    /// One slice of it, from that slice of its members' parts.
    Slice([SaidSlice; 2]),
    /// All of it, from its slices.
    Slices,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Outcome {
    Open,
    Recomputed,
    Impossible,
}

/// What a blob that came, or did not come, means for the trials that wait for it.
#[derive(Debug)]
pub(crate) enum Step {
    /// All parts are here: compute the mean.
    Average(AverageOrder),
    /// The trial of this number cannot be held.
    Impossible(u32),
}

/// What is known of a closing that somebody accuses.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// It was never tried.
    Nothing,
    /// It is being tried.
    Open,
    /// It could not be tried.
    Impossible,
    /// It was recomputed.
    Recomputed,
}

/// What a trial was about that is over.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) closed: Closed,
    pub(crate) accuser: Option<NodeId>,
    pub(crate) what: What,
}

impl Ended {
    /// Returns who signed what was recomputed, and the advert that says so.
    pub(crate) fn signed(&self) -> Vec<(NodeId, AdvertId)> {
        match self.what {
            What::Slice(said) => said.map(|said| (said.author, said.advert)).into(),
            What::Mean | What::Slices => vec![(self.closed.author, self.closed.advert)],
        }
    }

    /// Returns the accusations of those who signed something else.
    pub(crate) fn faults(&self, actual: BlobRef) -> Vec<Fault> {
        let (said, slice) = match self.what {
            What::Slice([said, _]) => (said.mean, Some(said.slice)),
            What::Mean | What::Slices => (self.closed.global.mean, None),
        };
        if actual.id == said.id {
            return Vec::new();
        }
        let signed = self.signed().into_iter();
        let fault = |(accused, evidence)| Fault {
            accused,
            evidence,
            actual: actual.id,
            slice,
        };
        signed.map(fault).collect()
    }
}

/// The trials since the head moved last: one for each closing, or of its slices, so that none is taken for another.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Trials {
    trials: Vec<Trial>,
    /// How many there have been.
    count: u32,
}

impl Trials {
    /// Tells whether a closing was tried, or is being tried.
    pub(crate) fn know(&self, author: NodeId, global: &Global) -> bool {
        self.trials
            .iter()
            .any(|trial| trial.closed.is(author, global))
    }

    /// Visits the parts that are averaged in trials that are not over.
    pub(crate) fn blobs(&self) -> impl Iterator<Item = BlobId> + '_ {
        let is_open = |trial: &&Trial| trial.outcome == Outcome::Open;
        self.trials
            .iter()
            .filter(is_open)
            .flat_map(|trial| &trial.closed.global.members)
            .map(|member| member.shared.id)
    }

    /// Returns the members whose parts open trials wait for.
    pub(crate) fn awaited_from(&self) -> Vec<NodeId> {
        let is_open = |trial: &&Trial| trial.outcome == Outcome::Open;
        let open = self.trials.iter().filter(is_open);
        let members = open.flat_map(|trial| {
            let members = trial.closed.global.members.iter();
            members.filter(|member| trial.awaited.contains(&member.shared))
        });
        let nodes: BTreeSet<NodeId> = members.map(|member| member.node).collect();
        nodes.into_iter().collect()
    }

    /// Returns the round whose closing is tried, if one is.
    pub(crate) fn open_round(&self) -> Option<Round> {
        let open = |trial: &&Trial| trial.outcome == Outcome::Open;
        self.trials
            .iter()
            .find(open)
            .map(|trial| trial.closed.round)
    }

    /// Begins a trial of slices, or of one of them, and returns its number.
    pub(crate) fn begin_slices(
        &mut self,
        closed: Closed,
        accuser: Option<NodeId>,
        what: What,
    ) -> u32 {
        self.count += 1;
        self.trials.push(Trial {
            number: self.count,
            closed,
            // Whoever carries the order out fetches the slices, so no part is waited for here.
            awaited: BTreeSet::new(),
            accuser,
            outcome: Outcome::Open,
            masked: None,
            what,
        });
        self.count
    }

    /// Begins a trial and returns the members' parts that it needs.
    pub(crate) fn begin(
        &mut self,
        closed: Closed,
        accuser: Option<NodeId>,
        masked: Option<Box<Masked>>,
    ) -> Vec<(NodeId, BlobRef)> {
        let members = &closed.global.members;
        // These parts are in no sum. The trial must not fail because one of them is gone.
        let left_out = masked
            .as_ref()
            .map_or_else(BTreeSet::new, |masked| masked.sum().left_out(members));
        let members = members.iter().filter(|m| !left_out.contains(&m.node));
        let parts: Vec<(NodeId, BlobRef)> = members.map(|m| (m.node, m.shared)).collect();
        // Numbers are never used twice, so that the answer to a dropped trial is not taken for another one.
        self.count += 1;
        self.trials.push(Trial {
            number: self.count,
            closed,
            awaited: parts.iter().map(|(_, blob)| *blob).collect(),
            accuser,
            outcome: Outcome::Open,
            masked,
            what: What::Mean,
        });
        parts
    }

    /// Records that a part is here, or that it cannot be had.
    pub(crate) fn resolve(&mut self, arrival: Arrival) -> Vec<Step> {
        let mut steps = Vec::new();
        let ends = |part: &BlobRef| arrival.ends_wait_for(part, FetchKind::Shared);
        for trial in &mut self.trials {
            // A part that comes again after the trial is over changes nothing.
            if trial.outcome != Outcome::Open || !trial.awaited.iter().any(ends) {
                continue;
            }
            if !arrival.is_held() {
                // Without one part there is another mean, which says nothing of the signed one.
                steps.push(Step::Impossible(trial.number));
                continue;
            }
            trial.awaited.retain(|part| !ends(part));
            if trial.awaited.is_empty() {
                steps.push(Step::Average(AverageOrder {
                    round: trial.closed.round,
                    purpose: Purpose::Verify(trial.number),
                    members: trial.closed.global.members.clone(),
                    masked: trial.masked.clone(),
                }));
            }
        }
        steps
    }

    /// Ends a trial: what was recomputed, or could not be (`None`). Returns what it was about; `None` if no trial of that number
    /// is open.
    pub(crate) fn end(&mut self, number: u32, actual: Option<BlobRef>) -> Option<Ended> {
        let is_it = |trial: &&mut Trial| trial.number == number && trial.outcome == Outcome::Open;
        let trial = self.trials.iter_mut().find(is_it)?;
        trial.outcome = actual.map_or(Outcome::Impossible, |_| Outcome::Recomputed);
        Some(Ended {
            closed: trial.closed.clone(),
            accuser: trial.accuser,
            what: trial.what,
        })
    }

    /// Tells what is known of a closing.
    pub(crate) fn known(&self, author: NodeId, global: &Global) -> Known {
        let mut trials = self.trials.iter();
        let trial = trials.find(|trial| trial.closed.is(author, global));
        trial.map_or(Known::Nothing, Trial::known)
    }

    /// Tells what is known of a closing, and remembers who accuses it first.
    pub(crate) fn accuse(&mut self, author: NodeId, global: &Global, accuser: NodeId) -> Known {
        let mut trials = self.trials.iter_mut();
        if let Some(trial) = trials.find(|trial| trial.closed.is(author, global)) {
            trial.accuser.get_or_insert(accuser);
        }
        self.known(author, global)
    }

    /// Tells what is known of one slice of a closing's mean, or of all of them together, and remembers who accuses it first.
    pub(crate) fn accuse_slices(
        &mut self,
        author: NodeId,
        global: &Global,
        (slice, accuser): (Option<u32>, NodeId),
    ) -> Known {
        let is_it = |trial: &&mut Trial| {
            let is_that = match (trial.what, slice) {
                (What::Slice([said, _]), Some(slice)) => said.slice == slice,
                (What::Slices, None) => true,
                _ => false,
            };
            is_that && trial.closed.is(author, global)
        };
        let Some(trial) = self.trials.iter_mut().find(is_it) else {
            return Known::Nothing;
        };
        trial.accuser.get_or_insert(accuser);
        trial.known()
    }

    /// Tells whether a closing is being tried.
    pub(crate) fn has_open(&self, author: NodeId, global: &Global) -> bool {
        let is_open = |trial: &Trial| trial.outcome == Outcome::Open;
        let mut trials = self.trials.iter();
        trials.any(|trial| is_open(trial) && trial.closed.is(author, global))
    }

    /// Drops all trials: the head moved.
    pub(crate) fn clear(&mut self) {
        self.trials.clear();
    }
}
