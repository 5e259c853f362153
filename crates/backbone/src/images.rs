//! Images as they come, and as the network wants them.
//!
//! ```text
//! bytes 0–255 or floats 0–1 ─► resized ─► grey repeated for every channel ─► (pixel − mean) / scale
//! ```

use crate::error::BackboneError;
use crate::resize::Resize;

/// Pixels of images, one after another: channel by channel, row by row.
#[derive(Debug, Clone, Copy)]
pub enum Pixels<'a> {
    /// From 0 to 255.
    Bytes(&'a [u8]),
    /// From 0 to 1.
    Floats(&'a [f32]),
}

/// A batch of images of one shape.
#[derive(Debug, Clone, Copy)]
pub struct Images<'a> {
    pixels: Pixels<'a>,
    channels: usize,
    size: [usize; 2],
}

impl<'a> Images<'a> {
    /// Images of `shape`, which is channels, height and width.
    ///
    /// # Errors
    ///
    /// The pixels are no whole number of images.
    pub fn new(pixels: Pixels<'a>, shape: [usize; 3]) -> Result<Self, BackboneError> {
        let [channels, height, width] = shape;
        let n = match pixels {
            Pixels::Bytes(bytes) => bytes.len(),
            Pixels::Floats(floats) => floats.len(),
        };
        let each = channels
            .checked_mul(height)
            .and_then(|n| n.checked_mul(width));
        if !each.is_some_and(|each| each > 0 && n.is_multiple_of(each)) {
            return Err(BackboneError::Pixels {
                pixels: n,
                channels,
                height,
                width,
            });
        }
        Ok(Self {
            pixels,
            channels,
            size: [height, width],
        })
    }

    /// Returns the number of images.
    #[must_use]
    pub fn len(&self) -> usize {
        match self.pixels {
            Pixels::Bytes(bytes) => bytes.len() / self.each(),
            Pixels::Floats(floats) => floats.len() / self.each(),
        }
    }

    /// Returns whether there is no image.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn channels(&self) -> usize {
        self.channels
    }

    pub(crate) fn size(&self) -> [usize; 2] {
        self.size
    }

    fn each(&self) -> usize {
        self.channels * self.size[0] * self.size[1]
    }

    /// Returns the pixels of one image, from 0 to 1.
    fn one(&self, image: usize) -> Vec<f32> {
        let range = image * self.each()..(image + 1) * self.each();
        match self.pixels {
            Pixels::Bytes(bytes) => bytes[range]
                .iter()
                .map(|&byte| f32::from(byte) / 255.0)
                .collect(),
            Pixels::Floats(floats) => floats[range].to_vec(),
        }
    }
}

/// What is taken from every pixel, and by what the rest is divided.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Channel {
    pub(crate) mean: f32,
    pub(crate) scale: f32,
}

/// The way from images as they come to what the network wants.
#[derive(Debug)]
pub(crate) struct Preparation<'a> {
    resize: Option<Resize>,
    channels: &'a [Channel],
}

impl<'a> Preparation<'a> {
    pub(crate) fn new(from: [usize; 2], to: [usize; 2], channels: &'a [Channel]) -> Self {
        Self {
            resize: Resize::new(from, to),
            channels,
        }
    }

    /// Prepares one image.
    ///
    /// # Errors
    ///
    /// A pixel is not finite.
    pub(crate) fn apply(&self, images: &Images, image: usize) -> Result<Vec<f32>, BackboneError> {
        let pixels = images.one(image);
        if !pixels.iter().all(|pixel| pixel.is_finite()) {
            return Err(BackboneError::Pixel { image });
        }
        let mut resized = pixels;
        if let Some(resize) = &self.resize {
            let source = std::mem::take(&mut resized);
            let [height, width] = images.size();
            for channel in source.chunks_exact(height * width) {
                resize.apply(channel, &mut resized);
            }
        }
        let planes = resized
            .chunks_exact(resized.len() / images.channels())
            .cycle();
        let mut prepared = Vec::with_capacity(resized.len());
        for (plane, channel) in planes.zip(self.channels) {
            prepared.extend(
                plane
                    .iter()
                    .map(|pixel| (pixel - channel.mean) / channel.scale),
            );
        }
        Ok(prepared)
    }
}
