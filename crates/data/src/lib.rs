//! Data sets and their division among nodes.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod samples;

pub use samples::{Pixels, Samples, SamplesError, Split};
