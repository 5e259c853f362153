//! Whose sums are believed: bounds for each member, then agreement of the class means.
//!
//! ```text
//! bounds       finite; counts >= 0 that sum to 1; moments that samples can have; G - sum_c s_c s_cᵀ / n_c positive
//! weight       n_j, at most so many medians of all members' samples as `round.max_weight` says
//! T_j          sum_c n_jc² |mu_jc - m_c|² / (tr W · sum_c n_jc)      over classes with n_jc >= 3
//! tr W         the median over members of the variance within their classes
//! limit        3, and four standard deviations of T where few features vary
//! consistent   m_c = the coordinate-wise weighted median of mu_jc, weights sqrt(n_jc); whose T is the largest is left
//!              out, and medians are taken again, until no T exceeds the limit
//! anchored     first m_c = the node's own means and n_i n_j / (n_i + n_j) in place of n; then as above. Its own sums stay.
//! ```
//!
//! Sums of samples of one distribution have a T of about 1, whoever has them. On Fashion-MNIST honest members had 0.5 to 1.1,
//! and members whose signs or labels were turned had 60 to 300. Liars who know the limit stay below it, so it bounds what they
//! can do.
//!
//! A class counts where three members or more have it: of two that disagree nobody can tell who is right. Every step is
//! repeated alike by whoever has the same sums in the same order, which an audit needs. What stays is consistent by itself.

pub mod groups;

use fednode_core::{ParamSet, Rule, Tensor};

use super::{Statistics, cholesky};
use crate::rule::{self, AverageError, Part};

/// Most that a T may be where nothing else is said.
pub const LIMIT: f64 = 3.0;
/// Samples of a class from which on its mean is judged.
const FEWEST: f64 = 3.0;
/// Samples of a class that both need to be compared with each other.
const FEWEST_OF_BOTH: f64 = 5.0;
/// Members that must have a class for one of them to be judged by it.
const FEWEST_MEMBERS: usize = 3;
/// Standard deviations that chance is allowed beside the limit.
const DEVIATIONS: f64 = 4.0;
/// By how much shares may miss 1.
const ROUNDING: f64 = 0.02;
/// Most features of which the covariance of one member is factored: with more it would take seconds.
const MOST_FEATURES: usize = 1024;
/// Share of the largest value by which two means of the same sums may differ.
const ALIKE: f32 = 1e-5;
/// Of so many members one is left out at a time.
const AT_ONCE: usize = 32;

/// What bounds the members.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Most that a T may be; 0 leaves the class means unjudged.
    pub distance: f64,
    /// Medians of all members' samples that one weighs at most; 0 bounds none.
    pub weight: f64,
}

/// A member's sums, divided by its samples, and how many those are.
#[derive(Debug, Clone, Copy)]
pub struct Member<'a> {
    /// The sums: counts are shares of classes.
    pub statistics: &'a Statistics,
    /// Its samples, by its own word.
    pub samples: f64,
}

/// Why a member's sums are left out.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum Doubt {
    /// No samples have such sums.
    #[error("no samples have such sums: {0}")]
    Impossible(&'static str),
    /// Its class means are not those of the others.
    #[error(
        "its class means are not those of the others: {0:.1} times the distance that chance makes"
    )]
    Inconsistent(f64),
    /// Its class means are not those of the node that judges.
    #[error(
        "its class means are not those of this node: {0:.1} times the distance that chance makes"
    )]
    Foreign(f64),
}

/// Says which law shares of sums break that those of any samples keep.
pub fn fault(statistics: &Statistics) -> Option<&'static str> {
    if let Some(fault) = statistics.fault() {
        return Some(fault);
    }
    if (statistics.total() - 1.0).abs() > ROUNDING {
        return Some("shares of classes that do not sum to 1");
    }
    let is_possible = statistics.width() > MOST_FEATURES || has_variances(statistics);
    (!is_possible).then_some("a variance below zero within classes")
}

/// Tells whether no direction has a variance below zero within the classes, but for rounding.
fn has_variances(statistics: &Statistics) -> bool {
    let width = statistics.width();
    let Ok(mut covariance) = statistics.covariance(0.0) else {
        return false;
    };
    let squares = statistics.squares().iter().sum::<f64>() / width as f64;
    let slack = ROUNDING * squares / statistics.total();
    (0..width).for_each(|at| covariance[at * width + at] += slack);
    // Without any square there is nothing to divide by, and nothing below zero.
    slack == 0.0 || cholesky(covariance, width).is_ok()
}

