//! Images redrawn from published class sums: what a decoder of others' images makes of them, beside the true ones.
//!
//! ```text
//! one image    a class of one training image: its features are the class sum       others: the rest of what is tried
//! own classes  the class sums of the node as they are published                     others: held-out images
//! ```
//!
//! The decoder is [`fednode_mix::redraw`]. It knows how many images a class has. What it gains is told against the mean of the
//! others' images of the class, which is known without any sums. A stronger decoder may draw more.

use burn::tensor::Tensor;
use fednode_core::random::{Purpose, nearly_normal, stream};
use fednode_data::{Pixels, Samples};
use fednode_mix::Statistics;
use fednode_mix::redraw::{Decoder, Others};
use serde::Serialize;

use super::Rows;

/// Most images that are redrawn one by one.
const MOST_IMAGES: usize = 40;
/// Most images of which a decoder is learned: it inverts a matrix of as many rows.
const MOST_OTHERS: usize = 600;
/// Most numbers of all images of a kind: large images are fewer.
const MOST_NUMBERS: usize = 1 << 24;
/// The range of the values of an image, from black to white.
const RANGE: f64 = 2.0;
/// The smallest mean squared error that is told from none, as a share of the squared range.
const LEAST_ERROR: f64 = 1e-10;

/// How well images can be redrawn.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Redrawn {
    /// What is published.
    pub published: String,
    /// Classes that were redrawn, in this node's data or made of one image each.
    pub classes: usize,
    /// Images of a class, on average.
    pub images: f64,
    /// How near the mean of others' images comes to the true one, in dB (PSNR), on average.
    pub known: f64,
    /// How near the redrawn one comes.
    pub redrawn: f64,
    /// What was redrawn: the true image, what was known before, and what was redrawn. Values are from -1 to 1.
    #[serde(skip)]
    pub pictures: Vec<[Vec<f32>; 3]>,
}

/// Class sums as others see them.
pub(crate) struct ClassSums<'a> {
    /// What they are called.
    pub(crate) published: String,
    /// The sums of this node.
    pub(crate) sums: Statistics,
    /// The deviation of the noise in each number of a class sum.
    pub(crate) noise: f64,
    /// What is added up.
    pub(crate) features: Box<dyn Fn(Tensor<2>) -> Tensor<2> + 'a>,
}

/// One class that is redrawn.
struct Target {
    class: usize,
    features: Vec<f64>,
    truth: Vec<f32>,
    images: f64,
}

/// Images with their features and classes.
#[derive(Clone)]
pub(crate) struct Images {
    features: Vec<Vec<f32>>,
    inputs: Vec<Vec<f32>>,
    classes: Vec<usize>,
}

impl Images {
    /// Makes features of samples, of some where they are large; nothing of what are no images.
    pub(crate) fn of(
        samples: &[&Samples],
        features: &dyn Fn(Tensor<2>) -> Tensor<2>,
        device: &burn::tensor::Device,
    ) -> Option<Self> {
        let are_images = |samples: &&Samples| matches!(samples.pixels, Pixels::Bytes { .. });
        if !samples.iter().all(are_images) {
            return None;
        }
        let fewer = |samples: &&Samples| {
            let most = most_images(samples.values_per_sample());
            let some = spread(samples.len(), most);
            samples.subset(&some.into_iter().map(|at| at as u32).collect::<Vec<_>>())
        };
        let samples: Vec<Samples> = samples.iter().map(fewer).collect();
        let samples: Vec<&Samples> = samples.iter().collect();
        let rows = Rows::of(&samples, features, device);
        let input = |samples: &Samples, at: usize| {
            let mut values = Vec::new();
            samples.write_batch(&[at as u32], &mut values);
            values
        };
        let inputs = samples
            .iter()
            .flat_map(|samples| (0..samples.len()).map(|at| input(samples, at)))
            .collect();
        Some(Self {
            features: rows.features,
            inputs,
            classes: rows.classes,
        })
    }

    fn len(&self) -> usize {
        self.classes.len()
    }

    fn some(&self, positions: &[usize]) -> Self {
        let of = |rows: &[Vec<f32>]| positions.iter().map(|at| rows[*at].clone()).collect();
        Self {
            features: of(&self.features),
            inputs: of(&self.inputs),
            classes: positions.iter().map(|at| self.classes[*at]).collect(),
        }
    }

    fn joined(mut self, other: Self) -> Self {
        self.features.extend(other.features);
        self.inputs.extend(other.inputs);
        self.classes.extend(other.classes);
        self
    }

    fn decoder(&self) -> Option<Decoder> {
        let most = most_images(self.inputs.first().map_or(1, Vec::len));
        let some = self.some(&spread(self.len(), most.min(MOST_OTHERS)));
        let others = Others {
            features: &some.features,
            inputs: &some.inputs,
            classes: &some.classes,
        };
        Decoder::new(others)
    }
}

