//! How a row is hidden in the sum of all sites ([`fednode_mix::sites`]), and tests of that.

use burn::tensor::Device;
use fednode_core::random::nearly_normal;
use fednode_core::spec::PrivacySpec;
use fednode_data::Samples;
use fednode_mix::Statistics;
use fednode_mix::sites::{SiteSums, change};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::RngCore;

use super::Agreement;
use super::total::SitesTotal;
use crate::exposure::{Exposure, Rows};
use crate::noised::Canaried;
use crate::promised::{KnowsOthers, OTHERS, Promised, canaried, guess, published};

/// Returns what a node adds to the sum, given its rows as they were cut.
pub(super) fn release(promised: &Promised, rows: &Statistics, seeds: [u64; 2]) -> Vec<i64> {
    let mut numbers = SiteSums::without_scatter(rows).whole(promised.radius);
    promised.hide(&mut numbers, seeds);
    numbers
}

/// Draws a canary and the other rows of its node. These lie at one end of a random direction, all of one class. The canary lies at
/// the other end, in another class. So it changes their sums as much as a row can.
fn canary(
    promised: &Promised,
    random: &mut ChaCha8Rng,
    [classes, width]: [usize; 2],
) -> (Vec<f32>, usize, Statistics) {
    let direction = nearly_normal(random, width);
    let of_others = random.next_u32() as usize % classes;
    let class = (of_others + 1) % classes;
    let mut others = Statistics::new(classes, width);
    others.count(&promised.end(&direction, -1.0), of_others);
    others.scale(OTHERS as f64);
    (promised.end(&direction, 1.0), class, others)
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

    /// Attacks the own part of the sum as whoever knows all rows but the one in question. The noise is that of the fewest members that
    /// hide it. Members that are tried are taken for all rows of the node.
    pub(super) fn exposed_promised(
        &self,
        total: &SitesTotal,
        promised: &Promised,
        [members, others]: [Rows; 2],
    ) -> Option<Exposure> {
        let noise = promised.noise_of(f64::from(total.hiding))?;
        let mut rows = Statistics::new(self.classes, self.width);
        for (row, class) in members.iter() {
            rows.count(&promised.cut(row), class);
        }
        let attack = KnowsOthers::new(noise);
        let change =
            |rows: &Statistics, row: &[f32], class| change(rows, row, class, promised.radius);
        let inside = members.iter().map(|(row, class)| {
            let row = promised.cut(row);
            attack.score(&change(&without(&rows, &row, class), &row, class), true)
        });
        let outside = others
            .iter()
            .map(|(row, class)| attack.score(&change(&rows, &promised.cut(row), class), false));
        let (inside, outside): (Vec<f64>, Vec<f64>) = (inside.collect(), outside.collect());
        attack.judged(published(self.width), &inside, &outside)
    }

    /// Guesses in which releases canaries are, as [`canaried`] says.
    pub(crate) fn canaried(&self, privacy: &PrivacySpec) -> Option<Canaried> {
        let total = self.total.as_ref()?;
        let promised = total.promised.as_ref()?;
        let noise = promised.noise_of(f64::from(total.hiding))?;
        let sums = |rows: &Statistics| SiteSums::without_scatter(rows).whole(promised.radius);
        canaried(self.width, privacy, |random| {
            let shape = [self.classes, self.width];
            let (row, class, others) = canary(promised, random, shape);
            let is_in = random.next_u32() & 1 == 1;
            let mut with = others.clone();
            if is_in {
                with.count(&row, class);
            }
            let change = change(&others, &row, class, promised.radius);
            (guess(&sums(&others), sums(&with), &change, noise), is_in)
        })
    }
}
