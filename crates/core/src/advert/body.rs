//! What adverts say: one struct for each kind, and the bounds that an honest node keeps.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::AdvertError;
use crate::masked::{Agreement, Bytes32, MAX_HOLDERS, MaskOffer, Proposal, Unmask};
use crate::{
    AdvertId, BlobId, BlobRef, ClosingId, InlineProxies, Lineage, MAX_BLOB_BYTES, MAX_EXPERTS,
    MAX_SLICES, NodeId, Round, Sketches,
};

/// Largest proxies that ride inside an advert.
pub const MAX_INLINE_PROXY_BYTES: usize = 16 << 10;
/// Most members of one round: what fits into an advert. With more, a seeded draw decides who is counted.
pub const MAX_MEMBERS: usize = 512;
/// Most nodes that a local update recommends: enough to find more similar nodes, for a kilobyte.
pub const MAX_PEERS: usize = 32;
/// Most blobs that one `Withdraw` names.
pub const MAX_WITHDRAWN: usize = 512;
/// Most withdrawals that one `Removed` answers.
pub const MAX_REMOVALS: usize = 64;
/// The kinds of advert.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(
    clippy::large_enum_variant,
    reason = "most adverts are the largest: updates"
)]
pub enum Body {
    /// "My local update of this round is done."
    Local(Local),
    /// "This round is closed."
    // Shared in memory: whoever looks into it keeps it, and it may name hundreds of members.
    #[serde(with = "crate::shared")]
    Global(Arc<Global>),
    /// "My private module, frozen": a member for the pools of others.
    Pool(PoolOffer),
    /// "Stop using these blobs of mine."
    Withdraw(Withdraw),
    /// "I go; finish without me."
    Leave,
    /// "This node signed something false, and here is the proof."
    Fault(Fault),
    /// "Let us add up these masked vectors."
    Propose(Proposal),
    /// "I agree that these are added up, and no others."
    Agree(Agreement),
    /// "This takes the masks off their sum."
    Unmask(Unmask),
    /// "I have deleted what these withdrawals name."
    Removed(Removed),
    /// "I have averaged these slices of what was proposed."
    Slices(Slices),
}

/// A finished local update.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Local {
    /// The shared part it was trained on; proxies compare only within one.
    pub lineage: Lineage,
    /// The last closed round's mean that the node adopted. It differs from the lineage only for a node that had to go
    /// on alone; updates with one parent may be averaged.
    pub parent: Lineage,
    /// The closed round that the node follows; nothing before the first. A closing counts only who follows the one before.
    pub follows: Option<ClosingId>,
    /// The node's version of the averaged part.
    pub shared: Option<BlobRef>,
    /// Its experts, in slot order.
    pub experts: Vec<ExpertOffer>,
    /// Its gating proxies, in rounds that refresh them.
    pub proxies: Option<ProxyOffer>,
    /// Sketches of the proxies, in a federation too large for everybody to fetch everybody's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sketches: Option<Sketches>,
    /// The nodes whose experts are most like its own, as far as it knows, in a federation in which not everybody hears
    /// of all. Others who are like it may look for more of their kind there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<NodeId>,
    /// Always empty. It stays, because what was signed with it must be read: histories, and adverts in state folders.
    pub statistics: Option<BlobRef>,
    /// Training samples behind it; 0 where sums are masked, which keep that to themselves.
    pub n_samples: u32,
    /// What the masked sum of the next round needs of the node, where sums are masked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offer: Option<Box<MaskOffer>>,
}

/// One expert on offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertOffer {
    /// Its parameters.
    pub blob: BlobRef,
    /// Training samples that the gate routed to it, over all local epochs.
    pub samples_routed: u32,
}

/// Proxies, small ones inside the advert.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProxyOffer {
    /// The proxies themselves, at most [`MAX_INLINE_PROXY_BYTES`].
    Inline(InlineProxies),
    /// The blob that holds them.
    Blob(BlobRef),
}

