//! The signed history of a federation: kept by every member as rounds close, and checked by whoever has the state folder.
//!
//! ```text
//!   running      a round closes ─► Historian ─► ledger: the closing, and the update of every member that it counts
//!   any time     state folder ─► audit ─► a verdict on each round: signed, linked, counted as its members said
//! ```
//!
//! An audit believes nothing but signatures. It needs no network, no data, and neither the node nor its key.

mod audit;
mod historian;
#[cfg(test)]
mod tests;

pub use audit::{
    AuditedRound, AuditedUpdate, AuditedWithdrawal, History, HistoryError, Link, RemovalAnswer,
    ToldFault, Verdict, audit,
};
pub(crate) use historian::{Historian, KEPT_AT_ONCE};
