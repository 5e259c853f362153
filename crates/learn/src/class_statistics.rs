//! The statistics expert: a classifier from sums over all nodes' features, mixed with the node's own by its validation
//! samples (the closed form is [`fednode_mix::statistics`]).
//!
//! ```text
//! last round   nobody trains; every node shares its sums over the features of the common base, divided by its samples
//! mean         weighted by samples, so it is exactly the sum over all who were counted, divided by their samples
//! then         every node solves for the same classifier and predicts with its own prior, mixed with its own head:
//!              log p = log(lambda · p_statistics + (1 - lambda) · p_own)
//! ```
//!
//! Probabilities are mixed, not their logarithms: so neither expert can rule out what the other predicts.
//!
//! The features are those of the common extractor or, with `statistics.features=random`, of filters that nobody trains
//! ([`crate::maps`]): then nodes need no extractor in common, and what they share says nothing of their models.
//!
//! The features may be projected first, to fewer numbers, by a matrix of nearly normal draws of the federation's seed
//! (`statistics.dimensions`). Temperature and lambda are chosen on the node's validation samples by log loss; lambda 0 is
//! among the choices, so the mixture is never worse on them than the own head. With `statistics.gate=sample` a gate makes
//! lambda of how certain the two are of each sample ([`fednode_mix::blend`]), where those samples speak for it. A node
//! without validation samples keeps its own head, and so does everybody if the features are all alike, so that there is no
//! classifier. What the sums reveal: a node with few samples of a class nearly publishes their mean feature.

mod choosing;
mod features;
mod serving;

use burn::tensor::{Device, Tensor, TensorData};
use fednode_core::spec::StatisticsGate;
use fednode_core::{Component, Composition, FederationSpec};
use fednode_data::Samples;
use fednode_mix::Statistics;
use fednode_mix::blend::Gate;
use fednode_mix::names;
use fednode_mix::statistics::{Discriminant, EPSILON, PRIOR_FLOOR, StatisticsError};
use serde::{Deserialize, Serialize};

use crate::algorithm::{Algorithm, Part, Role};
use crate::batch;
use crate::evaluate::BATCH;
use crate::memory::Memory;
use crate::model::{Initial, Net};
use crate::pool::Predictor;
use crate::weights::{self, Weights};

pub(crate) use choosing::{TEMPERATURES, WEIGHTS};
pub(crate) use features::Features;
use features::projection;
pub(crate) use serving::{LEAST_OFFSET, centre, mean_features};
use serving::{Mixing, Solved};

/// Where the arrays are in the part that is shared.
const COUNTS: usize = 0;
const SUMS: usize = 1;
const SCATTER: usize = 2;
/// A node's share in the statistics, and what it makes of everybody's.
pub(crate) struct ClassStatistics {
    /// Counts, sums and scatter: the node's own, then the mean over all nodes.
    pub(crate) sums: Part,
    /// Temperature and weight, the node's prior, and the gate; zeros until they are chosen, and where there is no gate.
    pub(crate) choice: Part,
    source: Features,
    classes: usize,
    /// How many numbers the sums are over.
    width: usize,
    /// Makes those of the features, `[D, width]`.
    projection: Option<Tensor<2>>,
    gates_samples: bool,
    gathering: Gathering,
    solved: Option<Solved>,
    /// Why there is no expert, where the sums are there.
    missing: Option<Missing>,
}

/// Why there is no statistics expert.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
enum Missing {
    #[error("the members' sums have not come together in the last round")]
    NothingCame,
    #[error("the members' sums cannot be those of samples: {0}")]
    Impossible(&'static str),
    #[error("{0}")]
    NoClassifier(#[from] StatisticsError),
    #[error("it makes predictions of this node's validation samples no better, or there are none")]
    NotWorthIt,
}

/// What was left out, to be put back.
pub(crate) struct LeftOut(Weights, Option<Solved>);

/// Whether the node has added up its sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Gathering {
    /// Not yet: its model is what it shares.
    Ahead,
    /// Its sums, or everybody's, are what it shares.
    Done,
}

impl ClassStatistics {
    /// Makes the empty statistics of features of this width.
    pub(crate) fn new(
        spec: &FederationSpec,
        source: Features,
        features: usize,
        device: &Device,
    ) -> Self {
        let FederationSpec {
            statistics: spec,
            fingerprints: known,
            seed,
            ..
        } = spec;
        let (classes, seed) = (known.classes, *seed);
        let projects = spec.dimensions > 0;
        let width = if projects { spec.dimensions } else { features };
        let projection = projects.then(|| projection(features, width, seed, device));
        let zero = Initial::Zeros;
        let scatter = [width * (width + 1) / 2];
        let sums = Net::arrays(&[
            (names::COUNTS, &[classes], zero),
            (names::SUMS, &[classes, width], zero),
            (names::SCATTER, &scatter, zero),
        ]);
        let choice = Net::arrays(&[
            ("statistics.choice", &[2], zero),
            ("statistics.prior", &[classes], zero),
            ("statistics.gate", &[3], zero),
        ]);
        let part = |net| Part::new(Role::Private, net, 0, 0, device);
        let gates_samples = spec.gate == StatisticsGate::Sample;
        Self {
            sums: part(sums),
            choice: part(choice),
            source,
            classes,
            width,
            projection,
            gates_samples,
            gathering: Gathering::Ahead,
            solved: None,
            missing: None,
        }
    }

