//! Few classes per node, the way PFLlib does it.
//!
//! For each class in order, the first `ceil(M / C * classes)` nodes that still want a class get it. Their amounts are
//! random between a tenth (at least two samples) and all of an equal part (`unbalanced`), or equal (`balanced`); the
//! last of them gets the rest. Cuts are contiguous and unshuffled.
//!
//! Where the rounding up serves all nodes before the last classes come, PFLlib fails with a division by zero; here those
//! classes are left out. That happens only with fewer nodes than classes, or with odd numbers of them.
//! A node may end up without samples only where a class has fewer samples than holders; loading its shard then fails.

use super::dirichlet::least;
use super::split::train_and_test;
use super::{Divide, MIN_SAMPLES, NodeIndices, Request, parse_classes};
use crate::error::DataError;
use fednode_core::random::Dice;

#[derive(Debug)]
struct Pathological {
    classes_per_node: usize,
    balanced: bool,
}

pub(super) fn parse(argument: &str) -> Option<Box<dyn Divide>> {
    let (classes_per_node, balanced) = parse_classes(argument, false)?;
    Some(Box::new(Pathological {
        classes_per_node,
        balanced,
    }))
}

impl Divide for Pathological {
    fn divide(
        &self,
        request: &Request<'_>,
        dice: &mut Dice,
    ) -> Result<Vec<NodeIndices>, DataError> {
        let classes = request.draw_by_class(dice);
        let present = classes.iter().filter(|class| !class.is_empty()).count();
        let total = classes.iter().map(Vec::len).sum();
        let floor = least(total, request.nodes) / present.max(1);
        let holders = (request.nodes * self.classes_per_node).div_ceil(present.max(1));

        let mut nodes = vec![Vec::new(); request.nodes];
        let mut wants = vec![self.classes_per_node; request.nodes];
        for class in classes.iter().filter(|class| !class.is_empty()) {
            let chosen: Vec<usize> = (0..request.nodes)
                .filter(|node| wants[*node] > 0)
                .take(holders)
                .collect();
            let mut from = 0;
            for (node, amount) in
                chosen
                    .iter()
                    .zip(self.amounts(class.len(), chosen.len(), floor, dice))
            {
                nodes[*node].extend_from_slice(&class[from..from + amount]);
                wants[*node] -= 1;
                from += amount;
            }
        }
        Ok(nodes
            .into_iter()
            .map(|samples| train_and_test(samples, dice))
            .collect())
    }
}

impl Pathological {
    /// Divides `n` samples of a class among its holders.
    fn amounts(&self, n: usize, holders: usize, floor: usize, dice: &mut Dice) -> Vec<usize> {
        let Some(others) = holders.checked_sub(1) else {
            return Vec::new();
        };
        let equal = n / holders;
        let low = floor.max(equal / 10).max(MIN_SAMPLES).min(equal);
        let amount = |_| {
            if self.balanced || low == equal {
                equal
            } else {
                low + dice.below(equal - low)
            }
        };
        let mut amounts: Vec<usize> = (0..others).map(amount).collect();
        amounts.push(n - amounts.iter().sum::<usize>());
        amounts
    }
}
