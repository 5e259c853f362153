//! The handle: the application's side of the network.
//!
//! It is cheap to clone. Every request goes through a bounded queue to the swarm task, and its answer comes back on a
//! oneshot. Fetches go to the fetcher directly. Dropping a future abandons the wait and nothing else, unless its
//! documentation says otherwise.

use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use fednode_core::{
    Advert, AdvertError, AdvertId, BlobId, BlobRef, Body, NodeId, Role, Round, SignedAdvert,
};
use libp2p::Multiaddr;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::blob::{Detours, FetchError, Fetched, Fetcher, Packing, Request};
use crate::catalogue::Catalogue;
use crate::config::Compression;
use crate::roster::Roster;
use crate::traffic::{Traffic, TrafficSnapshot};

/// Commands that may wait for the swarm task.
pub(crate) const COMMAND_QUEUE: usize = 256;

/// Tells why an advert was not published.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PublishError {
    /// It is larger than an advert may be.
    #[error(
        "an advert of {size} bytes where at most {limit} are allowed: offer large parts as blobs"
    )]
    TooLarge {
        /// Bytes of the encoded advert.
        size: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// The advert breaks a rule, so every peer would refuse it.
    #[error("{0}")]
    Invalid(#[from] AdvertError),
    /// This node has published as many adverts about this round as peers accept.
    #[error("more adverts about round {0} than peers accept")]
    TooMany(Round),
    /// The network is shutting down.
    #[error("the network is shutting down")]
    Closed,
}

/// Which side opened a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// The peer opened it.
    Inbound,
    /// This node opened it.
    Outbound,
}

/// How a member is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Route {
    /// By TCP, directly.
    #[default]
    Tcp,
    /// By QUIC, directly.
    Quic,
    /// By a connection through a relay.
    Relay,
    /// By no connection: others pass on what it says and store and forward its blobs.
    Others,
    /// Not at all.
    None,
}

/// What is known of a member that is not connected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Absent {
    /// The member.
    pub node: NodeId,
    /// Its role, as far as it is known.
    pub role: Option<Role>,
    /// [`Route::Others`] or [`Route::None`].
    pub route: Route,
    /// Why there is no connection.
    pub why: String,
}

/// What is known of a connected peer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PeerInfo {
    /// The peer.
    pub node: NodeId,
    /// Its role in the federation.
    pub role: Role,
    /// How it is reached: directly, if any of its connections is direct.
    pub route: Route,
    /// Through whom, if only through a relay.
    pub relay: Option<NodeId>,
    /// The addresses at the other end of its connections.
    pub addresses: Vec<Multiaddr>,
    /// How long it has been connected.
    pub since: Duration,
    /// Round trip of the latest ping.
    pub rtt: Option<Duration>,
    /// Which side opened the oldest connection.
    pub direction: Direction,
    /// Strikes against it, faded; 0 is a clean record.
    pub score: f64,
    /// The software that it names.
    pub software: String,
    /// Number of blobs that it announced to hold.
    pub holds: usize,
}

/// An advert that is asked for by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// Its name.
    pub advert: AdvertId,
    /// Who signed it.
    pub author: NodeId,
    /// Who named it, and so should have it.
    pub named_by: NodeId,
}

/// A request of the application to the swarm task.
#[derive(Debug)]
pub(crate) enum Command {
    Publish(
        Round,
        Box<Body>,
        oneshot::Sender<Result<(Advert, SignedAdvert), PublishError>>,
    ),
    Dial(Multiaddr),
    Peers(oneshot::Sender<Vec<PeerInfo>>),
    Absent(oneshot::Sender<Vec<Absent>>),
    Whereabouts(oneshot::Sender<Vec<Multiaddr>>),
    Follow(Vec<NodeId>),
    Ask(Vec<Wanted>),
    Strike(NodeId, String),
    Ban(NodeId, Duration, String),
    Held(BlobId),
}

/// What the swarm task shares for reading.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) node: NodeId,
    pub(crate) listeners: RwLock<Vec<Multiaddr>>,
    pub(crate) traffic: Arc<Traffic>,
    pub(crate) roster: Arc<Roster>,
    pub(crate) catalogue: Arc<Catalogue>,
}

/// The application's end of the network.
#[derive(Debug, Clone)]
pub struct Handle {
    commands: mpsc::Sender<Command>,
    fetcher: Fetcher,
    shared: Arc<Shared>,
    compression: Compression,
    cancel: CancellationToken,
}

impl Handle {
    pub(crate) fn new(
        commands: mpsc::Sender<Command>,
        fetcher: Fetcher,
        shared: Arc<Shared>,
        compression: Compression,
        cancel: CancellationToken,
    ) -> Self {
        Self {
            commands,
            fetcher,
            shared,
            compression,
            cancel,
        }
    }

    /// Returns the id of this node.
    pub fn node_id(&self) -> NodeId {
        self.shared.node
    }

