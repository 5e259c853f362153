//! What tests that feed machines by hand have in common.
#![allow(dead_code, reason = "each test file uses its share")]
#![allow(unreachable_pub, missing_docs, clippy::unwrap_used)]

use std::sync::Arc;

use fednode_core::{
    Accepted, Advert, AdvertId, Averaging, BlobId, BlobRef, Body, ExpertOffer, FederationSpec,
    InlineProxies, LocalReport, NodeId, ProxyOffer, ProxySet, Round, Rule, Sequence, Timestamp,
    Weighting,
};
use fednode_engine::{Input, Node};

pub fn id(n: u8) -> NodeId {
    NodeId::from_bytes([n; 32])
}

pub fn blob(name: &str) -> BlobRef {
    BlobRef {
        id: BlobId::of(name.as_bytes()),
        size: 100,
    }
}

/// A federation of so many nodes in which a part is averaged, everybody weighing the same.
pub fn averaging(nodes: u32) -> FederationSpec {
    let mut spec = FederationSpec {
        nodes,
        ..FederationSpec::default()
    };
    spec.exchange.averaging = Some(Averaging {
        weighting: Weighting::Uniform,
        rule: Rule::default(),
    });
    spec
}

/// An advert as a machine hears it; its name is the test's affair.
pub fn heard(
    spec: &FederationSpec,
    id: AdvertId,
    (author, counter): (u8, u64),
    (round, at): (u32, Timestamp),
    body: Body,
) -> Input {
    let advert = Advert {
        federation: spec.id(),
        author: self::id(author),
        sequence: Sequence {
            incarnation: 1,
            counter,
        },
        round: Round(round),
        issued_at: at,
        expires_at: at,
        body,
    };
    Input::Advert(Arc::new(Accepted { id, advert }))
}

/// Proxies of one expert. Everybody has the same, so everybody's experts are planned.
pub fn proxies() -> Option<ProxyOffer> {
    let proxies = ProxySet::new(2, vec![1.0, 0.5]).unwrap();
    let (_, bytes) = proxies.to_params().to_blob();
    Some(ProxyOffer::Inline(InlineProxies::new(bytes)))
}

/// A node's own update of its round.
pub fn trained(node: &Node, shared: Option<BlobRef>, expert: ExpertOffer) -> LocalReport {
    LocalReport {
        round: node.round(),
        lineage: node.lineage(),
        shared,
        experts: vec![expert],
        own_experts: Vec::new(),
        proxies: proxies(),
        sketches: None,
        n_samples: 10,
        train_loss: 1.0,
        expert_share: vec![1.0],
        offer: None,
    }
}
