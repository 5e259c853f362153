//! One line of `metrics.jsonl`: what a round took and what came of it.

use fednode_core::{Composition, Judged, MixedIn, NodeId, Round, Score, Timestamp};
use serde::{Deserialize, Serialize};

/// Bytes in one direction, by purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Bytes {
    /// Blobs exchanged with aggregators.
    pub aggregator: u64,
    /// Blobs exchanged with other nodes.
    pub peer_to_peer: u64,
    /// Adverts, forwarded ones and duplicates included.
    pub gossip: u64,
    /// Hello, sync and peer exchange.
    pub control: u64,
    /// Everything on the sockets, encrypted.
    pub wire: u64,
}

impl Bytes {
    /// Returns what was added since `earlier`.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self {
            aggregator: self.aggregator.saturating_sub(earlier.aggregator),
            peer_to_peer: self.peer_to_peer.saturating_sub(earlier.peer_to_peer),
            gossip: self.gossip.saturating_sub(earlier.gossip),
            control: self.control.saturating_sub(earlier.control),
            wire: self.wire.saturating_sub(earlier.wire),
        }
    }
}

/// Bytes in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Traffic {
    /// Sent.
    pub sent: Bytes,
    /// Received.
    pub received: Bytes,
}

impl Traffic {
    /// Returns what was added since `earlier`.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self {
            sent: self.sent.since(earlier.sent),
            received: self.received.since(earlier.received),
        }
    }
}

/// Seconds of a round that were not training, by cause. Causes do not overlap.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Waited {
    /// From the published update to the last expert.
    pub experts: f64,
    /// From then on to the closed round's mean.
    pub global: f64,
    /// Mixing experts and adopting the shared part.
    pub merge: f64,
    /// Evaluating, after local training and after the merge. It may overlap the exchange, which needs no trainer.
    pub evaluate: f64,
    /// Copying the model for checkpoints; writing them is not waited for.
    pub save: f64,
    /// Writing the update's blobs.
    pub publish: f64,
}

/// Epochs of the next round that were trained before it began.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Ahead {
    /// When their training began.
    pub started_at: Timestamp,
    /// How long it took.
    pub seconds: f64,
}

/// One line of `metrics.jsonl`: one row per node and round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RoundRecord {
    /// The round.
    pub round: Round,
    /// Who trained.
    pub node_id: NodeId,
    /// When its training began.
    pub started_at: Timestamp,
    /// Mean training loss over the last local epoch.
    pub train_loss: f64,
    /// Training samples.
    pub n_samples: u32,
    /// Seconds of training.
    pub train_seconds: f64,
    /// Multiply-adds of training, forward and backward, of convolutions and fully connected layers; records of earlier
    /// versions have none.
    #[serde(default)]
    pub multiply_adds: Option<u64>,
    /// The first epochs of the next round, trained while this one's exchange still ran.
    #[serde(default)]
    pub ahead: Option<Ahead>,
    /// Seconds from the start of training to the end of the merge, or of the evaluation after it.
    pub round_seconds: f64,
    /// Where the rest went.
    pub waited_seconds: Waited,
    /// Accuracy on the test split after the merge.
    pub accuracy: Option<f64>,
    /// Loss on the test split after the merge.
    pub loss: Option<f64>,
    /// By the measure that the spec names, on the test split after the merge; absent where it names none.
    #[serde(default)]
    pub judged: Option<Judged>,
    /// Validation split, after the merge.
    pub validation: Option<Score>,
    /// Accuracy on the test split after local training, before the merge.
    pub accuracy_after_local_training: Option<f64>,
    /// Loss on the test split after local training.
    pub loss_after_local_training: Option<f64>,
    /// By the measure that the spec names, on the test split after local training.
    #[serde(default)]
    pub judged_after_local_training: Option<Judged>,
    /// Validation split, after local training.
    pub validation_after_local_training: Option<Score>,
    /// Test samples behind the accuracies.
    pub test_samples: u32,
    /// Share of training samples routed to each expert.
    pub expert_share: Vec<f64>,
    /// Share of test samples routed to each expert after the merge.
    pub test_expert_share: Vec<f64>,
    /// How much the choice of the expert says of a test sample's domain, 0 to 1; absent where domains are not known.
    #[serde(default)]
    pub test_domain_information: Option<f64>,
    /// What the model lacks of what the spec asks for, and why.
    #[serde(default)]
    pub lacks: Option<String>,
    /// Why the model is of no use, if it is no better than a constant answer.
    #[serde(default)]
    pub useless: Option<String>,
    /// What the model that is served is made of, where it is more than the algorithm's.
    #[serde(default)]
    pub composition: Option<Composition>,
    /// Distinct foreign experts that were mixed in. A trial on validation samples may leave the mix out afterwards.
    pub n_sources_used: u32,
    /// Whose they were.
    #[serde(default)]
    pub mixed: Vec<MixedIn>,
    /// Members of the closed round.
    pub members: u32,
    /// Who closed the round; absent if nobody did.
    pub closed_by: Option<NodeId>,
    /// Bytes sent during the round.
    pub bytes_sent: Bytes,
    /// Bytes received during the round.
    pub bytes_received: Bytes,
    /// Resident bytes at its end.
    pub rss_bytes: Option<u64>,
    /// Most resident bytes so far.
    pub peak_rss_bytes: Option<u64>,
}

impl RoundRecord {
    /// Returns the training loss of a round in which something was trained. Where nodes only prepared their tables there is none.
    pub fn training_loss(&self) -> Option<f64> {
        (self.multiply_adds != Some(0)).then_some(self.train_loss)
    }

    /// Starts the record of a round.
    pub fn new(round: Round, node_id: NodeId, started_at: Timestamp) -> Self {
        Self {
            round,
            node_id,
            started_at,
            train_loss: 0.0,
            n_samples: 0,
            train_seconds: 0.0,
            multiply_adds: None,
            ahead: None,
            round_seconds: 0.0,
            waited_seconds: Waited::default(),
            accuracy: None,
            loss: None,
            judged: None,
            validation: None,
            accuracy_after_local_training: None,
            loss_after_local_training: None,
            judged_after_local_training: None,
            validation_after_local_training: None,
            test_samples: 0,
            expert_share: Vec::new(),
            test_expert_share: Vec::new(),
            test_domain_information: None,
            lacks: None,
            useless: None,
            composition: None,
            n_sources_used: 0,
            mixed: Vec::new(),
            members: 0,
            closed_by: None,
            bytes_sent: Bytes::default(),
            bytes_received: Bytes::default(),
            rss_bytes: None,
            peak_rss_bytes: None,
        }
    }

    /// Returns how good the model is on the test samples after the merge: by the measure that the spec names, else the
    /// accuracy, or R² of a number.
    pub fn score(&self) -> Option<f64> {
        score(self.judged.as_ref(), self.accuracy)
    }

    /// Returns how good it was after local training.
    pub fn score_after_local_training(&self) -> Option<f64> {
        score(
            self.judged_after_local_training.as_ref(),
            self.accuracy_after_local_training,
        )
    }
}

/// A measure without a value is not replaced by another one, with which it could not be compared.
fn score(judged: Option<&Judged>, accuracy: Option<f64>) -> Option<f64> {
    judged.map_or(accuracy, |judged| judged.value)
}
