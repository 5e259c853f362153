//! What is got from others: adverts that were not heard, and blobs.

use fednode_core::{AdvertId, BlobId, BlobRef, NodeId, Timestamp};
use serde::{Deserialize, Serialize};

/// An advert that a closed round names and that was not heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lacking {
    /// Its name.
    pub advert: AdvertId,
    /// Who signed it.
    pub author: NodeId,
    /// Who named it.
    pub named_by: NodeId,
}

/// What became of a fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// The blob is held, whatever it was fetched as.
    Held(BlobId),
    /// The blob cannot be had as what it was announced.
    Failed(BlobRef, FetchKind),
}

impl Arrival {
    /// Tells whether whoever waits for this blob waits no longer. A blob that cannot be had under another size, or as
    /// something else, says nothing: anybody can announce another node's blob falsely.
    pub(crate) fn ends_wait_for(self, wanted: &BlobRef, wanted_as: FetchKind) -> bool {
        match self {
            Self::Held(blob) => blob == wanted.id,
            Self::Failed(blob, kind) => (blob, kind) == (*wanted, wanted_as),
        }
    }

    /// Returns the blob's name.
    pub(crate) fn id(self) -> BlobId {
        match self {
            Self::Held(blob) => blob,
            Self::Failed(blob, _) => blob.id,
        }
    }

    /// Tells whether the blob is held.
    pub(crate) fn is_held(self) -> bool {
        matches!(self, Self::Held(_))
    }
}

/// A blob to get.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetch {
    /// Which.
    pub blob: BlobRef,
    /// What it will be used for.
    pub kind: FetchKind,
    /// Who holds it for certain, best first; other holders may be found.
    pub from: Vec<NodeId>,
    /// The version before it, which this member and whoever made the blob should hold: the difference is fewer bytes.
    pub base: Option<BlobId>,
    /// When to give up.
    pub until: Timestamp,
}

/// What a blob is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum FetchKind {
    /// A foreign expert.
    Expert,
    /// Proxies: answer with [`super::Input::Proxies`].
    Proxies,
    /// A member's shared part, or a mean.
    Shared,
    /// A foreign private module.
    Module,
}