/// Returns what members weigh: their samples, at most `most` medians of all; 0 sets no bound.
///
/// Samples that are bounded already stay as they are, so whoever has only these gets the same.
pub fn weights(samples: &[f64], most: f64) -> Vec<f64> {
    if most == 0.0 {
        return samples.to_vec();
    }
    let most = most * rule::lower_median(samples);
    samples.iter().map(|samples| samples.min(most)).collect()
}

/// Judges members by each other. Returns a doubt for each that is left out, and nothing for the others.
///
/// A limit of 0 leaves the class means unjudged: only bounds hold then.
fn consistent(members: &[Member<'_>], limit: f64) -> Vec<Option<Doubt>> {
    let mut doubts = bounded(members);
    if limit > 0.0 {
        leave_out_inconsistent(&judged(members), limit, &mut doubts, None);
    }
    doubts
}

/// Judges members by the node's own sums, then by each other. The own sums are always believed.
fn anchored(own: Member<'_>, others: &[Member<'_>], limit: f64) -> Vec<Option<Doubt>> {
    let mut all: Vec<Member<'_>> = others.to_vec();
    all.push(own);
    let mut doubts = bounded(&all);
    doubts[others.len()] = None;
    if limit > 0.0 {
        let judged = judged(&all);
        let believed = judged.iter().zip(&doubts).filter(|(_, d)| d.is_none());
        let within = Within::median(believed.map(|(judged, _)| judged));
        let anchor = &judged[others.len()];
        for (other, doubt) in judged.iter().zip(&mut doubts).take(others.len()) {
            let distance = anchor.distance_of(other, within);
            if doubt.is_none() && distance > within.limit(limit) {
                *doubt = Some(Doubt::Foreign(distance));
            }
        }
        leave_out_inconsistent(&judged, limit, &mut doubts, Some(others.len()));
    }
    doubts.truncate(others.len());
    doubts
}

/// Returns the mean of the members' sums that are believed, and for each member why it is not.
///
/// Parts that are no sums are averaged as they are.
///
/// # Errors
/// As [`rule::combine`], and if nobody is believed.
pub fn combine(
    parts: &mut dyn Iterator<Item = Part>,
    limits: Limits,
) -> Result<(ParamSet, Vec<Option<Doubt>>), AverageError> {
    let mut parts = rule::together(parts)?;
    let sums = parts.iter().map(|part| Statistics::of_part(&part.params));
    let mut doubts = vec![None; parts.len()];
    if let Some(sums) = sums.collect::<Option<Vec<Statistics>>>() {
        let samples: Vec<f64> = parts.iter().map(|part| part.weight).collect();
        let samples = weights(&samples, limits.weight);
        for (part, samples) in parts.iter_mut().zip(&samples) {
            part.weight = *samples;
        }
        let members = sums.iter().zip(samples);
        let members = members.map(|(statistics, samples)| Member {
            statistics,
            samples,
        });
        doubts = consistent(&members.collect::<Vec<_>>(), limits.distance);
    }
    if let Some(doubts) = doubts.iter().copied().collect::<Option<Vec<Doubt>>>()
        && let Some(doubt) = doubts.first()
    {
        return Err(AverageError::NobodyBelieved(*doubt));
    }
    let believed = parts.into_iter().zip(&doubts);
    let mut believed = believed.filter_map(|(part, doubt)| doubt.is_none().then_some(part));
    let mean = rule::combine(&Rule::default(), &mut believed)?;
    Ok((mean, doubts))
}

/// What a node makes of the others' statistics.
#[derive(Debug, Clone, PartialEq)]
pub struct Judgement {
    /// Why others are not believed, one by one.
    pub doubts: Vec<Option<Doubt>>,
    /// The mean of those that are believed and of the own ones.
    pub mean: ParamSet,
}

