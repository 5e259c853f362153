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

use std::collections::BTreeMap;
use std::sync::Arc;

use fednode_core::masked::Unmask;
use fednode_core::{
    Accepted, AdvertId, BlobId, BlobRef, Body, ExpertId, LocalReport, Member, NodeId, PlanRow,
    ProxySet, Role, Round, Timestamp,
};
use serde::{Deserialize, Serialize};

use crate::encoding::{as_list, shared};
use crate::masks::{MaskOrder, Masked, UnmaskOrder};
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
    /// Proxies: answer with [`Input::Proxies`].
    Proxies,
    /// A member's shared part, or a mean.
    Shared,
    /// A foreign private module.
    Module,
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

/// Experts to mix and a shared part to adopt. Carried out by [`crate::execute::merge`].
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct MergeOrder {
    /// The round being merged.
    pub round: Round,
    /// The shared part to adopt, `None` to keep the own one.
    pub adopt: Option<BlobRef>,
    /// Whose statistics the shared part is the mean of; nothing if it is one of no statistics.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<Member>,
    /// The plan's rows, weights not yet renormalised.
    pub rows: Vec<PlanRow>,
    /// The own experts after training, by slot.
    pub own: Vec<BlobRef>,
    /// The foreign experts that are held.
    #[serde(with = "as_list")]
    pub sources: BTreeMap<ExpertId, BlobRef>,
}

/// Members of statistics are shown where there are any: in one round of some federations.
impl std::fmt::Debug for MergeOrder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("MergeOrder");
        shown
            .field("round", &self.round)
            .field("adopt", &self.adopt);
        if !self.members.is_empty() {
            shown.field("members", &self.members);
        }
        shown
            .field("rows", &self.rows)
            .field("own", &self.own)
            .field("sources", &self.sources)
            .finish()
    }
}

/// What became of a merge.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct MergeReport {
    /// The round.
    pub round: Round,
    /// Foreign experts that were screened out, and why.
    pub rejected: Vec<(ExpertId, String)>,
    /// Of those screened out, whose owners are not to blame: an unscaled table makes an honest owner's parameters large.
    #[serde(default)]
    pub excused: Vec<ExpertId>,
    /// Why the shared part was not adopted, if it was refused.
    pub refused_mean: Option<String>,
    /// Whether the mean to adopt is not held any more, for which nobody is to blame.
    pub lost_mean: bool,
}

/// Why a mean is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Purpose {
    /// To close a round.
    Close,
    /// To check what somebody else signed; the trial of that number.
    Verify(u32),
}

/// A mean to compute. Carried out by [`crate::execute::average`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AverageOrder {
    /// The round.
    pub round: Round,
    /// Why.
    pub purpose: Purpose,
    /// Whose shared parts, all of them held, in node order.
    pub members: Vec<Member>,
    /// How masks come off, where sums are masked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub masked: Option<Box<Masked>>,
}

/// What became of an average.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AverageReport {
    /// The order's round.
    pub round: Round,
    /// The order's purpose.
    pub purpose: Purpose,
    /// The mean, now in the store; `None` when nothing could be averaged.
    pub mean: Option<BlobRef>,
    /// Members that were counted.
    pub members: Vec<Member>,
    /// Members that were screened out, and why (only when closing).
    pub rejected: Vec<(NodeId, String)>,
    /// Members whose part is not held any more, for which nobody is to blame.
    pub lost: Vec<NodeId>,
    /// Of those screened out, who are not to blame: an unscaled table makes an honest member's parameters large.
    #[serde(default)]
    pub excused: Vec<NodeId>,
    /// Members whose statistics are not in the mean, and why. They are counted: whoever recomputes the mean leaves them out.
    #[serde(default)]
    pub disbelieved: Vec<(NodeId, String)>,
    /// Why these parts have no mean, if they have none. The same parts would have none again.
    #[serde(default)]
    pub impossible: Option<String>,
}

impl AverageReport {
    /// Makes the report of an order of which nothing came yet.
    pub fn of(order: &AverageOrder) -> Self {
        Self {
            round: order.round,
            purpose: order.purpose,
            mean: None,
            members: Vec::new(),
            rejected: Vec::new(),
            lost: Vec::new(),
            excused: Vec::new(),
            disbelieved: Vec::new(),
            impossible: None,
        }
    }
}

/// A private module, in the store if it is for others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModuleReport {
    /// What it is: `head`, `extractor`, `vector`, `expert`.
    pub kind: String,
    /// Its parameters; nothing if its owner keeps them to itself.
    pub blob: Option<BlobRef>,
    /// Accuracy on the owner's validation samples; 0 without any, and of a module that is kept.
    pub score: f64,
}

/// A pool to make of the own module and these, all of them held, in node order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PoolOrder {
    /// The modules of others.
    pub members: Vec<(NodeId, BlobRef)>,
}

/// What became of a pool.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PoolReport {
    /// Modules that were screened out as malformed, and why.
    pub refused: Vec<(NodeId, String)>,
}

/// Something a user should know; the daemon logs it and shows it in `status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Note {
    /// A round begins.
    RoundStarted(Round),
    /// This node is not drawn to train in this round.
    SitsOut(Round),
    /// A round's exchange is complete.
    RoundClosed {
        /// The round.
        round: Round,
        /// Who closed it; `None` if nobody did and the node went on alone.
        by: Option<NodeId>,
        /// How many members were averaged.
        members: u32,
    },
    /// Experts that the plan names did not arrive in time.
    MissingExperts {
        /// The round.
        round: Round,
        /// Which.
        experts: Vec<ExpertId>,
    },
    /// The aggregator is silent and this node acts in its place.
    Acting(Round),
    /// Too few members are reachable; the node trains on alone.
    Isolated(Round),
    /// The federation went on without this node, or a larger part of it was found: the node follows.
    Rejoined {
        /// The round it left.
        from: Round,
        /// The round it goes on with.
        to: Round,
    },
    /// A node signed two different adverts under one number.
    Equivocated(NodeId),
    /// The organiser has revoked this node's membership: nothing that it says from now on counts.
    Revoked(NodeId),
    /// A node signed a false mean.
    CheatFound {
        /// The node.
        node: NodeId,
        /// The round.
        round: Round,
    },
    /// A node lied about its masks.
    LiedAboutMasks {
        /// The node.
        node: NodeId,
        /// The round of the sum.
        round: Round,
        /// What it did.
        reason: String,
    },
    /// A peer seems to have the classes under other names.
    Renamed {
        /// The peer.
        node: NodeId,
        /// Pairs of a class of this node and the peer's class that is like it.
        classes: Vec<(u32, u32)>,
    },
    /// The statistics of a member are left out of the mean.
    Disbelieved {
        /// The round.
        round: Round,
        /// Whose.
        node: NodeId,
        /// Why.
        reason: String,
    },
    /// The private modules that can be had are known.
    PoolGathered {
        /// Who shared the last round but has offered none.
        missing: Vec<NodeId>,
        /// Whose module belongs to another shared part, or is of another size.
        strangers: Vec<NodeId>,
    },
    /// All rounds are done.
    Finished,
}
