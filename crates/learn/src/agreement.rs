//! Statistics of the peers that agree: experts in closed form, multiplied with the node's own model
//! (`hyper.profile=agreement` of FedMoE-DA; who agrees is judged in [`fednode_mix::matching`]).
//!
//! ```text
//! before round 1    every node adds up its samples' features by class and group: counts, sums and scatter, divided by
//!                   their number
//! proxies           the class means of those sums; each node makes its own row of agreements from everybody's
//! experts           the sums; those of agreeing peers are fetched, and added up as the row says
//! own classifiers   discriminant analysis of them, and the same with slots within the classes (fednode_mix::slots)
//! served            log p = lambda · log p_statistics + (1 - lambda) · log p_own, up to a constant
//! ```
//!
//! The features are random maps, the same for everybody ([`crate::maps`]), or the inputs themselves where these are no
//! images. So nodes need no extractor in common, any algorithm may train the own model beside it, and statistics stay as
//! they are from round to round: their blobs are fetched once.
//!
//! | file | is |
//! |---|---|
//! | `gathering` | what a node adds up of its samples |
//! | `fitting` | the classifiers of the peers' sums, and whether slots pay |
//! | `choosing` | how statistics and own model are joined |

mod choosing;
mod fitting;
mod gathering;

use std::ops::Range;

use burn::tensor::activation::softmax;
use burn::tensor::{Device, Tensor};
use fednode_core::spec::Architecture;
use fednode_core::{
    BlobId, ConfigError, ExpertExchange, FederationSpec, ParamSet, Precision, Round, Slot,
};
use fednode_mix::Statistics;
use fednode_mix::slots::{GROUPS, SLOTS, Slots};
use fednode_mix::statistics::{Discriminant, EPSILON, PRIOR_FLOOR, StatisticsError};
use fednode_onnx::{Graph, Reduction, Value};
use serde::{Deserialize, Serialize};

use crate::algorithm::{Output, Part, Role};
use crate::class_statistics::{Features, LEAST_OFFSET, centre, mean_features, upload};
use crate::error::LearnError;
use crate::gate::argmax;
use crate::maps::{self, RandomMaps};
use crate::memory::Memory;
use crate::model::{Initial, Net, affine};
use crate::pool::Predictor;
use crate::weights::{self, Weights};

use choosing::Choice;
pub(crate) use fitting::standard_errors;

/// The matching under which a node has this expert.
pub(crate) const MATCHING: &str = "agreement";
/// The matching of raw tables: one slope for all sites ([`fednode_mix::sites`]) in place of common class means.
pub(crate) const OF_SITES: &str = "site-agreement";

/// Keeps a probability of 0 from ruling a class out.
const SMALLEST: f64 = 1e-6;

/// Most numbers of a sample that is no image.
const MOST_INPUTS: usize = 2048;

/// Where the arrays of the classifiers are.
const WEIGHTS_ARRAY: usize = 0;
const OFFSETS_ARRAY: usize = 1;
const SHARES_ARRAY: usize = 2;
const PRIOR_ARRAY: usize = 3;

/// A node's statistics, and what it makes of those of its peers.
pub(crate) struct Agreement {
    /// Counts, sums and scatter of the own samples.
    pub(crate) own: Part,
    /// Their class means, as the matching reads them.
    pub(crate) proxies: Part,
    /// The classifiers of the sources, and the node's prior.
    pub(crate) classifiers: Part,
    features: Features,
    classes: usize,
    width: usize,
    solving: Solving,
    remembered: Remembered,
    served: Option<Served>,
}

/// How the statistics of nodes become a classifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Solving {
    /// Class means are the same everywhere; classes may have slots.
    Classes,
    /// Class means are the same everywhere, of features that a backbone made: there are many, so the ridge counts in rows.
    Features,
    /// Sites differ, classes differ alike at all of them.
    Sites,
}

/// How many samples the ridge is worth where features are those of a backbone.
///
/// Chosen on divisions of emojis among four vendors (experiments/README.md): of 5,448 images together 160 to 540 did best, of
/// 1,362 images 400.
const RIDGE_SAMPLES: f64 = 500.0;

