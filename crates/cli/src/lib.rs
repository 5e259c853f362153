//! What the commands of `fednode` share, whoever offers them: the daemon or the laboratory.
//!
//! ```text
//!  what people write                          what commands work with
//!  flags, FEDNODE_*, node.toml ─► config ──┐
//!  federation.toml, flags ─► federation ───┼─► model: data, device, learner
//!  --data, shards ─► data, shard ──────────┘
//!                                             what people read
//!                          results ─► output, table, waiting;   errors ─► failure (one line, an exit code)
//! ```
//!
//! Nothing here runs a federation. That is done by `fednode-runtime`, live, and by `fednode-sim`, in virtual time.
#![deny(clippy::print_stderr)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod backbone;
pub mod clock;
pub mod config;
pub mod data;
pub mod device;
pub mod dotted;
pub mod everyone;
pub mod failure;
pub mod federation;
pub mod files;
pub mod initial;
pub mod interrupt;
pub mod layers;
pub mod model;
pub mod origin;
pub mod output;
pub mod page;
pub mod shard;
pub mod state;
pub mod table;
pub mod waiting;
