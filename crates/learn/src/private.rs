//! Training under a promise of differential privacy (`privacy.epsilon`): DP-SGD, Abadi et al., "Deep Learning with Differential
//! Privacy", CCS 2016, Algorithm 1.
//!
//! ```text
//! lot        every sample takes part with probability q = batch_size / n, drawn anew for every step
//! clipping   g_i <- g_i · min(1, C / |g_i|)        the gradient of each sample by itself, over all parts together
//! noise      (sum of g_i + N(0, sigma² C²)) / (q n)        then the optimiser of the federation makes its step
//! ```
//!
//! sigma is the least noise with which all steps of all rounds cost ε and δ together ([`Plan`]). So whatever is computed of
//! the parameters costs nothing more: means, experts, proxies, heads, modules. What a node would say besides, it does not say:
//! how many samples it has, and how many went to which expert. It counts like every other node.
//!
//! # The same again, or another release
//!
//! All draws come of the node's secret, the round, the parameters that it starts from and the samples ([`Draws`]).
//! So a round that is repeated after a restart is the same to the last bit and tells nothing new. With other parameters,
//! other samples or on a device that rounds otherwise it is another release, with noise of its own, and is counted as one.
//!
//! What a sample does by itself decides nothing else that can be seen. Its loss, however large, ends no node, and its gradient, if that
//! is no number, adds nothing.
//!
//! # Which algorithms
//!
//! Those whose loss is a mean over samples, and that see samples nowhere else. Batch normalisation mixes samples, class
//! means and counts are sums of their own, and a second model would be a second release.

mod lot;

use std::collections::BTreeMap;

use fednode_core::work::NoisySteps;
use fednode_core::{ConfigError, FederationId, FederationSpec, Round};
use fednode_data::Samples;
use fednode_privacy::pld;
use fednode_privacy::rdp::{self, Sampled};
use fednode_privacy::units::{Delta, Epsilon, Noise, Rate};
use rand_chacha::rand_core::{RngCore, SeedableRng};
use rand_chacha::{ChaCha8Rng, ChaCha20Rng};

use crate::algorithm::{self, Part, Role};
use crate::model;
use crate::noised::{self, NoiseKey};
use crate::pool::PoolSettings;
use crate::weights;

pub(crate) use lot::Lot;

/// The algorithms whose training can keep a promise.
const ALGORITHMS: [&str; 4] = ["fedavg", "fedper", "lg-fedavg", "fedmoe-da"];
/// To which length gradients are shortened if `training.clip_norm` says nothing.
const CLIP: f64 = 1.0;
/// The lengths to which gradients may be shortened: within them, floats hold what is computed.
const LEAST_CLIP: f64 = 1e-6;
const MOST_CLIP: f64 = 1e6;
/// Most rounds of a federation: each is an entry in the owner's file of releases.
const MOST_ROUNDS: u32 = 10_000;
/// Most levels of a category: with more, each would be taken for too rare to count.
const MOST_LEVELS: usize = 150;
/// Samples that are hashed at once.
const AT_ONCE: usize = 256;

/// Lets a spec with a promise publish what the promise covers, and nothing else.
///
/// # Errors
/// Names the key to change where something would be published that the promise does not cover.
pub(crate) fn protect(spec: &mut FederationSpec) -> Result<(), ConfigError> {
    if spec.privacy.epsilon.is_none() {
        return Ok(());
    }
    if spec.statistics.enabled {
        return refuse(
            "does not go with `statistics.enabled`: profile `agreement` of `fedmoe-da` has statistics with noise",
        );
    }
    let widest = spec.data.columns.iter().map(|column| column.levels.len());
    if widest.max() > Some(MOST_LEVELS) {
        return refuse("takes all levels of a category for alike often, 150 at most: join some");
    }
    if noised::protect(spec)? {
        return Ok(());
    }
    check_training(spec)
}

fn refuse(text: &str) -> Result<(), ConfigError> {
    Err(ConfigError(format!("`privacy.epsilon` {text}")))
}

/// Refuses training that noise on the gradients of single samples does not cover.
fn check_training(spec: &FederationSpec) -> Result<(), ConfigError> {
    if spec.architecture().vocabulary > 0 {
        return refuse(
            "trains no model of texts, since gradients of words have no bound: name no algorithm, and counts of words are added up",
        );
    }
    if !ALGORITHMS.contains(&spec.algorithm.as_str()) {
        let text = format!(
            "cannot be kept by `{}`, which publishes what single gradients do not bound: take {}",
            spec.algorithm,
            ALGORITHMS.join(", ")
        );
        return refuse(&text);
    }
    if spec.training.ahead_epochs > 0 {
        return refuse("does not go with `training.ahead_epochs`: leave it at 0");
    }
    if spec.pool.is_enabled() && PoolSettings::of(&spec.pool).fine_tune {
        return refuse(
            "does not go with `pool.preset=best`, which trains modules once more: take `fixed`",
        );
    }
    let clip_norm = spec.training.clip_norm;
    if clip_norm > 0.0 && !(LEAST_CLIP..=MOST_CLIP).contains(&clip_norm) {
        return refuse(
            "cuts gradients down to `training.clip_norm`: take 0.000001 to 1000000, or 0 for 1",
        );
    }
    if spec.rounds > MOST_ROUNDS {
        return refuse("counts every round of training, 10000 at most: lower `rounds`");
    }
    if spec.algorithm == "fedmoe-da" && !is_plain(spec)? {
        return refuse(
            "does not go with `hyper.load_balance`, `hyper.trial=on` or `hyper.weighting=samples`, which look at several samples: \
             take `hyper.profile=paper`",
        );
    }
    let net = model::build(&spec.architecture());
    if net.is_ok_and(|net| net.mixes_samples()) {
        return refuse(
            "does not go with batch normalisation, which mixes samples: take a model without it, such as `cnn` or one with \
             group normalisation",
        );
    }
    Ok(())
}

