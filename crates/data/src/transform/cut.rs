//! Other shares of training and test samples than three quarters to one.
//!
//! All samples of a node are shuffled and cut anew, TRAIN parts to TEST parts. The training part is rounded down, and each
//! part keeps at least one sample.

use super::{Change, Kind, Nature, number};
use crate::partition::NodeIndices;
use fednode_core::random::Dice;

pub(super) const KIND: Kind = Kind {
    name: "cut",
    form: "cut:TRAIN:TEST",
    bounds: "TRAIN and TEST from 1 to 1000",
    about: "each node's samples are cut anew, TRAIN parts for training to TEST parts for the test, instead of 3 to 1",
    parse,
};

/// Most parts of either side.
const MOST_PARTS: u16 = 1000;

#[derive(Debug)]
struct Cut {
    train: usize,
    test: usize,
}

fn parse(arguments: &[&str]) -> Option<Box<dyn Change>> {
    let [train, test] = arguments else {
        return None;
    };
    let parts = |text| number(text, 1..=MOST_PARTS).map(usize::from);
    Some(Box::new(Cut {
        train: parts(train)?,
        test: parts(test)?,
    }))
}

impl Change for Cut {
    fn check(&self, _: &Nature) -> Result<(), String> {
        Ok(())
    }

    fn change_lists(&self, nodes: &mut [NodeIndices], seed: u64) {
        for (number, node) in (0..).zip(nodes) {
            let mut samples: Vec<u32> = node.all().collect();
            samples.sort_unstable();
            Dice::new("cut", seed, number).shuffle(&mut samples);
            let n_train = samples.len() * self.train / (self.train + self.test);
            let most = samples.len().saturating_sub(1);
            node.test = samples.split_off(n_train.max(1).min(most));
            node.train = samples;
        }
    }
}
