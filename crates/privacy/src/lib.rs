//! Differential privacy.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod discrete;
pub mod gaussian;
mod normal;
pub mod pld;
pub mod rdp;
pub mod units;
