//! Statistics of peers under differential privacy: published once with noise, and multiplied with what the node does alone
//! (`privacy.epsilon` or `privacy.sums` with FedMoE-DA's profile `agreement`). One sum of raw tables under masks is not among them: that is
//! the total of [`crate::agreement`].
//!
//! ```text
//! features     maps of random filters, words, or numbers, on the sphere                sphere, fednode_mix::sphere
//! released     counts, sums and scatter of them in whole numbers, with noise        noise, fednode_privacy
//! received     sums of peers that agree as far as noise lets see it, added up, and the own exact ones again; under masks the sum
//!              of all nodes, once, to which each adds its share of the noise                                         crate::total
//! classifier   discriminant analysis of noised sums                                 fednode_mix::statistics::noised
//! served       log p = lambda · log p_peers + (1 - lambda) · log p_alone, up to a constant       choosing
//! ```
//!
//! What the node does alone is its model times its own statistics ([`crate::agreement`]), and nothing of that leaves it. So
//! with lambda = 0 the federation changes nothing, except that raw columns are scaled by their public ranges. The release is all that is published: proxies and the number of samples
//! in adverts are computed of it. A release of the same sums has the same noise, so it tells nothing new. A share of a total has new
//! noise each time, since totals of other nodes would show what they differ in.
//!
//! Where ε and the number of samples say that noise is too large, there is no classifier, and the node says so.

mod adopting;
mod canaries;
mod choosing;
mod exposing;
mod groups;
mod noise;
mod promise;
mod solving;
mod sphere;

use burn::tensor::{Device, Tensor};
use fednode_core::{
    BlobId, Component, Composition, ExpertExchange, FederationSpec, ParamSet, Slot, Total,
};
use fednode_data::Samples;
use fednode_mix::Statistics;
use fednode_mix::matching::means_of_noised;
use fednode_mix::statistics::Discriminant;
use fednode_mix::statistics::noised::WholeSums;
use fednode_onnx::{Graph, Value};
use fednode_privacy::units::{Noise, UnitError};
use serde::{Deserialize, Serialize};

use crate::agreement::{self, Served, doubles};
use crate::algorithm::{Output, Part, Role};
use crate::class_statistics::{for_each_batch, mean_features, upload};
use crate::error::LearnError;
use crate::memory::Memory;
use crate::metric::LEFT_OUT;
use crate::model::{Initial, Net};
use crate::total;
use crate::weights::{self, Weights};
use crate::words::Texts;

pub use canaries::Canaried;
pub(crate) use canaries::Tested;
use choosing::{AtHome, Choice, Judging};
pub(crate) use groups::Own;
pub use noise::NoiseKey;
pub(crate) use promise::{check_groups, mask, noise_of_node, protect};
use solving::total_of;
use sphere::OnSphere;

/// The matching of noised statistics.
pub(crate) const MATCHING: &str = "noised-agreement";
/// What is taken for the noise of a sum that has none.
const LEAST_NOISE: f64 = 1e-6;
/// Numbers of a sample, if it has as many maps.
///
/// In the study 128 to 512 numbers did best. More of them carry more noise where every node adds all of it.
const WIDTH: usize = 128;
/// Numbers of a sample where noise is shared: 512 gained 0.3 points at most, for four times the bytes.
const WIDTH_OF_TOTAL: usize = 256;

/// A node's release, and what it makes of those of its peers.
pub(crate) struct Noised {
    /// What is published: counts, sums and scatter with noise. Under masks the total of all nodes is here, once it has come.
    released: Part,
    /// Its class means, as the matching reads them; nothing under masks.
    proxies: Option<Part>,
    /// What stays: the exact sums, and the classifier of everybody's.
    kept: Part,
    features: OnSphere,
    /// Of one node's release, in lengths of a sample; nothing without a promise.
    noise: Option<Noise>,
    /// What all nodes add up once, under masks.
    total: Option<Total>,
    /// How many members' noise hides a sample in a total.
    hiding: u32,
    key: NoiseKey,
    classes: usize,
    remembered: Remembered,
    served: Option<Served>,
}

/// What outlives a round besides numbers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Remembered {
    /// Whether the own samples were added up.
    is_released: bool,
    /// How many own samples are in the exact sums that stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    n_kept: Option<u32>,
    /// How many groups' sums were believed, and of how many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    groups: Option<[u32; 2]>,
    /// Which statistics were solved last, with which weights.
    solved: Option<BlobId>,
    /// How it is served; nothing before there is anything to serve.
    choice: Option<Choice>,
    /// Whether peers are left out, because they made the federation's measure worse on the validation samples.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    left_out: bool,
    /// Why the peers' statistics that came last make no classifier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    missing: Option<String>,
}

