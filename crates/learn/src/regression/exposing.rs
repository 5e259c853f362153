//! Attacks on what a node publishes of its rows.

use fednode_core::random::nearly_normal;
use fednode_core::spec::PrivacySpec;
use fednode_data::Samples;
use fednode_mix::Statistics;
use fednode_mix::ridge::noised::CutRows;
use rand_chacha::rand_core::RngCore;

use super::total::RowsTotal;
use super::{Regression, rows_of};
use crate::agreement::doubles;
use crate::exposure::{Exposure, Rows, leverage};
use crate::noised::Canaried;
use crate::promised::{KnowsOthers, OTHERS, Promised, canaried, guess, published};

impl Regression {
    /// Attacks the published sums with rows that are in them and others that are not.
    pub(crate) fn exposures(&self, members: &[&Samples], others: &[&Samples]) -> Option<Exposure> {
        let rows = [members, others].map(with_numbers);
        match &self.total {
            None => self.exposed(rows),
            Some(total) => match &total.promised {
                Some(promised) => self.exposed_promised(total, promised, &rows),
                None => self.exposed_total(rows),
            },
        }
    }

    /// Attacks means and covariances.
    fn exposed(&self, [members, others]: [Rows; 2]) -> Option<Exposure> {
        let size = self.width + 1;
        let [means, covariances] = [0, 1].map(|array| doubles(&self.own.weights.tensor(array)));
        let mut sums = Statistics::new(1, size);
        let products = (0..size).flat_map(|row| (row..size).map(move |at| (row, at)));
        let products = covariances.iter().zip(products);
        sums.scatter = products
            .map(|(value, (row, at))| value + means[row] * means[at])
            .collect();
        sums.counts = vec![1.0];
        sums.sums = means;
        let published = format!("means and covariances of {size} numbers");
        leverage(published, &sums, 0.0, [&members, &others])
    }

    /// Attacks the own part of the total, as whoever knows the rows of all others sees it. Means are not in it. The attack is given them
    /// all the same, so a stronger one finds no more for want of them.
    fn exposed_total(&self, [mut members, mut others]: [Rows; 2]) -> Option<Exposure> {
        let size = self.width + 1;
        let [means, covariances] = [0, 1].map(|array| doubles(&self.own.weights.tensor(array)));
        for row in members.features.iter_mut().chain(&mut others.features) {
            let apart = row.iter_mut().zip(&means);
            apart.for_each(|(value, mean)| *value -= *mean as f32);
        }
        let mut seen = Statistics::new(1, size);
        seen.scatter = covariances;
        let published = format!("its part of a total of {size} numbers");
        leverage(published, &seen, 0.0, [&members, &others])
    }

    /// Attacks the own part of the total as whoever knows all rows but the one in question. The noise is that of the fewest members that hide it.
    fn exposed_promised(
        &self,
        total: &RowsTotal,
        promised: &Promised,
        [members, others]: &[Rows; 2],
    ) -> Option<Exposure> {
        let noise = promised.noise_of(f64::from(total.hiding))?;
        let attack = KnowsOthers::new(noise);
        let cut = |row: &Vec<f32>| -> (Vec<f32>, f32) {
            let (number, features) = row.split_last().expect("a number stands last");
            (promised.cut(features), *number)
        };
        let [members, others] = [members, others]
            .map(|rows| -> Vec<(Vec<f32>, f32)> { rows.features.iter().map(cut).collect() });
        let score = |rows: &CutRows, (row, number): &(Vec<f32>, f32), is_in| {
            attack.score(&rows.change(row, *number, promised.radius), is_in)
        };
        let without = |at: usize| {
            let rest = members.iter().enumerate().filter(|(other, _)| *other != at);
            self.cut_rows(rest.map(|(_, row)| row))
        };
        let inside = members.iter().enumerate();
        let inside: Vec<f64> = inside
            .map(|(at, row)| score(&without(at), row, true))
            .collect();
        let all = self.cut_rows(members.iter());
        let outside: Vec<f64> = others.iter().map(|row| score(&all, row, false)).collect();
        attack.judged(published(self.width), &inside, &outside)
    }

    /// Puts rows that are cut one after the other.
    fn cut_rows<'a>(&self, rows: impl Iterator<Item = &'a (Vec<f32>, f32)>) -> CutRows {
        let (features, numbers): (Vec<&[f32]>, Vec<f32>) =
            rows.map(|(row, number)| (row.as_slice(), *number)).unzip();
        CutRows::new(self.width, &features.concat(), &numbers)
    }

    /// Guesses in which releases canaries are, as [`canaried`] says. A canary lies at one end of a direction, and the others at the other
    /// end, with the other end of the numbers. So it changes their sums as much as a row can.
    pub(crate) fn canaried(&self, privacy: &PrivacySpec) -> Option<Canaried> {
        let total = self.total.as_ref()?;
        let promised = total.promised.as_ref()?;
        let noise = promised.noise_of(f64::from(total.hiding))?;
        canaried(self.width, privacy, |random| {
            let direction = nearly_normal(random, self.width);
            let [row, other] = [1.0, -1.0].map(|side| promised.end(&direction, side));
            let mut rows = vec![(other, -1.0); OTHERS];
            let known = self.cut_rows(rows.iter());
            let is_in = random.next_u32() & 1 == 1;
            let change = known.change(&row, 1.0, promised.radius);
            rows.extend(is_in.then_some((row, 1.0)));
            let [known, release] =
                [known, self.cut_rows(rows.iter())].map(|rows| rows.whole(promised.radius));
            (guess(&known, release, &change, noise), is_in)
        })
    }
}

/// Returns features and number of all samples together.
fn with_numbers(samples: &[&Samples]) -> Rows {
    let mut rows = Rows {
        features: Vec::new(),
        classes: Vec::new(),
    };
    for some in samples {
        let (features, numbers) = rows_of(some);
        let width = some.values_per_sample();
        for (row, number) in features.chunks_exact(width).zip(numbers) {
            rows.features.push([row, &[*number]].concat());
            rows.classes.push(0);
        }
    }
    rows
}
