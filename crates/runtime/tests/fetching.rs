//! Blobs over real sockets into real files: a fetch that is cut off goes on where it was, and nothing comes twice.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fednode_core::{
    BlobId, BlobRef, BlobStore, FederationSpec, NodeId, Partial, Role, SEGMENT_BYTES, SegmentList,
};
use fednode_net::{Config, Event, Identity, Multiaddr, Network, start};
use fednode_store::{Blobs, OpenError, Options, Store};

const PATIENCE: Duration = Duration::from_secs(60);
/// Tells a child what to fetch into: the state folder, then the providers' addresses, one a line.
const CHILD: &str = "FEDNODE_TEST_FETCH_INTO";
const SEGMENTS: u32 = 40;

/// A provider's store that takes its time and remembers which segments were read; `None` is the list.
struct Slow {
    blobs: Arc<Blobs>,
    asked: Mutex<Vec<Option<u32>>>,
}

impl BlobStore for Slow {
    fn held(&self, id: &BlobId) -> Option<u64> {
        self.blobs.held(id)
    }

    fn segment_list(&self, id: &BlobId) -> io::Result<SegmentList> {
        self.asked.lock().unwrap().push(None);
        self.blobs.segment_list(id)
    }

    fn read_segment(&self, id: &BlobId, index: u32) -> io::Result<Vec<u8>> {
        self.asked.lock().unwrap().push(Some(index));
        std::thread::sleep(Duration::from_millis(20));
        self.blobs.read_segment(id, index)
    }

    fn begin(&self, blob: BlobRef) -> io::Result<Partial> {
        self.blobs.begin(blob)
    }

    fn keep_list(&self, list: &SegmentList) -> io::Result<()> {
        self.blobs.keep_list(list)
    }

    fn write_segment(&self, blob: BlobRef, index: u32, bytes: &[u8]) -> io::Result<()> {
        self.blobs.write_segment(blob, index, bytes)
    }

    fn finish(&self, blob: BlobRef) -> io::Result<()> {
        self.blobs.finish(blob)
    }
}

impl Slow {
    fn take_asked(&self) -> Vec<Option<u32>> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

/// Bytes of which no two segments are alike.
fn content() -> Vec<u8> {
    let mut state = 88_172_645_463_325_252u64;
    let mut word = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..u64::from(SEGMENTS) * SEGMENT_BYTES / 8)
        .flat_map(|_| word())
        .collect()
}

fn open(folder: &Path) -> Store {
    let options = Options {
        reserve_bytes: 1000,
        ..Options::default()
    };
    let open = || Store::open(folder, FederationSpec::default().id(), &options);
    // A child that is just being made for another test holds, for a moment, all that is open here.
    for _ in 0..100 {
        match open() {
            Err(OpenError::InUse { .. }) => std::thread::sleep(Duration::from_millis(50)),
            opened => return opened.unwrap(),
        }
    }
    open().unwrap()
}

async fn provider(folder: &Path, bytes: &[u8]) -> (Network, Arc<Slow>) {
    let blobs = open(folder).blobs;
    blobs.put(bytes).unwrap();
    let store = Arc::new(Slow {
        blobs,
        asked: Mutex::default(),
    });
    let mut config = Config::new(FederationSpec::default().into(), Role::Node);
    config.listen = vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()];
    (
        start(
            config,
            Identity::generate(),
            Arc::clone(&store) as Arc<dyn BlobStore>,
        )
        .await
        .unwrap(),
        store,
    )
}

/// Starts a network over a store and waits until all these members are there.
async fn client(store: Arc<Blobs>, addresses: &[Multiaddr]) -> (Network, Vec<NodeId>) {
    let mut config = Config::new(FederationSpec::default().into(), Role::Node);
    config.listen.clear();
    config.peers = addresses.to_vec();
    let mut network = start(config, Identity::generate(), store).await.unwrap();
    let mut up = Vec::new();
    let meeting = async {
        while up.len() < addresses.len() {
            if let Event::PeerUp { node, .. } = network.events.recv().await.unwrap() {
                up.push(node);
            }
        }
    };
    tokio::time::timeout(PATIENCE, meeting).await.unwrap();
    (network, up)
}

