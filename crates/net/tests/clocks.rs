//! A clock that is set wrong and right again costs nobody a round: what it stamped is said again, and both sides say so.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Node, config};
use fednode_core::{BlobRef, Body, PoolOffer, Role, Round};
use fednode_net::{Event, Identity, WallClock};

const HOUR: Duration = Duration::from_secs(3600);

fn pool(n: u8) -> Body {
    let blob = BlobRef::of(&[n]);
    Body::Pool(PoolOffer {
        kind: "head".into(),
        lineage: blob.id,
        blob: Some(blob),
        score: 0.5,
    })
}

/// Waits until a node's own look at its clock has found the step.
async fn stepped(node: &mut Node) -> (i64, usize) {
    let pick = |event: &Event| match event {
        Event::ClockStepped {
            seconds,
            said_again,
        } => Some((*seconds, *said_again)),
        _ => None,
    };
    node.wait("a step of the clock", pick).await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_wrong_clock_stamped_is_said_again_once_it_is_right() {
    let mut ann = Node::start(config()).await;
    let clock = WallClock::default();
    let mut config = config();
    (config.peers, config.clock) = (vec![ann.address()], clock.clone());
    let mut bob = Node::with(config, Identity::generate(), Arc::default()).await;
    let (ann_id, bob_id) = (ann.id(), bob.id());
    ann.peer_up(bob_id).await;
    bob.synced(ann_id).await;
    clock.set_ahead(HOUR);
    let (seconds, said_again) = stepped(&mut bob).await;
    assert!((3590..=3610).contains(&seconds) && said_again == 0);
    let (wrong, _) = bob.network.handle.publish(Round(1), pool(1)).await.unwrap();
    let pick = |event: &Event| match event {
        Event::ClockAhead { node, seconds } => Some((*node, *seconds)),
        Event::Advert { .. } => panic!("an advert of the future was heard"),
        _ => None,
    };
    let (node, seconds) = ann.wait("word of a wrong clock", pick).await;
    assert!(
        node == bob_id && (3500..=3610).contains(&seconds),
        "{seconds}"
    );
    clock.set_ahead(Duration::ZERO);
    let (seconds, said_again) = stepped(&mut bob).await;
    assert!(
        (-3610..=-3590).contains(&seconds) && said_again == 1,
        "{seconds}"
    );
    let pick = |event: &Event| match event {
        Event::Advert { advert, .. } => Some(advert.clone()),
        _ => None,
    };
    let heard = ann.wait("the advert", pick).await;
    assert_eq!((heard.author, &heard.body), (bob_id, &wrong.body));
    assert!(heard.sequence > wrong.sequence && heard.issued_at < wrong.issued_at);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_was_an_hour_ahead_is_heard_of_once_its_clock_is_right() {
    let mut hub = config();
    hub.role = Role::Aggregator;
    let mut hub = Node::start(hub).await;
    let clock = WallClock::default();
    clock.set_ahead(HOUR);
    let behind = |clock: WallClock| {
        let mut config = config();
        config.listen = Vec::new();
        (config.peers, config.clock) = (vec![hub.address()], clock);
        config
    };
    let (ann, bob) = (behind(WallClock::default()), behind(clock.clone()));
    let mut ann = Node::start(ann).await;
    ann.peer_up(hub.id()).await;
    let mut bob = Node::start(bob).await;
    hub.peer_up(bob.id()).await;
    bob.synced(hub.id()).await;
    // It speaks at most 0.6 seconds after the hub has subscribed.
    tokio::time::sleep(Duration::from_secs(2)).await;
    clock.set_ahead(Duration::ZERO);
    stepped(&mut bob).await;
    let bob_id = bob.id();
    ann.wait("word of Bob", |event| {
        matches!(event, Event::Heard { node, .. } if *node == bob_id).then_some(())
    })
    .await;
}
