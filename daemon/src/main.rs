//! `fednode`: one participant of a federation, and the tools around it.
//!
//! ```text
//! main ─► cli (what was typed) ─► command/<name>.rs ─► start:  config, data, learner, fednode-runtime
//!                                                   ├► swarm:  child processes, progress, summary
//!                                                   └► status, peers, …: the control API of a running node
//! ```
//!
//! Wiring only: no maths, no round logic, no socket of its own but the control API's client. Errors are one line on
//! standard error and an exit code by cause; nothing prints a backtrace.
#![cfg_attr(test, allow(clippy::unwrap_used))]

fn main() {}