    /// Returns what is added up of inputs.
    fn features(&self, algorithm: &dyn Algorithm, inputs: Tensor<2>) -> Option<Tensor<2>> {
        let features = self.source.of(algorithm, inputs)?;
        Some(match &self.projection {
            Some(projection) => features.matmul(projection.clone()),
            None => features,
        })
    }

    /// Tells whether sums are there, so that they are what is shared.
    pub(crate) fn is_gathered(&self) -> bool {
        self.gathering == Gathering::Done
    }

    /// Returns what is remembered besides numbers; nothing before the sums are there.
    pub(crate) fn memory(&self) -> Option<Memory> {
        self.is_gathered().then(|| Memory::of(&self.gathering))
    }

    /// Remembers what a state says. States from before there were memories are told by their sums.
    pub(crate) fn recall(&mut self, memory: Option<Gathering>) {
        let counts = weights::values(&self.sums.weights.tensor(COUNTS));
        let by_sums = if counts.iter().any(|count| *count != 0.0) {
            Gathering::Done
        } else {
            Gathering::Ahead
        };
        self.gathering = memory.unwrap_or(by_sums);
    }

    /// Adds up over the training samples.
    pub(crate) fn gather(&mut self, algorithm: &dyn Algorithm, samples: &Samples, device: &Device) {
        let mut statistics = Statistics::new(self.classes, self.width);
        for_each_batch(samples, device, |positions, inputs| {
            let features = self
                .features(algorithm, inputs)
                .map(|features| weights::values(&features));
            for (at, features) in positions
                .iter()
                .zip(features.unwrap_or_default().chunks_exact(self.width))
            {
                statistics.add(features, usize::from(samples.labels[*at as usize]));
            }
        });
        statistics.scale(1.0 / samples.len().max(1) as f64);
        let tensor = |values: &[f64]| upload(values, device);
        let Statistics {
            counts,
            sums,
            scatter,
            ..
        } = &statistics;
        self.sums.weights = Weights::new(vec![tensor(counts), tensor(sums), tensor(scatter)]);
        (self.gathering, self.solved) = (Gathering::Done, None);
        self.missing = Some(Missing::NothingCame);
    }

    /// Returns what [`Self::gather`] replaces.
    pub(crate) fn gathered(&self) -> (Weights, Gathering) {
        (self.sums.weights.clone(), self.gathering)
    }

    /// Goes back to what was there before sums were added up.
    pub(crate) fn put_back(&mut self, (sums, gathering): (Weights, Gathering)) {
        (self.sums.weights, self.gathering) = (sums, gathering);
        (self.solved, self.missing) = (None, None);
    }

    /// Goes back to what was there before any were added up: the model is what is shared again.
    pub(crate) fn begin_anew(&mut self) {
        for part in [&mut self.sums, &mut self.choice] {
            part.weights = part.weights.zeros();
        }
        (self.gathering, self.solved, self.missing) = (Gathering::Ahead, None, None);
    }

    /// Says that there is no statistics expert and why, if its time has come.
    pub(crate) fn lacks(&self) -> Option<String> {
        let missing = self.missing.as_ref()?;
        Some(format!("no statistics expert: {missing}"))
    }

    /// Solves for the classifier of everybody's sums, and chooses temperature and weight on validation samples.
    pub(crate) fn adopt(
        &mut self,
        own: &Predictor<'_>,
        class_counts: &[u32],
        validation: &Samples,
        device: &Device,
    ) {
        let total = f64::from(class_counts.iter().sum::<u32>().max(1));
        let prior: Vec<f64> = class_counts
            .iter()
            .map(|count| f64::from(*count) / total)
            .collect();
        let (temperature, mixing) = self
            .choose(own, &prior, validation, device)
            .unwrap_or((1.0, Mixing::Weight(0.0)));
        let (weight, gate) = match mixing {
            Mixing::Weight(weight) => (weight, [0.0; 3]),
            Mixing::Gate(Gate(gate)) => (0.0, gate),
        };
        let choice = [&[temperature, weight], prior.as_slice(), &gate];
        self.choice.weights = Weights::new(choice.map(|values| upload(values, device)).to_vec());
        self.solve(device);
        if let Some(lacks) = self.lacks() {
            tracing::warn!("{lacks}");
        }
    }

    /// Chooses again, because the node's own prediction is another one now; nothing to do before the first choice.
    pub(crate) fn choose_again(
        &mut self,
        own: &Predictor<'_>,
        class_counts: &[u32],
        validation: &Samples,
        device: &Device,
    ) {
        if self.chosen(0)[0] > 0.0 {
            self.adopt(own, class_counts, validation, device);
        }
    }

