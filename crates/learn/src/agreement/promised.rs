//! How a row of a table is hidden in the sum of all sites ([`fednode_mix::sites`]), and tests of that.
//!
//! ```text
//! row ──► moved and scaled by the ranges of the spec ──► cut to a length ──► M and R in whole numbers ──► + the node's share of noise
//! ```

use burn::tensor::Device;
use fednode_core::random::nearly_normal;
use fednode_core::spec::{PrivacySpec, TableColumn};
use fednode_data::Samples;
use fednode_data::table::public_spread;
use fednode_mix::Statistics;
use fednode_mix::sites::{SiteSums, change};
use fednode_mix::statistics::noised::GRID;
use fednode_privacy::gaussian::strongest_attack;
use fednode_privacy::units::Noise;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::Agreement;
use super::total::SitesTotal;
use crate::exposure::{Exposure, FALSE_ALARMS, Rows};
use crate::noised::{Canaried, NoiseKey, Tested};

/// How long rows are at most, in roots of the variance that columns have if their ranges are filled evenly.
///
/// Chosen on 20 random splits of four hospitals' tables, where it is 2.5 deviations: 1.5 to 3.5 make little difference.
const RADIUS: f64 = 0.7;
/// How many releases are made and thrown away, each with one canary in it or not.
const CANARIES: u32 = 1000;
/// How many made-up rows a canary lies beside: among fewer it moves their mean, and changes the sums by less.
const OTHERS: f64 = 99.0;

/// How rows are hidden in a sum.
pub(super) struct Promised {
    /// What each node adds, in lengths of a row.
    share: Noise,
    /// Where rows lie if all ranges are filled evenly.
    centre: Vec<f64>,
    /// How far from there a row counts at most.
    pub(super) radius: f64,
    pub(super) key: NoiseKey,
}

impl Promised {
    /// Takes what is public of these columns.
    pub(super) fn new(share: Noise, columns: &[TableColumn]) -> Self {
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
    pub(super) fn noise_of(&self, members: f64) -> Option<Noise> {
        Noise::new(self.share.get() * members.sqrt()).ok()
    }

    /// Returns what a node adds to the sum, given its rows as they were cut. Two totals of some of the same nodes differ in others:
    /// shares that were the same in both would be gone. So the noise is new each time.
    pub(super) fn release(&self, rows: &Statistics, seeds: [u64; 2]) -> Vec<i64> {
        let mut numbers = SiteSums::without_scatter(rows).whole(self.radius);
        let key = self.key.once();
        key.add_noise(numbers.iter_mut(), self.share, seeds);
        numbers
    }

    /// Cuts a row to the longest that counts, as seen from the centre.
    fn cut(&self, row: &[f32]) -> Vec<f32> {
        let pairs = || row.iter().zip(&self.centre);
        let apart = pairs().map(|(value, centre)| f64::from(*value) - centre);
        let length = apart.map(|value| value * value).sum::<f64>().sqrt();
        // In 32 bits a row may come out longer by so little.
        let factor = (self.radius * (1.0 - 1e-6) / length.max(f64::MIN_POSITIVE)).min(1.0);
        let cut = |(value, centre): (&f32, &f64)| ((f64::from(*value) - centre) * factor) as f32;
        pairs().map(cut).collect()
    }

    /// Draws a canary and the other rows of its node. These lie at one end of a random direction, all of one class. The canary lies at
    /// the other end, in another class. So it changes their sums as much as a row can.
    fn canary(&self, random: &mut ChaCha8Rng, classes: usize) -> (Vec<f32>, usize, Statistics) {
        let direction = nearly_normal(random, self.centre.len());
        let end = |side: f64| {
            // So far out that it is cut.
            let pairs = direction.iter().zip(&self.centre);
            let far = pairs.map(|(value, centre)| centre + side * 1e3 * self.radius * value);
            self.cut(&far.map(|value| value as f32).collect::<Vec<_>>())
        };
        let of_others = random.next_u32() as usize % classes;
        let class = (of_others + 1) % classes;
        let mut others = Statistics::new(classes, self.centre.len());
        others.count(&end(-1.0), of_others);
        others.scale(OTHERS);
        (end(1.0), class, others)
    }
}

/// Returns numbers in lengths of a row.
fn lengths(numbers: &[i64]) -> impl Iterator<Item = f64> {
    numbers.iter().map(|number| *number as f64 / GRID)
}

fn product(one: &[f64], other: impl Iterator<Item = f64>) -> f64 {
    one.iter().zip(other).map(|(a, b)| a * b).sum()
}

/// Takes a row out of counts and sums.
fn without(rows: &Statistics, row: &[f32], class: usize) -> Statistics {
    let mut others = rows.clone();
    others.counts[class] -= 1.0;
    let sums = others.sums.iter_mut().skip(class * row.len());
    let pairs = sums.zip(row);
    pairs.for_each(|(sum, value)| *sum -= f64::from(*value));
    others
}

impl Agreement {
    /// Adds up rows by class as they are cut.
    pub(super) fn cut_by_class(
        &self,
        promised: &Promised,
        samples: &Samples,
        device: &Device,
    ) -> Statistics {
        let mut classes = Statistics::new(self.classes, self.width);
        self.visit(samples, device, |_, class, features| {
            classes.count(&promised.cut(features), class);
        });
        classes
    }

