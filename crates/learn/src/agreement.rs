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
//! The features of images are random maps, the same for everybody ([`crate::maps`]). Those of texts are counts of words
//! ([`crate::words`]). Those of anything else are the inputs themselves. So nodes need no extractor in common, any
//! algorithm may train the own model beside it, and statistics stay as they are from round to round: their blobs are
//! fetched once.
//!
//! | file | is |
//! |---|---|
//! | `gathering` | what a node adds up of its samples |
//! | `fitting` | the classifiers of the peers' sums, and whether slots pay |
//! | `classifiers` | the classifiers that a node keeps, one of each source |
//! | `choosing` | how statistics and own model are joined |
//! | `exposing` | what the published sums say of single samples |
//! | `total` | one sum of all sites in place of the peers' own ones, under masks |
//! | `promised` | how a row is hidden in that sum |
//! | `serving` | the joined model, on the device and in an exported graph |

mod choosing;
mod classifiers;
mod exposing;
mod fitting;
mod gathering;
mod promised;
mod serving;
mod total;

use burn::tensor::{Device, Tensor};
use fednode_core::spec::Architecture;
use fednode_core::{
    BlobId, Component, Composition, ConfigError, ExpertExchange, FederationSpec, ParamSet,
    Precision, Round, Slot,
};
use fednode_mix::Statistics;
use fednode_mix::slots::{GROUPS, Slots};
use fednode_mix::statistics::{Discriminant, EPSILON, StatisticsError};
use fednode_onnx::{Graph, Value};
use serde::{Deserialize, Serialize};

use crate::algorithm::{Output, Part, Role};
use crate::class_statistics::{Features, mean_features};
use crate::error::LearnError;
use crate::maps::{self, RandomMaps};
use crate::memory::Memory;
use crate::metric::LEFT_OUT;
use crate::model::{Initial, Net};
use crate::noised::Noised;
use crate::pool::Predictor;
use crate::total::NOT_ADDED_UP;
use crate::weights;
use crate::words::Words;

use choosing::Choice;
pub(crate) use choosing::{Judged, are_clearly_lower};
use classifiers::{Classifiers, Source};
pub(crate) use fitting::{key_of, standard_errors};
pub(crate) use serving::Served;
use total::SitesTotal;
pub(crate) use total::adds_up_sites;

/// The matching under which a node has this expert.
pub(crate) const MATCHING: &str = "agreement";
/// The matching of raw tables: one slope for all sites ([`fednode_mix::sites`]) in place of common class means.
pub(crate) const OF_SITES: &str = "site-agreement";

/// Keeps a probability of 0 from ruling a class out.
const SMALLEST: f64 = 1e-6;

/// Most numbers of a sample that is no image.
const MOST_INPUTS: usize = 2048;

/// A node's statistics, and what it makes of those of its peers.
pub(crate) struct Agreement {
    /// Counts, sums and scatter of the own samples.
    own: Part,
    /// Their class means, as the matching reads them.
    proxies: Part,
    /// The classifiers of the sources, and the node's prior.
    classifiers: Classifiers,
    features: Features,
    classes: usize,
    width: usize,
    solving: Solving,
    /// What all nodes add up once, where they do.
    total: Option<SitesTotal>,
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
    /// As [`Self::Features`], of texts.
    Words,
    /// Sites differ, classes differ alike at all of them.
    Sites,
}

/// How many samples the ridge is worth where features are those of a backbone, or counts of words.
///
/// Chosen on divisions of emojis among four vendors (experiments/README.md): of 5,448 images together 160 to 540 did best, of
/// 1,362 images 400. Of 2,400 texts together 240 to 2,400 did equally well, of 300 texts alone 300.
const RIDGE_SAMPLES: f64 = 500.0;

impl Solving {
    /// Solves for the classifier of sums of samples, whose class means are the same everywhere.
    fn solve(self, classes: &Statistics) -> Result<Discriminant, StatisticsError> {
        classes.solve(match self {
            Self::Features | Self::Words => (RIDGE_SAMPLES / classes.total()).clamp(EPSILON, 1.0),
            Self::Classes | Self::Sites => EPSILON,
        })
    }
}

