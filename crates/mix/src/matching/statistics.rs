//! Whose heads are combined with an own one, and how much each counts: Xu, Tong and Huang, "Personalized Federated
//! Learning with Feature Alignment and Classifier Collaboration", ICLR 2023 (FedPAC), and the authors' code.
//!
//! ```text
//! node j says    h_j = (p_jc mu_jc) over all classes c     share of the class in its samples, times their mean feature
//!                v_j = (E|z|^2 - |h_j|^2) / n_j            the variance term
//! node i solves  min over a   sum_j a_j^2 v_j + |h_i - sum_j a_j h_j|^2      a_j >= 0, sum_j a_j = 1
//! ```
//!
//! A wider mix has less variance and more bias; the programme weighs one against the other. Its matrix is `diag(v) + D
//! D^T` with the rows `d_j = h_j - h_i`, so it has no negative eigenvalue and needs no mending. Weights of at most
//! 0.001 become zero, as in the authors' code, and such heads are not fetched.
//!
//! Means and variances are a node's own word. Who copies another's means and says that its variance is zero would be all of
//! that node's head. So there is a bounded form, in which a node's own head is at least half of it:
//!
//! ```text
//! v_j            at least v_i / 3: nobody is believed to have more than three times the samples
//! a_j            at most 1/4 for each other, and all others together at most 1/2; the rest is the own head's
//! ```
//!
//! The statistics of one head travel as its proxy: the numbers of `h`, then `v`. What is not finite or of another
//! dimension is left out, a variance below zero counts as zero. Of more than [`MAX_SOURCES`] nodes the nearest take
//! part, since the matrix grows with their square.

use std::collections::BTreeMap;
use std::sync::Arc;

use fednode_core::limits::MAX_NORM_RATIO;
use fednode_core::{ExpertExchange, ExpertId, NodeId, PlanRow, ProxySet, Source};

use super::{Gives, MatchingRow};
use crate::similarity::cosine;

pub(super) const ROW: MatchingRow = MatchingRow {
    name: "statistics",
    summary: "a quadratic programme over statistics of the features, which travel as the proxies",
    reference: "FedPAC (Xu et al., ICLR 2023, arXiv 2306.11867)",
    gives: Gives::Mixture,
    most_norm_ratio: MAX_NORM_RATIO,
    rows: |own, known, exchange| {
        let row = |own: &ExpertId| row(*own, known, exchange, Trust::EveryWord);
        own.iter().map(row).collect()
    },
    admits: None,
    renamings: None,
};

pub(super) const BOUNDED_ROW: MatchingRow = MatchingRow {
    name: "bounded-statistics",
    summary: "the same with bounds on what a node says of itself: the own head is at least half of the mix",
    most_norm_ratio: MAX_NORM_RATIO,
    rows: |own, known, exchange| {
        let row = |own: &ExpertId| row(*own, known, exchange, Trust::WithinBounds);
        own.iter().map(row).collect()
    },
    ..ROW
};

/// How far others' statistics are believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trust {
    /// As in the paper.
    EveryWord,
    /// As far as the own variance and the own head allow.
    WithinBounds,
}

/// Times the own samples that another node is believed to have.
const MOST_SAMPLES: f64 = 3.0;
/// Most that one other head weighs.
const MOST_OF_ONE: f64 = 0.25;
/// Most that all other heads weigh.
const MOST_OF_OTHERS: f64 = 0.5;

/// Most heads that one programme is solved over, the own one among them: a tenth of a second's work.
const MAX_SOURCES: usize = 256;
/// Largest weight that becomes zero, as in the authors' code.
const NEGLIGIBLE: f64 = 1e-3;
/// How far slopes of the optimum may differ, as a share of the largest entry of the matrix.
const TOLERANCE: f64 = 1e-10;
/// Most steps of the solver, for each unknown; a few suffice.
const STEPS_PER_UNKNOWN: usize = 2000;

