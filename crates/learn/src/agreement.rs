//! Statistics of the peers that agree: an expert in closed form, multiplied with the node's own model
//! (`hyper.profile=agreement` of FedMoE-DA; who agrees is judged in [`fednode_mix::matching`]).
//!
//! ```text
//! before round 1    every node adds up its samples' features: counts, sums and scatter, divided by their number
//! proxies           the class means of those sums; each node makes its own row of agreements from everybody's
//! experts           the sums; those of agreeing peers are fetched, and mixed as the row says
//! own classifier    discriminant analysis of the mix, in closed form (fednode_mix::statistics)
//! served            log p = lambda · log p_statistics + (1 - lambda) · log p_own, up to a constant
//! ```
//!
//! The features are random maps, the same for everybody ([`crate::maps`]), or the inputs themselves where these are no
//! images. So nodes need no extractor in common, any algorithm may train the own model beside it, and statistics stay as
//! they are from round to round: their blobs are fetched once.
//!
//! Logarithms are mixed, not probabilities: of few validation samples a product of experts was better than a mean
//! (84.8 % beside 82.3 % in the study that this follows). The temperature is 4 and lambda 0.65. Others are taken, or the
//! node's own statistics alone, only if they are better on the validation samples by two standard errors.

use burn::tensor::activation::softmax;
use burn::tensor::{Device, Tensor};
use fednode_core::spec::Architecture;
use fednode_core::{
    BlobId, ConfigError, ExpertExchange, FederationSpec, ParamSet, Precision, Slot,
};
use fednode_data::Samples;
use fednode_mix::Statistics;
use fednode_mix::matching::ClassMeans;
use fednode_mix::statistics::{Discriminant, EPSILON, PRIOR_FLOOR, tempered};
use serde::{Deserialize, Serialize};

use crate::algorithm::{Output, Part, Role};
use crate::class_statistics::{Features, TEMPERATURES, WEIGHTS, for_each_batch, upload};
use crate::error::LearnError;
use crate::maps::{self, RandomMaps};
use crate::memory::Memory;
use crate::model::{Initial, Net, affine};
use crate::pool::Predictor;
use crate::weights::{self, Weights};

/// The matching under which a node has this expert.
pub(crate) const MATCHING: &str = "agreement";

/// Where temperature and weight of the statistics lie without better knowledge.
const USUAL: Choice = Choice {
    source: Source::Peers,
    temperature: 4.0,
    weight: 0.65,
};
/// Standard errors by which another choice must be better than [`USUAL`].
///
/// One is too little where the best of 70 choices is taken: of 30 validation samples, chance alone promises so much. A
/// choice by log loss cost 1.0 to 1.9 points beside the usual one, on two regimes of 8 nodes × 300 images.
const CLEARLY: f64 = 2.0;
/// Keeps a probability of 0 from ruling a class out.
const SMALLEST: f64 = 1e-6;

/// Most numbers of a sample that is no image.
const MOST_INPUTS: usize = 1024;

/// Where the arrays of the classifiers are.
const WEIGHTS_ARRAY: usize = 0;
const OFFSETS_ARRAY: usize = 1;
const PRIOR_ARRAY: usize = 2;

/// A node's statistics, and what it makes of those of its peers.
pub(crate) struct Agreement {
    /// Counts, sums and scatter of the own samples.
    pub(crate) own: Part,
    /// Their class means, as the matching reads them.
    pub(crate) proxies: Part,
    /// The classifiers of the peers' and of the own statistics, and the node's prior.
    pub(crate) classifiers: Part,
    features: Features,
    classes: usize,
    width: usize,
    remembered: Remembered,
    served: Option<Served>,
}

/// Whose statistics are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Source {
    /// Those of the node and of the peers that agree.
    Peers,
    /// The node's own alone.
    Own,
}

/// How statistics and own model are joined.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Choice {
    source: Source,
    temperature: f64,
    weight: f64,
}

/// What outlives a round besides numbers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Remembered {
    /// Whether the own samples were added up.
    gathered: bool,
    /// The mix of statistics that was solved last.
    solved: Option<BlobId>,
    /// How it is served; nothing before there is anything to serve.
    choice: Option<Choice>,
}

