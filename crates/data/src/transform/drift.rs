//! Images that turn as the rounds go by: the training samples of a node move from one domain to another.
//!
//! ```text
//! round 1                                          last round
//! all as they are ─► a growing share is turned ─► all turned by QUARTERS * 90 degrees
//! ```
//!
//! In round `r` of `R` a share of `(r - 1) / (R - 1)` of a node's training samples is turned; which, the seed decides, and
//! what has turned stays so. Validation and test samples are turned from the first round on. So the test shows how soon
//! a node follows, and what chooses by validation samples after the last round chooses for the state that lasts.
//!
//! Together with `rotated:4` node `i` begins with turn `i` and ends with turn `i + QUARTERS`.

use super::{Change, Domains, Image, Kind, Nature, number};
use fednode_core::random::Dice;

pub(super) const KIND: Kind = Kind {
    name: "drift",
    form: "drift:QUARTERS",
    bounds: "QUARTERS from 1 to 3",
    about: "a share of the training images that grows from none to all by round is turned by QUARTERS * 90 degrees; test \
            images all are",
    parse,
};

#[derive(Debug)]
struct Turning {
    quarters: u16,
}

fn parse(arguments: &[&str]) -> Option<Box<dyn Change>> {
    let [quarters] = arguments else {
        return None;
    };
    Some(Box::new(Turning {
        quarters: number(quarters, 1..=3)?,
    }))
}

impl Change for Turning {
    fn check(&self, nature: &Nature) -> Result<(), String> {
        nature.need_images("turns")?;
        nature.need_squares()
    }

    fn domains(&self) -> Domains {
        Domains::EARLY_AND_LATE
    }

    fn drifts(&self) -> bool {
        true
    }

    fn change_image(&self, domain: u16, image: &mut Image<'_>) {
        image.turn(domain * self.quarters);
    }
}

/// Draws for each of `n` samples the share of the run after which it is late: evenly spread between 0 and 1.
pub(super) fn starts(n: usize, dice: &mut Dice) -> Vec<f64> {
    let mut places: Vec<usize> = (0..n).collect();
    dice.shuffle(&mut places);
    let mut starts = vec![0.0; n];
    for (rank, place) in places.into_iter().enumerate() {
        starts[place] = (rank as f64 + 0.5) / n as f64;
    }
    starts
}
