//! How packed blobs travel: the same bytes arrive, fewer are on their way, and every node chooses for itself.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::{MemoryStore, Node, PATIENCE, config, noise};
use fednode_core::{BlobId, BlobRef, SEGMENT_BYTES};
use fednode_net::{Compression, Event, Fetched, Identity, Packing, Width};

const SEG: usize = SEGMENT_BYTES as usize;

/// Returns numbers of which every hundredth is a little different in the second version.
fn versions(len: usize) -> (Vec<u8>, Vec<u8>) {
    let old = noise(len, 31);
    let mut new = old.clone();
    new.chunks_exact_mut(4)
        .step_by(100)
        .for_each(|number| number[0] ^= 0x15);
    (old, new)
}

/// Returns numbers whose upper halves repeat, as those of a model do.
fn alike(len: usize) -> Vec<u8> {
    noise(len, 37)
        .as_chunks::<4>()
        .0
        .iter()
        .flat_map(|[a, b, ..]| [*a, *b, 7, 9])
        .collect()
}

fn against(base: BlobRef) -> Packing {
    Packing {
        width: Width::Four,
        base: Some(base.id),
    }
}

/// Starts a node that holds these blobs and asks for packed ones.
async fn member(peers: &[&Node], blobs: &[&[u8]]) -> Node {
    let store = MemoryStore::default();
    for bytes in blobs {
        store.put(bytes);
    }
    let mut config = config();
    config.compression = Compression::Zstd;
    config.peers = peers.iter().map(|peer| peer.address()).collect();
    let mut node = Node::with(config, Identity::generate(), Arc::new(store)).await;
    let mut missing: Vec<_> = peers.iter().map(|peer| peer.id()).collect();
    while !missing.is_empty() {
        let up = node.wait("providers", |event| match event {
            Event::PeerUp { node, .. } => Some(*node),
            _ => None,
        });
        let up = up.await;
        missing.retain(|peer| *peer != up);
    }
    node
}

async fn fetch(node: &Node, blob: BlobRef, from: &Node, packing: Packing) -> Fetched {
    let fetched = node
        .network
        .handle
        .fetch_packed(blob, vec![from.id()], PATIENCE, packing)
        .await
        .unwrap();
    assert_eq!(
        node.store.bytes(&blob.id),
        from.store.bytes(&blob.id),
        "to the bit"
    );
    fetched
}

