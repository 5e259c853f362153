//! Top-1 routing (FedMoE-DA, Zhan et al., MSN 2024, Eq. 1 to 3).
//!
//! ```text
//! s = x · Pi          K scores per sample, no bias
//! G = softmax(s)      over all K, before the selection
//! k = argmax G        only this expert runs
//! o = G_k * E_k(x)    no renormalisation: with one expert it would be 1 and the gate would never learn
//! ```
//!
//! Every expert runs once, on the samples that chose it; through the softmax all K proxies get a gradient from every
//! sample, an expert that nobody chose gets none.

use burn::tensor::activation::softmax;
use burn::tensor::{Device, Int, Tensor, TensorData};
use fednode_onnx::{Graph, Reduction, Value};

use crate::weights;

/// The outcome of a batch that went through a gate.
#[derive(Debug)]
pub struct Gated {
    /// `o`, in the order of the batch.
    pub logits: Tensor<2>,
    /// `G`, one row per sample.
    pub probabilities: Tensor<2>,
    /// The chosen expert of each sample.
    pub chosen: Vec<usize>,
}

/// Routes a batch: `scores` is `[batch, K]`, `features` `[batch, n]`; `run` is expert number → its logits.
pub fn top1(
    scores: Tensor<2>,
    features: Tensor<2>,
    run: impl Fn(usize, Tensor<2>) -> Tensor<2>,
) -> Gated {
    let [n_samples, n_experts] = scores.dims();
    let device = features.device();
    let probabilities = softmax(scores, 1);
    let chosen = argmax(&weights::values(&probabilities), n_experts);
    let mut outputs = Vec::new();
    let mut order = Vec::with_capacity(n_samples);
    for expert in 0..n_experts {
        let members: Vec<usize> = (0..n_samples)
            .filter(|sample| chosen[*sample] == expert)
            .collect();
        if members.len() == n_samples {
            outputs.push(run(expert, features.clone()));
        } else if !members.is_empty() {
            outputs.push(run(
                expert,
                features.clone().select(0, indices(&members, &device)),
            ));
        }
        order.extend(members);
    }
    let selected = (probabilities.clone() * one_hot(&chosen, n_experts, &device)).sum_dim(1);
    let logits = restore_order(outputs, &order, &device) * selected;
    Gated {
        logits,
        probabilities,
        chosen,
    }
}

/// Writes into a graph what [`top1`] computes, logits alone. All experts run on every sample there, and each sample takes
/// the output of its own.
pub(crate) fn emit_top1(
    graph: &mut Graph,
    scores: Value,
    n_experts: usize,
    run: impl Fn(&mut Graph, usize) -> Value,
) -> Value {
    let probabilities = graph.softmax(scores);
    let chosen = graph.arg_max(probabilities);
    let mut output = run(graph, 0);
    for expert in 1..n_experts {
        let number = graph.ints("expert", vec![expert as i64], &[1]);
        let is_chosen = graph.equal(chosen, number);
        let own = run(graph, expert);
        output = graph.choose(is_chosen, own, output);
    }
    // The chosen expert is that of the largest probability.
    let probability = graph.reduce(Reduction::Largest, probabilities, 1);
    graph.mul(output, probability)
}

/// Writes into a graph the sum of outputs, each `[N, D]` or one row for all, weighted by the columns of `shares`.
pub(crate) fn emit_mix(graph: &mut Graph, shares: Value, outputs: &[Value]) -> Value {
    let weigh = |graph: &mut Graph, at: usize| {
        let share = graph.narrow(shares, 1, at, 1);
        graph.mul(outputs[at], share)
    };
    let first = weigh(graph, 0);
    (1..outputs.len()).fold(first, |sum, at| {
        let weighted = weigh(graph, at);
        graph.add(sum, weighted)
    })
}

/// Returns the load-balancing loss of Switch Transformers: `K * sum_j f_j * mean(G_j)`, with `f_j` the share of the
/// batch that chose expert j. It is 1 when the load is even and K when one expert takes everything for certain.
pub fn load_balance(gated: &Gated) -> Tensor<1> {
    let n_experts = gated.probabilities.dims()[1];
    let share = share(&gated.chosen, n_experts)
        .into_iter()
        .map(|share| share as f32)
        .collect();
    let device = gated.probabilities.device().without_autodiff();
    let share = Tensor::<2>::from_data(TensorData::new(share, [1, n_experts]), &device);
    (gated.probabilities.clone().mean_dim(0) * share)
        .sum()
        .mul_scalar(n_experts as f64)
}

/// Returns the share of samples that chose each expert.
pub fn share(chosen: &[usize], n_experts: usize) -> Vec<f64> {
    let mut counts = vec![0u32; n_experts];
    for expert in chosen {
        counts[*expert] += 1;
    }
    counts
        .into_iter()
        .map(|count| f64::from(count) / chosen.len().max(1) as f64)
        .collect()
}

/// Returns the position of the largest value of each row, the first of equal ones.
pub(crate) fn argmax(values: &[f32], columns: usize) -> Vec<usize> {
    let best =
        |row: &[f32]| (1..columns).fold(0, |best, at| if row[at] > row[best] { at } else { best });
    values.chunks_exact(columns).map(best).collect()
}

