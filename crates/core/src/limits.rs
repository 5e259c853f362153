//! Bounds that every member has alike, and that no federation chooses.
//!
//! They were keys of the spec once, and nobody had a reason for another value.

use std::time::Duration;

/// How far two clocks may differ. Adverts live for days, so minutes decide nothing; a clock that is hours off would make
/// every advert of its node too old or too new.
pub const CLOCK_SKEW: Duration = Duration::from_secs(300);
/// Largest accepted norm of a received part, as a multiple of the norm of the node's own part. Honest parts of one
/// federation are within a small multiple of each other. A larger one would outweigh all others in a mean.
pub const MAX_NORM_RATIO: f64 = 10.0;
/// Most rounds of a federation, those included that its organiser adds. Of an endless one most rounds up to an end.
pub const MOST_ROUNDS: u32 = 100_000;
/// Most rounds of an endless federation: one a second for 68 years.
pub const MOST_ENDLESS_ROUNDS: u32 = 1 << 31;
/// Fewest members that a closed round may have: a mean of one is no mean.
pub const FEWEST_MEMBERS: u32 = 2;
/// Most nodes among which everybody fetches everybody's gating proxies. In a larger federation adverts carry sketches of
/// 128 bytes each, and a node fetches only the proxies that its sketches resemble most.
pub const FULL_PROXIES: u32 = 200;
