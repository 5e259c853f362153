//! As `agreement`, of statistics that were published with noise (`privacy.epsilon`).
//!
//! ```text
//! node j says     n_jc, s_jc, G_j      sums over its samples, |feature| <= 1, each number with Gaussian noise
//! node i judges   as in `agreement`, with D noise² / n_jc² less in the square of a distance from mu_jc
//! ```
//!
//! The deviation of the noise is part of the exchange, so everybody reckons with the same. A class is compared once it has so
//! many samples that noise does not decide which mean is nearest. Of small nodes no class may be left. Then nothing is known
//! of who agrees, and everybody counts alike.
//!
//! What no samples and no usual noise can give is refused: lengths of class sums, trace and length of the scatter. Six
//! deviations are allowed, so an honest node is hardly ever refused for them. Class means that disagree are refused if five
//! classes or more can be compared and hardly any is nearest to its own.

use fednode_core::ParamSet;
use fednode_privacy::statistics::Shares;

use super::agreement::{self, ClassMeans, Comparison, Lie, Sums, renaming};
use super::{Gives, MatchingRow};

pub(super) const ROW: MatchingRow = MatchingRow {
    name: "noised-agreement",
    summary: "noised statistics of the peers whose class means agree with the own ones, as far as noise lets see it",
    reference: "as `agreement`, under differential privacy",
    gives: Gives::Each,
    // Sums grow with their samples. What bounds them is what they say of these.
    most_norm_ratio: f64::MAX,
    rows: |own, known, exchange| {
        let by = Comparison::of_noised(exchange.noise.unwrap_or_default());
        let first = own
            .first()
            .map(|own| agreement::row(*own, known, exchange, by));
        first.into_iter().collect()
    },
    admits: Some(|own, theirs, exchange| {
        judge(own, theirs, exchange.noise.unwrap_or_default()).map_err(|lie| lie.to_string())
    }),
    renamings: Some(|own, known, exchange| {
        let by = Comparison::of_noised(exchange.noise.unwrap_or_default());
        renaming::renamings(own, known, by)
    }),
};

/// Fewest classes whose disagreement shows that a node lied in its proxies: of three, noise may exchange all.
const CLASSES_OF_PROOF: usize = 5;
/// How many deviations of noise a number may have.
const DEVIATIONS: f64 = 6.0;

/// Returns what nodes say of their classes, given noised counts and sums: a class of less than one sample is none.
pub fn means_of_noised(counts: &[f64], sums: &[f64]) -> ClassMeans {
    let width = sums.len() / counts.len().max(1);
    let there = |count: &f64| if *count >= 1.0 { *count } else { 0.0 };
    let counts: Vec<f64> = counts.iter().map(there).collect();
    let classes = counts.iter().zip(sums.chunks(width.max(1)));
    let kept = classes.flat_map(|(count, sums)| {
        let share = f64::from(u8::from(*count > 0.0));
        sums.iter().map(move |sum| sum * share)
    });
    let kept: Vec<f64> = kept.collect();
    ClassMeans::of_sums(counts, &kept)
}

/// Judges fetched statistics by what they say. `noise` is the deviation of each number of a class sum.
fn judge(own: &ParamSet, theirs: &ParamSet, noise: f64) -> Result<(), Lie> {
    let (mine, other) = (Sums::of(own)?, Sums::of(theirs)?);
    if !are_possible(other, noise) {
        return Err(Lie::Impossible);
    }
    let by = Comparison::of_noised(noise);
    let [mine, other] = [mine, other].map(|sums| {
        let doubles = |values: &[f32]| values.iter().copied().map(f64::from).collect::<Vec<_>>();
        means_of_noised(&doubles(sums.counts), &doubles(sums.sums))
    });
    let is_proof = mine.common(&other, by).len() >= CLASSES_OF_PROOF;
    if is_proof && mine.weight_of(&other, by) == 0.0 {
        Err(Lie::Disagreement)
    } else {
        Ok(())
    }
}

