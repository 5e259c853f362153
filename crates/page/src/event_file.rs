//! TensorBoard's event files: scalars by step, in TFRecords of the one protobuf message `Event`.
//!
//! ```text
//! record  = length (u64) ─ masked CRC32C of the length (u32) ─ event ─ masked CRC32C of the event (u32)      little-endian
//! event   = wall_time (1: double), step (2: int64), file_version (3: string) or summary (5: message)
//! summary = value (1: message), once for each scalar
//! value   = tag (1: string), simple_value (2: float)
//! ```
//!
//! Source: `tensorflow/core/util/event.proto` and `framework/summary.proto`; `lib/io/record_writer.cc` for the frame. Nothing else
//! of these formats is written, so a protobuf library would bring more than it saves.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// What the first event of every file says.
const VERSION: &str = "brain.Event:2";
/// Field types of protobuf.
const VARINT: u64 = 0;
const DOUBLE: u64 = 1;
const BYTES: u64 = 2;
const FLOAT: u64 = 5;

/// A file of events.
#[derive(Debug)]
pub(crate) struct EventFile {
    file: BufWriter<File>,
}

impl EventFile {
    /// Makes the file, in place of one that is there.
    ///
    /// # Errors
    /// Fails if the disk does; so do all functions here.
    pub(crate) fn create(path: &Path, wall_time: f64) -> io::Result<Self> {
        let mut file = Self {
            file: BufWriter::new(File::create(path)?),
        };
        let mut event = Vec::new();
        double(&mut event, 1, wall_time);
        bytes(&mut event, 3, VERSION.as_bytes());
        file.file.write_all(&framed(&event))?;
        Ok(file)
    }

    /// Opens a file that was begun.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().append(true).open(path)?;
        Ok(Self {
            file: BufWriter::new(file),
        })
    }

    /// Writes what is not written yet.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.file.flush()
    }

    /// Appends the scalars of one step, at a time in seconds since 1970.
    pub(crate) fn append(
        &mut self,
        wall_time: f64,
        step: u32,
        scalars: &[(impl AsRef<str>, f64)],
    ) -> io::Result<()> {
        self.file
            .write_all(&framed(&event(wall_time, step, scalars)))
    }
}

fn event(wall_time: f64, step: u32, scalars: &[(impl AsRef<str>, f64)]) -> Vec<u8> {
    let mut summary = Vec::new();
    for (tag, number) in scalars {
        let mut value = Vec::new();
        bytes(&mut value, 1, tag.as_ref().as_bytes());
        key(&mut value, 2, FLOAT);
        value.extend((*number as f32).to_le_bytes());
        bytes(&mut summary, 1, &value);
    }
    let mut event = Vec::new();
    double(&mut event, 1, wall_time);
    key(&mut event, 2, VARINT);
    varint(&mut event, u64::from(step));
    bytes(&mut event, 5, &summary);
    event
}

/// Puts a record's frame around an event.
fn framed(event: &[u8]) -> Vec<u8> {
    let length = (event.len() as u64).to_le_bytes();
    let parts: [&[u8]; 4] = [
        &length,
        &masked_crc(&length).to_le_bytes(),
        event,
        &masked_crc(event).to_le_bytes(),
    ];
    parts.concat()
}

/// A CRC that is itself within data that has a CRC is masked, as the format asks for.
fn masked_crc(data: &[u8]) -> u32 {
    crc32c::crc32c(data)
        .rotate_right(15)
        .wrapping_add(0xa282_ead8)
}

fn key(out: &mut Vec<u8>, field: u64, kind: u64) {
    varint(out, field << 3 | kind);
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn double(out: &mut Vec<u8>, field: u64, value: f64) {
    key(out, field, DOUBLE);
    out.extend(value.to_le_bytes());
}

fn bytes(out: &mut Vec<u8>, field: u64, value: &[u8]) {
    key(out, field, BYTES);
    varint(out, value.len() as u64);
    out.extend(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What TensorBoard's own writer (tensorboard 2.20, `EventFileWriter`) makes of the event in the test.
    const GOLDEN: &str = include_str!("../tests/data/event.hex");

    #[test]
    fn a_file_is_what_tensorboard_itself_writes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.out.tfevents.0");
        let mut file = EventFile::create(&path, 1_700_000_000.25).unwrap();
        let scalars = [("accuracy/served", 0.875), ("loss/training", 1.5)];
        file.append(1_700_000_001.5, 300, &scalars).unwrap();
        file.finish().unwrap();
        let written = std::fs::read(&path).unwrap();
        let hex: String = written.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, GOLDEN.trim());
    }
}
