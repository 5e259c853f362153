//! Image folders: one sub-folder per class, PNG and JPEG files in it.
//!
//! Classes and files count in alphabetical order, so that every node that has the same folder has the same indices.
//! All images must have the size and the channels of the first one, unless `resize=HxW` and `channels=1|3` make them so.
//! Other files are ignored. Images are decoded only when wanted. Another folder of the same form may hold the test images.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fednode_config::{TableDoc, config};
use image::{DynamicImage, ImageDecoder, ImageReader, Limits};

use super::kind::Reader;
use super::options::{Channels, Classes, Size};
use super::{Columns, Facts, Pool, Source};
use crate::error::DataError;
use crate::samples::{Pixels, Samples};

const EXTENSIONS: [&str; 3] = ["png", "jpg", "jpeg"];
/// Largest side of an image file: bounds what a damaged header can ask for.
const MAX_SIDE: u32 = 16_384;
/// Largest memory of one decoded image.
const MAX_IMAGE_BYTES: u64 = 1 << 28;

#[derive(Debug)]
struct Folder {
    path: PathBuf,
    files: Vec<PathBuf>,
    labels: Vec<u16>,
    /// How many of the files are for training, if the data say so; the others are for tests.
    n_train: Option<usize>,
    class_names: Arc<[String]>,
    resize: Option<Size>,
    channels: Option<Channels>,
}

config! {
    /// Image folders.
    pub(super) struct Options {
        /// The folder of the classes' folders.
        folder: PathBuf = PathBuf::new() => "DIR",
        /// The size that images are scaled to, height first; without it, all must have that of the first one.
        resize: Option<Size> = None => "HxW",
        /// What images are made: grey (1) or coloured (3); without it, all must be as the first one is.
        channels: Option<Channels> = None => "1|3",
        /// The classes, where every node brings its own images: names in order, or `LABEL=>NAME`, or a table of folders
        /// and names. Without it, the folders that are there.
        classes: Option<Classes> = None => "[LABEL=>]A|…",
        /// A folder of the same form with the test images, where the partition is `own`.
        test: Option<PathBuf> = None => "DIR",
    }
}

impl Reader for Options {
    const NAME: &'static str = "folder";
    const ABOUT: &'static str = "PNG and JPEG images, one sub-folder per class";
    const ARGUMENT: Option<&'static str> = Some("folder");

    fn table() -> TableDoc {
        Self::doc()
    }

    fn open(self, _columns: &Columns) -> Result<Box<dyn Source>, DataError> {
        let classes = match self.classes {
            Some(classes) => classes,
            None => Classes::called(
                folders(&self.folder)?
                    .iter()
                    .map(|folder| name(folder))
                    .collect(),
            ),
        };
        let (mut files, mut labels) = images(&self.folder, &classes)?;
        let n_train = self.test.is_some().then_some(files.len());
        if let Some(folder) = &self.test {
            let (test_files, test_labels) = images(folder, &classes)?;
            files.extend(test_files);
            labels.extend(test_labels);
        }
        Ok(Box::new(Folder {
            path: self.folder,
            files,
            labels,
            n_train,
            class_names: classes.names,
            resize: self.resize,
            channels: self.channels,
        }))
    }
}

/// Returns the classes' folders in order.
fn folders(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    sorted(folder, |entry| entry.is_dir())
}

/// Returns all images of a folder, class by class, and their classes.
fn images(folder: &Path, classes: &Classes) -> Result<(Vec<PathBuf>, Vec<u16>), DataError> {
    let (mut files, mut labels) = (Vec::new(), Vec::new());
    for of_class in folders(folder)? {
        let Some(class) = classes.of(&name(&of_class)) else {
            return Err(DataError::malformed(&of_class, "is none of the classes"));
        };
        let images = sorted(&of_class, is_image)?;
        labels.extend(images.iter().map(|_| class));
        files.extend(images);
    }
    if files.is_empty() || classes.names.len() > usize::from(u16::MAX) {
        let cause = "holds no sub-folders with PNG or JPEG files";
        return Err(DataError::malformed(folder, cause));
    }
    Ok((files, labels))
}

