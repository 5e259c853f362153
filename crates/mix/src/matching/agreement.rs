//! Whose statistics are added to the own ones, and how much each counts: peers whose class means agree with the node's.
//!
//! ```text
//! node j says    n_jc, mu_jc      its samples of class c, and their mean feature
//! node i judges  over the classes c that both have at least 5 samples of
//!                a_ij = share of those c whose own mean mu_ic is nearest to mu_jc among all mu_jc'
//!                w_ij = max(0, (a_ij - 1/C) / (1 - 1/C)) · n_j         w_ii = n_i
//! ```
//!
//! So a peer counts as far as it calls things by the node's names. A peer that names the classes otherwise agrees about as
//! often as chance does, and gets nothing. That holds for a liar with exchanged labels too. With fewer than two classes in
//! common there is nothing to compare, and `a_ij` is [`UNKNOWN`].
//!
//! A node's samples are what it says of itself. They count for at most [`MOST_SAMPLES`] times the median of all nodes.
//!
//! What is measured at one site differs from another's by more than its patients do. So for tables (`site-agreement`) the
//! mean of a node's own class means is taken away before they are compared: what counts is how classes differ. For two
//! classes that is the sign of the product of both differences.
//!
//! A peer that has the node's classes under other names is told of ([`renaming`]).
//!
//! What travels as the proxy is one row of numbers: C, then the counts, then the means class by class. Counts are in
//! millions. So the cosine of two proxies, by which large federations look for neighbours, is one of their means.

pub(super) mod renaming;

use std::collections::BTreeMap;
use std::sync::Arc;

use fednode_core::limits::MAX_NORM_RATIO;
use fednode_core::{ExpertExchange, ExpertId, NodeId, ParamSet, PlanRow, ProxySet, Source};

use super::{Gives, MatchingRow, own_first};
use crate::rule::lower_median;
use crate::statistics::Statistics;

pub(super) const ROW: MatchingRow = MatchingRow {
    name: "agreement",
    summary: "statistics of the peers whose class means agree with the own ones, as far as they agree",
    reference: "FedMoE-DA's rows (arXiv 2411.02115) with a similarity that sees labels",
    gives: Gives::Each,
    most_norm_ratio: MAX_NORM_RATIO,
    rows: |own, known, exchange| {
        let first = own
            .first()
            .map(|own| row(*own, known, exchange, AS_THEY_ARE));
        first.into_iter().collect()
    },
    admits: Some(|own, theirs, _| judge(own, theirs, AS_THEY_ARE).map_err(|lie| lie.to_string())),
    renamings: Some(|own, known, _| renaming::renamings(own, known, AS_THEY_ARE)),
};

pub(super) const ROW_OF_SITES: MatchingRow = MatchingRow {
    name: "site-agreement",
    summary: "statistics of the peers whose classes differ as the own ones do, wherever their sites lie",
    reference: "as `agreement`, with fixed effects of sites",
    gives: Gives::Each,
    most_norm_ratio: MAX_NORM_RATIO,
    rows: |own, known, exchange| {
        let first = own.first().map(|own| row(*own, known, exchange, BY_SITE));
        first.into_iter().collect()
    },
    admits: Some(|own, theirs, _| judge(own, theirs, BY_SITE).map_err(|lie| lie.to_string())),
    renamings: Some(|own, known, _| renaming::renamings(own, known, BY_SITE)),
};

/// How the class means of two nodes are compared.
#[derive(Debug, Clone, Copy)]
pub(super) struct Comparison {
    /// Fewest samples of a class whose mean is compared.
    fewest_samples: f64,
    /// Whether each node's class means are compared less their own mean.
    is_centred: bool,
    /// The deviation of the noise in each number of a class sum.
    noise: f64,
}

const AS_THEY_ARE: Comparison = Comparison {
    fewest_samples: FEWEST_SAMPLES,
    is_centred: false,
    noise: 0.0,
};

/// Of a table of a hundred rows the rare class may have few.
const BY_SITE: Comparison = Comparison {
    fewest_samples: 3.0,
    is_centred: true,
    noise: 0.0,
};

impl Comparison {
    /// Compares class means with noise of this deviation in each number of a class sum.
    ///
    /// A mean of n samples has noise of a length of `√D · noise / n`, which moves its distance from another by about twice the
    /// noise of one number of it. So a class is compared once a number of its mean has little noise beside features of length 1.
    pub(super) fn of_noised(noise: f64) -> Self {
        Self {
            fewest_samples: FEWEST_SAMPLES.max(noise / MOST_NOISE_OF_A_MEAN),
            noise,
            ..AS_THEY_ARE
        }
    }
}