/// What outlives a round besides numbers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Remembered {
    /// The round of which the own samples were added up.
    gathered: Option<Round>,
    /// How many they were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    n_gathered: Option<u32>,
    /// Which statistics were solved last, with which weights.
    solved: Option<BlobId>,
    /// Of a total: with how many own samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    n_solved: Option<u32>,
    /// By how many standard errors slots were better, where they were tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    slots: Option<f64>,
    /// How it is served; nothing before there is anything to serve.
    choice: Option<Choice>,
    /// Whether peers are left out, because they made the federation's measure worse on the validation samples.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    left_out: bool,
    /// Why the peers' statistics that came last make no classifier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    missing: Option<String>,
    /// Whether the own model was never trained: the node came after the last round.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_untrained: bool,
    /// Whether the own rows were added up for the total of all sites.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_released: bool,
}

impl Agreement {
    /// Tells whether a federation wants this expert. Where statistics are published with noise, it stays at home.
    pub(crate) fn is_wanted(spec: &FederationSpec) -> bool {
        let has_matching =
            |experts: &ExpertExchange| [MATCHING, OF_SITES].contains(&experts.matching.name());
        let experts = spec.exchange.experts.as_ref();
        let has_total = spec.exchange.total.is_some() && spec.data.target.is_none();
        has_total || Noised::is_wanted(spec) || experts.is_some_and(has_matching)
    }

    /// Makes the expert of a node that has added up nothing yet.
    ///
    /// # Errors
    /// As [`check`].
    pub(crate) fn new(spec: &FederationSpec, device: &Device) -> Result<Self, LearnError> {
        let model = &spec.architecture();
        let features = features(model, spec.seed, device)?;
        let (classes, inputs) = (model.classes, model.input.iter().product());
        let width = match &features {
            Features::Random(maps) => maps.features(Tensor::zeros([1, inputs], device)).dims()[1],
            Features::Words(words) => words.width(),
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
        let total = SitesTotal::of(spec, [classes, width], device)?;
        let stays = total.is_some() || Noised::is_wanted(spec);
        let part = |role, net| {
            let role = if stays { Role::Private } else { role };
            Part::new(role, net, 0, 0, device)
        };
        Ok(Self {
            own: part(Role::Expert(Slot(0)), own),
            proxies: part(Role::Gate, proxies),
            classifiers: Classifiers::new(classes, width, device),
            features,
            classes,
            width,
            solving: match &spec.model.backbone {
                // Of a raw table, whether its sums travel or stay at home.
                _ if !spec.data.columns.is_empty() => Solving::Sites,
                _ if model.vocabulary > 0 => Solving::Words,
                Some(_) => Solving::Features,
                None => Solving::Classes,
            },
            total,
            remembered: Remembered::default(),
            served: None,
        })
    }

    /// Returns its parts in order.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &Part> {
        let own = [&self.own, &self.proxies, &self.classifiers.part];
        own.into_iter()
            .chain(self.total.iter().map(|total| &total.part))
    }

    /// Returns its parts in order, for changing them.
    pub(crate) fn parts_mut(&mut self) -> impl Iterator<Item = &mut Part> {
        let own = [&mut self.own, &mut self.proxies, &mut self.classifiers.part];
        let total = self.total.iter_mut().map(|total| &mut total.part);
        own.into_iter().chain(total)
    }

