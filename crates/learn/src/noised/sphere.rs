//! Features of length 1 on the device, by directions that no real sample had a part in.
//!
//! ```text
//! images     u = √maps / |√maps|        z = M (u - m0),  z ← z / |z|        M, m0 of public silhouettes, fednode_mix::sphere
//! numbers    u = x / √columns           z = (R u, 1),    z ← z / |z|        R random where columns are many, else none
//! texts      u_w = ln(1 + n_w)          z_w = √w u_w,    z ← z / |z|        n_w: how often word w is there, w = 1, 2, …
//! ```
//!
//! Words are numbered from the most frequent one on. By Zipf's law word w is in about 1/w of the texts, so √w brings words to
//! about one variance, without a look at any text. With noise that is worth 2 to 3 points (experiments/README.md).
//!
//! Numbers are columns of a table of about one size, or what a backbone makes of an image. The 1 beside them keeps how long a
//! sample was, so that nothing of it is lost but what R drops (Johnson and Lindenstrauss 1984).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::{Device, Tensor, TensorData};
use fednode_core::ConfigError;
use fednode_core::spec::Architecture;
use fednode_mix::sphere::{Sphere, silhouettes};
use fednode_onnx::{Graph, Reduction, Value};

use crate::maps::{self, RandomMaps};
use crate::random::{Purpose, name_index, nearly_normal, stream};
use crate::weights;
use crate::words::Words;

/// Silhouettes whose directions are taken: some more than the widest maps have numbers.
const SILHOUETTES: usize = 2000;
/// The smallest length that something is divided by.
const TINY: f64 = 1e-6;
/// What random directions are drawn by.
const DIRECTIONS: &str = "noised.directions";

/// A seed, how many directions, and the shape of the images.
type Kind = (u64, usize, [usize; 3]);

/// Directions by kind: a process makes each once.
static KNOWN: Mutex<BTreeMap<Kind, Arc<Sphere>>> = Mutex::new(BTreeMap::new());

/// What is made of inputs before they are turned.
enum First {
    /// Of images, their maps less m0, `[1, maps]`.
    Maps(Box<(RandomMaps, Tensor<2>)>),
    /// Of texts, how often each word is there.
    Words(Words),
    /// Numbers stay as they are.
    Numbers,
}

/// The map from inputs to features, and its arrays.
pub(super) struct OnSphere {
    first: First,
    /// M, R or the weights of words, transposed, `[maps, columns or words, width]`.
    directions: Tensor<2>,
    /// What is added, `[1, width]`.
    beside: Tensor<2>,
}

impl OnSphere {
    /// Makes the features of a federation's samples, `width` numbers at most.
    ///
    /// # Errors
    /// As [`RandomMaps::new`].
    pub(super) fn new(
        model: &Architecture,
        seed: u64,
        width: usize,
        device: &Device,
    ) -> Result<Self, ConfigError> {
        if model.vocabulary > 0 {
            return Ok(Self::of_texts(model, width, device));
        }
        if !maps::suit(model) {
            return Ok(Self::of_numbers(model, seed, width, device));
        }
        let maps = RandomMaps::new(model, seed, device)?;
        let sphere = directions(&maps, model.input, width, seed);
        let (from, width) = (sphere.mean.len(), sphere.width());
        let mean = floats(&sphere.mean, [1, from], device);
        Ok(Self {
            first: First::Maps(Box::new((maps, mean))),
            directions: floats(&sphere.directions, [width, from], device).transpose(),
            beside: Tensor::zeros([1, width], device),
        })
    }

    /// Makes those of texts, of the first words of the vocabulary.
    fn of_texts(model: &Architecture, width: usize, device: &Device) -> Self {
        let words = Words::first(model.vocabulary, width);
        let width = words.width();
        let weight = |word: usize| ((word + 1) as f64).sqrt();
        let row = |row| (0..width).map(move |at| if at == row { weight(at) } else { 0.0 });
        let values: Vec<f64> = (0..width).flat_map(row).collect();
        Self {
            first: First::Words(words),
            directions: floats(&values, [width, width], device),
            beside: Tensor::zeros([1, width], device),
        }
    }

    /// Tells whether features are words. A single text may be the only one that has a word.
    pub(super) const fn are_words(&self) -> bool {
        matches!(self.first, First::Words(_))
    }

    /// Makes those of numbers, each of about one size.
    fn of_numbers(model: &Architecture, seed: u64, width: usize, device: &Device) -> Self {
        let columns: usize = model.input.iter().product();
        let kept = columns.min(width - 1);
        let size = (columns as f64).sqrt().recip();
        let as_it_is = |row| {
            (0..kept)
                .map(|at| if at == row { size } else { 0.0 })
                .collect()
        };
        // Random directions of so many numbers keep lengths as they are on average.
        let scale = size / (kept as f64).sqrt();
        let along_random = |row: usize| -> Vec<f64> {
            let place = [seed, name_index(DIRECTIONS), row as u64];
            let drawn = nearly_normal(&mut stream(Purpose::Initial, place), kept);
            drawn.into_iter().map(|one| one * scale).collect()
        };
        let row = |row: usize| {
            let numbers: Vec<f64> = if columns == kept {
                as_it_is(row)
            } else {
                along_random(row)
            };
            numbers.into_iter().chain([0.0])
        };
        let values: Vec<f64> = (0..columns).flat_map(row).collect();
        let beside: Vec<f64> = (0..=kept)
            .map(|at| f64::from(u8::from(at == kept)))
            .collect();
        Self {
            first: First::Numbers,
            directions: floats(&values, [columns, kept + 1], device),
            beside: floats(&beside, [1, kept + 1], device),
        }
    }

