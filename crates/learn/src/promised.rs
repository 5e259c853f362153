//! How a row of a raw table is hidden in one sum of all sites: what is public of its columns, and the noise of a node.
//!
//! ```text
//! row ──► moved and scaled by the ranges of the spec ──► cut to a length ──► whole numbers of a sum ──► + the node's share of noise
//! ```
//!
//! What the sum is made of is [`crate::agreement`]'s and [`crate::regression`]'s.

use fednode_core::spec::{PrivacySpec, TableColumn};
use fednode_data::table::public_spread;
use fednode_mix::statistics::noised::GRID;
use fednode_privacy::gaussian::strongest_attack;
use fednode_privacy::units::Noise;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use crate::exposure::{Exposure, FALSE_ALARMS};
use crate::noised::{Canaried, NoiseKey, Tested};

/// How long rows are at most, in roots of the variance that features may be expected to have ([`public_spread`]).
///
/// On 20 random splits of each of three tables (four hospitals, breast cancer, made-up wards) 0.7 to 1.2 make no difference that shows.
const RADIUS: f64 = 0.7;
/// How many releases are made and thrown away, each with one canary in it or not.
const CANARIES: u32 = 1000;
/// How many made-up rows a canary lies beside: among fewer it moves their mean, and changes the sums by less.
pub(crate) const OTHERS: usize = 99;

/// How rows are hidden in a sum.
pub(crate) struct Promised {
    /// What each node adds, in lengths of a row.
    share: Noise,
    /// Where rows may be expected to lie.
    centre: Vec<f64>,
    /// How far from there a row counts at most.
    pub(crate) radius: f64,
    pub(crate) key: NoiseKey,
}

impl Promised {
    /// Takes what is public of these columns.
    pub(crate) fn new(share: Noise, columns: &[TableColumn]) -> Self {
        let spread = public_spread(columns);
        let variance: f64 = spread.iter().map(|[_, variance]| variance).sum();
        Self {
            share,
            centre: spread.iter().map(|[mean, _]| *mean).collect(),
            radius: RADIUS * variance.sqrt(),
            key: NoiseKey::of_system(),
        }
    }

    /// Returns the noise of a sum of so many members.
    pub(crate) fn noise_of(&self, members: f64) -> Option<Noise> {
        Noise::new(self.share.get() * members.sqrt()).ok()
    }

    /// Adds the node's share of noise to what it adds up. Two totals of some of the same nodes differ in others: shares that were the
    /// same in both would be gone. So the noise is new each time.
    pub(crate) fn hide(&self, numbers: &mut [i64], seeds: [u64; 2]) {
        let key = self.key.once();
        key.add_noise(numbers.iter_mut(), self.share, seeds);
    }

    /// Cuts a row to the longest that counts, as seen from the centre.
    pub(crate) fn cut(&self, row: &[f32]) -> Vec<f32> {
        let pairs = || row.iter().zip(&self.centre);
        let apart = pairs().map(|(value, centre)| f64::from(*value) - centre);
        let length = apart.map(|value| value * value).sum::<f64>().sqrt();
        // In 32 bits a row may come out longer by so little.
        let factor = (self.radius * (1.0 - 1e-6) / length.max(f64::MIN_POSITIVE)).min(1.0);
        let cut = |(value, centre): (&f32, &f64)| ((f64::from(*value) - centre) * factor) as f32;
        pairs().map(cut).collect()
    }

    /// Returns a row at one end of a direction, so far out that it is cut.
    pub(crate) fn end(&self, direction: &[f64], side: f64) -> Vec<f32> {
        let pairs = direction.iter().zip(&self.centre);
        let far = pairs.map(|(value, centre)| centre + side * 1e3 * self.radius * value);
        self.cut(&far.map(|value| value as f32).collect::<Vec<_>>())
    }
}

/// Returns numbers in lengths of a row.
pub(crate) fn lengths(numbers: &[i64]) -> impl Iterator<Item = f64> {
    numbers.iter().map(|number| *number as f64 / GRID)
}

/// Multiplies two vectors.
pub(crate) fn product(one: &[f64], other: impl Iterator<Item = f64>) -> f64 {
    one.iter().zip(other).map(|(a, b)| a * b).sum()
}

/// An attack on a release by whoever knows all rows but the one in question: how far the release goes along what the row would change.
/// All that is unknown to it is the noise.
pub(crate) struct KnowsOthers {
    noise: Noise,
}

impl KnowsOthers {
    /// Attacks releases with so much noise.
    pub(crate) fn new(noise: Noise) -> Self {
        Self { noise }
    }

    /// Returns the score of a row that changes the release so, and is in it or not.
    ///
    /// Each row has a release of its own, since the bound is one over the noise. One draw would move the scores of all rows that lie in
    /// one direction alike, which ranks take no notice of.
    pub(crate) fn score(&self, change: &[f64], is_in: bool) -> f64 {
        let mut drawn = vec![0; change.len()];
        NoiseKey::of_system().add_noise(drawn.iter_mut(), self.noise, [0, 0]);
        let length = product(change, change.iter().copied()).sqrt();
        let seen = product(change, lengths(&drawn)) / length.max(f64::MIN_POSITIVE);
        if is_in { seen + length } else { seen }
    }

    /// Judges the scores of rows that are in it and of others.
    pub(crate) fn judged(
        &self,
        published: String,
        inside: &[f64],
        outside: &[f64],
    ) -> Option<Exposure> {
        let most = strongest_attack(self.noise, FALSE_ALARMS);
        let found = Exposure::of(published, "all others known", inside, outside)?;
        Some(Exposure {
            most: Some([most.auc, most.hits]),
            ..found
        })
    }
}

/// Says what of a noised total of so many columns is a node's.
pub(crate) fn published(width: usize) -> String {
    format!("its part of a noised total of {width} columns")
}

/// Makes a thousand releases, each with one canary in it or not, and judges the guesses in which one is. Nothing without a promise.
///
/// `one` draws a canary and whether it is in, and returns the guess ([`guess`]) and that. All rows are made up, so it tests how much a
/// row can change at most, and the noise that is drawn.
pub(crate) fn canaried(
    width: usize,
    privacy: &PrivacySpec,
    mut one: impl FnMut(&mut ChaCha8Rng) -> (f64, bool),
) -> Option<Canaried> {
    let mut random = ChaCha8Rng::from_seed(NoiseKey::of_system().secret([0, 0]));
    let tested = Tested {
        published: published(width),
        guesses: (0..CANARIES).map(|_| one(&mut random)).collect(),
    };
    tested.judged(privacy)
}

/// Guesses whether a canary is in a release, given the numbers without it, with it if it is in, and what it changes. Returns how much
/// rather it is in than not.
pub(crate) fn guess(known: &[i64], mut release: Vec<i64>, change: &[f64], noise: Noise) -> f64 {
    NoiseKey::of_system().add_noise(release.iter_mut(), noise, [0, 0]);
    let unknown = lengths(&release).zip(lengths(known)).map(|(a, b)| a - b);
    let half = product(change, change.iter().copied()) / 2.0;
    product(change, unknown) - half
}
