//! How two members meet that stand behind routers: a hub and members for `scripts/netlab nat`.
//!
//! ```text
//! meet hub ADDRESS                     an aggregator that relays; says where it is, and ends with its input
//! meet member SECONDS LISTEN HUB…      offers a blob, fetches that of another member, and says how and when
//! ```
//!
//! `FEDNODE_LOG=libp2p_dcutr=debug,fednode_net=debug` says more on standard error.
//! A member listens at LISTEN (`none`: it only dials; `upnp:ADDRESS`: it asks its router to forward the port). It waits SECONDS for a
//! direct way after the first exchange.
#![allow(clippy::print_stdout, reason = "it is a command")]

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{self, Read};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fednode_core::{
    BlobId, BlobRef, BlobStore, Body, FederationSpec, NodeId, Partial, PoolOffer, Role, Round,
    SEGMENT_BYTES, SegmentList,
};
use fednode_net::{Config, Event, Identity, Network, Route, start};

/// An expert of a small model.
const BLOB_BYTES: usize = 300_000;
const PATIENCE: Duration = Duration::from_secs(120);

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

#[tokio::main]
async fn main() -> Outcome {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_env("FEDNODE_LOG"))
        .with_writer(io::stderr)
        .init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["hub", address] => hub(address).await,
        ["member", seconds, listen, hubs @ ..] if !hubs.is_empty() => {
            member(Duration::from_secs(seconds.parse()?), listen, hubs).await
        }
        _ => Err("usage: meet hub ADDRESS | meet member SECONDS LISTEN HUB…".into()),
    }
}

async fn hub(address: &str) -> Outcome {
    let mut config = Config::new(FederationSpec::default().into(), Role::Aggregator);
    config.listen = vec![address.parse()?];
    config.relay = true;
    let mut network = start(config, Identity::generate(), Arc::<Memory>::default()).await?;
    println!("{}", network.handle.listeners()[0]);
    tokio::spawn(async move { while network.events.recv().await.is_some() {} });
    let waiting = || io::stdin().lock().read_to_end(&mut Vec::new());
    tokio::task::spawn_blocking(waiting).await??;
    Ok(())
}

async fn member(patience: Duration, listen: &str, hubs: &[&str]) -> Outcome {
    let begun = Instant::now();
    let identity = Identity::generate();
    let mut config = Config::new(FederationSpec::default().into(), Role::Node);
    let asked = listen.strip_prefix("upnp:");
    config.upnp = asked.is_some();
    config.listen = if listen == "none" {
        vec![]
    } else {
        vec![asked.unwrap_or(listen).parse()?]
    };
    config.peers = hubs
        .iter()
        .map(|hub| hub.parse())
        .collect::<Result<_, _>>()?;
    let store = Arc::<Memory>::default();
    let mut bytes = vec![0; BLOB_BYTES];
    let mut hasher = blake3::Hasher::new();
    hasher.update(identity.node_id().as_bytes());
    hasher.finalize_xof().fill(&mut bytes);
    let own = store.put(bytes);
    let mut network = start(config, identity, store).await?;
    let offer = PoolOffer {
        kind: "head".into(),
        lineage: own.id,
        blob: Some(own),
        score: 0.0,
    };
    network.handle.publish(Round(1), Body::Pool(offer)).await?;
    let (owner, blob) = tokio::time::timeout(PATIENCE, offered(&mut network)).await??;
    // The queue of events must be read, or nothing new is taken in.
    let mut events = network.events;
    tokio::spawn(async move { while events.recv().await.is_some() {} });
    let fetched = network.handle.fetch(blob, vec![owner], PATIENCE).await?;
    let seconds = begun.elapsed().as_secs_f64();
    let way = if fetched.from.contains(&owner) {
        "its owner"
    } else {
        "the hub"
    };
    let route = settled(&network.handle, owner, patience).await;
    println!(
        "{seconds:.1} {way}, {route}, {:.1}",
        begun.elapsed().as_secs_f64()
    );
    // The other one may still be looking.
    tokio::time::sleep(Duration::from_secs(5)).await;
    network.handle.shutdown().await;
    Ok(())
}

