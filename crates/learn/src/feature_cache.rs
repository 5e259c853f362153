//! Where numbers are kept that are computed once and looked up often: what frozen parts make of each sample.
//!
//! ```text
//! a quarter of the memory     all of it            the folder            beyond
//! ├─ 32-bit numbers ──────────┼─ 16-bit numbers ───┼─ a file ────────────┼─ fewer samples, or computed anew
//! └─ numbers that must come back exactly: 32 bits ─┘
//! ```
//!
//! The file has no name: whatever becomes of this process, it leaves nothing behind. A folder that cannot be written to
//! is no folder, and where it is full the caller does without, as if there were none.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use burn::tensor::{Device, Tensor, TensorData, f16};

use crate::weights;

/// How much may be kept, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheBudget {
    /// Most bytes in memory, for one stage's set of samples.
    pub memory_bytes: u64,
    /// The folder for what does not fit into memory; nothing if there is none.
    pub folder: Option<PathBuf>,
    /// Most bytes in that folder, for one stage's set of samples.
    pub disk_bytes: u64,
}

/// One gibibyte in memory, and no folder.
impl Default for CacheBudget {
    fn default() -> Self {
        Self {
            memory_bytes: 1 << 30,
            folder: None,
            disk_bytes: 16 << 30,
        }
    }
}

/// How numbers are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Precision {
    Single,
    Half,
}

/// A place for the rows of one set of samples.
#[derive(Debug, Clone)]
pub(crate) struct CacheSpace {
    precision: Precision,
    file: Option<Arc<Spill>>,
}

/// A file without a name that several [`FeatureCache`] divide among themselves.
#[derive(Debug)]
struct Spill {
    file: File,
    /// Where the next rows begin.
    end: AtomicU64,
}

/// Rows of numbers, all of one width.
#[derive(Debug)]
pub(crate) struct FeatureCache {
    /// How many there will be.
    rows: usize,
    /// Zero until the first row is there.
    width: usize,
    is_finite: bool,
    numbers: Numbers,
}

#[derive(Debug)]
enum Numbers {
    Single(Vec<f32>),
    Half(Vec<f16>),
    Spilled {
        precision: Precision,
        spill: Arc<Spill>,
        start: u64,
    },
}

impl CacheBudget {
    /// Returns the same without the folder.
    pub(crate) fn in_memory(&self) -> Self {
        Self {
            folder: None,
            ..self.clone()
        }
    }

    /// Finds a place for so many numbers; nothing if they fit nowhere.
    pub(crate) fn space(&self, numbers: usize, is_exact: bool) -> Option<CacheSpace> {
        let single = Precision::Single.bytes(numbers);
        let kept = if is_exact {
            single
        } else {
            Precision::Half.bytes(numbers)
        };
        let precision = if is_exact || single <= self.memory_bytes / 4 {
            Precision::Single
        } else {
            Precision::Half
        };
        if kept <= self.memory_bytes {
            return Some(CacheSpace {
                precision,
                file: None,
            });
        }
        let folder = self.folder.as_ref().filter(|_| kept <= self.disk_bytes)?;
        let file = Some(Arc::new(Spill::new(tempfile::tempfile_in(folder).ok()?)));
        Some(CacheSpace { precision, file })
    }

    /// Returns how many numbers fit at most.
    pub(crate) fn most(&self, is_exact: bool) -> usize {
        let bytes = match self.folder {
            Some(_) => self.memory_bytes.max(self.disk_bytes),
            None => self.memory_bytes,
        };
        let precision = if is_exact {
            Precision::Single
        } else {
            Precision::Half
        };
        usize::try_from(bytes / precision.bytes(1)).unwrap_or(usize::MAX)
    }
}

impl Precision {
    const fn bytes(self, numbers: usize) -> u64 {
        let each = match self {
            Self::Single => 4,
            Self::Half => 2,
        };
        (numbers as u64).saturating_mul(each)
    }
}

impl CacheSpace {
    /// Returns memory, whatever it takes.
    pub(crate) const fn memory(is_exact: bool) -> Self {
        Self {
            precision: if is_exact {
                Precision::Single
            } else {
                Precision::Half
            },
            file: None,
        }
    }

    #[cfg(test)]
    pub(crate) fn of(precision: Precision, file: Option<File>) -> Self {
        Self {
            precision,
            file: file.map(|file| Arc::new(Spill::new(file))),
        }
    }
}

impl Spill {
    const fn new(file: File) -> Self {
        Self {
            file,
            end: AtomicU64::new(0),
        }
    }
}

