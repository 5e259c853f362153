//! What goes into a state machine and what comes out: effects as data.
//!
//! Every [`Output`] that asks for something is answered by exactly one [`Input`]:
//!
//! | output | answered by |
//! |---|---|
//! | [`Output::Train`] | [`Input::Trained`] |
//! | [`Output::Fetch`] | [`Input::Fetched`], [`Input::Proxies`] or [`Input::FetchFailed`] |
//! | [`Output::Merge`] | [`Input::Merged`] |
//! | [`Output::Average`] | [`Input::Averaged`] |
//! | [`Output::Module`] | [`Input::Module`] |
//! | [`Output::Pool`] | [`Input::Pooled`] |
//! | [`Output::SetTimer`] | [`Input::Timer`], unless set again |
//! | [`Output::Unmask`] | [`Input::Unmasked`] |
//! | [`Output::Slice`] | [`Input::Sliced`] |
//! | [`Output::Join`] | [`Input::Joined`] |
//! | [`Output::Ask`] | [`Input::Advert`], once for each advert that somebody has |
//! | [`Output::Publish`], [`Output::Follow`], [`Output::Save`], [`Output::Strike`], [`Output::Ban`], [`Output::Forget`], [`Output::Note`] | nothing |
//!
//! All of them can be written to a file: see [`crate::recording`].

mod fetch;
mod note;
mod orders;

use std::sync::Arc;

use fednode_core::masked::Unmask;
use fednode_core::{
    Accepted, BlobId, BlobRef, Body, LocalReport, NodeId, ProxySet, Role, Round, Timestamp, shared,
};
use serde::{Deserialize, Serialize};

pub(crate) use self::fetch::Arrival;
pub use self::fetch::{Fetch, FetchKind, Lacking};
pub use self::note::Note;
pub use self::orders::{
    AverageOrder, AverageReport, MergeOrder, MergeReport, ModuleReport, PoolOrder, PoolReport,
    Purpose,
};
use crate::masks::{MaskOrder, UnmaskOrder};
pub use crate::slices::{JoinOrder, JoinPurpose, JoinReport, SliceOrder, SliceReport};

/// Something that happened.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Input {
    /// The process is up; the first input.
    Start,
    /// A peer said a good hello, or a member that is not connected was heard of through others.
    PeerUp {
        /// The peer.
        node: NodeId,
        /// What it is.
        role: Role,
    },
    /// The last connection to a peer closed, or a member is heard of no more.
    PeerDown {
        /// The peer.
        node: NodeId,
    },
    /// The adverts that a peer knows have been pulled, so that silence now means something.
    Synced,
    /// An advert was accepted: signature, freshness and bounds are good. Our own come back too.
    Advert(#[serde(with = "shared")] Arc<Accepted>),
    /// A node signed two different adverts under one number, and both were heard.
    Equivocated {
        /// The node.
        node: NodeId,
    },
    /// The organiser has revoked a node's membership.
    Revoked {
        /// The node.
        node: NodeId,
    },
    /// A blob is held.
    Fetched(BlobId),
    /// Proxies are held and decoded.
    Proxies {
        /// Their blob.
        blob: BlobId,
        /// What it holds.
        #[serde(with = "shared")]
        proxies: Arc<ProxySet>,
    },
    /// A blob could not be had in time, or is not what it was said to be.
    FetchFailed {
        /// The blob, with the size that was announced.
        blob: BlobRef,
        /// What it was announced as.
        kind: FetchKind,
    },
    /// The local update is done and its blobs are in the store.
    Trained(LocalReport),
    /// The merge is done and the trainer has the result.
    Merged(MergeReport),
    /// An average is computed.
    Averaged(AverageReport),
    /// The word that takes masks off is made; nothing if the node's secrets of that round are gone.
    Unmasked {
        /// The round of the sum.
        round: Round,
        /// The word.
        word: Option<Unmask>,
    },
    /// The private module is made and in the store; `None` if the algorithm has none.
    Module(Option<ModuleReport>),
    /// The pool is assembled and the trainer serves the result.
    Pooled(PoolReport),
    /// A timer fired.
    Timer(Timer),
    /// The user wants this node to leave the federation for good.
    Leave,
    /// A slice of a mean is computed.
    Sliced(SliceReport),
    /// The slices of a mean are put together, or cannot be had.
    Joined(JoinReport),
}

/// Something to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Output {
    /// Sign and gossip this, to those whom [`fednode_core::BroadcastSet`] names.
    Publish {
        /// The round it is about.
        round: Round,
        /// What to say.
        body: Body,
    },
    /// Ask for adverts that were not heard, each first of the node that named it. Who has one sends it: [`Input::Advert`].
    Ask(Vec<Lacking>),
    /// Get a blob, from these nodes first.
    Fetch(Fetch),
    /// Train this round from the model as it is.
    Train {
        /// The round.
        round: Round,
        /// What to do about masked sums, where sums are masked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        masks: Option<Box<MaskOrder>>,
    },
    /// Say what takes this node's masks off a sum. The secrets of that round are gone afterwards.
    Unmask(Box<UnmaskOrder>),
    /// Mix experts and adopt the shared part.
    Merge(MergeOrder),
    /// Compute a mean.
    Average(AverageOrder),
    /// Make the private module that others may take into their pools; all rounds are done.
    Module {
        /// The last round.
        round: Round,
    },
    /// Screen the modules of others and learn a mixture of those that stay.
    Pool(PoolOrder),
    /// Write a checkpoint of this machine and of the model.
    Save,
    /// Call back at this time; a timer set again moves.
    SetTimer {
        /// Which.
        timer: Timer,
        /// When.
        at: Timestamp,
    },
    /// Hear these nodes too, of whom not everybody hears, and of no others of that kind. Their newest adverts come first.
    Follow(Vec<NodeId>),
    /// Lower a peer's score.
    Strike {
        /// The peer.
        node: NodeId,
        /// What it did.
        reason: String,
    },
    /// Drop a peer: it signed something false.
    Ban {
        /// The peer.
        node: NodeId,
        /// What it did.
        reason: String,
    },
    /// Delete these blobs: their owner takes them back.
    Forget(Vec<BlobId>),
    /// Tell the user.
    Note(Note),
    /// Get a slice of the parts of these members, and compute its mean.
    Slice(Box<SliceOrder>),
    /// Get the slices of a mean, and put them together.
    Join(Box<JoinOrder>),
}

/// When to be called back. Timers name their round, so that one of a past round is recognised and ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Timer {
    /// Look again whether the federation can be joined.
    Join,
    /// The aggregator has been silent for too long in this round.
    Takeover(Round),
    /// It is this node's turn to act as aggregator.
    Act(Round),
    /// This round's closing may count fewer from now on.
    Look(Round),
    /// The stragglers of this round have had their grace time.
    Grace(Round),
    /// The round's deadline.
    Deadline(Round),
    /// Nobody closed this round: go on alone.
    GiveUp(Round),
    /// A proposal of this round may be agreed to now, or everybody's word on it has been waited for.
    Unmask(Round),
    /// The masked sum of this round should be open: who keeps it from that is looked for.
    Opened(Round),
    /// Modules that have not been offered after this last round are not waited for any longer.
    Pool(Round),
    /// Slices of this round that nobody has averaged are somebody else's turn now.
    Slices(Round),
}