/// Waits for the offer of another member.
async fn offered(network: &mut Network) -> Outcome<(NodeId, BlobRef)> {
    loop {
        let event = network.events.recv().await.ok_or("the network has ended")?;
        if let Event::Advert { advert, .. } = event
            && let Some(blob) = advert.body.blobs().first()
        {
            return Ok((advert.author, *blob));
        }
    }
}

/// Waits for a direct connection, and says what there is in the end.
async fn settled(handle: &fednode_net::Handle, node: NodeId, patience: Duration) -> String {
    let begun = Instant::now();
    loop {
        let peers = handle.peers().await;
        let route = peers
            .iter()
            .find(|peer| peer.node == node)
            .map(|peer| peer.route);
        let is_direct = matches!(route, Some(Route::Tcp | Route::Quic));
        if is_direct || begun.elapsed() > patience {
            return match route {
                Some(Route::Tcp) => "direct tcp".into(),
                Some(Route::Quic) => "direct quic".into(),
                Some(Route::Relay) => "relayed".into(),
                _ => "through others".into(),
            };
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A store in memory.
#[derive(Default)]
struct Memory(Mutex<Blobs>);

#[derive(Default)]
struct Blobs {
    held: BTreeMap<BlobId, Vec<u8>>,
    coming: BTreeMap<BlobId, Vec<u8>>,
}

impl Memory {
    fn put(&self, bytes: Vec<u8>) -> BlobRef {
        let blob = BlobRef::of(&bytes);
        self.blobs().held.insert(blob.id, bytes);
        blob
    }

    fn blobs(&self) -> std::sync::MutexGuard<'_, Blobs> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, id: &BlobId) -> io::Result<Vec<u8>> {
        let blobs = self.blobs();
        blobs
            .held
            .get(id)
            .cloned()
            .ok_or(io::ErrorKind::NotFound.into())
    }
}

fn range(blob: BlobRef, index: u32) -> std::ops::Range<usize> {
    let begin = index as usize * SEGMENT_BYTES as usize;
    begin..begin + blob.segment_len(index) as usize
}

impl BlobStore for Memory {
    fn held(&self, id: &BlobId) -> Option<u64> {
        self.get(id).ok().map(|bytes| bytes.len() as u64)
    }

    fn segment_list(&self, id: &BlobId) -> io::Result<SegmentList> {
        self.get(id).map(|bytes| SegmentList::of(&bytes))
    }

    fn read_segment(&self, id: &BlobId, index: u32) -> io::Result<Vec<u8>> {
        let bytes = self.get(id)?;
        let size = bytes.len() as u64;
        let segment = bytes.get(range(BlobRef { id: *id, size }, index));
        segment
            .map(<[u8]>::to_vec)
            .ok_or(io::ErrorKind::InvalidInput.into())
    }

    fn begin(&self, blob: BlobRef) -> io::Result<Partial> {
        self.blobs()
            .coming
            .insert(blob.id, vec![0; blob.size as usize]);
        let have = vec![false; blob.n_segments() as usize];
        Ok(Partial { list: None, have })
    }

    fn keep_list(&self, _: &SegmentList) -> io::Result<()> {
        Ok(())
    }

    fn write_segment(&self, blob: BlobRef, index: u32, bytes: &[u8]) -> io::Result<()> {
        let mut blobs = self.blobs();
        let coming = blobs
            .coming
            .get_mut(&blob.id)
            .ok_or(io::ErrorKind::NotFound)?;
        coming[range(blob, index)].copy_from_slice(bytes);
        Ok(())
    }

    fn finish(&self, blob: BlobRef) -> io::Result<()> {
        let mut blobs = self.blobs();
        let bytes = blobs
            .coming
            .remove(&blob.id)
            .ok_or(io::ErrorKind::NotFound)?;
        blobs.held.insert(blob.id, bytes);
        Ok(())
    }
}
