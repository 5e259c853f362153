//! IDX files: MNIST, Fashion-MNIST, EMNIST and whatever uses their names.
//!
//! ```text
//! images: magic 0x00000803, count, height, width (big-endian u32), then count * height * width bytes
//! labels: magic 0x00000801, count,                                 then count bytes
//! ```
//!
//! EMNIST's images are stored transposed (columns first) and its letters are labelled from 1; both are put right here.
//! A folder with several EMNIST splits needs `split=`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fednode_config::{TableDoc, config};
use serde::{Deserialize, Serialize};

use super::kind::Reader;
use super::records::{RecordFile, Wanted, class};
use super::{Columns, Facts, Pool, Source, numbered};
use crate::error::DataError;
use crate::samples::{Pixels, Samples};

const IMAGES_MAGIC: u32 = 0x0803;
const LABELS_MAGIC: u32 = 0x0801;
/// Largest accepted height and width: above any data set here, and their product fits memory.
const MAX_SIDE: u32 = 4_096;
/// Most accepted samples: indices are 32-bit.
const MAX_SAMPLES: u32 = 1 << 30;

/// The families of files that are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Family {
    Mnist,
    Balanced,
    Byclass,
    Bymerge,
    Digits,
    Letters,
    EmnistMnist,
}

/// How one family of files is named, and what is special about it.
struct Layout {
    family: Family,
    /// What the option `split` calls it.
    split: &'static str,
    train: &'static str,
    test: &'static str,
    classes: Option<usize>,
    first_label: u8,
    transposed: bool,
}

/// Makes a row of EMNIST, whose files are all named alike.
macro_rules! emnist {
    ($family:ident, $split:literal, $files:literal, $classes:literal, $first:literal) => {
        Layout {
            family: Family::$family,
            split: $split,
            train: concat!("emnist-", $files, "-train"),
            test: concat!("emnist-", $files, "-test"),
            classes: Some($classes),
            first_label: $first,
            transposed: true,
        }
    };
}

const LAYOUTS: [Layout; 7] = [
    Layout {
        family: Family::Mnist,
        split: "mnist",
        train: "train",
        test: "t10k",
        classes: None,
        first_label: 0,
        transposed: false,
    },
    emnist!(Balanced, "balanced", "balanced", 47, 0),
    emnist!(Byclass, "byclass", "byclass", 62, 0),
    emnist!(Bymerge, "bymerge", "bymerge", 47, 0),
    emnist!(Digits, "digits", "digits", 10, 0),
    emnist!(Letters, "letters", "letters", 26, 1),
    emnist!(EmnistMnist, "emnist-mnist", "mnist", 10, 0),
];

/// A pair of files.
#[derive(Debug)]
struct Part {
    images: PathBuf,
    labels: PathBuf,
}

/// A data set in IDX files: its training pair and, if there is one, its test pair.
#[derive(Debug)]
pub(super) struct Idx {
    parts: Vec<Part>,
    class_names: Option<Arc<[String]>>,
    first_label: u8,
    transposed: bool,
}

config! {
    /// A data set in IDX files.
    pub(super) struct Options {
        /// The folder of its files.
        folder: PathBuf = PathBuf::new() => "DIR",
        /// Which data set is meant where the folder holds several: `mnist`, or of EMNIST `balanced`, `byclass`, `bymerge`,
        /// `digits`, `letters`, `emnist-mnist`. Without it, the only one that is there.
        split: Option<Family> = None => "NAME",
    }
}

impl Reader for Options {
    const NAME: &'static str = "idx";
    const ABOUT: &'static str = "any data set in IDX files named like MNIST's or EMNIST's";
    const ARGUMENT: Option<&'static str> = Some("folder");

    fn table() -> TableDoc {
        Self::doc()
    }

    fn open(self, _columns: &Columns) -> Result<Box<dyn Source>, DataError> {
        let layout = choose(&self)?;
        let Some(train) = find(&self.folder, layout.train) else {
            return Err(absent(&self.folder, layout.train));
        };
        let parts = std::iter::once(train)
            .chain(find(&self.folder, layout.test))
            .collect();
        Ok(Box::new(Idx {
            parts,
            class_names: layout.classes.map(numbered),
            first_label: layout.first_label,
            transposed: layout.transposed,
        }))
    }
}