/// The child of the next test; does nothing unless it is told to.
#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_fetches_until_it_is_killed() {
    let Ok(told) = std::env::var(CHILD) else {
        return;
    };
    let mut lines = told.lines();
    let store = open(Path::new(lines.next().unwrap()));
    let addresses: Vec<Multiaddr> = lines.map(|address| address.parse().unwrap()).collect();
    let (network, providers) = client(Arc::clone(&store.blobs), &addresses).await;
    let handle = network.handle.clone();
    tokio::spawn(async move {
        handle
            .fetch(BlobRef::of(&content()), providers, PATIENCE)
            .await
    });
    loop {
        println!(
            "received {}",
            network.handle.traffic().blob_received_from_nodes
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn spawn_child(state: &Path, addresses: &[Multiaddr]) -> Child {
    let addresses: Vec<String> = addresses.iter().map(Multiaddr::to_string).collect();
    let told = format!("{}\n{}", state.display(), addresses.join("\n"));
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([
        "--exact",
        "a_child_that_fetches_until_it_is_killed",
        "--nocapture",
    ]);
    command
        .env(CHILD, told)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Kills the child without a word as soon as it has so many bytes; returns how many it had said it had.
fn kill_at(mut child: Child, bytes: u64) -> u64 {
    let output = BufReader::new(child.stdout.take().unwrap());
    let received = output.lines().map_while(Result::ok).find_map(|line| {
        let received: u64 = line.rsplit_once("received ")?.1.parse().ok()?;
        (received >= bytes).then_some(received)
    });
    child.kill().unwrap();
    child.wait().unwrap();
    received.expect("the child fetches")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_fetch_gets_at_most_one_segment_per_provider_again() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = content();
    let blob = BlobRef::of(&bytes);
    let (ann, ann_store) = provider(&folder.path().join("ann"), &bytes).await;
    let (cat, cat_store) = provider(&folder.path().join("cat"), &bytes).await;
    let addresses = [
        ann.handle.listeners().remove(0),
        cat.handle.listeners().remove(0),
    ];
    let state = folder.path().join("bob");
    let child = spawn_child(&state, &addresses);
    let received = tokio::task::spawn_blocking(move || kill_at(child, blob.size * 6 / 10))
        .await
        .unwrap();
    assert!(received < blob.size, "it was killed on the way");

    let store = open(&state);
    let (bob, providers) = client(Arc::clone(&store.blobs), &addresses).await;
    // The providers may still be reading what the dead one had asked for.
    while ![ann_store.take_asked(), cat_store.take_asked()]
        .concat()
        .is_empty()
    {
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    let fetched = bob.handle.fetch(blob, providers, PATIENCE).await.unwrap();
    let (received, resumed) = (
        received / SEGMENT_BYTES,
        fetched.resumed_bytes / SEGMENT_BYTES,
    );
    assert!(
        resumed + 2 >= received,
        "{resumed} segments of {received} that had arrived were still there"
    );
    let mut asked = [ann_store.take_asked(), cat_store.take_asked()].concat();
    asked.sort_unstable();
    let n_asked = asked.len() as u64;
    asked.dedup();
    assert_eq!(
        n_asked,
        asked.len() as u64,
        "a segment was asked for twice: {asked:?}"
    );
    assert_eq!(
        (asked.contains(&None), n_asked),
        (false, u64::from(SEGMENTS) - resumed),
        "no list, only what lacked"
    );
    assert_eq!(
        fetched.bytes_received.values().sum::<u64>(),
        blob.size - fetched.resumed_bytes
    );
    assert!(store.blobs.get(&blob.id).unwrap() == bytes);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_content_is_sent_to_a_node_once() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = content()[..5 * SEGMENT_BYTES as usize + 7].to_vec();
    let blob = BlobRef::of(&bytes);
    let (ann, ann_store) = provider(&folder.path().join("ann"), &bytes).await;
    let (cat, cat_store) = provider(&folder.path().join("cat"), &bytes).await;
    let addresses = [
        ann.handle.listeners().remove(0),
        cat.handle.listeners().remove(0),
    ];
    let state = folder.path().join("bob");
    {
        let store = open(&state);
        let (bob, providers) = client(Arc::clone(&store.blobs), &addresses).await;
        // Two owners announce the same bytes, and several callers want them at once.
        let fetch = |n: usize| bob.handle.fetch(blob, vec![providers[n % 2]], PATIENCE);
        let fetches = tokio::join!(fetch(0), fetch(1), fetch(0), fetch(1));
        assert!(fetches.0.is_ok() && fetches.1.is_ok() && fetches.2.is_ok() && fetches.3.is_ok());
        let again = fetch(1).await.unwrap();
        assert!(again.bytes_received.is_empty(), "{again:?}");
        bob.handle.shutdown().await;
    }
    let store = open(&state);
    let (bob, providers) = client(Arc::clone(&store.blobs), &addresses).await;
    let after_restart = bob.handle.fetch(blob, providers, PATIENCE).await.unwrap();
    assert!(after_restart.bytes_received.is_empty(), "{after_restart:?}");
    let mut asked = [ann_store.take_asked(), cat_store.take_asked()].concat();
    asked.sort_unstable();
    assert_eq!(
        asked,
        [None, Some(0), Some(1), Some(2), Some(3), Some(4), Some(5)]
    );
}
