//! Dirichlet label skew, the way PFLlib does it, optionally with a shared part (PM-MoE's fork) or without the cap (PFL-MoE).
//!
//! ```text
//! repeat until every node has at least min(40, N/M/2) samples:
//!   for each class: shuffle it; deal the first S % equally; p ~ Dir(alpha, …, alpha) over the nodes;
//!                   p_j = 0 for nodes that hold N/M samples or more; renormalise; cut the rest at floor(cumsum(p) * n)
//! ```
//!
//! The cap is soft: it is looked at before a class is added, so nodes end above it. 40 is a batch of 10 over the test
//! share of a quarter, as there. PFLlib repeats for ever if the minimum is out of reach (many nodes, small alpha); here
//! the last of [`MAX_TRIES`] draws is taken and nodes below the minimum are filled up from the largest ones.
//!
//! Without the cap every class is cut by its shares as they are drawn, once. The code of PFL-MoE does the same (Guo et
//! al., arXiv 2012.15589). Only nodes that would have nothing to train or to test on are filled up. They round each
//! share of a class, here it is the sums of shares that are rounded down, so a node may differ by a sample of each
//! class.

use super::split::train_and_test;
use super::{Divide, MIN_SAMPLES, NodeIndices, Request, parse_alpha};
use crate::error::DataError;
use fednode_core::random::Dice;

/// Draws before the minimum size is enforced by moving samples. PFLlib's own settings need at most 12.
const MAX_TRIES: usize = 100;
/// PFLlib's minimum: a batch of 10 over the test share.
const MIN_NODE_SAMPLES: usize = 40;

#[derive(Debug)]
struct Dirichlet {
    alpha: f64,
    shared_share: f64,
    is_capped: bool,
}

pub(super) fn parse(argument: &str) -> Option<Box<dyn Divide>> {
    Some(Box::new(Dirichlet {
        alpha: parse_alpha(argument)?,
        shared_share: 0.0,
        is_capped: true,
    }))
}

pub(super) fn parse_uncapped(argument: &str) -> Option<Box<dyn Divide>> {
    Some(Box::new(Dirichlet {
        alpha: parse_alpha(argument)?,
        shared_share: 0.0,
        is_capped: false,
    }))
}

pub(super) fn parse_shared(argument: &str) -> Option<Box<dyn Divide>> {
    let (alpha, percent) = argument.split_once(',')?;
    let percent = percent
        .parse()
        .ok()
        .filter(|percent: &f64| (0.0..=100.0).contains(percent))?;
    Some(Box::new(Dirichlet {
        alpha: parse_alpha(alpha)?,
        shared_share: percent / 100.0,
        is_capped: true,
    }))
}

/// Returns the fewest samples a node may get.
pub(super) fn least(total: usize, nodes: usize) -> usize {
    MIN_NODE_SAMPLES.min(total / nodes / 2).max(MIN_SAMPLES)
}

impl Divide for Dirichlet {
    fn divide(
        &self,
        request: &Request<'_>,
        dice: &mut Dice,
    ) -> Result<Vec<NodeIndices>, DataError> {
        let mut classes = request.draw_by_class(dice);
        let total = classes.iter().map(Vec::len).sum();
        let least = if self.is_capped {
            least(total, request.nodes)
        } else {
            MIN_SAMPLES
        };
        let mut nodes = Vec::new();
        for _ in 0..MAX_TRIES {
            nodes = self.draw(&mut classes, total, request.nodes, dice);
            if !self.is_capped || nodes.iter().all(|samples| samples.len() >= least) {
                break;
            }
        }
        fill_up(&mut nodes, least, dice);
        Ok(nodes
            .into_iter()
            .map(|samples| train_and_test(samples, dice))
            .collect())
    }
}

impl Dirichlet {
    fn draw(
        &self,
        classes: &mut [Vec<u32>],
        total: usize,
        n_nodes: usize,
        dice: &mut Dice,
    ) -> Vec<Vec<u32>> {
        let mut nodes = vec![Vec::new(); n_nodes];
        for class in classes {
            dice.shuffle(class);
            let (shared, rest) =
                class.split_at((class.len() as f64 * self.shared_share).floor() as usize);
            deal(shared, &mut nodes);
            let mut shares = dice.dirichlet(&vec![self.alpha; n_nodes]);
            if self.is_capped {
                cap(&mut shares, &nodes, total);
            }
            cut(rest, &shares, &mut nodes);
        }
        nodes
    }
}

