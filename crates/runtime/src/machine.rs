//! The little that a driver needs of a machine: the same loop runs a node and an aggregator.

use std::collections::BTreeSet;

use fednode_core::{BlobId, NodeId, Round, Timestamp};
use fednode_engine::{Aggregator, Input, Node, Output, Phase, State, Status};

use crate::recording::Image;

/// A pure state machine.
pub(crate) trait Machine: Send + 'static {
    /// Takes an input and returns what to do about it.
    fn handle(&mut self, now: Timestamp, input: Input) -> Vec<Output>;
    /// Returns what it is doing.
    fn status(&self, now: Timestamp) -> Status;
    /// Returns the blobs that must stay.
    fn needed_blobs(&self) -> BTreeSet<BlobId>;
    /// Leaves those blobs of an owner that may be deleted if it takes them back.
    fn free_of(&self, owner: NodeId, blobs: &[BlobId]) -> Vec<BlobId>;
    /// Returns the blobs that were taken back and that nobody needs any more.
    fn taken_back(&self) -> Vec<BlobId>;
    /// Returns what a checkpoint must keep, as JSON.
    fn snapshot(&self) -> serde_json::Value;
    /// Returns the state of a machine that trains; `None` for one that does not.
    fn training_state(&self) -> Option<State>;
    /// Returns the phase.
    fn phase(&self) -> Phase;
    /// Returns the round that is being worked on.
    fn round(&self) -> Round;
    /// Returns the whole state, for a recording.
    fn image(&self) -> Image;
}

impl Machine for Node {
    fn handle(&mut self, now: Timestamp, input: Input) -> Vec<Output> {
        self.handle(now, input)
    }

    fn status(&self, now: Timestamp) -> Status {
        self.status(now)
    }

    fn needed_blobs(&self) -> BTreeSet<BlobId> {
        self.needed_blobs()
    }

    fn free_of(&self, owner: NodeId, blobs: &[BlobId]) -> Vec<BlobId> {
        self.free_of(owner, blobs)
    }

    fn taken_back(&self) -> Vec<BlobId> {
        self.taken_back()
    }

    fn snapshot(&self) -> serde_json::Value {
        serde_json::to_value(self.checkpoint())
            .expect("a state has only text keys and finite numbers")
    }

    fn training_state(&self) -> Option<State> {
        Some(self.checkpoint())
    }

    fn phase(&self) -> Phase {
        self.phase()
    }

    fn round(&self) -> Round {
        self.round()
    }

    fn image(&self) -> Image {
        Image::Node(Box::new(self.image()))
    }
}

impl Machine for Aggregator {
    fn handle(&mut self, now: Timestamp, input: Input) -> Vec<Output> {
        self.handle(now, input)
    }

    fn status(&self, now: Timestamp) -> Status {
        self.status(now)
    }

    fn needed_blobs(&self) -> BTreeSet<BlobId> {
        self.needed_blobs()
    }

    fn free_of(&self, owner: NodeId, blobs: &[BlobId]) -> Vec<BlobId> {
        self.free_of(owner, blobs)
    }

    fn taken_back(&self) -> Vec<BlobId> {
        self.taken_back()
    }

    fn snapshot(&self) -> serde_json::Value {
        serde_json::to_value(self.head()).expect("a head has only text keys and numbers")
    }

    fn training_state(&self) -> Option<State> {
        None
    }

    fn phase(&self) -> Phase {
        self.phase()
    }

    fn round(&self) -> Round {
        self.open_round()
    }

    fn image(&self) -> Image {
        Image::Aggregator(Box::new(self.image()))
    }
}
