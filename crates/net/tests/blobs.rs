//! How blobs travel: verified, from several providers, resumed, shared between callers, never from strangers.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{MemoryStore, Node, PATIENCE, config, noise};
use fednode_core::{BlobRef, Role, SEGMENT_BYTES};
use fednode_net::{Event, FetchError, Packing, Width};

const SEG: usize = SEGMENT_BYTES as usize;

async fn fetcher(providers: &[&Node]) -> Node {
    let mut node = Node::knowing(providers, Arc::default()).await;
    let mut missing: Vec<_> = providers.iter().map(|provider| provider.id()).collect();
    while !missing.is_empty() {
        let up = node.wait("providers", |event| match event {
            Event::PeerUp { node, .. } => Some(*node),
            _ => None,
        });
        let up = up.await;
        missing.retain(|node| *node != up);
    }
    node
}

#[tokio::test(flavor = "multi_thread")]
async fn blobs_of_all_sizes_arrive_intact() {
    let sizes = [0, 1, 1000, SEG - 1, SEG, SEG + 1, 3 * SEG + 7];
    let store = MemoryStore::default();
    let blobs: Vec<BlobRef> = sizes
        .iter()
        .map(|size| store.put(&noise(*size, 7)))
        .collect();
    let ann = Node::with(config(), fednode_net::Identity::generate(), Arc::new(store)).await;
    let bob = fetcher(&[&ann]).await;
    for blob in blobs {
        let fetched = bob
            .network
            .handle
            .fetch(blob, vec![ann.id()], PATIENCE)
            .await
            .unwrap();
        assert_eq!(
            bob.store.bytes(&blob.id),
            ann.store.bytes(&blob.id),
            "{} bytes",
            blob.size
        );
        let list = if blob.n_segments() > 1 {
            32 * u64::from(blob.n_segments())
        } else {
            0
        };
        assert_eq!(
            fetched.bytes_received.values().sum::<u64>(),
            blob.size + list
        );
    }
    let again = bob
        .network
        .handle
        .fetch(BlobRef::of(&noise(SEG, 7)), vec![], PATIENCE)
        .await
        .unwrap();
    assert!(again.from.is_empty(), "what is held is not fetched");
    assert_eq!(
        ann.network.handle.traffic().blob_sent_to_nodes,
        bob.network.handle.traffic().blob_received_from_nodes
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_corrupt_provider_is_struck_and_the_blob_is_intact() {
    let bytes = noise(5 * SEG, 11);
    let (good, bad) = (MemoryStore::with(&bytes), MemoryStore::with(&bytes));
    bad.corrupt(0..5);
    let identity = fednode_net::Identity::generate;
    let ann = Node::with(config(), identity(), good).await;
    let eve = Node::with(config(), identity(), bad).await;
    let mut bob = fetcher(&[&ann, &eve]).await;
    let blob = BlobRef::of(&bytes);
    let fetched = bob
        .network
        .handle
        .fetch(blob, vec![ann.id(), eve.id()], PATIENCE)
        .await
        .unwrap();
    assert_eq!(*bob.store.bytes(&blob.id).unwrap(), bytes);
    assert_eq!(fetched.from, [ann.id()], "nothing of the liar was kept");
    let eve_id = eve.id();
    let reason = bob.wait("the strike", |event| match event {
        Event::Struck { node, reason } => Some((*node, reason.clone())),
        _ => None,
    });
    let (node, reason) = reason.await;
    assert_eq!(node, eve_id);
    assert!(reason.contains("corrupt"), "{reason}");
}

/// A liar announces a blob of others as if it ended after its first segment, and has that fetched.
#[tokio::test(flavor = "multi_thread")]
async fn who_holds_more_than_was_announced_is_not_struck() {
    let bytes = vec![7; 3 * SEG];
    let store = MemoryStore::with(&bytes);
    let ann = Node::with(config(), fednode_net::Identity::generate(), store).await;
    let mut bob = fetcher(&[&ann]).await;
    let packing = Packing {
        width: Width::Four,
        base: None,
    };
    let blob = BlobRef {
        size: SEGMENT_BYTES,
        ..BlobRef::of(&bytes)
    };
    let (handle, patience) = (&bob.network.handle, Duration::from_secs(2));
    let from = || vec![ann.id()];
    let plain = handle.fetch(blob, from(), patience).await;
    let packed = handle.fetch_packed(blob, from(), patience, packing).await;
    assert!(plain.is_err() && packed.is_err());
    while let Ok(event) = bob.network.events.try_recv() {
        assert!(!matches!(event, Event::Struck { .. }), "{event:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn several_providers_share_the_work() {
    let bytes = noise(24 * SEG, 5);
    let (one, two) = (MemoryStore::with(&bytes), MemoryStore::with(&bytes));
    let identity = fednode_net::Identity::generate;
    let ann = Node::with(config(), identity(), one).await;
    let cat = Node::with(config(), identity(), two).await;
    let bob = fetcher(&[&ann, &cat]).await;
    let fetched = bob
        .network
        .handle
        .fetch(BlobRef::of(&bytes), vec![ann.id(), cat.id()], PATIENCE)
        .await
        .unwrap();
    assert_eq!(fetched.from.len(), 2, "{fetched:?}");
    assert!(
        ann.store.n_read() >= 3 && cat.store.n_read() >= 3,
        "{} {}",
        ann.store.n_read(),
        cat.store.n_read()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_fetch_resumes_with_what_lacks() {
    let bytes = noise(6 * SEG + 99, 13);
    let blob = BlobRef::of(&bytes);
    let failing = MemoryStore::with(&bytes);
    failing.fail_after(3);
    let ann = Node::with(config(), fednode_net::Identity::generate(), failing).await;
    let bob = fetcher(&[&ann]).await;
    let error = bob
        .network
        .handle
        .fetch(blob, vec![ann.id()], Duration::from_secs(3))
        .await
        .unwrap_err();
    assert!(
        matches!(
            &error,
            FetchError::Deadline {
                done: 3,
                all: 7,
                ..
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains("does not hold it"), "{error}");
    let store = bob.store.clone();
    bob.network.handle.shutdown().await;
    let before = store.written();
    // A new life with the same store and another provider.
    let cat = Node::with(
        config(),
        fednode_net::Identity::generate(),
        MemoryStore::with(&bytes),
    )
    .await;
    let mut again = Node::knowing(&[&cat], store.clone()).await;
    again.peer_up(cat.id()).await;
    let fetched = again
        .network
        .handle
        .fetch(blob, vec![cat.id()], PATIENCE)
        .await
        .unwrap();
    assert_eq!(*store.bytes(&blob.id).unwrap(), bytes);
    assert_eq!(fetched.resumed_bytes, 3 * SEGMENT_BYTES);
    assert_eq!(
        fetched.bytes_received[&cat.id()],
        blob.size - 3 * SEGMENT_BYTES,
        "neither list nor segments twice"
    );
    let mut all = store.written();
    all.sort_unstable();
    assert_eq!(all, (0..7).collect::<Vec<u32>>(), "first {before:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_share_one_transfer() {
    let bytes = noise(4 * SEG, 17);
    let ann = Node::with(
        config(),
        fednode_net::Identity::generate(),
        MemoryStore::with(&bytes),
    )
    .await;
    let bob = fetcher(&[&ann]).await;
    let blob = BlobRef::of(&bytes);
    let fetches = (0..8).map(|_| {
        let (handle, provider) = (bob.network.handle.clone(), ann.id());
        tokio::spawn(async move { handle.fetch(blob, vec![provider], PATIENCE).await })
    });
    for fetch in fetches.collect::<Vec<_>>() {
        fetch.await.unwrap().unwrap();
    }
    assert_eq!(ann.store.n_read(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn holders_are_found_without_being_named() {
    let bytes = noise(2 * SEG, 19);
    let blob = BlobRef::of(&bytes);
    let mut ann = Node::with(
        config(),
        fednode_net::Identity::generate(),
        MemoryStore::with(&bytes),
    )
    .await;
    // The author is away, and the caller does not know who else holds it; the first one asked may not either.
    let cat = Node::start(config()).await;
    let bob = fetcher(&[&cat, &ann]).await;
    ann.network.handle.announce_held(blob.id).await;
    ann.peer_up(bob.id()).await;
    let nobody = fednode_net::Identity::generate().node_id();
    let fetched = bob
        .network
        .handle
        .fetch(blob, vec![nobody], PATIENCE)
        .await
        .unwrap();
    assert_eq!(fetched.from, [ann.id()]);
    // And the fetcher is a holder itself now, who tells it by sync.
    let dan = fetcher(&[&bob]).await;
    let told = async {
        loop {
            let infos = dan.network.handle.peers().await;
            if infos
                .iter()
                .any(|info| info.node == bob.id() && info.holds == 1)
            {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, told)
        .await
        .expect("holdings are told by sync");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_connects_later_is_used() {
    let bytes = noise(SEG + 5, 23);
    let blob = BlobRef::of(&bytes);
    let bob = Node::start(config()).await;
    let identity = fednode_net::Identity::generate();
    let handle = bob.network.handle.clone();
    let provider = identity.node_id();
    let waiting = tokio::spawn(async move { handle.fetch(blob, vec![provider], PATIENCE).await });
    let mut ann_config = config();
    ann_config.peers = vec![bob.address()];
    let _ann = Node::with(ann_config, identity, MemoryStore::with(&bytes)).await;
    assert_eq!(waiting.await.unwrap().unwrap().from, [provider]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_in_vain_ends_on_time_and_says_for_whom() {
    let cat = Node::start(config()).await;
    let bob = fetcher(&[&cat]).await;
    let started = Instant::now();
    let deadline = Duration::from_millis(400);
    let error = bob
        .network
        .handle
        .fetch(BlobRef::of(b"nowhere"), vec![cat.id()], deadline)
        .await
        .unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(5));
    assert!(
        error
            .to_string()
            .contains(&format!("{} does not hold it", cat.id().short())),
        "{error}"
    );
    let huge = BlobRef {
        size: u64::MAX,
        ..BlobRef::of(b"")
    };
    assert_eq!(
        bob.network.handle.fetch(huge, vec![], deadline).await,
        Err(FetchError::TooLarge(u64::MAX))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_are_counted_by_the_role_of_the_peer() {
    let bytes = noise(1000, 29);
    let mut boot_config = config();
    boot_config.role = Role::Aggregator;
    let boot = Node::with(
        boot_config,
        fednode_net::Identity::generate(),
        MemoryStore::with(&bytes),
    )
    .await;
    let bob = fetcher(&[&boot]).await;
    bob.network
        .handle
        .fetch(BlobRef::of(&bytes), vec![boot.id()], PATIENCE)
        .await
        .unwrap();
    let seen = bob.network.handle.traffic();
    assert_eq!(
        (
            seen.blob_received_from_aggregators,
            seen.blob_received_from_nodes
        ),
        (1000, 0)
    );
    assert_eq!(boot.network.handle.traffic().blob_sent_to_nodes, 1000);
}