/// Fewest samples of a class whose mean is compared.
const FEWEST_SAMPLES: f64 = 5.0;
/// Most noise of a number of a mean that is compared, beside features of length 1.
const MOST_NOISE_OF_A_MEAN: f64 = 0.07;
/// Fewest classes that two nodes must have in common to be compared.
const FEWEST_CLASSES: usize = 2;
/// The agreement of nodes that cannot be compared.
const UNKNOWN: f64 = 0.51;
/// How many times the median number of samples a node counts at most.
const MOST_SAMPLES: f64 = 10.0;
/// What counts are divided by in a proxy.
const COUNT_UNIT: f64 = 1e6;

/// What a node says of its classes.
#[derive(Debug, Clone, PartialEq)]
pub struct ClassMeans {
    /// Samples of each class, `[C]`.
    pub counts: Vec<f64>,
    /// Their mean feature, `[C, D]`; zeros where there are none.
    pub means: Vec<f32>,
}

impl ClassMeans {
    /// Divides sums over samples by their number.
    pub fn of_sums(counts: Vec<f64>, sums: &[f64]) -> Self {
        let width = sums.len() / counts.len().max(1);
        let classes = counts.iter().zip(sums.chunks(width.max(1)));
        let mean = |(count, sums): (&f64, &[f64])| {
            let count = if *count > 0.0 { *count } else { 1.0 };
            let means = sums.iter().map(|sum| (sum / count) as f32);
            means.collect::<Vec<_>>()
        };
        let means = classes.flat_map(mean).collect();
        Self { counts, means }
    }

    /// Writes them as a proxy, `1 + C + C · D` numbers.
    pub fn to_proxy(&self) -> Vec<f32> {
        let in_millions = |number: f64| (number / COUNT_UNIT) as f32;
        let mut proxy = vec![in_millions(self.counts.len() as f64)];
        proxy.extend(self.counts.iter().copied().map(in_millions));
        proxy.extend(&self.means);
        proxy
    }

    /// Reads a proxy; `None` if it is none, or holds a number that is not finite or a negative count.
    pub fn of_proxy(proxy: &[f32]) -> Option<Self> {
        let in_ones = |number: f32| f64::from(number) * COUNT_UNIT;
        let (first, rest) = proxy.split_first()?;
        let classes = in_ones(*first).round();
        if !(1.0..=rest.len() as f64).contains(&classes) {
            return None;
        }
        let (counts, means) = rest.split_at(classes as usize);
        let is_sound = means.len().is_multiple_of(counts.len())
            && counts.iter().all(|count| *count >= 0.0)
            && rest.iter().all(|number| number.is_finite());
        is_sound.then(|| Self {
            counts: counts.iter().copied().map(in_ones).collect(),
            means: means.to_vec(),
        })
    }

    /// Returns the number of samples.
    fn total(&self) -> f64 {
        self.counts.iter().sum()
    }

    fn mean(&self, class: usize) -> &[f32] {
        let width = self.means.len() / self.counts.len();
        &self.means[class * width..][..width]
    }

    /// Returns the classes that both nodes have enough samples of.
    pub(super) fn common(&self, other: &Self, by: Comparison) -> Vec<usize> {
        let is_compared =
            |class: &usize| self.counts[*class].min(other.counts[*class]) >= by.fewest_samples;
        (0..self.counts.len()).filter(is_compared).collect()
    }

    /// Returns the means of classes, less their own mean where that is wanted.
    fn compared(&self, classes: &[usize], by: Comparison) -> BTreeMap<usize, Vec<f64>> {
        let mean = |class: &usize| self.mean(*class).iter().copied().map(f64::from);
        let mut means: BTreeMap<usize, Vec<f64>> = classes
            .iter()
            .map(|class| (*class, mean(class).collect()))
            .collect();
        if by.is_centred {
            let width = self.means.len() / self.counts.len();
            let sum = |at: usize| means.values().map(|mean| mean[at]).sum::<f64>();
            let centre: Vec<f64> = (0..width)
                .map(|at| sum(at) / classes.len() as f64)
                .collect();
            let all = means.values_mut();
            all.for_each(|mean| mean.iter_mut().zip(&centre).for_each(|(m, c)| *m -= c));
        }
        means
    }

    /// Returns what noise adds to the square of a distance from a class mean, on average.
    fn square_of_noise(&self, class: usize, by: Comparison) -> f64 {
        let width = self.means.len() / self.counts.len();
        width as f64 * (by.noise / self.counts[class]).powi(2)
    }

