//! What determines a local update besides parameters and data, and where its samples are kept meanwhile.
//!
//! ```text
//! parts before ─► epochs of a round ─► parts after          kept only if all of it went well
//! ```
//!
//! It trains [`Parts`] and knows nothing of what else a learner serves: statistics, agreement, a pool.

use std::borrow::Cow;
use std::sync::Arc;

use burn::tensor::Device;
use fednode_core::spec::TrainingSpec;
use fednode_core::work::Watch;
use fednode_core::{FederationSpec, Round};
use fednode_data::{Samples, Split};

use super::parts::Parts;
use crate::algorithm::{Algorithm, RoundContext};
use crate::error::LearnError;
use crate::feature_cache::CacheBudget;
use crate::model::multiply_adds;
use crate::private::Promise;
use crate::resident::Resident;
use crate::train::{Epochs, Outcome, Schedule};

/// How a node trains.
pub(super) struct Training {
    pub(super) spec: TrainingSpec,
    pub(super) rounds: u32,
    /// How many of them a schedule of learning rates takes.
    scheduled: u32,
    pub(super) seed: u64,
    pub(super) node_seed: u64,
    /// What the federation promises, where what is trained is published under a promise.
    pub(super) promise: Option<Promise>,
    /// Where what frozen parts make of the samples is kept.
    pub(super) budget: CacheBudget,
    /// The training samples on the device, if they are kept there, and of which data they are.
    resident: Option<(Arc<Split>, Option<Resident>)>,
}

/// Epochs of a round, and how they are run.
#[derive(Clone, Copy)]
pub(super) struct Stretch {
    pub(super) round: Round,
    pub(super) epochs: Epochs,
    /// [`train`](crate::train::train) or [`finish`](crate::train::finish).
    pub(super) run: Run,
}

/// A way to run epochs.
type Run = fn(
    &mut dyn Algorithm,
    &Samples,
    Schedule<'_>,
    &Device,
    &mut Watch<'_>,
) -> Result<Outcome, LearnError>;

impl Training {
    pub(super) fn of(spec: &FederationSpec, node_seed: u64) -> Self {
        Self {
            spec: spec.training.clone(),
            rounds: spec.rounds,
            scheduled: spec.scheduled_rounds(),
            seed: spec.seed,
            node_seed,
            promise: None,
            budget: CacheBudget::default(),
            resident: None,
        }
    }

    /// Trains, or leaves all parameters as they are.
    ///
    /// # Errors
    /// Fails when the watcher breaks off or the loss is no longer finite.
    pub(super) fn run(
        &mut self,
        parts: &mut Parts,
        (data, classes): (&Arc<Split>, usize),
        stretch: Stretch,
        watch: &mut Watch<'_>,
    ) -> Result<Outcome, LearnError> {
        let before = parts.snapshot();
        self.upload(data, classes, parts.device.tensors());
        let samples = data.train.in_round(stretch.round.0, self.rounds);
        let draws = self.promise.as_ref();
        let draws =
            draws.map(|promise| promise.begin(stretch.round, parts.algorithm.parts(), &samples));
        let is_whole = matches!(samples, Cow::Borrowed(_));
        let resident = self.resident.as_ref().filter(|_| is_whole);
        let schedule = Schedule {
            ctx: RoundContext {
                round: stretch.round,
                rounds: self.scheduled,
                training: &self.spec,
                class_counts: &count(&data.train, classes),
                seed: self.seed,
                node_seed: self.node_seed,
            },
            epochs: stretch.epochs,
            budget: &self.budget,
            resident: resident.and_then(|(_, samples)| samples.as_ref()),
            draws: draws.as_ref(),
        };
        let Parts {
            algorithm, device, ..
        } = parts;
        let tensors = device.tensors();
        let work = || (stretch.run)(algorithm.as_mut(), &samples, schedule, tensors, watch);
        let (result, multiply_adds) = device.run(|| multiply_adds::counted(work));
        if result.is_err() {
            parts.go_back(before)?;
        }
        Ok(Outcome {
            multiply_adds,
            ..result?
        })
    }

    /// Uploads the training samples, unless they are on the device.
    fn upload(&mut self, data: &Arc<Split>, classes: usize, device: &Device) {
        let is_there = |(of, _): &(Arc<Split>, _)| Arc::ptr_eq(of, data);
        if !self.resident.as_ref().is_some_and(is_there) {
            let samples = Resident::upload(&data.train, classes, device);
            self.resident = Some((Arc::clone(data), samples));
        }
    }
}

/// Counts the samples of each class.
pub(super) fn count(samples: &Samples, classes: usize) -> Vec<u32> {
    let mut counts = vec![0; classes];
    for label in &samples.labels {
        counts[usize::from(*label)] += 1;
    }
    counts
}