/// The chosen classifier on the device.
struct Served {
    /// A transposed, `[D, classes]`, divided by the temperature.
    weights: Tensor<2>,
    /// `b / T + log(prior + 10⁻³)`, `[classes]`.
    offsets: Tensor<1>,
    weight: f64,
}

impl Agreement {
    /// Tells whether an exchange wants this expert.
    pub(crate) fn is_wanted(experts: Option<&ExpertExchange>) -> bool {
        experts.is_some_and(|experts| experts.matching.name() == MATCHING)
    }

    /// Makes the expert of a node that has added up nothing yet.
    ///
    /// # Errors
    /// As [`check`].
    pub(crate) fn new(
        model: &Architecture,
        seed: u64,
        device: &Device,
    ) -> Result<Self, LearnError> {
        let features = features(model, seed, device)?;
        let (classes, inputs) = (model.classes, model.input.iter().product());
        let width = match &features {
            Features::Random(maps) => maps.features(Tensor::zeros([1, inputs], device)).dims()[1],
            _ => inputs,
        };
        let zero = Initial::Zeros;
        let own = Net::arrays(&[
            ("agreement.counts", &[classes], zero),
            ("agreement.sums", &[classes, width], zero),
            ("agreement.scatter", &[width * (width + 1) / 2], zero),
        ]);
        let proxy = [1, 1 + classes + classes * width];
        let proxies = Net::arrays(&[("agreement.means", &proxy, zero)]);
        let classifiers = Net::arrays(&[
            ("agreement.weights", &[2, classes, width], zero),
            ("agreement.offsets", &[2, classes], zero),
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

    /// Returns what is remembered besides numbers.
    pub(crate) fn memory(&self) -> Option<Memory> {
        self.remembered
            .gathered
            .then(|| Memory::of(&self.remembered))
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

    /// Adds up over the training samples, if that is not done yet or they are others now.
    pub(crate) fn gather(&mut self, samples: &Samples, are_others: bool, device: &Device) {
        if self.remembered.gathered && !are_others {
            return;
        }
        let mut statistics = Statistics::new(self.classes, self.width);
        for_each_batch(samples, device, |positions, inputs| {
            let features = weights::values(&self.features_of(inputs));
            let features = features.chunks_exact(self.width);
            for (at, features) in positions.iter().zip(features) {
                statistics.add(features, usize::from(samples.labels[*at as usize]));
            }
        });
        let n_samples = samples.len().max(1) as f64;
        let prior: Vec<f64> = statistics
            .counts
            .iter()
            .map(|count| count / n_samples)
            .collect();
        let means = ClassMeans::of_sums(statistics.counts.clone(), &statistics.sums);
        let means: Vec<f64> = means.to_proxy().into_iter().map(f64::from).collect();
        statistics.scale(1.0 / n_samples);
        let tensor = |values: &[f64]| upload(values, device);
        self.proxies.weights = Weights::new(vec![tensor(&means)]);
        let arrays = [&statistics.counts, &statistics.sums, &statistics.scatter];
        self.own.weights = Weights::new(arrays.map(|values| tensor(values)).to_vec());
        self.remembered.gathered = true;
        self.write(Source::Own, &statistics, &prior, device);
    }

    /// Solves for the classifier of the statistics that the node's row mixed; the same ones are solved once.
    ///
    /// The layout is that of the own statistics.
    pub(crate) fn adopt(&mut self, mixed: &ParamSet, device: &Device) {
        let (blob, _) = mixed.to_blob();
        if self.remembered.solved == Some(blob.id) {
            return;
        }
        let numbers = |name: &str| -> Vec<f64> {
            let tensor = mixed.get(name).expect("the layout was checked");
            tensor.values().iter().copied().map(f64::from).collect()
        };
        let mut statistics = Statistics::new(self.classes, self.width);
        statistics.counts = numbers("agreement.counts");
        statistics.sums = numbers("agreement.sums");
        statistics.scatter = numbers("agreement.scatter");
        let prior = self.array(PRIOR_ARRAY);
        let is_solved = self.write(Source::Peers, &statistics, &prior, device);
        self.remembered.solved = is_solved.then_some(blob.id);
    }

    /// Writes the classifier of some statistics; tells whether there is one.
    fn write(
        &mut self,
        source: Source,
        statistics: &Statistics,
        prior: &[f64],
        device: &Device,
    ) -> bool {
        let Ok(solved) = statistics.solve(EPSILON) else {
            return false;
        };
        let (mut weights, mut offsets) = (self.array(WEIGHTS_ARRAY), self.array(OFFSETS_ARRAY));
        let which = source as usize;
        let place = |one: usize| which * one..(which + 1) * one;
        weights[place(self.classes * self.width)].copy_from_slice(&solved.weights);
        offsets[place(self.classes)].copy_from_slice(&solved.offsets);
        let arrays = [weights.as_slice(), &offsets, prior];
        self.classifiers.weights =
            Weights::new(arrays.map(|values| upload(values, device)).to_vec());
        true
    }

    /// Returns a classifier; nothing where there is none yet.
    fn classifier(&self, source: Source) -> Option<Discriminant> {
        let is_there = match source {
            Source::Peers => self.remembered.solved.is_some(),
            Source::Own => self.remembered.gathered,
        };
        let of = |array: usize, one: usize| {
            let all = self.array(array);
            all[source as usize * one..][..one].to_vec()
        };
        let solved = || {
            let weights = of(WEIGHTS_ARRAY, self.classes * self.width);
            Discriminant::new(weights, of(OFFSETS_ARRAY, self.classes))
        };
        // Features that are all alike have no classifier: then its weights are all zero.
        let solved = is_there.then(solved);
        solved.filter(|solved| solved.weights.iter().any(|weight| *weight != 0.0))
    }

    fn array(&self, array: usize) -> Vec<f64> {
        let values = weights::values(&self.classifiers.weights.tensor(array));
        values.into_iter().map(f64::from).collect()
    }

    fn features_of(&self, inputs: Tensor<2>) -> Tensor<2> {
        match &self.features {
            Features::Random(maps) => maps.features(inputs),
            Features::Inputs | Features::Extractor => inputs,
        }
    }

    /// Chooses how statistics and own model are joined, because one of them is another one now.
    pub(crate) fn choose(&mut self, own: &Predictor<'_>, validation: &Samples, device: &Device) {
        let sources = [Source::Peers, Source::Own].into_iter();
        let candidates = sources.filter_map(|source| {
            let classifier = self.classifier(source)?;
            let judged = self.judge(&classifier, own, validation, device);
            Some(self.candidates(source, &judged))
        });
        let candidates: Vec<Vec<Candidate>> = candidates.collect();
        // The first source that there is, as usual, unless the best of all is clearly better.
        let usual = candidates.first().and_then(|all| all.first());
        let all = candidates.iter().flatten();
        let best = all.min_by(|a, b| a.total().total_cmp(&b.total()));
        let chosen = usual.zip(best).map(|(usual, best)| {
            let is_better = best.is_clearly_better_than(usual);
            if is_better { best.choice } else { usual.choice }
        });
        self.remembered.choice = chosen;
        self.serve(device);
    }

    /// Asks classifier and node about every validation sample.
    fn judge(
        &self,
        classifier: &Discriminant,
        own: &Predictor<'_>,
        validation: &Samples,
        device: &Device,
    ) -> Vec<Judged> {
        let mut judged = Vec::with_capacity(validation.len());
        for_each_batch(validation, device, |positions, inputs| {
            let alone = weights::values(&softmax(own.forward(inputs.clone()).logits, 1));
            let features = weights::values(&self.features_of(inputs));
            let rows = alone
                .chunks_exact(self.classes)
                .zip(features.chunks_exact(self.width));
            for (at, (alone, features)) in positions.iter().zip(rows) {
                judged.push(Judged {
                    class: usize::from(validation.labels[*at as usize]),
                    own: alone.iter().copied().map(f64::from).collect(),
                    logits: classifier.logits(features),
                });
            }
        });
        judged
    }

    /// Returns the usual temperature and weight, then all others, each with its log losses.
    fn candidates(&self, source: Source, judged: &[Judged]) -> Vec<Candidate> {
        let prior = self.array(PRIOR_ARRAY);
        let others = TEMPERATURES.iter().flat_map(|temperature| {
            WEIGHTS.map(|weight| Choice {
                source,
                temperature: *temperature,
                weight,
            })
        });
        let usual = Choice { source, ..USUAL };
        let candidate = |choice: Choice| {
            let losses = judged.iter().map(|judged| judged.loss(choice, &prior));
            let losses = losses.collect();
            Candidate { choice, losses }
        };
        std::iter::once(usual)
            .chain(others)
            .map(candidate)
            .collect()
    }

    /// Puts the chosen classifier on the device.
    fn serve(&mut self, device: &Device) {
        self.served = None;
        let Some(choice) = self.remembered.choice else {
            return;
        };
        let Some(solved) = self.classifier(choice.source) else {
            return;
        };
        let temperature = choice.temperature;
        let scaled: Vec<f64> = solved.weights.iter().map(|a| a / temperature).collect();
        let prior = self.array(PRIOR_ARRAY);
        let offset = |(b, pi): (&f64, &f64)| (b / temperature).max(-1e30) + (pi + PRIOR_FLOOR).ln();
        let offsets: Vec<f64> = solved.offsets.iter().zip(&prior).map(offset).collect();
        let weights = upload(&scaled, device).reshape([self.classes, self.width]);
        self.served = Some(Served {
            weights: weights.transpose(),
            offsets: upload(&offsets, device),
            weight: choice.weight,
        });
    }

    /// Runs the product of statistics and own model; the own model alone while there are no statistics.
    pub(crate) fn forward(&self, predictor: &Predictor<'_>, inputs: Tensor<2>) -> Output {
        let own = predictor.forward(inputs.clone());
        let Some(served) = &self.served else {
            return own;
        };
        let features = self.features_of(inputs);
        let statistics = affine(
            features,
            served.weights.clone(),
            Some(served.offsets.clone()),
        );
        let logarithm = |logits| softmax(logits, 1).add_scalar(SMALLEST).log();
        let statistics = logarithm(statistics).mul_scalar(served.weight);
        let alone = logarithm(own.logits).mul_scalar(1.0 - served.weight);
        Output {
            logits: statistics + alone,
            ..own
        }
    }
}

/// A validation sample, and what is said of it.
struct Judged {
    class: usize,
    /// The own model's probabilities.
    own: Vec<f64>,
    /// The classifier's logits.
    logits: Vec<f64>,
}

impl Judged {
    /// Returns the log loss of the product.
    fn loss(&self, choice: Choice, prior: &[f64]) -> f64 {
        let statistics = tempered(&self.logits, choice.temperature, prior);
        let joined = |(statistics, own): (&f64, &f64)| {
            let [statistics, own] = [statistics, own].map(|p| (p + SMALLEST).ln());
            (choice.weight * statistics + (1.0 - choice.weight) * own).exp()
        };
        let scores: Vec<f64> = statistics.iter().zip(&self.own).map(joined).collect();
        scores.iter().sum::<f64>().ln() - scores[self.class].ln()
    }
}

/// A choice, and its log loss on each validation sample.
struct Candidate {
    choice: Choice,
    losses: Vec<f64>,
}

impl Candidate {
    fn total(&self) -> f64 {
        self.losses.iter().sum()
    }

    /// Tells whether it is better by more than [`CLEARLY`] standard errors of the difference.
    fn is_clearly_better_than(&self, other: &Self) -> bool {
        let n = self.losses.len() as f64;
        let differences = || {
            let pairs = other.losses.iter().zip(&self.losses);
            pairs.map(|(theirs, own)| theirs - own)
        };
        let mean = differences().sum::<f64>() / n;
        let variance = differences().map(|d| (d - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
        n > 1.0 && mean > CLEARLY * (variance / n).sqrt()
    }
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
