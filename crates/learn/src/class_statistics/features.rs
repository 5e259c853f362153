//! What is added up: features of samples, as they are or projected.

use burn::tensor::{Device, Tensor};
use fednode_onnx::{Graph, Value};

use super::upload;
use crate::algorithm::Algorithm;
use crate::maps::RandomMaps;
use crate::random::{Purpose, nearly_normal, stream};
use crate::words::Words;

/// What is added up.
#[derive(Debug)]
pub(crate) enum Features {
    /// What the common extractor says.
    Extractor,
    /// Random maps, the same for everybody.
    Random(RandomMaps),
    /// Counts of words.
    Words(Words),
    /// The samples as they are.
    Inputs,
}

impl Features {
    /// Returns the features of a batch; nothing without a common extractor.
    pub(crate) fn of(&self, algorithm: &dyn Algorithm, inputs: Tensor<2>) -> Option<Tensor<2>> {
        match self {
            Self::Extractor => algorithm.features(inputs),
            Self::Random(maps) => Some(maps.features(inputs)),
            Self::Words(words) => Some(words.features(&inputs)),
            Self::Inputs => Some(inputs),
        }
    }

    /// Writes into a graph what [`Self::of`] returns.
    pub(crate) fn emit(
        &self,
        algorithm: &dyn Algorithm,
        graph: &mut Graph,
        inputs: Value,
    ) -> Option<Value> {
        match self {
            Self::Extractor => Some(algorithm.extractor()?.emit(graph, inputs)),
            Self::Random(maps) => Some(maps.emit(graph, inputs)),
            Self::Words(words) => Some(words.emit(graph, inputs)),
            Self::Inputs => Some(inputs),
        }
    }
}

/// Draws the matrix that features are projected by, so that lengths stay what they are on average.
pub(super) fn projection(from: usize, to: usize, seed: u64, device: &Device) -> Tensor<2> {
    let mut draws = stream(Purpose::Projection, [seed, from as u64, to as u64]);
    let scale = 1.0 / (to as f64).sqrt();
    let values: Vec<f64> = nearly_normal(&mut draws, from * to)
        .into_iter()
        .map(|value| value * scale)
        .collect();
    upload(&values, device).reshape([from, to])
}
