//! How the domains of a transform lie over the nodes, and over the samples of one node.
//!
//! Of `D` domains node `i` holds `H`: `i mod D`, `i + 1 mod D`, …, `i + H - 1 mod D`, in equal shares of its samples.

use super::number;
use fednode_core::random::Dice;

/// Domains, and how many of them each node holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Domains {
    count: u16,
    held: u16,
}

impl Domains {
    /// One domain that all samples are in.
    pub(super) const ONE: Self = Self { count: 1, held: 1 };

    /// Takes the two domains of a drift.
    pub(super) const EARLY_AND_LATE: Self = Self { count: 2, held: 1 };

    /// Reads the arguments of `COUNT[:HELD]`, COUNT from 2 to `most` and HELD from 1 to COUNT (1 if it is left out).
    pub(super) fn parse(arguments: &[&str], most: u16) -> Option<Self> {
        let (count, held) = match arguments {
            [count] => (count, "1"),
            [count, held] => (count, *held),
            _ => return None,
        };
        let count = number(count, 2..=most)?;
        let held = number(held, 1..=count)?;
        Some(Self { count, held })
    }

    /// Returns how many there are.
    pub(super) fn count(self) -> u16 {
        self.count
    }

    /// Returns how far domain `domain` is on the way from the first (0) to the last (1).
    pub(super) fn level(self, domain: u16) -> f64 {
        f64::from(domain) / f64::from(self.count.max(2) - 1)
    }

    /// Deals the node's domains to `n` samples, shares equal to one sample; the draw decides which sample gets which.
    pub(super) fn deal(self, node: usize, n: usize, dice: &mut Dice) -> Vec<u16> {
        let (count, held) = (usize::from(self.count), usize::from(self.held));
        let domain = |rank: usize| ((node + rank * held / n) % count) as u16;
        if held == 1 {
            return vec![(node % count) as u16; n];
        }
        let mut places: Vec<usize> = (0..n).collect();
        dice.shuffle(&mut places);
        let mut domains = vec![0; n];
        for (rank, place) in places.into_iter().enumerate() {
            domains[place] = domain(rank);
        }
        domains
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(domains: &[u16]) -> [usize; 4] {
        let mut counts = [0; 4];
        domains
            .iter()
            .for_each(|domain| counts[usize::from(*domain)] += 1);
        counts
    }

    #[test]
    fn a_node_holds_its_domains_in_equal_shares() {
        let two = Domains::parse(&["4", "2"], 4).unwrap();
        let deal = |node, n| two.deal(node, n, &mut Dice::new("test", 1, node as u64));
        assert_eq!(counts(&deal(0, 10)), [5, 5, 0, 0]);
        assert_eq!(counts(&deal(3, 11)), [5, 0, 0, 6]);
        assert_eq!(counts(&deal(6, 4)), [0, 0, 2, 2]);
        assert_eq!(deal(1, 0), [0; 0]);
        let all = Domains::parse(&["4", "4"], 4).unwrap();
        assert_eq!(
            counts(&all.deal(2, 10, &mut Dice::new("test", 1, 0))),
            [3, 2, 3, 2]
        );
    }

    #[test]
    fn which_sample_gets_which_is_drawn() {
        let two = Domains::parse(&["4", "2"], 4).unwrap();
        let deal = |seed| two.deal(0, 100, &mut Dice::new("test", seed, 0));
        assert_eq!(deal(1), deal(1));
        assert_ne!(deal(1), deal(2));
        assert!(deal(1)[..50].contains(&0) && deal(1)[..50].contains(&1));
    }

    #[test]
    fn a_node_of_one_domain_draws_nothing() {
        let one = Domains::parse(&["3"], 16).unwrap();
        assert_eq!(one.deal(5, 4, &mut Dice::new("test", 1, 0)), [2; 4]);
        assert_eq!([0, 1, 2].map(|domain| one.level(domain)), [0.0, 0.5, 1.0]);
    }
}
