//! Sums of groups, held against a node's own exact ones.
//!
//! ```text
//! T_g        sum_c (a_c² |s_gc - n_gc mu_c|² - e_c) / (tr W · sum_c a_c n_gc)          a_c = n_c / (n_gc + n_c)
//! e_c        a_c² (D m² / b + |mu_c|² m² / a): what noise adds to the square, in the mean
//! limit      2, and four standard deviations of what chance and noise do to T
//! ```
//!
//! `n_c`, `mu_c` and `tr W` are the node's own, so that no liar moves them. `m` is the noise of a group in lengths of a sample, of which
//! counts have the share `a` and class sums `b`. Sums of honest groups have a T
//! of about 1: on Fashion-MNIST, 20 nodes of 405 images in groups of four, 0.3 to 1.5. With liars of labels among the four it was about 5 to 90.
//! Nothing else is asked of them than that they fit the own ones: five groups are too few to judge each other. Of classes that
//! the node hardly has it knows nothing, and believes what it is told.
//!
//! Products of features must be those of some samples, too: no direction has a square below zero, but for noise.

use fednode_privacy::statistics::Shares;
use fednode_privacy::units::Noise;

use super::{
    DEVIATIONS, Doubt, FEWEST_OF_BOTH, Judged, Member, ROUNDING, Within, square_of_distance,
};
use crate::statistics::{Statistics, cholesky};

/// Most that a T may be beside what chance makes. A group's members together differ less from a node than each of them does.
const LIMIT: f64 = 2.0;
/// How far beyond the edge of the spectrum of noise a square below zero may be.
const BEYOND_THE_EDGE: f64 = 1.5;
/// By how many times its mean the square of one normal number exceeds it, a quarter of what four standard deviations of the number do.
/// A count's noise is one number, so its square is far from normal.
const TAIL: f64 = (DEVIATIONS * DEVIATIONS - 1.0) / DEVIATIONS;

/// What the members of a group have together.
#[derive(Debug, Clone, Copy)]
pub struct Group<'a> {
    /// Their sums.
    pub statistics: &'a Statistics,
    /// The noise in them.
    pub noise: Noise,
}

