//! The runtime: carries out what the pure machines of `fednode-engine` order.
//!
//! # The idea
//!
//! A machine takes an `Input` and returns `Output`s; it never sends, fetches, trains, saves or sleeps. This crate is
//! the somebody else who does. One task owns the machine and waits for whatever happens next. What takes longer than a
//! look-up is handed to a task, a worker thread or the trainer's thread. It comes back as the next input.
//!
//! ```text
//!                    ┌───────────────────────── Driver ─────────────────────────┐
//!   stop ───────────►│                                                          │
//!   timers ─────────►│   Happening ──► Input ──► machine ──► Outputs ──► match  │
//!   control API ────►│                (fednode-engine)                  │       │
//!   network events ─►│                                                  ▼       │
//!   answers ────────►│◄──────────────────── tasks ◄─────────────── carry_out    │
//!                    └───────────────────────┬──────────────────────────────────┘
//!          ┌──────────────┬──────────────────┼───────────────────┬───────────────┐
//!          ▼              ▼                  ▼                   ▼               ▼
//!     fednode-net    worker threads    trainer's thread     checkpoints      journal thread
//!     say, fetch     decode, merge,    train, evaluate,     one at a time,   ledger (SQLite),
//!                    average           adopt, copy          newest wins      metrics.jsonl
//! ```
//!
//! # What it promises
//!
//! - Every order that asks for something is answered exactly once, whatever fails on the way.
//! - The loop never waits for a disk, a socket or the trainer; training never waits for the loop.
//! - A checkpoint holds the machine's state and the model of one and the same moment.
//! - Every wait is visible: `status` and, after a few seconds, the log say what is waited for and from whom.
//! - A full disk stops blobs and books, never training. A peer's fault is a strike, never a panic.
//! - Every input of the machine is written down, in files of bounded size, and can be replayed ([`recording`]).
//! - Every log line of the work names its round and phase.
//! - Every end has a cause, and every cause an [`ExitCode`] of its own.
//!
//! # What is not here
//!
//! No mathematics (`fednode-mix`, behind `fednode-engine::execute`), no sockets of the federation (`fednode-net`), no
//! tensors: whoever trains implements [`fednode_core::work::Worker`]. No command line: the binaries resolve a
//! [`MemberConfig`], from their own settings and from those that all members share ([`settings`]).

#![deny(clippy::print_stderr)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod addresses;
pub mod allocator;
pub mod allow_list;
mod answers;
mod base;
mod beginning;
mod checkpointing;
mod clock;
mod config;
pub mod control;
mod decoded;
mod desk;
mod drift;
mod driver;
mod ending;
mod error;
pub mod exit;
mod extending;
mod fetches;
pub mod final_model;
mod hearing;
pub mod history;
pub mod joining;
mod journal;
mod kept_port;
mod last_stage;
mod machine;
mod masks;
mod member;
pub mod membership;
mod merging;
pub mod metrics;
mod notes;
mod opened;
pub mod organiser;
mod process;
mod publisher;
mod reach;
pub mod recording;
pub mod records;
pub mod releases;
mod reporting;
mod resources;
mod service;
pub mod settings;
pub mod signals;
mod slices;
mod spans;
mod standing;
pub mod status;
pub mod streams;
pub mod telemetry;
mod timers;
pub mod token;
pub mod trainer;
mod waits;
mod watched;
mod whereabouts;
mod withdrawals;
mod work;

pub use config::{Control, DEFAULT_LINGER, MemberConfig};
pub use ending::{Finished, Outcome};
pub use error::RunError;
pub use exit::ExitCode;
pub use extending::{extended, newest_round};
pub use fednode_files::{owner, whole_file};
pub use final_model::ModelCard;
pub use member::{StoredModel, run_aggregator, run_node, stored_model, training_samples};
pub use process::Process;
pub use resources::{Memory, memory};
pub use trainer::{Trainer, TrainerCard};
