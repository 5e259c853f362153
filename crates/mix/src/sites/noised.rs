//! Sums of sites under differential privacy: M and R alone, with noise. The covariance is the node's own, which stays at home.
//!
//! ```text
//! one row (x, c) more at node i      M += n / (n + 1) (e_c - p) (e_c - p)ᵀ         p: shares of the node's classes before
//!                                    R += n / (n + 1) (e_c - p) (x - m)ᵀ           m: the mean of its rows before
//! |e_c - p|² <= 2, |x| <= r          v = ( √a / 2 vech(M) ; √(1 - a) / (2 √2 r) R )        changes by 1 at most
//! ```
//!
//! `vech` is the lower triangle, with products of two different classes times √2. So M and R together are one release of a Gaussian
//! mechanism, as counts, sums and scatter of features on the sphere are ([`crate::statistics::noised`]). A table has
//! few of these numbers, and that is why a few hundred rows can be protected: of forty columns there are ten times as many products.
//!
//! A node then adds its own exact M and R, so many times that noise counts for no more than it tells:
//!
//! ```text
//! k = 1 + s² / (t M̄)         s: the noise of an entry of R, t: the mean variance within the own classes, M̄: the mean eigenvalue of M
//! ```
//!
//! That weighs both by how exact they say a class's effect: own rows by `t / M_own`, the sum by `t / M̄ + s² / M̄²`. So the more noise
//! there is, the more a node goes by its own rows.

use fednode_privacy::units::Noise;

use super::SiteSums;
use crate::matching::ClassMeans;
use crate::statistics::noised::GRID;
use crate::statistics::{Discriminant, Statistics, StatisticsError};

/// What of a row's length is M's; the rest is R's.
const SHARE_OF_NORMAL: f64 = 0.1;
/// Deviations of the noise that it never has, in as many numbers as there are.
const CERTAINLY: f64 = 8.0;
/// The smallest eigenvalue of M: fewer rows say nothing of a class.
const LEAST_ROWS: f64 = 3.0;
/// The smallest variance within the own classes: of one row of each class there is none to be seen.
const LEAST_VARIANCE: f64 = 1e-3;
/// How many times what noise alone would have on average the square of the effects' length is at least. With less, nothing is made of
/// them.
const LEAST_SIGNAL: f64 = 2.0;
/// How many standard deviations above that average it is at least: noise of few numbers varies more.
const CLEARLY: f64 = 4.0;

/// What M and R are multiplied by, so that a row is 1 long.
struct Roots {
    normal: f64,
    apart: f64,
}

impl Roots {
    fn of(radius: f64) -> Self {
        Self {
            normal: SHARE_OF_NORMAL.sqrt() / 2.0,
            apart: (1.0 - SHARE_OF_NORMAL).sqrt() / (2.0 * f64::sqrt(2.0) * radius),
        }
    }

    /// The product of two different classes stands for two entries of the matrix.
    fn of_product(&self, is_square: bool) -> f64 {
        self.normal * if is_square { 1.0 } else { f64::sqrt(2.0) }
    }
}

/// Tells of each entry of a triangle whether it is on the diagonal.
fn diagonal(classes: usize) -> impl Iterator<Item = bool> {
    (0..classes).flat_map(|row| (0..=row).map(move |column| row == column))
}

impl SiteSums {
    /// Returns how many numbers [`Self::whole`] has.
    pub const fn n_whole(classes: usize, width: usize) -> usize {
        classes * (classes + 1) / 2 + classes * width
    }

    /// Returns M and R of rows that are at most `radius` long, in whole numbers of lengths of a row. Another row changes all of them
    /// together by 1 at most, rounding included.
    pub fn whole(&self, radius: f64) -> Vec<i64> {
        let roots = Roots::of(radius);
        let count = self.normal.len() + self.apart.len();
        let shorter = GRID - (count as f64).sqrt();
        let normal = self.normal.iter().zip(diagonal(self.counts.len()));
        let normal = normal.map(|(entry, is_square)| entry * roots.of_product(is_square));
        let lengths = normal.chain(self.apart.iter().map(|entry| entry * roots.apart));
        lengths
            .map(|length| (length * shorter).round() as i64)
            .collect()
    }
}

