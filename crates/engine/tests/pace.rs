//! Where nothing is averaged a node looks for itself how far the others have got, and how far its own word has.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::{heard, id, proxies, trained};
use fednode_core::{
    AdvertId, BlobId, BlobRef, Body, ExpertExchange, ExpertOffer, FederationSpec, Local, Matching,
    NodeId, PeersPerExpert, Role, Round, Timestamp,
};
use fednode_engine::{Input, MergeReport, Node, Output, Timer};

const NOW: Timestamp = Timestamp(1_000);
const ME: u8 = 1;

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

/// The update of round 1 as everybody hears it.
fn update(spec: &FederationSpec, author: u8) -> Input {
    update_of(spec, author, 1)
}

fn update_of(spec: &FederationSpec, author: u8, round: u32) -> Input {
    let body = Body::Local(Local {
        experts: vec![expert(author)],
        proxies: proxies(),
        ..Local::new(BlobId::of(&spec.canonical_bytes()), 10)
    });
    let id = AdvertId::of(&[author, round as u8]);
    heard(spec, id, (author, round.into()), (round, NOW), body)
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
    let report = trained(&node, None, expert(ME));
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

/// A node that was away hears of members by what others kept of their words. Some of them have gone since.
#[test]
fn who_was_only_heard_of_is_waited_for_during_the_grace_time() {
    let spec = spec();
    let mut node = Node::new(Arc::clone(&spec), id(ME), None);
    let peer = Input::PeerUp {
        node: id(2),
        role: Role::Node,
    };
    let gone = [3, 4].map(|author| update(&spec, author));
    for input in [Input::Start, Input::Synced, peer].into_iter().chain(gone) {
        node.handle(NOW, input);
    }
    let spoken = [update_of(&spec, 2, 1), update_of(&spec, ME, 1)];
    let report = trained(&node, None, expert(ME));
    node.handle(NOW, Input::Trained(report));
    let outputs: Vec<Output> = spoken
        .into_iter()
        .flat_map(|said| node.handle(NOW, said))
        .collect();
    assert!(merges(&outputs), "everybody has spoken");
    node.handle(
        NOW,
        Input::Merged(MergeReport {
            round: Round(1),
            ..MergeReport::default()
        }),
    );
    let mut now = NOW;
    let report = trained(&node, None, expert(ME));
    let mut outputs = node.handle(now, Input::Trained(report));
    for said in [update_of(&spec, 2, 2), update_of(&spec, ME, 2)] {
        outputs.extend(node.handle(now, said));
    }
    outputs.extend(node.handle(now, Input::Fetched(expert(2).blob.id)));
    assert!(!merges(&outputs), "3 and 4 may come");
    let mut timers: Vec<(Timestamp, Timer)> = Vec::new();
    while !merges(&outputs) {
        timers.extend(outputs.iter().filter_map(|output| match output {
            Output::SetTimer { timer, at } => Some((*at, *timer)),
            _ => None,
        }));
        timers.sort_by_key(|(at, _)| *at);
        let (at, timer) = timers.remove(0);
        now = now.max(at);
        outputs = node.handle(now, Input::Timer(timer));
    }
    let grace = spec.round.grace();
    assert!(
        now.since(NOW) <= 2 * grace,
        "{:?} of {grace:?}",
        now.since(NOW)
    );
}

/// A node that begins again from an old copy of its state is rounds behind.
#[test]
fn who_is_rounds_ahead_is_not_waited_for() {
    let spec = spec();
    let mut node = Node::new(Arc::clone(&spec), id(ME), None);
    let peers = [2, 3].map(|byte| Input::PeerUp {
        node: id(byte),
        role: Role::Node,
    });
    let said = [update(&spec, 2), update_of(&spec, 3, 0)];
    let inputs = [Input::Start, Input::Synced].into_iter().chain(peers);
    for input in inputs.chain(said) {
        node.handle(NOW, input);
    }
    let report = trained(&node, None, expert(ME));
    node.handle(NOW, Input::Trained(report));
    let outputs = node.handle(NOW, update(&spec, ME));
    assert!(!merges(&outputs), "3 has not got as far");
    let outputs = node.handle(NOW, update_of(&spec, 3, 4));
    assert!(merges(&outputs), "3 is three rounds ahead");
}