    /// Says that peers' statistics make no classifier and why, once some have come.
    pub(crate) fn lacks(&self) -> Option<String> {
        if self.remembered.left_out {
            return Some(LEFT_OUT.to_owned());
        }
        if let Some(missing) = &self.remembered.missing {
            return Some(format!("no classifier of peers' statistics: {missing}"));
        }
        let waits = self.remembered.is_released && self.remembered.solved.is_none();
        waits.then(|| NOT_ADDED_UP.to_owned())
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
        self.remembered = Memory::recalled(memory)?;
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

    /// Returns a classifier; nothing where there is none yet.
    fn classifier(&self, source: Source) -> Option<Slots> {
        let is_there = match source {
            Source::Peers => self.remembered.solved.is_some(),
            Source::Own => self.remembered.gathered.is_some(),
            Source::Slots => fitting::slots_pay(self.remembered.slots),
        };
        self.classifiers.of(source).filter(|_| is_there)
    }

    fn features_of(&self, inputs: Tensor<2>) -> Tensor<2> {
        match &self.features {
            Features::Random(maps) => maps.features(inputs),
            Features::Words(words) => words.features(&inputs),
            Features::Inputs | Features::Extractor => inputs,
        }
    }

    /// Returns what a source is called in what is served.
    fn component(&self, source: Source) -> Component {
        match (source, &self.total) {
            (Source::Peers, Some(total)) if total.is_promised() => Component::NoisedStatistics,
            (Source::Peers, Some(_)) => Component::CommonStatistics,
            (source, _) => source.component(),
        }
    }

    /// Puts the chosen classifier on the device.
    fn serve(&mut self, device: &Device) {
        let served = self.remembered.choice.and_then(|choice| {
            let slots = self.classifier(choice.source)?;
            let [counts, sums] = [0, 1].map(|at| doubles(&self.own.weights.tensor(at)));
            let mean = mean_features(&counts, &sums);
            let prior = self.classifiers.prior();
            let joined = [choice.temperature, choice.weight];
            Some(Served::new(joined, slots, &mean, &prior, device))
        });
        self.served = served;
    }

    /// Tells whether peers' statistics are in what is served.
    pub(crate) fn serves_peers(&self) -> bool {
        let choice = self.remembered.choice;
        choice.is_some_and(|choice| choice.source != Source::Own && choice.weight > 0.0)
    }

    /// Says what this expert counts for beside `own`, and what of it is left out.
    pub(crate) fn joined_with(&self, own: Composition) -> Composition {
        let Some(choice) = self.remembered.choice else {
            return if self.remembered.left_out {
                own.without(self.component(Source::Peers))
            } else {
                own
            };
        };
        let joined = own.joined(self.component(choice.source), choice.weight);
        let were_there = [
            (Source::Slots, self.remembered.slots.is_some()),
            (Source::Peers, self.remembered.solved.is_some()),
        ];
        // Slots are of peers' statistics, so those are not left out where slots are served.
        let left_out = were_there
            .into_iter()
            .take_while(|(source, _)| *source != choice.source)
            .filter(|(_, was_there)| *was_there);
        left_out.fold(joined, |joined, (source, _)| {
            joined.without(self.component(source))
        })
    }

    /// Serves the own statistics in place of those with peers; returns what was remembered before.
    pub(crate) fn leave_peers_out(&mut self, device: &Device) -> Remembered {
        let before = self.remembered.clone();
        let own = self.classifier(Source::Own);
        self.remembered.choice = own.map(|_| Choice::usual(Source::Own, self.solving));
        self.remembered.left_out = true;
        self.serve(device);
        before
    }

    /// Serves again what was left out.
    pub(crate) fn put_peers_back(&mut self, before: Remembered, device: &Device) {
        self.remembered = before;
        self.serve(device);
    }

    /// Runs the product of statistics and own model; the own model alone while there are no statistics.
    pub(crate) fn forward(&self, predictor: &Predictor<'_>, inputs: Tensor<2>) -> Output {
        let own = predictor.forward(inputs.clone());
        match &self.served {
            Some(served) => served.times(own, self.features_of(inputs)),
            None => own,
        }
    }

    /// Writes into a graph the logits that [`Self::forward`] computes.
    pub(crate) fn emit(&self, own: &Predictor<'_>, graph: &mut Graph, inputs: Value) -> Value {
        let logits = own.emit(graph, inputs);
        let features = self.features.emit(own.algorithm, graph, inputs);
        match (&self.served, features) {
            (Some(served), Some(features)) => served.emit(graph, logits, features),
            _ => logits,
        }
    }
}

/// Returns the numbers of an array with 64 bits.
pub(crate) fn doubles(array: &Tensor<1>) -> Vec<f64> {
    weights::values(array).into_iter().map(f64::from).collect()
}

/// Returns what is added up of the samples of a model.
fn features(model: &Architecture, seed: u64, device: &Device) -> Result<Features, ConfigError> {
    if model.vocabulary > 0 {
        Ok(Features::Words(Words::new(model.vocabulary)))
    } else if maps::suit(model) {
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
    let are_inputs = model.vocabulary == 0 && !maps::suit(&model);
    let text = if are_inputs && inputs > MOST_INPUTS {
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
