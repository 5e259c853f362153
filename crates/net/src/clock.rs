//! The wall clock: the one place of this crate that reads it.
//!
//! Adverts, hellos and address records carry wall-clock times. All other modules take `now` as an argument. Timers use
//! the monotonic clock of the runtime, which cannot be set back.

use std::time::{SystemTime, UNIX_EPOCH};

use fednode_core::Timestamp;

/// Returns the time of day. A clock set before 1970 reads as 1970 and fails the skew check at hello.
pub fn now() -> Timestamp {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX))
}
