//! Statistics of peers under differential privacy: published once with noise, and multiplied with what the node does alone
//! (`privacy.epsilon` with FedMoE-DA's profile `agreement`).
//!
//! ```text
//! features     maps of random filters, or numbers, on the sphere                       sphere, fednode_mix::sphere
//! released     counts, sums and scatter of them in whole numbers, with noise        noise, fednode_privacy
//! received     sums of peers that agree as far as noise lets see it, added up, and the own exact ones again
//! classifier   discriminant analysis of noised sums                                 fednode_mix::statistics::noised
//! served       log p = lambda · log p_peers + (1 - lambda) · log p_alone, up to a constant       choosing
//! ```
//!
//! What the node does alone is its model times its own statistics ([`crate::agreement`]), and nothing of that leaves it. So
//! with lambda = 0 the federation changes nothing, except that raw columns are scaled by their public ranges. The release is all that is published: proxies and the number of samples
//! in adverts are computed of it. A release of the same sums has the same noise, so it tells nothing new.
//!
//! Where ε and the number of samples say that noise is too large, there is no classifier, and the node says so.

mod choosing;
mod exposing;
mod noise;
mod sphere;

use std::borrow::Borrow;

use burn::tensor::{Device, Tensor};
use fednode_core::work::PeerExpert;
use fednode_core::{BlobId, ConfigError, ExpertExchange, FederationSpec, ParamSet, Slot};
use fednode_data::Samples;
use fednode_mix::Statistics;
use fednode_mix::matching::means_of_noised;
use fednode_mix::statistics::noised::{WholeSums, own_again};
use fednode_mix::statistics::{Discriminant, StatisticsError};
use fednode_onnx::{Graph, Value};
use fednode_privacy::statistics::{Shares, is_too_noisy};
use fednode_privacy::units::{Delta, Epsilon, Noise};
use serde::{Deserialize, Serialize};

use crate::agreement::{self, Served, doubles};
use crate::algorithm::{Output, Part, Role};
use crate::class_statistics::{for_each_batch, mean_features, upload};
use crate::error::LearnError;
use crate::memory::Memory;
use crate::model::{Initial, Net};
use crate::weights::{self, Weights};

use choosing::Choice;
pub use noise::NoiseKey;
use sphere::OnSphere;

/// The matching of noised statistics.
pub(crate) const MATCHING: &str = "noised-agreement";
/// Noise is rounded up to a multiple of the inverse: what machines compute differs in the last digits.
const DIGITS: f64 = 1e6;

/// A node's release, and what it makes of those of its peers.
pub(crate) struct Noised {
    /// What is published: counts, sums and scatter with noise.
    released: Part,
    /// Its class means, as the matching reads them.
    proxies: Part,
    /// What stays: the exact sums, and the classifier of everybody's.
    kept: Part,
    features: OnSphere,
    /// Of one node's release, in lengths of a sample.
    noise: Noise,
    key: NoiseKey,
    classes: usize,
    remembered: Remembered,
    served: Option<Served>,
}

/// What outlives a round besides numbers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Remembered {
    /// Whether the own samples were added up.
    is_released: bool,
    /// Which statistics were solved last, with which weights.
    solved: Option<BlobId>,
    /// How it is served; nothing before there is anything to serve.
    choice: Option<Choice>,
    /// Why the peers' statistics that came last make no classifier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    missing: Option<String>,
}

/// Returns the noise that keeps the promise of a spec; nothing without one.
///
/// # Errors
/// Refuses a promise that no noise keeps.
fn noise_of(spec: &FederationSpec) -> Result<Option<Noise>, ConfigError> {
    let Some(epsilon) = spec.privacy.epsilon else {
        return Ok(None);
    };
    let noise = Epsilon::new(epsilon)
        .ok()
        .zip(Delta::new(spec.privacy.delta).ok())
        .and_then(|(epsilon, delta)| fednode_privacy::gaussian::noise_for(epsilon, delta))
        .and_then(|noise| Noise::new((noise.get() * DIGITS).ceil() / DIGITS).ok());
    noise.map(Some).ok_or_else(|| {
        ConfigError(
            "no noise keeps `privacy.epsilon` with `privacy.delta`: choose larger ones".into(),
        )
    })
}

