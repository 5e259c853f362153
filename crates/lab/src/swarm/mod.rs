//! A whole federation on one machine, as real processes.
//!
//! ```text
//! command/swarm ─► folder (files) ─► run: child processes ◄── polls ── control API of each child
//!                                      │        └─► progress (live lines)      ▲
//!                                      │ all finished, a death, Ctrl-C         │
//!                                      └─► stop (POST /v1/stop, SIGTERM, SIGKILL)
//!                                             └─► collect ─► summary ─► summary.json, table
//! ```
//!
//! The swarm trains nothing itself and is no member: it starts the ordinary binaries, watches them as any user could,
//! and writes down what came of it.

pub(crate) mod child;
pub(crate) mod collect;
#[cfg(test)]
pub(crate) mod fixtures;
pub(crate) mod folder;
pub(crate) mod progress;
pub(crate) mod run;
pub(crate) mod stop;
pub(crate) mod summary;
mod table;
mod watcher;
