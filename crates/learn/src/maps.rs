//! Features that nobody trained for the classes: maps of a convolution, averaged over squares of places.
//!
//! ```text
//! image ─► convolution ─► max-pooling ─► ReLU ─► maps ─► means over squares of places ─► at most 1,024 numbers
//! ```
//!
//! The statistics expert takes them where nodes share a first layer only (FedMoE-DA's embedding, [`condensed`]). It
//! takes them, too, with `statistics.features = "random"`, for which nodes need nothing in common at all
//! ([`RandomMaps`]). The filters are then drawn from the federation's seed, the same for everybody. That random filters
//! with pooling are good features is known (Jarrett et al., "What is the best multi-stage architecture for object
//! recognition?", ICCV 2009; Saxe et al., ICML 2011).

use burn::tensor::module::avg_pool2d;
use burn::tensor::ops::AvgPoolOptions;
use burn::tensor::{Device, Tensor, TensorData};
use fednode_core::ConfigError;
use fednode_core::spec::Architecture;
use fednode_onnx::{Graph, Value};
use rayon::prelude::*;

use crate::model::{Conv, Net, leaf};
use crate::random::{Purpose, nearly_normal, stream};
use crate::weights::{self, Weights};

/// Most numbers of a sample: a convolution has thousands.
const MOST: usize = 1024;
/// Filters that are drawn.
const FILTERS: usize = 64;
/// Side of their kernels.
const KERNEL: usize = 5;
/// Side of the squares of places of which the strongest counts.
const POOL: usize = 2;
/// The smallest side of an image that has maps.
const SMALLEST: usize = KERNEL + POOL - 1;

/// Averages the maps that a net ends with over the smallest squares of places that leave no more than 1,024 numbers; what
/// fills no square at the right and at the bottom is left out. Features that are no maps stay as they are.
pub(crate) fn condensed(net: &Net, features: Tensor<2>) -> Tensor<2> {
    let Some([maps, height, width]) = net.maps() else {
        return features;
    };
    let side = side([maps, height, width]);
    let n_samples = features.dims()[0];
    let images = features.reshape([n_samples, maps, height, width]);
    let n_left = left([maps, height, width], side);
    avg_pool2d(images, AvgPoolOptions::new([side, side])).reshape([n_samples, n_left])
}

/// Writes into a graph what [`condensed`] computes.
pub(crate) fn emit_condensed(net: &Net, graph: &mut Graph, features: Value) -> Value {
    let Some(maps) = net.maps() else {
        return features;
    };
    let images = graph.reshape(features, &maps);
    let means = graph.average_pool(images, side(maps));
    graph.flat(means)
}

/// Returns the smallest side of squares that leave few enough numbers.
fn side(maps: [usize; 3]) -> usize {
    let mut sides = 1..=maps[1].min(maps[2]);
    sides.find(|side| left(maps, *side) <= MOST).unwrap_or(1)
}

/// Returns how many numbers squares of a side leave.
const fn left([maps, height, width]: [usize; 3], side: usize) -> usize {
    maps * (height / side) * (width / side)
}

/// Tells whether a model's inputs are images that are large enough.
pub(crate) fn suit(model: &Architecture) -> bool {
    let [_, height, width] = model.input;
    model.vocabulary == 0 && height.min(width) >= SMALLEST
}

/// A convolution of random filters, each of mean 0 and length 1.
#[derive(Debug)]
pub(crate) struct RandomMaps {
    shape: [usize; 3],
    net: Net,
    weights: Weights,
}

impl RandomMaps {
    /// Draws the filters for the images of a federation.
    ///
    /// # Errors
    /// Refuses texts, and images that are too small.
    pub(crate) fn new(
        model: &Architecture,
        seed: u64,
        device: &Device,
    ) -> Result<Self, ConfigError> {
        let channels = model.input[0];
        if !suit(model) {
            let smallest = SMALLEST;
            let text = format!(
                "`statistics.features=random` is for images of at least {smallest}x{smallest} pixels: use `extractor`"
            );
            return Err(ConfigError(text));
        }
        let conv = Conv {
            name: "random",
            input: model.input,
            filters: FILTERS,
            kernel: KERNEL,
            padding: [0, 0],
            pool: POOL,
        };
        let size = channels * KERNEL * KERNEL;
        let mut draws = stream(Purpose::RandomMaps, [seed, channels as u64, 0]);
        let values: Vec<f64> = nearly_normal(&mut draws, FILTERS * size);
        let filters: Vec<f32> = values.chunks_exact(size).flat_map(centred).collect();
        let upload = |values: Vec<f32>| {
            let length = values.len();
            Tensor::from_data(TensorData::new(values, [length]), device)
        };
        let weights = Weights::new(vec![upload(filters), upload(vec![0.0; FILTERS])]);
        Ok(Self {
            shape: model.input,
            net: Net::new(vec![leaf(conv)]),
            weights,
        })
    }

    /// Returns the features of a batch, `[batch, features]`.
    pub(crate) fn features(&self, inputs: Tensor<2>) -> Tensor<2> {
        condensed(&self.net, self.net.forward(&self.weights, inputs))
    }

    /// Returns the features of images in 64 bits, of which every processor has nearly the same.
    pub(crate) fn exact_features(&self, images: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let filters = weights::values(&self.weights.tensor(0));
        let filters: Vec<f64> = filters.into_iter().map(f64::from).collect();
        let size = filters.len() / FILTERS;
        let features = |image: &Vec<f64>| {
            let filters = filters.chunks_exact(size);
            filters
                .flat_map(|filter| self.exact_map(filter, image))
                .collect()
        };
        images.par_iter().map(features).collect()
    }