/// Judges the others' statistics by the own ones, which count in the mean in any case. Returns nothing of parts that are no
/// sums.
pub fn judge(own: &Part, others: &[Part], limits: Limits) -> Option<Judgement> {
    let all: Vec<&Part> = others.iter().chain([own]).collect();
    let sums = all.iter().map(|part| Statistics::of_part(&part.params));
    let sums: Vec<Statistics> = sums.collect::<Option<_>>()?;
    let samples: Vec<f64> = all.iter().map(|part| part.weight).collect();
    let samples = weights(&samples, limits.weight);
    let member = |at: usize| Member {
        statistics: &sums[at],
        samples: samples[at],
    };
    let members: Vec<Member<'_>> = (0..all.len()).map(member).collect();
    let (me, theirs) = members.split_last()?;
    let doubts = anchored(*me, theirs, limits.distance);
    let is_believed = |at: &usize| doubts.get(*at).is_none_or(Option::is_none);
    let mut believed = (0..all.len()).filter(is_believed).map(|at| Part {
        weight: samples[at],
        params: all[at].params.clone(),
    });
    let mean = rule::combine(&Rule::default(), &mut believed).ok()?;
    Some(Judgement { doubts, mean })
}

/// Tells whether two means are of the same sums: they differ by rounding alone, since sums were added in another order.
pub fn are_alike(a: &ParamSet, b: &ParamSet) -> bool {
    let largest = |tensor: &Tensor| tensor.values().iter().fold(0.0_f32, |m, v| m.max(v.abs()));
    a.iter().zip(b.iter()).all(|((_, a), (_, b))| {
        let most = ALIKE * largest(a).max(largest(b));
        let mut pairs = a.values().iter().zip(b.values());
        pairs.all(|(a, b)| (a - b).abs() <= most)
    })
}

