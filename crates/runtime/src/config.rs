//! What a caller decides about a member: resolved and typed, whatever command line or file it came from.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fednode_core::{FederationSpec, MemberName, NodeId};
use fednode_engine::book::Calendar;
use fednode_net::{Compression, NetworkKey};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tokio::sync::mpsc;

use crate::recording;
use crate::releases::{self, OwnersBudget};

/// How long a finished member serves the others by default: as long as a straggler may need for a round.
pub const DEFAULT_LINGER: Duration = Duration::from_secs(600);

/// Rounds between two complete evaluations by default: each costs about a tenth of a short round's training.
pub(crate) const DEFAULT_EVALUATE_EVERY: u32 = 10;

/// What a member needs to know.
#[derive(Debug, Clone)]
pub struct MemberConfig {
    /// What all members share.
    pub spec: Arc<FederationSpec>,
    /// The state folder.
    pub state: PathBuf,
    /// The key file; `key` in the state folder if absent. It is made when there is none.
    pub key: Option<PathBuf>,
    /// Addresses to listen at, as multiaddresses.
    pub listen: Vec<String>,
    /// Addresses under which others reach this member, when it cannot know by itself.
    pub external: Vec<String>,
    /// Members to dial, as multiaddresses with or without `/p2p/<node id>`.
    pub peers: Vec<String>,
    /// The only nodes that may connect; `None` for everybody of the federation.
    pub allow: Option<BTreeSet<NodeId>>,
    /// The folder with the organiser's key, on the process that answers tickets.
    pub organiser: Option<PathBuf>,
    /// What people call this member, if it admits itself with the organiser's key.
    pub name: Option<MemberName>,
    /// Whether anybody may connect who can reach this member.
    pub open: bool,
    /// The pre-shared network key.
    pub network_key: Option<NetworkKey>,
    /// Whether to look for members on the local network.
    pub mdns: bool,
    /// Whether to ask the router to forward the port (UPnP).
    pub upnp: bool,
    /// Whether blobs are asked for packed.
    pub compression: Compression,
    /// Whether members that nobody can dial are reached through this one.
    pub relay: bool,
    /// Most peers to keep.
    pub max_peers: usize,
    /// Most bytes of blobs.
    pub quota_bytes: u64,
    /// Most bytes of the flight recorder's files; 0 records nothing.
    pub recording_bytes: u64,
    /// The control API.
    pub control: Control,
    /// Whether to end when all rounds are done.
    pub exit_when_finished: bool,
    /// Rounds between two evaluations before the exchange and on validation samples; the last round always has them.
    /// After the exchange every round is evaluated on the test samples.
    pub evaluate_every: u32,
    /// Whether others may have the private module, where the federation pools them.
    pub shares_module: bool,
    /// What the owner allows of the data to be released.
    pub privacy: OwnersBudget,
    /// How long a finished member goes on serving the others before it ends; it ends earlier when nobody needs it.
    pub linger: Duration,
    /// Name and version of the program, shown to peers and in `status`.
    pub software: String,
    /// Small files, by name, that whoever looks at the state folder needs beside it and beside the spec. They are written once
    /// the folder is this member's, and no other's or another federation's.
    pub facts: Vec<(&'static str, String)>,
    /// Told every address at which the member listens, with its node id.
    pub on_listening: Option<mpsc::Sender<String>>,
}

/// Where the control API is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// Nowhere.
    Off,
    /// At an address of loopback; port 0 takes any free one, which `control.json` then names.
    At(SocketAddr),
}

impl Default for Control {
    fn default() -> Self {
        Self::At(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
    }
}

/// A text is no place for the control API.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoControl {
    /// It is no address.
    #[error("`{0}` is no address as `127.0.0.1:0`, nor `off`")]
    NoAddress(String),
    /// Others reach it: the token would travel in plain text.
    #[error(
        "`{0}` is not on loopback, and the control API has no encryption: keep 127.0.0.1 and come by an SSH tunnel, or put \
         a reverse proxy with TLS before it"
    )]
    NotLoopback(SocketAddr),
}

impl std::str::FromStr for Control {
    type Err = NoControl;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.parse() {
            _ if text == "off" => Ok(Self::Off),
            Ok(address) if is_loopback(&address) => Ok(Self::At(address)),
            Ok(address) => Err(NoControl::NotLoopback(address)),
            Err(_) => Err(NoControl::NoAddress(text.to_owned())),
        }
    }
}

/// Tells whether nobody else reaches an address, as 127.0.0.1 or ::1, written in IPv6 or not.
fn is_loopback(address: &SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

impl Serialize for Control {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Off => serializer.serialize_str("off"),
            Self::At(address) => serializer.collect_str(address),
        }
    }
}

impl<'de> Deserialize<'de> for Control {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl MemberConfig {
    /// Returns the defaults for a federation and a state folder.
    pub fn new(spec: Arc<FederationSpec>, state: impl Into<PathBuf>) -> Self {
        let state = state.into();
        let privacy = OwnersBudget {
            epsilon: None,
            delta: releases::DELTA,
            file: state.join(releases::FILE),
        };
        Self {
            spec,
            state,
            key: None,
            listen: vec!["/ip4/0.0.0.0/tcp/0".into()],
            external: Vec::new(),
            peers: Vec::new(),
            allow: None,
            organiser: None,
            name: None,
            open: false,
            network_key: None,
            mdns: false,
            upnp: false,
            compression: Compression::default(),
            relay: false,
            max_peers: fednode_net::DEFAULT_MAX_PEERS,
            quota_bytes: fednode_store::DEFAULT_QUOTA_BYTES,
            recording_bytes: recording::DEFAULT_BYTES,
            control: Control::default(),
            exit_when_finished: false,
            evaluate_every: DEFAULT_EVALUATE_EVERY,
            shares_module: true,
            privacy,
            linger: DEFAULT_LINGER,
            software: concat!("fednode/", env!("CARGO_PKG_VERSION")).into(),
            facts: Vec::new(),
            on_listening: None,
        }
    }

    /// Returns when evaluations are due.
    pub(crate) fn calendar(&self) -> Calendar {
        Calendar {
            rounds: self.spec.rounds,
            evaluate_every: self.evaluate_every,
        }
    }

    pub(crate) fn key_path(&self) -> PathBuf {
        self.key.clone().unwrap_or_else(|| self.state.join("key"))
    }
}