/// Returns what one row more changes in a release, in lengths of a row. `before` are counts and sums of the other rows of its node.
///
/// # Panics
/// Panics if the row is not D numbers or the class is none.
pub fn change(before: &Statistics, row: &[f32], class: usize, radius: f64) -> Vec<f64> {
    let (roots, n, width) = (Roots::of(radius), before.total(), before.width());
    assert_eq!(row.len(), width, "features of this width");
    if n <= 0.0 {
        return vec![0.0; SiteSums::n_whole(before.counts.len(), width)];
    }
    let apart_of = |(other, count): (usize, &f64)| f64::from(u8::from(other == class)) - count / n;
    let classes = before.counts.iter().enumerate().map(apart_of);
    let classes: Vec<f64> = classes.collect();
    let mean = |at: usize| before.sums.iter().skip(at).step_by(width).sum::<f64>() / n;
    let apart = row.iter().enumerate();
    let apart: Vec<f64> = apart
        .map(|(at, value)| f64::from(*value) - mean(at))
        .collect();
    let share = n / (n + 1.0);
    let pairs = (0..classes.len()).flat_map(|row| (0..=row).map(move |column| (row, column)));
    let normal = pairs.map(|(row, column)| {
        share * classes[row] * classes[column] * roots.of_product(row == column)
    });
    let of_class = |class: &f64| {
        let class = share * class * roots.apart;
        apart.iter().map(move |value| class * value)
    };
    normal.chain(classes.iter().flat_map(of_class)).collect()
}

/// M and R of all sites, with noise.
#[derive(Debug, Clone, PartialEq)]
pub struct NoisySites {
    sums: SiteSums,
    radius: f64,
    /// The deviation of the noise of an entry of R.
    of_apart: f64,
    /// The same of an entry of M.
    of_normal: f64,
}

impl NoisySites {
    /// Reads whole numbers that [`SiteSums::whole`] made and that were added up, given the noise in lengths of a row.
    pub fn of_whole(
        [classes, width]: [usize; 2],
        radius: f64,
        noise: Noise,
        numbers: impl Iterator<Item = i64>,
    ) -> Self {
        let roots = Roots::of(radius);
        let mut sums = SiteSums::new(classes, width);
        let mut lengths = numbers.map(|number| number as f64 / GRID);
        let normal = sums.normal.iter_mut().zip(diagonal(classes));
        for ((entry, is_square), length) in normal.zip(lengths.by_ref()) {
            *entry = length / roots.of_product(is_square);
        }
        let pairs = sums.apart.iter_mut().zip(lengths);
        pairs.for_each(|(entry, length)| *entry = length / roots.apart);
        Self {
            sums,
            radius,
            of_apart: noise.get() / roots.apart,
            of_normal: noise.get() / roots.normal,
        }
    }

    fn classes(&self) -> usize {
        self.sums.counts.len()
    }

    fn rows_of(&self, class: usize) -> f64 {
        self.sums.normal(class, class)
    }