    /// Returns how many numbers a sample has.
    pub(super) fn width(&self) -> usize {
        self.directions.dims()[1]
    }

    /// Returns the features of a batch, `[batch, width]`.
    pub(super) fn of(&self, inputs: Tensor<2>) -> Tensor<2> {
        let rows = match &self.first {
            First::Maps(of_images) => {
                let (maps, mean) = &**of_images;
                unit(maps.features(inputs).clamp_min(0.0).sqrt()) - mean.clone()
            }
            First::Words(words) => words.features(&inputs),
            First::Numbers => inputs,
        };
        unit(rows.matmul(self.directions.clone()) + self.beside.clone())
    }

    /// Writes into a graph what [`Self::of`] computes.
    pub(super) fn emit(&self, graph: &mut Graph, inputs: Value) -> Value {
        let [from, width] = self.directions.dims();
        let rows = match &self.first {
            First::Maps(of_images) => {
                let (maps, mean) = &**of_images;
                let maps = maps.emit(graph, inputs);
                let positive = graph.relu(maps);
                let roots = graph.sqrt(positive);
                let roots = emit_unit(graph, roots);
                let mean = graph.floats("noised.centre", weights::values(mean), &[from]);
                graph.sub(roots, mean)
            }
            First::Words(words) => words.emit(graph, inputs),
            First::Numbers => inputs,
        };
        let matrix = weights::values(&self.directions);
        let matrix = graph.floats("noised.directions", matrix, &[from, width]);
        let beside = graph.floats("noised.beside", weights::values(&self.beside), &[width]);
        let moved = graph.affine(rows, matrix, Some(beside));
        emit_unit(graph, moved)
    }
}

fn floats(values: &[f64], shape: [usize; 2], device: &Device) -> Tensor<2> {
    let values: Vec<f32> = values.iter().map(|value| *value as f32).collect();
    Tensor::from_data(TensorData::new(values, shape), device)
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

/// Returns so many directions for images of a shape.
fn directions(maps: &RandomMaps, shape: [usize; 3], width: usize, seed: u64) -> Arc<Sphere> {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let found = known.entry((seed, width, shape)).or_insert_with(|| {
        let images = silhouettes(shape, SILHOUETTES, seed);
        Arc::new(Sphere::of(maps.exact_features(&images), width, seed))
    });
    Arc::clone(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_sphere(input: [usize; 3]) -> OnSphere {
        let model = Architecture {
            input,
            ..Architecture::default()
        };
        OnSphere::new(&model, 1, 128, &Device::flex()).unwrap()
    }

    #[test]
    fn every_sample_is_one_long() {
        let sphere = on_sphere([1, 8, 8]);
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

    /// x = (3, 4) of two columns: (3/√2, 4/√2, 1) over its length √13.5.
    #[test]
    fn numbers_are_put_beside_a_one() {
        let sphere = on_sphere([1, 1, 2]);
        let inputs = Tensor::from_floats([[3.0, 4.0], [0.0, 0.0]], &Device::flex());
        let found = weights::values(&sphere.of(inputs));
        let expected = [0.577_350_3, 0.769_800_4, 0.272_165_5, 0.0, 0.0, 1.0];
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "{found} {expected}");
        }
    }

    /// Word 1 twice, word 2 once, word 3 not at all, and two words beyond the vocabulary's first three: ln 3 and √2 ln 2 over their
    /// length 1.472364. A text of no known word is nothing.
    #[test]
    fn rarer_words_weigh_more() {
        let model = Architecture {
            input: [1, 1, 6],
            vocabulary: 90,
            ..Architecture::default()
        };
        let sphere = OnSphere::new(&model, 1, 3, &Device::flex()).unwrap();
        let texts = [
            [2.0, 3.0, 2.0, 70.0, 71.0, 0.0],
            [1.0, 1.0, 0.0, 0.0, 0.0, 0.0],
        ];
        let found = weights::values(&sphere.of(Tensor::from_floats(texts, &Device::flex())));
        let expected = [0.746_156, 0.665_772, 0.0, 0.0, 0.0, 0.0];
        assert_eq!((sphere.width(), sphere.are_words()), (3, true));
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-5, "{found} {expected}");
        }
    }

    /// Angles between samples of many numbers stay about what they are, within four standard errors of 127 directions.
    #[test]
    fn random_directions_keep_angles() {
        let sphere = on_sphere([1, 1, 1280]);
        assert_eq!(sphere.width(), 128);
        let mut rng = stream(Purpose::Noise, [1, 2, 3]);
        let first = nearly_normal(&mut rng, 1280);
        let other = nearly_normal(&mut rng, 1280);
        let second: Vec<f64> = first
            .iter()
            .zip(&other)
            .map(|(a, b)| 0.6 * a + 0.8 * b)
            .collect();
        let rows = floats(&[first, second].concat(), [2, 1280], &Device::flex());
        let found = weights::values(&sphere.of(rows));
        let product: f32 = (0..128).map(|at| found[at] * found[128 + at]).sum();
        // Both are about as long as the 1 beside them: (0.6 + 1) / 2.
        assert!(
            (product - 0.8).abs() < 4.0 * 0.5 / 127.0_f32.sqrt(),
            "{product}"
        );
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