/// Lets a spec with a promise exchange noised statistics, if statistics of peers are all that it exchanges. Tells whether they
/// are.
///
/// # Errors
/// Names the key to change where something would be published that the promise does not cover.
pub(crate) fn protect(spec: &mut FederationSpec) -> Result<bool, ConfigError> {
    let is_agreement = |experts: &ExpertExchange| {
        [agreement::MATCHING, MATCHING].contains(&experts.matching.name())
    };
    if !spec.exchange.experts.as_ref().is_some_and(is_agreement) {
        return Ok(false);
    }
    let Some(noise) = noise_of(spec)? else {
        return Ok(false);
    };
    let refuse = |text: &str| Err(ConfigError(format!("`privacy.epsilon` {text}")));
    if spec.pool.is_enabled() {
        return refuse("with profile `agreement` protects no private modules: leave `pool` out");
    }
    if spec.exchange.averaging.is_some() {
        return refuse(
            "protects the statistics of profile `agreement` with `hyper.base=local` alone",
        );
    }
    if let Some(experts) = &mut spec.exchange.experts {
        experts.matching = fednode_core::Matching::named(MATCHING);
        experts.noise = Some(noise.get() / Shares::STUDY.parts().1.sqrt());
    }
    Ok(true)
}

impl Noised {
    /// Tells whether an exchange wants noised statistics.
    pub(crate) fn is_wanted(experts: Option<&ExpertExchange>) -> bool {
        experts.is_some_and(|experts| experts.matching.name() == MATCHING)
    }

