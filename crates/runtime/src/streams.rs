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

/// Tells whether somebody reads what is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// Somebody may.
    There,
    /// The reader of a pipe (`head`) has closed it.
    Gone,
}

/// Tells why an answer is lost.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to standard output: {0}: free some space, or send the output elsewhere")]
pub struct Unwritable(io::Error);

/// Writes text to standard output, and tells whether it is read. That nobody reads is no failure.
///
/// # Errors
/// Fails if it cannot be written, because the disk is full for example.
pub fn write(text: &str) -> Result<Reader, Unwritable> {
    let mut out = io::stdout().lock();
    written(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// Tells what came of writing.
fn written(result: io::Result<()>) -> Result<Reader, Unwritable> {
    match result {
        Ok(()) => Ok(Reader::There),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(error) => Err(Unwritable(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_has_gone_is_no_failure_and_a_full_disk_is_one() {
        assert_eq!(written(Ok(())).unwrap(), Reader::There);
        let gone = written(Err(io::ErrorKind::BrokenPipe.into()));
        assert_eq!(gone.unwrap(), Reader::Gone);
        let full = written(Err(io::ErrorKind::StorageFull.into())).unwrap_err();
        let text = full.to_string();
        assert!(
            text.starts_with("cannot write to standard output: ")
                && text.contains("free some space"),
            "{text}"
        );
    }
}