/// Returns the sources of an own head with their weights, the own one first, then by weight.
fn row(
    own: ExpertId,
    known: &BTreeMap<NodeId, Arc<ProxySet>>,
    exchange: &ExpertExchange,
    trust: Trust,
) -> PlanRow {
    let others = exchange.peers_per_expert.limit().min(MAX_SOURCES - 1);
    let heads = nearest(own, known, others);
    let floor = match trust {
        Trust::EveryWord => 0.0,
        Trust::WithinBounds => heads[0].variance() / MOST_SAMPLES,
    };
    let mut weights = minimise(&matrix(&heads, floor), heads.len());
    if trust == Trust::WithinBounds {
        bound(&mut weights);
    }
    let source = |(head, weight): (&Head<'_>, f64)| {
        let similarity = cosine(head.features(), heads[0].features());
        Source {
            expert: head.expert,
            similarity,
            weight: if weight > NEGLIGIBLE { weight } else { 0.0 },
        }
    };
    let mut sources: Vec<Source> = heads.iter().zip(weights).map(source).collect();
    let mut others = sources.split_off(1);
    others.retain(|source| source.weight > 0.0);
    others.sort_by(|a, b| {
        b.weight
            .total_cmp(&a.weight)
            .then_with(|| a.expert.cmp(&b.expert))
    });
    sources.extend(others);
    PlanRow {
        slot: own.slot,
        sources,
    }
}

/// One head's statistics, seen from the own one.
struct Head<'a> {
    expert: ExpertId,
    statistics: &'a [f32],
    /// `h_j - h_i`.
    difference: Vec<f64>,
}

impl Head<'_> {
    fn features(&self) -> &[f32] {
        &self.statistics[..self.statistics.len() - 1]
    }

    fn variance(&self) -> f64 {
        self.statistics
            .last()
            .map_or(0.0, |variance| f64::from(variance.max(0.0)))
    }
}

/// Returns the own head, then so many others of the same slot, the nearest if there are more.
fn nearest<'a>(
    own: ExpertId,
    known: &'a BTreeMap<NodeId, Arc<ProxySet>>,
    others: usize,
) -> Vec<Head<'a>> {
    let of = |owner: NodeId| {
        known
            .get(&owner)
            .and_then(|set| set.iter().nth(usize::from(own.slot.0)))
    };
    let mine = of(own.owner).unwrap_or(&[0.0]);
    let head = |owner: NodeId, statistics: &'a [f32]| {
        let pairs = statistics[..mine.len() - 1].iter().zip(mine);
        let difference = pairs
            .map(|(theirs, mine)| f64::from(*theirs) - f64::from(*mine))
            .collect();
        Head {
            expert: ExpertId { owner, ..own },
            statistics,
            difference,
        }
    };
    let comparable = |statistics: &&[f32]| {
        statistics.len() == mine.len() && statistics.iter().all(|x| x.is_finite())
    };
    let owners = known.keys().filter(|owner| **owner != own.owner);
    let mut rest: Vec<(f64, Head<'_>)> = owners
        .filter_map(|owner| Some(head(*owner, of(*owner).filter(comparable)?)))
        .map(|head| (dot(&head.difference, &head.difference), head))
        .collect();
    rest.sort_by(|a, b| a.0.total_cmp(&b.0));
    let rest = rest.into_iter().take(others).map(|(_, head)| head);
    std::iter::once(head(own.owner, mine)).chain(rest).collect()
}

/// Bounds the weights of others; the own head, the first, has the rest.
fn bound(weights: &mut [f64]) {
    let Some((own, others)) = weights.split_first_mut() else {
        return;
    };
    for weight in others.iter_mut() {
        *weight = weight.min(MOST_OF_ONE);
    }
    let total: f64 = others.iter().sum();
    let factor = (MOST_OF_OTHERS / total).min(1.0);
    if factor < 1.0 {
        others.iter_mut().for_each(|weight| *weight *= factor);
    }
    *own = 1.0 - others.iter().sum::<f64>();
}