/// Tells whether FedMoE-DA's hyper-parameters look at samples one by one alone, and at training samples alone.
fn is_plain(spec: &FederationSpec) -> Result<bool, ConfigError> {
    let values = algorithm::find(&spec.algorithm)?.values(&spec.hyper)?;
    let has = |name, value| values.text(name) == value;
    Ok(values.real("load_balance") == 0.0 && has("trial", "off") && has("weighting", "uniform"))
}

/// How a node trains under a promise.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Plan {
    /// The probability with which each sample takes part in a step.
    rate: Rate,
    /// Over the length to which gradients are shortened.
    noise: Noise,
    /// The length to which gradients are shortened.
    pub(crate) clip: f64,
    /// Steps of an epoch.
    steps: u32,
    /// How many samples take part in a step, on average.
    pub(crate) expected: f64,
    /// Epochs of a round.
    epochs: u32,
    /// Rounds of the federation.
    rounds: u32,
}

/// What a federation says of training under its promise.
#[derive(Debug, Clone, Copy)]
struct Terms {
    epsilon: f64,
    delta: f64,
    batch_size: usize,
    epochs: u32,
    rounds: u32,
    clip: f64,
}

impl Terms {
    /// Takes them from a spec; nothing where nothing trained is published under a promise.
    fn of(spec: &FederationSpec) -> Option<Self> {
        let has_statistics = spec.exchange.total.is_some() || noised::Noised::is_wanted(spec);
        let epsilon = spec.privacy.epsilon.filter(|_| !has_statistics)?;
        let clip_norm = spec.training.clip_norm;
        Some(Self {
            epsilon,
            delta: spec.privacy.delta,
            batch_size: spec.training.batch_size,
            epochs: spec.training.local_epochs,
            rounds: spec.rounds,
            clip: if clip_norm > 0.0 { clip_norm } else { CLIP },
        })
    }

    /// Plans the training of a node of so many samples.
    ///
    /// # Errors
    /// Refuses a promise that no noise keeps.
    fn plan(&self, n_samples: usize) -> Result<Plan, ConfigError> {
        let Self {
            batch_size,
            epochs,
            rounds,
            ..
        } = *self;
        let steps = n_samples.div_ceil(batch_size) as u32;
        let share = (batch_size as f64 / n_samples.max(1) as f64).min(1.0);
        let total = u64::from(steps) * u64::from(epochs) * u64::from(rounds);
        let found = || {
            let (epsilon, delta) = (
                Epsilon::new(self.epsilon).ok()?,
                Delta::new(self.delta).ok()?,
            );
            let (rate, total) = (Rate::new(share).ok()?, u32::try_from(total).ok()?);
            Some((rate, rdp::noise_for(epsilon, delta, rate, total)?))
        };
        let (rate, noise) = found().ok_or_else(|| {
            ConfigError(format!(
                "no noise keeps `privacy.epsilon` in {total} steps: choose a larger one, or fewer `rounds`"
            ))
        })?;
        Ok(Plan {
            rate,
            noise,
            clip: self.clip,
            steps,
            expected: share * n_samples as f64,
            epochs,
            rounds,
        })
    }
}

/// A promise, and the secret with which it is kept.
#[derive(Debug)]
pub(crate) struct Promise {
    terms: Terms,
    plan: Plan,
    /// The plans of nodes of other sizes, where one learner is several nodes in turn.
    others: BTreeMap<usize, Plan>,
    key: NoiseKey,
    federation: FederationId,
    seeds: [u64; 2],
}

impl Promise {
    /// Takes a promise from a spec for a node of so many samples; nothing where nothing trained is published under one.
    ///
    /// # Errors
    /// Refuses a promise that no noise keeps.
    pub(crate) fn of(
        spec: &FederationSpec,
        node_seed: u64,
        n_samples: usize,
    ) -> Result<Option<Self>, ConfigError> {
        let Some(terms) = Terms::of(spec) else {
            return Ok(None);
        };
        Ok(Some(Self {
            terms,
            plan: terms.plan(n_samples)?,
            others: BTreeMap::new(),
            key: NoiseKey::of_system(),
            federation: spec.id(),
            seeds: [spec.seed, node_seed],
        }))
    }