impl Solving {
    /// Solves for the classifier of sums of samples, whose class means are the same everywhere.
    fn solve(self, classes: &Statistics) -> Result<Discriminant, StatisticsError> {
        classes.solve(match self {
            Self::Features => (RIDGE_SAMPLES / classes.total()).clamp(EPSILON, 1.0),
            Self::Classes | Self::Sites => EPSILON,
        })
    }
}

/// Whose statistics are served, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Source {
    /// Those of the node and of the peers that agree.
    Peers,
    /// The node's own alone.
    Own,
    /// Those of the node and of the peers that agree, with slots within the classes.
    Slots,
}

impl Source {
    /// Slots of a class.
    const fn per_class(self) -> usize {
        match self {
            Self::Peers | Self::Own => 1,
            Self::Slots => SLOTS,
        }
    }

    /// Returns where its rows are among those of all classifiers.
    const fn rows(self, classes: usize) -> Range<usize> {
        let first = match self {
            Self::Peers => 0,
            Self::Own => 1,
            Self::Slots => 2,
        };
        first * classes..(first + self.per_class()) * classes
    }
}

/// Rows of all classifiers for each class.
const ROWS: usize = 2 + SLOTS;

/// What outlives a round besides numbers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Remembered {
    /// The round of which the own samples were added up.
    gathered: Option<Round>,
    /// Which statistics were solved last, with which weights.
    solved: Option<BlobId>,
    /// By how many standard errors slots were better, where they were tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    slots: Option<f64>,
    /// How it is served; nothing before there is anything to serve.
    choice: Option<Choice>,
    /// Why the peers' statistics that came last make no classifier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    missing: Option<String>,
}

/// The chosen classifier on the device.
struct Served {
    /// The mean of the node's features, `[1, D]`, which is taken from them first.
    mean: Tensor<2>,
    /// A transposed, `[D, classes · slots]`, divided by the temperature.
    weights: Tensor<2>,
    /// `b / T + log share`, and the mean's scores, `[classes · slots]`.
    offsets: Tensor<1>,
    /// `log(prior + 10⁻³)`, `[classes]`.
    prior: Tensor<1>,
    weight: f64,
}

impl Agreement {
    /// Tells whether an exchange wants this expert.
    pub(crate) fn is_wanted(experts: Option<&ExpertExchange>) -> bool {
        experts.is_some_and(|experts| [MATCHING, OF_SITES].contains(&experts.matching.name()))
    }

    /// Makes the expert of a node that has added up nothing yet.
    ///
    /// # Errors
    /// As [`check`].
    pub(crate) fn new(spec: &FederationSpec, device: &Device) -> Result<Self, LearnError> {
        let model = &spec.architecture();
        let features = features(model, spec.seed, device)?;
        let experts = spec.exchange.experts.as_ref();
        let by_site = experts.is_some_and(|experts| experts.matching.name() == OF_SITES);
        let (classes, inputs) = (model.classes, model.input.iter().product());
        let width = match &features {
            Features::Random(maps) => maps.features(Tensor::zeros([1, inputs], device)).dims()[1],
            _ => inputs,
        };
        let zero = Initial::Zeros;
        let own = Net::arrays(&[
            ("agreement.counts", &[classes, GROUPS], zero),
            ("agreement.sums", &[classes, GROUPS, width], zero),
            ("agreement.scatter", &[width * (width + 1) / 2], zero),
        ]);
        let proxy = [1, 1 + classes + classes * width];
        let proxies = Net::arrays(&[("agreement.means", &proxy, zero)]);
        let rows = ROWS * classes;
        let classifiers = Net::arrays(&[
            ("agreement.weights", &[rows, width], zero),
            ("agreement.offsets", &[rows], zero),
            ("agreement.shares", &[rows], zero),
            ("agreement.prior", &[classes], zero),
        ]);
        let part = |role, net| Part::new(role, net, 0, 0, device);
        Ok(Self {
            own: part(Role::Expert(Slot(0)), own),
            proxies: part(Role::Gate, proxies),
            classifiers: part(Role::Private, classifiers),
            features,
            classes,
            width,
            solving: match (by_site, &spec.model.backbone) {
                (true, _) => Solving::Sites,
                (false, Some(_)) => Solving::Features,
                (false, None) => Solving::Classes,
            },
            remembered: Remembered::default(),
            served: None,
        })
    }