    /// Returns how far another node calls things by this node's names, 0 to 1.
    fn agreement(&self, other: &Self, by: Comparison) -> f64 {
        let common = self.common(other, by);
        if common.len() < FEWEST_CLASSES {
            return UNKNOWN;
        }
        let (mine, theirs) = (self.compared(&common, by), other.compared(&common, by));
        let is_nearest = |class: &&usize| {
            let own = &mine[*class];
            let distance = |other_class: usize| {
                let of_noise = other.square_of_noise(other_class, by);
                squared_distance(own, &theirs[&other_class]) - of_noise
            };
            let to_same = distance(**class);
            common
                .iter()
                .all(|other_class| other_class == *class || distance(*other_class) > to_same)
        };
        common.iter().filter(is_nearest).count() as f64 / common.len() as f64
    }

    /// Returns the weight of a sample of another node: 0 where it agrees no more than chance would.
    pub(super) fn weight_of(&self, other: &Self, by: Comparison) -> f64 {
        let chance = 1.0 / self.counts.len() as f64;
        ((self.agreement(other, by) - chance) / (1.0 - chance)).max(0.0)
    }

    /// Returns how far the classes of others differ as the own ones do, wherever both lie: 0 as much as by chance, 1 in all
    /// classes that both have.
    pub fn weight_at_site(&self, others: &Self) -> f64 {
        self.weight_of(others, BY_SITE)
    }

    /// Tells whether they are of as many classes and features.
    fn fits(&self, other: &Self) -> bool {
        self.counts.len() == other.counts.len() && self.means.len() == other.means.len()
    }
}

fn squared_distance(a: &[f64], b: &[f64]) -> f64 {
    let pairs = a.iter().zip(b);
    pairs.map(|(a, b)| (a - b).powi(2)).sum()
}

/// Returns the sources of a node's statistics: the own ones first, then the others by weight.
pub(super) fn row(
    own: ExpertId,
    known: &BTreeMap<NodeId, Arc<ProxySet>>,
    exchange: &ExpertExchange,
    by: Comparison,
) -> PlanRow {
    let of = |owner: &NodeId| ClassMeans::of_proxy(known.get(owner)?.iter().next()?);
    let limit = exchange.peers_per_expert.limit();
    let Some(mine) = of(&own.owner) else {
        return own_first(own, 1.0, Vec::new(), limit);
    };
    let others = known.keys().filter(|owner| **owner != own.owner);
    let others = others.filter_map(|owner| Some((*owner, of(owner)?)));
    let others: Vec<_> = others.filter(|(_, theirs)| mine.fits(theirs)).collect();
    let all = others
        .iter()
        .map(|(_, theirs)| theirs.total())
        .chain([mine.total()]);
    let most = MOST_SAMPLES * lower_median(&all.collect::<Vec<_>>());
    let source = |(owner, theirs): &(NodeId, ClassMeans)| Source {
        expert: ExpertId {
            owner: *owner,
            slot: own.slot,
        },
        similarity: mine.agreement(theirs, by),
        weight: mine.weight_of(theirs, by) * theirs.total().min(most),
    };
    let mut peers: Vec<Source> = others.iter().map(source).collect();
    peers.sort_by(|a, b| {
        let by_weight = b.weight.total_cmp(&a.weight);
        by_weight.then_with(|| a.expert.cmp(&b.expert))
    });
    own_first(own, mine.total(), peers, limit)
}

/// Why statistics that were fetched are not added up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Lie {
    #[error("its statistics are not counts, sums and scatter of features")]
    Form,
    #[error(
        "its statistics are those of no samples: a count or a square is negative, or a product too large"
    )]
    Impossible,
    #[error("its features vary more than ten times as much as the own ones, or less than a tenth")]
    Spread,
    #[error("its class means disagree with the own ones, though its proxies agreed")]
    Disagreement,
}

/// How many times the own features' squares those of another may be, or the reverse.
const MOST_SPREAD: f64 = 10.0;
/// Fewest classes whose disagreement shows that a node lied in its proxies.
const CLASSES_OF_PROOF: usize = 3;
/// The smallest share of the samples whose class is compared in fetched statistics.
const LEAST_SHARE: f64 = 0.05;
/// What rounding may add to a square.
const ROUNDING: f64 = 1e-4;

/// Judges fetched statistics by what they say: proxies can be copied, and statistics that do not agree are refused.
///
/// `own` and `theirs` hold counts `[C, groups]`, sums `[C, groups, D]` and the upper triangle of the scatter, in this
/// order, divided by the node's number of samples.
fn judge(own: &ParamSet, theirs: &ParamSet, by: Comparison) -> Result<(), Lie> {
    let (mine, other) = (Sums::of(own)?, Sums::of(theirs)?);
    if !other.are_possible() {
        return Err(Lie::Impossible);
    }
    let spread = other.squares().sum::<f64>() / mine.squares().sum::<f64>();
    if !(1.0 / MOST_SPREAD..=MOST_SPREAD).contains(&spread) {
        return Err(Lie::Spread);
    }
    // Of few and small classes disagreement is no proof, and a refusal counts against its sender.
    let [mine, other] = [mine, other].map(|sums| sums.means());
    let is_proof = mine.common(&other, by).len() >= CLASSES_OF_PROOF;
    if is_proof && mine.weight_of(&other, by) == 0.0 {
        Err(Lie::Disagreement)
    } else {
        Ok(())
    }
}