config! {
    /// MNIST.
    pub(super) struct MnistOptions {
        /// The folder of its four files.
        folder: PathBuf = PathBuf::new() => "DIR",
    }
}

impl Reader for MnistOptions {
    const NAME: &'static str = "mnist";
    const ABOUT: &'static str = "MNIST in its IDX files";
    const ARGUMENT: Option<&'static str> = Some("folder");

    fn table() -> TableDoc {
        Self::doc()
    }

    fn open(self, _columns: &Columns) -> Result<Box<dyn Source>, DataError> {
        Ok(Box::new(Idx::like_mnist(&self.folder, numbered(10))?))
    }
}

impl Idx {
    /// Finds the four files of MNIST's layout.
    pub(super) fn like_mnist(folder: &Path, class_names: Arc<[String]>) -> Result<Self, DataError> {
        let [mnist, ..] = &LAYOUTS;
        let part = |name| find(folder, name).ok_or_else(|| absent(folder, name));
        let parts = vec![part(mnist.train)?, part(mnist.test)?];
        Ok(Self {
            parts,
            class_names: Some(class_names),
            first_label: 0,
            transposed: false,
        })
    }
}

fn choose(options: &Options) -> Result<&'static Layout, DataError> {
    if let Some(family) = options.split {
        let named = LAYOUTS.iter().find(|layout| layout.family == family);
        return Ok(named.expect("every family has its row"));
    }
    let is_there = |layout: &&Layout| find(&options.folder, layout.train).is_some();
    let present: Vec<&'static Layout> = LAYOUTS.iter().filter(is_there).collect();
    match present.as_slice() {
        [] => Ok(&LAYOUTS[0]),
        [one] => Ok(one),
        several => {
            let names: Vec<&str> = several.iter().map(|layout| layout.split).collect();
            let cause = format!(
                "holds several data sets: choose one with `,split={}`",
                names.join("|")
            );
            Err(DataError::malformed(&options.folder, cause))
        }
    }
}

fn find(folder: &Path, prefix: &str) -> Option<Part> {
    let file = |kind: &str| {
        let names = [
            format!("{prefix}-{kind}-ubyte"),
            format!("{prefix}-{}-ubyte", kind.replacen('-', ".", 1)),
        ];
        let names = names
            .iter()
            .flat_map(|name| [name.clone(), format!("{name}.gz")]);
        names
            .map(|name| folder.join(name))
            .find(|path| path.is_file())
    };
    Some(Part {
        images: file("images-idx3")?,
        labels: file("labels-idx1")?,
    })
}

fn absent(folder: &Path, prefix: &str) -> DataError {
    DataError::Absent(format!(
        "`{}` lacks `{prefix}-images-idx3-ubyte` or `{prefix}-labels-idx1-ubyte` (either may end in .gz)",
        folder.display()
    ))
}

/// What the header of an image file says.
struct ImageHeader {
    count: usize,
    height: usize,
    width: usize,
}

fn open_images(path: &Path) -> Result<(RecordFile, ImageHeader), DataError> {
    let mut file = RecordFile::open(path)?;
    check_magic(&mut file, IMAGES_MAGIC, "image")?;
    let (count, height, width) = (file.read_u32()?, file.read_u32()?, file.read_u32()?);
    let fits = |side| (1..=MAX_SIDE).contains(&side);
    if count > MAX_SAMPLES || !fits(height) || !fits(width) {
        return Err(file.malformed(format!(
            "declares {count} images of {height}x{width}, which is out of range"
        )));
    }
    let header = ImageHeader {
        count: count as usize,
        height: height as usize,
        width: width as usize,
    };
    file.check_capacity(header.count, header.height * header.width)?;
    Ok((file, header))
}

fn check_magic(file: &mut RecordFile, expected: u32, what: &str) -> Result<(), DataError> {
    match file.read_u32()? {
        magic if magic == expected => Ok(()),
        magic => Err(file.malformed(format!(
            "is no IDX {what} file: it starts with {magic:#010x}, not {expected:#010x}"
        ))),
    }
}

