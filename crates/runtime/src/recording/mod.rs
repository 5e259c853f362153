//! The flight recorder: every input that the machine is given, with its time, in a ring of files of bounded size.
//!
//! ```text
//! driver ── input, outputs ──► [ bounded queue ] ──► thread ──► recording/000000000001.seg
//!    └───── image, when one is asked for ────────────┘           recording/000000000874.seg  (the oldest goes first)
//!
//! segment:  a line of text │ header │ image of the machine │ moment │ moment │ …
//! record:   length │ check │ CBOR
//! ```
//!
//! A segment begins with the machine's whole state, so it can be replayed by itself. A new one begins when the one
//! before is full, when the member starts, and when something could not be written down. A record names its length and
//! the beginning of its hash, so one that was torn by a crash or a full disk is recognised; all before it is good.
//!
//! Recording never blocks the loop and never fails a run. What finds the queue full is counted as skipped, and the next
//! segment begins after it. A disk that refuses a write ends the recording with one warning.
//!
//! A [`Player`] gives the inputs to the same machine again and compares its answers with those of then.

mod format;
mod read;
mod replay;
mod write;

use std::path::{Path, PathBuf};

pub use self::format::{Beginning, Image, Moment};
pub use self::read::{ReadError, Recording, Remark};
pub use self::replay::{Gap, Player, ReplayError, Standing, Step};
pub(crate) use self::write::{Origin, Recorder};

/// Bytes of all segments by default: some hundred rounds of a federation of ten.
pub const DEFAULT_BYTES: u64 = 16 << 20;

/// Name of the folder within a state folder.
const FOLDER: &str = "recording";

/// Returns the folder of the recording within a state folder.
pub fn path_in(state: &Path) -> PathBuf {
    state.join(FOLDER)
}