/// One member of a closed round. It travels without the names of its fields: a closing names up to [`MAX_MEMBERS`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(from = "MemberFields", into = "MemberFields")]
pub struct Member {
    /// Whose shared part.
    pub node: NodeId,
    /// The part that was averaged.
    pub shared: BlobRef,
    /// How much it counted.
    pub weight: f64,
    /// The advert in which the member signed what it is counted with.
    pub advert: AdvertId,
}

/// Node, part, bytes of the part, weight, advert.
type MemberFields = (NodeId, BlobId, u64, f64, AdvertId);

impl From<MemberFields> for Member {
    fn from((node, id, size, weight, advert): MemberFields) -> Self {
        let shared = BlobRef { id, size };
        Self {
            node,
            shared,
            weight,
            advert,
        }
    }
}

impl From<Member> for MemberFields {
    fn from(member: Member) -> Self {
        let BlobRef { id, size } = member.shared;
        (member.node, id, size, member.weight, member.advert)
    }
}

/// A closed round: everything needed to recompute it, and the words of those who were counted.
///
/// It is a certificate: each member is confirmed by an advert that it signed itself, which anybody can ask for by name,
/// and the closing names the one before it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Global {
    /// Who was averaged, in node order.
    pub members: Vec<Member>,
    /// The result.
    pub mean: BlobRef,
    /// The lineage of the members: the mean of the round that this one follows.
    pub parent: Lineage,
    /// The closed round that this one follows; nothing before the first.
    pub previous: Option<ClosingId>,
    /// The words that took the masks off the sum, and who said them, where sums are masked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unmasked: Vec<(NodeId, AdvertId)>,
    /// Which two averaged each slice of the mean, and their words that say so, where it was averaged in slices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slices: Vec<(NodeId, AdvertId)>,
}

/// A frozen private module on offer (PM-MoE), or the word that its owner keeps it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolOffer {
    /// What it is: `head`, `extractor`, `expert`.
    pub kind: String,
    /// The shared part it fits.
    pub lineage: Lineage,
    /// Its parameters; nothing if its owner keeps them to itself, so that nobody waits for them.
    pub blob: Option<BlobRef>,
    /// Accuracy on its owner's validation split; 0 without any, and of a module that is kept.
    pub score: f64,
}

/// Blobs whose owner takes them back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Withdraw {
    /// The blobs.
    pub blobs: Vec<BlobId>,
}

/// Answers to withdrawals: what their author still holds, after it has deleted what it need not keep.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Removed {
    /// One for each withdrawal.
    pub removals: Vec<Removal>,
}

/// The answer to one withdrawal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Removal {
    /// Who took its blobs back.
    pub owner: NodeId,
    /// The advert that names them.
    pub withdrawn: AdvertId,
    /// How many of them are still held: a closed round counts them, or somebody else has published the same.
    pub kept: u32,
}

/// Slices of a mean that a member has averaged. A later word of the same proposal names the former ones, too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slices {
    /// The hash of the proposal that names the members.
    pub of: Bytes32,
    /// The slices, by number.
    pub means: Vec<SliceMean>,
}

/// One slice of a mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SliceMean {
    /// Its number, from 0 on.
    pub slice: u32,
    /// Its bytes: those that the file of the mean has in this place.
    pub mean: BlobRef,
}

/// Proof that a node closed a round wrongly: its own signed words. Whoever doubts it recomputes the mean.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// Who said it.
    pub accused: NodeId,
    /// The advert with the false `Global`, or with a false slice. Whoever has not heard it can ask for it by this name.
    pub evidence: AdvertId,
    /// What the mean of its members, or the slice, really is.
    pub actual: BlobId,
    /// The slice that is false, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice: Option<u32>,
}

impl From<Global> for Body {
    fn from(global: Global) -> Self {
        Self::Global(Arc::new(global))
    }
}

