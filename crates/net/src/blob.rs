//! Fetching immutable blobs by name, segment by segment, from any peer that holds them.
//!
//! ```text
//!   caller ─► Fetcher ─► job (one per blob, however many callers) ─► Schedule: which segment from whom
//!                          │                                              ▲
//!                          ▼                                              │ delivered / failed
//!                        Link (one stream per peer, pipelined) ── bytes ──┴─► unpack ─► verify ─► BlobStore
//!                          │
//!   peer's Server ◄────────┘  reads segments of held blobs, a bounded number in memory
//! ```
//!
//! If nobody who holds a blob is connected, a peer that is connected with its owner fetches it and serves it on: one errand
//! of that peer, one detour here.
//!
//! Only verified segments touch the store, and a wrong segment convicts its sender. Bytes in flight are bounded per peer
//! and in all, on both sides. The receiver says whether segments may be packed. The verified, stored and held bytes are
//! the same either way.

mod detour;
mod errand;
mod fetcher;
mod job;
mod link;
mod packing;
mod schedule;
mod server;
mod spares;
mod window;

use std::time::Duration;

use fednode_core::{BlobRef, SEGMENT_BYTES};

pub(crate) use errand::Errands;
pub(crate) use fetcher::{Detours, Fetcher, Request};
pub use fetcher::{FetchError, Fetched};
pub use packing::{Packing, Width};
pub(crate) use server::serve;

/// Bytes requested but not yet stored, per peer: the bandwidth-delay product of 300 Mbit/s over 100 ms.
pub(crate) const MAX_PEER_IN_FLIGHT: u64 = 4 << 20;
/// Bytes requested but not yet stored, in all.
pub(crate) const MAX_IN_FLIGHT: u64 = 32 << 20;
/// Peers from which blobs are fetched at once.
pub(crate) const MAX_OUTBOUND: usize = 16;
/// Streams served at once.
pub(crate) const MAX_INBOUND: usize = 32;
/// Streams served at once to one peer, so that one peer cannot take all of them.
pub(crate) const MAX_INBOUND_PER_PEER: usize = 2;
/// A peer that sends no byte for this long counts as dead.
pub(crate) const STALL: Duration = Duration::from_secs(5);

/// Tells whether a blob that was announced as one full segment may be the beginning of a longer one. An honest holder sends as many
/// bytes of that, and no list of segments shows that they are others.
fn may_go_on(blob: BlobRef) -> bool {
    blob.size == SEGMENT_BYTES
}

/// A request of the fetcher to the swarm task.
#[derive(Debug)]
pub(crate) enum Wish {
    /// Connect to these nodes, if their addresses are known.
    Connect(Vec<fednode_core::NodeId>),
    /// This peer sent something that an honest peer does not send.
    Strike(fednode_core::NodeId, String),
    /// A blob is complete: tell the peers that this node holds it.
    Held(fednode_core::BlobId),
}
