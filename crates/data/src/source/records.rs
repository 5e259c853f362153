//! Files of equal records (IDX, CIFAR): streaming, plain or gzipped, keeping only the wanted ones.
//!
//! Nothing is allocated before the file is known to be able to hold what its header declares.

use std::fs::File;
use std::io::{BufReader, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;

use crate::error::DataError;

/// Deflate cannot expand more than about 1,032 times; a header that declares more than that is false.
const MAX_EXPANSION: u64 = 1_040;

/// An opened file, unpacked on the way.
pub(super) struct RecordFile {
    path: PathBuf,
    stream: Box<dyn Read>,
    /// Most bytes that can come out.
    capacity: u64,
}

impl RecordFile {
    /// Opens a file; one whose name ends in `.gz` is unpacked.
    pub(super) fn open(path: &Path) -> Result<Self, DataError> {
        let file = File::open(path).map_err(DataError::read(path))?;
        let size = file.metadata().map_err(DataError::read(path))?.len();
        let file = BufReader::with_capacity(1 << 16, file);
        let gzipped = path.extension().is_some_and(|extension| extension == "gz");
        let (stream, capacity): (Box<dyn Read>, u64) = if gzipped {
            (
                Box::new(BufReader::new(MultiGzDecoder::new(file))),
                size.saturating_mul(MAX_EXPANSION),
            )
        } else {
            (Box::new(file), size)
        };
        Ok(Self {
            path: path.to_owned(),
            stream,
            capacity,
        })
    }

    pub(super) fn malformed(&self, cause: impl Into<String>) -> DataError {
        DataError::malformed(&self.path, cause)
    }

    /// Reads big-endian numbers, as IDX headers hold them.
    pub(super) fn read_u32(&mut self) -> Result<u32, DataError> {
        let mut bytes = [0; 4];
        self.stream
            .read_exact(&mut bytes)
            .map_err(DataError::read(&self.path))?;
        Ok(u32::from_be_bytes(bytes))
    }

    /// Refuses a declared content that the file cannot hold.
    pub(super) fn check_capacity(
        &self,
        records: usize,
        record_bytes: usize,
    ) -> Result<(), DataError> {
        let declared = (records as u64).saturating_mul(record_bytes as u64);
        if declared > self.capacity {
            return Err(self.malformed(format!(
                "is truncated: it declares {records} records of {record_bytes} bytes"
            )));
        }
        Ok(())
    }

    /// Reads all records and shows each to `visit`; then the file must end.
    pub(super) fn for_each(
        mut self,
        records: usize,
        record_bytes: usize,
        mut visit: impl FnMut(usize, &[u8]) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let mut record = vec![0; record_bytes];
        for at in 0..records {
            self.stream
                .read_exact(&mut record)
                .map_err(|error| match error.kind() {
                    std::io::ErrorKind::UnexpectedEof => {
                        self.malformed(format!("is truncated in record {at} of {records}"))
                    }
                    _ => DataError::Read {
                        path: self.path.clone(),
                        source: error,
                    },
                })?;
            visit(at, &record)?;
        }
        match self
            .stream
            .read(&mut [0])
            .map_err(DataError::read(&self.path))?
        {
            0 => Ok(()),
            _ => Err(self.malformed(format!("goes on after its {records} records"))),
        }
    }
}

/// Returns the class of record `at`, where the classes' labels count from `first`.
pub(super) fn class(
    path: &Path,
    at: usize,
    label: u8,
    first: u8,
    classes: usize,
) -> Result<u16, DataError> {
    let class = label.checked_sub(first).map(u16::from);
    class
        .filter(|class| usize::from(*class) < classes)
        .ok_or_else(|| {
            let cause = format!("holds label {label} at {at}, beyond its {classes} classes");
            DataError::malformed(path, cause)
        })
}

/// The wanted samples in file order, each with its place in the result.
pub(super) struct Wanted {
    sorted: Vec<(u32, usize)>,
}

impl Wanted {
    pub(super) fn new(indices: &[u32]) -> Self {
        let mut sorted: Vec<(u32, usize)> = indices
            .iter()
            .enumerate()
            .map(|(place, index)| (*index, place))
            .collect();
        sorted.sort_unstable();
        Self { sorted }
    }

    /// Walks along one file whose first record is sample `range.start`.
    pub(super) fn within(&self, range: Range<u32>) -> Cursor<'_> {
        let from = self
            .sorted
            .partition_point(|(index, _)| *index < range.start);
        let to = self.sorted.partition_point(|(index, _)| *index < range.end);
        Cursor {
            rest: &self.sorted[from..to],
            start: range.start,
        }
    }
}

/// What is still wanted of one file.
pub(super) struct Cursor<'a> {
    rest: &'a [(u32, usize)],
    start: u32,
}

impl Cursor<'_> {
    /// Tells whether nothing more is wanted.
    pub(super) fn is_done(&self) -> bool {
        self.rest.is_empty()
    }

    /// Returns the places of the result that want the record at `at`; records come in order.
    pub(super) fn places(&mut self, at: usize) -> impl Iterator<Item = usize> + use<'_> {
        let index = self.start as usize + at;
        let n = self
            .rest
            .iter()
            .take_while(|(wanted, _)| *wanted as usize == index)
            .count();
        let (now, rest) = self.rest.split_at(n);
        self.rest = rest;
        now.iter().map(|(_, place)| *place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_places_of_wanted_records() {
        let wanted = Wanted::new(&[7, 2, 5, 2]);
        let mut cursor = wanted.within(2..6);
        let places: Vec<Vec<usize>> = (0..4).map(|at| cursor.places(at).collect()).collect();
        assert_eq!(places, [vec![1, 3], vec![], vec![], vec![2]]);
        assert!(cursor.is_done());
    }
}
