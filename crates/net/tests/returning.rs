//! A peer that comes back is used over its new connection, even if the old one has not ended on this side.
#![allow(clippy::unwrap_used)]

mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{MemoryStore, Node, PATIENCE, config, noise};
use fednode_core::{BlobRef, SEGMENT_BYTES};
use fednode_net::{Identity, Multiaddr};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// Two nodes that dial each other at once have two connections. Later ones are no coincidence.
const NOT_AT_ONCE: Duration = Duration::from_secs(4);

/// A cable between two nodes that can be cut: both ends then look open, and no byte passes.
struct Cable {
    address: Multiaddr,
    running: JoinHandle<()>,
}

impl Cable {
    async fn to(node: &Node) -> Self {
        let to = node.address().to_string();
        let port: u16 = to.split('/').nth(4).unwrap().parse().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = listener.local_addr().unwrap();
        let running = tokio::spawn(async move {
            let (mut dialer, _) = listener.accept().await.unwrap();
            // Small, so that the cut leaves the node with bytes that its socket does not take.
            let socket = TcpSocket::new_v4().unwrap();
            socket.set_recv_buffer_size(16 << 10).unwrap();
            let far = SocketAddr::from(([127, 0, 0, 1], port));
            let mut dialed = socket.connect(far).await.unwrap();
            // A cut drops this future in the middle. The sockets must outlive it.
            let cut = async {
                _ = copy_bidirectional(&mut dialer, &mut dialed).await;
            };
            tokio::select! {
                () = cut => {}
                () = CUT.notified() => {}
            }
            std::future::pending::<()>().await;
        });
        let address = format!("/ip4/127.0.0.1/tcp/{}/p2p/{}", near.port(), peer(&to));
        Self {
            address: address.parse().unwrap(),
            running,
        }
    }

    fn cut() {
        CUT.notify_waiters();
    }
}

static CUT: tokio::sync::Notify = tokio::sync::Notify::const_new();

impl Drop for Cable {
    fn drop(&mut self) {
        self.running.abort();
    }
}

fn peer(address: &str) -> &str {
    address.rsplit('/').next().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_use_the_new_connection_of_a_peer_that_was_cut_off() {
    // The hub is sending when the cable is cut, so its old connection cannot even be closed properly.
    let large = noise(64 * SEGMENT_BYTES as usize, 3);
    let mut hub = Node::with(config(), Identity::generate(), MemoryStore::with(&large)).await;
    let cable = Cable::to(&hub).await;
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("identity.key");
    let identity = || Identity::load_or_create(&key).unwrap();
    let mut through = config();
    through.peers = vec![cable.address.clone()];
    let before = Node::with(through, identity(), Arc::default()).await;
    let member = before.id();
    hub.peer_up(member).await;
    sleep(NOT_AT_ONCE).await;
    let handle = before.network.handle.clone();
    let provider = hub.id();
    let fetching = tokio::spawn(async move {
        handle
            .fetch(BlobRef::of(&large), vec![provider], PATIENCE)
            .await
    });
    while hub.store.n_read() < 4 {
        sleep(Duration::from_millis(5)).await;
    }
    Cable::cut();
    fetching.abort();
    // The same member starts again, and its goodbye was lost in the cable.
    drop(before);
    let store = MemoryStore::default();
    let blobs: Vec<BlobRef> = (0..12).map(|n| store.put(&noise(1000, n))).collect();
    let mut direct = config();
    direct.peers = vec![hub.address()];
    let mut after = Node::with(direct, identity(), Arc::new(store)).await;
    assert_eq!(after.id(), member);
    after.peer_up(hub.id()).await;
    let started = Instant::now();
    for blob in blobs {
        let fetched = hub.network.handle.fetch(blob, vec![member], PATIENCE).await;
        fetched.unwrap();
    }
    let took = started.elapsed();
    assert!(took < Duration::from_secs(4), "{took:?}");
    let peers = hub.network.handle.peers().await;
    let connections: Vec<usize> = peers.iter().map(|peer| peer.addresses.len()).collect();
    assert_eq!(connections, [1]);
}

/// A fedboot with another key may have the address of the former one, which nodes go on dialing.
#[tokio::test(flavor = "multi_thread")]
async fn who_dials_a_former_owner_of_an_address_keeps_its_connection_with_the_new_one() {
    let mut hub = Node::start(config()).await;
    let mut direct = config();
    direct.peers = vec![hub.address()];
    let member = Node::with(direct, Identity::generate(), Arc::default()).await;
    hub.peer_up(member.id()).await;
    sleep(NOT_AT_ONCE).await;
    let address = hub.address().to_string();
    let before = address.replace(
        peer(&address),
        "12D3KooWEgAfu4DA9khc1NwmZmRcJLaZGKvSE269hzwcv876Qkz8",
    );
    member.network.handle.dial(before.parse().unwrap()).await;
    sleep(Duration::from_secs(1)).await;
    let peers = hub.network.handle.peers().await;
    let [of_member] = &peers[..] else {
        panic!("{peers:?}")
    };
    assert!(of_member.since >= NOT_AT_ONCE, "{:?}", of_member.since);
    assert_eq!(of_member.addresses.len(), 1);
}