    /// Returns the addresses at which this node listens, with its node id.
    pub fn listeners(&self) -> Vec<Multiaddr> {
        self.shared
            .listeners
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Publishes an advert: stamps, signs, remembers and gossips it.
    ///
    /// Having no peers is no error: peers that connect later receive the advert by sync. Once the request is under way,
    /// dropping the future does not withdraw it.
    ///
    /// # Errors
    /// Fails for an advert that every peer would refuse, and after shutdown.
    pub async fn publish(
        &self,
        round: Round,
        body: Body,
    ) -> Result<(Advert, SignedAdvert), PublishError> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Publish(round, Box::new(body), reply))
            .await;
        answer.await.unwrap_or(Err(PublishError::Closed))
    }

    /// Fetches a blob unless this node holds it.
    ///
    /// It asks the named providers and peers that announced the blob, and as a last resort all connected peers. While nobody
    /// who holds it is connected, one of these is asked to fetch it, an aggregator first. Several callers share one transfer
    /// and its result. Cancel-safe: received segments are kept and not fetched again.
    ///
    /// # Errors
    /// Fails if the blob is too large, the store cannot take it, or time is up. The error says what each provider did.
    pub async fn fetch(
        &self,
        blob: BlobRef,
        providers: Vec<NodeId>,
        deadline: Duration,
    ) -> Result<Fetched, FetchError> {
        self.fetcher
            .fetch(Request {
                blob,
                providers,
                deadline,
                packing: None,
                detours: Detours::Allowed,
            })
            .await
    }

    /// Fetches a blob as [`Handle::fetch`] does, in fewer bytes.
    ///
    /// [`crate::Config::compression`] must allow it and the providers must be able to pack. The first of several callers
    /// decides how a shared transfer is packed.
    ///
    /// # Errors
    /// Fails as [`Handle::fetch`] does.
    pub async fn fetch_packed(
        &self,
        blob: BlobRef,
        providers: Vec<NodeId>,
        deadline: Duration,
        packing: Packing,
    ) -> Result<Fetched, FetchError> {
        // The receiver decides, because it is the receiver that spends processor time to save its link.
        let packing = (self.compression == Compression::Zstd).then_some(packing);
        self.fetcher
            .fetch(Request {
                blob,
                providers,
                deadline,
                packing,
                detours: Detours::Allowed,
            })
            .await
    }

    /// Fetches some segments of a blob into memory, packed as [`Handle::fetch_packed`] does. Nothing of it is stored.
    ///
    /// # Errors
    /// Fails as [`Handle::fetch`] does.
    pub async fn fetch_window(
        &self,
        (blob, segments): (BlobRef, Range<u32>),
        providers: Vec<NodeId>,
        deadline: Duration,
        packing: Packing,
    ) -> Result<(Fetched, Vec<u8>), FetchError> {
        let packing = (self.compression == Compression::Zstd).then_some(packing);
        let request = Request {
            blob,
            providers,
            deadline,
            packing,
            detours: Detours::Allowed,
        };
        self.fetcher.fetch_window(request, segments).await
    }

    /// Dials an address now, and again and again, as if it had been configured.
    pub async fn dial(&self, address: Multiaddr) {
        self.send(Command::Dial(address)).await;
    }

    /// Follows these nodes and no others: receives their updates beside those of the broadcast set
    /// ([`fednode_core::BroadcastSet`]). Of more than [`crate::MAX_FOLLOWED`] nodes it follows the first ones.
    pub async fn follow(&self, nodes: Vec<NodeId>) {
        self.send(Command::Follow(nodes)).await;
    }

    /// Asks for adverts by name: old ones, or such that differ from what was heard under the same number. Those that somebody
    /// has come as events, also if they came before.
    pub async fn ask(&self, adverts: Vec<Wanted>) {
        self.send(Command::Ask(adverts)).await;
    }

    /// Returns the connected peers.
    pub async fn peers(&self) -> Vec<PeerInfo> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Peers(reply)).await;
        answer.await.unwrap_or_default()
    }

    /// Returns the members that are known and not connected, and why there is no connection.
    pub async fn absent(&self) -> Vec<Absent> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Absent(reply)).await;
        answer.await.unwrap_or_default()
    }

    /// Returns where other members can be dialed, as they say themselves, each address with the member's id at its end.
    pub async fn whereabouts(&self) -> Vec<Multiaddr> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Whereabouts(reply)).await;
        answer.await.unwrap_or_default()
    }

    /// Returns the bytes counted so far.
    pub fn traffic(&self) -> TrafficSnapshot {
        self.shared.traffic.snapshot()
    }

    /// Notes evidence against a peer. Enough of it leads to a ban.
    pub async fn strike(&self, node: NodeId, reason: String) {
        self.send(Command::Strike(node, reason)).await;
    }

    /// Bans a peer for a while (an hour at most).
    pub async fn ban(&self, node: NodeId, length: Duration, reason: String) {
        self.send(Command::Ban(node, length, reason)).await;
    }

    /// Announces to peers that this node now holds a complete blob. Fetched blobs are announced by themselves.
    pub async fn announce_held(&self, blob: BlobId) {
        self.send(Command::Held(blob)).await;
    }

    /// Sends last messages and ends all tasks. Returns when they have ended, within a second.
    pub async fn shutdown(&self) {
        self.cancel.cancel();
        // The task drops its end of this queue last, after all its helpers have ended.
        self.commands.closed().await;
    }

    async fn send(&self, command: Command) {
        // After shutdown the queue is closed. Requests that wait for an answer see their oneshot dropped.
        _ = self.commands.send(command).await;
    }
}
