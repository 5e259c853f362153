//! What the control API says: the words shared by the server here and its clients.
//!
//! Everything is plain data for JSON. Fields are only ever added, so that a newer client reads an older daemon.

use fednode_core::{
    ExpertId, FederationId, MixedIn, NodeId, PoolOutcome, Role, Round, Score, Slot, Timestamp,
};
use fednode_engine::Phase;
use serde::{Deserialize, Serialize};

use crate::trainer::{Evaluations, TrainProgress, TrainerCard};

/// Answer of `GET /v1/status`: what this process is doing, and what it waits for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Who it is.
    pub node_id: NodeId,
    /// What it is to the federation.
    pub role: Role,
    /// The federation's id.
    pub federation: FederationId,
    /// The federation's name.
    pub name: String,
    /// The federated algorithm.
    pub algorithm: String,
    /// Where in a node's life it is.
    pub phase: Phase,
    /// The round that is being worked on.
    pub round: Round,
    /// Rounds in all.
    pub rounds: u32,
    /// The newest closed round.
    pub closed_round: Round,
    /// What it waits for, most important first.
    pub waiting_for: Vec<WaitingFor>,
    /// Where the local update is, while one runs.
    pub training: Option<TrainProgress>,
    /// The newest complete record.
    pub last_record: Option<RoundRecord>,
    /// Peers that said a good hello.
    pub peers: usize,
    /// Bytes since the start of the process.
    pub traffic: Traffic,
    /// Model, data and device; absent for an aggregator.
    pub trainer: Option<TrainerCard>,
    /// Seconds since the start of the process.
    pub uptime_seconds: f64,
    /// Version of the software.
    pub version: String,
    /// Addresses to give to others, each with `/p2p/<node id>`.
    pub listeners: Vec<String>,
    /// The last lines of news, oldest first.
    pub notes: Vec<Remark>,
    /// Whether all rounds are done.
    pub finished: bool,
    /// How good the model is after the stage that follows the last round, if the algorithm has one.
    pub finished_evaluation: Option<Evaluations>,
    /// What became of the pool of private modules, if there was one.
    #[serde(default)]
    pub pool: Option<PoolOutcome>,
    /// Resident bytes.
    pub rss_bytes: Option<u64>,
    /// Most resident bytes so far.
    pub peak_rss_bytes: Option<u64>,
    /// Bytes of blobs held.
    pub blob_bytes: u64,
    /// Free bytes on the state folder's disk.
    pub disk_free_bytes: Option<u64>,
    /// The state folder.
    pub state_folder: String,
}

/// One thing that is waited for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WaitingFor {
    /// What.
    pub what: String,
    /// From whom; empty if it is not a peer's to give.
    pub whom: Vec<NodeId>,
    /// How long already.
    pub seconds: f64,
}

/// One line of news.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remark {
    /// When.
    pub at: Timestamp,
    /// What.
    pub text: String,
    /// Whether it is something to see to.
    #[serde(default)]
    pub is_trouble: bool,
}

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

impl From<fednode_net::TrafficSnapshot> for Traffic {
    fn from(snapshot: fednode_net::TrafficSnapshot) -> Self {
        let sent = Bytes {
            aggregator: snapshot.blob_sent_to_aggregators,
            peer_to_peer: snapshot.blob_sent_to_nodes,
            gossip: snapshot.gossip_sent,
            control: snapshot.control_sent,
            wire: snapshot.wire_sent,
        };
        let received = Bytes {
            aggregator: snapshot.blob_received_from_aggregators,
            peer_to_peer: snapshot.blob_received_from_nodes,
            gossip: snapshot.gossip_received,
            control: snapshot.control_received,
            wire: snapshot.wire_received,
        };
        Self { sent, received }
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
    /// Validation split, after the merge.
    pub validation: Option<Score>,
    /// Accuracy on the test split after local training, before the merge.
    pub accuracy_after_local_training: Option<f64>,
    /// Loss on the test split after local training.
    pub loss_after_local_training: Option<f64>,
    /// Validation split, after local training.
    pub validation_after_local_training: Option<Score>,
    /// Test samples behind the accuracies.
    pub test_samples: u32,
    /// Share of training samples routed to each expert.
    pub expert_share: Vec<f64>,
    /// Share of test samples routed to each expert after the merge.
    pub test_expert_share: Vec<f64>,
    /// Distinct foreign experts that were mixed in.
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
            validation: None,
            accuracy_after_local_training: None,
            loss_after_local_training: None,
            validation_after_local_training: None,
            test_samples: 0,
            expert_share: Vec::new(),
            test_expert_share: Vec::new(),
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
}

/// Answer of `GET /v1/experts`: the plan in force and whose experts are held.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Experts {
    /// The round whose proxies the plan was computed from; absent while every expert stays as it is.
    pub planned_in: Option<Round>,
    /// One row per own expert.
    pub rows: Vec<ExpertRow>,
}

/// What is mixed into one own expert.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExpertRow {
    /// The own expert.
    pub slot: Slot,
    /// Its sources, best first.
    pub sources: Vec<ExpertSource>,
}

/// One source of a row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExpertSource {
    /// The expert.
    pub expert: ExpertId,
    /// Whether it is this node's own.
    pub own: bool,
    /// Similarity of its proxy with the row's.
    pub similarity: f64,
    /// Its share of the mix.
    pub weight: f64,
    /// The round of the version that is held; absent if none is.
    pub held_from: Option<Round>,
}

/// One peer, in the answer of `GET /v1/peers`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Peer {
    /// Who.
    pub node_id: NodeId,
    /// What it is.
    pub role: Role,
    /// Addresses of its connections.
    pub addresses: Vec<String>,
    /// How long it has been connected.
    pub connected_seconds: f64,
    /// Round trip of the latest ping.
    pub rtt_milliseconds: Option<f64>,
    /// Name and version of its software.
    pub software: String,
    /// Blobs that it said it holds.
    pub holds: usize,
    /// Strikes against it, faded; 0 is a clean record.
    pub score: f64,
}

/// Contents of `control.json`: where the control API is and how to get in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlFile {
    /// Address of the server.
    pub address: std::net::SocketAddr,
    /// The bearer token.
    pub token: String,
    /// The process.
    pub pid: u32,
}

/// An error of the control API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// What is wrong.
    pub error: String,
}