fn judged(members: &[Member<'_>]) -> Vec<Judged> {
    members.iter().map(Judged::of).collect()
}

fn bounded(members: &[Member<'_>]) -> Vec<Option<Doubt>> {
    let doubt = |member: &Member<'_>| fault(member.statistics).map(Doubt::Impossible);
    members.iter().map(doubt).collect()
}

/// What is compared of a member.
struct Judged {
    counts: Vec<f64>,
    means: Vec<Vec<f64>>,
    /// Its variance within classes, where it has more samples than classes.
    within: Option<Within>,
}

/// The variance within the classes of a member, or of the median member.
#[derive(Debug, Clone, Copy, Default)]
struct Within {
    /// Added up over the features.
    trace: f64,
    /// One divided by the number of features that vary, where all of these vary alike: sum l² / (sum l)² of eigenvalues.
    concentration: f64,
}

impl Within {
    fn of(member: &Member<'_>) -> Option<Self> {
        let Member {
            statistics,
            samples,
        } = *member;
        let present = statistics.counts.iter().filter(|share| **share > 0.0);
        let free = samples - present.count() as f64;
        if free < 1.0 {
            return None;
        }
        let width = statistics.width();
        let covariance = statistics.covariance(0.0).ok()?;
        let diagonal = (0..width).map(|at| covariance[at * width + at]);
        let trace: f64 = diagonal.clone().sum();
        // The lower triangle alone is there.
        let all: f64 = covariance.iter().map(|value| value * value).sum();
        let squares = 2.0 * all - diagonal.map(|value| value * value).sum::<f64>();
        (trace > 0.0).then(|| Self {
            trace: trace * samples / free,
            concentration: squares / (trace * trace),
        })
    }

    /// Returns the median, of each number by itself.
    fn median<'a>(members: impl Iterator<Item = &'a Judged>) -> Self {
        let (mut traces, mut concentrations): (Vec<f64>, Vec<f64>) = members
            .filter_map(|member| member.within)
            .map(|within| (within.trace, within.concentration))
            .unzip();
        let middle = |values: &mut Vec<f64>| {
            values.sort_unstable_by(f64::total_cmp);
            let at = values.len().saturating_sub(1) / 2;
            values.get(at).copied().unwrap_or_default()
        };
        Self {
            trace: middle(&mut traces),
            concentration: middle(&mut concentrations),
        }
    }

    /// Returns T; nothing to object to where there is nothing to compare, or no variance to compare with.
    fn distance(self, squares: f64, samples: f64) -> f64 {
        let scale = self.trace * samples;
        if scale > 0.0 { squares / scale } else { 0.0 }
    }

    /// Returns the limit with what chance adds where few features vary: T is the mean of so many squares.
    fn limit(self, limit: f64) -> f64 {
        limit + DEVIATIONS * (2.0 * self.concentration).sqrt()
    }
}

impl Judged {
    fn of(member: &Member<'_>) -> Self {
        let counts = member.statistics.counts.iter();
        Self {
            counts: counts.map(|share| share * member.samples).collect(),
            means: member.statistics.means(),
            within: Within::of(member),
        }
    }

    /// Returns T of the other, measured by these means.
    fn distance_of(&self, other: &Self, within: Within) -> f64 {
        let (mut squares, mut total) = (0.0, 0.0);
        for class in 0..self.counts.len() {
            let (own, theirs) = (self.counts[class], other.counts[class]);
            if own.min(theirs) >= FEWEST_OF_BOTH {
                let samples = own * theirs / (own + theirs);
                let distance = square_of_distance(&other.means[class], &self.means[class]);
                squares += samples * samples * distance;
                total += samples;
            }
        }
        within.distance(squares, total)
    }
}

/// Leaves out the most distant members, one after the other, all but one that always stays.
fn leave_out_inconsistent(
    judged: &[Judged],
    limit: f64,
    doubts: &mut [Option<Doubt>],
    always: Option<usize>,
) {
    loop {
        let kept: Vec<usize> = (0..judged.len())
            .filter(|at| doubts[*at].is_none())
            .collect();
        let within = Within::median(kept.iter().map(|at| &judged[*at]));
        let most = within.limit(limit);
        let mut far: Vec<(f64, usize)> = distances(judged, &kept, within)
            .into_iter()
            .zip(kept.iter().copied())
            .filter(|(distance, at)| *distance > most && Some(*at) != always)
            .collect();
        if far.is_empty() {
            return;
        }
        far.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        for (distance, at) in far.into_iter().take(kept.len().div_ceil(AT_ONCE)) {
            doubts[at] = Some(Doubt::Inconsistent(distance));
        }
    }
}

/// Returns T of each of these members, measured by the medians of all of them.
fn distances(judged: &[Judged], kept: &[usize], within: Within) -> Vec<f64> {
    let mut squares = vec![0.0; kept.len()];
    let mut totals = vec![0.0; kept.len()];
    let n_classes = kept.first().map_or(0, |at| judged[*at].counts.len());
    for class in 0..n_classes {
        let having: Vec<usize> = (0..kept.len())
            .filter(|place| judged[kept[*place]].counts[class] >= FEWEST)
            .collect();
        if having.len() < FEWEST_MEMBERS {
            continue;
        }
        let of = |place: &usize| {
            let member = &judged[kept[*place]];
            (member.means[class].as_slice(), member.counts[class])
        };
        let means: Vec<(&[f64], f64)> = having.iter().map(of).collect();
        let median = median_of(&means);
        for (place, (mean, samples)) in having.iter().zip(&means) {
            squares[*place] += samples * samples * square_of_distance(mean, &median);
            totals[*place] += samples;
        }
    }
    let pairs = squares.into_iter().zip(totals);
    pairs
        .map(|(squares, total)| within.distance(squares, total))
        .collect()
}

/// Returns the coordinate-wise median of means; each counts with the root of its samples.
fn median_of(means: &[(&[f64], f64)]) -> Vec<f64> {
    let width = means.first().map_or(0, |(mean, _)| mean.len());
    let half = means.iter().map(|(_, n)| n.sqrt()).sum::<f64>() / 2.0;
    let mut column = Vec::with_capacity(means.len());
    let at = |coordinate: usize| {
        column.clear();
        column.extend(means.iter().map(|(mean, n)| (mean[coordinate], n.sqrt())));
        column.sort_unstable_by(|a: &(f64, f64), b| a.0.total_cmp(&b.0));
        let mut below = 0.0;
        let middle = column.iter().find(|(_, weight)| {
            below += weight;
            below >= half
        });
        middle.map_or(0.0, |(value, _)| *value)
    };
    (0..width).map(at).collect()
}

fn square_of_distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum()
}

#[cfg(test)]
mod tests;
