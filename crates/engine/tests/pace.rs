//! Where nothing is averaged a node looks for itself how far the others have got, and how far its own word has.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use fednode_core::{
    Accepted, Advert, AdvertId, BlobId, BlobRef, Body, ExpertExchange, ExpertOffer, FederationSpec,
    InlineProxies, Local, LocalReport, Matching, NodeId, PeersPerExpert, ProxyOffer, ProxySet,
    Role, Round, Sequence, Timestamp,
};
use fednode_engine::{Input, MergeReport, Node, Output};

const NOW: Timestamp = Timestamp(1_000);
const ME: u8 = 1;

fn id(n: u8) -> NodeId {
    NodeId::from_bytes([n; 32])
}

fn spec() -> Arc<FederationSpec> {
    let mut spec = FederationSpec {
        nodes: 2,
        ..FederationSpec::default()
    };
    spec.exchange.experts = Some(ExpertExchange::by(
        Matching::named("similarity"),
        PeersPerExpert::Count(5),
    ));
    Arc::new(spec)
}

fn expert(author: u8) -> ExpertOffer {
    ExpertOffer {
        blob: BlobRef {
            id: BlobId::of(&[author]),
            size: 100,
        },
        samples_routed: 1,
    }
}

fn proxies() -> Option<ProxyOffer> {
    let proxies = ProxySet::new(2, vec![1.0, 0.5]).unwrap();
    let (blob, bytes) = proxies.to_params().to_blob();
    assert_eq!(blob.size as usize, bytes.len());
    Some(ProxyOffer::Inline(InlineProxies::new(bytes)))
}

/// The update of round 1 as everybody hears it.
fn update(spec: &FederationSpec, author: u8) -> Input {
    let body = Body::Local(Local {
        experts: vec![expert(author)],
        proxies: proxies(),
        ..Local::new(BlobId::of(&spec.canonical_bytes()), 10)
    });
    let advert = Advert {
        federation: spec.id(),
        author: id(author),
        sequence: Sequence {
            incarnation: 1,
            counter: 1,
        },
        round: Round(1),
        issued_at: NOW,
        expires_at: NOW,
        body,
    };
    let id = AdvertId::of(format!("{advert:?}").as_bytes());
    Input::Advert(Arc::new(Accepted { id, advert }))
}

fn merges(outputs: &[Output]) -> bool {
    outputs
        .iter()
        .any(|output| matches!(output, Output::Merge(_)))
}

/// The own update comes back from the network as everybody else's does, at times after theirs. Without it there would be
/// no plan until the next refresh.
#[test]
fn a_node_waits_for_its_own_update_before_it_plans() {
    let spec = spec();
    let mut node = Node::new(Arc::clone(&spec), id(ME), None);
    let peer = Input::PeerUp {
        node: id(2),
        role: Role::Node,
    };
    for input in [Input::Start, Input::Synced, peer, update(&spec, 2)] {
        node.handle(NOW, input);
    }
    assert_eq!(node.round(), Round(1));
    let report = LocalReport {
        round: Round(1),
        lineage: node.lineage(),
        shared: None,
        experts: vec![expert(ME)],
        own_experts: Vec::new(),
        proxies: proxies(),
        sketches: None,
        n_samples: 10,
        train_loss: 1.0,
        expert_share: vec![1.0],
    };
    let outputs = node.handle(NOW, Input::Trained(report));
    assert!(!merges(&outputs), "before its own update came back");
    let outputs = node.handle(NOW, update(&spec, ME));
    assert!(merges(&outputs));
    let merged = MergeReport {
        round: Round(1),
        ..MergeReport::default()
    };
    node.handle(NOW, Input::Merged(merged));
    let sources = &node.plan().unwrap().rows[0].sources;
    let owners: Vec<NodeId> = sources.iter().map(|source| source.expert.owner).collect();
    assert_eq!((node.round(), owners), (Round(2), vec![id(ME), id(2)]));
}