/// Returns a matrix with a one in each row's given column.
pub(crate) fn one_hot(columns: &[usize], n_columns: usize, device: &Device) -> Tensor<2> {
    let mut values = vec![0f32; columns.len() * n_columns];
    for (row, column) in columns.iter().enumerate() {
        values[row * n_columns + column] = 1.0;
    }
    let device = device.clone().without_autodiff();
    Tensor::from_data(TensorData::new(values, [columns.len(), n_columns]), &device)
}

/// Puts the outputs of the experts together, `order[i]` being the sample that row `i` belongs to.
fn restore_order(mut outputs: Vec<Tensor<2>>, order: &[usize], device: &Device) -> Tensor<2> {
    if outputs.len() == 1 {
        return outputs.remove(0);
    }
    let mut rows = vec![0; order.len()];
    for (row, sample) in order.iter().enumerate() {
        rows[*sample] = row;
    }
    Tensor::cat(outputs, 0).select(0, indices(&rows, device))
}

fn indices(rows: &[usize], device: &Device) -> Tensor<1, Int> {
    let rows: Vec<i32> = rows.iter().map(|row| *row as i32).collect();
    let count = rows.len();
    Tensor::from_data(
        TensorData::new(rows, [count]),
        &device.clone().without_autodiff(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::cross_entropy;

    fn matrix<const R: usize, const C: usize>(rows: [[f32; C]; R]) -> Tensor<2> {
        Tensor::from_data(TensorData::from(rows), &Device::flex())
            .autodiff()
            .require_grad()
    }

    fn assert_close(got: &[f32], expected: &[f32]) {
        let close = got.len() == expected.len()
            && got
                .iter()
                .zip(expected)
                .all(|(a, b)| (a - b).abs() < 1e-6 * b.abs().max(1.0));
        assert!(close, "{got:?} is not {expected:?}");
    }

    /// Eq. 1 to 3 of FedMoE-DA by hand: all values and all gradients.
    #[test]
    fn agrees_with_the_worked_example() {
        let x = matrix([[1.0, 2.0, -1.0]]);
        let gate = matrix([[0.1, -0.2], [0.3, 0.05], [0.2, 0.4]]);
        let experts = [
            matrix([[0.5, -0.1, 0.2], [0.0, 0.3, -0.4]]),
            matrix([[-0.2, 0.1, 0.6], [0.25, -0.3, 0.1]]),
        ];
        let scores = x.clone().matmul(gate.clone());
        assert_close(&weights::values(&scores), &[0.5, -0.5]);
        let gated = top1(scores, x.clone(), |k, x| {
            x.matmul(experts[k].clone().transpose())
        });
        assert_eq!(gated.chosen, [0]);
        assert_close(
            &weights::values(&gated.probabilities),
            &[0.731_058_6, 0.268_941_4],
        );
        assert_close(
            &weights::values(&gated.logits),
            &[0.073_105_86, 0.731_058_6],
        );
        let loss = cross_entropy(gated.logits, one_hot(&[0], 2, &Device::flex()));
        assert_close(&weights::values(&loss), &[1.075_287_5]);

        let gradients = loss.backward();
        let gradient = |tensor: &Tensor<2>| weights::values(&tensor.grad(&gradients).unwrap());
        let expected = [
            0.116_575_21,
            -0.116_575_21,
            0.233_150_42,
            -0.233_150_42,
            -0.116_575_21,
            0.116_575_21,
        ];
        assert_close(&gradient(&gate), &expected);
        let expected = [
            -0.481_621_64,
            -0.963_243_3,
            0.481_621_64,
            0.481_621_64,
            0.963_243_3,
            -0.481_621_64,
        ];
        assert_close(&gradient(&experts[0]), &expected);
        assert!(experts[1].grad(&gradients).is_none());
        assert_close(&gradient(&x), &[-0.205_838_3, 0.221_792_5, -0.312_288]);
    }

    #[test]
    fn every_sample_goes_to_its_expert_and_back_to_its_place() {
        let scores = matrix([
            [0.0, 3.0, 1.0],
            [2.0, 0.0, 0.0],
            [0.0, 4.0, 0.0],
            [0.0, 0.0, 5.0],
        ]);
        let features = matrix([[1.0], [2.0], [3.0], [4.0]]);
        let gated = top1(scores, features, |k, x| x + 10.0 * k as f32);
        assert_eq!(gated.chosen, [1, 0, 1, 2]);
        let weighted = weights::values(&gated.logits);
        let probabilities = weights::values(&gated.probabilities);
        let plain: Vec<f32> = (0..4)
            .map(|i| weighted[i] / probabilities[3 * i + gated.chosen[i]])
            .collect();
        assert_close(&plain, &[11.0, 2.0, 13.0, 24.0]);
    }

    #[test]
    fn load_balance_is_one_when_even_and_k_when_collapsed() {
        let gated = |scores| top1(scores, matrix([[1.0], [1.0]]), |_, x| x);
        let even = load_balance(&gated(matrix([[50.0, 0.0], [0.0, 50.0]])));
        let collapsed = load_balance(&gated(matrix([[50.0, 0.0], [50.0, 0.0]])));
        assert_close(&weights::values(&even), &[1.0]);
        assert_close(&weights::values(&collapsed), &[2.0]);
    }
}