    /// Returns its parts in order.
    pub(crate) fn parts(&self) -> [&Part; 3] {
        [&self.own, &self.proxies, &self.classifiers]
    }

    /// Returns its parts in order, for changing them.
    pub(crate) fn parts_mut(&mut self) -> [&mut Part; 3] {
        [&mut self.own, &mut self.proxies, &mut self.classifiers]
    }

    /// Says that peers' statistics make no classifier and why, once some have come.
    pub(crate) fn lacks(&self) -> Option<String> {
        let missing = self.remembered.missing.as_ref()?;
        Some(format!("no classifier of peers' statistics: {missing}"))
    }

    /// Returns what is remembered besides numbers.
    pub(crate) fn memory(&self) -> Option<Memory> {
        let gathered = self.remembered.gathered;
        gathered.map(|_| Memory::of(&self.remembered))
    }

    /// Remembers what a state says, and serves its classifier again.
    ///
    /// # Errors
    /// Refuses a memory that is none of this expert.
    pub(crate) fn recall(
        &mut self,
        memory: Option<&Memory>,
        device: &Device,
    ) -> Result<(), LearnError> {
        let memory = memory.map(Memory::read).transpose()?;
        self.remembered = memory.unwrap_or_default();
        self.serve(device);
        Ok(())
    }

    /// Reads statistics of groups as they travel; the layout is that of the own ones.
    fn read(&self, params: &ParamSet) -> Statistics {
        let numbers = |name: &str| -> Vec<f64> {
            let tensor = params.get(name).expect("the layout was checked");
            tensor.values().iter().copied().map(f64::from).collect()
        };
        let mut statistics = Statistics::new(self.classes * GROUPS, self.width);
        statistics.counts = numbers("agreement.counts");
        statistics.sums = numbers("agreement.sums");
        statistics.scatter = numbers("agreement.scatter");
        statistics
    }

    /// Writes the classifier of a source.
    fn write(&mut self, source: Source, slots: &Slots, device: &Device) {
        let mut arrays =
            [WEIGHTS_ARRAY, OFFSETS_ARRAY, SHARES_ARRAY].map(|array| self.array(array));
        let rows = source.rows(self.classes);
        let written = [&slots.rows.weights, &slots.rows.offsets, &slots.log_shares];
        for (array, written) in arrays.iter_mut().zip(written) {
            let one = array.len() / (ROWS * self.classes);
            array[rows.start * one..rows.end * one].copy_from_slice(written);
        }
        let [weights, offsets, shares] = arrays;
        self.put([weights, offsets, shares, self.array(PRIOR_ARRAY)], device);
    }

    /// Puts the arrays of the classifiers on the device.
    fn put(&mut self, arrays: [Vec<f64>; 4], device: &Device) {
        let tensors = arrays.map(|values| upload(&values, device));
        self.classifiers.weights = Weights::new(tensors.to_vec());
    }

    /// Returns a classifier; nothing where there is none yet.
    fn classifier(&self, source: Source) -> Option<Slots> {
        let is_there = match source {
            Source::Peers => self.remembered.solved.is_some(),
            Source::Own => self.remembered.gathered.is_some(),
            Source::Slots => fitting::slots_pay(self.remembered.slots),
        };
        let rows = source.rows(self.classes);
        let of = |array: usize| {
            let all = self.array(array);
            let one = all.len() / (ROWS * self.classes);
            all[rows.start * one..rows.end * one].to_vec()
        };
        let slots = || Slots {
            rows: Discriminant::new(of(WEIGHTS_ARRAY), of(OFFSETS_ARRAY)),
            log_shares: of(SHARES_ARRAY),
            per_class: source.per_class(),
        };
        // Features that are all alike have no classifier: then its weights are all zero.
        let slots = is_there.then(slots);
        slots.filter(|slots| slots.rows.weights.iter().any(|weight| *weight != 0.0))
    }

