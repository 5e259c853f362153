//! What a trainer reports of its work.

use serde::{Deserialize, Serialize};

use crate::masked::MaskOffer;
use crate::{BlobRef, ExpertOffer, Lineage, NodeId, ProxyOffer, Round, Sketches};

/// How good a model is on one split of a node's data.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Score {
    /// Share of correct predictions, 0 to 1; of a number R², the share of the variance that is explained, 1 at most.
    pub accuracy: f64,
    /// Mean cross-entropy in nats; of a number half the mean square of the error, in halves of the range.
    pub loss: f64,
    /// Samples it was computed on.
    pub n_samples: u32,
}

/// How good a model is on a node's test samples, by the measure that `metric` of the spec names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// The measure, as the spec names it.
    pub measure: String,
    /// Its value; nothing where it has none, as AUROC has without samples of each class.
    pub value: Option<f64>,
}

/// A finished local update, as the engine needs it: everything large is already a blob in the store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LocalReport {
    /// The round it was trained for.
    pub round: Round,
    /// The shared part it started from.
    pub lineage: Lineage,
    /// The node's version of the averaged part.
    pub shared: Option<BlobRef>,
    /// Its experts in slot order.
    pub experts: Vec<ExpertOffer>,
    /// Its experts as they were trained, if those on offer are narrowed: what the node itself goes on with.
    #[serde(default)]
    pub own_experts: Vec<BlobRef>,
    /// Its proxies, in refresh rounds.
    pub proxies: Option<ProxyOffer>,
    /// Sketches of them, in a federation that uses sketches.
    #[serde(default)]
    pub sketches: Option<Sketches>,
    /// Training samples.
    pub n_samples: u32,
    /// Mean training loss over the last local epoch.
    pub train_loss: f64,
    /// Share of training samples routed to each expert in this round.
    pub expert_share: Vec<f64>,
    /// What the masked sum of the next round needs of the node, where sums are masked.
    #[serde(default)]
    pub offer: Option<Box<MaskOffer>>,
}

impl LocalReport {
    /// Returns the experts that the node itself mixes, in slot order.
    pub fn experts_to_mix(&self) -> Vec<BlobRef> {
        if self.own_experts.is_empty() {
            self.experts.iter().map(|offer| offer.blob).collect()
        } else {
            self.own_experts.clone()
        }
    }
}

/// A node whose experts were mixed into one's own.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MixedIn {
    /// Whose they are.
    pub node: NodeId,
    /// The highest cosine similarity of a proxy of theirs with that of an own expert (FedMoE-DA Eq. 8), -1 to 1.
    pub similarity: f64,
    /// Their weight in the mixtures (Eq. 10), mean over the own experts, 0 to 1.
    pub weight: f64,
}
