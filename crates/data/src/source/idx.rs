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

use super::options::Argument;
use super::records::{RecordFile, Wanted};
use super::{Pool, Source, numbered};
use crate::error::DataError;
use crate::samples::{Pixels, Samples};

const IMAGES_MAGIC: u32 = 0x0803;
const LABELS_MAGIC: u32 = 0x0801;
/// Largest accepted height and width: above any data set here, and their product fits memory.
const MAX_SIDE: u32 = 4_096;
/// Most accepted samples: indices are 32-bit.
const MAX_SAMPLES: u32 = 1 << 30;

/// How one family of files is named, and what is special about it.
struct Layout {
    split: &'static str,
    train: &'static str,
    test: &'static str,
    classes: Option<usize>,
    first_label: u8,
    transposed: bool,
}

const fn emnist(
    split: &'static str,
    train: &'static str,
    test: &'static str,
    classes: usize,
    first: u8,
) -> Layout {
    Layout {
        split,
        train,
        test,
        classes: Some(classes),
        first_label: first,
        transposed: true,
    }
}

const LAYOUTS: [Layout; 7] = [
    Layout {
        split: "mnist",
        train: "train",
        test: "t10k",
        classes: None,
        first_label: 0,
        transposed: false,
    },
    emnist(
        "balanced",
        "emnist-balanced-train",
        "emnist-balanced-test",
        47,
        0,
    ),
    emnist(
        "byclass",
        "emnist-byclass-train",
        "emnist-byclass-test",
        62,
        0,
    ),
    emnist(
        "bymerge",
        "emnist-bymerge-train",
        "emnist-bymerge-test",
        47,
        0,
    ),
    emnist("digits", "emnist-digits-train", "emnist-digits-test", 10, 0),
    emnist(
        "letters",
        "emnist-letters-train",
        "emnist-letters-test",
        26,
        1,
    ),
    emnist(
        "emnist-mnist",
        "emnist-mnist-train",
        "emnist-mnist-test",
        10,
        0,
    ),
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

/// Opens `idx:DIR[,split=NAME]`.
pub(super) fn open(argument: &str) -> Result<Box<dyn Source>, DataError> {
    let argument = Argument::parse(argument, &["split"])?;
    let layout = choose(&argument)?;
    let Some(train) = find(&argument.path, layout.train) else {
        return Err(absent(&argument.path, layout.train));
    };
    let parts = std::iter::once(train)
        .chain(find(&argument.path, layout.test))
        .collect();
    let Layout {
        classes,
        first_label,
        transposed,
        ..
    } = *layout;
    Ok(Box::new(Idx {
        parts,
        class_names: classes.map(numbered),
        first_label,
        transposed,
    }))
}

/// Opens `mnist:DIR`.
pub(super) fn open_mnist(argument: &str) -> Result<Box<dyn Source>, DataError> {
    Ok(Box::new(Idx::like_mnist(
        Path::new(argument),
        numbered(10),
    )?))
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

fn choose(argument: &Argument) -> Result<&'static Layout, DataError> {
    let names = |layouts: &[&Layout]| {
        layouts
            .iter()
            .map(|layout| layout.split)
            .collect::<Vec<_>>()
            .join("|")
    };
    let all: Vec<&'static Layout> = LAYOUTS.iter().collect();
    let by_name = |name: &str| all.iter().copied().find(|layout| layout.split == name);
    if let Some(layout) = argument.parsed("split", &format!("one of {}", names(&all)), by_name)? {
        return Ok(layout);
    }
    let present: Vec<_> = all
        .into_iter()
        .filter(|layout| find(&argument.path, layout.train).is_some())
        .collect();
    match present.as_slice() {
        [] => Ok(&LAYOUTS[0]),
        [one] => Ok(one),
        several => {
            let cause = format!(
                "holds several data sets: choose one with `,split={}`",
                names(several)
            );
            Err(DataError::malformed(&argument.path, cause))
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
            let label = record[0].checked_sub(self.first_label).map(u16::from);
            let label = label
                .filter(|label| usize::from(*label) < classes)
                .ok_or_else(|| {
                    let cause = format!(
                        "holds label {} at {at}, beyond its {classes} classes",
                        record[0]
                    );
                    DataError::malformed(&part.labels, cause)
                })?;
            labels.push(label);
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
        })
    }

    fn read(&self, pool: &Pool, indices: &[u32]) -> Result<Samples, DataError> {
        let wanted = Wanted::new(indices);
        let mut values = vec![0; indices.len() * pool.shape.iter().product::<usize>()];
        let mut start = 0;
        for part in &self.parts {
            start += self.read_images(part, start, &wanted, &mut values)? as u32;
        }
        let labels = indices
            .iter()
            .map(|index| pool.labels[*index as usize])
            .collect();
        let pixels = Pixels::Bytes {
            values,
            white: u8::MAX,
        };
        Ok(Samples::new(
            pool.shape,
            pixels,
            labels,
            Arc::clone(&pool.class_names),
        )?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transposes_rectangles_too() {
        // Stored column by column: columns (1,2), (3,4), (5,6) of an image of height 2.
        let mut image = [0; 6];
        transpose(&[1, 2, 3, 4, 5, 6], 2, &mut image);
        assert_eq!(image, [1, 3, 5, 2, 4, 6]);
    }
}