impl FeatureCache {
    /// Makes room for so many rows; only those that were put may be read.
    pub(crate) fn new(place: &CacheSpace, rows: usize) -> Self {
        let numbers = match (&place.file, place.precision) {
            (Some(spill), precision) => Numbers::Spilled {
                precision,
                spill: Arc::clone(spill),
                start: 0,
            },
            (None, Precision::Single) => Numbers::Single(Vec::new()),
            (None, Precision::Half) => Numbers::Half(Vec::new()),
        };
        Self {
            rows,
            width: 0,
            is_finite: true,
            numbers,
        }
    }

    /// Puts one row of a tensor `[positions, width]` at each of these positions.
    ///
    /// # Errors
    /// Fails when the file cannot be written.
    pub(crate) fn put(&mut self, positions: &[u32], tensor: &Tensor<2>) -> io::Result<()> {
        if self.width == 0 {
            self.begin(tensor.dims()[1]);
        }
        let (width, values) = (self.width, weights::values(tensor));
        for (at, row) in positions.iter().zip(values.chunks_exact(width.max(1))) {
            let range = *at as usize * width..(*at as usize + 1) * width;
            self.is_finite &= row.iter().all(|value| value.is_finite());
            match &mut self.numbers {
                Numbers::Single(numbers) => numbers[range].copy_from_slice(row),
                Numbers::Half(numbers) => {
                    numbers[range.clone()]
                        .iter_mut()
                        .zip(row)
                        .for_each(|(kept, value)| *kept = f16::from_f32(*value));
                    self.is_finite &= numbers[range].iter().all(|value| value.is_finite());
                }
                Numbers::Spilled {
                    precision,
                    spill,
                    start,
                } => {
                    let bytes: Vec<u8> = match precision {
                        Precision::Single => {
                            row.iter().flat_map(|value| value.to_le_bytes()).collect()
                        }
                        Precision::Half => row
                            .iter()
                            .flat_map(|value| f16::from_f32(*value).to_le_bytes())
                            .collect(),
                    };
                    let is_finite = |value: &f32| {
                        *precision == Precision::Single || f16::from_f32(*value).is_finite()
                    };
                    self.is_finite &= row.iter().all(is_finite);
                    spill
                        .file
                        .write_all_at(&bytes, *start + precision.bytes(range.start))?;
                }
            }
        }
        Ok(())
    }

    /// Takes the room, once it is known how wide rows are.
    fn begin(&mut self, width: usize) {
        self.width = width;
        let numbers = self.rows * width;
        match &mut self.numbers {
            Numbers::Single(kept) => kept.resize(numbers, 0.0),
            Numbers::Half(kept) => kept.resize(numbers, f16::ZERO),
            Numbers::Spilled {
                precision,
                spill,
                start,
            } => {
                *start = spill
                    .end
                    .fetch_add(precision.bytes(numbers), Ordering::Relaxed);
            }
        }
    }

    /// Returns how many numbers there are in a row.
    pub(crate) const fn width(&self) -> usize {
        self.width
    }

    /// Returns how many rows there are.
    pub(crate) const fn len(&self) -> usize {
        self.rows
    }

    /// Tells whether all numbers are finite as they are kept.
    pub(crate) const fn is_finite(&self) -> bool {
        self.is_finite
    }

    /// Returns one row.
    ///
    /// # Errors
    /// Fails when the file cannot be read.
    pub(crate) fn row(&self, at: usize) -> io::Result<Vec<f32>> {
        let mut row = Vec::with_capacity(self.width);
        self.write(at, &mut row)?;
        Ok(row)
    }

    /// Appends one row.
    ///
    /// # Errors
    /// Fails when the file cannot be read.
    pub(crate) fn write(&self, at: usize, to: &mut Vec<f32>) -> io::Result<()> {
        let range = at * self.width..(at + 1) * self.width;
        match &self.numbers {
            Numbers::Single(numbers) => to.extend_from_slice(&numbers[range]),
            Numbers::Half(numbers) => to.extend(numbers[range].iter().map(|value| value.to_f32())),
            Numbers::Spilled {
                precision,
                spill,
                start,
            } => {
                let mut bytes = vec![0; precision.bytes(self.width) as usize];
                spill
                    .file
                    .read_exact_at(&mut bytes, *start + precision.bytes(range.start))?;
                match precision {
                    Precision::Single => to.extend(
                        bytes
                            .as_chunks()
                            .0
                            .iter()
                            .map(|four| f32::from_le_bytes(*four)),
                    ),
                    Precision::Half => {
                        to.extend(
                            bytes
                                .as_chunks()
                                .0
                                .iter()
                                .map(|two| f16::from_le_bytes(*two).to_f32()),
                        );
                    }
                }
            }
        }
        Ok(())
    }