    fn array(&self, array: usize) -> Vec<f64> {
        doubles(&self.classifiers.weights.tensor(array))
    }

    fn features_of(&self, inputs: Tensor<2>) -> Tensor<2> {
        match &self.features {
            Features::Random(maps) => maps.features(inputs),
            Features::Inputs | Features::Extractor => inputs,
        }
    }

    /// Puts the chosen classifier on the device.
    fn serve(&mut self, device: &Device) {
        self.served = None;
        let Some(choice) = self.remembered.choice else {
            return;
        };
        let Some(slots) = self.classifier(choice.source) else {
            return;
        };
        let temperature = choice.temperature;
        let mut scaled: Vec<f64> = slots.rows.weights.iter().map(|a| a / temperature).collect();
        let offset = |(b, share): (&f64, &f64)| (b / temperature).max(LEAST_OFFSET) + share;
        let offsets = slots.rows.offsets.iter().zip(&slots.log_shares);
        let mut offsets: Vec<f64> = offsets.map(offset).collect();
        let [counts, sums] = [0, 1].map(|at| doubles(&self.own.weights.tensor(at)));
        let mean = mean_features(&counts, &sums);
        centre(&mut scaled, &mut offsets, Some(&mean));
        let prior = self.array(PRIOR_ARRAY);
        let prior: Vec<f64> = prior.iter().map(|pi| (pi + PRIOR_FLOOR).ln()).collect();
        let weights = upload(&scaled, device).reshape([offsets.len(), self.width]);
        self.served = Some(Served {
            mean: upload(&mean, device).unsqueeze(),
            weights: weights.transpose(),
            offsets: upload(&offsets, device),
            prior: upload(&prior, device),
            weight: choice.weight,
        });
    }

    /// Runs the product of statistics and own model; the own model alone while there are no statistics.
    pub(crate) fn forward(&self, predictor: &Predictor<'_>, inputs: Tensor<2>) -> Output {
        let own = predictor.forward(inputs.clone());
        let Some(served) = &self.served else {
            return own;
        };
        let (scores, slots) = served.scores(self.features_of(inputs), self.classes);
        let logarithm = |logits| softmax(logits, 1).add_scalar(SMALLEST).log();
        let statistics = logarithm(scores).mul_scalar(served.weight);
        let alone = logarithm(own.logits).mul_scalar(1.0 - served.weight);
        let logits = statistics + alone;
        match slots {
            None => Output { logits, ..own },
            Some(chosen) => Output {
                logits,
                chosen: Some(chosen),
                n_experts: SLOTS,
            },
        }
    }
}

impl Agreement {
    /// Writes into a graph the logits that [`Self::forward`] computes.
    pub(crate) fn emit(&self, own: &Predictor<'_>, graph: &mut Graph, inputs: Value) -> Value {
        let logits = own.emit(graph, inputs);
        let features = self.features.emit(own.algorithm, graph, inputs);
        let (Some(served), Some(features)) = (&self.served, features) else {
            return logits;
        };
        let weighed = |graph: &mut Graph, logits: Value, weight: f64| {
            let probabilities = graph.softmax(logits);
            let safe = graph.add_number(probabilities, SMALLEST);
            let logarithms = graph.log(safe);
            graph.mul_number(logarithms, weight)
        };
        let scores = served.emit(graph, features, self.classes);
        let statistics = weighed(graph, scores, served.weight);
        let alone = weighed(graph, logits, 1.0 - served.weight);
        graph.add(statistics, alone)
    }
}

