//! Canaries: what whoever knows all samples but theirs can tell of a release that is made for this alone.
//!
//! ```text
//! own samples ─┐
//! canaries ────┴─► the release, with its noise ─► how much of each canary is in it ─► guesses, the surest ones ─► ε is above …
//!   a coin each    as it is published             fednode_mix::statistics::canaries       fednode_privacy::one_run
//! ```
//!
//! The release is made for this alone, and thrown away. It tests how long a sample is in the sums, and the noise that is drawn. It
//! does not test features of real samples, the node's own secret, masks, or who else works together. A canary is a random
//! direction with a random class: no two have much in common, and nothing that a sample may do changes the sums by more.
//!
//! Tables under masks have canaries of their own (`agreement/promised.rs`).
//!
//! There are fewer canaries than half the numbers of a release, since more of them would hide each other. What so few can rule
//! out is bounded, whatever the noise. So that bound is told, too.

use burn::tensor::Device;
use fednode_core::random::nearly_normal;
use fednode_core::spec::PrivacySpec;
use fednode_data::Samples;
use fednode_mix::statistics::canaries::{Canary, estimates};
use fednode_privacy::one_run::Guesses;
use fednode_privacy::units::Delta;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use serde::Serialize;

use super::solving::add;
use super::{NoiseKey, Noised};

/// Most canaries: guessing inverts a matrix of as many rows.
const CANARIES: u32 = 1000;
/// Of how many canaries one is guessed, the surest ones: the bound is the best of these, each at its share of the error.
const GUESSES: [u32; 5] = [20, 10, 5, 2, 1];
/// How often a bound may be wrong.
const ERROR: f64 = 0.05;

/// What guesses of canaries rule out.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Canaried {
    /// What is published.
    pub published: String,
    /// Canaries, each with a fair coin.
    pub canaries: u32,
    /// Guesses of the surest ones.
    pub guesses: u32,
    /// Those that were right.
    pub right: u32,
    /// The ε that they rule out, 95 times of 100.
    pub above: f64,
    /// The most that so many canaries could have ruled out.
    pub most: f64,
    /// The ε that the federation promises.
    pub promised: f64,
}

/// What was guessed of canaries: above 0 if it rather is in, the surer the farther from 0, and whether it is in.
pub(crate) struct Tested {
    pub(crate) published: String,
    pub(crate) guesses: Vec<(f64, bool)>,
}

impl Tested {
    /// Says which ε the surest guesses rule out. Nothing without a promise.
    pub(crate) fn judged(mut self, privacy: &PrivacySpec) -> Option<Canaried> {
        let promised = privacy.epsilon?;
        let delta = Delta::new(privacy.delta).ok()?;
        let count = self.guesses.len() as u32;
        self.guesses.sort_by(|a, b| b.0.abs().total_cmp(&a.0.abs()));
        let bounds = GUESSES.map(|one_of| {
            let made = count / one_of;
            let surest = self.guesses[..made as usize].iter();
            let right = surest.filter(|(estimate, is_in)| (*estimate > 0.0) == *is_in);
            let guesses = Guesses {
                canaries: count,
                made,
                right: right.count() as u32,
            };
            let error = ERROR / GUESSES.len() as f64;
            let all = Guesses {
                right: made,
                ..guesses
            };
            let above = |guesses: Guesses| guesses.epsilon_above(delta, error);
            (guesses, above(guesses), above(all))
        });
        let most = bounds.iter().map(|bound| bound.2).fold(0.0, f64::max);
        let best = bounds.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
        best.map(|(guesses, above, _)| Canaried {
            published: self.published,
            canaries: count,
            guesses: guesses.made,
            right: guesses.right,
            above,
            most,
            promised,
        })
    }
}

impl Noised {
    /// Puts canaries among the samples, makes a release, and guesses who is in it. Nothing without a promise.
    pub(crate) fn canaried(
        &self,
        samples: &Samples,
        privacy: &PrivacySpec,
        device: &Device,
    ) -> Option<Canaried> {
        let noise = self.noise_seen()?;
        let secret = NoiseKey::of_system();
        let mut random = ChaCha8Rng::from_seed(secret.secret([0, 0]));
        let exact = self.add_up(samples, device);
        let mut release = exact.clone();
        let (mut canaries, mut coins) = (Vec::new(), Vec::new());
        let count = self.n_canaries();
        for _ in 0..count {
            let (row, class) = self.canary(&mut random);
            let is_in = random.next_u32() & 1 == 1;
            if is_in {
                release.add(&row, class);
            }
            canaries.push((row, class));
            coins.push(is_in);
        }
        NoiseKey::of_system().add_noise(release.numbers_mut(), noise, [0, 0]);
        let mut unknown = release.statistics();
        add(&mut unknown, &exact.statistics(), -1.0);
        let estimates = estimates(&unknown, &canaries, noise).ok()?;
        let tested = Tested {
            published: self.published(),
            guesses: estimates.into_iter().zip(coins).collect(),
        };
        tested.judged(privacy)
    }

    /// Returns how many canaries there are: at most half as many as there are numbers.
    fn n_canaries(&self) -> u32 {
        let (classes, width) = (self.classes, self.features.width());
        let numbers = classes + classes * width + width * (width + 1) / 2;
        CANARIES.min((numbers / 2) as u32)
    }

    /// Draws features of length 1 and a class.
    fn canary(&self, random: &mut ChaCha8Rng) -> Canary {
        let row = nearly_normal(random, self.features.width());
        let length = row.iter().map(|value| value * value).sum::<f64>().sqrt();
        let row = row.into_iter().map(|value| (value / length) as f32);
        (row.collect(), random.next_u32() as usize % self.classes)
    }
}