impl Noised {
    /// Tells whether a federation wants noised statistics, or a total of features on the sphere.
    pub(crate) fn is_wanted(spec: &FederationSpec) -> bool {
        let by_matching = |experts: &ExpertExchange| experts.matching.name() == MATCHING;
        let experts = spec.exchange.experts.as_ref();
        let has_total = spec.exchange.total.is_some() && !agreement::adds_up_sites(spec);
        has_total || experts.is_some_and(by_matching)
    }

    /// Makes the expert of a node that has released nothing yet.
    ///
    /// # Errors
    /// Fails on a promise that no noise keeps, and on data that have no features of bounded length.
    pub(crate) fn new(spec: &FederationSpec, device: &Device) -> Result<Self, LearnError> {
        let (noise, total) = (promise::noise_of_node(spec)?, spec.exchange.total);
        let model = spec.architecture();
        let width = if total.is_some() {
            WIDTH_OF_TOTAL
        } else {
            WIDTH
        };
        let features = OnSphere::new(&model, spec.seed, width, device)?;
        let (classes, width) = (model.classes, features.width());
        let zero = Initial::Zeros;
        let triangle = width * (width + 1) / 2;
        let part = |role, net| Part::new(role, net, 0, 0, device);
        let (released, proxies) = if total.is_some() {
            let numbers = classes + classes * width + triangle;
            (total::part(numbers, device), None)
        } else {
            let released = Net::arrays(&[
                ("noised.counts", &[classes, 1], zero),
                ("noised.sums", &[classes, 1, width], zero),
                ("noised.scatter", &[triangle], zero),
            ]);
            let means = [1, 1 + classes + classes * width];
            let proxies = Net::arrays(&[("noised.means", &means, zero)]);
            let released = part(Role::Expert(Slot(0)), released);
            (released, Some(part(Role::Gate, proxies)))
        };
        let kept = Net::arrays(&[
            ("exact.counts", &[classes], zero),
            ("exact.sums", &[classes, width], zero),
            ("exact.scatter", &[triangle], zero),
            ("noised.weights", &[classes, width], zero),
            ("noised.offsets", &[classes], zero),
        ]);
        Ok(Self {
            released,
            proxies,
            kept: part(Role::Private, kept),
            features,
            noise,
            total,
            hiding: total.map_or(1, |total| total.hiding(spec.nodes)),
            key: NoiseKey::of_system(),
            classes,
            remembered: Remembered::default(),
            served: None,
        })
    }

    /// Says where noise comes from; by default it is the operating system's.
    pub(crate) fn draw_from(&mut self, key: NoiseKey) {
        self.key = key;
    }

