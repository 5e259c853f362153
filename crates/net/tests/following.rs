//! A large federation: what is not for everybody reaches those who follow its author, and nobody else.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::{Node, config};
use fednode_core::{BlobId, Body, BroadcastSet, FederationSpec, Local, NodeId, Round};
use fednode_net::{Config, Event, Identity};

/// A federation of ten thousand in which 256 speak to everybody in a round.
fn large() -> Config {
    let spec = FederationSpec {
        nodes: 10_000,
        rounds: 100_000,
        ..FederationSpec::default()
    };
    Config {
        listen: config().listen,
        ..Config::new(Arc::new(spec), fednode_core::Role::Node)
    }
}

async fn knowing(peers: &[&Node]) -> Node {
    let peers = peers.iter().map(|peer| peer.address()).collect();
    Node::with(
        Config { peers, ..large() },
        Identity::generate(),
        Arc::default(),
    )
    .await
}

/// Returns the first round from `from` on in which a node speaks to everybody, or does not.
fn round_in_which(node: NodeId, speaks: bool, from: u32) -> Round {
    let broadcast_set = BroadcastSet::of(&large().spec);
    (from..)
        .map(Round)
        .find(|round| broadcast_set.contains(node, *round) == speaks)
        .unwrap()
}

async fn say(node: &Node, round: Round) {
    node.network
        .handle
        .publish(round, Body::Local(Local::new(BlobId::of(b""), 1)))
        .await
        .unwrap();
}

async fn hears(node: &mut Node, author: NodeId) -> Round {
    let pick = |event: &Event| match event {
        Event::Advert { advert, .. } if advert.author == author => Some(advert.round),
        _ => None,
    };
    node.wait("an advert", pick).await
}

#[tokio::test(flavor = "multi_thread")]
async fn followed_adverts_come_by_gossip_and_later_by_sync() {
    let ann = Node::start(large()).await;
    let (mut bob, mut cat) = (knowing(&[&ann]).await, knowing(&[&ann]).await);
    cat.network.handle.follow(vec![ann.id()]).await;
    bob.synced(ann.id()).await;
    cat.synced(ann.id()).await;

    let whispered = round_in_which(ann.id(), false, 1);
    say(&ann, whispered).await;
    assert_eq!(hears(&mut cat, ann.id()).await, whispered);

    // Bob hears only what is for everybody.
    let spoken = round_in_which(ann.id(), true, whispered.0 + 1);
    say(&ann, spoken).await;
    assert_eq!(hears(&mut bob, ann.id()).await, spoken);
    assert_eq!(hears(&mut cat, ann.id()).await, spoken);

    // Cat, who follows Ann, passes it on to Bob as Ann would.
    ann.network.handle.shutdown().await;
    bob.network.handle.dial(cat.address()).await;
    bob.network.handle.follow(vec![ann.id()]).await;
    assert_eq!(hears(&mut bob, ann.id()).await, whispered);
}