fn received(fetched: &Fetched) -> u64 {
    fetched.bytes_received.values().sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_version_travels_as_its_difference_to_the_last() {
    let (old, new) = versions(3 * SEG + 4321);
    let (base, blob) = (BlobRef::of(&old), BlobRef::of(&new));
    let ann = member(&[], &[&old, &new]).await;
    let bob = member(&[&ann], &[&old]).await;
    let fetched = fetch(&bob, blob, &ann, against(base)).await;
    assert!(
        received(&fetched) < blob.size / 20,
        "{} of {} bytes",
        received(&fetched),
        blob.size
    );
    // What is counted is what was on its way, on both sides.
    let (sent, came) = (ann.network.handle.traffic(), bob.network.handle.traffic());
    assert_eq!(sent.blob_sent_to_nodes, received(&fetched));
    assert_eq!(came.blob_received_from_nodes, received(&fetched));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_common_base_a_blob_arrives_all_the_same() {
    let (old, new) = versions(2 * SEG + 17);
    let alike = alike(2 * SEG + 16);
    let (base, blob) = (BlobRef::of(&old), BlobRef::of(&alike));
    let ann = member(&[], &[&alike]).await;
    // The provider has no base; nobody has one; the base is shorter; it is nothing like the blob; it is too much like it.
    for held in [
        old.as_slice(),
        &[],
        &old[..SEG / 2],
        &old[..SEG],
        &alike[..SEG],
    ] {
        let bob = member(&[&ann], &[held]).await;
        let base = if held.is_empty() {
            base
        } else {
            BlobRef::of(held)
        };
        if held.len() <= SEG {
            ann.store.put(held);
        }
        let fetched = fetch(&bob, blob, &ann, against(base)).await;
        assert!(
            received(&fetched) < blob.size * 6 / 10,
            "{} of {} bytes",
            received(&fetched),
            blob.size
        );
    }
    // Noise is sent as it is.
    let ann = member(&[], &[&new]).await;
    let bob = member(&[&ann], &[]).await;
    let fetched = fetch(
        &bob,
        BlobRef::of(&new),
        &ann,
        Packing {
            width: Width::Two,
            base: None,
        },
    )
    .await;
    assert_eq!(received(&fetched), new.len() as u64 + 3 * 32);
}

#[tokio::test(flavor = "multi_thread")]
async fn blobs_of_all_sizes_arrive_intact() {
    for size in [0, 1, 2, 3, 5, 1000, SEG - 1, SEG, SEG + 1] {
        let (old, new) = versions(size);
        let ann = member(&[], &[&old, &new]).await;
        let bob = member(&[&ann], &[&old]).await;
        for width in [Width::Two, Width::Four] {
            let packing = Packing {
                width,
                base: Some(BlobId::of(&old)),
            };
            fetch(&bob, BlobRef::of(&new), &ann, packing).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_does_not_want_it_gets_bytes_as_they_are() {
    let (old, new) = versions(SEG);
    let ann = member(&[], &[&old, &new]).await;
    let mut bob = Node::knowing(&[&ann], MemoryStore::with(&old)).await;
    bob.peer_up(ann.id()).await;
    let fetched = fetch(&bob, BlobRef::of(&new), &ann, against(BlobRef::of(&old))).await;
    assert_eq!(received(&fetched), new.len() as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn peer_that_packs_wrong_bytes_is_struck() {
    let bytes = alike(4 * SEG);
    let blob = BlobRef::of(&bytes);
    let ann = member(&[], &[&bytes]).await;
    let eve = member(&[], &[&bytes]).await;
    eve.store.corrupt(0..4);
    let mut bob = member(&[&ann, &eve], &[]).await;
    let providers = vec![ann.id(), eve.id()];
    let packing = Packing {
        width: Width::Four,
        base: None,
    };
    let fetched = bob
        .network
        .handle
        .fetch_packed(blob, providers, PATIENCE, packing)
        .await
        .unwrap();
    assert_eq!(*bob.store.bytes(&blob.id).unwrap(), bytes);
    assert!(
        received(&fetched) < blob.size,
        "all of it came packed, what was wrong too: {fetched:?}"
    );
    assert_eq!(fetched.from, [ann.id()], "nothing of the liar was kept");
    let struck = bob.wait("the strike", |event| match event {
        Event::Struck { node, reason } => Some((*node, reason.clone())),
        _ => None,
    });
    let (node, reason) = struck.await;
    assert_eq!(node, eve.id());
    assert!(reason.contains("corrupt"), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn unreadable_base_costs_bytes_only() {
    let (old, new) = versions(2 * SEG);
    let (base, blob) = (BlobRef::of(&old), BlobRef::of(&new));
    let ann = member(&[], &[&old, &new]).await;
    let mut bob = member(&[&ann], &[&old]).await;
    bob.store.fail_after(0);
    let fetched = fetch(&bob, blob, &ann, against(base)).await;
    assert!(
        received(&fetched) > blob.size,
        "{} bytes",
        received(&fetched)
    );
    // What comes next is heard after any strike would have been.
    bob.network
        .handle
        .strike(ann.id(), "the first".to_owned())
        .await;
    let reason = bob.wait("a strike", |event| match event {
        Event::Struck { reason, .. } => Some(reason.clone()),
        _ => None,
    });
    assert_eq!(reason.await, "the first", "the provider did nothing wrong");
}