    /// Attacks the own part of the sum as whoever knows all rows but the one in question. The noise is that of the fewest members. Members
    /// that are tried are taken for all rows of the node.
    pub(super) fn exposed_promised(
        &self,
        total: &SitesTotal,
        promised: &Promised,
        [members, others]: [Rows; 2],
    ) -> Option<Exposure> {
        let noise = promised.noise_of(f64::from(total.total.fewest))?;
        let mut rows = Statistics::new(self.classes, self.width);
        for (row, class) in members.iter() {
            rows.count(&promised.cut(row), class);
        }
        let mut drawn = vec![0; SiteSums::n_whole(self.classes, self.width)];
        NoiseKey::of_system().add_noise(drawn.iter_mut(), noise, [0, 0]);
        let score = |rows: &Statistics, row: &[f32], class, is_in: bool| {
            let change = change(rows, row, class, promised.radius);
            let length = product(&change, change.iter().copied()).sqrt();
            let seen = product(&change, lengths(&drawn)) / length.max(f64::MIN_POSITIVE);
            if is_in { seen + length } else { seen }
        };
        let inside = members.iter().map(|(row, class)| {
            let row = promised.cut(row);
            score(&without(&rows, &row, class), &row, class, true)
        });
        let outside = others
            .iter()
            .map(|(row, class)| score(&rows, &promised.cut(row), class, false));
        let (inside, outside): (Vec<f64>, Vec<f64>) = (inside.collect(), outside.collect());
        let most = strongest_attack(noise, FALSE_ALARMS);
        let found = Exposure::of(self.published(), "all others known", &inside, &outside)?;
        Some(Exposure {
            most: Some([most.auc, most.hits]),
            ..found
        })
    }

    /// Says what of a total is the node's.
    pub(super) fn published(&self) -> String {
        format!("its part of a noised total of {} columns", self.width)
    }

    /// Makes a thousand releases, each with one canary in it or not, and guesses in which one is. Nothing without a promise.
    ///
    /// All rows are made up, so it tests how much a row can change at most, and the noise that is drawn.
    pub(crate) fn canaried(&self, privacy: &PrivacySpec) -> Option<Canaried> {
        let total = self.total.as_ref()?;
        let promised = total.promised.as_ref()?;
        let noise = promised.noise_of(f64::from(total.total.fewest))?;
        let secret = NoiseKey::of_system();
        let mut random = ChaCha8Rng::from_seed(secret.secret([0, 0]));
        let sums = |rows: &Statistics| SiteSums::without_scatter(rows).whole(promised.radius);
        let guesses = (0..CANARIES).map(|_| {
            let (row, class, others) = promised.canary(&mut random, self.classes);
            let is_in = random.next_u32() & 1 == 1;
            let mut with = others.clone();
            if is_in {
                with.count(&row, class);
            }
            let (known, mut release) = (sums(&others), sums(&with));
            NoiseKey::of_system().add_noise(release.iter_mut(), noise, [0, 0]);
            let change = change(&others, &row, class, promised.radius);
            let unknown = lengths(&release).zip(lengths(&known)).map(|(a, b)| a - b);
            let half = product(&change, change.iter().copied()) / 2.0;
            (product(&change, unknown) - half, is_in)
        });
        let tested = Tested {
            published: self.published(),
            guesses: guesses.collect(),
        };
        tested.judged(privacy)
    }
}