/// Tells whether samples of length 1 and noise can have these sums.
fn are_possible(sums: Sums<'_>, noise: f64) -> bool {
    let (of_counts, of_sums, of_scatter) = Shares::STUDY.parts();
    let unit = noise * of_sums.sqrt();
    let (of_count, of_square) = (unit / of_counts.sqrt(), unit / of_scatter.sqrt());
    let (classes, width) = (sums.counts.len() as f64, sums.width() as f64);
    let mut all = sums.counts.iter().zip(sums.sums.chunks(sums.width()));
    let are_classes = all.all(|(count, sum)| {
        let count = f64::from(*count);
        let square: f64 = sum.iter().map(|value| f64::from(*value).powi(2)).sum();
        let most = count.max(0.0) + DEVIATIONS * of_count + noise * (width.sqrt() + DEVIATIONS);
        count >= -DEVIATIONS * of_count && square.sqrt() <= most
    });
    let total: f64 = sums.counts.iter().copied().map(f64::from).sum();
    let trace: f64 = sums.squares().sum();
    let slack = DEVIATIONS * (of_count * classes.sqrt() + of_square * width.sqrt());
    let entries = width * (width + 1.0) / 2.0;
    let longest = total.max(0.0)
        + DEVIATIONS * of_count * classes.sqrt()
        + of_square * (entries.sqrt() + DEVIATIONS);
    are_classes && (-slack..=total + slack).contains(&trace) && sums.length() <= longest
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::*;
    use fednode_core::{
        ExpertExchange, ExpertId, Matching, NodeId, PeersPerExpert, ProxySet, Slot,
    };

    /// The noise of one number, seeded: plus or minus one deviation, which is enough to tell right from wrong.
    fn noise(at: usize, deviation: f64) -> f64 {
        let hash = (at as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        if hash >> 63 == 1 {
            deviation
        } else {
            -deviation
        }
    }

    /// Counts and sums of classes at right angles in 64 dimensions, called by these names.
    fn noised<const C: usize>(
        names: [usize; C],
        samples: f64,
        deviation: f64,
        draw: usize,
    ) -> (Vec<f64>, Vec<f64>) {
        let mut sums = vec![0.0; C * 64];
        for (corner, name) in names.into_iter().enumerate() {
            sums[name * 64 + corner] = samples;
        }
        for (at, sum) in sums.iter_mut().enumerate() {
            *sum += noise(at + 1000 * draw, deviation);
        }
        (vec![samples; C], sums)
    }

    fn exchange(noise: f64) -> ExpertExchange {
        ExpertExchange {
            noise: Some(noise),
            ..ExpertExchange::by(Matching::named(ROW.name), PeersPerExpert::ALL)
        }
    }

    fn weights(nodes: &[(Vec<f64>, Vec<f64>)], deviation: f64) -> Vec<f64> {
        let id = |at: usize| NodeId::from_bytes([at as u8 + 1; 32]);
        let known: BTreeMap<NodeId, Arc<ProxySet>> = (0..)
            .zip(nodes)
            .map(|(at, (counts, sums))| {
                let proxy = means_of_noised(counts, sums).to_proxy();
                (id(at), Arc::new(ProxySet::new(proxy.len(), proxy).unwrap()))
            })
            .collect();
        let own = ExpertId {
            owner: id(0),
            slot: Slot(0),
        };
        let rows = (ROW.rows)(&[own], &known, &exchange(deviation));
        let of = |at: usize| {
            let mut sources = rows[0].sources.iter();
            let source = sources.find(|source| source.expert.owner == id(at));
            source.map_or(0.0, |source| source.weight)
        };
        (0..nodes.len()).map(of).collect()
    }

    /// With 100 samples a class noise of 3 leaves the names to be seen, and means of fewer samples have more of it.
    #[test]
    fn who_calls_the_classes_otherwise_gets_nothing_under_noise_too() {
        let nodes = [
            noised([0, 1, 2], 100.0, 3.0, 1),
            noised([0, 1, 2], 60.0, 3.0, 2),
            noised([1, 2, 0], 100.0, 3.0, 3),
        ];
        let got = weights(&nodes, 3.0);
        assert!((got[0] - 100.0 / 160.0).abs() < 1e-6, "{got:?}");
        assert_eq!(got[2], 0.0, "{got:?}");
    }

    /// Noise of 3 lets see nothing of means of 20 samples: both others count by half.
    #[test]
    fn who_agrees_is_unknown_where_noise_is_large() {
        let nodes = [
            noised([0, 1, 2], 20.0, 3.0, 1),
            noised([0, 1, 2], 20.0, 3.0, 2),
            noised([1, 2, 0], 20.0, 3.0, 3),
        ];
        let got = weights(&nodes, 3.0);
        assert!((got[1] - got[2]).abs() < 1e-9 && got[1] > 0.0, "{got:?}");
    }

    #[test]
    fn a_class_of_less_than_one_sample_is_none() {
        let means = means_of_noised(&[-3.0, 0.5, 2.0], &[9.0, 9.0, 4.0]);
        assert_eq!(
            (means.counts, means.means),
            (vec![0.0, 0.0, 2.0], vec![0.0, 0.0, 2.0])
        );
    }

    #[test]
    fn what_no_samples_and_no_noise_give_is_refused() {
        const WIDTH: usize = 64;
        let params = |counts: [f32; 5], sums: Vec<f32>, [square, product]: [f32; 2]| {
            let mut params = ParamSet::new();
            let mut scatter = vec![0.0; WIDTH * (WIDTH + 1) / 2];
            (scatter[0], scatter[1]) = (square, product);
            let arrays = [
                ("noised.counts", vec![5], counts.to_vec()),
                ("noised.sums", vec![5, WIDTH], sums),
                ("noised.scatter", vec![scatter.len()], scatter),
            ];
            for (name, shape, values) in arrays {
                params.insert(name, &shape, values).unwrap();
            }
            params
        };
        let floats = |sums: Vec<f64>| sums.into_iter().map(|sum| sum as f32).collect::<Vec<_>>();
        let of = |names: [usize; 5], draw| floats(noised(names, 100.0, 1.0, draw).1);
        let named = [0, 1, 2, 3, 4];
        let full = [100.0; 5];
        let own = params(full, of(named, 1), [500.0, 0.0]);
        let judged = |theirs: &ParamSet| judge(&own, theirs, 1.0).err();
        assert_eq!(judged(&params(full, of(named, 2), [490.0, 0.0])), None);
        let turned = params(full, of([1, 2, 3, 4, 0], 2), [490.0, 0.0]);
        assert_eq!(judged(&turned), Some(Lie::Disagreement));
        // Two of five are exchanged: that is no proof.
        let exchanged = params(full, of([1, 0, 2, 3, 4], 2), [490.0, 0.0]);
        assert_eq!(judged(&exchanged), None);
        let long = floats(noised(named, 1000.0, 1.0, 2).1);
        let impossible = [
            params(
                [100.0, 100.0, 100.0, 100.0, -60.0],
                of(named, 2),
                [490.0, 0.0],
            ),
            params(full, long, [490.0, 0.0]),
            params(full, of(named, 2), [5000.0, 0.0]),
            params(full, of(named, 2), [-500.0, 0.0]),
            params(full, of(named, 2), [490.0, 900.0]),
        ];
        for (at, impossible) in impossible.iter().enumerate() {
            assert_eq!(judged(impossible), Some(Lie::Impossible), "{at}");
        }
        assert_eq!(judge(&own, &ParamSet::new(), 1.0), Err(Lie::Form));
    }
}