    /// Returns its parts in order.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &Part> {
        let published = [&self.released].into_iter().chain(&self.proxies);
        published.chain([&self.kept])
    }

    /// Returns its parts in order, for changing them.
    pub(crate) fn parts_mut(&mut self) -> impl Iterator<Item = &mut Part> {
        let published = [&mut self.released].into_iter().chain(&mut self.proxies);
        published.chain([&mut self.kept])
    }

    /// Says that peers' statistics make no classifier and why, once some have come.
    pub(crate) fn lacks(&self) -> Option<String> {
        let Remembered {
            is_released,
            groups,
            solved,
            missing,
            ..
        } = &self.remembered;
        if self.remembered.left_out {
            return Some(LEFT_OUT.to_owned());
        }
        if let Some(missing) = missing {
            return Some(format!(
                "no classifier of peers' noised statistics: {missing}"
            ));
        }
        if let (Some([kept, all]), Some(_)) = (groups, solved)
            && kept < all
        {
            let left_out = all - kept;
            return Some(format!(
                "the sums of {left_out} of {all} groups are left out: they do not fit what this node has, or too few of their members were there"
            ));
        }
        let waits = self.has_total() && *is_released && solved.is_none();
        waits.then(|| total::NOT_ADDED_UP.to_owned())
    }

    /// Returns what is remembered besides numbers.
    pub(crate) fn memory(&self) -> Option<Memory> {
        let is_new = self.remembered == Remembered::default();
        (!is_new).then(|| Memory::of(&self.remembered))
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

    /// Tells whether the own samples were added up.
    pub(crate) fn is_released(&self) -> bool {
        self.remembered.is_released
    }

    /// Tells whether all nodes add up their statistics once.
    pub(crate) fn has_total(&self) -> bool {
        self.total.is_some()
    }

    /// Returns the number of samples that others are told: what the release tells of, at least one. Nothing under masks, where
    /// they are told none.
    pub(crate) fn n_samples(&self) -> Option<u32> {
        let count = || self.numbers(&self.released, 0).iter().sum::<f64>();
        (!self.has_total()).then(|| count().round().max(1.0) as u32)
    }

    /// Adds up over the training samples, and adds noise to what will be published.
    pub(crate) fn release(&mut self, samples: &Samples, node_seed: [u64; 2], device: &Device) {
        let exact = self.add_up(samples, device);
        let mut noised = exact.clone();
        if let Some(noise) = self.noise {
            // Two totals of some of the same nodes differ in others: shares that were the same in both would be gone.
            let key = if self.has_total() {
                self.key.once()
            } else {
                self.key.clone()
            };
            key.add_noise(noised.numbers_mut(), noise, node_seed);
        }
        self.keep(&exact.statistics(), samples, device);
        let tensors = |arrays: &[&[f64]]| -> Vec<Tensor<1>> {
            arrays.iter().map(|values| upload(values, device)).collect()
        };
        self.released.weights = match &mut self.proxies {
            None => {
                let part = total::write(noised.numbers_mut().map(|number| *number), 1.0);
                Weights::load(&self.released.net, &part, device).expect("a part of its own net")
            }
            Some(proxies) => {
                let noised = noised.statistics();
                let means = means_of_noised(&noised.counts, &noised.sums).to_proxy();
                let means: Vec<f64> = means.into_iter().map(f64::from).collect();
                proxies.weights = Weights::new(tensors(&[&means]));
                Weights::new(tensors(&[&noised.counts, &noised.sums, &noised.scatter]))
            }
        };
        self.remembered.is_released = true;
    }

    /// Adds up over samples, for nobody to see. Words that few texts have are left out where no noise will hide them.
    fn add_up(&self, samples: &Samples, device: &Device) -> WholeSums {
        let rare = (self.features.are_words() && self.noise.is_none()).then(|| {
            let mut texts = Texts::new(self.features.width());
            self.visit(samples, device, |_, row| texts.count(row));
            texts.rare()
        });
        let mut exact = self.nothing();
        self.visit(samples, device, |at, row| {
            let class = usize::from(samples.labels[at]);
            match &rare {
                None => exact.add(row, class),
                Some(rare) => exact.add(&without(row, rare), class),
            }
        });
        exact
    }

    /// Calls `visit` with position and features of every sample.
    fn visit(&self, samples: &Samples, device: &Device, mut visit: impl FnMut(usize, &[f32])) {
        for_each_batch(samples, device, |positions, inputs| {
            let features = weights::values(&self.features.of(inputs));
            let rows = features.chunks_exact(self.features.width());
            for (at, row) in positions.iter().zip(rows) {
                visit(*at as usize, row);
            }
        });
    }

    /// Keeps the own exact sums of these samples, which stay at home.
    fn keep(&mut self, exact: &Statistics, samples: &Samples, device: &Device) {
        self.remembered.n_kept = Some(samples.len() as u32);
        let exact = [&exact.counts, &exact.sums, &exact.scatter];
        let mut kept: Vec<Tensor<1>> = exact.map(|values| upload(values, device)).into();
        kept.extend((3..5).map(|at| self.kept.weights.tensor(at)));
        self.kept.weights = Weights::new(kept);
    }

    /// Keeps the own exact sums, unless they are of as many samples: others have come since, or the node joined too late for the total
    /// and has added up none. Tells whether they are others now.
    fn keep_anew(&mut self, samples: &Samples, device: &Device) -> bool {
        let are_others = self.remembered.n_kept != Some(samples.len() as u32);
        if are_others {
            let exact = self.add_up(samples, device).statistics();
            self.keep(&exact, samples, device);
        }
        are_others
    }

    /// Chooses how the peers' classifier and what the node does alone are joined. `alone` predicts for inputs.
    pub(crate) fn choose(
        &mut self,
        alone: &dyn Fn(Tensor<2>) -> Output,
        validation: &Samples,
        device: &Device,
    ) {
        let home = AtHome {
            alone,
            validation,
            device,
        };
        let classifier = self.remembered.solved.map(|_| self.classifier());
        self.remembered.left_out = false;
        self.remembered.choice = classifier.map(|classifier| {
            let prior = self.prior();
            Judging::new(classifier.into(), &prior, &self.features, home).choice()
        });
        self.serve(device);
    }

    /// Tells whether peers' statistics are in what is served.
    pub(crate) fn serves_peers(&self) -> bool {
        self.served.is_some()
    }

    /// Says what peers' statistics count for beside what the node does alone.
    pub(crate) fn joined_with(&self, alone: Composition) -> Composition {
        let component = match (self.total, self.noise) {
            (Some(Total { group: Some(_), .. }), _) => Component::GroupStatistics,
            (Some(_), None) => Component::CommonStatistics,
            _ => Component::NoisedStatistics,
        };
        match self.remembered.choice {
            Some(choice) => alone.joined(component, choice.weight),
            None if self.remembered.left_out => alone.without(component),
            None => alone,
        }
    }

    /// Serves nothing of peers; returns what was remembered before.
    pub(crate) fn leave_peers_out(&mut self, device: &Device) -> Remembered {
        let before = self.remembered.clone();
        (self.remembered.choice, self.remembered.left_out) = (None, true);
        self.serve(device);
        before
    }

    /// Serves again what was left out.
    pub(crate) fn put_peers_back(&mut self, before: Remembered, device: &Device) {
        self.remembered = before;
        self.serve(device);
    }

    /// Puts the chosen classifier on the device.
    fn serve(&mut self, device: &Device) {
        let choice = self.remembered.choice.filter(|choice| choice.weight > 0.0);
        self.served = choice.map(|choice| {
            let [counts, sums] = [0, 1].map(|at| self.numbers(&self.kept, at));
            let mean = mean_features(&counts, &sums);
            let joined = [choice.temperature, choice.weight];
            let classifier = self.classifier().into();
            Served::new(joined, classifier, &mean, &self.prior(), device)
        });
    }

    /// Multiplies what the node does alone with what its peers' statistics say of the same inputs.
    pub(crate) fn times(&self, alone: Output, inputs: Tensor<2>) -> Output {
        match &self.served {
            Some(served) => served.times(alone, self.features.of(inputs)),
            None => alone,
        }
    }

    /// Writes into a graph the logits that [`Self::times`] computes.
    pub(crate) fn emit(&self, graph: &mut Graph, alone: Value, inputs: Value) -> Value {
        match &self.served {
            Some(served) => {
                let features = self.features.emit(graph, inputs);
                served.emit(graph, alone, features)
            }
            None => alone,
        }
    }

    fn classifier(&self) -> Discriminant {
        let [weights, offsets] = [3, 4].map(|at| self.numbers(&self.kept, at));
        Discriminant::new(weights, offsets)
    }

    /// Returns the shares of the classes among the own samples, which stay at home.
    fn prior(&self) -> Vec<f64> {
        let counts = self.numbers(&self.kept, 0);
        let total = total_of(&counts).max(1.0);
        counts.iter().map(|count| count / total).collect()
    }

    fn numbers(&self, part: &Part, at: usize) -> Vec<f64> {
        doubles(&part.weights.tensor(at))
    }

    /// Returns the own exact sums, which stay at home.
    fn exact(&self) -> Statistics {
        self.statistics([0, 1, 2].map(|at| self.numbers(&self.kept, at)))
    }

    /// Returns the noise of a sum of so many members.
    fn noise_of(&self, members: f64) -> Result<Noise, UnitError> {
        let noise = self.noise.map_or(0.0, Noise::get) * members.sqrt();
        Noise::new(noise.max(LEAST_NOISE))
    }

    /// Reads how many members are in a total, and what they added up.
    fn read_total(&self, params: &ParamSet) -> (f64, WholeSums) {
        let (members, numbers) = total::read(params);
        let mut sums = self.nothing();
        let pairs = sums.numbers_mut().zip(numbers);
        pairs.for_each(|(sum, number)| *sum = number);
        (members, sums)
    }

    fn read(&self, params: &ParamSet) -> Statistics {
        let arrays = ["noised.counts", "noised.sums", "noised.scatter"];
        self.statistics(arrays.map(|name| {
            let tensor = params.get(name).expect("the layout was checked");
            tensor.values().iter().copied().map(f64::from).collect()
        }))
    }

    fn statistics(&self, [counts, sums, scatter]: [Vec<f64>; 3]) -> Statistics {
        let mut statistics = Statistics::new(self.classes, self.features.width());
        (statistics.counts, statistics.sums, statistics.scatter) = (counts, sums, scatter);
        statistics
    }
}

/// Returns features with zeros where they are left out.
fn without(row: &[f32], left_out: &[bool]) -> Vec<f32> {
    let pairs = row.iter().zip(left_out);
    pairs
        .map(|(value, is_out)| if *is_out { 0.0 } else { *value })
        .collect()
}
