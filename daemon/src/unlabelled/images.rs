//! Images as they are given: PNG, JPEG, and files of many in IDX form.

use std::io::Cursor;

use fednode_data::{Pixels, source};
use image::imageops::FilterType;
use image::{DynamicImage, ImageFormat, ImageReader, Limits};

use super::error::Unfit;

/// First bytes of a file of images in IDX form.
pub(super) const IDX_IMAGES: [u8; 4] = [0, 0, 8, 3];
/// Largest side of an image file: bounds what a damaged header can ask for.
const MAX_SIDE: u32 = 16_384;
/// Largest memory of one decoded image.
const MAX_IMAGE_BYTES: u64 = 1 << 28;

/// Tells whether bytes begin as a PNG or a JPEG does. Other marks are so short that a table may begin with them.
pub(super) fn is_image(bytes: &[u8]) -> bool {
    let form = image::guess_format(bytes);
    matches!(form, Ok(ImageFormat::Png | ImageFormat::Jpeg))
}

/// Decodes an image within the limits.
pub(super) fn decoded(bytes: &[u8]) -> Result<DynamicImage, Unfit> {
    let mut reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format()?;
    let mut limits = Limits::default();
    (limits.max_image_width, limits.max_image_height) = (Some(MAX_SIDE), Some(MAX_SIDE));
    limits.max_alloc = Some(MAX_IMAGE_BYTES);
    reader.limits(limits);
    Ok(reader.decode()?)
}

/// Gives an image this size and these channels.
pub(super) fn fitting(decoded: DynamicImage, shape: [usize; 3]) -> Result<Pixels, Unfit> {
    let [channels, height, width] = shape;
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

/// Reads the images of an IDX file, and their shape.
pub(super) fn idx(bytes: &[u8], is_transposed: bool) -> Result<(Pixels, [usize; 3]), Unfit> {
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
    let shape = [1, height as usize, width as usize];
    let values = &bytes[16..];
    if values.len() as u64 != u64::from(count) * u64::from(height) * u64::from(width) {
        return Err(Unfit::Truncated(count));
    }
    let values = if is_transposed {
        source::transposed(values, height as usize, width as usize)
    } else {
        values.to_vec()
    };
    let white = u8::MAX;
    Ok((Pixels::Bytes { values, white }, shape))
}