    /// Says what sums of rows of this length would not be, whatever the noise.
    pub fn doubt(&self) -> Option<&'static str> {
        let SiteSums { width, apart, .. } = &self.sums;
        let slack = CERTAINLY * self.of_normal;
        let classes = || 0..self.classes();
        let row = |class: usize| classes().map(move |other| self.sums.normal(class, other));
        let off = slack * (self.classes() as f64).sqrt();
        if classes().any(|class| row(class).sum::<f64>().abs() > off)
            || classes().any(|class| self.rows_of(class) < -slack)
        {
            return Some("classes meet at sites more often than they have samples");
        }
        let of_length = CERTAINLY * self.of_apart * (*width as f64).sqrt();
        let is_far = |(class, entries): (usize, &[f64])| {
            let length = entries
                .iter()
                .map(|entry| entry * entry)
                .sum::<f64>()
                .sqrt();
            length > 2.0 * self.radius * (self.rows_of(class).max(0.0) + slack) + of_length
        };
        let mut by_class = apart.chunks_exact(*width).enumerate();
        by_class
            .any(is_far)
            .then_some("classes lie farther apart than rows can")
    }

    /// Returns what each class adds to a site, as far as noise lets it be seen, with the rows that say so. Nothing where noise is most
    /// of it.
    pub fn class_means(&self) -> Option<ClassMeans> {
        let (effects, of_noise) = self.effects(&self.sums);
        let square: f64 = effects.iter().map(|effect| effect * effect).sum();
        let rows = (0..self.classes()).map(|class| self.rows_of(class).max(0.0));
        let numbers = self.sums.width * (self.classes() - 1).max(1);
        let least = LEAST_SIGNAL.max(1.0 + CLEARLY * (2.0 / numbers as f64).sqrt());
        (square > least * of_noise).then(|| ClassMeans {
            counts: rows.collect(),
            means: effects.iter().map(|effect| *effect as f32).collect(),
        })
    }

    /// Solves for the classifier of a node, of whose rows `own` are the statistics; `weight` says what the sums count for.
    ///
    /// # Errors
    /// Fails without own samples, and if their covariance is not finite and positive.
    pub fn solve(&self, own: &Statistics, weight: f64) -> Result<Discriminant, StatisticsError> {
        let classes = self.classes();
        let exact = SiteSums::of(own);
        if own.total().is_nan() || own.total() <= 0.0 {
            return Err(StatisticsError::Empty);
        }
        let variance = exact.spread().max(LEAST_VARIANCE);
        let eigenvalues = (0..classes).map(|class| self.rows_of(class)).sum::<f64>();
        let rows = (eigenvalues / (classes - 1).max(1) as f64).max(LEAST_ROWS);
        let again = 1.0 + self.of_apart.powi(2) / (variance * rows);
        let mut both = self.sums.clone();
        both.scale(weight);
        both.add_share(&exact, again);
        let (effects, _) = self.effects(&both);
        let least = CERTAINLY * self.of_normal;
        exact.at(own, &effects, |class| {
            own.counts[class] > 0.0 || self.rows_of(class) > least
        })
    }

    /// Returns what each class adds to the site, `[C, D]`, and what noise adds to the square of its length on average.
    fn effects(&self, sums: &SiteSums) -> (Vec<f64>, f64) {
        let inverse = sums.inverse(|rows| 1.0 / rows.max(LEAST_ROWS));
        let of_noise = self.of_apart.powi(2) * sums.width as f64 * inverse.norm_squared();
        (sums.effects_by(&inverse), of_noise)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(value: f64) -> Noise {
        Noise::new(value).unwrap()
    }

    /// Rows of two classes, within a radius of 2.
    fn rows(n: usize) -> Vec<([f32; 3], usize)> {
        let row = |at: usize| {
            let class = at % 2;
            let side = class as f32 - 0.5;
            let wave = (at as f32 * 0.7).sin() * 0.4;
            ([side + wave, 0.5 - side * 0.5, wave * 0.5], class)
        };
        (0..n).map(row).collect()
    }

    fn statistics(rows: &[([f32; 3], usize)]) -> Statistics {
        let mut statistics = Statistics::new(2, 3);
        rows.iter()
            .for_each(|(row, class)| statistics.add(row, *class));
        statistics
    }

    fn whole(rows: &[([f32; 3], usize)], radius: f64) -> Vec<i64> {
        SiteSums::of(&statistics(rows)).whole(radius)
    }

    /// The worst rows that there can be: all others of one class lie at one end, and the new one of another class at the other.
    #[test]
    fn another_row_changes_a_release_by_a_length_of_one_at_most() {
        let radius = 1.5;
        let mut longest: f64 = 0.0;
        for n in 0..40 {
            for class in 0..2 {
                let mut known = vec![([1.5, 0.0, 0.0], 0); n];
                let before = whole(&known, radius);
                known.push(([-1.5, 0.0, 0.0], class));
                let after = whole(&known, radius);
                let squares = before.iter().zip(&after);
                let squares = squares.map(|(a, b)| ((b - a) as f64 / GRID).powi(2));
                longest = longest.max(squares.sum::<f64>().sqrt());
            }
        }
        assert!((0.97..=1.0).contains(&longest), "{longest}");
    }

    #[test]
    fn a_row_changes_a_release_as_the_formula_says() {
        let mut known = rows(25);
        let before = statistics(&known);
        let row = ([0.4, -1.0, 0.3], 1);
        let told = change(&before, &row.0, row.1, 2.0);
        let first = whole(&known, 2.0);
        known.push(row);
        let pairs = first.iter().zip(whole(&known, 2.0)).zip(told);
        for ((before, after), told) in pairs {
            let seen = (after - before) as f64 / GRID;
            assert!((seen - told).abs() < 1e-5, "{seen}, not {told}");
        }
    }

    #[test]
    fn without_noise_the_sum_is_what_it_was() {
        let all = rows(60);
        let exact = SiteSums::of(&statistics(&all));
        let read = NoisySites::of_whole([2, 3], 2.0, noise(1e-6), whole(&all, 2.0).into_iter());
        let pairs = read.sums.apart.iter().zip(&exact.apart);
        let mut pairs = pairs.chain(read.sums.normal.iter().zip(&exact.normal));
        assert!(pairs.all(|(a, b)| (a - b).abs() < 1e-3));
        assert_eq!(read.doubt(), None);
        let means = read.class_means().unwrap();
        let own = ClassMeans::of_sums(statistics(&all).counts, &statistics(&all).sums);
        assert!((own.weight_at_site(&means) - 1.0).abs() < 1e-9);
    }

    /// Rows of ten nodes and little noise: the effects are those of all, at the node's own place. With much of it they are the own ones.
    #[test]
    fn the_more_noise_the_more_a_node_goes_by_its_own_rows() {
        let own = statistics(&rows(6));
        let mut all = SiteSums::new(2, 3);
        all.add_share(&SiteSums::of(&statistics(&rows(400))), 1.0);
        let slope = |solved: &Discriminant| solved.weights[3] - solved.weights[0];
        let solved = |noise_of: f64| {
            let sums =
                NoisySites::of_whole([2, 3], 2.0, noise(noise_of), all.whole(2.0).into_iter());
            slope(&sums.solve(&own, 1.0).unwrap())
        };
        let alone = slope(&SiteSums::of(&own).solve(&own).unwrap());
        let (exact, little, much) = (solved(1e-6), solved(1.0), solved(1e4));
        assert!((much - alone).abs() < 0.01 * alone.abs(), "{much} {alone}");
        assert!(
            (little - exact).abs() < (little - alone).abs(),
            "{exact} {little} {alone}"
        );
        assert!(
            (exact - alone).abs() > 0.02 * alone.abs(),
            "{exact} {alone}"
        );
    }

    /// Of one row there is no variance, and noise may be as large as it likes.
    #[test]
    fn a_node_of_one_row_has_a_classifier_of_numbers() {
        let all = whole(&rows(400), 2.0);
        for by in [1.0, 1e6] {
            let sums = NoisySites::of_whole([2, 3], 2.0, noise(by), all.iter().copied());
            let solved = sums.solve(&statistics(&rows(1)), 1.0).unwrap();
            assert!(solved.weights.iter().all(|weight| weight.is_finite()));
        }
        let sums = NoisySites::of_whole([2, 3], 2.0, noise(1.0), all.into_iter());
        assert!(sums.solve(&Statistics::new(2, 3), 1.0).is_err());
    }

    #[test]
    fn noise_alone_says_nothing_of_classes_and_made_up_sums_are_doubted() {
        let numbers = whole(&rows(10), 2.0);
        let sums = |by: f64, numbers: &[i64]| {
            NoisySites::of_whole([2, 3], 2.0, noise(by), numbers.iter().copied())
        };
        assert!(sums(1.0, &numbers).class_means().is_none());
        let mut lie = numbers.clone();
        lie[0] += 100 * GRID as i64;
        assert!(sums(0.5, &lie).doubt().unwrap().contains("meet at sites"));
        let mut lie = numbers;
        lie[4] += 100 * GRID as i64;
        assert!(sums(0.5, &lie).doubt().unwrap().contains("farther apart"));
    }
}