/// Says what the sums of a group would not be if they were of samples, whoever has these.
pub fn fault(group: &Group<'_>) -> Option<&'static str> {
    let doubt = group.statistics.doubt(group.noise);
    doubt.or_else(|| (!has_squares(group)).then_some("a square below zero in some direction"))
}

/// Judges sums of groups by the own ones. Returns a doubt for each that does not fit, and nothing for the others. Sums with a
/// [`fault`] are none of its business.
pub fn foreign(own: &Statistics, groups: &[Group<'_>]) -> Vec<Option<Doubt>> {
    let anchor = Anchor::of(own);
    let judge = |group: &Group<'_>| {
        let (distance, most) = anchor.as_ref()?.distance_of(group);
        (distance > most).then_some(Doubt::Foreign(distance))
    };
    groups.iter().map(judge).collect()
}

/// Tells whether no direction has a sum of squares below zero, but for what noise and rounding do.
fn has_squares(group: &Group<'_>) -> bool {
    let width = group.statistics.width();
    let (_, _, of_scatter) = Shares::STUDY.parts();
    let squares: f64 = group.statistics.squares().iter().sum();
    // Beyond the edge of the spectrum of noise alone.
    let edge =
        BEYOND_THE_EDGE * group.noise.get() / of_scatter.sqrt() * (2.0 * width as f64).sqrt();
    let slack = edge + ROUNDING * squares.max(0.0) / width as f64;
    let mut matrix = vec![0.0; width * width];
    let mut products = group.statistics.scatter.iter();
    for row in 0..width {
        for (column, product) in (row..width).zip(products.by_ref()) {
            let more = if row == column { slack } else { 0.0 };
            matrix[column * width + row] = product + more;
        }
    }
    slack == 0.0 || cholesky(matrix, width).is_ok()
}

/// What a node knows for sure.
struct Anchor {
    judged: Judged,
    within: Within,
}

impl Anchor {
    /// Nothing comes of a node that has no more samples than classes.
    fn of(own: &Statistics) -> Option<Self> {
        let samples = own.total();
        if samples < 1.0 {
            return None;
        }
        let mut shares = own.clone();
        shares.scale(1.0 / samples);
        let judged = Judged::of(&Member {
            statistics: &shares,
            samples,
        });
        let within = judged.within?;
        Some(Self { judged, within })
    }

    /// Returns T of a group, and the most that it may be.
    fn distance_of(&self, group: &Group<'_>) -> (f64, f64) {
        let (of_counts, of_sums, _) = Shares::STUDY.parts();
        let noise = group.noise.get();
        let of_sum = noise / of_sums.sqrt();
        let width = group.statistics.width();
        let (mut squares, mut total, mut variance) = (0.0, 0.0, 0.0);
        let classes = self.judged.counts.iter().zip(&self.judged.means);
        let sums = group.statistics.sums.chunks_exact(width);
        let sums = sums.zip(&group.statistics.counts);
        for ((own, mean), (sum, count)) in classes.zip(sums) {
            if *own < FEWEST_OF_BOTH {
                continue;
            }
            // Noise may say that a class has less than nothing.
            let count = count.max(0.0);
            let due: Vec<f64> = mean.iter().map(|value| count * value).collect();
            let length: f64 = mean.iter().map(|value| value * value).sum();
            let share = own / (own + count);
            let (samples, scatter) = (share * count, self.within.trace * share * count);
            let of_number = (share * of_sum).powi(2);
            let of_count = length * (share * noise).powi(2) / of_counts;
            let (of_numbers, square) = (width as f64 * of_number, square_of_distance(sum, &due));
            squares += share * share * square - of_numbers - of_count;
            total += samples;
            variance += 2.0 * of_numbers * of_number + (TAIL * of_count).powi(2);
            variance += 4.0 * of_number * scatter;
            variance += 2.0 * self.within.concentration * scatter.powi(2);
        }
        let most = LIMIT + DEVIATIONS * self.within.distance(variance.sqrt(), total);
        (self.within.distance(squares, total), most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::noised::{GRID, WholeSums};
    use crate::statistics::robust::tests::Draws;

    const CLASSES: usize = 4;
    const WIDTH: usize = 12;

    impl Draws {
        /// Adds samples of length 1, whose place is that of the class which `named` says, with noise.
        fn group(&mut self, samples: usize, named: impl Fn(usize) -> usize, m: f64) -> Statistics {
            let mut sums = WholeSums::new(CLASSES, WIDTH);
            for sample in 0..samples {
                let class = sample % CLASSES;
                let place = named(class);
                let at = |at: usize| f64::from(u8::from(at == place));
                let features: Vec<f64> = (0..WIDTH).map(|i| at(i) + 0.15 * self.normal()).collect();
                let length = features.iter().map(|v| v * v).sum::<f64>().sqrt();
                let unit: Vec<f32> = features.iter().map(|v| (v / length) as f32).collect();
                sums.add(&unit, class);
            }
            for number in sums.numbers_mut() {
                *number += (self.normal() * m * GRID) as i64;
            }
            sums.statistics()
        }
    }

    fn doubts(own: &Statistics, groups: &[Statistics], m: f64) -> Vec<Option<Doubt>> {
        let noise = Noise::new(m.max(1e-6)).unwrap();
        let groups: Vec<Group<'_>> = groups
            .iter()
            .map(|statistics| Group { statistics, noise })
            .collect();
        let foreign = foreign(own, &groups);
        let faults = groups
            .iter()
            .map(|group| fault(group).map(Doubt::Impossible));
        faults
            .zip(foreign)
            .map(|(fault, foreign)| fault.or(foreign))
            .collect()
    }

    fn honest(class: usize) -> usize {
        class
    }

    /// A quarter of the samples of a group call the classes by the next one's name.
    fn quarter_turned(draws: &mut Draws, samples: usize, m: f64) -> Statistics {
        let mut sum = draws.group(samples * 3 / 4, honest, m);
        let turned = draws.group(samples / 4, |class| (class + 1) % CLASSES, 0.0);
        let pairs = sum.counts.iter_mut().zip(&turned.counts);
        let pairs = pairs.chain(sum.sums.iter_mut().zip(&turned.sums));
        let pairs = pairs.chain(sum.scatter.iter_mut().zip(&turned.scatter));
        pairs.for_each(|(sum, value)| *sum += value);
        sum
    }

    /// The noise is that of epsilon 4 and of 1, for three members of four and for one that is there beside (1.25 and 4.3).
    #[test]
    fn groups_of_honest_members_are_believed_with_noise_and_without() {
        for m in [0.0, 1.25, 4.3] {
            for seed in 0..40 {
                let mut draws = Draws::new(seed);
                let own = draws.group(400, honest, 0.0);
                let others: Vec<Statistics> =
                    (0..5).map(|_| draws.group(1600, honest, m)).collect();
                let doubts = doubts(&own, &others, m);
                assert!(
                    doubts.iter().all(Option::is_none),
                    "{m}, {seed}: {doubts:?}"
                );
            }
        }
    }

    #[test]
    fn a_group_with_one_liar_among_four_is_left_out_with_noise_and_without() {
        for m in [0.0, 1.25, 4.3] {
            for seed in 0..40 {
                let mut draws = Draws::new(seed);
                let own = draws.group(400, honest, 0.0);
                let groups = [
                    quarter_turned(&mut draws, 1600, m),
                    draws.group(1600, honest, m),
                ];
                let doubts = doubts(&own, &groups, m);
                let is_found = matches!(doubts[..], [Some(Doubt::Foreign(_)), None]);
                assert!(is_found, "{m}, {seed}: {doubts:?}");
            }
        }
    }

    #[test]
    fn sums_of_no_samples_are_left_out() {
        let mut draws = Draws::new(1);
        let own = draws.group(400, honest, 0.0);
        let mut negative = draws.group(1600, honest, 1.0);
        negative.counts[2] = -400.0;
        let doubts = doubts(&own, &[negative], 1.0);
        assert!(
            matches!(doubts[0], Some(Doubt::Impossible(_))),
            "{doubts:?}"
        );
    }

    /// A liar leaves counts, class sums and squares as they are, and makes products of features that no samples have.
    #[test]
    fn products_of_no_samples_are_left_out_with_noise_and_without() {
        for m in [0.0, 1.25, 4.3] {
            let mut draws = Draws::new(2);
            let own = draws.group(400, honest, 0.0);
            let honest = draws.group(1600, honest, m);
            let mut lie = honest.clone();
            // The product of the first two features.
            lie.scatter[1] += 800.0;
            let doubts = doubts(&own, &[lie, honest], m);
            let is_found = matches!(doubts[..], [Some(Doubt::Impossible(_)), None]);
            assert!(is_found, "{m}: {doubts:?}");
        }
    }

    /// A class that a group says it does not have is judged all the same.
    #[test]
    fn a_sum_of_no_samples_is_left_out() {
        for m in [0.0, 1.25, 4.3] {
            let mut draws = Draws::new(3);
            let own = draws.group(400, honest, 0.0);
            let mut lie = draws.group(1600, honest, m);
            lie.counts[1] -= 400.0;
            let doubts = doubts(&own, &[lie], m);
            assert!(doubts[0].is_some(), "{m}");
        }
    }

    /// With four samples of four classes nobody knows how far samples of a class are from each other.
    #[test]
    fn a_node_of_few_samples_knows_nothing_against_a_group() {
        let mut draws = Draws::new(1);
        let own = draws.group(4, honest, 0.0);
        let turned = draws.group(1600, |class| (class + 1) % CLASSES, 0.0);
        assert_eq!(doubts(&own, &[turned], 0.0), [None]);
    }
}
