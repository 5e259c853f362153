//! Standard output and standard error of a process whose reader may have gone, or whose disk may be full.
//!
//! ```text
//! answers ──► write ──► standard output    a reader that has gone is no failure, a full disk is one
//! news    ──► say   ──► standard error     what cannot be written is dropped
//! ```
//!
//! `println!` and `eprintln!` panic where they cannot write. A panic hook that writes then panics itself, which aborts the
//! process. A node must not end because nobody reads its log, so neither macro is used in the programs.

use std::fmt;
use std::io::{self, Write};

/// Says a line on standard error. What cannot be written there can be said nowhere else, and is dropped.
pub fn say(line: impl fmt::Display) {
    // In one piece, because others write there, too.
    _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}
