//! Going on with a run that was interrupted.
//!
//! All that happens follows from the scenario and from what the members were told by whoever trains, mixes and averages
//! for them. So nothing of the simulator's own state is kept. A run is gone on with by playing it again up to where it
//! was. The replay has the run's [`Answer`]s instead of models, and the contents of the blobs that were held then. That
//! is as quick as a run without training, and whatever the state machines remember is as it was, to the last bit.
//!
//! ```text
//! first time   Trained ◄── Trainers          each answer ─► Trainers::remember      Moment::contents ─┐
//! again        Trained ◄── Past::answers     the trainers hear nothing      Past::contents ◄─────────┘
//!              ... and from event Past::events on as the first time
//! ```

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use fednode_core::masked::Unmask;
use fednode_core::work::{Order, Outcome, WorkError};
use fednode_core::{BlobId, BlobRef, LocalReport, ParamSet, Round, Timestamp};
use serde::{Deserialize, Serialize};

use crate::trainers::Trainers;
use fednode_engine::execute::Adoption;
use fednode_engine::{
    AverageReport, Input, JoinReport, MergeReport, ModuleReport, PoolReport, SliceReport,
};

/// Contents of blobs.
pub type Contents = HashMap<BlobId, Arc<ParamSet>>;

/// What was computed for a member, and the blobs that it has since.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// Who.
    pub member: usize,
    /// What it was told.
    pub told: Told,
    /// The blobs, in the order in which they were made.
    pub made: Vec<Made>,
}

/// What a member was told. One input of the state machines each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Told {
    /// [`Input::Trained`].
    Trained(LocalReport),
    /// [`Input::Merged`].
    Merged(MergeReport),
    /// [`Input::Averaged`].
    Averaged(AverageReport),
    /// [`Input::Unmasked`].
    Unmasked(Round, Option<Unmask>),
    /// [`Input::Module`].
    Module(Option<ModuleReport>),
    /// [`Input::Pooled`].
    Pooled(PoolReport),
    /// [`Input::Sliced`].
    Sliced(SliceReport),
    /// [`Input::Joined`].
    Joined(JoinReport),
}

impl From<Told> for Input {
    fn from(told: Told) -> Self {
        match told {
            Told::Trained(report) => Self::Trained(report),
            Told::Merged(report) => Self::Merged(report),
            Told::Averaged(report) => Self::Averaged(report),
            Told::Unmasked(round, word) => Self::Unmasked { round, word },
            Told::Module(report) => Self::Module(report),
            Told::Pooled(report) => Self::Pooled(report),
            Told::Sliced(report) => Self::Sliced(report),
            Told::Joined(report) => Self::Joined(report),
        }
    }
}

/// A blob that was made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Made {
    /// Its name and size.
    pub blob: BlobRef,
    /// The round it is of.
    pub round: Round,
    /// Its bytes, if they are proxies: those are what plans are computed from.
    pub proxies: Option<Vec<u8>>,
}

/// A moment between two events.
#[derive(Debug)]
pub struct Moment<'a> {
    /// Events so far.
    pub events: u64,
    /// The contents of all blobs that are held.
    pub contents: &'a Contents,
    /// Whether an earlier run is being played again, and nothing is new yet.
    pub is_past: bool,
}

/// What is known of the run that was interrupted.
pub struct Past {
    /// Its events.
    pub events: u64,
    /// Its answers, in order.
    pub answers: Box<dyn Iterator<Item = Answer>>,
    /// The contents of the blobs that were held after its last event.
    pub contents: Contents,
}

impl fmt::Debug for Past {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Past")
            .field("events", &self.events)
            .finish_non_exhaustive()
    }
}

/// Stands in for the trainers while the past is played again: they know already.
#[derive(Debug)]
pub(super) struct Silent;

impl Trainers for Silent {
    fn initial_shared(&mut self) -> Option<ParamSet> {
        None
    }

    fn begin(&mut self, _member: usize, _order: Order, _ends: Timestamp) {}

    fn end(&mut self, _member: usize) -> Result<Outcome, WorkError> {
        Err(WorkError::WrongAnswer)
    }

    fn shared(&mut self, _member: usize) -> Option<Arc<ParamSet>> {
        None
    }

    fn adopt(&mut self, _member: usize, _round: Round, _adoption: Adoption) {}

    fn save(&mut self, _member: usize) {}

    fn restore(&mut self, _member: usize) {}
}
