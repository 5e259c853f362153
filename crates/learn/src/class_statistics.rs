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

use burn::tensor::activation::{sigmoid, softmax};
use burn::tensor::{Device, Tensor, TensorData};
use fednode_core::FederationSpec;
use fednode_core::spec::StatisticsGate;
use fednode_data::Samples;
use fednode_mix::Statistics;
use fednode_mix::blend::{Gate, Seen};
use fednode_mix::statistics::{EPSILON, PRIOR_FLOOR, tempered};
use fednode_onnx::{Graph, Reduction, Value};
use serde::{Deserialize, Serialize};

use crate::algorithm::{Algorithm, Output, Part, Role};
use crate::batch;
use crate::evaluate::BATCH;
use crate::maps::RandomMaps;
use crate::memory::Memory;
use crate::model::{Initial, Net, affine};
use crate::pool::Predictor;
use crate::random::{Purpose, nearly_normal, stream};
use crate::weights::{self, Weights};

/// What the temperature is chosen from.
pub(crate) const TEMPERATURES: [f64; 5] = [1.0, 2.0, 4.0, 8.0, 16.0];
/// What the weight of the statistics is chosen from.
pub(crate) const WEIGHTS: [f64; 7] = [0.0, 0.2, 0.35, 0.5, 0.65, 0.8, 1.0];
/// Where the arrays are in the part that is shared.
const COUNTS: usize = 0;
const SUMS: usize = 1;
const SCATTER: usize = 2;
/// The offset of a class that nobody has.
pub(crate) const LEAST_OFFSET: f64 = -1e30;
/// Keeps a probability of 0 from becoming a logarithm of minus infinity.
const SMALLEST: f64 = 1e-12;

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
}

/// Whether the node has added up its sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Gathering {
    /// Not yet: its model is what it shares.
    Ahead,
    /// Its sums, or everybody's, are what it shares.
    Done,
}

/// The classifier on the device.
struct Solved {
    /// A transposed, `[D, classes]`, divided by the temperature.
    weights: Tensor<2>,
    /// The mean of the features, `[1, D]`, which is taken from them first; nothing of projected ones.
    mean: Option<Tensor<2>>,
    /// `b / T + log(prior + 10⁻³)`, and the mean's scores, `[classes]`.
    offsets: Tensor<1>,
    mixing: Mixing,
}

/// What is added up.
#[derive(Debug)]
pub(crate) enum Features {
    /// What the common extractor says.
    Extractor,
    /// Random maps, the same for everybody.
    Random(RandomMaps),
    /// The samples as they are.
    Inputs,
}

impl Features {
    /// Returns the features of a batch; nothing without a common extractor.
    pub(crate) fn of(&self, algorithm: &dyn Algorithm, inputs: Tensor<2>) -> Option<Tensor<2>> {
        match self {
            Self::Extractor => algorithm.features(inputs),
            Self::Random(maps) => Some(maps.features(inputs)),
            Self::Inputs => Some(inputs),
        }
    }

    /// Writes into a graph what [`Self::of`] returns.
    pub(crate) fn emit(
        &self,
        algorithm: &dyn Algorithm,
        graph: &mut Graph,
        inputs: Value,
    ) -> Option<Value> {
        match self {
            Self::Extractor => Some(algorithm.extractor()?.emit(graph, inputs)),
            Self::Random(maps) => Some(maps.emit(graph, inputs)),
            Self::Inputs => Some(inputs),
        }
    }
}

/// A validation sample, and what is said of it.
struct Judged {
    class: usize,
    /// The node's own probabilities.
    own: Vec<f64>,
    /// The statistics expert's logits.
    logits: Vec<f64>,
}

impl Judged {
    /// Returns the log loss of the mixture.
    fn loss(&self, temperature: f64, weight: f64, prior: &[f64]) -> f64 {
        let statistics = tempered(&self.logits, temperature, prior)[self.class];
        -(weight * statistics + (1.0 - weight) * self.own[self.class])
            .max(SMALLEST)
            .ln()
    }

    /// Returns what a gate is fitted to.
    fn seen(&self, temperature: f64, prior: &[f64]) -> Seen {
        let statistics = tempered(&self.logits, temperature, prior);
        Seen {
            own: self.own[self.class],
            statistics: statistics[self.class],
            entropies: [relative_entropy(&self.own), relative_entropy(&statistics)],
        }
    }
}