    /// Goes over to another node of so many samples.
    ///
    /// # Errors
    /// Refuses a promise that no noise keeps.
    pub(crate) fn become_node(
        &mut self,
        node_seed: u64,
        n_samples: usize,
    ) -> Result<(), ConfigError> {
        self.seeds[1] = node_seed;
        self.plan = match self.others.get(&n_samples) {
            Some(plan) => *plan,
            None => self.terms.plan(n_samples)?,
        };
        self.others.insert(n_samples, self.plan);
        Ok(())
    }

    /// Says where lots and noise come from; by default it is the operating system's randomness.
    pub(crate) fn draw_from(&mut self, key: NoiseKey) {
        self.key = key;
    }

    /// Returns what a round costs, for whoever counts it.
    pub(crate) fn steps_of_a_round(&self) -> NoisySteps {
        NoisySteps {
            rate: self.plan.rate.get(),
            noise: self.plan.noise.get(),
            steps: self.plan.steps * self.plan.epochs,
        }
    }

    /// Returns the area of the strongest attack on all rounds together, and what it finds at this share of false alarms.
    pub(crate) fn most_hits(&self, false_alarms: f64) -> [f64; 2] {
        let Plan {
            rate,
            noise,
            steps,
            epochs,
            rounds,
            ..
        } = self.plan;
        let all = Sampled {
            rate,
            noise,
            steps: steps * epochs * rounds,
        };
        let bound = pld::strongest_attack(&[all], false_alarms);
        [bound.auc, bound.hits]
    }

    /// Begins a round with these parameters and samples.
    pub(crate) fn begin(&self, round: Round, parts: &[Part], samples: &Samples) -> Draws {
        let mut hasher = blake3::Hasher::new_keyed(&self.key.secret(self.seeds));
        hasher.update(self.federation.as_bytes());
        hasher.update(&round.0.to_le_bytes());
        for part in parts {
            for values in weights::all_values(part.weights.tensors().as_slice()) {
                update(&mut hasher, &values);
            }
        }
        let all: Vec<u32> = (0..samples.len() as u32).collect();
        let mut values = Vec::new();
        for some in all.chunks(AT_ONCE) {
            samples.write_batch(some, &mut values);
            update(&mut hasher, &values);
        }
        for label in &samples.labels {
            hasher.update(&label.to_le_bytes());
        }
        Draws {
            plan: self.plan,
            seed: *hasher.finalize().as_bytes(),
        }
    }
}

/// Adds numbers to what is hashed, with how many they are.
fn update(hasher: &mut blake3::Hasher, values: &[f32]) {
    hasher.update(&(values.len() as u64).to_le_bytes());
    for value in values {
        hasher.update(&value.to_le_bytes());
    }
}

/// The lots and the noise of one round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Draws {
    pub(crate) plan: Plan,
    seed: [u8; 32],
}

impl Draws {
    /// Draws which of so many samples take part in each step of an epoch.
    pub(crate) fn lots(&self, epoch: u32, n_samples: usize) -> Vec<Vec<u32>> {
        let mut random = ChaCha20Rng::from_seed(self.derived("lots", epoch, 0));
        let rate = self.plan.rate.get();
        let mut takes_part = |_: &u32| unit(&mut random) < rate;
        let mut lot = |_| (0..n_samples as u32).filter(&mut takes_part).collect();
        (0..self.plan.steps).map(&mut lot).collect()
    }

    /// Starts what the images of an epoch are changed by, and what dropout draws from. Nobody else may know either: a sample more in
    /// a step moves what all later ones get.
    pub(crate) fn streams(&self, epoch: u32) -> [ChaCha8Rng; 2] {
        ["augmentation", "dropout"].map(|what| ChaCha8Rng::from_seed(self.derived(what, epoch, 0)))
    }

    /// Returns what the noise of a step is drawn from, together with what it is added to.
    fn of_noise(&self, epoch: u32, step: u32) -> [u8; 32] {
        self.derived("noise", epoch, step)
    }

    fn derived(&self, what: &str, epoch: u32, step: u32) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_keyed(&self.seed);
        hasher.update(what.as_bytes());
        hasher.update(&epoch.to_le_bytes());
        hasher.update(&step.to_le_bytes());
        *hasher.finalize().as_bytes()
    }
}

/// Draws from 0 to below 1, evenly.
fn unit(random: &mut ChaCha20Rng) -> f64 {
    (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

/// Tells how many samples a node says that it trained on, and how many went to each of its experts: every node and every expert
/// counts alike.
pub(crate) fn told(parts: &[Part]) -> (u32, Vec<u32>) {
    let is_expert = |part: &&Part| matches!(part.role, Role::Expert(_));
    let n_experts = parts.iter().filter(is_expert).count();
    (n_experts.max(1) as u32, vec![1; n_experts])
}

#[cfg(test)]
mod tests;
