//! Nodes that lie about their labels: of `C` classes they call class `y` by the name of class `C - 1 - y`.
//!
//! Label flipping is the plainest poisoning of a federation (Fung, Yoon and Beschastnikh, RAID 2020; Tolpegin et al.,
//! ESORICS 2020). One node in EVERY lies, the last of each EVERY. Its own test samples are flipped like its training
//! samples, so what it reaches itself says nothing: look at the others.

use super::{Change, Domains, Kind, Nature};

pub(super) const KIND: Kind = Kind {
    name: "flipped",
    form: "flipped:EVERY",
    bounds: "EVERY from 2 to 1000",
    about: "labels turned round, y to C-1-y, at the last of every EVERY nodes: liars, in a test of the others",
    parse,
};

/// Fewer liars than one in so many nodes are none.
const MOST_BETWEEN: u16 = 1000;

#[derive(Debug)]
struct Flipped {
    domains: Domains,
}

fn parse(arguments: &[&str]) -> Option<Box<dyn Change>> {
    let [every] = arguments else {
        return None;
    };
    let domains = Domains::parse(&[every], MOST_BETWEEN)?;
    Some(Box::new(Flipped { domains }))
}

impl Change for Flipped {
    fn check(&self, nature: &Nature) -> Result<(), String> {
        if nature.classes > 1 {
            return Ok(());
        }
        Err("turns labels round, and numbers have none: leave it out".to_owned())
    }

    fn domains(&self) -> Domains {
        self.domains
    }

    fn change_label(&self, domain: u16, label: u16, classes: usize) -> u16 {
        if domain + 1 < self.domains.count() {
            label
        } else {
            classes as u16 - 1 - label
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_every_four_nodes_lies() {
        let flipped = parse(&["4"]).unwrap();
        let labels = |domain| [0, 3, 9].map(|label| flipped.change_label(domain, label, 10));
        for honest in 0..3 {
            assert_eq!(labels(honest), [0, 3, 9]);
        }
        assert_eq!(labels(3), [9, 6, 0]);
        assert!(parse(&["1"]).is_none() && parse(&["4", "2"]).is_none());
    }
}