/// Redraws single training images, each as a class of its own would show it.
pub(crate) fn one_image(seen: &ClassSums<'_>, train: &Images, held_out: Images) -> Option<Redrawn> {
    let targets = spread(train.len(), MOST_IMAGES);
    let rest: Vec<usize> = (0..train.len())
        .filter(|at| targets.binary_search(at).is_err())
        .collect();
    let decoder = train.some(&rest).joined(held_out).decoder()?;
    let target = |at: &usize| {
        let row = &train.features[*at];
        let mut random = stream(Purpose::Redrawing, [*at as u64, row.len() as u64, 0]);
        let noise = nearly_normal(&mut random, row.len());
        let noised = row.iter().zip(noise);
        Target {
            class: train.classes[*at],
            features: noised
                .map(|(value, z)| f64::from(*value) + seen.noise * z)
                .collect(),
            truth: train.inputs[*at].clone(),
            images: 1.0,
        }
    };
    let targets: Vec<Target> = targets.iter().map(target).collect();
    judged(seen, "of a class of one image", &decoder, &targets)
}

/// Redraws the mean image of each class of this node. `train` are all training images.
pub(crate) fn own_classes(
    seen: &ClassSums<'_>,
    train: &Samples,
    held_out: &Images,
) -> Option<Redrawn> {
    let decoder = held_out.decoder()?;
    let width = seen.sums.width();
    let mut counts = vec![0_u32; classes(seen)];
    for label in &train.labels {
        counts[usize::from(*label)] += 1;
    }
    let present: Vec<usize> = (0..classes(seen))
        .filter(|class| counts[*class] > 0)
        .collect();
    let most = most_images(train.values_per_sample()).min(MOST_IMAGES);
    let some = spread(present.len(), most).into_iter();
    let target = |at: usize| {
        let (class, images) = (present[at], f64::from(counts[present[at]]));
        let published = &seen.sums.sums[class * width..][..width];
        Target {
            class,
            features: published.iter().map(|sum| sum / images).collect(),
            truth: mean_image(train, class),
            images,
        }
    };
    let targets: Vec<Target> = some.map(target).collect();
    judged(seen, "as they are", &decoder, &targets)
}

/// Returns the mean of a class that some samples have.
fn mean_image(samples: &Samples, class: usize) -> Vec<f32> {
    let mut sum = vec![0.0_f64; samples.values_per_sample()];
    let (mut count, mut input) = (0.0, Vec::new());
    for (at, label) in samples.labels.iter().enumerate() {
        if usize::from(*label) == class {
            input.clear();
            samples.write_batch(&[at as u32], &mut input);
            let pairs = sum.iter_mut().zip(&input);
            pairs.for_each(|(sum, value)| *sum += f64::from(*value));
            count += 1.0;
        }
    }
    sum.into_iter().map(|sum| (sum / count) as f32).collect()
}

fn classes(seen: &ClassSums<'_>) -> usize {
    seen.sums.counts.len()
}

fn judged(
    seen: &ClassSums<'_>,
    which: &str,
    decoder: &Decoder,
    targets: &[Target],
) -> Option<Redrawn> {
    let picture = |target: &Target| {
        let known = decoder.known(target.class);
        let redrawn = decoder.redraw(target.class, &target.features, target.images, seen.noise);
        [target.truth.clone(), known, redrawn]
    };
    let pictures: Vec<[Vec<f32>; 3]> = targets.iter().map(picture).collect();
    let count = pictures.len() as f64;
    let near = |which: usize| {
        let each = pictures.iter().map(|all| psnr(&all[0], &all[which]));
        each.sum::<f64>() / count
    };
    let (known, redrawn) = (near(1), near(2));
    (!targets.is_empty()).then(|| Redrawn {
        published: format!("{}, {which}", seen.published),
        classes: targets.len(),
        images: targets.iter().map(|target| target.images).sum::<f64>() / count,
        known,
        redrawn,
        pictures,
    })
}

/// Returns the peak signal-to-noise ratio of two images in dB.
fn psnr(truth: &[f32], drawn: &[f32]) -> f64 {
    let squares = truth.iter().zip(drawn).map(|(truth, drawn)| {
        let drawn = f64::from(drawn.clamp(-1.0, 1.0));
        (f64::from(*truth) - drawn).powi(2)
    });
    let error = squares.sum::<f64>() / truth.len() as f64 / (RANGE * RANGE);
    -10.0 * error.max(LEAST_ERROR).log10()
}

/// Returns how many images of so many numbers are looked at.
fn most_images(numbers: usize) -> usize {
    (MOST_NUMBERS / numbers.max(1)).max(1)
}

/// Returns at most so many positions in order, as far apart as they can be.
fn spread(len: usize, most: usize) -> Vec<usize> {
    let count = len.min(most);
    (0..count).map(|at| at * len / count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: an error of 0.2 everywhere, of a range of 2, is 10 log10(100) dB.
    #[test]
    fn psnr_is_told_by_the_range_of_an_image() {
        assert!((psnr(&[0.0, 0.5, -1.0], &[0.2, 0.3, -0.8]) - 20.0).abs() < 1e-5);
        assert_eq!(psnr(&[1.0], &[1.0]), 100.0);
        // What is brighter than white is shown as white.
        assert_eq!(psnr(&[1.0], &[7.0]), 100.0);
    }
}
