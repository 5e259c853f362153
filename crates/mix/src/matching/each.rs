//! Peers' experts of the own slot, as they are: the algorithm judges them itself, and nothing is mixed beforehand.
//!
//! ```text
//! S_i  = the own expert, then the P nearest of { j : j known, of the same slot }, by (r_ij descending, owner)
//! a_ij = 1 / |S_i|
//! ```
//!
//! r: the cosine of the proxies, which decides only whom a bounded P leaves out. The weights say that all count alike until
//! the algorithm has judged them; a plan knows no better. What arrives passes the screens of every mixed expert and goes to
//! the algorithm one by one (FedFomo: Zhang et al., ICLR 2021; dFLMoE: Xie et al., CVPR 2025).

use fednode_core::limits::MAX_NORM_RATIO;
use fednode_core::{ExpertId, PlanRow, Source};

use super::{Gives, MatchingRow};
use crate::similarity::Proxies;

pub(super) const ROW: MatchingRow = MatchingRow {
    name: "each",
    summary: "peers' experts of the same slot, unmixed, for the algorithm to judge",
    reference: "FedFomo (Zhang et al., ICLR 2021, arXiv 2012.08565), dFLMoE (Xie et al., CVPR 2025)",
    gives: Gives::Each,
    most_norm_ratio: MAX_NORM_RATIO,
    rows: |own, known, exchange| {
        let limit = exchange.peers_per_expert.limit();
        super::by_cosine(own, known, |proxies, own| row(proxies, own, limit))
    },
    admits: None,
    renamings: None,
};

fn row(proxies: &Proxies<'_>, own: ExpertId, limit: usize) -> PlanRow {
    let position = proxies
        .position(own)
        .expect("collect keeps the set whose dimension it was given");
    let all = proxies.experts().iter().copied();
    let mut others: Vec<(ExpertId, f64)> = all
        .zip(proxies.row(position))
        .filter(|(expert, _)| expert.slot == own.slot && expert.owner != own.owner)
        .collect();
    others.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    others.truncate(limit);
    let weight = 1.0 / (others.len() + 1) as f64;
    let sources = std::iter::once((own, 1.0)).chain(others);
    PlanRow {
        slot: own.slot,
        sources: sources
            .map(|(expert, similarity)| Source {
                expert,
                similarity,
                weight,
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use fednode_core::{ExpertExchange, Matching, NodeId, PeersPerExpert, ProxySet, Slot};

    use super::*;

    fn expert(byte: u8, slot: u16) -> ExpertId {
        ExpertId {
            owner: NodeId::from_bytes([byte; 32]),
            slot: Slot(slot),
        }
    }

    fn exchange(peers_per_expert: PeersPerExpert) -> ExpertExchange {
        ExpertExchange::by(Matching::named("each"), peers_per_expert)
    }

    /// Four nodes with two slots of directions in a plane, and one of another dimension. Seen from node 1, slot 0: node 3 is
    /// at cos 0 = 1, node 2 at cos 90° = 0, node 4 at cos 180° = -1.
    fn sources(peers: PeersPerExpert) -> Vec<(ExpertId, f64, f64)> {
        let set = |slots: [[f32; 2]; 2]| Arc::new(ProxySet::new(2, slots.concat()).unwrap());
        let known = BTreeMap::from([
            (expert(1, 0).owner, set([[1.0, 0.0], [0.0, 1.0]])),
            (expert(2, 0).owner, set([[0.0, 2.0], [1.0, 0.0]])),
            (expert(3, 0).owner, set([[3.0, 0.0], [1.0, 0.0]])),
            (expert(4, 0).owner, set([[-1.0, 0.0], [1.0, 0.0]])),
            (
                expert(5, 0).owner,
                Arc::new(ProxySet::new(1, vec![1.0]).unwrap()),
            ),
        ]);
        let rows = (ROW.rows)(&[expert(1, 0), expert(1, 1)], &known, &exchange(peers));
        assert_eq!(rows[1].slot, Slot(1));
        let sources = rows[0].sources.iter();
        sources
            .map(|source| (source.expert, source.similarity, source.weight))
            .collect()
    }

    #[test]
    fn all_experts_of_the_slot_count_alike() {
        let expected = [
            (expert(1, 0), 1.0, 0.25),
            (expert(3, 0), 1.0, 0.25),
            (expert(2, 0), 0.0, 0.25),
            (expert(4, 0), -1.0, 0.25),
        ];
        assert_eq!(sources(PeersPerExpert::ALL), expected);
    }

    #[test]
    fn a_bounded_row_has_the_nearest() {
        let third = 1.0 / 3.0;
        let expected = [
            (expert(1, 0), 1.0, third),
            (expert(3, 0), 1.0, third),
            (expert(2, 0), 0.0, third),
        ];
        assert_eq!(sources(PeersPerExpert::Count(2)), expected);
        assert_eq!(
            sources(PeersPerExpert::Count(0)),
            [(expert(1, 0), 1.0, 1.0)]
        );
    }
}
