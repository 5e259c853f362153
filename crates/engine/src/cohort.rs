//! The cohort: who trains in a round, where not everybody does (`round.participation`).
//!
//! Every node draws a number for every node it knows; those with the lowest are the cohort. Nodes that know the same nodes
//! draw the same cohort. Views differ for a moment when nodes come and go, or after a restart; then a node too many trains,
//! which is counted like the others, or one is missed for a grace time. Beyond 64 nodes not everybody meets everybody,
//! and who rests is not heard of for a while. There every node is in by chance instead. That needs no view, and the
//! size of the cohort varies.

use std::collections::BTreeSet;

use fednode_core::draw::{DrawSeed, draw, happens};
use fednode_core::{FederationSpec, NodeId, Round, Schedule};
use serde::{Deserialize, Serialize};

const PURPOSE: &[u8] = b"fednode cohort 1";

/// The nodes that train in a round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Cohort {
    /// All of them.
    Everybody,
    /// These.
    Drawn(BTreeSet<NodeId>),
    /// Each with this probability.
    ByChance(f64, DrawSeed, Round),
}

impl Cohort {
    /// Draws the cohort of a round from the nodes that are known.
    pub(crate) fn draw(
        spec: &FederationSpec,
        schedule: &Schedule,
        round: Round,
        known: impl Iterator<Item = NodeId>,
    ) -> Self {
        let share = spec.round.participation;
        if share >= 1.0 || schedule.is_for_everybody(round) {
            return Self::Everybody;
        }
        let seed = spec.draw_seed();
        // Where not everybody knows everybody, a draw over the known ones would differ from node to node.
        if spec.is_cohort_by_chance() {
            return Self::ByChance(share, seed, round);
        }
        let mut nodes: Vec<NodeId> = known.collect::<BTreeSet<_>>().into_iter().collect();
        // Of those that are here, not of those that were planned: a federation may stay small.
        let size = spec.cohort_of(nodes.len());
        // The round is in the draw, so each round has another cohort.
        nodes.sort_by_cached_key(|node| draw(PURPOSE, seed, round, *node));
        Self::Drawn(nodes.into_iter().take(size).collect())
    }

    /// Tells whether a node is in it.
    pub(crate) fn contains(&self, node: NodeId) -> bool {
        match self {
            Self::Everybody => true,
            Self::Drawn(nodes) => nodes.contains(&node),
            Self::ByChance(share, seed, round) => happens(*share, PURPOSE, *seed, *round, node),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(participation: f64, nodes: u32) -> FederationSpec {
        let mut spec = FederationSpec {
            nodes,
            rounds: 9,
            ..FederationSpec::default()
        };
        spec.round.participation = participation;
        spec
    }

    fn nodes(n: u16) -> BTreeSet<NodeId> {
        (0..n)
            .map(|n| NodeId::from_bytes(*blake3_of(n).as_bytes()))
            .collect()
    }

    fn blake3_of(n: u16) -> fednode_core::BlobId {
        fednode_core::BlobId::of(&n.to_le_bytes())
    }

    fn members(spec: &FederationSpec, round: u32, known: &BTreeSet<NodeId>) -> BTreeSet<NodeId> {
        let cohort = Cohort::draw(
            spec,
            &Schedule::of(spec),
            Round(round),
            known.iter().copied(),
        );
        known
            .iter()
            .copied()
            .filter(|node| cohort.contains(*node))
            .collect()
    }

    #[test]
    fn a_tenth_of_sixty_is_six_and_another_six_in_every_round() {
        let (spec, known) = (spec(0.1, 60), nodes(60));
        let rounds: Vec<BTreeSet<NodeId>> = (1..=100)
            .map(|round| members(&spec, round, &known))
            .collect();
        assert!(rounds.iter().all(|cohort| cohort.len() == 6));
        assert_ne!(rounds[0], rounds[1]);
        let mut turns: Vec<usize> = known
            .iter()
            .map(|node| rounds.iter().filter(|cohort| cohort.contains(node)).count())
            .collect();
        turns.sort_unstable();
        // Binomial(100, 0.1): 10 ± 3.
        assert!(turns[0] >= 1 && turns[59] <= 21, "{turns:?}");
    }

    #[test]
    fn a_cohort_is_never_too_small_for_a_round() {
        assert_eq!(members(&spec(0.01, 5), 3, &nodes(5)).len(), 2);
        assert_eq!(
            members(&spec(0.01, 5), 3, &nodes(1)).len(),
            1,
            "nobody else is known"
        );
    }

    #[test]
    fn cohorts_differ_little_when_one_node_is_unknown() {
        let (spec, known) = (spec(0.2, 50), nodes(50));
        let all = members(&spec, 4, &known);
        let lost = *all.first().unwrap();
        let fewer: BTreeSet<NodeId> = known.iter().copied().filter(|node| *node != lost).collect();
        let drawn = members(&spec, 4, &fewer);
        assert_eq!(
            drawn.intersection(&all).count(),
            9,
            "those that are left stay in, and one moves up"
        );
        assert_eq!(drawn.len(), 10);
    }

    #[test]
    fn large_cohort_is_drawn_and_statistics_need_everybody() {
        // Whoever knows a tenth of the others draws the same.
        let (hundred, spec_of) = (nodes(100), spec(0.1, 100));
        let all = members(&spec_of, 4, &hundred);
        let few: BTreeSet<NodeId> = hundred.iter().copied().step_by(10).collect();
        assert_eq!(
            members(&spec_of, 4, &few),
            few.intersection(&all).copied().collect()
        );
        let sizes: Vec<usize> = (1..=100)
            .map(|round| members(&spec_of, round, &hundred).len())
            .collect();
        assert!(
            sizes.iter().all(|size| (2..=20).contains(size))
                && sizes.iter().sum::<usize>().abs_diff(1000) < 100
        );
        let known = nodes(2000);
        let drawn = members(&spec(0.1, 2000), 4, &known).len();
        assert!((160..240).contains(&drawn), "{drawn} of 2000");
        let mut last = spec(0.1, 50);
        last.statistics.enabled = true;
        assert_eq!(
            (
                members(&last, 9, &nodes(50)).len(),
                members(&last, 8, &nodes(50)).len()
            ),
            (50, 5)
        );
        let mut first = spec(0.1, 50);
        first.exchange.everybody_first = true;
        assert_eq!(
            (
                members(&first, 1, &nodes(50)).len(),
                members(&first, 2, &nodes(50)).len()
            ),
            (50, 5)
        );
    }
}
