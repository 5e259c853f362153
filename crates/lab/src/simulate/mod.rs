//! A whole federation in one process: the same state machines and learners as in the daemon, a virtual network.
//!
//! ```text
//!   experiment (TOML, grid) ─► run ─► engine's simulator: virtual time, who says what to whom, every byte counted
//!                                        │ Trainers
//!                                        ▼
//!                                     models: what each node knows ─► pool: one learner per thread ─► records, summary
//! ```
//!
//! Only the clock is invented. Adverts, plans, screening, means and merges are those of a live federation, so a table
//! made here says what a swarm would have learned. The result depends on the settings and the seed, not on the number
//! of threads. A local update depends on nothing but its node's model, data and seed. The order of updates is that of
//! virtual time. With `--toy-floats`, toys of a few floats take the learners' place ([`protocol`]). Seconds in records
//! and summary are those spent computing; the network takes none.

pub(crate) mod experiment;
mod job;
pub(crate) mod lies;
pub(crate) mod listing;
pub(crate) mod memory;
mod models;
mod places;
pub(crate) mod play;
pub(crate) mod player;
mod pool;
mod progress;
pub(crate) mod protocol;
pub(crate) mod run;
mod saver;
mod snapshot;
pub(crate) mod table;