/// Statistics as they travel.
#[derive(Clone, Copy)]
pub(super) struct Sums<'a> {
    /// Groups of a class; counts and sums are of groups, those of a class behind each other.
    groups: usize,
    pub(super) counts: &'a [f32],
    pub(super) sums: &'a [f32],
    scatter: &'a [f32],
}

impl<'a> Sums<'a> {
    pub(super) fn of(params: &'a ParamSet) -> Result<Self, Lie> {
        let tensor = |name: &str| {
            let is_it = |(whole, _): &(&str, _)| whole.rsplit('.').next() == Some(name);
            let found = params.iter().find(is_it);
            found.map(|(_, tensor)| tensor).ok_or(Lie::Form)
        };
        let (counts, sums, scatter) = (tensor("counts")?, tensor("sums")?, tensor("scatter")?);
        let groups = counts.shape().get(1).copied().unwrap_or(1).max(1);
        let [counts, sums, scatter] = [counts, sums, scatter].map(|tensor| tensor.values());
        let width = sums.len() / counts.len().max(1);
        let fits = width * counts.len() == sums.len() && scatter.len() == width * (width + 1) / 2;
        let found = Self {
            groups,
            counts,
            sums,
            scatter,
        };
        (fits && width > 0).then_some(found).ok_or(Lie::Form)
    }

    pub(super) fn width(self) -> usize {
        self.sums.len() / self.counts.len()
    }

    /// Visits the squares of all features, summed: the diagonal of the scatter.
    pub(super) fn squares(self) -> impl Iterator<Item = f64> + 'a {
        let width = self.width();
        let mut at = 0;
        (0..width).map(move |row| {
            let square = self.scatter[at];
            at += width - row;
            f64::from(square)
        })
    }

    /// Returns the length of the scatter as a matrix, in which products of two different features stand twice.
    pub(super) fn length(self) -> f64 {
        let square = |value: &f32| f64::from(*value).powi(2);
        let all: f64 = self.scatter.iter().map(square).sum();
        let diagonal: f64 = self.squares().map(|value| value * value).sum();
        (2.0 * all - diagonal).sqrt()
    }

    /// Tells whether any samples have these sums: `s_c² <= n_c G` for squares, `G_kl² <= G_kk G_ll` for products.
    fn are_possible(self) -> bool {
        if self.counts.iter().any(|count| *count < 0.0) {
            return false;
        }
        let squares: Vec<f64> = self.squares().collect();
        let classes = || self.counts.iter().zip(self.sums.chunks(self.width()));
        let explained = |feature: usize| -> f64 {
            let part = |(count, sums): (&f32, &[f32])| {
                let sum = f64::from(sums[feature]);
                if sum == 0.0 {
                    0.0
                } else {
                    sum * sum / f64::from(*count)
                }
            };
            classes().map(part).sum()
        };
        let slack = ROUNDING * squares.iter().sum::<f64>() / squares.len() as f64;
        let holds = |(feature, square): (usize, &f64)| explained(feature) <= square + slack;
        if !squares.iter().enumerate().all(holds) {
            return false;
        }
        let mut products = self.scatter.iter();
        squares.iter().enumerate().all(|(row, square)| {
            let mut others = squares[row..].iter().zip(products.by_ref());
            others.all(|(other, product)| {
                let most = square.max(0.0) * other.max(0.0);
                f64::from(*product).powi(2) <= most + slack * slack
            })
        })
    }

    /// Returns the class means. Statistics are divided by the number of samples, so classes of a share are compared.
    fn means(self) -> ClassMeans {
        let numbers = |values: &[f32]| values.iter().copied().map(f64::from).collect();
        let mut groups = Statistics::new(0, self.width());
        groups.counts = numbers(self.counts);
        groups.sums = numbers(self.sums);
        let classes = groups.joined(self.groups);
        let means = ClassMeans::of_sums(classes.counts, &classes.sums);
        let present = |count: &f64| count / LEAST_SHARE * FEWEST_SAMPLES;
        ClassMeans {
            counts: means.counts.iter().map(present).collect(),
            means: means.means,
        }
    }
}

#[cfg(test)]
mod tests;
