//! Configuration of the network: what a caller may set, with defaults; the rest are constants where they are used.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use fednode_core::{FederationId, FederationSpec, NodeId, Role, Sequence, SignedAdvert};
use libp2p::Multiaddr;
use serde::{Deserialize, Serialize};

use crate::clock::WallClock;
use crate::join::Registrar;
use crate::membership::MemberBook;
use crate::network_key::NetworkKey;

/// Most peers a node keeps by default.
pub const DEFAULT_MAX_PEERS: usize = 128;
/// How often a node compares what it heard with one random peer. Gossip loses and does not repair; this does.
pub const DEFAULT_SYNC_EVERY: Duration = Duration::from_secs(2);

/// How the segments of a blob come here. Lossless, so it is each node's own choice; every node serves both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// As they are.
    #[default]
    Off,
    /// Packed by zstd, where that is worthwhile ([`crate::Packing`]).
    Zstd,
}

impl Compression {
    /// Returns the name used in files and on command lines.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Zstd => "zstd",
        }
    }
}

impl std::str::FromStr for Compression {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "off" => Ok(Self::Off),
            "zstd" => Ok(Self::Zstd),
            _ => Err("expected `off` or `zstd`"),
        }
    }
}

/// What the network needs to know.
#[derive(Debug, Clone)]
pub struct Config {
    /// What all members share; a peer with another spec is refused.
    pub spec: Arc<FederationSpec>,
    /// The name of that spec.
    pub federation: FederationId,
    /// What this process is to the federation.
    pub role: Role,
    /// Name and version of the software, shown to peers.
    pub software: String,
    /// Addresses to listen at; none for a process that only dials.
    pub listen: Vec<Multiaddr>,
    /// Addresses under which others reach this node, when it cannot know by itself (port forwarding).
    pub external: Vec<Multiaddr>,
    /// Members to dial, with or without `/p2p/<node id>` at the end; any member will do.
    pub peers: Vec<Multiaddr>,
    /// Where members were in an earlier life, with their ids: hints that are tried for a while.
    pub remembered: Vec<Multiaddr>,
    /// The only nodes that may connect or be listened to; `None` for everybody who has the spec (and the network key).
    pub allow: Option<BTreeSet<NodeId>>,
    /// The organiser's word about who belongs here, where the federation has an organiser.
    pub members: Option<Arc<MemberBook>>,
    /// Answers invitations, on the process that has the organiser's key.
    pub registrar: Option<Arc<dyn Registrar>>,
    /// The pre-shared network key.
    pub network_key: Option<NetworkKey>,
    /// Whether to find members on the local network by mDNS.
    pub mdns: bool,
    /// Whether to ask the router to forward the port (UPnP).
    pub upnp: bool,
    /// Whether blobs are asked for packed.
    pub compression: Compression,
    /// Starts of this node so far, this one included; must grow with every start.
    pub incarnation: u64,
    /// Adverts heard in earlier lives, so that they are not fetched again and can be told to others.
    pub known: Vec<SignedAdvert>,
    /// The newest advert heard of each author in earlier lives. Where it is not among the known ones, nothing up to it
    /// is accepted again.
    pub heard: Vec<(NodeId, Sequence)>,
    /// Whether members that nobody can dial are reached through this one, which everybody can dial.
    pub relay: bool,
    /// Most peers to keep.
    pub max_peers: usize,
    /// How often to compare what was heard with one random peer.
    pub sync_every: Duration,
    /// The clock that adverts are stamped by.
    pub clock: WallClock,
}

impl Config {
    /// Returns the defaults: any free port on all interfaces, no peers, everybody of the federation welcome.
    pub fn new(spec: Arc<FederationSpec>, role: Role) -> Self {
        let federation = spec.id();
        Self {
            spec,
            federation,
            role,
            software: concat!("fednode/", env!("CARGO_PKG_VERSION")).to_owned(),
            listen: vec!["/ip4/0.0.0.0/tcp/0".parse().expect("a constant address")],
            external: Vec::new(),
            peers: Vec::new(),
            remembered: Vec::new(),
            allow: None,
            members: None,
            registrar: None,
            network_key: None,
            mdns: false,
            upnp: false,
            compression: Compression::default(),
            incarnation: 1,
            known: Vec::new(),
            heard: Vec::new(),
            relay: false,
            max_peers: DEFAULT_MAX_PEERS,
            sync_every: DEFAULT_SYNC_EVERY,
            clock: WallClock::default(),
        }
    }
}