    /// Runs one filter over an image, takes the strongest of each square, and averages as [`condensed`] does.
    fn exact_map(&self, filter: &[f64], image: &[f64]) -> Vec<f64> {
        let [channels, height, width] = self.shape;
        let [tall, wide] = [height, width].map(|side| side - KERNEL + 1);
        let mut sums = vec![0.0; tall * wide];
        let mut taps = filter.iter();
        for channel in 0..channels {
            for (down, right) in (0..KERNEL * KERNEL).map(|at| (at / KERNEL, at % KERNEL)) {
                let tap = taps.next().expect("a filter has a number for each place");
                for (row, sums) in sums.chunks_exact_mut(wide).enumerate() {
                    let start = (channel * height + row + down) * width + right;
                    let pixels = &image[start..start + wide];
                    let pairs = sums.iter_mut().zip(pixels);
                    pairs.for_each(|(sum, pixel)| *sum += tap * pixel);
                }
            }
        }
        let [high, broad] = [tall, wide].map(|side| side / POOL);
        let strongest = |row: usize, column: usize| {
            let places =
                (0..POOL * POOL).map(|at| (row * POOL + at / POOL, column * POOL + at % POOL));
            let values = places.map(|(row, column)| sums[row * wide + column]);
            values.fold(0.0, f64::max)
        };
        let side = side([FILTERS, high, broad]);
        let mean = |row: usize, column: usize| {
            let places =
                (0..side * side).map(|at| (row * side + at / side, column * side + at % side));
            let sum: f64 = places.map(|(row, column)| strongest(row, column)).sum();
            sum / (side * side) as f64
        };
        let columns = broad / side;
        (0..high / side * columns)
            .map(|at| mean(at / columns, at % columns))
            .collect()
    }

    /// Writes into a graph what [`Self::features`] computes.
    pub(crate) fn emit(&self, graph: &mut Graph, inputs: Value) -> Value {
        let maps = self.net.emit(&self.weights, graph, inputs);
        emit_condensed(&self.net, graph, maps)
    }
}

/// Gives a filter mean 0 and length 1.
fn centred(filter: &[f64]) -> Vec<f32> {
    let mean = filter.iter().sum::<f64>() / filter.len() as f64;
    let length = filter
        .iter()
        .map(|value| (value - mean).powi(2))
        .sum::<f64>()
        .sqrt();
    filter
        .iter()
        .map(|value| ((value - mean) / length) as f32)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::values;

    fn maps(input: [usize; 3], seed: u64) -> RandomMaps {
        RandomMaps::new(
            &Architecture {
                input,
                ..Architecture::default()
            },
            seed,
            &Device::flex(),
        )
        .unwrap()
    }

    #[test]
    fn sizes_are_bounded() {
        let width = |input: [usize; 3]| {
            maps(input, 1)
                .features(Tensor::zeros([1, input.iter().product()], &Device::flex()))
                .dims()[1]
        };
        // 64 maps of 12², 14² and 2² places, of which 4², 4² and 2² means are left.
        assert_eq!(
            [[1, 28, 28], [3, 32, 32], [1, 8, 8]].map(width),
            [1024, 1024, 256]
        );
        let (net, _) = crate::model::build(&Architecture::default())
            .unwrap()
            .split(crate::model::Cut::Embedding);
        let features = Tensor::<2>::ones([2, net.n_outputs()], &Device::flex());
        assert_eq!(
            condensed(&net, features).dims(),
            [2, 512],
            "32 maps of 12² places, 4² means"
        );
    }

    /// A map of 1 to 4,608 in order: of the first, the mean over the first three of its first three rows of 12.
    #[test]
    fn squares_are_averaged() {
        let (net, _) = crate::model::build(&Architecture::default())
            .unwrap()
            .split(crate::model::Cut::Embedding);
        let numbers: Vec<f32> = (1..=4608).map(|value| value as f32).collect();
        let got = values(&condensed(
            &net,
            Tensor::from_data(TensorData::new(numbers, [1, 4608]), &Device::flex()),
        ));
        assert!(
            (got[0] - 14.0).abs() < 1e-4
                && (got[1] - 17.0).abs() < 1e-4
                && (got[4] - 50.0).abs() < 1e-4,
            "{got:?}"
        );
    }

    #[test]
    fn everybody_draws_the_same_filters() {
        let filters = |seed| values(&maps([3, 32, 32], seed).weights.tensor(0));
        assert_eq!(filters(1), filters(1));
        assert_ne!(filters(1), filters(2));
        for filter in filters(1).chunks_exact(75) {
            let (sum, square) = filter
                .iter()
                .fold((0.0, 0.0), |(sum, square), v| (sum + v, square + v * v));
            assert!(
                sum.abs() < 1e-5 && (square - 1.0).abs() < 1e-5,
                "{sum} {square}"
            );
        }
    }

    #[test]
    fn model_without_maps_is_refused() {
        let refused = |model: Architecture| RandomMaps::new(&model, 1, &Device::flex()).is_err();
        assert!(refused(Architecture {
            input: [1, 1, 30],
            ..Architecture::default()
        }));
        assert!(refused(Architecture {
            input: [1, 28, 28],
            vocabulary: 10,
            ..Architecture::default()
        }));
    }
}