/// Gives every node the same number, and the last one the remainder.
fn deal(samples: &[u32], nodes: &mut [Vec<u32>]) {
    let each = samples.len() / nodes.len();
    let last = nodes.len() - 1;
    for (at, node) in nodes.iter_mut().enumerate() {
        let end = if at == last {
            samples.len()
        } else {
            (at + 1) * each
        };
        node.extend_from_slice(&samples[at * each..end]);
    }
}

/// Takes their share from nodes that hold the mean number of samples already.
fn cap(shares: &mut [f64], nodes: &[Vec<u32>], total: usize) {
    let open = |node: &Vec<u32>| node.len() * nodes.len() < total;
    let capped = |share: f64, node| if open(node) { share } else { 0.0 };
    let sum: f64 = shares
        .iter()
        .zip(nodes)
        .map(|(share, node)| capped(*share, node))
        .sum();
    if sum == 0.0 {
        // All open nodes drew nothing (tiny alpha), or none is open: PFLlib would divide by zero.
        let all_full = !nodes.iter().any(open);
        let n_open = nodes.iter().filter(|node| all_full || open(node)).count() as f64;
        let even = |node| {
            if all_full || open(node) {
                1.0 / n_open
            } else {
                0.0
            }
        };
        shares
            .iter_mut()
            .zip(nodes)
            .for_each(|(share, node)| *share = even(node));
        return;
    }
    shares
        .iter_mut()
        .zip(nodes)
        .for_each(|(share, node)| *share = capped(*share, node) / sum);
}

/// Cuts at `floor(cumsum(p) * n)`; what rounding leaves goes to the last node, as in PFLlib.
fn cut(samples: &[u32], shares: &[f64], nodes: &mut [Vec<u32>]) {
    let (mut sum, mut from) = (0.0, 0);
    let last = nodes.len() - 1;
    for (at, (node, share)) in nodes.iter_mut().zip(shares).enumerate() {
        sum += share;
        let to = if at == last {
            samples.len()
        } else {
            ((sum * samples.len() as f64) as usize).clamp(from, samples.len())
        };
        node.extend_from_slice(&samples[from..to]);
        from = to;
    }
}

/// Moves random samples from the largest node to each that is below the minimum.
fn fill_up(nodes: &mut [Vec<u32>], least: usize, dice: &mut Dice) {
    for poor in 0..nodes.len() {
        while nodes[poor].len() < least {
            let rich = (0..nodes.len())
                .max_by_key(|node| nodes[*node].len())
                .unwrap_or(poor);
            let taken = dice.below(nodes[rich].len());
            let sample = nodes[rich].swap_remove(taken);
            nodes[poor].push(sample);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_nodes_get_no_share_and_the_rest_is_renormalised() {
        let nodes = [vec![0; 5], vec![0; 4], vec![0; 1]];
        let mut shares = [0.6, 0.1, 0.3];
        cap(&mut shares, &nodes, 15); // five each
        assert!(
            shares
                .iter()
                .zip([0.0, 0.25, 0.75])
                .all(|(got, want)| (got - want).abs() < 1e-12),
            "{shares:?}"
        );
    }

    #[test]
    fn without_any_share_the_open_nodes_divide_evenly() {
        let mut shares = [1.0, 0.0, 0.0];
        cap(&mut shares, &[vec![0; 9], vec![], vec![]], 9);
        assert_eq!(shares, [0.0, 0.5, 0.5]);
        cap(&mut shares, &[vec![0; 3], vec![0; 3], vec![0; 3]], 9);
        assert_eq!(shares, [1.0 / 3.0; 3]);
    }

    #[test]
    fn cuts_at_the_rounded_down_cumulative_shares() {
        let mut nodes = vec![Vec::new(); 3];
        cut(&[1, 2, 3, 4, 5, 6, 7], &[0.3, 0.3, 0.4], &mut nodes); // 2.1, 4.2, end
        assert_eq!(nodes, [vec![1, 2], vec![3, 4], vec![5, 6, 7]]);
        let mut nodes = vec![Vec::new(); 3];
        deal(&[1, 2, 3, 4, 5], &mut nodes);
        assert_eq!(nodes, [vec![1], vec![2], vec![3, 4, 5]]);
    }
}
