//! What nodes add up for the slope that they share.
//!
//! ```text
//! M_cd = sum_i (n_ic [c = d] - n_ic n_id / n_i)           C · (C + 1) / 2 numbers: the normal equations of the effects
//! R_c  = sum_i n_ic (m_ic - m_i)                          C · D numbers: their right side; m_i is the mean of node i
//! S    = sum_i S_i                                        D · (D + 1) / 2 numbers: the scatter within the nodes' own classes
//! n_c  = sum_i n_ic                                       C numbers
//! ```
//!
//! None of them says where a site lies. So they say less of a node than counts, sums and products of its rows.

use nalgebra::{DMatrix, SymmetricEigen};

use crate::matching::ClassMeans;
use crate::sites::{RIDGE_ROWS, Site};
use crate::statistics::{
    Discriminant, IMPOSSIBLE, Statistics, StatisticsError, back_substitute, cholesky,
};

/// Fewest rows, as an eigenvalue of M, that say how classes differ. Below it is rounding: no site has samples of both.
const LEAST_ROWS: f64 = 0.01;
/// How far two rows of a table lie apart in a feature at most. Features are cut at ten deviations.
const FARTHEST: f64 = 20.0;
/// What rounding may do to a number, in rows. Whole numbers of 2^-16 rows are added up by 255 members at most, and come out as two `f32`.
const ROUNDING: f64 = 0.05;
/// The same beside the number itself.
const RELATIVE: f64 = 1e-6;

/// Takes a node's rows as they are.
fn whole_site(own: &Statistics) -> Site<'_> {
    Site {
        statistics: own,
        weight: own.total(),
    }
}

/// Returns what scatter is multiplied by, and rows and mean of each class. Nothing of a site without samples.
fn parts_of(site: &Site<'_>) -> Option<(f64, Vec<f64>, Vec<Vec<f64>>)> {
    let (statistics, total) = (site.statistics, site.statistics.total());
    let is_any = total > 0.0 && site.weight > 0.0;
    is_any.then(|| {
        let factor = site.weight / total;
        let counts = statistics.counts.iter().map(|count| count * factor);
        (factor, counts.collect(), statistics.means())
    })
}

/// Sums over sites.
#[derive(Debug, Clone, PartialEq)]
pub struct SiteSums {
    pub(super) width: usize,
    /// Samples of each class, `[C]`.
    pub(super) counts: Vec<f64>,
    /// M, row by row up to the diagonal.
    pub(super) normal: Vec<f64>,
    /// R, `[C, D]`.
    pub(super) apart: Vec<f64>,
    /// S, row by row from the diagonal on.
    within: Vec<f64>,
}

impl SiteSums {
    /// Starts with nothing.
    pub fn new(classes: usize, width: usize) -> Self {
        Self {
            width,
            counts: vec![0.0; classes],
            normal: vec![0.0; classes * (classes + 1) / 2],
            apart: vec![0.0; classes * width],
            within: vec![0.0; width * (width + 1) / 2],
        }
    }

    /// Returns the sums of one node.
    pub fn of(own: &Statistics) -> Self {
        let mut sums = Self::new(own.counts.len(), own.width());
        sums.add(&whole_site(own));
        sums
    }

    /// Returns the sums of one node but for S, which is zero: of counts and sums of its rows alone.
    pub fn without_scatter(own: &Statistics) -> Self {
        let mut sums = Self::new(own.counts.len(), own.width());
        sums.add_classes(&whole_site(own));
        sums
    }

    /// Adds a site. One without samples changes nothing.
    pub fn add(&mut self, site: &Site<'_>) {
        self.add_classes(site);
        self.add_scatter(site);
    }

