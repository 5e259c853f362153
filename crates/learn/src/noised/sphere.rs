//! Features of length 1 on the device: roots of random maps, whitened by directions of public silhouettes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::{Device, Tensor, TensorData};
use fednode_core::ConfigError;
use fednode_core::spec::Architecture;
use fednode_mix::sphere::{Sphere, silhouettes};
use fednode_onnx::{Graph, Reduction, Value};

use crate::maps::RandomMaps;
use crate::weights;

/// Numbers of a sample, if it has as many maps.
///
/// In the study 128 to 512 numbers did best. More of them carry more noise where every node adds all of it.
const WIDTH: usize = 128;
/// Silhouettes whose directions are taken: some more than the widest maps have numbers.
const SILHOUETTES: usize = 2000;
/// The smallest length that something is divided by.
const TINY: f64 = 1e-6;

/// A seed and the shape of the images.
type Kind = (u64, [usize; 3]);

/// Directions by kind: a process makes each once.
static KNOWN: Mutex<BTreeMap<Kind, Arc<Sphere>>> = Mutex::new(BTreeMap::new());

/// The map from inputs to features, and its arrays.
pub(super) struct OnSphere {
    maps: RandomMaps,
    width: usize,
    /// m0, `[1, maps]`.
    mean: Tensor<2>,
    /// M transposed, `[maps, width]`.
    directions: Tensor<2>,
}

impl OnSphere {
    /// Makes the features of a federation's images.
    ///
    /// # Errors
    /// Refuses texts, and images that are too small.
    pub(super) fn new(
        model: &Architecture,
        seed: u64,
        device: &Device,
    ) -> Result<Self, ConfigError> {
        let maps = RandomMaps::new(model, seed, device)?;
        let sphere = directions(&maps, model.input, seed);
        let width = sphere.width();
        let floats = |values: &[f64], shape: [usize; 2]| {
            let values: Vec<f32> = values.iter().map(|value| *value as f32).collect();
            Tensor::<2>::from_data(TensorData::new(values, shape), device)
        };
        let from = sphere.mean.len();
        Ok(Self {
            maps,
            width,
            mean: floats(&sphere.mean, [1, from]),
            directions: floats(&sphere.directions, [width, from]).transpose(),
        })
    }

    /// Returns how many numbers a sample has.
    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// Returns the features of a batch, `[batch, width]`.
    pub(super) fn of(&self, inputs: Tensor<2>) -> Tensor<2> {
        let roots = unit(self.maps.features(inputs).clamp_min(0.0).sqrt());
        unit((roots - self.mean.clone()).matmul(self.directions.clone()))
    }

    /// Writes into a graph what [`Self::of`] computes.
    pub(super) fn emit(&self, graph: &mut Graph, inputs: Value) -> Value {
        let maps = self.maps.emit(graph, inputs);
        let positive = graph.relu(maps);
        let roots = graph.sqrt(positive);
        let roots = emit_unit(graph, roots);
        let [from, width] = self.directions.dims();
        let mean = graph.floats("noised.centre", weights::values(&self.mean), &[from]);
        let matrix = weights::values(&self.directions);
        let matrix = graph.floats("noised.directions", matrix, &[from, width]);
        let centred = graph.sub(roots, mean);
        let whitened = graph.affine(centred, matrix, None);
        emit_unit(graph, whitened)
    }
}

fn unit(rows: Tensor<2>) -> Tensor<2> {
    let lengths = rows.clone().powi_scalar(2).sum_dim(1).sqrt();
    rows / lengths.clamp_min(TINY)
}

fn emit_unit(graph: &mut Graph, rows: Value) -> Value {
    let squares = graph.mul(rows, rows);
    let sum = graph.reduce(Reduction::Sum, squares, 1);
    let lengths = graph.sqrt(sum);
    let safe = graph.clip(lengths, [TINY, f64::from(f32::MAX)]);
    graph.div(rows, safe)
}

/// Returns the directions for images of a shape.
fn directions(maps: &RandomMaps, shape: [usize; 3], seed: u64) -> Arc<Sphere> {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let found = known.entry((seed, shape)).or_insert_with(|| {
        let images = silhouettes(shape, SILHOUETTES, seed);
        Arc::new(Sphere::of(maps.exact_features(&images), WIDTH, seed))
    });
    Arc::clone(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_sphere() -> OnSphere {
        let model = Architecture {
            input: [1, 8, 8],
            ..Architecture::default()
        };
        OnSphere::new(&model, 1, &Device::flex()).unwrap()
    }

    #[test]
    fn every_sample_is_one_long() {
        let sphere = on_sphere();
        let images = silhouettes([1, 8, 8], 20, 9).concat();
        let images: Vec<f32> = images.into_iter().map(|value| value as f32).collect();
        let data = TensorData::new(images, [20, 64]);
        let features = weights::values(&sphere.of(Tensor::from_data(data, &Device::flex())));
        assert_eq!((sphere.width(), features.len()), (128, 20 * 128));
        for row in features.chunks(128) {
            let length = row.iter().map(|value| value * value).sum::<f32>().sqrt();
            assert!((length - 1.0).abs() < 1e-5, "{length}");
        }
    }

    /// The same maps as those on the device, of which directions are found in 64 bits.
    #[test]
    fn exact_maps_are_those_of_the_device() {
        for shape in [[1, 8, 8], [3, 12, 11]] {
            let model = Architecture {
                input: shape,
                ..Architecture::default()
            };
            let maps = RandomMaps::new(&model, 1, &Device::flex()).unwrap();
            let images = silhouettes(shape, 5, 2);
            let exact = maps.exact_features(&images).concat();
            let floats: Vec<f32> = images.concat().into_iter().map(|v| v as f32).collect();
            let data = TensorData::new(floats, [5, shape.iter().product()]);
            let got = maps.features(Tensor::from_data(data, &Device::flex()));
            let got = weights::values(&got);
            assert_eq!(got.len(), exact.len());
            let apart = got
                .iter()
                .zip(&exact)
                .map(|(a, b)| (f64::from(*a) - b).abs());
            assert!(apart.fold(0.0, f64::max) < 1e-5);
        }
    }
}
