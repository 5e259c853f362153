//! The aggregation plan: from which experts each own expert is mixed, and with which weights.
//!
//! Each node computes only its own rows, against the proxies that it happens to know. How a row is made is the
//! exchange's [`matching`]. With few proxies a row is still a convex mix that contains the own expert.

use std::collections::BTreeMap;
use std::sync::Arc;

use fednode_core::{
    AggregationPlan, ExpertExchange, ExpertId, Lineage, NodeId, ProxySet, Round, Slot,
};

use crate::matching::{self, Renaming};
use crate::similarity::Proxies;

/// Computes a node's own rows from the proxies it knows, its own among them.
///
/// All sets must come from the lineage that is given; sets of another dimension than the own one are ignored. Without an
/// own set there is nothing to compare with, and the plan has no rows. An unknown matching plans no rows either.
pub fn plan(
    own: NodeId,
    round: Round,
    lineage: Lineage,
    known: &BTreeMap<NodeId, Arc<ProxySet>>,
    exchange: &ExpertExchange,
) -> AggregationPlan {
    let Some(own_set) = known.get(&own) else {
        return AggregationPlan {
            round,
            lineage,
            rows: Vec::new(),
        };
    };
    let own_experts: Vec<ExpertId> = slots(own_set.len())
        .map(|slot| ExpertId { owner: own, slot })
        .collect();
    let rows = match matching::find(exchange.matching.name()) {
        Some(row) => (row.rows)(&own_experts, known, exchange),
        None => Vec::new(),
    };
    AggregationPlan {
        round,
        lineage,
        rows,
    }
}

/// Returns the peers that have the classes of a node under other names; nobody where proxies tell nothing of classes.
pub fn renamings(
    own: NodeId,
    known: &BTreeMap<NodeId, Arc<ProxySet>>,
    exchange: &ExpertExchange,
) -> Vec<Renaming> {
    let row = matching::find(exchange.matching.name());
    let renamings = row.and_then(|row| row.renamings);
    renamings.map_or(Vec::new(), |renamings| renamings(own, known, exchange))
}

/// Returns the other nodes by how alike an expert of theirs is to one of the own ones, the nearest first.
pub fn ranking(own: NodeId, known: &BTreeMap<NodeId, Arc<ProxySet>>) -> Vec<(NodeId, f64)> {
    let Some(own_set) = known.get(&own) else {
        return Vec::new();
    };
    let proxies = Proxies::collect(known, own_set.dimension());
    let mut best: BTreeMap<NodeId, f64> = BTreeMap::new();
    for slot in slots(own_set.len()) {
        let row = proxies
            .position(ExpertId { owner: own, slot })
            .map(|position| proxies.row(position));
        for (expert, similarity) in proxies.experts().iter().zip(row.into_iter().flatten()) {
            let known = best.entry(expert.owner).or_insert(similarity);
            *known = known.max(similarity);
        }
    }
    best.remove(&own);
    let mut ranked: Vec<(NodeId, f64)> = best.into_iter().collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    ranked
}