    /// Adds counts, M and R of a site.
    fn add_classes(&mut self, site: &Site<'_>) {
        let Some((_, counts, means)) = parts_of(site) else {
            return;
        };
        let share = |class: usize| counts[class] / site.weight;
        let mean_of = |at: usize| -> f64 {
            let parts = means.iter().enumerate();
            parts.map(|(class, mean)| share(class) * mean[at]).sum()
        };
        let mean: Vec<f64> = (0..self.width).map(mean_of).collect();
        let mut normal = self.normal.iter_mut();
        for (row, count) in counts.iter().enumerate() {
            self.counts[row] += count;
            for (column, entry) in (0..=row).zip(normal.by_ref()) {
                let own = if row == column { *count } else { 0.0 };
                *entry += own - count * share(column);
            }
            let apart = &mut self.apart[row * self.width..][..self.width];
            for (at, entry) in apart.iter_mut().enumerate() {
                *entry += count * (means[row][at] - mean[at]);
            }
        }
    }

    /// Adds the scatter of a site.
    fn add_scatter(&mut self, site: &Site<'_>) {
        let Some((factor, counts, means)) = parts_of(site) else {
            return;
        };
        let mut entries = self.within.iter_mut().zip(&site.statistics.scatter);
        for row in 0..self.width {
            for (column, (within, product)) in (row..self.width).zip(entries.by_ref()) {
                let of_means = |(count, mean): (&f64, &Vec<f64>)| count * mean[row] * mean[column];
                let between: f64 = counts.iter().zip(&means).map(of_means).sum();
                *within += factor * product - between;
            }
        }
    }

    /// Multiplies all numbers.
    pub fn scale(&mut self, factor: f64) {
        self.numbers_mut().for_each(|number| *number *= factor);
    }

    /// Returns S, row by row from the diagonal on.
    pub fn within(&self) -> &[f64] {
        &self.within
    }

    /// Adds a share of other sums.
    pub fn add_share(&mut self, other: &Self, share: f64) {
        let pairs = self.numbers_mut().zip(other.numbers());
        pairs.for_each(|(sum, number)| *sum += share * number);
    }

    /// Returns all numbers, in the order in which [`Self::numbers_mut`] visits them.
    pub fn numbers(&self) -> impl Iterator<Item = f64> {
        let of_classes = self.counts.iter().chain(&self.normal);
        of_classes.chain(&self.apart).chain(&self.within).copied()
    }

    /// Visits all numbers.
    pub fn numbers_mut(&mut self) -> impl Iterator<Item = &mut f64> {
        let of_classes = self.counts.iter_mut().chain(&mut self.normal);
        of_classes.chain(&mut self.apart).chain(&mut self.within)
    }

    /// Returns the samples of all classes.
    pub fn total(&self) -> f64 {
        self.counts.iter().sum()
    }

    /// Returns an entry of M.
    pub(super) fn normal(&self, row: usize, column: usize) -> f64 {
        let (row, column) = (row.max(column), row.min(column));
        self.normal[row * (row + 1) / 2 + column]
    }

    /// Returns the diagonal of S.
    fn squares(&self) -> Vec<f64> {
        let first = |row: &usize| row * self.width - row * row.saturating_sub(1) / 2;
        let rows = 0..self.width;
        rows.map(|row| self.within[first(&row)]).collect()
    }

