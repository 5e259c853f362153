//! CIFAR-10 and CIFAR-100, binary version: records of label bytes and 3×32×32 pixel bytes, channel by channel.
//!
//! | data set | files, training first | label bytes |
//! |---|---|---|
//! | CIFAR-10 | `data_batch_1.bin` to `data_batch_5.bin`, `test_batch.bin` | one |
//! | CIFAR-100 | `train.bin`, `test.bin` | two: coarse, then fine, which is the one used |

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fednode_config::{TableDoc, config};

use super::kind::Reader;
use super::records::{RecordFile, Wanted, class};
use super::{Columns, Facts, Pool, Source, numbered, unpacked};
use crate::error::DataError;
use crate::samples::{Pixels, Samples};

const SHAPE: [usize; 3] = [3, 32, 32];
const PIXELS: usize = 3 * 32 * 32;

const CIFAR10_CLASSES: [&str; 10] = [
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
];

/// One of the two data sets.
struct Variant {
    /// The folder that its archive unpacks to.
    folder: &'static str,
    files: &'static [&'static str],
    label_bytes: usize,
}

const CIFAR10: Variant = Variant {
    folder: "cifar-10-batches-bin",
    files: &[
        "data_batch_1.bin",
        "data_batch_2.bin",
        "data_batch_3.bin",
        "data_batch_4.bin",
        "data_batch_5.bin",
        "test_batch.bin",
    ],
    label_bytes: 1,
};
const CIFAR100: Variant = Variant {
    folder: "cifar-100-binary",
    files: &["train.bin", "test.bin"],
    label_bytes: 2,
};

/// An opened CIFAR folder.
#[derive(Debug)]
struct Cifar {
    /// Files with their numbers of records.
    files: Vec<(PathBuf, usize)>,
    label_bytes: usize,
    class_names: Arc<[String]>,
}

config! {
    /// CIFAR-10.
    pub(super) struct Cifar10Options {
        /// The folder of its six files, or the one in which its archive was unpacked.
        folder: PathBuf = PathBuf::new() => "DIR",
    }
}

impl Reader for Cifar10Options {
    const NAME: &'static str = "cifar10";
    const ABOUT: &'static str = "CIFAR-10, binary version";
    const ARGUMENT: Option<&'static str> = Some("folder");

    fn table() -> TableDoc {
        Self::doc()
    }

    fn open(self, _columns: &Columns) -> Result<Box<dyn Source>, DataError> {
        let names = CIFAR10_CLASSES.iter().map(|name| (*name).to_owned());
        let opened = Cifar::open(&self.folder, &CIFAR10, names.collect())?;
        Ok(Box::new(opened))
    }
}

config! {
    /// CIFAR-100.
    pub(super) struct Cifar100Options {
        /// The folder of its two files, or the one in which its archive was unpacked.
        folder: PathBuf = PathBuf::new() => "DIR",
    }
}

impl Reader for Cifar100Options {
    const NAME: &'static str = "cifar100";
    const ABOUT: &'static str = "CIFAR-100, binary version";
    const ARGUMENT: Option<&'static str> = Some("folder");

    fn table() -> TableDoc {
        Self::doc()
    }

    fn open(self, _columns: &Columns) -> Result<Box<dyn Source>, DataError> {
        let opened = Cifar::open(&self.folder, &CIFAR100, numbered(100))?;
        Ok(Box::new(opened))
    }
}

impl Cifar {
    /// Finds the files in the folder, or in the one that the archive makes inside it.
    fn open(
        folder: &Path,
        variant: &Variant,
        class_names: Arc<[String]>,
    ) -> Result<Self, DataError> {
        let folder = unpacked(folder, variant.folder);
        let record = variant.label_bytes + PIXELS;
        let mut files = Vec::new();
        for name in variant.files {
            let path = folder.join(name);
            let size = std::fs::metadata(&path)
                .map_err(DataError::read(&path))?
                .len();
            if size == 0 || !size.is_multiple_of(record as u64) {
                let cause = format!(
                    "is truncated or no CIFAR file: {size} bytes are not whole records of {record}"
                );
                return Err(DataError::malformed(&path, cause));
            }
            files.push((path, (size / record as u64) as usize));
        }
        Ok(Self {
            files,
            label_bytes: variant.label_bytes,
            class_names,
        })
    }
}

impl Source for Cifar {
    fn describe(&self) -> Result<Facts, DataError> {
        Ok(Facts::Images)
    }

    fn pool(&self) -> Result<Pool, DataError> {
        let mut labels = Vec::new();
        let classes = self.class_names.len();
        for (path, n) in &self.files {
            RecordFile::open(path)?.for_each(*n, self.label_bytes + PIXELS, |at, record| {
                let label = record[self.label_bytes - 1];
                labels.push(class(path, at, label, 0, classes)?);
                Ok(())
            })?;
        }
        Ok(Pool {
            shape: SHAPE,
            labels,
            class_names: Arc::clone(&self.class_names),
            ..Pool::default()
        })
    }

    fn read(&self, pool: &Pool, indices: &[u32]) -> Result<Samples, DataError> {
        let wanted = Wanted::new(indices);
        let mut values = vec![0; indices.len() * PIXELS];
        let mut start = 0;
        for (path, n) in &self.files {
            let mut cursor = wanted.within(start..start + *n as u32);
            start += *n as u32;
            if cursor.is_done() {
                continue;
            }
            RecordFile::open(path)?.for_each(*n, self.label_bytes + PIXELS, |at, record| {
                for place in cursor.places(at) {
                    values[place * PIXELS..(place + 1) * PIXELS]
                        .copy_from_slice(&record[self.label_bytes..]);
                }
                Ok(())
            })?;
        }
        pool.samples(indices, Pixels::bytes(values))
    }
}
