//! Members that cannot be dialed: who hears of them, and how their blobs travel.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{MemoryStore, Node, PATIENCE, config, noise, unheard};
use fednode_core::{BlobRef, Body, NodeId, PoolOffer, Role, Round, SEGMENT_BYTES};
use fednode_net::{Config, Event, FetchError, Identity, Route};

/// Configuration of a member that only dials these.
fn outbound(peers: &[&Node]) -> Config {
    let mut config = config();
    config.listen = Vec::new();
    config.peers = peers.iter().map(|peer| peer.address()).collect();
    config
}

async fn hub() -> Node {
    let mut config = config();
    config.role = Role::Aggregator;
    Node::start(config).await
}

async fn behind(hub: &Node, store: Arc<MemoryStore>) -> Node {
    let mut node = Node::with(outbound(&[hub]), Identity::generate(), store).await;
    node.peer_up(hub.id()).await;
    node
}

fn heard_of(node: NodeId) -> impl FnMut(&Event) -> Option<Role> {
    move |event| match event {
        Event::Heard { node: heard, role } if *heard == node => Some(*role),
        Event::PeerUp { node: up, .. } if *up == node => panic!("nobody can dial it"),
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn members_behind_one_hub_hear_of_each_other_at_once_and_of_a_farewell() {
    let hub = hub().await;
    let mut ann = behind(&hub, Arc::default()).await;
    let started = Instant::now();
    let mut bob = behind(&hub, Arc::default()).await;
    let (ann_id, bob_id) = (ann.id(), bob.id());
    assert_eq!(ann.wait("bob", heard_of(bob_id)).await, Role::Node);
    assert_eq!(bob.wait("ann", heard_of(ann_id)).await, Role::Node);
    assert!(started.elapsed() < Duration::from_secs(8), "{started:?}");
    bob.network.handle.shutdown().await;
    ann.wait("bob's farewell", unheard(bob_id)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_lost_its_last_connection_hears_nobody() {
    let hub = hub().await;
    let mut ann = behind(&hub, Arc::default()).await;
    let bob = behind(&hub, Arc::default()).await;
    let bob_id = bob.id();
    ann.wait("bob", heard_of(bob_id)).await;
    hub.network.handle.shutdown().await;
    ann.wait("silence", unheard(bob_id)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_banned_is_not_heard_of_through_others_any_more() {
    let hub = hub().await;
    let mut ann = behind(&hub, Arc::default()).await;
    let bob = behind(&hub, Arc::default()).await;
    let bob_id = bob.id();
    ann.wait("bob", heard_of(bob_id)).await;
    let (handle, started) = (ann.network.handle.clone(), Instant::now());
    handle.ban(bob_id, PATIENCE, "it lies".into()).await;
    ann.wait("bob's end", unheard(bob_id)).await;
    // One message of Bob counts for 35 seconds.
    assert!(started.elapsed() < Duration::from_secs(15), "{started:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_connected_is_not_heard_of_through_others() {
    let hub = hub().await;
    let mut config = config();
    config.peers = vec![hub.address()];
    let mut public = Node::start(config).await;
    let public_id = public.id();
    public.peer_up(hub.id()).await;
    let mut ann = Node::with(
        outbound(&[&hub, &public]),
        Identity::generate(),
        Arc::default(),
    )
    .await;
    let pick = |event: &Event| match event {
        Event::PeerUp { node, .. } if *node == public_id => Some(()),
        _ => None,
    };
    ann.wait("the public node", pick).await;
    let mut bob = behind(&hub, Arc::default()).await;
    let ann_id = ann.id();
    bob.wait("ann", heard_of(ann_id)).await;
    while let Ok(event) = ann.network.events.try_recv() {
        let is_double = matches!(event, Event::Heard { node, .. } if node == public_id);
        assert!(!is_double, "told twice");
    }
}

const SEGMENT: usize = SEGMENT_BYTES as usize;

/// Says in an advert that a node holds this blob.
async fn announce(node: &Node, blob: BlobRef) {
    let offer = PoolOffer {
        kind: "head".into(),
        lineage: blob.id,
        blob: Some(blob),
        score: 0.5,
    };
    let handle = &node.network.handle;
    handle.publish(Round(1), Body::Pool(offer)).await.unwrap();
}

async fn hears_advert(node: &mut Node) {
    node.wait("an advert", |event| {
        matches!(event, Event::Advert { .. }).then_some(())
    })
    .await;
}

/// A hub, and two members that only dial it: the first holds a blob, and both others know that.
async fn owner_and_reader(bytes: &[u8]) -> (Node, Node, Node, BlobRef) {
    let mut hub = hub().await;
    let ann = behind(&hub, MemoryStore::with(bytes)).await;
    let mut bob = behind(&hub, Arc::default()).await;
    let blob = BlobRef::of(bytes);
    announce(&ann, blob).await;
    hears_advert(&mut hub).await;
    hears_advert(&mut bob).await;
    (hub, ann, bob, blob)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blob_comes_through_the_hub_when_its_owner_cannot_be_dialed() {
    let bytes = noise(3 * SEGMENT + 7, 5);
    let (hub, ann, bob, blob) = owner_and_reader(&bytes).await;
    let started = Instant::now();
    let fetched = bob.network.handle.fetch(blob, vec![ann.id()], PATIENCE);
    let fetched = fetched.await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(5), "{started:?}");
    assert_eq!(bob.store.bytes(&blob.id).as_deref(), Some(&bytes));
    assert_eq!(fetched.from, [hub.id()]);
    assert_eq!(hub.store.bytes(&blob.id).as_deref(), Some(&bytes));
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_fetches_for_others_what_no_advert_names_in_this_size() {
    let bytes = noise(1000, 6);
    let (hub, ann, bob, blob) = owner_and_reader(&bytes).await;
    let secret = ann.store.put(&noise(1000, 12));
    let larger = BlobRef {
        size: blob.size + 1,
        ..blob
    };
    for refused in [secret, larger] {
        let soon = Duration::from_secs(3);
        let fetched = bob.network.handle.fetch(refused, vec![ann.id()], soon);
        assert!(matches!(fetched.await, Err(FetchError::Deadline { .. })));
        assert!(hub.store.bytes(&refused.id).is_none());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_is_connected_with_both_is_found_when_the_hub_is_not() {
    let bytes = noise(SEGMENT + 1, 8);
    let (hub, mut middle) = (hub().await, Node::start(config()).await);
    let store = MemoryStore::with(&bytes);
    let mut ann = Node::with(outbound(&[&middle]), Identity::generate(), store).await;
    ann.peer_up(middle.id()).await;
    // The hub has no address of the owner, and the reader has both others.
    let peers = outbound(&[&hub, &middle]);
    let mut bob = Node::with(peers, Identity::generate(), Arc::default()).await;
    bob.peer_up(hub.id()).await;
    let blob = BlobRef::of(&bytes);
    announce(&ann, blob).await;
    hears_advert(&mut middle).await;
    hears_advert(&mut bob).await;
    let fetched = bob.network.handle.fetch(blob, vec![ann.id()], PATIENCE);
    assert_eq!(fetched.await.unwrap().from, [middle.id()]);
    assert!(hub.store.bytes(&blob.id).is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn one_transfer_to_the_hub_serves_all_who_ask() {
    let bytes = noise(2 * SEGMENT, 9);
    let (hub, ann, bob, blob) = owner_and_reader(&bytes).await;
    let eve = behind(&hub, Arc::default()).await;
    let from = vec![ann.id()];
    let (of_bob, of_eve) = (&bob.network.handle, &eve.network.handle);
    let both = tokio::join!(
        of_bob.fetch(blob, from.clone(), PATIENCE),
        of_eve.fetch(blob, from, PATIENCE)
    );
    assert_eq!(
        (both.0.unwrap().from, both.1.unwrap().from),
        (vec![hub.id()], vec![hub.id()])
    );
    assert_eq!(ann.store.n_read(), 2, "the owner sends each segment once");
}

/// Waits until a peer is connected, and says how.
async fn route_to(node: &Node, peer: NodeId) -> (Route, Option<NodeId>) {
    let look = async {
        loop {
            let infos = node.network.handle.peers().await;
            if let Some(info) = infos.into_iter().find(|info| info.node == peer) {
                return (info.route, info.relay);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, look).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn members_that_only_dial_meet_through_a_relay() {
    let mut relay = config();
    relay.role = Role::Aggregator;
    relay.relay = true;
    let relay = Node::start(relay).await;
    let bytes = noise(SEGMENT + 5, 21);
    let store = MemoryStore::with(&bytes);
    let ann = Node::with(outbound(&[&relay]), Identity::generate(), store).await;
    let bob = Node::with(outbound(&[&relay]), Identity::generate(), Arc::default()).await;
    let through = (Route::Relay, Some(relay.id()));
    assert_eq!(route_to(&bob, ann.id()).await, through);
    assert_eq!(route_to(&ann, bob.id()).await, through);
    assert_eq!(route_to(&ann, relay.id()).await, (Route::Tcp, None));
    // More than libp2p's relays carry by default, and no advert is needed: the owner itself is asked.
    let blob = BlobRef::of(&bytes);
    let fetched = bob.network.handle.fetch(blob, vec![ann.id()], PATIENCE);
    assert_eq!(fetched.await.unwrap().from, [ann.id()]);
    assert!(relay.store.bytes(&blob.id).is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_said_why_a_member_is_not_connected() {
    let hub = hub().await;
    let mut ann = behind(&hub, Arc::default()).await;
    let bob = behind(&hub, Arc::default()).await;
    ann.wait("bob", heard_of(bob.id())).await;
    let absent = ann.network.handle.absent().await;
    assert_eq!(absent.len(), 1, "{absent:?}");
    assert_eq!((absent[0].node, absent[0].route), (bob.id(), Route::Others));
    assert_eq!(absent[0].why, "it has no address that others can dial");
}