/// How much of the statistics expert.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mixing {
    /// lambda.
    Weight(f64),
    /// lambda by the sample.
    Gate(Gate),
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
            ("statistics.counts", &[classes], zero),
            ("statistics.sums", &[classes, width], zero),
            ("statistics.scatter", &scatter, zero),
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

    /// Solves again with the choice that was made, after a restart.
    pub(crate) fn solve(&mut self, device: &Device) {
        let (choice, gate) = (self.chosen(0), self.chosen(2));
        let (temperature, weight) = (choice[0], choice[1]);
        let gate = Gate([gate[0], gate[1], gate[2]]);
        let is_gated = gate != Gate([0.0; 3]);
        self.solved = None;
        if let Ok(solved) = self.statistics().solve(EPSILON)
            && temperature > 0.0
            && (weight > 0.0 || is_gated)
        {
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
            let offset = |(b, pi): (&f64, &f64)| {
                (b / temperature).max(LEAST_OFFSET) + (pi + PRIOR_FLOOR).ln()
            };
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
            self.solved = Some(Solved {
                weights,
                mean: mean.map(|mean| upload(&mean, device).unsqueeze()),
                offsets: upload(&offsets, device),
                mixing,
            });
        }
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

    /// Returns the temperature and weight of the lowest log loss, or the gate at that temperature; `None` without
    /// validation samples or classifier.
    fn choose(
        &self,
        predictor: &Predictor<'_>,
        prior: &[f64],
        validation: &Samples,
        device: &Device,
    ) -> Option<(f64, Mixing)> {
        let judged = self.judge(predictor, validation, device)?;
        let loss = |temperature: f64, weight: f64| -> f64 {
            let of = |judged: &Judged| judged.loss(temperature, weight, prior);
            judged.iter().map(of).sum()
        };
        let choices = TEMPERATURES
            .iter()
            .flat_map(|temperature| WEIGHTS.map(|weight| (*temperature, weight)));
        let (temperature, weight) =
            choices.min_by(|a, b| loss(a.0, a.1).total_cmp(&loss(b.0, b.1)))?;
        let fit = || {
            let seen = judged.iter().map(|judged| judged.seen(temperature, prior));
            Gate::fit(&seen.collect::<Vec<_>>())
        };
        let gate = self.gates_samples.then(fit).flatten();
        Some((
            temperature,
            gate.map_or(Mixing::Weight(weight), Mixing::Gate),
        ))
    }

    /// Asks node and statistics about every validation sample; `None` without samples or classifier.
    fn judge(
        &self,
        predictor: &Predictor<'_>,
        validation: &Samples,
        device: &Device,
    ) -> Option<Vec<Judged>> {
        let solved = self
            .statistics()
            .solve(EPSILON)
            .ok()
            .filter(|_| !validation.is_empty())?;
        let mut judged = Vec::with_capacity(validation.len());
        for_each_batch(validation, device, |positions, inputs| {
            let own = weights::values(&softmax(predictor.forward(inputs.clone()).logits, 1));
            let features = self.features(predictor.algorithm, inputs);
            let features = features
                .map(|features| weights::values(&features))
                .unwrap_or_default();
            for ((at, own), features) in positions
                .iter()
                .zip(own.chunks_exact(self.classes))
                .zip(features.chunks_exact(self.width))
            {
                judged.push(Judged {
                    class: usize::from(validation.labels[*at as usize]),
                    own: own.iter().copied().map(f64::from).collect(),
                    logits: solved.logits(features),
                });
            }
        });
        Some(judged)
    }

    /// Runs the mixture; the node's own prediction alone while there is no classifier.
    pub(crate) fn forward(&self, predictor: &Predictor<'_>, inputs: Tensor<2>) -> Output {
        let own = predictor.forward(inputs.clone());
        let features = || self.source.of(predictor.algorithm, inputs);
        let Some((solved, features)) = self
            .solved
            .as_ref()
            .and_then(|solved| Some((solved, features()?)))
        else {
            return own;
        };
        let centred = match &solved.mean {
            Some(mean) => features - mean.clone(),
            None => features,
        };
        let logits = affine(
            centred,
            solved.weights.clone(),
            Some(solved.offsets.clone()),
        );
        let (statistics, alone) = (softmax(logits, 1), softmax(own.logits, 1));
        let mixed = match solved.mixing {
            Mixing::Weight(weight) => {
                statistics.mul_scalar(weight) + alone.mul_scalar(1.0 - weight)
            }
            Mixing::Gate(gate) => {
                let weight = weights_of(gate, &alone, &statistics);
                alone.clone() + weight * (statistics - alone)
            }
        };
        Output {
            logits: mixed.add_scalar(SMALLEST).log(),
            ..own
        }
    }

    /// Writes into a graph the logits that [`Self::forward`] computes.
    pub(crate) fn emit(&self, own: &Predictor<'_>, graph: &mut Graph, inputs: Value) -> Value {
        let logits = own.emit(graph, inputs);
        let features = |graph: &mut Graph| self.source.emit(own.algorithm, graph, inputs);
        let solved = self.solved.as_ref();
        let Some((solved, features)) = solved.and_then(|solved| Some((solved, features(graph)?)))
        else {
            return logits;
        };
        let [width, classes] = solved.weights.dims();
        let matrix = weights::values(&solved.weights);
        let matrix = graph.floats("statistics.weights", matrix, &[width, classes]);
        let offsets = weights::values(&solved.offsets);
        let offsets = graph.floats("statistics.offsets", offsets, &[classes]);
        let centred = match &solved.mean {
            Some(mean) => {
                let mean = graph.floats("statistics.mean", weights::values(mean), &[width]);
                graph.sub(features, mean)
            }
            None => features,
        };
        let scores = graph.affine(centred, matrix, Some(offsets));
        let (statistics, alone) = (graph.softmax(scores), graph.softmax(logits));
        let weight = match solved.mixing {
            Mixing::Weight(weight) => graph.number(weight),
            Mixing::Gate(gate) => emit_weights_of(gate, graph, (alone, statistics), classes),
        };
        let difference = graph.sub(statistics, alone);
        let step = graph.mul(difference, weight);
        let mixed = graph.add(alone, step);
        let safe = graph.add_number(mixed, SMALLEST);
        graph.log(safe)
    }
}