    /// Tells whether the expert is in what is served.
    pub(crate) fn serves_peers(&self) -> bool {
        self.solved.is_some()
    }

    /// Says what this expert counts for beside `own`.
    pub(crate) fn joined_with(&self, own: Composition) -> Composition {
        let component = Component::CommonStatistics;
        match (&self.solved, &self.missing) {
            (Some(solved), _) => match solved.mixing {
                Mixing::Weight(weight) => own.joined(component, weight),
                Mixing::Gate(_) => own.gated(component),
            },
            (None, Some(Missing::NotWorthIt)) => own.without(component),
            (None, _) => own,
        }
    }

    /// Serves the own model alone; returns the expert and the choice from before.
    pub(crate) fn leave_peers_out(&mut self, device: &Device) -> LeftOut {
        let (choice, prior) = (self.chosen(0), self.chosen(1));
        let choice = [&[choice[0], 0.0], prior.as_slice(), &[0.0; 3]];
        let choice = Weights::new(choice.map(|values| upload(values, device)).to_vec());
        let before = std::mem::replace(&mut self.choice.weights, choice);
        self.missing = Some(Missing::NotWorthIt);
        LeftOut(before, self.solved.take())
    }

    /// Serves again what was left out.
    pub(crate) fn put_peers_back(&mut self, LeftOut(choice, solved): LeftOut) {
        (self.choice.weights, self.solved, self.missing) = (choice, solved, None);
    }

    /// Solves again with the choice that was made, after a restart.
    pub(crate) fn solve(&mut self, device: &Device) {
        self.solved = None;
        self.missing = match self.solve_as_chosen(device) {
            _ if !self.is_gathered() => None,
            Ok(solved) => {
                self.solved = Some(solved);
                None
            }
            Err(missing) => Some(missing),
        };
    }

    /// Solves for the classifier of the sums, unless they have a fault.
    fn classifier(&self) -> Result<Discriminant, Missing> {
        let statistics = self.statistics();
        if let Some(fault) = statistics.fault() {
            return Err(Missing::Impossible(fault));
        }
        Ok(statistics.solve(EPSILON)?)
    }

    fn solve_as_chosen(&self, device: &Device) -> Result<Solved, Missing> {
        let (choice, gate) = (self.chosen(0), self.chosen(2));
        let (temperature, weight) = (choice[0], choice[1]);
        let gate = Gate([gate[0], gate[1], gate[2]]);
        let is_gated = gate != Gate([0.0; 3]);
        if temperature <= 0.0 {
            return Err(Missing::NothingCame);
        }
        let solved = self.classifier()?;
        if weight <= 0.0 && !is_gated {
            return Err(Missing::NotWorthIt);
        }
        let mixing = if is_gated {
            Mixing::Gate(gate)
        } else {
            Mixing::Weight(weight)
        };
        let prior = self.chosen(1);
        let mut scaled: Vec<f64> = solved
            .weights
            .iter()
            .map(|value| value / temperature)
            .collect();
        let offset =
            |(b, pi): (&f64, &f64)| (b / temperature).max(LEAST_OFFSET) + (pi + PRIOR_FLOOR).ln();
        let mut offsets: Vec<f64> = solved.offsets.iter().zip(&prior).map(offset).collect();
        let known = self.statistics();
        let mean = || mean_features(&known.counts, &known.sums);
        let mean = self.projection.is_none().then(mean);
        centre(&mut scaled, &mut offsets, mean.as_deref());
        let weights = upload(&scaled, device)
            .reshape([self.classes, self.width])
            .transpose();
        let weights = match &self.projection {
            Some(projection) => projection.clone().matmul(weights),
            None => weights,
        };
        Ok(Solved {
            weights,
            mean: mean.map(|mean| upload(&mean, device).unsqueeze()),
            offsets: upload(&offsets, device),
            mixing,
        })
    }

    fn chosen(&self, array: usize) -> Vec<f64> {
        weights::values(&self.choice.weights.tensor(array))
            .into_iter()
            .map(f64::from)
            .collect()
    }

    fn statistics(&self) -> Statistics {
        let numbers = |at: usize| {
            weights::values(&self.sums.weights.tensor(at))
                .into_iter()
                .map(f64::from)
                .collect()
        };
        let mut statistics = Statistics::new(self.classes, self.width);
        (statistics.counts, statistics.sums, statistics.scatter) =
            (numbers(COUNTS), numbers(SUMS), numbers(SCATTER));
        statistics
    }
}

pub(crate) fn upload(values: &[f64], device: &Device) -> Tensor<1> {
    let values: Vec<f32> = values.iter().map(|value| *value as f32).collect();
    let count = values.len();
    Tensor::from_data(TensorData::new(values, [count]), device)
}

pub(crate) fn for_each_batch(
    samples: &Samples,
    device: &Device,
    mut visit: impl FnMut(&[u32], Tensor<2>),
) {
    let positions: Vec<u32> = (0..samples.len() as u32).collect();
    for chunk in positions.chunks(BATCH) {
        visit(chunk, batch::inputs(samples, chunk, device));
    }
}
