//! Helpers of the network tests: an in-memory store, networks on loopback, and waiting for events with a deadline.
#![allow(dead_code, reason = "each test file uses its share")]
#![allow(clippy::unwrap_used, unreachable_pub, missing_docs)]

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fednode_core::{
    BlobId, BlobRef, BlobStore, FederationSpec, NodeId, Partial, Role, SEGMENT_BYTES, SegmentList,
};
use fednode_net::{Config, Event, Identity, Multiaddr, Network, start};
use tokio::time::timeout;

pub const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Inner {
    complete: BTreeMap<BlobId, Arc<Vec<u8>>>,
    partial: BTreeMap<BlobId, (Vec<u8>, Partial)>,
    /// Segments written, by number.
    written: Vec<u32>,
    /// Segments read, by number.
    read: Vec<u32>,
    corrupt: BTreeSet<u32>,
    /// Reads fail after so many.
    reads_left: Option<usize>,
}

/// A store in memory that can be told to lie.
#[derive(Default)]
pub struct MemoryStore(Mutex<Inner>);

impl MemoryStore {
    pub fn with(bytes: &[u8]) -> Arc<Self> {
        let store = Self::default();
        store.put(bytes);
        Arc::new(store)
    }

    pub fn put(&self, bytes: &[u8]) -> BlobRef {
        let blob = BlobRef::of(bytes);
        self.0
            .lock()
            .unwrap()
            .complete
            .insert(blob.id, Arc::new(bytes.to_vec()));
        blob
    }

    pub fn bytes(&self, id: &BlobId) -> Option<Arc<Vec<u8>>> {
        self.0.lock().unwrap().complete.get(id).cloned()
    }

    /// Serves these segments with one bit flipped.
    pub fn corrupt(&self, segments: impl IntoIterator<Item = u32>) {
        self.0.lock().unwrap().corrupt.extend(segments);
    }

    /// Lets so many segments be read and then fails.
    pub fn fail_after(&self, reads: usize) {
        self.0.lock().unwrap().reads_left = Some(reads);
    }

    pub fn written(&self) -> Vec<u32> {
        self.0.lock().unwrap().written.clone()
    }

    pub fn n_read(&self) -> usize {
        self.0.lock().unwrap().read.len()
    }
}

fn range(blob: BlobRef, index: u32) -> std::ops::Range<usize> {
    let start = index as usize * SEGMENT_BYTES as usize;
    start..start + blob.segment_len(index) as usize
}

impl BlobStore for MemoryStore {
    fn held(&self, id: &BlobId) -> Option<u64> {
        self.0
            .lock()
            .unwrap()
            .complete
            .get(id)
            .map(|bytes| bytes.len() as u64)
    }

    fn segment_list(&self, id: &BlobId) -> io::Result<SegmentList> {
        let bytes = self.bytes(id).ok_or(io::ErrorKind::NotFound)?;
        Ok(SegmentList::of(&bytes))
    }

    fn read_segment(&self, id: &BlobId, index: u32) -> io::Result<Vec<u8>> {
        let bytes = self.bytes(id).ok_or(io::ErrorKind::NotFound)?;
        let blob = BlobRef {
            id: *id,
            size: bytes.len() as u64,
        };
        let mut segment = bytes
            .get(range(blob, index))
            .ok_or(io::ErrorKind::InvalidInput)?
            .to_vec();
        let mut inner = self.0.lock().unwrap();
        if let Some(left) = &mut inner.reads_left {
            *left = left
                .checked_sub(1)
                .ok_or(io::Error::other("told to fail"))?;
        }
        inner.read.push(index);
        if inner.corrupt.contains(&index) {
            segment[0] ^= 1;
        }
        Ok(segment)
    }

    fn begin(&self, blob: BlobRef) -> io::Result<Partial> {
        let mut inner = self.0.lock().unwrap();
        let fresh = || {
            (
                vec![0; blob.size as usize],
                Partial {
                    list: None,
                    have: vec![false; blob.n_segments() as usize],
                },
            )
        };
        Ok(inner.partial.entry(blob.id).or_insert_with(fresh).1.clone())
    }

    fn keep_list(&self, list: &SegmentList) -> io::Result<()> {
        let mut inner = self.0.lock().unwrap();
        inner.partial.get_mut(&list.blob().id).unwrap().1.list = Some(list.values().to_vec());
        Ok(())
    }

    fn write_segment(&self, blob: BlobRef, index: u32, bytes: &[u8]) -> io::Result<()> {
        let mut inner = self.0.lock().unwrap();
        inner.written.push(index);
        let (data, partial) = inner.partial.get_mut(&blob.id).unwrap();
        data[range(blob, index)].copy_from_slice(bytes);
        partial.have[index as usize] = true;
        Ok(())
    }

    fn finish(&self, blob: BlobRef) -> io::Result<()> {
        let mut inner = self.0.lock().unwrap();
        let (data, _) = inner.partial.remove(&blob.id).unwrap();
        assert_eq!(
            BlobId::of(&data),
            blob.id,
            "the fetcher finished a wrong blob"
        );
        inner.complete.insert(blob.id, Arc::new(data));
        Ok(())
    }
}

pub fn config() -> Config {
    let mut config = Config::new(Arc::new(FederationSpec::default()), Role::Node);
    config.listen = vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()];
    config
}

/// A network with its identity's node id and store.
pub struct Node {
    pub network: Network,
    pub store: Arc<MemoryStore>,
}

impl Node {
    pub async fn start(config: Config) -> Self {
        Self::with(config, Identity::generate(), Arc::default()).await
    }

    pub async fn with(config: Config, identity: Identity, store: Arc<MemoryStore>) -> Self {
        let network = start(config, identity, store.clone()).await.unwrap();
        Self { network, store }
    }

    /// Starts a node with default configuration that knows these members.
    pub async fn knowing(peers: &[&Node], store: Arc<MemoryStore>) -> Self {
        let mut config = config();
        config.peers = peers.iter().map(|peer| peer.address()).collect();
        Self::with(config, Identity::generate(), store).await
    }

    pub fn id(&self) -> NodeId {
        self.network.handle.node_id()
    }

    pub fn address(&self) -> Multiaddr {
        self.network.handle.listeners().remove(0)
    }

    /// Waits for the first event of which `pick` makes something.
    pub async fn wait<T>(&mut self, what: &str, mut pick: impl FnMut(&Event) -> Option<T>) -> T {
        let found = async {
            loop {
                let event = self.network.events.recv().await.expect("the network runs");
                if let Some(found) = pick(&event) {
                    return found;
                }
            }
        };
        timeout(PATIENCE, found)
            .await
            .unwrap_or_else(|_| panic!("waited in vain for {what}"))
    }

    pub async fn peer_up(&mut self, node: NodeId) {
        self.wait("a peer", |event| {
            matches!(event, Event::PeerUp { node: up, .. } if *up == node).then_some(())
        })
        .await;
    }

    pub async fn synced(&mut self, node: NodeId) {
        self.wait("sync", |event| {
            matches!(event, Event::Synced { node: with } if *with == node).then_some(())
        })
        .await;
    }
}

/// Sees that a member is heard of no more.
pub fn unheard(node: NodeId) -> impl FnMut(&Event) -> Option<()> {
    move |event| matches!(event, Event::Unheard { node: lost } if *lost == node).then_some(())
}

/// Pseudo-random bytes that no two segments share.
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