impl Body {
    /// Returns the kind as one word, for logs and metrics.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Local(_) => "local",
            Self::Global(_) => "global",
            Self::Pool(_) => "pool",
            Self::Withdraw(_) => "withdraw",
            Self::Leave => "leave",
            Self::Fault(_) => "fault",
            Self::Propose(_) => "propose",
            Self::Agree(_) => "agree",
            Self::Unmask(_) => "unmask",
            Self::Removed(_) => "removed",
            Self::Slices(_) => "slices",
        }
    }

    /// Tells whether it travels on the control topic, where it must not queue behind local updates.
    pub const fn is_control(&self) -> bool {
        !matches!(self, Self::Local(_) | Self::Pool(_) | Self::Removed(_))
    }

    /// Returns the blobs that an accepted advert allows to be fetched.
    pub fn blobs(&self) -> Vec<BlobRef> {
        match self {
            Self::Local(local) => {
                let proxies = match &local.proxies {
                    Some(ProxyOffer::Blob(blob)) => Some(*blob),
                    _ => None,
                };
                let parts = local
                    .shared
                    .into_iter()
                    .chain(proxies)
                    .chain(local.statistics);
                parts
                    .chain(local.experts.iter().map(|offer| offer.blob))
                    .collect()
            }
            Self::Global(global) => global.blobs(),
            Self::Pool(offer) => offer.blob.into_iter().collect(),
            Self::Propose(proposal) => shared_of(&proposal.members).collect(),
            Self::Slices(slices) => slices.means.iter().map(|slice| slice.mean).collect(),
            Self::Withdraw(_) | Self::Leave | Self::Fault(_) => Vec::new(),
            Self::Agree(_) | Self::Unmask(_) | Self::Removed(_) => Vec::new(),
        }
    }

    pub(super) fn check(&self) -> Result<(), AdvertError> {
        if self.blobs().iter().any(|blob| blob.size > MAX_BLOB_BYTES) {
            return Err(AdvertError::Bounds("a blob beyond the size limit"));
        }
        match self {
            Self::Local(local) => local.check(),
            Self::Global(global) => global.check(),
            Self::Pool(offer) if offer.kind.len() > 32 || !offer.score.is_finite() => {
                Err(AdvertError::Bounds("a malformed pool offer"))
            }
            Self::Withdraw(withdraw) if withdraw.blobs.len() > MAX_WITHDRAWN => {
                Err(AdvertError::Bounds("too many withdrawn blobs"))
            }
            Self::Removed(removed) => removed.check(),
            Self::Propose(proposal) => check_members(&proposal.members),
            Self::Slices(slices) => slices.check(),
            Self::Unmask(said) if said.shares.len() > MAX_HOLDERS => {
                Err(AdvertError::Bounds("too many shares"))
            }
            Self::Pool(_) | Self::Withdraw(_) | Self::Leave | Self::Fault(_) => Ok(()),
            Self::Agree(_) | Self::Unmask(_) => Ok(()),
        }
    }
}

impl Slices {
    fn check(&self) -> Result<(), AdvertError> {
        let is_ordered = self.means.is_sorted_by(|a, b| a.slice < b.slice);
        let is_known = self.means.iter().all(|mean| mean.slice < MAX_SLICES);
        if self.means.is_empty() || !is_ordered || !is_known {
            return Err(AdvertError::Bounds("malformed slices of a mean"));
        }
        Ok(())
    }
}

impl Removed {
    fn check(&self) -> Result<(), AdvertError> {
        let is_possible = |removal: &Removal| removal.kept as usize <= MAX_WITHDRAWN;
        if self.removals.len() > MAX_REMOVALS || !self.removals.iter().all(is_possible) {
            return Err(AdvertError::Bounds("malformed answers to withdrawals"));
        }
        Ok(())
    }
}

impl Local {
    /// Returns an update that offers nothing yet.
    pub fn new(lineage: Lineage, n_samples: u32) -> Self {
        let (experts, peers) = (Vec::new(), Vec::new());
        let (shared, proxies, sketches, statistics) = (None, None, None, None);
        Self {
            lineage,
            parent: lineage,
            follows: None,
            shared,
            experts,
            proxies,
            sketches,
            peers,
            statistics,
            n_samples,
            offer: None,
        }
    }