impl Served {
    /// Writes into a graph the scores that [`Self::scores`] computes.
    fn emit(&self, graph: &mut Graph, features: Value, classes: usize) -> Value {
        let [width, n_rows] = self.weights.dims();
        let matrix = without_common(weights::values(&self.weights), n_rows);
        let matrix = graph.floats("agreement.weights", matrix, &[width, n_rows]);
        let offsets = without_common(weights::values(&self.offsets), n_rows);
        let offsets = graph.floats("agreement.offsets", offsets, &[n_rows]);
        let prior = graph.floats("agreement.prior", weights::values(&self.prior), &[classes]);
        let mean = graph.floats("agreement.mean", weights::values(&self.mean), &[width]);
        let centred = graph.sub(features, mean);
        let rows = graph.affine(centred, matrix, Some(offsets));
        let rows = graph.reshape(rows, &[classes, n_rows / classes]);
        let best = graph.reduce(Reduction::Largest, rows, 2);
        let less = graph.sub(rows, best);
        let powers = graph.exp(less);
        let sum = graph.reduce(Reduction::Sum, powers, 2);
        let logarithm = graph.log(sum);
        let scores = graph.add(logarithm, best);
        let scores = graph.flat(scores);
        graph.add(scores, prior)
    }

    /// Returns the scores of the classes, `[batch, classes]`, and the slot that fits each sample best, where there are slots.
    fn scores(&self, features: Tensor<2>, classes: usize) -> (Tensor<2>, Option<Vec<usize>>) {
        let centred = features - self.mean.clone();
        let rows = affine(centred, self.weights.clone(), Some(self.offsets.clone()));
        let [batch, n_rows] = rows.dims();
        let rows = rows.reshape([batch, classes, n_rows / classes]);
        let best = rows.clone().max_dim(2);
        let sum = (rows.clone() - best.clone()).exp().sum_dim(2);
        let prior = self.prior.clone().reshape([1, classes, 1]);
        let slots = (n_rows > classes).then(|| {
            let scores = (rows + prior.clone()).reshape([batch, n_rows]);
            let best = argmax(&weights::values(&scores), n_rows);
            best.into_iter().map(|row| row % SLOTS).collect()
        });
        let scores = (sum.log() + best + prior).reshape([batch, classes]);
        (scores, slots)
    }
}

/// Takes from each run of numbers, one for every row of a classifier, what all have in common. It changes no probability,
/// and what is left is smaller, so a runtime of 32 bits rounds less.
fn without_common(mut values: Vec<f32>, n_rows: usize) -> Vec<f32> {
    for run in values.chunks_mut(n_rows) {
        let sum: f64 = run.iter().map(|value| f64::from(*value)).sum();
        let mean = sum / n_rows as f64;
        for value in run {
            *value = (f64::from(*value) - mean) as f32;
        }
    }
    values
}

/// Returns the numbers of an array with 64 bits.
fn doubles(array: &Tensor<1>) -> Vec<f64> {
    weights::values(array).into_iter().map(f64::from).collect()
}

/// Returns what is added up of the samples of a model.
fn features(model: &Architecture, seed: u64, device: &Device) -> Result<Features, ConfigError> {
    if maps::suit(model) {
        RandomMaps::new(model, seed, device).map(Features::Random)
    } else {
        Ok(Features::Inputs)
    }
}

/// Checks that the samples of a federation can be added up, and that nothing else is wanted that cannot be.
///
/// # Errors
/// Names the key to change.
pub(crate) fn check(spec: &FederationSpec) -> Result<(), ConfigError> {
    let model = spec.architecture();
    let inputs: usize = model.input.iter().product();
    let text = if model.vocabulary > 0 {
        "profile `agreement` adds up features of images and tables, and these are texts: choose \
         `hyper.profile=personal` or another algorithm"
            .to_owned()
    } else if !maps::suit(&model) && inputs > MOST_INPUTS {
        format!(
            "profile `agreement` adds up products of all columns, {MOST_INPUTS} at most, and a sample has {inputs}: \
             choose fewer columns, or another algorithm"
        )
    } else if spec.transfer.precision != Precision::F32 {
        // The scatter less the means is a small difference of large numbers: half of the bits do not hold it.
        "profile `agreement` needs exact sums: leave `transfer.precision` at `f32`".to_owned()
    } else {
        return Ok(());
    };
    Err(ConfigError(text))
}
