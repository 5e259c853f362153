//! The gate of pFedMoE (arXiv 2402.01350, Fig. 3 and §4.3): two shares per sample, from its raw numbers.
//!
//! ```text
//! switchable normalisation ─► linear to m ─► batch normalisation ─► sigmoid ─► linear to 2 ─► batch normalisation ─► softmax
//!
//! switchable: (x - mean) / sqrt(variance + 1e-5) * gamma + beta
//!             mean     = softmax(lm) . (mean of the sample's numbers, mean of the number over the batch)
//!             variance = softmax(lv) . (the same two variances, unbiased)
//! ```
//!
//! Of the three statistics of switchable normalisation (Luo et al., ICLR 2019) the instance's is left out: over a single
//! number it is undefined. In training the batch's statistics count, later their running means, which are kept with the
//! gate, never leave the node and need no federated treatment. The public implementations give a batch a share of 0.003
//! in them and start at zero, which takes a thousand steps to forget the start; here it is 0.1 for all three. A batch of
//! one sample has no variance: it is normalised by the running statistics, also in training, and leaves them alone.
//!
//! The last normalisation makes the mean of either score over a batch zero until its shift is learned, so shares near one
//! half are built in and say nothing about the extractors.

use burn::tensor::Tensor;
use burn::tensor::activation::{sigmoid, softmax};
use fednode_onnx::{Graph, Reduction, Value};

use super::Setup;
use super::part::{Part, Role};
use crate::model::{Activation, Initial, Linear, Net, leaf};
use crate::weights::{self, Weights};

/// How many parts a gate has.
pub(super) const N_PARTS: usize = 4;
/// How many of them learn; the last are the running statistics.
pub(super) const N_TRAINED: usize = 3;

const NORMS: usize = 0;
const FIRST: usize = 1;
const SECOND: usize = 2;
const STATISTICS: usize = 3;

/// Share of a batch in the running statistics.
const BATCH_SHARE: f64 = 0.1;
/// Added to a variance before it divides.
const EPSILON: f64 = 1e-5;

/// Whose statistics normalise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// The batch's.
    Training,
    /// The running ones.
    Inference,
}

/// Makes the parts of a gate for samples of so many numbers with a hidden layer of this width.
pub(super) fn parts(setup: &Setup<'_>, inputs: usize, width: usize) -> [Part; N_PARTS] {
    let (ones, zeros) = (Initial::Ones, Initial::Zeros);
    let norms = Net::arrays(&[
        ("gate.norm.mean_weight", &[2], ones),
        ("gate.norm.var_weight", &[2], ones),
        ("gate.norm.weight", &[inputs], ones),
        ("gate.norm.bias", &[inputs], zeros),
        ("gate.bn1.weight", &[width], ones),
        ("gate.bn1.bias", &[width], zeros),
        ("gate.bn2.weight", &[2], ones),
        ("gate.bn2.bias", &[2], zeros),
    ]);
    let statistics = Net::arrays(&[
        ("gate.norm.running_mean", &[inputs], zeros),
        ("gate.norm.running_var", &[inputs], zeros),
        ("gate.bn1.running_mean", &[width], zeros),
        ("gate.bn1.running_var", &[width], ones),
        ("gate.bn2.running_mean", &[2], zeros),
        ("gate.bn2.running_var", &[2], ones),
    ]);
    let linear = |name, inputs, outputs| {
        let activation = Activation::Identity;
        Net::new(vec![leaf(Linear {
            name,
            inputs,
            outputs,
            activation,
            bias: true,
        })])
    };
    let nets = [
        norms,
        linear("gate.fc1", inputs, width),
        linear("gate.fc2", width, 2),
        statistics,
    ];
    nets.map(|net| Part::new(Role::Private, net, setup.seed, 0, setup.device))
}