    fn check(&self) -> Result<(), AdvertError> {
        let inline_bytes = match &self.proxies {
            Some(ProxyOffer::Inline(inline)) => inline.bytes().len(),
            _ => 0,
        };
        match () {
            () if self.experts.len() > MAX_EXPERTS => Err(AdvertError::Bounds("too many experts")),
            () if self.peers.len() > MAX_PEERS => Err(AdvertError::Bounds("too many peers")),
            () if self
                .sketches
                .as_ref()
                .is_some_and(|sketches| !sketches.fit(self.experts.len())) =>
            {
                Err(AdvertError::Bounds("sketches that are not one per expert"))
            }
            () if inline_bytes > MAX_INLINE_PROXY_BYTES => {
                Err(AdvertError::Bounds("oversized inline proxies"))
            }
            () if self
                .offer
                .as_ref()
                .is_some_and(|offer| offer.holders.len() > MAX_HOLDERS) =>
            {
                Err(AdvertError::Bounds("too many holders of shares"))
            }
            () => Ok(()),
        }
    }
}

impl Global {
    /// Returns the name of this closing of a round: a hash of all that it says.
    pub fn id(&self, round: Round) -> ClosingId {
        // Hashed at once: in small pieces it takes several times as long, and every node does it for every closing.
        let lines = self.members.len() + self.unmasked.len() + self.slices.len() + 2;
        let mut said = Vec::with_capacity(128 * lines);
        said.extend(u64::from(round.0).to_le_bytes());
        said.extend((self.members.len() as u64).to_le_bytes());
        said.extend(self.mean.size.to_le_bytes());
        said.extend(self.mean.id.as_bytes());
        said.extend(self.parent.as_bytes());
        // All zeros is no hash of anything, so it can stand for the beginning.
        let previous = self.previous.map_or([0; 32], |id| *id.as_bytes());
        said.extend(previous);
        for member in &self.members {
            said.extend(member.node.as_bytes());
            said.extend(member.shared.id.as_bytes());
            said.extend(member.shared.size.to_le_bytes());
            said.extend(member.weight.to_bits().to_le_bytes());
            said.extend(member.advert.as_bytes());
        }
        // Without masks there is nothing to hash, so closings of open sums have the names that they always had.
        let words = |words: &[(NodeId, AdvertId)]| -> Vec<u8> {
            let bytes =
                |(node, advert): &(NodeId, AdvertId)| [*node.as_bytes(), *advert.as_bytes()];
            words.iter().flat_map(bytes).flatten().collect()
        };
        said.extend(words(&self.unmasked));
        if !self.slices.is_empty() {
            said.extend(b"slices");
            said.extend(words(&self.slices));
        }
        ClosingId::from_bytes(blake3::derive_key("fednode closing 1", &said))
    }

    /// Visits the words on which the mean rests, and who said them: those that took masks off, or that name slices.
    pub fn words(&self) -> impl Iterator<Item = (NodeId, AdvertId)> + '_ {
        self.unmasked.iter().chain(&self.slices).copied()
    }

    fn blobs(&self) -> Vec<BlobRef> {
        shared_of(&self.members).chain([self.mean]).collect()
    }

    fn check(&self) -> Result<(), AdvertError> {
        if self.unmasked.len() > MAX_HOLDERS + 1 {
            return Err(AdvertError::Bounds("too many words that take masks off"));
        }
        if self.slices.len() > 2 * MAX_SLICES as usize {
            return Err(AdvertError::Bounds("too many slices of a mean"));
        }
        check_members(&self.members)
    }
}

fn shared_of(members: &[Member]) -> impl Iterator<Item = BlobRef> + '_ {
    members.iter().map(|member| member.shared)
}

fn check_members(members: &[Member]) -> Result<(), AdvertError> {
    let is_ordered = members.is_sorted_by(|a, b| a.node < b.node);
    let has_weight = |member: &Member| member.weight.is_finite() && member.weight > 0.0;
    match () {
        () if members.is_empty() => Err(AdvertError::Bounds("no members")),
        () if members.len() > MAX_MEMBERS => Err(AdvertError::Bounds("too many members")),
        () if !is_ordered => Err(AdvertError::Bounds("members out of order or counted twice")),
        () if !members.iter().all(has_weight) => {
            Err(AdvertError::Bounds("a member of impossible weight"))
        }
        () => Ok(()),
    }
}
