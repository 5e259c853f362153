//! How adverts spread: gossip to all, sync to those who missed them, memory across restarts, limits.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Node, config, noise};
use fednode_core::{
    Advert, Body, InlineProxies, Local, PoolOffer, ProxyOffer, Round, Sequence, SignedAdvert,
    Withdraw,
};
use fednode_net::{Event, Identity, PublishError, verify};

fn pool(n: u8) -> Body {
    let blob = fednode_core::BlobRef::of(&[n]);
    Body::Pool(PoolOffer {
        kind: "head".into(),
        lineage: blob.id,
        blob: Some(blob),
        score: 0.5,
    })
}

async fn advert(node: &mut Node) -> (SignedAdvert, Advert) {
    let pick = |event: &Event| match event {
        Event::Advert { signed, advert } => Some((signed.clone(), advert.clone())),
        _ => None,
    };
    node.wait("an advert", pick).await
}

#[tokio::test(flavor = "multi_thread")]
async fn adverts_reach_all_of_four_nodes_that_know_one_member() {
    let first = Node::start(config()).await;
    let mut nodes = vec![first];
    for _ in 0..3 {
        let node = Node::knowing(&[&nodes[0]], Arc::default()).await;
        nodes.push(node);
    }
    let (said, signed) = nodes[3]
        .network
        .handle
        .publish(Round(1), pool(1))
        .await
        .unwrap();
    assert_eq!(
        (said.author, said.sequence),
        (
            nodes[3].id(),
            Sequence {
                incarnation: 1,
                counter: 1
            }
        )
    );
    for node in &mut nodes[..3] {
        assert_eq!(advert(node).await, (signed.clone(), said.clone()));
    }
    let (said, _) = nodes[0]
        .network
        .handle
        .publish(Round(1), Body::Leave)
        .await
        .unwrap();
    for node in &mut nodes[1..] {
        assert_eq!(advert(node).await.1, said);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_joiner_hears_what_was_said_before_once() {
    let mut ann = Node::start(config()).await;
    let bob = Node::knowing(&[&ann], Arc::default()).await;
    ann.peer_up(bob.id()).await;
    for n in 0..5 {
        ann.network.handle.publish(Round(1), pool(n)).await.unwrap();
        bob.network.handle.publish(Round(1), pool(n)).await.unwrap();
    }
    // Ann must have heard Bob's before he goes.
    for _ in 0..5 {
        advert(&mut ann).await;
    }
    let bob_id = bob.id();
    bob.network.handle.shutdown().await;
    let mut cat = Node::knowing(&[&ann], Arc::default()).await;
    let mut heard = Vec::new();
    let ann_id = ann.id();
    cat.wait("sync", |event| match event {
        Event::Advert { advert, .. } => {
            heard.push((advert.author, advert.sequence.counter));
            None
        }
        Event::Synced { node } => (*node == ann_id).then_some(()),
        _ => None,
    })
    .await;
    heard.sort();
    let mut expected: Vec<_> = [ann_id, bob_id]
        .into_iter()
        .flat_map(|node| (1..=5).map(move |n| (node, n)))
        .collect();
    expected.sort();
    assert_eq!(heard, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn sync_asks_until_all_adverts_are_received() {
    let ann = Node::start(config()).await;
    // 40 adverts of 40 KB are more than one reply holds; the book keeps 16 per author, so three authors say them.
    let mut known = Vec::new();
    for _ in 0..3 {
        let node = Node::start(config()).await;
        for n in 0..14_u32 {
            let blobs = (0..512)
                .map(|i: u32| fednode_core::BlobId::of(&(n << 16 | i).to_le_bytes()))
                .collect();
            let withdraw = Body::Withdraw(Withdraw { blobs });
            known.push(
                node.network
                    .handle
                    .publish(Round(n % 10), withdraw)
                    .await
                    .unwrap()
                    .1,
            );
        }
    }
    let bytes: usize = known.iter().map(|signed| signed.payload.len()).sum();
    let mut bob_config = config();
    bob_config.known.clone_from(&known);
    bob_config.peers = vec![ann.address()];
    let bob = Node::start(bob_config).await;
    let mut ann = ann;
    let mut heard = 0;
    let bob_id = bob.id();
    ann.wait("sync", |event| match event {
        Event::Advert { .. } => {
            heard += 1;
            None
        }
        Event::Synced { node } if *node == bob_id => Some(()),
        _ => None,
    })
    .await;
    assert_eq!(heard, known.len());
    assert!(bytes > 700_000, "{bytes}");
    assert!(ann.network.handle.traffic().control_received as usize > bytes);
}

#[tokio::test(flavor = "multi_thread")]
async fn adverts_of_an_earlier_life_are_not_delivered_again() {
    let mut ann = Node::start(config()).await;
    let (said, signed) = ann.network.handle.publish(Round(1), pool(1)).await.unwrap();
    let mut bob_config = config();
    bob_config.heard = vec![(said.author, said.sequence)];
    bob_config.peers = vec![ann.address()];
    let mut bob = Node::start(bob_config).await;
    let mut cat_config = config();
    cat_config.known = vec![signed];
    cat_config.peers = vec![ann.address()];
    let mut cat = Node::start(cat_config).await;
    for node in [&mut bob, &mut cat] {
        let ann_id = ann.id();
        node.wait("sync", |event| match event {
            Event::Advert { advert, .. } => panic!("heard again: {advert:?}"),
            Event::Synced { node } => (*node == ann_id).then_some(()),
            _ => None,
        })
        .await;
    }
    ann.peer_up(bob.id()).await;
    let (said, _) = ann.network.handle.publish(Round(2), pool(2)).await.unwrap();
    assert_eq!(advert(&mut bob).await.1, said);
    assert_eq!(advert(&mut cat).await.1, said);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_key_started_later_supersedes() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    let one = Identity::create(&key).unwrap();
    let mut old_config = config();
    old_config.incarnation = 4;
    let mut old = Node::with(old_config, one, Arc::default()).await;
    // The same key cannot connect to itself; a third node carries the word.
    let between = Node::start(config()).await;
    let mut new_config = config();
    new_config.incarnation = 5;
    new_config.peers = vec![between.address()];
    let new = Node::with(new_config, Identity::load(&key).unwrap(), Arc::default()).await;
    new.network.handle.publish(Round(1), pool(1)).await.unwrap();
    let mut between = between;
    advert(&mut between).await;
    new.network.handle.shutdown().await;
    old.network.handle.dial(between.address()).await;
    old.wait("the end", |event| {
        matches!(event, Event::Superseded).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn advert_that_peers_would_refuse_is_not_published() {
    let ann = Node::start(config()).await;
    let handle = &ann.network.handle;
    let error = handle.publish(Round(999), Body::Leave).await.unwrap_err();
    assert_eq!(error.to_string(), "advert with a round beyond the last");
    for _ in 0..8 {
        handle.publish(Round(3), pool(1)).await.unwrap();
    }
    assert_eq!(
        handle.publish(Round(3), pool(1)).await.unwrap_err(),
        PublishError::TooMany(Round(3))
    );
    let (said, signed) = handle.publish(Round(4), pool(1)).await.unwrap();
    assert_eq!(said.sequence.counter, 9, "what is refused takes no number");
    assert_eq!(verify(&signed).unwrap(), said);
}

#[tokio::test(flavor = "multi_thread")]
async fn gossip_bytes_are_counted_on_both_sides() {
    let mut ann = Node::start(config()).await;
    let mut bob = Node::knowing(&[&ann], Arc::default()).await;
    ann.synced(bob.id()).await;
    // The first heartbeat completes the mesh; what is said before may travel by sync.
    let mut n = 0;
    let (sent, received) = loop {
        let (_, signed) = ann
            .network
            .handle
            .publish(Round(n % 10), pool(1))
            .await
            .unwrap();
        advert(&mut bob).await;
        let (sent, received) = (ann.network.handle.traffic(), bob.network.handle.traffic());
        if received.gossip_received >= signed.payload.len() as u64 {
            break (sent, received);
        }
        n += 1;
        assert!(n < 60, "gossip never flowed: {sent:?} {received:?}");
    };
    assert!(
        sent.gossip_sent >= received.gossip_received,
        "{sent:?} {received:?}"
    );
    assert!(sent.wire_sent > sent.gossip_sent + sent.control_sent);
    assert!(received.control_sent > 0 && received.wire_received > received.control_received);
}

/// Everybody hears everything from its author; who forwarded it all the same would multiply the bytes by almost four.
#[tokio::test(flavor = "multi_thread")]
async fn in_a_full_mesh_adverts_are_hardly_ever_received_twice() {
    let mut nodes = vec![Node::start(config()).await];
    for _ in 0..4 {
        let node = Node::knowing(&[&nodes[0]], Arc::default()).await;
        nodes.push(node);
    }
    // The mesh grows with the heartbeats, of which the first come a while after the first adverts; until then some are
    // forwarded, and some come by sync, which does not count here.
    let mut multiples: Vec<f64> = Vec::new();
    while !multiples
        .last()
        .is_some_and(|multiple| (0.95..1.2).contains(multiple))
    {
        assert!(
            multiples.len() < 10,
            "{multiples:?} times the bytes that are needed"
        );
        multiples.push(rounds_of_five(&mut nodes, multiples.len() as u64).await);
    }
}

/// Seven rounds in which everybody says 8 KiB: the bytes received over those needed.
async fn rounds_of_five(nodes: &mut [Node], turn: u64) -> f64 {
    let received = |nodes: &[Node]| -> u64 {
        nodes
            .iter()
            .map(|n| n.network.handle.traffic().gossip_received)
            .sum()
    };
    let (before, mut needed) = (received(nodes), 0);
    for round in 1..=7 {
        for node in nodes.iter() {
            let proxies = Some(ProxyOffer::Inline(InlineProxies::new(noise(
                8192,
                10 * turn + round,
            ))));
            let local = Local {
                proxies,
                ..Local::new(fednode_core::BlobId::of(b""), 1)
            };
            let (_, signed) = node
                .network
                .handle
                .publish(Round(turn as u32), Body::Local(local))
                .await
                .unwrap();
            needed += 4 * signed.payload.len() as u64;
        }
        for node in nodes.iter_mut() {
            for _ in 0..4 {
                advert(node).await;
            }
        }
    }
    // Nothing more should come, and what should not come can only be waited for.
    tokio::time::sleep(Duration::from_millis(500)).await;
    (received(nodes) - before) as f64 / needed as f64
}

/// Two adverts that an author signed under one number, each told to others.
async fn two_under_one_number() -> [SignedAdvert; 2] {
    let key = tempfile::tempdir().unwrap();
    let mut said = Vec::new();
    for n in [1, 2] {
        let identity = Identity::load_or_create(&key.path().join("key")).unwrap();
        let liar = Node::with(config(), identity, Arc::default()).await;
        let (_, signed) = liar
            .network
            .handle
            .publish(Round(1), pool(n))
            .await
            .unwrap();
        liar.network.handle.shutdown().await;
        said.push(signed);
    }
    said.try_into().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn who_signs_two_adverts_under_one_number_is_found_out_by_whoever_asks_for_the_other() {
    let [first, second] = two_under_one_number().await;
    let author = verify(&first).unwrap().author;
    assert_eq!(verify(&second).unwrap().author, author);
    let knowing = |signed: &SignedAdvert| {
        let mut config = config();
        config.known = vec![signed.clone()];
        config
    };
    let ann = Node::start(knowing(&first)).await;
    let mut config = knowing(&second);
    config.peers = vec![ann.address()];
    let mut bob = Node::start(config).await;
    bob.peer_up(ann.id()).await;
    // Ann names what she heard, in a closed round say. Bob heard another advert under that number.
    let wanted = fednode_net::Wanted {
        advert: first.id(),
        author,
        named_by: ann.id(),
    };
    bob.network.handle.ask(vec![wanted]).await;
    let (mut accused, mut came) = (None, None);
    bob.wait("the proof and the advert", |event| {
        match event {
            Event::Equivocated { node } => accused = Some(*node),
            Event::Advert { signed, .. } => came = Some(signed.clone()),
            _ => {}
        }
        (accused.is_some() && came.is_some()).then_some(())
    })
    .await;
    assert_eq!((accused, came), (Some(author), Some(first)));
    // Whoever is new hears of it, too.
    let mut cat = Node::knowing(&[&bob], Arc::default()).await;
    let accused = cat.wait("the proof", |event| match event {
        Event::Equivocated { node } => Some(*node),
        _ => None,
    });
    assert_eq!(accused.await, author);
}

/// A node that was killed right after it said something, its next life, and who heard it. The two are not connected yet.
async fn killed() -> (Node, Node, SignedAdvert) {
    let key = tempfile::tempdir().unwrap();
    let identity = || Identity::load_or_create(&key.path().join("key")).unwrap();
    let mut ann = Node::start(config()).await;
    let (mut first, mut second) = (config(), config());
    (first.incarnation, first.peers) = (1, vec![ann.address()]);
    second.incarnation = 2;
    let first = Node::with(first, identity(), Arc::default()).await;
    let said = first.network.handle.publish(Round(1), pool(1)).await;
    let (_, said) = said.unwrap();
    ann.wait("what Bob says", |event| match event {
        Event::Advert { signed, .. } if *signed == said => Some(()),
        _ => None,
    })
    .await;
    first.network.handle.shutdown().await;
    let again = Node::with(second, identity(), Arc::default()).await;
    (ann, again, said)
}

async fn came_back(again: &mut Node) -> SignedAdvert {
    let came = again.wait("its own advert", |event| match event {
        Event::Advert { signed, .. } => Some(signed.clone()),
        _ => None,
    });
    came.await
}

/// A folder that was restored from a backup has forgotten what the node said since. Others go on from it.
#[tokio::test(flavor = "multi_thread")]
async fn a_restored_node_hears_what_it_has_forgotten() {
    let (ann, mut again, said) = killed().await;
    again.network.handle.dial(ann.address()).await;
    assert_eq!(came_back(&mut again).await, said);
}

/// A process may be killed between saying something and writing that down. If a closed round counts it, whoever said it must get
/// it back to follow that round.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_gets_back_what_it_said_before_it_was_killed() {
    let (ann, mut again, said) = killed().await;
    // From now on what it said before is old, and comes only if it is asked for.
    let handle = again.network.handle.clone();
    handle.publish(Round(1), pool(1)).await.unwrap();
    handle.dial(ann.address()).await;
    again.peer_up(ann.id()).await;
    let wanted = fednode_net::Wanted {
        advert: said.id(),
        author: again.id(),
        named_by: ann.id(),
    };
    handle.ask(vec![wanted]).await;
    assert_eq!(came_back(&mut again).await, said);
}
