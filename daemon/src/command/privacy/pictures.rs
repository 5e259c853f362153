//! Pictures of what can be redrawn: true images above, what was known before in the middle, redrawn ones below.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use fednode_learn::Redrawn;
use fednode_runtime::exit::ExitCode;
use image::{ImageBuffer, Luma, Pixel, Rgb};

use fednode_cli::failure::fail;

/// Most images side by side.
const COLUMNS: usize = 10;
/// The side that a smaller image is enlarged to, about.
const SIDE: usize = 96;
/// Pixels between images.
const GAP: usize = 4;
/// Its grey.
const GREY: u8 = 128;

/// Refuses a folder that is there already, so that no file is replaced. Nothing is made yet: what follows may fail.
pub(super) fn check(folder: Option<&Path>) -> anyhow::Result<()> {
    match folder.filter(|folder| folder.symlink_metadata().is_ok()) {
        Some(folder) => {
            let text = format!(
                "`{}` is there already: choose another name",
                folder.display()
            );
            Err(fail(ExitCode::Usage, text))
        }
        None => Ok(()),
    }
}

/// Makes the folder for its owner alone: the pictures are of real samples.
fn make(folder: &Path) -> io::Result<()> {
    if let Some(parent) = folder.parent() {
        std::fs::create_dir_all(parent)?;
    }
    DirBuilder::new().mode(0o700).create(folder)
}

/// Writes a picture for each, and returns their paths. `shape` is channels, height and width of an image.
pub(super) fn write(
    folder: &Path,
    redrawn: &[Redrawn],
    shape: [usize; 3],
) -> anyhow::Result<Vec<PathBuf>> {
    make(folder).map_err(|error| {
        let text = format!("cannot make the folder `{}`: {error}", folder.display());
        fail(ExitCode::State, text)
    })?;
    let mut written = Vec::new();
    for redrawn in redrawn {
        let name = if redrawn.published.ends_with("one image") {
            "one-image.png"
        } else {
            "own-classes.png"
        };
        let path = folder.join(name);
        let saved = match shape[0] {
            1 => sheet::<Luma<u8>>(redrawn, shape).save(&path),
            _ => sheet::<Rgb<u8>>(redrawn, shape).save(&path),
        };
        saved.map_err(|error| {
            let text = format!("cannot write `{}`: {error}", path.display());
            fail(ExitCode::State, text)
        })?;
        written.push(path);
    }
    Ok(written)
}

/// Puts images beside and below each other.
fn sheet<P: Pixel<Subpixel = u8>>(redrawn: &Redrawn, shape: [usize; 3]) -> ImageBuffer<P, Vec<u8>> {
    let [channels, height, width] = shape;
    let times = (SIDE / height.max(width).max(1)).max(1);
    let columns = redrawn.pictures.len().min(COLUMNS);
    let [tall, wide] = [height, width].map(|side| side * times + GAP);
    let size = [columns * wide + GAP, 3 * tall + GAP].map(|side| side as u32);
    let ground = *P::from_slice(&[GREY; 3][..usize::from(P::CHANNEL_COUNT)]);
    let mut sheet = ImageBuffer::from_pixel(size[0], size[1], ground);
    for (column, images) in redrawn.pictures[..columns].iter().enumerate() {
        for (row, image) in images.iter().enumerate() {
            for y in 0..height * times {
                for x in 0..width * times {
                    let at = |channel: usize| {
                        let place = channel.min(channels - 1) * height * width;
                        byte(image[place + y / times * width + x / times])
                    };
                    let bytes: [u8; 3] = [at(0), at(1), at(2)];
                    let pixel = P::from_slice(&bytes[..usize::from(P::CHANNEL_COUNT)]);
                    let place = [column * wide + GAP + x, row * tall + GAP + y];
                    sheet.put_pixel(place[0] as u32, place[1] as u32, *pixel);
                }
            }
        }
    }
    sheet
}

/// Returns the byte of a value from -1 to 1.
fn byte(value: f32) -> u8 {
    (f32::from(u8::MAX) * 0.5 * (value.clamp(-1.0, 1.0) + 1.0)).round() as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sheet_has_true_known_and_redrawn_images_below_each_other() {
        let of = |value: f32| vec![value; 4];
        let redrawn = Redrawn {
            published: "class sums".into(),
            classes: 2,
            images: 1.0,
            known: 10.0,
            redrawn: 20.0,
            pictures: vec![[of(1.0), of(-1.0), of(0.0)], [of(-1.0), of(1.0), of(2.0)]],
        };
        let sheet = sheet::<Luma<u8>>(&redrawn, [1, 2, 2]);
        assert_eq!(sheet.dimensions(), (204, 304));
        let at = |x, y| sheet.get_pixel(x, y).0[0];
        assert_eq!([at(4, 4), at(4, 104), at(4, 204)], [255, 0, 128]);
        assert_eq!([at(104, 4), at(199, 199), at(199, 299)], [0, 255, 255]);
        assert_eq!(at(0, 0), GREY);
    }
}
