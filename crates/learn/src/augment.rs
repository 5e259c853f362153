//! Random crops and flips of training images (PFL-MoE and pFedMoE, as their code does).
//!
//! Drawn by (seed, node, round, epoch), so that a round that is repeated sees the same images. Evaluation, validation,
//! statistics, prototypes and the pool take images as they are.

use fednode_core::{Augmentation, CROP_SHIFT};
use fednode_data::Samples;
use rand_chacha::ChaCha8Rng;

use crate::random::below;

/// The augmentation of one epoch.
#[derive(Debug, Clone)]
pub(crate) struct Augmenter {
    augmentation: Augmentation,
    stream: ChaCha8Rng,
}

/// What happens to one image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Change {
    /// Where the crop begins in the padded image; [`CROP_SHIFT`] both ways leaves it as it is.
    down: usize,
    right: usize,
    flips: bool,
}

impl Augmenter {
    /// Makes the augmenter of an epoch; nothing if images stay as they are.
    pub(crate) fn new(augmentation: Augmentation, stream: ChaCha8Rng) -> Option<Self> {
        (augmentation != Augmentation::None).then_some(Self {
            augmentation,
            stream,
        })
    }

    /// Changes a batch of images, `[batch, channels * height * width]`.
    pub(crate) fn change(&mut self, batch: &mut Vec<f32>, samples: &Samples) {
        let before = std::mem::take(batch);
        batch.reserve(before.len());
        for image in before.chunks_exact(samples.values_per_sample().max(1)) {
            let change = self.draw();
            write(image, samples.shape, change, samples.black(), batch);
        }
    }

    fn draw(&mut self) -> Change {
        let mut number = |is_drawn: bool, bound: usize, otherwise: usize| {
            if is_drawn {
                below(&mut self.stream, bound)
            } else {
                otherwise
            }
        };
        let crops = self.augmentation.crops();
        let [down, right] = [(); 2].map(|()| number(crops, 2 * CROP_SHIFT + 1, CROP_SHIFT));
        Change {
            down,
            right,
            flips: number(self.augmentation.flips(), 2, 0) == 1,
        }
    }
}

/// Appends a changed image.
fn write(
    image: &[f32],
    [channels, height, width]: [usize; 3],
    change: Change,
    black: f32,
    to: &mut Vec<f32>,
) {
    let Change { down, right, flips } = change;
    for channel in 0..channels {
        let plane = &image[channel * height * width..(channel + 1) * height * width];
        for y in 0..height {
            // Where this row lies in the image without its frame.
            let row = (y + down)
                .checked_sub(CROP_SHIFT)
                .filter(|row| *row < height);
            for x in 0..width {
                let x = if flips { width - 1 - x } else { x };
                let column = (x + right)
                    .checked_sub(CROP_SHIFT)
                    .filter(|column| *column < width);
                to.push(
                    row.zip(column)
                        .map_or(black, |(row, column)| plane[row * width + column]),
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use fednode_data::Pixels;

    use super::*;
    use crate::random::{Purpose, stream};

    /// As `torchvision.transforms.functional`: `pad(4)`, `crop(top, left, 2, 3)`, then `hflip`, of the image 1 to 6 in two
    /// rows of three; 0 stands for black.
    #[test]
    fn crops_and_flips_agree_with_a_worked_example() {
        let image = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let changed = |down, right, flips| {
            let mut to = Vec::new();
            write(
                &image,
                [1, 2, 3],
                Change { down, right, flips },
                0.0,
                &mut to,
            );
            to
        };
        assert_eq!(changed(4, 4, false), image);
        assert_eq!(changed(4, 4, true), [3.0, 2.0, 1.0, 6.0, 5.0, 4.0]);
        assert_eq!(changed(3, 5, false), [0.0, 0.0, 0.0, 2.0, 3.0, 0.0]);
        assert_eq!(changed(3, 5, true), [0.0, 0.0, 0.0, 0.0, 3.0, 2.0]);
        assert_eq!(changed(5, 3, false), [0.0, 4.0, 5.0, 0.0, 0.0, 0.0]);
        assert_eq!(changed(0, 0, false), [0.0; 6]);
        assert_eq!(changed(8, 8, false), [0.0; 6]);
    }

    #[test]
    fn every_change_is_drawn_and_every_channel_shares_it() {
        let names: Arc<[String]> = ["a", "b"].map(String::from).into();
        let bytes = [vec![10, 20, 30, 40], vec![110, 120, 130, 140]].concat();
        let samples = Samples::new(
            [2, 2, 2],
            Pixels::Bytes {
                values: bytes,
                white: 255,
            },
            vec![0],
            names,
        )
        .unwrap();
        let kinds = |augmentation| {
            let mut augmenter =
                Augmenter::new(augmentation, stream(Purpose::Augmentation, [1, 2, 3])).unwrap();
            let draw = |augmenter: &mut Augmenter| {
                let mut batch = Vec::new();
                samples.write_batch(&[0], &mut batch);
                augmenter.change(&mut batch, &samples);
                let (first, second) = batch.split_at(4);
                let black = samples.black();
                assert!(
                    first
                        .iter()
                        .zip(second)
                        .all(|(a, b)| (*a == black) == (*b == black)),
                    "{batch:?}"
                );
                batch
                    .iter()
                    .map(|value| value.to_bits())
                    .collect::<Vec<u32>>()
            };
            (0..2000)
                .map(|_| draw(&mut augmenter))
                .collect::<BTreeSet<_>>()
                .len()
        };
        assert_eq!(kinds(Augmentation::Flip), 2);
        // Nine places, or out of sight; each both ways.
        assert_eq!(kinds(Augmentation::Crop), 10);
        assert_eq!(kinds(Augmentation::CropFlip), 19);
        assert!(
            Augmenter::new(Augmentation::None, stream(Purpose::Augmentation, [1, 2, 3])).is_none()
        );
    }
}