fn slots(n_experts: usize) -> impl Iterator<Item = Slot> {
    (0..).map(Slot).take(n_experts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fednode_core::{BlobId, ExpertId, Matching, PeersPerExpert, PlanRow, Source, Weighting};

    fn node(byte: u8) -> NodeId {
        NodeId::from_bytes([byte; 32])
    }

    fn exchange(peers: u32, temperature: f64) -> ExpertExchange {
        ExpertExchange {
            peers_per_expert: PeersPerExpert::Count(peers),
            refresh_every: 5,
            temperature,
            weighting: Weighting::Uniform,
            slots_per_node: None,
            max_distance: None,
            matching: Matching::default(),
            noise: None,
        }
    }

    /// Proxies of a small federation, whose plan is worked out by hand.
    fn tv2() -> BTreeMap<NodeId, Arc<ProxySet>> {
        let sets = [
            vec![1.0, 0.0, 0.0, 1.0],
            vec![2.0, 0.2, -0.3, 1.5],
            vec![0.6, 0.8, -1.0, -0.1],
        ];
        (1..)
            .map(node)
            .zip(sets.map(|values| Arc::new(ProxySet::new(2, values).unwrap())))
            .collect()
    }

    fn weights(own: u8, slot: usize, exchange: &ExpertExchange) -> BTreeMap<(u8, u16), f64> {
        let plan = plan(node(own), Round(1), BlobId::of(b""), &tv2(), exchange);
        let key = |source: &Source| (source.expert.owner.as_bytes()[0], source.expert.slot.0);
        plan.rows[slot]
            .sources
            .iter()
            .map(|source| (key(source), source.weight))
            .collect()
    }

    fn assert_close(got: BTreeMap<(u8, u16), f64>, expected: [((u8, u16), f64); 3]) {
        assert_eq!(
            got.keys().collect::<Vec<_>>(),
            expected.iter().map(|(key, _)| key).collect::<Vec<_>>()
        );
        for (key, weight) in expected {
            assert!(
                (got[&key] - weight).abs() < 1e-6,
                "{key:?}: {} against {weight}",
                got[&key]
            );
        }
    }

    #[test]
    fn agrees_with_test_vector_2() {
        let paper = exchange(2, 1.0);
        assert_close(
            weights(1, 0, &paper),
            [((1, 0), 0.375182), ((2, 0), 0.373325), ((3, 0), 0.251492)],
        );
        assert_close(
            weights(3, 0, &paper),
            [((1, 1), 0.322026), ((2, 0), 0.284650), ((3, 0), 0.393324)],
        );
        assert_close(
            weights(3, 1, &paper),
            [((1, 1), 0.191552), ((2, 1), 0.233279), ((3, 1), 0.575169)],
        );
        assert_close(
            weights(3, 0, &exchange(2, 0.1)),
            [((1, 1), 0.115204), ((2, 0), 0.033547), ((3, 0), 0.851249)],
        );
    }

    /// Returns the plan that mixes nothing: each own expert is its own only source.
    fn identity(own: NodeId, n_experts: usize, round: Round, lineage: Lineage) -> AggregationPlan {
        let row = |slot| {
            let source = Source {
                expert: ExpertId { owner: own, slot },
                similarity: 1.0,
                weight: 1.0,
            };
            PlanRow {
                slot,
                sources: vec![source],
            }
        };
        AggregationPlan {
            round,
            lineage,
            rows: slots(n_experts).map(row).collect(),
        }
    }

    #[test]
    fn without_peers_the_plan_is_the_identity() {
        for (owner, set) in tv2() {
            let plan = plan(owner, Round(3), BlobId::of(b""), &tv2(), &exchange(0, 1.0));
            assert_eq!(plan, identity(owner, set.len(), Round(3), BlobId::of(b"")));
        }
    }

    #[test]
    fn ties_go_to_self_then_owner_then_slot() {
        // A shared initialisation: every proxy of every node is the same.
        let same = Arc::new(ProxySet::new(1, vec![1.0, 1.0]).unwrap());
        let known = (1..=3).map(|byte| (node(byte), same.clone())).collect();
        let plan = plan(
            node(2),
            Round(1),
            BlobId::of(b""),
            &known,
            &exchange(3, 1.0),
        );
        let names = |row: &PlanRow| {
            row.sources
                .iter()
                .map(|s| (s.expert.owner.as_bytes()[0], s.expert.slot.0))
                .collect::<Vec<_>>()
        };
        assert_eq!(names(&plan.rows[1]), [(2, 1), (1, 0), (1, 1), (2, 0)]);
        assert!(
            plan.rows[1]
                .sources
                .iter()
                .all(|source| source.weight == 0.25)
        );
    }

    #[test]
    fn a_copied_proxy_fills_only_the_capped_slots() {
        let mut known = tv2();
        known.insert(
            node(9),
            Arc::new(ProxySet::new(2, [1.0, 0.0].repeat(8)).unwrap()),
        );
        let capped = ExpertExchange {
            slots_per_node: Some(2),
            ..exchange(5, 1.0)
        };
        let plan = plan(node(1), Round(1), BlobId::of(b""), &known, &capped);
        let liars = plan.rows[0]
            .sources
            .iter()
            .filter(|source| source.expert.owner == node(9))
            .count();
        assert_eq!((liars, plan.rows[0].sources.len()), (2, 6));
    }

    #[test]
    fn own_slots_are_not_capped() {
        let known = BTreeMap::from([(node(1), Arc::new(ProxySet::new(1, vec![1.0; 5]).unwrap()))]);
        let capped = ExpertExchange {
            slots_per_node: Some(1),
            ..exchange(9, 1.0)
        };
        let plan = plan(node(1), Round(1), BlobId::of(b""), &known, &capped);
        assert!(plan.rows.iter().all(|row| row.sources.len() == 5));
    }

    #[test]
    fn broken_and_foreign_shaped_proxies_do_no_harm() {
        let mut known = tv2();
        known.insert(
            node(8),
            Arc::new(ProxySet::new(2, vec![f32::NAN, 1.0, 0.0, 0.0]).unwrap()),
        );
        known.insert(node(9), Arc::new(ProxySet::new(3, vec![1.0; 3]).unwrap()));
        let everyone = ExpertExchange {
            peers_per_expert: PeersPerExpert::ALL,
            ..exchange(0, 1.0)
        };
        let row = plan(node(8), Round(1), BlobId::of(b""), &known, &everyone)
            .rows
            .remove(0);
        assert_eq!(
            (row.sources.len(), row.sources[0].expert.owner),
            (8, node(8))
        );
        assert!(
            row.sources[1..]
                .iter()
                .all(|source| source.similarity == 0.0 && source.weight > 0.0)
        );
    }

    #[test]
    fn nodes_are_ranked_by_their_most_alike_expert() {
        // By hand: r between node 1 and the others is largest for slots (1,0)-(2,0), 0.995037, and (1,1)-(3,0), 0.8.
        let ranked = ranking(node(1), &tv2());
        assert_eq!(
            ranked.iter().map(|(node, _)| *node).collect::<Vec<_>>(),
            [node(2), node(3)]
        );
        assert!(
            (ranked[0].1 - 0.995037).abs() < 1e-6 && (ranked[1].1 - 0.8).abs() < 1e-6,
            "{ranked:?}"
        );
        assert_eq!(ranking(node(7), &tv2()), []);
    }

    #[test]
    fn a_tiny_temperature_leaves_the_own_expert_alone() {
        let plan = plan(
            node(3),
            Round(1),
            BlobId::of(b""),
            &tv2(),
            &exchange(2, 1e-300),
        );
        assert_eq!(
            plan.rows[0]
                .sources
                .iter()
                .map(|s| s.weight)
                .collect::<Vec<_>>(),
            [1.0, 0.0, 0.0]
        );
    }
}
