//! How nodes meet: hello, refusals, network keys, allow-lists, dialing, peer exchange, shutdown.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Node, config};
use fednode_core::{FederationSpec, Refusal, Role};
use fednode_net::{Event, Identity, NetworkKey, StartError, start};

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_meet_and_see_each_other_go() {
    let mut ann = Node::start(config()).await;
    let mut bob_config = config();
    bob_config.role = Role::Aggregator;
    bob_config.software = "tests/1".to_owned();
    bob_config.peers = vec![ann.address()];
    let mut bob = Node::start(bob_config).await;
    let bob_id = bob.id();
    let pick = |event: &Event| match event {
        Event::PeerUp { node, role } => Some((*node, *role)),
        _ => None,
    };
    assert_eq!(ann.wait("bob", pick).await, (bob_id, Role::Aggregator));
    assert_eq!(bob.wait("ann", pick).await, (ann.id(), Role::Node));
    let infos = ann.network.handle.peers().await;
    assert_eq!(infos.len(), 1);
    assert_eq!(
        (infos[0].node, infos[0].software.as_str()),
        (bob_id, "tests/1")
    );
    bob.network.handle.shutdown().await;
    ann.wait("bob's going", |event| {
        matches!(event, Event::PeerDown { node } if *node == bob_id).then_some(())
    })
    .await;
    assert!(ann.network.handle.peers().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn another_spec_is_refused_on_both_sides_with_the_first_differing_key() {
    let mut ann = Node::start(config()).await;
    let mut spec = FederationSpec::default();
    spec.training.learning_rate = 0.5;
    let mut bob_config = config();
    bob_config.federation = spec.id();
    bob_config.spec = Arc::new(spec);
    bob_config.peers = vec![ann.address()];
    let mut bob = Node::start(bob_config).await;
    let pick = |event: &Event| match event {
        Event::Refused {
            node,
            refusal: Refusal::Spec { key, ours, theirs },
            ..
        } => Some((*node, key.clone(), ours.clone(), theirs.clone())),
        Event::PeerUp { .. } => panic!("a peer with another spec is up"),
        _ => None,
    };
    let key = || "training.learning_rate".to_owned();
    assert_eq!(
        bob.wait("refusal", pick).await,
        (Some(ann.id()), key(), "0.5".into(), "0.01".into())
    );
    assert_eq!(
        ann.wait("refusal", pick).await,
        (Some(bob.id()), key(), "0.01".into(), "0.5".into())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_network_key_is_named_as_the_likely_cause() {
    let with_key = || {
        let mut config = config();
        config.network_key = Some(NetworkKey::generate());
        config
    };
    let ann = Node::start(with_key()).await;
    for (mut bob_config, words) in [
        (with_key(), "the network keys probably differ"),
        (config(), "this node has none"),
    ] {
        bob_config.peers = vec![ann.address()];
        let mut bob = Node::start(bob_config).await;
        let pick = |event: &Event| match event {
            Event::DialFailed { reason, .. } => Some(reason.clone()),
            _ => None,
        };
        let reason = bob.wait("failure", pick).await;
        assert!(reason.contains(words), "{reason}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_with_the_same_network_key_meet() {
    let key = NetworkKey::generate();
    let mut ann_config = config();
    ann_config.network_key = Some(key.clone());
    let ann = Node::start(ann_config.clone()).await;
    ann_config.peers = vec![ann.address()];
    let mut bob = Node::start(ann_config).await;
    bob.peer_up(ann.id()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_and_wrong_peers_are_told_once_with_what_to_check() {
    let ann = Node::start(config()).await;
    let stranger = Identity::generate().node_id();
    let wrong = ann
        .address()
        .to_string()
        .replace(&ann.id().to_string(), &stranger.to_string());
    let free_port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let mut bob_config = config();
    bob_config.peers = vec![
        wrong.parse().unwrap(),
        format!("/ip4/127.0.0.1/tcp/{free_port}").parse().unwrap(),
    ];
    let mut bob = Node::start(bob_config).await;
    let mut told = Vec::new();
    while told.len() < 2 {
        told.push(
            bob.wait("failures", |event| match event {
                Event::DialFailed {
                    address,
                    reason,
                    attempts,
                } => Some((address.clone(), reason.clone(), *attempts)),
                _ => None,
            })
            .await,
        );
    }
    told.sort_by_key(|(_, _, attempts)| *attempts);
    assert!(told[0].1.contains("another node answers there"), "{told:?}");
    assert!(told[1].1.contains("connection refused"), "{told:?}");
    assert_eq!((told[0].2, told[1].2), (1, 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_starts_later_is_found() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let mut bob_config = config();
    bob_config.peers = vec![format!("/ip4/127.0.0.1/tcp/{port}").parse().unwrap()];
    let mut bob = Node::start(bob_config).await;
    bob.wait("a failure", |event| {
        matches!(event, Event::DialFailed { .. }).then_some(())
    })
    .await;
    let mut ann_config = config();
    ann_config.listen = vec![format!("/ip4/127.0.0.1/tcp/{port}").parse().unwrap()];
    let ann = Node::start(ann_config).await;
    bob.peer_up(ann.id()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_allow_list_gets_in() {
    let (friend, stranger) = (Identity::generate(), Identity::generate());
    let mut ann_config = config();
    ann_config.allow = Some(BTreeSet::from([friend.node_id()]));
    let mut ann = Node::start(ann_config).await;
    let knowing_ann = || {
        let mut config = config();
        config.peers = vec![ann.address()];
        config
    };
    let (refused, welcomed) = (knowing_ann(), knowing_ann());
    let mut out = Node::with(refused, stranger, Arc::default()).await;
    let reason = out.wait("failure", |event| match event {
        Event::DialFailed { reason, .. } => Some(reason.clone()),
        Event::PeerUp { .. } => panic!("a stranger got in"),
        _ => None,
    });
    let reason = reason.await;
    assert!(reason.contains("allow-list"), "{reason}");
    let told = ann.wait("a word of the stranger", |event| match event {
        Event::TurnedAway { node, address } => Some((*node, address.is_some())),
        _ => None,
    });
    assert_eq!(told.await, (out.id(), true));
    let friend_id = friend.node_id();
    let _inside = Node::with(welcomed, friend, Arc::default()).await;
    ann.peer_up(friend_id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn any_member_leads_to_all_others() {
    let first = Node::start(config()).await;
    let mut others = Vec::new();
    for _ in 0..3 {
        others.push(Node::knowing(&[&first], Arc::default()).await);
    }
    let all: BTreeSet<_> = others.iter().map(Node::id).chain([first.id()]).collect();
    for node in &mut others {
        let mut missing = all.clone();
        missing.remove(&node.id());
        while !missing.is_empty() {
            let up = node.wait("everybody", |event| match event {
                Event::PeerUp { node, .. } => Some(*node),
                _ => None,
            });
            missing.remove(&up.await);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_banned_peer_is_gone_and_stays_away() {
    let mut ann = Node::start(config()).await;
    let bob = Node::knowing(&[&ann], Arc::default()).await;
    let bob_id = bob.id();
    ann.peer_up(bob_id).await;
    ann.network
        .handle
        .ban(bob_id, Duration::from_secs(60), "a test".to_owned())
        .await;
    ann.wait("the ban", |event| {
        matches!(event, Event::Banned { node, .. } if *node == bob_id).then_some(())
    })
    .await;
    ann.wait("the end", |event| {
        matches!(event, Event::PeerDown { node } if *node == bob_id).then_some(())
    })
    .await;
    // Bob dials again after a quarter of a second and must fail.
    let mut bob = bob;
    let reason = bob.wait("failure", |event| match event {
        Event::DialFailed { reason, .. } => Some(reason.clone()),
        _ => None,
    });
    let reason = reason.await;
    assert!(reason.contains("banned"), "{reason}");
    assert!(ann.network.handle.peers().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_in_use_is_one_clear_error() {
    let ann = Node::start(config()).await;
    let taken: fednode_net::Multiaddr = ann.address().iter().take(2).collect();
    let mut bob_config = config();
    bob_config.listen = vec![taken.clone()];
    let error = start(
        bob_config,
        Identity::generate(),
        Arc::new(common::MemoryStore::default()),
    )
    .await
    .unwrap_err();
    assert!(matches!(&error, StartError::Listen { address, .. } if *address == taken));
    assert_eq!(
        error.to_string(),
        format!("cannot listen at {taken}: the port is in use: is another node running?")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_takes_no_time_to_speak_of() {
    let mut ann = Node::start(config()).await;
    let bob = Node::knowing(&[&ann], Arc::default()).await;
    ann.peer_up(bob.id()).await;
    let started = Instant::now();
    ann.network.handle.shutdown().await;
    ann.network.task.await.unwrap();
    assert!(
        started.elapsed() < Duration::from_secs(2),
        "{:?}",
        started.elapsed()
    );
    let late = ann
        .network
        .handle
        .publish(fednode_core::Round(1), fednode_core::Body::Leave)
        .await;
    assert_eq!(late.unwrap_err(), fednode_net::PublishError::Closed);
}
