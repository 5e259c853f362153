//! The chosen classifier, multiplied with the node's own model: on the device and in an exported graph.

use burn::tensor::activation::softmax;
use burn::tensor::{Device, Tensor};
use fednode_mix::slots::{SLOTS, Slots};
use fednode_mix::statistics::PRIOR_FLOOR;
use fednode_onnx::{Graph, Reduction, Value};

use super::SMALLEST;
use crate::algorithm::Output;
use crate::class_statistics::{LEAST_OFFSET, centre, upload};
use crate::gate::argmax;
use crate::model::affine;
use crate::weights;

/// The chosen classifier on the device.
pub(crate) struct Served {
    /// The mean of the node's features, `[1, D]`, which is taken from them first.
    mean: Tensor<2>,
    /// A transposed, `[D, classes · slots]`, divided by the temperature.
    weights: Tensor<2>,
    /// `b / T + log share`, and the mean's scores, `[classes · slots]`.
    offsets: Tensor<1>,
    /// `log(prior + 10⁻³)`, `[classes]`.
    prior: Tensor<1>,
    /// What the statistics count for beside the own model, 0 to 1.
    weight: f64,
}

impl Served {
    /// Puts a classifier on the device, for features of this mean and classes of this prior. It is given the temperature,
    /// and what the statistics count for.
    pub(crate) fn new(
        [temperature, weight]: [f64; 2],
        slots: Slots,
        mean: &[f64],
        prior: &[f64],
        device: &Device,
    ) -> Self {
        let mut scaled: Vec<f64> = slots.rows.weights.iter().map(|a| a / temperature).collect();
        let offset = |(b, share): (&f64, &f64)| (b / temperature).max(LEAST_OFFSET) + share;
        let offsets = slots.rows.offsets.iter().zip(&slots.log_shares);
        let mut offsets: Vec<f64> = offsets.map(offset).collect();
        centre(&mut scaled, &mut offsets, Some(mean));
        let prior: Vec<f64> = prior.iter().map(|pi| (pi + PRIOR_FLOOR).ln()).collect();
        let weights = upload(&scaled, device).reshape([offsets.len(), mean.len()]);
        Self {
            mean: upload(mean, device).unsqueeze(),
            weights: weights.transpose(),
            offsets: upload(&offsets, device),
            prior: upload(&prior, device),
            weight,
        }
    }

    fn classes(&self) -> usize {
        self.prior.dims()[0]
    }

    /// Multiplies what the own model says with what the statistics say of the same samples' features.
    pub(crate) fn times(&self, own: Output, features: Tensor<2>) -> Output {
        let (scores, slots) = self.scores(features);
        let logarithm = |logits| softmax(logits, 1).add_scalar(SMALLEST).log();
        let statistics = logarithm(scores).mul_scalar(self.weight);
        let alone = logarithm(own.logits).mul_scalar(1.0 - self.weight);
        let logits = statistics + alone;
        match slots {
            None => Output { logits, ..own },
            Some(chosen) => Output {
                logits,
                chosen: Some(chosen),
                n_experts: SLOTS,
            },
        }
    }

    /// Writes into a graph the logits that [`Self::times`] computes.
    pub(crate) fn emit(&self, graph: &mut Graph, own: Value, features: Value) -> Value {
        let weighed = |graph: &mut Graph, logits: Value, weight: f64| {
            let probabilities = graph.softmax(logits);
            let safe = graph.add_number(probabilities, SMALLEST);
            let logarithms = graph.log(safe);
            graph.mul_number(logarithms, weight)
        };
        let scores = self.emit_scores(graph, features);
        let statistics = weighed(graph, scores, self.weight);
        let alone = weighed(graph, own, 1.0 - self.weight);
        graph.add(statistics, alone)
    }

    /// Writes into a graph the scores that [`Self::scores`] computes.
    fn emit_scores(&self, graph: &mut Graph, features: Value) -> Value {
        let classes = self.classes();
        let [width, n_rows] = self.weights.dims();
        let matrix = without_common(weights::values(&self.weights), n_rows);
        let matrix = graph.floats("agreement.weights", matrix, &[width, n_rows]);
        let offsets = without_common(weights::values(&self.offsets), n_rows);
        let offsets = graph.floats("agreement.offsets", offsets, &[n_rows]);
        let prior = graph.floats("agreement.prior", weights::values(&self.prior), &[classes]);
        let mean = graph.floats("agreement.mean", weights::values(&self.mean), &[width]);
        let centred = graph.sub(features, mean);
        let rows = graph.affine(centred, matrix, Some(offsets));
        let rows = graph.reshape(rows, &[classes, n_rows / classes]);
        let best = graph.reduce(Reduction::Largest, rows, 2);
        let less = graph.sub(rows, best);
        let powers = graph.exp(less);
        let sum = graph.reduce(Reduction::Sum, powers, 2);
        let logarithm = graph.log(sum);
        let scores = graph.add(logarithm, best);
        let scores = graph.flat(scores);
        graph.add(scores, prior)
    }

    /// Returns the scores of the classes, `[batch, classes]`, and the slot that fits each sample best, where there are slots.
    fn scores(&self, features: Tensor<2>) -> (Tensor<2>, Option<Vec<usize>>) {
        let classes = self.classes();
        let centred = features - self.mean.clone();
        let rows = affine(centred, self.weights.clone(), Some(self.offsets.clone()));
        let [batch, n_rows] = rows.dims();
        let rows = rows.reshape([batch, classes, n_rows / classes]);
        let best = rows.clone().max_dim(2);
        let sum = (rows.clone() - best.clone()).exp().sum_dim(2);
        let prior = self.prior.clone().reshape([1, classes, 1]);
        let slots = (n_rows > classes).then(|| {
            let scores = (rows + prior.clone()).reshape([batch, n_rows]);
            let best = argmax(&weights::values(&scores), n_rows);
            best.into_iter().map(|row| row % SLOTS).collect()
        });
        let scores = (sum.log() + best + prior).reshape([batch, classes]);
        (scores, slots)
    }
}

/// Takes from each run of numbers, one for every row of a classifier, what all have in common. It changes no probability,
/// and what is left is smaller, so a runtime of 32 bits rounds less.
fn without_common(mut values: Vec<f32>, n_rows: usize) -> Vec<f32> {
    for run in values.chunks_mut(n_rows) {
        let sum: f64 = run.iter().map(|value| f64::from(*value)).sum();
        let mean = sum / n_rows as f64;
        for value in run {
            *value = (f64::from(*value) - mean) as f32;
        }
    }
    values
}
