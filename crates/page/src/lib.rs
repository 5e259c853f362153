//! A page to look at: what a node, a swarm or an aggregator does, in a browser.
//!
//! # The idea
//!
//! The page is a reader. It asks the control API of processes that run, and reads the files of those that do not: so it shows
//! a federation that ended last week as well as one at work. It changes nothing, and no process has to be told of it.
//!
//! ```text
//! state folder ─► control API: status, peers, experts ─┐
//!              └► metrics.jsonl, privacy.json, card ───┤ look (one task a place, once a second,
//! folder of a run ─► metrics.jsonl, summary.json ──────┤       only while somebody looks)
//! log file ────────────────────────────────────────────┘
//!                                                      ▼
//!                                    board: the newest of everything, with versions
//!                                                      ▼
//!                           a cursor per browser ─► only what is new ─► server-sent events
//! ```
//!
//! # What it promises
//!
//! - A browser gets everything once and then only what is new. One that is slow has a cursor and a piece of
//!   bounded size, no queue.
//! - Nobody gets in without the link that was printed. A link works once. It becomes a cookie that scripts cannot read.
//! - Whoever has no link can hold a bounded number of connections, and a silent one not for long.
//! - The tokens of the control API never leave the process. The page holds no secret of a node.
//! - Everything the browser needs is in the binary. The content security policy allows nothing from elsewhere.
//! - While nobody looks, nobody is asked.
//!
//! # Where to look
//!
//! [`TensorBoard`] reads the same files and writes event files of them.
//!
//! [`Watched`] says what is looked at, [`Page`] serves it. `board.rs` holds what is known, `look.rs` finds it out, `tail.rs`
//! follows a growing file, `door.rs` lets people in, `server.rs` has the routes, and `assets/` is the page itself.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod assets;
mod background;
mod board;
mod door;
mod event_file;
mod events;
mod listener;
mod look;
mod privacy;
mod run;
mod server;
mod tail;
mod tensorboard;
#[cfg(test)]
mod tests;
mod watched;

pub use background::Background;
pub use server::{Page, Settings, StartError, sentence, warning};
pub use tensorboard::TensorBoard;
pub use watched::{Place, Watched, WatchedError};