/// Returns the two shares of each sample, `[batch, 2]`, and the running statistics after this batch, all given the gate's
/// parts and their weights.
pub(super) fn shares(
    parts: &[Part],
    weights: &[Weights],
    inputs: Tensor<2>,
    mode: Mode,
) -> (Tensor<2>, Weights) {
    let mode = if inputs.dims()[0] > 1 {
        mode
    } else {
        Mode::Inference
    };
    let norms = |at: usize| row(&weights[NORMS], at);
    let mut running = Running {
        weights: &weights[STATISTICS],
        renewed: Vec::new(),
        mode,
    };
    let normed = switch_norm(
        inputs,
        [norms(0), norms(1), norms(2), norms(3)],
        &mut running,
    );
    let hidden = parts[FIRST].net.forward(&weights[FIRST], normed);
    let hidden = sigmoid(batch_norm(hidden, [norms(4), norms(5)], &mut running));
    let scores = parts[SECOND].net.forward(&weights[SECOND], hidden);
    let scores = batch_norm(scores, [norms(6), norms(7)], &mut running);
    (softmax(scores, 1), Weights::new(running.renewed))
}

/// Writes into a graph the shares that [`shares`] returns in inference, given the gate's parts.
pub(super) fn emit_shares(parts: &[Part], graph: &mut Graph, inputs: Value) -> Value {
    let constant = |graph: &mut Graph, part: usize, at: usize| {
        let tensor = parts[part].weights.tensor(at);
        let name = &parts[part].net.parameters()[at].name;
        graph.floats(name, weights::values(&tensor), &tensor.dims())
    };
    let norms = |graph: &mut Graph, at: usize| constant(graph, NORMS, at);
    let statistics =
        |graph: &mut Graph, at: usize| [at, at + 1].map(|at| constant(graph, STATISTICS, at));
    let batch_norm = |graph: &mut Graph, input: Value, at: usize, kept: usize| {
        let [scale, shift] = [at, at + 1].map(|at| norms(graph, at));
        let [mean, variance] = statistics(graph, kept);
        graph.batch_norm(input, [scale, shift, mean, variance], EPSILON)
    };
    let of_sample = emit_moments(graph, inputs, parts[FIRST].net.n_inputs());
    let kept = statistics(graph, 0);
    let mut switched = [0, 1].map(|at| {
        let logits = norms(graph, at);
        let weights = graph.softmax(logits);
        let weights = [0, 1].map(|one| graph.narrow(weights, 0, one, 1));
        let sample = graph.mul(of_sample[at], weights[0]);
        let batch = graph.mul(kept[at], weights[1]);
        graph.add(sample, batch)
    });
    switched[1] = graph.add_number(switched[1], EPSILON);
    let deviation = graph.sqrt(switched[1]);
    let centred = graph.sub(inputs, switched[0]);
    let normed = graph.div(centred, deviation);
    let [scale, shift] = [2, 3].map(|at| norms(graph, at));
    let scaled = graph.mul(normed, scale);
    let normed = graph.add(scaled, shift);
    let hidden = parts[FIRST].emit(graph, normed);
    let hidden = batch_norm(graph, hidden, 4, 2);
    let hidden = graph.sigmoid(hidden);
    let scores = parts[SECOND].emit(graph, hidden);
    let scores = batch_norm(graph, scores, 6, 4);
    graph.softmax(scores)
}

/// Writes into a graph mean and unbiased variance of every sample's numbers.
fn emit_moments(graph: &mut Graph, inputs: Value, width: usize) -> [Value; 2] {
    let mean = graph.reduce(Reduction::Mean, inputs, 1);
    let centred = graph.sub(inputs, mean);
    let squares = graph.mul(centred, centred);
    let sum = graph.reduce(Reduction::Sum, squares, 1);
    let variance = graph.mul_number(sum, 1.0 / (width.max(2) - 1) as f64);
    [mean, variance]
}

/// Keeps the running statistics of a gate.
pub(super) fn keep(parts: &mut [Part], statistics: Weights) {
    parts[STATISTICS].weights = statistics;
}

fn row(weights: &Weights, at: usize) -> Tensor<2> {
    weights.tensor(at).unsqueeze()
}

/// The running statistics, in the order in which they are used.
struct Running<'a> {
    weights: &'a Weights,
    renewed: Vec<Tensor<1>>,
    mode: Mode,
}

