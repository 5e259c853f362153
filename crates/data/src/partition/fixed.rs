//! Nodes of equal size with their own label shares, as FedMoE-DA has them (500 training samples each).
//!
//! Node `i` has label shares `q_i`; each of its samples gets a class drawn from `q_i` and is taken from that class
//! without replacement. When a class is used up, what is left of `q_i` counts. The test samples are a quarter of each
//! class, so their label shares are the node's own.
//!
//! - `fixed-dirichlet:ALPHA`: `q_i ~ Dir(ALPHA * prior)`, the prior being the label shares of the pool (Hsu et al. 2019).
//! - `fixed-pathological:C`: `C` random classes, in equal shares or (`unbalanced`) the first with three times the share
//!   of each other one (375 and 125 of 500).

use super::split::{by_class, n_train};
use super::{Divide, NodeIndices, Request, parse_alpha, parse_classes};
use crate::error::DataError;
use fednode_core::random::Dice;

/// How much more of its first class an unbalanced node has.
const UNBALANCED_RATIO: f64 = 3.0;

#[derive(Debug)]
enum Fixed {
    Dirichlet { alpha: f64 },
    Pathological { classes: usize, balanced: bool },
}

pub(super) fn parse_dirichlet(argument: &str) -> Option<Box<dyn Divide>> {
    Some(Box::new(Fixed::Dirichlet {
        alpha: parse_alpha(argument)?,
    }))
}

pub(super) fn parse_pathological(argument: &str) -> Option<Box<dyn Divide>> {
    let (classes, balanced) = parse_classes(argument, true)?;
    Some(Box::new(Fixed::Pathological { classes, balanced }))
}

impl Divide for Fixed {
    fn divide(
        &self,
        request: &Request<'_>,
        dice: &mut Dice,
    ) -> Result<Vec<NodeIndices>, DataError> {
        let whole_pool = Request {
            samples_per_node: 0,
            ..*request
        };
        let mut classes = whole_pool.draw_by_class(dice);
        let prior: Vec<f64> = classes
            .iter()
            .map(|class| class.len() as f64 / request.labels.len() as f64)
            .collect();
        classes.iter_mut().for_each(|class| dice.shuffle(class));
        let n = request.mean_samples();
        let node = |_| {
            let samples = draw(n, &self.shares(&prior, dice), &mut classes, dice);
            let (train, test) = by_class(&samples, request.labels, n - n_train(n), dice);
            NodeIndices { train, test }
        };
        Ok((0..request.nodes).map(node).collect())
    }
}

impl Fixed {
    fn shares(&self, prior: &[f64], dice: &mut Dice) -> Vec<f64> {
        match self {
            Self::Dirichlet { alpha } => {
                let concentrations: Vec<f64> = prior.iter().map(|share| alpha * share).collect();
                dice.dirichlet(&concentrations)
            }
            Self::Pathological { classes, balanced } => {
                let mut present: Vec<usize> = (0..prior.len())
                    .filter(|class| prior[*class] > 0.0)
                    .collect();
                dice.shuffle(&mut present);
                let mut shares = vec![0.0; prior.len()];
                present
                    .iter()
                    .take(*classes)
                    .for_each(|class| shares[*class] = 1.0);
                if !balanced {
                    shares[present[0]] = UNBALANCED_RATIO;
                }
                shares
            }
        }
    }
}

/// Takes `n` samples out of the classes.
fn draw(n: usize, shares: &[f64], classes: &mut [Vec<u32>], dice: &mut Dice) -> Vec<u32> {
    let mut samples = Vec::with_capacity(n);
    let mut shares = shares.to_vec();
    while samples.len() < n {
        if shares.iter().sum::<f64>() <= 0.0 {
            // Everything this node wanted is used up: it takes of what there is.
            shares = classes.iter().map(|class| class.len() as f64).collect();
        }
        let class = dice.weighted(&shares);
        match classes[class].pop() {
            Some(sample) => samples.push(sample),
            None => shares[class] = 0.0,
        }
    }
    samples
}