impl Idx {
    fn read_labels(&self, part: &Part, labels: &mut Vec<u16>) -> Result<usize, DataError> {
        let mut file = RecordFile::open(&part.labels)?;
        check_magic(&mut file, LABELS_MAGIC, "label")?;
        let count = file.read_u32()?;
        if count > MAX_SAMPLES {
            return Err(file.malformed(format!("declares {count} labels, which is out of range")));
        }
        let classes = self.class_names.as_ref().map_or(256, |names| names.len());
        file.for_each(count as usize, 1, |at, record| {
            labels.push(class(
                &part.labels,
                at,
                record[0],
                self.first_label,
                classes,
            )?);
            Ok(())
        })?;
        Ok(count as usize)
    }

    fn read_images(
        &self,
        part: &Part,
        start: u32,
        wanted: &Wanted,
        values: &mut [u8],
    ) -> Result<usize, DataError> {
        let (file, header) = open_images(&part.images)?;
        let bytes = header.height * header.width;
        let mut cursor = wanted.within(start..start + header.count as u32);
        if cursor.is_done() {
            return Ok(header.count); // a shard without any of them need not unpack the whole file
        }
        file.for_each(header.count, bytes, |at, record| {
            for place in cursor.places(at) {
                let image = &mut values[place * bytes..(place + 1) * bytes];
                if self.transposed {
                    transpose(record, header.height, image)
                } else {
                    image.copy_from_slice(record)
                }
            }
            Ok(())
        })?;
        Ok(header.count)
    }
}

/// Tells by its name whether a file holds its images column by column, as all of EMNIST's do.
pub fn is_transposed(path: &Path) -> bool {
    path.file_name()
        .is_some_and(|name| name.to_string_lossy().starts_with("emnist-"))
}

/// Returns images that are stored column by column row by row.
pub fn transposed(stored: &[u8], height: usize, width: usize) -> Vec<u8> {
    let mut images = vec![0; stored.len()];
    let size = (height * width).max(1);
    for (stored, image) in stored.chunks_exact(size).zip(images.chunks_exact_mut(size)) {
        transpose(stored, height, image);
    }
    images
}

/// Copies an image that is stored column by column.
fn transpose(stored: &[u8], height: usize, image: &mut [u8]) {
    let width = image.len() / height;
    for (at, byte) in image.iter_mut().enumerate() {
        *byte = stored[at % width * height + at / width];
    }
}

impl Source for Idx {
    fn describe(&self) -> Result<Facts, DataError> {
        Ok(Facts::Images)
    }

    fn pool(&self) -> Result<Pool, DataError> {
        let mut labels = Vec::new();
        let mut shape = None;
        for part in &self.parts {
            let n_labels = self.read_labels(part, &mut labels)?;
            let (file, header) = open_images(&part.images)?;
            if header.count != n_labels {
                return Err(file.malformed(format!(
                    "holds {} images, but there are {n_labels} labels",
                    header.count
                )));
            }
            let this = [1, header.height, header.width];
            if *shape.get_or_insert(this) != this {
                return Err(file.malformed("holds images of another size than the training file"));
            }
        }
        let shape = shape.expect("open found at least the training pair");
        let highest = labels.iter().max().map_or(0, |label| usize::from(*label));
        let class_names = self
            .class_names
            .clone()
            .unwrap_or_else(|| numbered(highest + 1));
        Ok(Pool {
            shape,
            labels,
            class_names,
            ..Pool::default()
        })
    }

    fn read(&self, pool: &Pool, indices: &[u32]) -> Result<Samples, DataError> {
        let wanted = Wanted::new(indices);
        let mut values = vec![0; indices.len() * pool.shape.iter().product::<usize>()];
        let mut start = 0;
        for part in &self.parts {
            start += self.read_images(part, start, &wanted, &mut values)? as u32;
        }
        pool.samples(indices, Pixels::bytes(values))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_has_its_row_under_the_name_of_the_option() {
        for layout in &LAYOUTS {
            let written = toml::Value::try_from(layout.family).unwrap();
            assert_eq!(written.as_str(), Some(layout.split));
        }
    }

    #[test]
    fn transposes_rectangles_too() {
        // Stored column by column: columns (1,2), (3,4), (5,6) of an image of height 2.
        let mut image = [0; 6];
        transpose(&[1, 2, 3, 4, 5, 6], 2, &mut image);
        assert_eq!(image, [1, 3, 5, 2, 4, 6]);
    }
}