    /// Makes the expert of a node that has released nothing yet.
    ///
    /// # Errors
    /// Fails on a spec without a promise, and on data that have no features of bounded length.
    pub(crate) fn new(spec: &FederationSpec, device: &Device) -> Result<Self, LearnError> {
        let noise = noise_of(spec)?;
        let noise = noise.ok_or_else(|| ConfigError("`privacy.epsilon` is missing".into()))?;
        let model = spec.architecture();
        let features = OnSphere::new(&model, spec.seed, device)?;
        let (classes, width) = (model.classes, features.width());
        let zero = Initial::Zeros;
        let triangle = width * (width + 1) / 2;
        let released = Net::arrays(&[
            ("noised.counts", &[classes, 1], zero),
            ("noised.sums", &[classes, 1, width], zero),
            ("noised.scatter", &[triangle], zero),
        ]);
        let proxies = [1, 1 + classes + classes * width];
        let kept = Net::arrays(&[
            ("exact.counts", &[classes], zero),
            ("exact.sums", &[classes, width], zero),
            ("exact.scatter", &[triangle], zero),
            ("noised.weights", &[classes, width], zero),
            ("noised.offsets", &[classes], zero),
        ]);
        let part = |role, net| Part::new(role, net, 0, 0, device);
        Ok(Self {
            released: part(Role::Expert(Slot(0)), released),
            proxies: part(Role::Gate, Net::arrays(&[("noised.means", &proxies, zero)])),
            kept: part(Role::Private, kept),
            features,
            noise,
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
    pub(crate) fn parts(&self) -> [&Part; 3] {
        [&self.released, &self.proxies, &self.kept]
    }

    /// Returns its parts in order, for changing them.
    pub(crate) fn parts_mut(&mut self) -> [&mut Part; 3] {
        [&mut self.released, &mut self.proxies, &mut self.kept]
    }

    /// Says that peers' statistics make no classifier and why, once some have come.
    pub(crate) fn lacks(&self) -> Option<String> {
        let missing = self.remembered.missing.as_ref()?;
        Some(format!(
            "no classifier of peers' noised statistics: {missing}"
        ))
    }

    /// Returns what is remembered besides numbers.
    pub(crate) fn memory(&self) -> Option<Memory> {
        let is_released = self.remembered.is_released;
        is_released.then(|| Memory::of(&self.remembered))
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

    /// Returns the number of samples that the release tells of, at least one.
    pub(crate) fn n_samples(&self) -> u32 {
        let counts = self.numbers(&self.released, 0);
        counts.iter().sum::<f64>().round().max(1.0) as u32
    }

    /// Adds up over the training samples, and adds noise to what will be published.
    pub(crate) fn release(&mut self, samples: &Samples, node_seed: [u64; 2], device: &Device) {
        let mut exact = WholeSums::new(self.classes, self.features.width());
        for_each_batch(samples, device, |positions, inputs| {
            let features = weights::values(&self.features.of(inputs));
            let rows = features.chunks_exact(self.features.width());
            for (at, row) in positions.iter().zip(rows) {
                exact.add(row, usize::from(samples.labels[*at as usize]));
            }
        });
        let mut noised = exact.clone();
        self.key.add_noise(&mut noised, self.noise, node_seed);
        let (exact, noised) = (exact.statistics(), noised.statistics());
        let tensors = |arrays: &[&[f64]]| -> Vec<Tensor<1>> {
            arrays.iter().map(|values| upload(values, device)).collect()
        };
        let released = tensors(&[&noised.counts, &noised.sums, &noised.scatter]);
        let means = means_of_noised(&noised.counts, &noised.sums).to_proxy();
        let means: Vec<f64> = means.into_iter().map(f64::from).collect();
        let mut kept = tensors(&[&exact.counts, &exact.sums, &exact.scatter]);
        kept.extend((3..5).map(|at| self.kept.weights.tensor(at)));
        self.released.weights = Weights::new(released);
        self.proxies.weights = Weights::new(tensors(&[&means]));
        self.kept.weights = Weights::new(kept);
        self.remembered.is_released = true;
    }

    /// Solves for the classifier of peers' releases; the same ones are solved once.
    pub(crate) fn adopt<P: Borrow<ParamSet>>(&mut self, peers: &[PeerExpert<P>], device: &Device) {
        let key = agreement::key_of(&self.released.params(), peers);
        if self.remembered.solved == Some(key) {
            return;
        }
        match self.solve(peers) {
            Ok(solved) => {
                let mut kept: Vec<Tensor<1>> =
                    (0..3).map(|at| self.kept.weights.tensor(at)).collect();
                kept.extend(
                    [&solved.weights, &solved.offsets].map(|values| upload(values, device)),
                );
                self.kept.weights = Weights::new(kept);
                (self.remembered.solved, self.remembered.missing) = (Some(key), None);
            }
            Err(reason) => {
                let before = self.remembered.missing.replace(reason.to_string());
                self.remembered.solved = None;
                // Said once: noise that is too large stays so from round to round.
                if before != self.remembered.missing {
                    tracing::warn!(%reason, "no classifier of peers' noised statistics");
                }
            }
        }
    }

    fn solve<P: Borrow<ParamSet>>(
        &self,
        peers: &[PeerExpert<P>],
    ) -> Result<Discriminant, NoSolution> {
        let own = self.statistics([0, 1, 2].map(|at| self.numbers(&self.kept, at)));
        let own_weight = 1.0 - peers.iter().map(|peer| peer.weight).sum::<f64>();
        // Weights are of samples as releases tell of them: what the own ones weigh says what all do.
        let all = total_of(&self.numbers(&self.released, 0)) / own_weight;
        let mut sum = Statistics::new(self.classes, self.features.width());
        let (mut squares, mut total) = (0.0, own.total());
        for peer in peers {
            let theirs = self.read(peer.params.borrow());
            let told = total_of(&theirs.counts).max(1.0);
            let share = (peer.weight * all / told).clamp(0.0, 1.0);
            add(&mut sum, &theirs, share);
            squares += share * share;
            // Without the floor of each class, which would count noise as samples.
            total += share * theirs.total().max(0.0);
        }
        let noise = self.noise.get() * f64::sqrt(squares);
        if squares == 0.0 {
            return Err(NoSolution::NoPeers);
        }
        if is_too_noisy(noise, total as u64) {
            return Err(NoSolution::TooNoisy(total as u64));
        }
        let noise = Noise::new(noise).map_err(|_| NoSolution::NoPeers)?;
        add(&mut sum, &own, 1.0 + own_again(noise, total, own.total()));
        Ok(sum.solve_noised(noise)?)
    }

    /// Chooses how the peers' classifier and what the node does alone are joined. `alone` predicts for inputs.
    pub(crate) fn choose(
        &mut self,
        alone: &dyn Fn(Tensor<2>) -> Output,
        validation: &Samples,
        device: &Device,
    ) {
        let classifier = self.remembered.solved.map(|_| self.classifier());
        self.remembered.choice = classifier.map(|classifier| {
            let prior = self.prior();
            choosing::choose(
                &classifier.into(),
                &prior,
                &self.features,
                alone,
                validation,
                device,
            )
        });
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

/// Why peers' releases make no classifier.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
enum NoSolution {
    #[error("no peer's statistics have come that agree with the own ones")]
    NoPeers,
    #[error(
        "noise is too large for {0} samples in all: it takes a larger `privacy.epsilon`, more samples or more nodes"
    )]
    TooNoisy(u64),
    #[error(transparent)]
    Unsolved(#[from] StatisticsError),
}

/// Returns how many samples noised counts tell of, as proxies and thus weights have it: a class of less than one is none.
fn total_of(counts: &[f64]) -> f64 {
    counts.iter().filter(|count| **count >= 1.0).sum()
}

/// Adds a share of statistics to a sum.
fn add(sum: &mut Statistics, statistics: &Statistics, share: f64) {
    let pairs = [
        (&mut sum.counts, &statistics.counts),
        (&mut sum.sums, &statistics.sums),
        (&mut sum.scatter, &statistics.scatter),
    ];
    for (sums, values) in pairs {
        let both = sums.iter_mut().zip(values);
        both.for_each(|(sum, value)| *sum += share * value);
    }
}
