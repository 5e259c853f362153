//! Everything with a socket.
//!
//! A node publishes small signed adverts, fetches immutable blobs, and keeps connections to other members. This crate
//! does that over libp2p and hides libp2p from the other crates. [`start()`] returns a [`Handle`] for requests and a queue
//! of [`Event`]s, in the vocabulary of `fednode-core`. The crate knows no rounds, no averaging, no tensors.
//!
//! ```text
//!   application ──► Handle ──commands──► swarm task ──events──► application
//!                     │                  │   ▲   ▲
//!                     │ fetch            │   │   └── gate: signatures and bounds of adverts, on a thread
//!                     ▼                  │   └────── wishes of the fetcher (connect, strike, held)
//!                  Fetcher ─ links ──────┼── streams ──► peers' servers
//!                                        └── hello, gossip, sync, peer exchange ──► peers
//! ```
//!
//! Hostile input meets its first gate here. [`codec`](CodecError) refuses by size before it reads, and decodes into typed,
//! bounded structs. An advert passes signature, allow-list, bounds and the replay window before it is forwarded. A
//! peer's fault lowers its standing and is never a panic. Every queue, list and wait is bounded by a named constant. The
//! swarm task never waits for another task: a full queue means "ignore", and sync repairs what was ignored.
//!
//! ```no_run
//! # async fn example(blobs: std::sync::Arc<dyn fednode_core::BlobStore>) -> Result<(), Box<dyn std::error::Error>> {
//! use fednode_core::{Body, FederationSpec, Role, Round};
//! use fednode_net::{Config, Event, Identity};
//!
//! let mut config = Config::new(FederationSpec::default().into(), Role::Node);
//! config.peers = vec!["/ip4/192.0.2.1/tcp/4001".parse()?];
//! let mut network = fednode_net::start(config, Identity::generate(), blobs).await?;
//! while let Some(event) = network.events.recv().await {
//!     if let Event::PeerUp { .. } = event {
//!         network.handle.publish(Round(0), Body::Leave).await?;
//!     }
//! }
//! # Ok(())
//! # }
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod addresses;
mod behaviour;
mod blob;
mod book;
mod bounded;
mod bucket;
mod catalogue;
mod clock;
mod closing;
pub mod codec;
mod config;
mod crowd;
mod dialer;
mod event;
mod gate;
mod handle;
mod holds;
mod identity;
mod join;
mod membership;
mod muxer;
mod network_key;
mod presence;
mod roster;
mod rpc;
mod score;
mod secret_file;
mod start;
mod task;
mod ticket;
mod traffic;
mod transport;
mod welcome_only;
mod wire;

pub use addresses::{is_circuit, is_loopback, node_of};
pub use blob::{FetchError, Fetched, Packing, Width};
pub use book::MAX_ADVERTS_PER_ROUND;
pub use clock::WallClock;
pub use clock::now;
pub use codec::CodecError;
pub use config::{Compression, Config, DEFAULT_MAX_PEERS, DEFAULT_SYNC_EVERY};
pub use event::Event;
pub use handle::{Absent, Direction, Handle, PeerInfo, PublishError, Route, Wanted};
pub use identity::{Identity, StatementVerifyError, VerifyError, encoded_len, sealing_key, verify};
pub use join::{Admitted, JoinAsk, JoinError, JoinRefusal, Registrar, join};
pub use libp2p::Multiaddr;
pub use membership::{MemberBook, MembershipError};
pub use network_key::{NetworkKey, NetworkKeyError};
pub use secret_file::SecretFileError;
pub use start::{Network, StartError, start};
pub use ticket::{InvitationSecret, Ticket, TicketError};
pub use traffic::TrafficSnapshot;
pub use wire::MAX_FOLLOWED;

#[cfg(test)]
mod tests {
    mod couriers;
    mod hostile;
    mod strangers;
    mod traps;
}