fn name(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

fn is_image(path: &Path) -> bool {
    let extension = path
        .extension()
        .and_then(OsStr::to_str)
        .map(str::to_ascii_lowercase);
    extension.is_some_and(|extension| EXTENSIONS.contains(&extension.as_str()))
}

fn sorted(folder: &Path, keep: impl Fn(&Path) -> bool) -> Result<Vec<PathBuf>, DataError> {
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(DataError::read(folder))? {
        let path = entry.map_err(DataError::read(folder))?.path();
        if keep(&path) && !name(&path).starts_with('.') {
            entries.push(path);
        }
    }
    entries.sort_unstable();
    Ok(entries)
}

fn damaged(path: &Path, error: image::ImageError) -> DataError {
    match error {
        image::ImageError::IoError(source) => DataError::read(path)(source),
        other => DataError::malformed(path, format!("is no readable image: {other}")),
    }
}

/// Opens a decoder by content, not by name, within the limits.
fn decoder(path: &Path) -> Result<impl ImageDecoder, DataError> {
    let reader = ImageReader::open(path).map_err(DataError::read(path))?;
    let mut reader = reader
        .with_guessed_format()
        .map_err(DataError::read(path))?;
    let mut limits = Limits::default();
    limits.max_image_width = Some(MAX_SIDE);
    limits.max_image_height = Some(MAX_SIDE);
    limits.max_alloc = Some(MAX_IMAGE_BYTES);
    reader.limits(limits.clone());
    let decoder = reader
        .into_decoder()
        .map_err(|error| damaged(path, error))?;
    // The library holds its own buffers to the limits, but not the picture that comes out.
    let reserved = limits.reserve(decoder.total_bytes());
    reserved.map_err(|error| damaged(path, error))?;
    Ok(decoder)
}

fn n_channels(decoder: &impl ImageDecoder) -> usize {
    if decoder.color_type().has_color() {
        3
    } else {
        1
    }
}

impl Folder {
    fn shape(&self) -> Result<[usize; 3], DataError> {
        let [first, ..] = self.files.as_slice() else {
            return Err(DataError::malformed(&self.path, "is empty"));
        };
        let first = decoder(first)?;
        let (width, height) = first.dimensions();
        let (height, width) = self
            .resize
            .map_or((height, width), |size| (size.height, size.width));
        let channels = self
            .channels
            .map_or_else(|| n_channels(&first), |channels| channels as usize);
        Ok([channels, height as usize, width as usize])
    }

    fn append(
        &self,
        path: &Path,
        shape: [usize; 3],
        values: &mut Vec<u8>,
    ) -> Result<(), DataError> {
        let [channels, height, width] = shape;
        let decoder = decoder(path)?;
        let stored = n_channels(&decoder);
        if self.channels.is_none() && stored != channels {
            let cause = format!(
                "has {stored} channels, but the first image has {channels}: add `,channels={channels}`"
            );
            return Err(DataError::malformed(path, cause));
        }
        let mut image =
            DynamicImage::from_decoder(decoder).map_err(|error| damaged(path, error))?;
        if (image.height() as usize, image.width() as usize) != (height, width) {
            if self.resize.is_none() {
                let cause = format!(
                    "is {}x{}, but the first image is {height}x{width}: add `,resize={height}x{width}`",
                    image.height(),
                    image.width(),
                );
                return Err(DataError::malformed(path, cause));
            }
            let filter = image::imageops::FilterType::Triangle;
            image = image.resize_exact(width as u32, height as u32, filter);
        }
        if channels == 1 {
            values.extend_from_slice(image.to_luma8().as_raw());
        } else {
            let interleaved = image.to_rgb8();
            (0..channels)
                .for_each(|c| values.extend(interleaved.as_raw().iter().skip(c).step_by(channels)));
        }
        Ok(())
    }
}

impl Source for Folder {
    fn describe(&self) -> Result<Facts, DataError> {
        Ok(Facts::Images)
    }

    fn pool(&self) -> Result<Pool, DataError> {
        let class_names = Arc::clone(&self.class_names);
        let all = 0..self.files.len();
        let tests = self
            .n_train
            .map(|n_train| all.map(|at| at >= n_train).collect());
        Ok(Pool {
            shape: self.shape()?,
            labels: self.labels.clone(),
            class_names,
            tests,
            ..Pool::default()
        })
    }

    fn read(&self, pool: &Pool, wanted: &[u32]) -> Result<Samples, DataError> {
        let mut values = Vec::with_capacity(wanted.len() * pool.shape.iter().product::<usize>());
        for index in wanted {
            self.append(&self.files[*index as usize], pool.shape, &mut values)?;
        }
        pool.samples(wanted, Pixels::bytes(values))
    }
}