    /// Says which law these sums break that those of any rows of tables keep. Rows are cut at ten deviations.
    pub fn fault(&self) -> Option<&'static str> {
        if !self.numbers().all(f64::is_finite) {
            return Some("not all of them are numbers");
        }
        let classes = self.counts.len();
        let slack = |entry: f64| ROUNDING + RELATIVE * entry.abs();
        if self.counts.iter().any(|count| *count < 0.0) || self.total() < 1.0 {
            return Some("counts below zero, or of nothing");
        }
        let of_row = |row: usize| (0..classes).map(move |column| self.normal(row, column));
        let is_off = |row: usize| {
            let own = self.normal(row, row);
            let is_large = own < -slack(0.0) || own > self.counts[row] + slack(own);
            is_large || of_row(row).sum::<f64>().abs() > slack(own) * classes as f64
        };
        if (0..classes).any(is_off) {
            return Some("classes meet at sites more often than they have samples");
        }
        let is_far = |(class, apart): (usize, &[f64])| {
            let own = self.normal(class, class).max(0.0);
            let most = FARTHEST * (own + slack(own));
            apart.iter().any(|entry| entry.abs() > most)
        };
        let mut by_class = self.apart.chunks_exact(self.width).enumerate();
        if by_class.any(is_far) {
            return Some("classes lie farther apart than rows can");
        }
        let squares = self.squares();
        let most = FARTHEST * FARTHEST * self.total();
        let is_square = |square: &f64| (-slack(0.0)..=most).contains(square);
        if !squares.iter().all(is_square) {
            return Some("squares that so many rows cannot have");
        }
        let mut within = self.within.iter();
        for (row, square) in squares.iter().enumerate() {
            for other in &squares[row..] {
                let product = within.next().copied().unwrap_or_default();
                let most = (square.max(0.0) * other.max(0.0)).sqrt();
                if product.abs() > most + slack(most) {
                    return Some("products that are too large for the squares");
                }
            }
        }
        None
    }

    /// Returns what each class adds to the site, with the samples that say so. Nothing where no site has samples of two classes.
    pub fn class_means(&self) -> Option<ClassMeans> {
        let effects = self.effects().ok()?;
        Some(ClassMeans {
            counts: self.counts.clone(),
            means: effects.into_iter().map(|effect| effect as f32).collect(),
        })
    }

    /// Tells whether classes lie farther apart than rows can, by way of all other classes.
    pub fn is_far(&self, means: &ClassMeans) -> bool {
        let most = FARTHEST * self.counts.len() as f64;
        means.means.iter().any(|mean| f64::from(mean.abs()) > most)
    }

    /// Returns the mean variance of a feature within the classes of sites.
    pub fn spread(&self) -> f64 {
        self.squares().iter().sum::<f64>() / (self.width as f64 * self.total())
    }

    /// Solves for the classifier of a node, of whose rows `own` are the statistics.
    ///
    /// # Errors
    /// Fails without any sample, and if a covariance is not finite and positive.
    pub fn solve(&self, own: &Statistics) -> Result<Discriminant, StatisticsError> {
        let is_known = |class: usize| self.counts[class] > 0.0;
        self.at(own, &self.effects()?, is_known)
    }

    /// Makes the classifier of a node by these effects and this covariance.
    pub(super) fn at(
        &self,
        own: &Statistics,
        effects: &[f64],
        is_known: impl Fn(usize) -> bool,
    ) -> Result<Discriminant, StatisticsError> {
        let (width, total) = (self.width, self.total());
        if !(total.is_finite() && total > 0.0) {
            return Err(StatisticsError::Empty);
        }
        let factor = cholesky(self.covariance(total), width)?;
        let place = own_place(own, effects);
        let mut weights = Vec::with_capacity(effects.len());
        let mut offsets = Vec::with_capacity(self.counts.len());
        for (class, effect) in effects.chunks_exact(width).enumerate() {
            let row = back_substitute(&factor, width, effect);
            let offset = -0.5 * dot(&row, effect) - dot(&row, &place);
            offsets.push(if is_known(class) { offset } else { IMPOSSIBLE });
            weights.extend(row);
        }
        Ok(Discriminant::new(weights, offsets))
    }

    /// Returns what each class adds to the site, `[C, D]`. Classes that nobody can compare do not differ.
    fn effects(&self) -> Result<Vec<f64>, StatisticsError> {
        let trace: f64 = (0..self.counts.len())
            .map(|class| self.normal(class, class))
            .sum();
        if trace.is_nan() || trace <= LEAST_ROWS {
            return Err(StatisticsError::Degenerate);
        }
        let by_rows = |rows: f64| if rows > LEAST_ROWS { 1.0 / rows } else { 0.0 };
        Ok(self.effects_by(&self.inverse(by_rows)))
    }

    /// Returns the inverse of M, given that of an eigenvalue. What all classes have in common is the site's, so it is 0 there.
    pub(super) fn inverse(&self, of: impl Fn(f64) -> f64) -> DMatrix<f64> {
        let classes = self.counts.len();
        let mean = DMatrix::from_element(classes, classes, 1.0 / classes as f64);
        let centred = DMatrix::identity(classes, classes) - &mean;
        let normal = DMatrix::from_fn(classes, classes, |row, column| self.normal(row, column));
        let normal = &centred * normal * &centred;
        // The common direction is kept far from all others.
        let far = 2.0 * normal.norm() + 1.0;
        let eigen = SymmetricEigen::new(normal + mean * far);
        let inverse = DMatrix::from_diagonal(&eigen.eigenvalues.map(of));
        let inverse = &eigen.eigenvectors * inverse * eigen.eigenvectors.transpose();
        &centred * inverse * &centred
    }

    /// Returns the product of an inverse with R, `[C, D]`.
    pub(super) fn effects_by(&self, inverse: &DMatrix<f64>) -> Vec<f64> {
        let apart = DMatrix::from_row_slice(self.counts.len(), self.width, &self.apart);
        (inverse * apart).transpose().as_slice().to_vec()
    }

    /// Returns W, as a square.
    fn covariance(&self, total: f64) -> Vec<f64> {
        let width = self.width;
        let rows = total + RIDGE_ROWS;
        let mut covariance = vec![0.0; width * width];
        let mut entries = self.within.iter();
        for row in 0..width {
            for (column, entry) in (row..width).zip(entries.by_ref()) {
                covariance[row * width + column] = entry / rows;
                covariance[column * width + row] = entry / rows;
            }
            covariance[row * width + row] += RIDGE_ROWS / rows;
        }
        covariance
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Returns where the node's site lies: the mean of its samples, less what their classes add.
fn own_place(own: &Statistics, effects: &[f64]) -> Vec<f64> {
    let (width, total) = (own.width(), own.total().max(f64::MIN_POSITIVE));
    let mut place = vec![0.0; width];
    let classes = own.means().into_iter().zip(effects.chunks_exact(width));
    for (count, (mean, effect)) in own.counts.iter().zip(classes) {
        let share = count / total;
        for (place, (mean, effect)) in place.iter_mut().zip(mean.iter().zip(effect)) {
            *place += share * (mean - effect);
        }
    }
    place
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(rows: &[([f32; 2], usize)]) -> Statistics {
        let mut statistics = Statistics::new(3, 2);
        rows.iter()
            .for_each(|(row, class)| statistics.add(row, *class));
        statistics
    }

    /// Two sites of three classes; the second has no sample of the third class.
    fn sites() -> [Statistics; 2] {
        let first = [
            ([0.0, 1.0], 0),
            ([2.0, 1.0], 1),
            ([2.0, 3.0], 1),
            ([4.0, 5.0], 2),
        ];
        let second = [([9.0, 1.0], 0), ([7.0, 1.0], 0), ([5.0, 4.0], 1)];
        [site(&first), site(&second)]
    }

    fn sums(statistics: &[Statistics]) -> SiteSums {
        let mut sums = SiteSums::new(3, 2);
        for statistics in statistics {
            sums.add(&Site {
                statistics,
                weight: statistics.total(),
            });
        }
        sums
    }

    #[track_caller]
    fn assert_near(got: impl Iterator<Item = f64>, expected: &[f64]) {
        let got: Vec<f64> = got.collect();
        let pairs = got.iter().zip(expected);
        let is_near = pairs.clone().all(|(a, b)| (a - b).abs() < 1e-9);
        assert!(
            is_near && got.len() == expected.len(),
            "{got:?}, not {expected:?}"
        );
    }

    /// By hand: of four and of three rows, with means (2, 2.5) and (7, 2).
    #[test]
    fn sums_are_those_of_rows_less_the_mean_of_their_site() {
        let sums = sums(&sites());
        assert_near(sums.counts.iter().copied(), &[3.0, 3.0, 1.0]);
        let (third, quarter) = (1.0 / 3.0, 0.25);
        let normal = [
            3.0 - quarter - 4.0 * third,
            -2.0 * quarter - 2.0 * third,
            3.0 - 4.0 * quarter - third,
            -quarter,
            -2.0 * quarter,
            1.0 - quarter,
        ];
        assert_near(sums.normal.iter().copied(), &normal);
        let apart = [
            -2.0 + 2.0 * (8.0 - 7.0),
            -1.5 + 2.0 * (1.0 - 2.0),
            -2.0,
            2.0 * (2.0 - 2.5) + 2.0,
            2.0,
            2.5,
        ];
        assert_near(sums.apart.iter().copied(), &apart);
        assert_near(sums.within.iter().copied(), &[2.0, 0.0, 2.0]);
    }

    /// Where a site lies is in none of its numbers.
    #[test]
    fn a_site_that_measures_everything_higher_adds_the_same() {
        let [first, _] = sites();
        let moved = [
            ([100.0, -49.0], 0),
            ([102.0, -49.0], 1),
            ([102.0, -47.0], 1),
            ([104.0, -45.0], 2),
        ];
        let moved = sums(&[site(&moved)]);
        let expected: Vec<f64> = sums(&[first]).numbers().collect();
        assert_near(moved.numbers(), &expected);
    }

    #[test]
    fn sums_of_rows_have_no_fault_and_made_up_ones_do() {
        let honest = sums(&sites());
        assert_eq!(honest.fault(), None);
        let made_up = |change: fn(&mut SiteSums)| {
            let mut sums = honest.clone();
            change(&mut sums);
            sums.fault().unwrap_or("none")
        };
        type Change = fn(&mut SiteSums);
        let cases: [(Change, &str); 7] = [
            (|sums| sums.apart[0] = f64::NAN, "not all of them"),
            (|sums| sums.counts[2] = -1.0, "below zero"),
            (|sums| sums.normal[0] += 4.0, "meet at sites"),
            (|sums| sums.normal[1] += 0.5, "meet at sites"),
            (|sums| sums.apart[0] = 36.0, "farther apart"),
            (|sums| sums.within[0] = -1.0, "squares"),
            (|sums| sums.within[1] = 2.5, "products"),
        ];
        for (change, expected) in cases {
            let fault = made_up(change);
            assert!(fault.contains(expected), "{fault}, not {expected}");
        }
    }

    /// Two sites of two classes, and two of two others: all that rounding leaves between both pairs is no difference.
    #[test]
    fn classes_that_meet_at_no_site_do_not_differ() {
        let rows = |first: usize, by: f32| {
            let row = |at: usize| ([by * at as f32, (at * at % 7) as f32], first + at % 2);
            let mut statistics = Statistics::new(4, 2);
            (0..30)
                .map(row)
                .for_each(|(row, class)| statistics.add(&row, class));
            statistics
        };
        let mut sums = SiteSums::new(4, 2);
        for site in [rows(0, 0.1), rows(0, 0.2), rows(2, 0.15), rows(2, 0.3)] {
            sums.add_share(&SiteSums::of(&site), 1.0);
        }
        let exact = sums.effects().unwrap();
        for (at, number) in sums.numbers_mut().enumerate() {
            *number += if at % 2 == 0 { 1e-3 } else { -1e-3 };
        }
        assert_eq!(sums.fault(), None);
        let largest = exact
            .iter()
            .fold(0.0, |largest: f64, effect| largest.max(effect.abs()));
        for (effect, exact) in sums.effects().unwrap().into_iter().zip(exact) {
            assert!(
                (effect - exact).abs() < 0.01 * largest,
                "{effect}, not {exact}"
            );
        }
    }

    #[test]
    fn one_class_at_each_site_says_nothing() {
        let first = site(&[([0.0, 1.0], 0), ([2.0, 1.0], 0)]);
        let second = site(&[([0.0, 3.0], 1), ([2.0, 4.0], 1)]);
        let sums = sums(&[first, second]);
        assert_eq!(sums.fault(), None);
        assert!(sums.class_means().is_none());
    }

    #[test]
    fn turned_classes_have_no_weight() {
        let means = |statistics: &Statistics| {
            ClassMeans::of_sums(statistics.counts.clone(), &statistics.sums)
        };
        let [mut own, _] = sites();
        own.scale(3.0);
        let mut many = sums(&[own.clone()]);
        let same = many.class_means().unwrap();
        assert!((means(&own).weight_at_site(&same) - 1.0).abs() < 1e-9);
        many.apart.iter_mut().for_each(|number| *number *= -1.0);
        let turned = many.class_means().unwrap();
        let weight = means(&own).weight_at_site(&turned);
        // The class in the middle stays where it is.
        assert!(weight < 0.01, "{weight}");
    }
}