/// Writes into a graph what [`weights_of`] returns.
fn emit_weights_of(
    Gate([bias, own, statistics]): Gate,
    graph: &mut Graph,
    (alone, by_statistics): (Value, Value),
    classes: usize,
) -> Value {
    let weighed = |graph: &mut Graph, probabilities: Value, weight: f64| {
        let safe = graph.add_number(probabilities, SMALLEST);
        let logarithms = graph.log(safe);
        let terms = graph.mul(probabilities, logarithms);
        let sum = graph.reduce(Reduction::Sum, terms, 1);
        graph.mul_number(sum, -weight / (classes as f64).ln())
    };
    let own = weighed(graph, alone, own);
    let statistics = weighed(graph, by_statistics, statistics);
    let sum = graph.add(own, statistics);
    let score = graph.add_number(sum, bias);
    graph.sigmoid(score)
}

/// Returns the mean of the features over all samples, as exact as it is on the device, given counts and sums of classes
/// or groups.
pub(crate) fn mean_features(counts: &[f64], sums: &[f64]) -> Vec<f64> {
    let total: f64 = counts.iter().sum();
    let width = sums.len() / counts.len().max(1);
    let column = |at: usize| sums.iter().skip(at).step_by(width.max(1));
    let mean = |at: usize| column(at).sum::<f64>() / total.max(f64::MIN_POSITIVE);
    (0..width).map(|at| f64::from(mean(at) as f32)).collect()
}

/// Makes a classifier small whose scores are small differences of large numbers: rounding errors are in proportion to
/// these.
///
/// What the rows of all classes have in common moves all scores alike, and no probability. The scores of the mean
/// features, if given, go into the offsets, so that the rows need only be multiplied by what is left of features.
pub(crate) fn centre(rows: &mut [f64], offsets: &mut [f64], mean: Option<&[f64]>) {
    let n_rows = offsets.len().max(1);
    let width = rows.len() / n_rows;
    for column in 0..width {
        let common = rows.iter().skip(column).step_by(width).sum::<f64>() / n_rows as f64;
        let column = rows.iter_mut().skip(column).step_by(width);
        column.for_each(|value| *value -= common);
    }
    for (offset, row) in offsets.iter_mut().zip(rows.chunks_exact(width.max(1))) {
        let mean = mean.unwrap_or_default();
        *offset += row.iter().zip(mean).map(|(a, m)| a * m).sum::<f64>();
    }
    let possible = |offset: &&mut f64| **offset > LEAST_OFFSET / 2.0;
    let largest = offsets.iter().copied().fold(LEAST_OFFSET, f64::max);
    let moved = offsets.iter_mut().filter(possible);
    moved.for_each(|offset| *offset -= largest);
}

/// Returns the gate's lambda for each sample, `[batch, 1]`.
fn weights_of(
    Gate([bias, own, statistics]): Gate,
    alone: &Tensor<2>,
    by_statistics: &Tensor<2>,
) -> Tensor<2> {
    let entropy = |probabilities: &Tensor<2>| {
        let most = (probabilities.dims()[1] as f64).ln();
        (probabilities.clone() * probabilities.clone().add_scalar(SMALLEST).log())
            .sum_dim(1)
            .div_scalar(-most)
    };
    sigmoid(
        entropy(alone).mul_scalar(own)
            + entropy(by_statistics)
                .mul_scalar(statistics)
                .add_scalar(bias),
    )
}

/// Returns the entropy of probabilities, divided by that of as many equal ones.
fn relative_entropy(probabilities: &[f64]) -> f64 {
    let terms = probabilities.iter().map(|p| -p * (p + SMALLEST).ln());
    terms.sum::<f64>() / (probabilities.len() as f64).ln()
}

/// Draws the matrix that features are projected by, so that lengths stay what they are on average.
fn projection(from: usize, to: usize, seed: u64, device: &Device) -> Tensor<2> {
    let mut draws = stream(Purpose::Projection, [seed, from as u64, to as u64]);
    let scale = 1.0 / (to as f64).sqrt();
    let values: Vec<f64> = nearly_normal(&mut draws, from * to)
        .into_iter()
        .map(|value| value * scale)
        .collect();
    upload(&values, device).reshape([from, to])
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
