//! Files to be predicted: samples without labels, made to fit a model's input.
//!
//! - **PNG, JPEG**: one sample each, scaled to the model's height and width, grey or coloured as the model wants.
//! - **IDX** (also `.gz`): every image of the file; they must have the model's size. Files that are called as EMNIST's
//!   (`emnist-…`) hold their images transposed, which is put right as it is for training.
//! - **Text**, if the model reads texts: every line that is not empty.
//! - **CSV**: every row of numbers; a first row without any is a heading, as for training: where the federation names its
//!   columns, they are found by it, and others are left out. Values are taken as they are, unless the federation describes
//!   its columns: then words and gaps are read as they are for training.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use fednode_core::spec::{Architecture, Fingerprints, TableColumn};
use fednode_data::source::{self, RowsError};
use fednode_data::{Pixels, Samples, Vocabulary};
use fednode_runtime::exit::ExitCode;
use flate2::read::GzDecoder;
use image::imageops::FilterType;
use image::{DynamicImage, ImageReader, Limits};

use fednode_cli::failure::{OrFail, fail};

/// First bytes of a file of images in IDX form.
const IDX_IMAGES: [u8; 4] = [0, 0, 8, 3];
/// First bytes of a gzip file.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// Largest side of an image file: bounds what a damaged header can ask for.
const MAX_SIDE: u32 = 16_384;
/// Largest memory of one decoded image.
const MAX_IMAGE_BYTES: u64 = 1 << 28;
/// Most bytes of an unpacked IDX or CSV file.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// Tells why a file holds no samples for a model.
#[derive(Debug, thiserror::Error)]
enum Unfit {
    #[error("cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    #[error("is no image: {0}")]
    NoImage(#[from] image::ImageError),
    #[error("is an image, but the model takes {0} channels")]
    Channels(usize),
    #[error("is neither PNG, JPEG, CSV nor a file of images in IDX form")]
    UnknownForm,
    #[error("has images of {}, but the model takes {}", sizes(.images), sizes(.model))]
    Size {
        images: [usize; 3],
        model: [usize; 3],
    },
    #[error("is truncated: its header promises {0} images")]
    Truncated(u32),
    #[error("is no UTF-8 text")]
    NoText(#[from] std::str::Utf8Error),
    #[error(transparent)]
    Rows(#[from] RowsError),
    #[error("holds no rows of numbers")]
    NoRows,
}

fn sizes(shape: &[usize; 3]) -> String {
    shape.map(|size| size.to_string()).join("x")
}

/// Reads all samples of a file.
///
/// # Errors
/// Names the file and what is wrong with it.
pub(crate) fn read(
    path: &Path,
    model: &Architecture,
    known: &Fingerprints,
    columns: &[TableColumn],
    vocabulary: Option<&Arc<Vocabulary>>,
) -> anyhow::Result<Samples> {
    let ending = path
        .extension()
        .unwrap_or_default()
        .to_string_lossy()
        .to_ascii_lowercase();
    let pixels = match (vocabulary, ending.as_str()) {
        (Some(vocabulary), _) => texts(&unpacked(path)?, model.input, vocabulary),
        (None, "png" | "jpg" | "jpeg") => image(path, model.input),
        (None, "csv" | "tsv") if !columns.is_empty() => raw(&unpacked(path)?, columns),
        (None, "csv" | "tsv") => csv(&unpacked(path)?, model, &known.columns),
        (None, _) => idx(&unpacked(path)?, model.input, source::is_transposed(path)),
    };
    let pixels =
        pixels.map_err(|cause| fail(ExitCode::Data, format!("`{}` {cause}", path.display())))?;
    // Labels are never looked at, but every sample has one.
    let shape = if columns.is_empty() {
        model.input
    } else {
        [1, 1, columns.len()]
    };
    let n_samples = pixels.len() / shape.iter().product::<usize>();
    let numbered = || (0..model.classes).map(|class| class.to_string()).collect();
    let names: Arc<[String]> = if known.class_names.is_empty() {
        numbered()
    } else {
        known.class_names.iter().cloned().collect()
    };
    Samples::new(shape, pixels, vec![0; n_samples], names).or_fail(ExitCode::Data)
}

fn unpacked(path: &Path) -> anyhow::Result<Vec<u8>> {
    let unreadable = |error| {
        fail(
            ExitCode::Data,
            format!("cannot read `{}`: {error}", path.display()),
        )
    };
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| {
            BufReader::new(file)
                .take(MAX_FILE_BYTES)
                .read_to_end(&mut bytes)
        })
        .map_err(unreadable)?;
    if bytes.starts_with(&GZIP) {
        let mut inner = Vec::new();
        GzDecoder::new(bytes.as_slice())
            .take(MAX_FILE_BYTES)
            .read_to_end(&mut inner)
            .map_err(unreadable)?;
        return Ok(inner);
    }
    Ok(bytes)
}

fn image(path: &Path, input: [usize; 3]) -> Result<Pixels, Unfit> {
    let [channels, height, width] = input;
    let mut reader = ImageReader::open(path).and_then(ImageReader::with_guessed_format)?;
    let mut limits = Limits::default();
    (limits.max_image_width, limits.max_image_height) = (Some(MAX_SIDE), Some(MAX_SIDE));
    limits.max_alloc = Some(MAX_IMAGE_BYTES);
    reader.limits(limits);
    let decoded: DynamicImage = reader.decode()?;
    let is_size = (decoded.width() as usize, decoded.height() as usize) == (width, height);
    let fitting = if is_size {
        decoded
    } else {
        decoded.resize_exact(width as u32, height as u32, FilterType::Triangle)
    };
    let values = match channels {
        1 => fitting.into_luma8().into_raw(),
        3 => {
            // A file has the channels of a pixel side by side, a model one plane after the other.
            let interleaved = fitting.into_rgb8().into_raw();
            (0..3)
                .flat_map(|channel| {
                    interleaved
                        .iter()
                        .skip(channel)
                        .step_by(3)
                        .copied()
                        .collect::<Vec<_>>()
                })
                .collect()
        }
        _ => return Err(Unfit::Channels(channels)),
    };
    Ok(Pixels::Bytes {
        values,
        white: u8::MAX,
    })
}

fn idx(bytes: &[u8], input: [usize; 3], is_transposed: bool) -> Result<Pixels, Unfit> {
    let number = |at: usize| {
        bytes
            .get(at..at + 4)
            .map(|word| u32::from_be_bytes([word[0], word[1], word[2], word[3]]))
    };
    let header = (number(4), number(8), number(12));
    let (true, (Some(count), Some(height), Some(width))) = (bytes.starts_with(&IDX_IMAGES), header)
    else {
        return Err(Unfit::UnknownForm);
    };
    let images = [1, height as usize, width as usize];
    if images != input {
        return Err(Unfit::Size {
            images,
            model: input,
        });
    }
    let values = &bytes[16..];
    if values.len() as u64 != u64::from(count) * u64::from(height) * u64::from(width) {
        return Err(Unfit::Truncated(count));
    }
    let values = if is_transposed {
        source::transposed(values, height as usize, width as usize)
    } else {
        values.to_vec()
    };
    Ok(Pixels::Bytes {
        values,
        white: u8::MAX,
    })
}

fn texts(bytes: &[u8], input: [usize; 3], vocabulary: &Arc<Vocabulary>) -> Result<Pixels, Unfit> {
    let text = str::from_utf8(bytes)?;
    let length: usize = input.iter().product();
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let mut ids = vec![Vocabulary::PADDING; lines.len() * length];
    for (line, places) in lines.iter().zip(ids.chunks_exact_mut(length)) {
        vocabulary.encode(line, places);
    }
    Ok(Pixels::Tokens {
        ids,
        vocabulary: Arc::clone(vocabulary),
    })
}

fn csv(bytes: &[u8], model: &Architecture, columns: &[String]) -> Result<Pixels, Unfit> {
    let width: usize = model.input.iter().product();
    let values = source::numbers(bytes, width, columns)?;
    if values.is_empty() {
        Err(Unfit::NoRows)
    } else {
        Ok(Pixels::Floats(values))
    }
}

fn raw(bytes: &[u8], columns: &[TableColumn]) -> Result<Pixels, Unfit> {
    let values = source::raw_rows(bytes, columns)?;
    if values.is_empty() {
        Err(Unfit::NoRows)
    } else {
        Ok(Pixels::Floats(values))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn model(input: [usize; 3]) -> Architecture {
        Architecture {
            input,
            classes: 3,
            ..Architecture::default()
        }
    }

    fn batch(samples: &Samples) -> Vec<f32> {
        let mut values = Vec::new();
        samples.write_batch(&(0..samples.len() as u32).collect::<Vec<_>>(), &mut values);
        values
    }

    #[test]
    fn columns_are_found_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.csv");
        std::fs::write(&path, "bmi,label,age\n20.5,x,40\n21.5,y,50\n").unwrap();
        let named = Fingerprints {
            columns: vec!["age".into(), "bmi".into()],
            ..Fingerprints::default()
        };
        assert_eq!(
            batch(&read(&path, &model([1, 1, 2]), &named, &[], None).unwrap()),
            [40.0, 20.5, 50.0, 21.5]
        );
        std::fs::write(&path, "2020,2019\n1,2\n").unwrap();
        let years = Fingerprints {
            columns: vec!["2019".into(), "2020".into()],
            ..Fingerprints::default()
        };
        assert_eq!(
            batch(&read(&path, &model([1, 1, 2]), &years, &[], None).unwrap()),
            [2.0, 1.0]
        );
        std::fs::write(&path, "bmi,label,age\n20.5,x,40\n21.5,y,50\n").unwrap();
        let other = Fingerprints {
            columns: vec!["age".into(), "dose".into()],
            ..Fingerprints::default()
        };
        assert!(
            read(&path, &model([1, 1, 2]), &other, &[], None)
                .unwrap_err()
                .to_string()
                .contains("has no column `dose`")
        );
        let unnamed = read(
            &path,
            &model([1, 1, 2]),
            &Fingerprints::default(),
            &[],
            None,
        )
        .unwrap_err()
        .to_string();
        assert!(
            unnamed.contains("has 3 values in line 2, but the model takes 2"),
            "{unnamed}"
        );
    }

    #[test]
    fn images_are_made_to_fit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("red.PNG");
        image::RgbImage::from_pixel(4, 4, image::Rgb([255, 0, 0]))
            .save_with_format(&path, image::ImageFormat::Png)
            .unwrap();
        let colour = read(
            &path,
            &model([3, 2, 2]),
            &Fingerprints::default(),
            &[],
            None,
        )
        .unwrap();
        assert_eq!(batch(&colour), [[1.0; 4], [-1.0; 4], [-1.0; 4]].concat());
        let grey = read(
            &path,
            &model([1, 4, 4]),
            &Fingerprints::default(),
            &[],
            None,
        )
        .unwrap();
        assert_eq!((grey.len(), grey.shape), (1, [1, 4, 4]));
        std::fs::write(&path, b"nonsense").unwrap();
        assert!(
            read(
                &path,
                &model([3, 2, 2]),
                &Fingerprints::default(),
                &[],
                None
            )
            .unwrap_err()
            .to_string()
            .contains("is no image")
        );
    }

    #[test]
    fn idx_files_may_be_packed() {
        let folder = tempfile::tempdir().unwrap();
        let bytes = [
            &IDX_IMAGES[..],
            &[0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2],
            &[0, 255, 255, 0],
        ]
        .concat();
        let path = folder.path().join("images-idx3-ubyte.gz");
        let mut packer = flate2::write::GzEncoder::new(
            File::create(&path).unwrap(),
            flate2::Compression::fast(),
        );
        packer.write_all(&bytes).unwrap();
        packer.finish().unwrap();
        let samples = read(
            &path,
            &model([1, 1, 2]),
            &Fingerprints::default(),
            &[],
            None,
        )
        .unwrap();
        assert_eq!(
            (samples.len(), batch(&samples)),
            (2, vec![-1.0, 1.0, 1.0, -1.0])
        );
        let letters = folder.path().join("emnist-letters-test-images-idx3-ubyte");
        let columns = [
            &IDX_IMAGES[..],
            &[0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 2],
            &[0, 0, 255, 0],
        ]
        .concat();
        std::fs::write(&letters, columns).unwrap();
        assert_eq!(
            batch(
                &read(
                    &letters,
                    &model([1, 2, 2]),
                    &Fingerprints::default(),
                    &[],
                    None
                )
                .unwrap()
            ),
            [-1.0, 1.0, -1.0, -1.0]
        );
        assert!(
            idx(&bytes[..19], [1, 1, 2], false)
                .unwrap_err()
                .to_string()
                .contains("truncated")
        );
        assert!(
            idx(&bytes, [1, 2, 2], false)
                .unwrap_err()
                .to_string()
                .contains("but the model takes 1x2x2")
        );
        assert!(
            idx(b"\x00\x00", [1, 1, 1], false)
                .unwrap_err()
                .to_string()
                .contains("neither")
        );
    }

    #[test]
    fn rows_may_have_a_heading() {
        assert_eq!(
            csv(b"a,b\n1, 2\n\n3,\"4\"\n", &model([1, 1, 2]), &[]).unwrap(),
            Pixels::Floats(vec![1.0, 2.0, 3.0, 4.0])
        );
        for (text, line, cell) in [
            ("1,2\nx,2", 2, "x"),
            ("1,\n3,4", 1, ""),
            ("a,b\n1,nan", 2, "nan"),
        ] {
            let error = csv(text.as_bytes(), &model([1, 1, 2]), &[]).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("holds `{cell}` in line {line}, not a finite number")
            );
        }
        assert_eq!(
            csv(b"1,2,3", &model([1, 1, 2]), &[])
                .unwrap_err()
                .to_string(),
            "has 3 values in line 1, but the model takes 2"
        );
        assert!(csv(b"a,b", &model([1, 1, 2]), &[]).is_err());
    }

    #[test]
    fn every_line_of_a_text_is_a_sample() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("texts.txt");
        std::fs::write(&path, "Dogs bark!\n\ncats, too and more\n").unwrap();
        let vocabulary = Arc::new(Vocabulary::new(&["dogs", "bark", "cats", "too"]).unwrap());
        let samples = read(
            &path,
            &model([1, 1, 4]),
            &Fingerprints::default(),
            &[],
            Some(&vocabulary),
        )
        .unwrap();
        // 0 fills up, 1 is unknown: `!`, `,` and `and`.
        let Pixels::Tokens { ids, .. } = &samples.pixels else {
            panic!("texts are tokens")
        };
        assert_eq!(ids, &[2, 3, 1, 0, 4, 1, 5, 1]);
        std::fs::write(&path, [0xff, b'a']).unwrap();
        assert!(
            read(
                &path,
                &model([1, 1, 4]),
                &Fingerprints::default(),
                &[],
                Some(&vocabulary)
            )
            .unwrap_err()
            .to_string()
            .contains("is no UTF-8")
        );
    }
}
