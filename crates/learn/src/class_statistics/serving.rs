//! The classifier on the device, and how its answers and the node's own become one.

use burn::tensor::Tensor;
use burn::tensor::activation::{sigmoid, softmax};
use fednode_mix::blend::Gate;
use fednode_onnx::{Graph, Reduction, Value};

use super::ClassStatistics;
use crate::algorithm::Output;
use crate::model::affine;
use crate::pool::Predictor;
use crate::weights;

/// The offset of a class that nobody has.
pub(crate) const LEAST_OFFSET: f64 = -1e30;
/// Keeps a probability of 0 from becoming a logarithm of minus infinity.
pub(super) const SMALLEST: f64 = 1e-12;

/// The classifier on the device.
pub(super) struct Solved {
    /// A transposed, `[D, classes]`, divided by the temperature.
    pub(super) weights: Tensor<2>,
    /// The mean of the features, `[1, D]`, which is taken from them first; nothing of projected ones.
    pub(super) mean: Option<Tensor<2>>,
    /// `b / T + log(prior + 10⁻³)`, and the mean's scores, `[classes]`.
    pub(super) offsets: Tensor<1>,
    pub(super) mixing: Mixing,
}

/// How much of the statistics expert.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Mixing {
    /// lambda.
    Weight(f64),
    /// lambda by the sample.
    Gate(Gate),
}

impl ClassStatistics {
    /// Runs the mixture; the node's own prediction alone while there is no classifier.
    pub(crate) fn forward(&self, predictor: &Predictor<'_>, inputs: Tensor<2>) -> Output {
        let own = predictor.forward(inputs.clone());
        let features = || self.source.of(predictor.algorithm, inputs);
        let Some((solved, features)) = self
            .solved
            .as_ref()
            .and_then(|solved| Some((solved, features()?)))
        else {
            return own;
        };
        let centred = match &solved.mean {
            Some(mean) => features - mean.clone(),
            None => features,
        };
        let logits = affine(
            centred,
            solved.weights.clone(),
            Some(solved.offsets.clone()),
        );
        let (statistics, alone) = (softmax(logits, 1), softmax(own.logits, 1));
        let mixed = match solved.mixing {
            Mixing::Weight(weight) => {
                statistics.mul_scalar(weight) + alone.mul_scalar(1.0 - weight)
            }
            Mixing::Gate(gate) => {
                let weight = weights_of(gate, &alone, &statistics);
                alone.clone() + weight * (statistics - alone)
            }
        };
        Output {
            logits: mixed.add_scalar(SMALLEST).log(),
            ..own
        }
    }

    /// Writes into a graph the logits that [`Self::forward`] computes.
    pub(crate) fn emit(&self, own: &Predictor<'_>, graph: &mut Graph, inputs: Value) -> Value {
        let logits = own.emit(graph, inputs);
        let features = |graph: &mut Graph| self.source.emit(own.algorithm, graph, inputs);
        let solved = self.solved.as_ref();
        let Some((solved, features)) = solved.and_then(|solved| Some((solved, features(graph)?)))
        else {
            return logits;
        };
        let [width, classes] = solved.weights.dims();
        let matrix = weights::values(&solved.weights);
        let matrix = graph.floats("statistics.weights", matrix, &[width, classes]);
        let offsets = weights::values(&solved.offsets);
        let offsets = graph.floats("statistics.offsets", offsets, &[classes]);
        let centred = match &solved.mean {
            Some(mean) => {
                let mean = graph.floats("statistics.mean", weights::values(mean), &[width]);
                graph.sub(features, mean)
            }
            None => features,
        };
        let scores = graph.affine(centred, matrix, Some(offsets));
        let (statistics, alone) = (graph.softmax(scores), graph.softmax(logits));
        let weight = match solved.mixing {
            Mixing::Weight(weight) => graph.number(weight),
            Mixing::Gate(gate) => emit_weights_of(gate, graph, (alone, statistics), classes),
        };
        let difference = graph.sub(statistics, alone);
        let step = graph.mul(difference, weight);
        let mixed = graph.add(alone, step);
        let safe = graph.add_number(mixed, SMALLEST);
        graph.log(safe)
    }
}

/// Writes into a graph what [`weights_of`] returns.
fn emit_weights_of(
    Gate([bias, own, statistics]): Gate,
    graph: &mut Graph,
    (alone, by_statistics): (Value, Value),
    classes: usize,
) -> Value {
    let weighed = |graph: &mut Graph, probabilities: Value, weight: f64| {
        let safe = graph.add_number(probabilities, SMALLEST);
        let logarithms = graph.log(safe);
        let terms = graph.mul(probabilities, logarithms);
        let sum = graph.reduce(Reduction::Sum, terms, 1);
        graph.mul_number(sum, -weight / (classes as f64).ln())
    };
    let own = weighed(graph, alone, own);
    let statistics = weighed(graph, by_statistics, statistics);
    let sum = graph.add(own, statistics);
    let score = graph.add_number(sum, bias);
    graph.sigmoid(score)
}

/// Returns the mean of the features over all samples, as exact as it is on the device, given counts and sums of classes
/// or groups.
pub(crate) fn mean_features(counts: &[f64], sums: &[f64]) -> Vec<f64> {
    let total: f64 = counts.iter().sum();
    let width = sums.len() / counts.len().max(1);
    let column = |at: usize| sums.iter().skip(at).step_by(width.max(1));
    let mean = |at: usize| column(at).sum::<f64>() / total.max(f64::MIN_POSITIVE);
    (0..width).map(|at| f64::from(mean(at) as f32)).collect()
}

/// Makes a classifier small whose scores are small differences of large numbers: rounding errors are in proportion to
/// these.
///
/// What the rows of all classes have in common moves all scores alike, and no probability. The scores of the mean
/// features, if given, go into the offsets, so that the rows need only be multiplied by what is left of features.
pub(crate) fn centre(rows: &mut [f64], offsets: &mut [f64], mean: Option<&[f64]>) {
    let n_rows = offsets.len().max(1);
    let width = rows.len() / n_rows;
    for column in 0..width {
        let common = rows.iter().skip(column).step_by(width).sum::<f64>() / n_rows as f64;
        let column = rows.iter_mut().skip(column).step_by(width);
        column.for_each(|value| *value -= common);
    }
    for (offset, row) in offsets.iter_mut().zip(rows.chunks_exact(width.max(1))) {
        let mean = mean.unwrap_or_default();
        *offset += row.iter().zip(mean).map(|(a, m)| a * m).sum::<f64>();
    }
    let possible = |offset: &&mut f64| **offset > LEAST_OFFSET / 2.0;
    let largest = offsets.iter().copied().fold(LEAST_OFFSET, f64::max);
    let moved = offsets.iter_mut().filter(possible);
    moved.for_each(|offset| *offset -= largest);
}

/// Returns the gate's lambda for each sample, `[batch, 1]`.
fn weights_of(
    Gate([bias, own, statistics]): Gate,
    alone: &Tensor<2>,
    by_statistics: &Tensor<2>,
) -> Tensor<2> {
    let entropy = |probabilities: &Tensor<2>| {
        let most = (probabilities.dims()[1] as f64).ln();
        (probabilities.clone() * probabilities.clone().add_scalar(SMALLEST).log())
            .sum_dim(1)
            .div_scalar(-most)
    };
    sigmoid(
        entropy(alone).mul_scalar(own)
            + entropy(by_statistics)
                .mul_scalar(statistics)
                .add_scalar(bias),
    )
}