impl Running<'_> {
    /// Returns mean and unbiased variance over the batch, or the running ones; all are rows.
    fn moments(&mut self, values: &Tensor<2>) -> (Tensor<2>, Tensor<2>) {
        let at = self.renewed.len();
        let kept = [row(self.weights, at), row(self.weights, at + 1)];
        if self.mode == Mode::Inference {
            self.renewed
                .extend(kept.clone().map(|kept| kept.flatten(0, 1)));
            let [mean, variance] = kept;
            return (mean, variance);
        }
        let (mean, variance) = moments(values, 0);
        for (kept, batch) in kept.into_iter().zip([&mean, &variance]) {
            let batch = batch.clone().without_autodiff().mul_scalar(BATCH_SHARE);
            self.renewed
                .push((kept.mul_scalar(1.0 - BATCH_SHARE) + batch).flatten(0, 1));
        }
        (mean, variance)
    }
}

/// Returns mean and unbiased variance along a dimension.
fn moments(values: &Tensor<2>, dimension: usize) -> (Tensor<2>, Tensor<2>) {
    let count = values.dims()[dimension];
    let mean = values.clone().mean_dim(dimension);
    let centred = values.clone() - mean.clone();
    let variance = (centred.clone() * centred)
        .sum_dim(dimension)
        .div_scalar((count.max(2) - 1) as f64);
    (mean, variance)
}

fn switch_norm(
    input: Tensor<2>,
    [lm, lv, gamma, beta]: [Tensor<2>; 4],
    running: &mut Running<'_>,
) -> Tensor<2> {
    let (batch_mean, batch_variance) = running.moments(&input);
    let (sample_mean, sample_variance) = moments(&input, 1);
    let switched = |logits: Tensor<2>, sample: Tensor<2>, batch: Tensor<2>| {
        let weights = softmax(logits, 1);
        sample * weights.clone().narrow(1, 0, 1) + batch * weights.narrow(1, 1, 1)
    };
    let mean = switched(lm, sample_mean, batch_mean);
    let variance = switched(lv, sample_variance, batch_variance);
    (input - mean) / variance.add_scalar(EPSILON).sqrt() * gamma + beta
}

