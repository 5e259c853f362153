//! Invented nodes for the tests of this folder.

use fednode_core::{FederationId, NodeId, Role, Round, Timestamp};
use fednode_engine::Phase;
use fednode_runtime::status::{Bytes, RoundRecord, Status, Traffic, Waited};
use fednode_runtime::trainer::TrainerCard;

/// Who it is.
pub(super) const NODE: NodeId = NodeId::from_bytes([7; 32]);

/// A node in training that has finished `done` of three rounds.
pub(super) fn status(done: u32) -> Status {
    let wire = |wire| Bytes {
        wire,
        ..Bytes::default()
    };
    Status {
        node_id: NODE,
        role: Role::Node,
        federation: FederationId::from_bytes([0; 32]),
        name: "digits".into(),
        algorithm: "fedmoe-da".into(),
        score: "accuracy".into(),
        phase: Phase::Training,
        round: Round(done + 1),
        rounds: 3,
        closed_round: Round(done),
        waiting_for: vec![],
        training: None,
        last_record: (done > 0).then(|| record(done)),
        peers: 4,
        traffic: Traffic {
            sent: wire(1000),
            received: wire(2000),
        },
        trainer: Some(TrainerCard {
            train_samples: 80,
            test_samples: 20,
            classes: vec![1, 2],
            ..Default::default()
        }),
        uptime_seconds: 1.0,
        version: "0".into(),
        listeners: vec![],
        notes: vec![],
        finished: false,
        finished_evaluation: None,
        pool: None,
        rss_bytes: Some(1),
        peak_rss_bytes: Some(50),
        blob_bytes: 0,
        disk_free_bytes: None,
        state_folder: String::new(),
    }
}

/// A round that took ten seconds, eight of them training.
pub(crate) fn record(round: u32) -> RoundRecord {
    RoundRecord {
        train_loss: 0.5,
        train_seconds: 8.0,
        round_seconds: 10.0,
        waited_seconds: Waited {
            experts: 1.0,
            ..Waited::default()
        },
        accuracy: Some(0.75),
        accuracy_after_local_training: Some(0.5),
        test_samples: 20,
        test_expert_share: vec![0.25, 0.75],
        bytes_sent: Bytes {
            aggregator: 10,
            peer_to_peer: 100,
            gossip: 5,
            ..Bytes::default()
        },
        bytes_received: Bytes {
            aggregator: 30,
            peer_to_peer: 200,
            gossip: 7,
            ..Bytes::default()
        },
        ..RoundRecord::new(Round(round), NODE, Timestamp(0))
    }
}
