//! Nodes of different sizes: a geometric ladder from 1 to RATIO.
//!
//! ```text
//! the node of rank r of N keeps RATIO^(r / (N - 1)) / RATIO of its training samples; ranks are drawn
//! ```
//!
//! The largest node keeps all its training samples, the smallest one in RATIO. Test samples stay, so that a small node is
//! measured as well as a large one.

use super::{Change, Kind, Nature};
use crate::partition::NodeIndices;
use fednode_core::random::Dice;

pub(super) const KIND: Kind = Kind {
    name: "sizes",
    form: "sizes:RATIO",
    bounds: "RATIO from 1 to 1000",
    about: "training samples are left out so that sizes are a geometric ladder from 1 to RATIO, in drawn order",
    parse,
};

/// Fewest training samples that are left: one to learn from and one to validate on.
const FEWEST: usize = 2;

#[derive(Debug)]
struct Sizes {
    ratio: f64,
}

fn parse(arguments: &[&str]) -> Option<Box<dyn Change>> {
    let [ratio] = arguments else {
        return None;
    };
    let ratio: f64 = ratio.parse().ok()?;
    (1.0..=1000.0)
        .contains(&ratio)
        .then(|| Box::new(Sizes { ratio }) as Box<dyn Change>)
}

impl Change for Sizes {
    fn check(&self, _: &Nature) -> Result<(), String> {
        Ok(())
    }

    fn change_lists(&self, nodes: &mut [NodeIndices], seed: u64) {
        let mut ranks: Vec<usize> = (0..nodes.len()).collect();
        Dice::new("ranks of sizes", seed, 0).shuffle(&mut ranks);
        let largest = nodes.len() - 1;
        for (number, (node, rank)) in nodes.iter_mut().zip(ranks).enumerate() {
            let below = (largest - rank) as f64 / largest.max(1) as f64;
            let share = libm::pow(self.ratio, -below);
            let kept = ((node.train.len() as f64 * share).round() as usize).max(FEWEST);
            node.train.sort_unstable();
            Dice::new("samples of sizes", seed, number as u64).shuffle(&mut node.train);
            node.train.truncate(kept);
        }
    }
}
