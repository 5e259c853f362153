//! The laboratory: whole federations on one machine, and what came of them.
//!
//! ```text
//!  fednode swarm ────► swarm: real processes, watched as any user could ───┐
//!  fednode simulate ─► simulate: one process, virtual time (fednode-sim) ──┼─► folders of runs
//!  fednode report ───► report: HTML, plots, CSV, comparisons ◄─────────────┘
//! ```
//!
//! A member needs none of this: the daemon offers these three commands and knows nothing else of this crate. The
//! laboratory sees a node as people do, through its settings, its control API and its state folder.
#![deny(clippy::print_stderr)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod command;
mod control;
mod ending;
mod report;
mod simulate;
mod swarm;