/// Returns the programme's matrix, row by row; no variance counts less than the floor.
fn matrix(heads: &[Head<'_>], floor: f64) -> Vec<f64> {
    let n = heads.len();
    let mut matrix = vec![0.0; n * n];
    for (i, a) in heads.iter().enumerate() {
        for (j, b) in heads.iter().enumerate().take(i + 1) {
            let variance = if i == j { a.variance().max(floor) } else { 0.0 };
            let entry = dot(&a.difference, &b.difference) + variance;
            (matrix[i * n + j], matrix[j * n + i]) = (entry, entry);
        }
    }
    matrix
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Minimises `a^T P a` over shares by sequential minimal optimisation. It begins with the first share alone. Weight
/// goes from the share of the steepest slope to that of the flattest, as much as helps, until all slopes are the same.
fn minimise(matrix: &[f64], n: usize) -> Vec<f64> {
    let mut shares = vec![0.0; n];
    shares[0] = 1.0;
    // Half of the slopes: P a.
    let mut slopes = matrix[..n].to_vec();
    let scale = matrix
        .iter()
        .fold(0.0f64, |largest, entry| largest.max(entry.abs()));
    for _ in 0..STEPS_PER_UNKNOWN * n {
        let by_slope = |a: &usize, b: &usize| slopes[*a].total_cmp(&slopes[*b]);
        let Some(to) = (0..n).min_by(by_slope) else {
            break;
        };
        let Some(from) = (0..n).filter(|at| shares[*at] > 0.0).max_by(by_slope) else {
            break;
        };
        let gain = slopes[from] - slopes[to];
        if gain <= TOLERANCE * scale {
            break;
        }
        let curvature = matrix[from * n + from] + matrix[to * n + to] - 2.0 * matrix[from * n + to];
        let moved = (gain / curvature.max(f64::MIN_POSITIVE)).min(shares[from]);
        shares[from] -= moved;
        shares[to] += moved;
        for (at, slope) in slopes.iter_mut().enumerate() {
            *slope += moved * (matrix[to * n + at] - matrix[from * n + at]);
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use fednode_core::{Matching, PeersPerExpert, Slot};

    fn exchange(peers_per_expert: PeersPerExpert) -> ExpertExchange {
        ExpertExchange::by(Matching::named("statistics"), peers_per_expert)
    }

    fn node(byte: u8) -> NodeId {
        NodeId::from_bytes([byte; 32])
    }

    fn known(sets: &[&[f32]]) -> BTreeMap<NodeId, Arc<ProxySet>> {
        (1..)
            .map(node)
            .zip(
                sets.iter()
                    .map(|set| Arc::new(ProxySet::new(set.len(), set.to_vec()).unwrap())),
            )
            .collect()
    }

    /// Solves for node 1; weights by node, the own one first.
    fn weights(sets: &[&[f32]], peers: PeersPerExpert) -> Vec<(u8, f64)> {
        weights_by(Trust::EveryWord, sets, peers)
    }

    fn weights_by(trust: Trust, sets: &[&[f32]], peers: PeersPerExpert) -> Vec<(u8, f64)> {
        let row = row(
            ExpertId {
                owner: node(1),
                slot: Slot(0),
            },
            &known(sets),
            &exchange(peers),
            trust,
        );
        let mut weights: Vec<(u8, f64)> = row
            .sources
            .iter()
            .map(|source| (source.expert.owner.as_bytes()[0], source.weight))
            .collect();
        assert!(
            weights[1..]
                .windows(2)
                .all(|pair| pair[0].1 > pair[1].1 - 1e-9),
            "the heaviest first"
        );
        weights[1..].sort_by_key(|(node, _)| *node);
        weights
    }

    #[track_caller]
    fn assert_close(got: Vec<(u8, f64)>, expected: &[(u8, f64)]) {
        let close = |(a, b): (&(u8, f64), &(u8, f64))| a.0 == b.0 && (a.1 - b.1).abs() < 1e-6;
        assert!(
            got.len() == expected.len() && got.iter().zip(expected).all(close),
            "{got:?} is not {expected:?}"
        );
    }

    /// Two nodes with variances 1 and |d|^2 = 2: a^2 + (1 - a)^2 (1 + 2) is least at a = 3/4.
    #[test]
    fn two_nodes_agree_with_the_closed_form() {
        assert_close(
            weights(&[&[0.0, 0.0, 1.0], &[1.0, 1.0, 1.0]], PeersPerExpert::ALL),
            &[(1, 0.75), (2, 0.25)],
        );
        assert_close(
            weights(&[&[5.0, 5.0, 1.0], &[5.0, 5.0, 1.0]], PeersPerExpert::ALL),
            &[(1, 0.5), (2, 0.5)],
        );
        assert_close(
            weights(&[&[0.0, 0.0, 0.0], &[1.0, 1.0, 1.0]], PeersPerExpert::ALL),
            &[(1, 1.0)],
        );
    }

    /// Others to both sides, d = 1 and -1, all variances 1. With b for each of them (1 - 2b)^2 + 2 b^2 is least at b =
    /// 1/3. Alone, either would get 1/3 and the own head 2/3.
    #[test]
    fn opposite_biases_cancel() {
        let (own, left, right): (&[f32], &[f32], &[f32]) = (&[0.0, 1.0], &[-1.0, 1.0], &[1.0, 1.0]);
        let third = 1.0 / 3.0;
        assert_close(
            weights(&[own, left, right], PeersPerExpert::ALL),
            &[(1, third), (2, third), (3, third)],
        );
        assert_close(
            weights(&[own, left], PeersPerExpert::ALL),
            &[(1, 2.0 * third), (2, third)],
        );
    }

    /// An own head of great variance is given up for one that costs no bias; it stays the first source.
    #[test]
    fn the_own_head_may_count_nothing() {
        let got = weights(&[&[1.0, 5000.0], &[1.0, 0.001]], PeersPerExpert::ALL);
        assert_close(got, &[(1, 0.0), (2, 1.0 - 0.001 / 5000.001)]);
    }

    /// The liar says what the node says, and that it varies not at all: the whole head would be the liar's.
    #[test]
    fn who_copies_the_own_statistics_is_a_quarter_at_most() {
        let sets: [&[f32]; 3] = [&[1.0, 0.5, 0.01], &[1.0, 0.5, -1.0], &[0.9, 0.6, 0.01]];
        let all = PeersPerExpert::ALL;
        assert_eq!(weights(&sets, all)[1], (2, 1.0), "the programme alone");
        let bounded = weights_by(Trust::WithinBounds, &sets, all);
        assert!(bounded[0].1 >= 0.5 && bounded[1].1 <= 0.25, "{bounded:?}");
        let own: &[f32] = &[1.0, 0.5, 0.01];
        let liars = [own; 6];
        let bounded = weights_by(Trust::WithinBounds, &liars, all);
        assert!((bounded[0].1 - 0.5).abs() < 1e-9, "{bounded:?}");
    }

    #[test]
    fn bounds_leave_what_keeps_them() {
        let sets: [&[f32]; 2] = [&[0.0, 0.0, 1.0], &[1.0, 1.0, 1.0]];
        assert_close(
            weights_by(Trust::WithinBounds, &sets, PeersPerExpert::ALL),
            &[(1, 0.75), (2, 0.25)],
        );
    }

    #[test]
    fn negligible_broken_and_distant_peers_are_left_out() {
        let sets: [&[f32]; 6] = [
            &[0.0, 1.0],
            &[40.0, 1.0],
            &[f32::NAN, 1.0],
            &[0.0, 0.0, 1.0],
            &[1.0, -7.0],
            &[0.0, 1.0],
        ];
        // 1 and 6 are alike and share what 5 leaves: its bias of 1 without variance, 2 a^2 + (1 - 2a)^2, a = 1/3.
        let third = 1.0 / 3.0;
        assert_close(
            weights(&sets, PeersPerExpert::ALL),
            &[(1, third), (5, third), (6, third)],
        );
        assert_close(
            weights(&sets, PeersPerExpert::Count(1)),
            &[(1, 0.5), (6, 0.5)],
        );
        assert_close(weights(&sets, PeersPerExpert::Count(0)), &[(1, 1.0)]);
    }

    /// At the optimum no used share has a steeper slope than any other, on a programme of 40 unknowns.
    #[test]
    fn solves_larger_programmes_to_the_optimum() {
        let mut draws = fednode_core::random::Stream::of(&fednode_core::ParamSet::new());
        let sets: Vec<Vec<f32>> = (0..40)
            .map(|_| (0..6).map(|_| draws.unit() as f32).collect())
            .collect();
        let sets: Vec<&[f32]> = sets.iter().map(Vec::as_slice).collect();
        let known = known(&sets);
        let heads = nearest(
            ExpertId {
                owner: node(1),
                slot: Slot(0),
            },
            &known,
            100,
        );
        let (matrix, n) = (matrix(&heads, 0.0), heads.len());
        let shares = minimise(&matrix, n);
        assert!(
            (shares.iter().sum::<f64>() - 1.0).abs() < 1e-9
                && shares.iter().all(|share| *share >= 0.0)
        );
        let slopes: Vec<f64> = (0..n)
            .map(|at| dot(&matrix[at * n..(at + 1) * n], &shares))
            .collect();
        let least = slopes.iter().copied().fold(f64::INFINITY, f64::min);
        for (slope, share) in slopes.iter().zip(&shares) {
            assert!(
                *share == 0.0 || slope - least < 1e-8,
                "{share} of slope {slope}, least {least}"
            );
        }
    }
}
