//! The round of a node and of an aggregator as pure state machines.
//!
//! # The algorithm
//!
//! Training is peer to peer and round based (FedMoE-DA, arXiv 2411.02115, with the server taken away). In round *t*
//! every node trains its model on its own data and *says* so in a small signed advert. The advert names, by hash, its
//! version of the shared part and its experts, and in every I-th round its gating proxies. Then the node waits for two
//! things at once. One is the experts that its aggregation plan wants, fetched straight from their owners. The other is
//! the mean of the shared parts, announced by the aggregator or by a node acting in its place. The node mixes, adopts,
//! and goes on.
//!
//! The plan is computed from the proxies of an earlier round, so nothing waits for it; who is late is left out and the
//! row renormalised; who lies is found by recomputing what it signed.
//!
//! # The machines
//!
//! [`Node`] and [`Aggregator`] take an [`Input`] and return [`Output`]s. They never send, fetch, train, save or sleep,
//! read no clock and draw no random number: `now` is an argument, and every draw is a hash that all nodes compute
//! alike. The daemon carries the outputs out with sockets and files, the simulator (`fednode-sim`) with a queue of
//! events.
//!
//! | file | idea |
//! |---|---|
//! | [`event`] | inputs and outputs |
//! | [`state`] | what survives a restart |
//! | [`book`] | records of the rounds, evaluations that are due, what came after the last round |
//! | `node/` | a node: its phases, one file each, and the exchange of a round |
//! | [`Aggregator`] | closing rounds |
//! | `follower`, `trials`, `closing` | small machines that both are made of: which chain to follow, recomputing means, collecting members' parts |
//! | [`certificate`] | whether its members signed what a closed round counts |
//! | `chain` | judging a closed round: is it a certificate, and does it go on from ours |
//! | `quorum` | whether it counts enough of those who are there, in its turn |
//! | `stragglers` | how long members take, and until when a round waits for them |
//! | `support` | which of two chains most nodes vote for |
//! | `cohort` | who trains in a round |
//! | `outbox` | the outputs of an input |
//! | [`recording`] | inputs and their times, to play them again |
//! | [`image`] | a machine's whole state at one moment, from which a recording begins |
//! | `light`, `encoding` | trace lines; how inputs and checkpoints are written |
//! | `view` | what is known of the others |
//! | [`masks`] | sums of which nobody sees a single part |
//! | [`slices`] | means that are averaged slice by slice |
//! | [`names`] | maps by name |
//! | [`execute`] | the orders that need numbers: merge, average, average a slice |
//!
//! ```
//! use std::sync::Arc;
//! use fednode_core::{FederationSpec, NodeId, Timestamp};
//! use fednode_engine::{Input, Node, Output};
//!
//! let spec = Arc::new(FederationSpec { nodes: 1, ..FederationSpec::default() });
//! let mut node = Node::new(spec, NodeId::from_bytes([7; 32]), None);
//! let outputs = node.handle(Timestamp(0), Input::Start);
//! assert!(outputs.iter().any(|output| matches!(output, Output::Train { .. })), "a federation of one begins at once");
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod aggregator;
pub mod book;
pub mod certificate;
mod chain;
mod closing;
mod cohort;
mod encoding;
pub mod event;
pub mod execute;
mod follower;
pub mod image;
mod light;
pub mod masks;
pub mod names;
mod node;
mod outbox;
mod quorum;
pub mod recording;
pub mod slices;
pub mod state;
mod status;
mod stragglers;
mod support;
mod trials;
mod view;

pub use aggregator::Aggregator;
pub use closing::weights;
pub use event::{
    AverageOrder, AverageReport, Fetch, FetchKind, Input, JoinOrder, JoinPurpose, JoinReport,
    Lacking, MergeOrder, MergeReport, ModuleReport, Note, Output, PoolOrder, PoolReport, Purpose,
    SliceOrder, SliceReport, Timer,
};
pub use node::Node;
pub use state::{Head, Phase, State};
pub use status::{Cause, Status, Waiting};
