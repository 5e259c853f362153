//! Tests with an aggregator that promises to fetch a blob for others and never does.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fednode_core::{BlobRef, Body, NodeId, PoolOffer, Round};
use futures::{AsyncWriteExt, StreamExt};
use libp2p::StreamProtocol;
use tokio::time::timeout;

use crate::codec;
use crate::tests::hostile::{Script, Small, attack, config};
use crate::wire::{Answer, BLOB_PROTOCOL, BlobAnswer, BlobAsk, MAX_BLOB_HEADER, Want};
use crate::{Event, Identity, Network, start};

const PATIENCE: Duration = Duration::from_secs(15);
/// More than the turn of one peer, and less than the time for which it is believed.
const DEADLINE: Duration = Duration::from_secs(12);

/// Waits until so many peers are connected.
async fn peers_up(network: &mut Network, n: usize) {
    let up = async {
        let mut up = 0;
        while up < n {
            let event = network.events.recv().await;
            up += usize::from(matches!(event, Some(Event::PeerUp { .. })));
        }
    };
    timeout(PATIENCE, up).await.expect("the peers are up");
}

/// Publishes an advert that names a blob, and waits until another node has it.
async fn announce(owner: &Network, blob: BlobRef, to: &mut Network) {
    let offer = PoolOffer {
        kind: "head".into(),
        lineage: blob.id,
        blob: Some(blob),
        score: 0.5,
    };
    let published = owner.handle.publish(Round(1), Body::Pool(offer)).await;
    published.unwrap();
    let heard = async { while !matches!(to.events.recv().await, Some(Event::Advert { .. })) {} };
    timeout(PATIENCE, heard).await.expect("it is heard");
}

/// Answers like a node that fetches, or has, whatever it is asked for. Nothing ever comes. Counts the promises.
async fn promise(
    mut streams: libp2p_stream::IncomingStreams,
    lie: Answer,
    promises: Arc<AtomicUsize>,
) {
    while let Some((_, mut stream)) = streams.next().await {
        let promises = promises.clone();
        tokio::spawn(async move {
            while let Ok((BlobAsk { id, want, .. }, _)) =
                codec::read(&mut stream, MAX_BLOB_HEADER).await
            {
                let is_bring = matches!(want, Want::Bring { .. });
                promises.fetch_add(usize::from(is_bring), Ordering::Relaxed);
                let outcome = if is_bring { lie } else { Answer::NotHeld };
                let answer = BlobAnswer { id, outcome };
                let sent = codec::write(&mut stream, &answer, MAX_BLOB_HEADER).await;
                if sent.is_err() || stream.flush().await.is_err() {
                    return;
                }
            }
        });
    }
}

/// Fetches a blob whose owner only an honest member meets, beside an aggregator that lies.
async fn fetch_past(lie: Answer) {
    let bytes = b"far away".repeat(500);
    let blob = BlobRef::of(&bytes);
    let (eve, honest) = (Identity::generate(), Identity::generate());
    let allowed: [NodeId; 2] = [eve.node_id(), honest.node_id()];
    let honest = start(config(), honest, Arc::<Small>::default()).await;
    let mut honest = honest.unwrap();
    let address = honest.handle.listeners().remove(0);
    let mut owner = config();
    (owner.listen, owner.peers) = (Vec::new(), vec![address.clone()]);
    let store = Arc::new(Small::with(&bytes));
    let owner = start(owner, Identity::generate(), store).await.unwrap();
    announce(&owner, blob, &mut honest).await;
    // The list keeps the owner away from the reader.
    let mut reader = config();
    (reader.allow, reader.peers) = (Some(allowed.into()), vec![address]);
    let reader = start(reader, Identity::generate(), Arc::<Small>::default()).await;
    let mut reader = reader.unwrap();
    let mut hostile = attack(&reader, &eve, Script::aggregator());
    let streams = hostile.control.accept(StreamProtocol::new(BLOB_PROTOCOL));
    let promises: Arc<AtomicUsize> = Arc::default();
    let lying = tokio::spawn(promise(streams.unwrap(), lie, promises.clone()));
    peers_up(&mut reader, 2).await;
    let providers = vec![owner.handle.node_id()];
    let fetched = reader.handle.fetch(blob, providers, DEADLINE).await;
    let fetched = fetched.expect("the honest member is asked too");
    assert_eq!(fetched.from, [honest.handle.node_id()]);
    let promised = promises.load(Ordering::Relaxed);
    assert!(promised > 0, "the aggregator is asked first");
    lying.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_says_later_for_ever_keeps_nobody_else_from_fetching() {
    fetch_past(Answer::Later).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_says_that_it_has_what_it_has_not_is_asked_last() {
    fetch_past(Answer::Bytes(0)).await;
}