    /// Uploads the rows at some positions, `[positions, width]`.
    ///
    /// # Errors
    /// Fails when the file cannot be read.
    pub(crate) fn tensor(&self, positions: &[u32], device: &Device) -> io::Result<Tensor<2>> {
        let mut values = Vec::with_capacity(positions.len() * self.width);
        positions
            .iter()
            .try_for_each(|at| self.write(*at as usize, &mut values))?;
        Ok(Tensor::from_data(
            TensorData::new(values, [positions.len(), self.width]),
            device,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder_and_room(memory_bytes: u64, disk_bytes: u64) -> (tempfile::TempDir, CacheBudget) {
        let folder = tempfile::tempdir().unwrap();
        let budget = CacheBudget {
            memory_bytes,
            folder: Some(folder.path().to_owned()),
            disk_bytes,
        };
        (folder, budget)
    }

    fn kept(place: Option<CacheSpace>) -> Option<(Precision, bool)> {
        place.map(|place| (place.precision, place.file.is_some()))
    }

    #[test]
    fn memory_is_bounded_and_so_is_the_disk() {
        // 6413 samples: features of 512 and 20 heads, then images and 20 extractors (263 MB of outputs as 32-bit floats),
        // then a thousand extractors, 6.6 GB as 16-bit floats.
        let (few, many, thousand) = (
            6413 * (512 + 20 * 10),
            6413 * (784 + 20 * 512),
            6413 * (784 + 1000 * 512),
        );
        let none = CacheBudget::default();
        assert_eq!(
            kept(none.space(few, false)),
            Some((Precision::Single, false))
        );
        assert_eq!(
            kept(none.space(many, false)),
            Some((Precision::Half, false))
        );
        assert_eq!(
            kept(none.space(many, true)),
            Some((Precision::Single, false))
        );
        assert_eq!(kept(none.space(thousand, false)), None);
        assert_eq!((none.most(false), none.most(true)), (1 << 29, 1 << 28));
        let (_folder, budget) = folder_and_room(1 << 30, 7 << 30);
        assert_eq!(
            kept(budget.space(many, false)),
            Some((Precision::Half, false))
        );
        assert_eq!(
            kept(budget.space(thousand, false)),
            Some((Precision::Half, true))
        );
        assert_eq!(kept(budget.space(thousand, true)), None, "13 GB");
        assert_eq!(budget.most(false), 7 << 29);
        assert_eq!(kept(budget.in_memory().space(thousand, false)), None);
    }

    #[test]
    fn a_folder_that_is_not_there_is_none() {
        let (folder, budget) = folder_and_room(0, 1 << 20);
        drop(folder);
        assert!(budget.space(10, false).is_none());
    }

    #[test]
    fn rows_come_back_from_wherever_they_were_put() {
        let (device, file) = (Device::flex(), || Some(tempfile::tempfile().unwrap()));
        let first = Tensor::from_floats([[1.0, 0.1], [-2.5, 1e-3]], &device);
        let second = Tensor::from_floats([[7.0, 8.0, 9.0]], &device);
        for precision in [Precision::Single, Precision::Half] {
            for place in [
                CacheSpace::of(precision, None),
                CacheSpace::of(precision, file()),
            ] {
                let (mut rows, mut others) =
                    (FeatureCache::new(&place, 3), FeatureCache::new(&place, 1));
                rows.put(&[2, 0], &first).unwrap();
                others.put(&[0], &second).unwrap();
                rows.put(&[1], &Tensor::from_floats([[4.0, 5.0]], &device))
                    .unwrap();
                assert_eq!((rows.len(), rows.width(), rows.is_finite()), (3, 2, true));
                let exact = [-2.5, 1e-3, 4.0, 5.0, 1.0, 0.1];
                let expected = exact.map(|value| match precision {
                    Precision::Single => value,
                    Precision::Half => f16::from_f32(value).to_f32(),
                });
                assert_eq!(
                    weights::values(&rows.tensor(&[0, 1, 2], &device).unwrap()),
                    expected,
                    "{place:?}"
                );
                assert_eq!(others.row(0).unwrap(), [7.0, 8.0, 9.0], "{place:?}");
                rows.put(&[1], &Tensor::from_floats([[1e6, 0.0]], &device))
                    .unwrap();
                assert_eq!(
                    rows.is_finite(),
                    precision == Precision::Single,
                    "{place:?}: 10⁶ is no 16-bit number"
                );
            }
        }
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let full = std::fs::OpenOptions::new()
            .write(true)
            .open("/dev/full")
            .unwrap();
        let mut rows = FeatureCache::new(&CacheSpace::of(Precision::Single, Some(full)), 1);
        let error = rows
            .put(&[0], &Tensor::from_floats([[1.0]], &Device::flex()))
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}