/// Normalises by the biased variance in training and keeps the unbiased one, as PyTorch does.
fn batch_norm(
    input: Tensor<2>,
    [gamma, beta]: [Tensor<2>; 2],
    running: &mut Running<'_>,
) -> Tensor<2> {
    let (mean, variance) = running.moments(&input);
    let count = input.dims()[0] as f64;
    let variance = match running.mode {
        Mode::Training => variance.mul_scalar((count - 1.0) / count),
        Mode::Inference => variance,
    };
    (input - mean) / variance.add_scalar(EPSILON).sqrt() * gamma + beta
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::testing::{assert_close, matrix, setup};
    use crate::weights::values;

    fn ones(width: usize) -> Tensor<2> {
        Tensor::ones([1, width], &burn::tensor::Device::flex())
    }

    /// Worked out by hand, with a batch's share of 0.1 in the running statistics.
    #[test]
    fn switchable_normalisation_agrees_with_the_worked_example() {
        let zeros = || Tensor::zeros([2], &burn::tensor::Device::flex());
        let start = Weights::new(vec![zeros(), zeros()]);
        let mut running = Running {
            weights: &start,
            renewed: Vec::new(),
            mode: Mode::Training,
        };
        let input = matrix([[1.0, 2.0], [3.0, 0.0], [2.0, 7.0]]);
        let got = switch_norm(
            input,
            [ones(2), ones(2), ones(2), ones(2).mul_scalar(0.0)],
            &mut running,
        );
        let expected = [
            -0.866_020, -0.096_225, 0.753_777, -0.760_638, -0.481_125, 0.910_182,
        ];
        assert_close(&values(&got), &expected, 2e-5);
        assert_close(&values(&running.renewed[0]), &[0.2, 0.3], 1e-6);
        assert_close(&values(&running.renewed[1]), &[0.1, 1.3], 1e-6);
    }

    /// (1, 3) has mean 2 and biased variance 1, so it becomes (-1, 1) but for epsilon; kept are 2 and the unbiased 2.
    #[test]
    fn batch_normalisation_agrees_with_a_worked_example() {
        let device = burn::tensor::Device::flex();
        let start = Weights::new(vec![
            Tensor::zeros([1], &device),
            Tensor::ones([1], &device),
        ]);
        let mut running = Running {
            weights: &start,
            renewed: Vec::new(),
            mode: Mode::Training,
        };
        let got = batch_norm(
            matrix([[1.0], [3.0]]),
            [ones(1).mul_scalar(2.0), ones(1)],
            &mut running,
        );
        assert_close(&values(&got), &[-1.0, 3.0], 2e-5);
        assert_close(
            &[values(&running.renewed[0]), values(&running.renewed[1])].concat(),
            &[0.2, 1.1],
            1e-6,
        );
    }

    fn inputs() -> Tensor<2> {
        matrix([
            [1.0, 0.5, 0.0, 0.2],
            [0.0, 0.3, 1.0, 0.7],
            [0.4, 0.9, 0.1, 0.8],
        ])
    }

    #[test]
    fn switch_gate_starts_with_even_shares() {
        let parts = setup("pfedmoe", &[], |setup| parts(setup, 4, 3));
        let weights: Vec<Weights> = parts.iter().map(|part| part.weights.clone()).collect();
        let (training, renewed) = shares(&parts, &weights, inputs(), Mode::Training);
        let scores: f32 = values(&training)
            .chunks(2)
            .map(|row| (row[0] / row[1]).ln())
            .sum();
        assert!(
            scores.abs() < 1e-4,
            "the scores' means over the batch are zero: {scores}"
        );
        assert_ne!(
            values(&renewed.tensor(2)),
            values(&weights[STATISTICS].tensor(2))
        );
        for mode in [Mode::Training, Mode::Inference] {
            let (lone, kept) = shares(&parts, &weights, inputs().narrow(0, 0, 1), mode);
            assert!(values(&lone).iter().all(|share| share.is_finite()));
            assert!((values(&lone).iter().sum::<f32>() - 1.0).abs() < 1e-6);
            assert_eq!(
                values(&kept.tensor(1)),
                values(&weights[STATISTICS].tensor(1))
            );
        }
    }

    /// Central differences in every kind of parameter, through both normalisations and the batch's statistics.
    #[test]
    fn gradients_agree_with_finite_differences() {
        let parts = setup("pfedmoe", &[], |setup| parts(setup, 4, 3));
        let plain: Vec<Weights> = parts.iter().map(|part| part.weights.clone()).collect();
        let factors = matrix([[1.0, -1.0], [2.0, 0.5], [-0.5, 1.5]]);
        let loss = |weights: &[Weights]| {
            (shares(&parts, weights, inputs(), Mode::Training).0 * factors.clone()).sum()
        };
        let recorded: Vec<Weights> = plain.iter().map(Weights::recorded).collect();
        let gradients = loss(&recorded).backward();
        let step = 1e-2;
        for (part, array) in [
            (NORMS, 0),
            (NORMS, 1),
            (NORMS, 2),
            (NORMS, 4),
            (NORMS, 7),
            (FIRST, 0),
            (SECOND, 0),
        ] {
            let gradient = values(&recorded[part].tensor(array).grad(&gradients).unwrap())[0];
            let moved = |by: f32| {
                let mut weights = plain.clone();
                let mut tensors: Vec<_> = weights[part].tensors().cloned().collect();
                let mut numbers = values(&tensors[array]);
                numbers[0] += by;
                tensors[array] =
                    Tensor::from_floats(numbers.as_slice(), &burn::tensor::Device::flex());
                weights[part] = Weights::new(tensors);
                values(&loss(&weights))[0]
            };
            let difference = (moved(step) - moved(-step)) / (2.0 * step);
            assert!(
                (gradient - difference).abs() < 5e-3,
                "part {part}, array {array}: {gradient} is not {difference}"
            );
        }
    }
}
