//! The gate of a pool: how much each member counts for a sample (PM-MoE, arXiv 2502.00354).
//!
//! ```text
//! u        gate input: features, or the samples themselves, standardised if wanted
//! l        in -> 128 -> 256 -> 128 -> M', leaky ReLU between, orthogonal weights, biases zero (or as `pool` says)
//! a        softmax(l), then the k largest of each sample, then divided by their sum if wanted
//! mixture  sum_l a_l · output_l
//! ```
//!
//! Members that were dropped have no output here, which is the same as masking them with minus infinity.

use std::io;

use burn::tensor::activation::softmax;
use burn::tensor::{Device, Tensor, TensorData};
use fednode_core::ParamSet;
use fednode_onnx::{Element, Graph, Reduction, Value};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::orthogonal;
use super::settings::{BiasStart, GateInput, PoolSettings};
use crate::algorithm::Algorithm;
use crate::model::{Activation, Dropout, Initial, Linear, Net, leaf};
use crate::random;
use crate::weights::{self, Weights};

/// Features between the gate's layers.
const HIDDEN: [usize; 3] = [128, 256, 128];
/// A gate input that varies less than this is only centred.
const SMALLEST_DEVIATION: f64 = 1e-6;

/// Which members a sample goes through, and whether their weights are made to add up to 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Selection {
    /// How many members, the likeliest first; 0 for all.
    pub(crate) top_k: usize,
    /// Whether to divide by the sum.
    pub(crate) renormalizes: bool,
}

/// What distinguishes one gate from another besides numbers and widths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GateKind {
    pub(crate) input: GateInput,
    /// What follows the first layer.
    pub(crate) first: Activation,
}

/// Mean and deviation of every gate input over the node's training samples, `[G]` each.
#[derive(Debug, Clone)]
pub(crate) struct Standard {
    pub(crate) mean: Tensor<1>,
    pub(crate) deviation: Tensor<1>,
}

/// The gate over so many members.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    pub(crate) kind: GateKind,
    pub(crate) net: Net,
    pub(crate) weights: Weights,
    pub(crate) selection: Selection,
    pub(crate) standard: Option<Standard>,
}

/// Makes the layers, with dropout of a share of the features between them, if any.
pub(crate) fn net(kind: GateKind, inputs: usize, members: usize, dropout: f64) -> Net {
    let [first, second, third] = HIDDEN;
    let linear = |name, inputs, outputs, activation| {
        leaf(Linear {
            name,
            inputs,
            outputs,
            activation,
            bias: true,
        })
    };
    let layers = [
        linear("pool.gate.0", inputs, first, kind.first),
        linear("pool.gate.2", first, second, Activation::LeakyRelu),
        linear("pool.gate.4", second, third, Activation::LeakyRelu),
        linear("pool.gate.6", third, members, Activation::Identity),
    ];
    let mut blocks = Vec::new();
    for (layer, width) in layers.into_iter().zip([0, first, second, third]) {
        if dropout > 0.0 && width > 0 {
            let share = dropout;
            blocks.push(leaf(Dropout { width, share }));
        }
        blocks.push(layer);
    }
    Net::new(blocks)
}

/// Draws orthogonal weights; biases are zero, or drawn as PyTorch draws them.
pub(crate) fn initial(
    net: &Net,
    biases: BiasStart,
    rng: &mut ChaCha8Rng,
    device: &Device,
) -> Weights {
    let mut params = ParamSet::new();
    for parameter in net.parameters() {
        let values = match (&parameter.shape[..], parameter.initial) {
            ([rows, columns], _) => orthogonal::matrix(rng, *rows, *columns),
            (_, Initial::FanIn(inputs)) if biases == BiasStart::Uniform => {
                random::uniform(rng, 1.0 / (inputs as f32).sqrt(), parameter.n_values())
            }
            _ => vec![0.0; parameter.n_values()],
        };
        params
            .insert(parameter.name.as_str(), &parameter.shape, values)
            .expect("a net's names are distinct");
    }
    Weights::load(net, &params, device).expect("they were made for this net")
}

/// Makes weights of zero: all members count the same.
pub(crate) fn zeros(net: &Net, device: &Device) -> Weights {
    let zero = |parameter: &crate::model::Parameter| Tensor::zeros([parameter.n_values()], device);
    Weights::new(net.parameters().iter().map(zero).collect())
}

impl GateKind {
    /// Returns the kind that a spec wants.
    pub(crate) fn of(settings: &PoolSettings) -> Self {
        Self {
            input: settings.gate.input,
            first: settings.gate.first_activation,
        }
    }
}

/// Returns what the gate judges a batch by, given how the model opens it.
pub(crate) fn input(
    of: GateInput,
    algorithm: &dyn Algorithm,
    inputs: &Tensor<2>,
    opened: Tensor<2>,
) -> Tensor<2> {
    let reader = algorithm.parts().iter().find(|part| part.net.takes_texts());
    match (of, reader) {
        (GateInput::Features, _) => opened,
        (GateInput::Samples, Some(part)) => part.net.gate_input(&part.weights, inputs.clone()),
        (GateInput::Samples, None) => inputs.clone(),
    }
}

/// Writes into a graph what [`input`] returns.
pub(crate) fn emit_input(
    of: GateInput,
    algorithm: &dyn Algorithm,
    graph: &mut Graph,
    [inputs, opened]: [Value; 2],
) -> Value {
    let reader = algorithm.parts().iter().find(|part| part.net.takes_texts());
    match (of, reader) {
        (GateInput::Features, _) => opened,
        (GateInput::Samples, Some(part)) => part.net.emit_gate_input(&part.weights, graph, inputs),
        (GateInput::Samples, None) => inputs,
    }
}

impl Gate {
    /// Returns the weight of every member, `[batch, M']`, by the given weights, plain or recorded.
    pub(crate) fn shares(&self, weights: &Weights, input: Tensor<2>) -> Tensor<2> {
        let input = match &self.standard {
            Some(Standard { mean, deviation }) => {
                (input - mean.clone().unsqueeze()) / deviation.clone().unsqueeze()
            }
            None => input,
        };
        let logits = self.net.forward(weights, input);
        self.selection.apply(softmax(logits, 1))
    }

    /// Writes into a graph what [`Self::shares`] computes with the gate's own weights.
    pub(crate) fn emit_shares(&self, graph: &mut Graph, mut input: Value) -> Value {
        if let Some(Standard { mean, deviation }) = &self.standard {
            let [mean, deviation] = [("mean", mean), ("deviation", deviation)].map(|(name, of)| {
                let name = format!("pool.input.{name}");
                graph.floats(&name, weights::values(of), &of.dims())
            });
            let centred = graph.sub(input, mean);
            input = graph.div(centred, deviation);
        }
        let logits = self.net.emit(&self.weights, graph, input);
        let probabilities = graph.softmax(logits);
        let members = self.net.n_outputs();
        self.selection.emit(graph, probabilities, members)
    }
}

impl Selection {
    /// Writes into a graph what [`Self::apply`] computes.
    fn emit(self, graph: &mut Graph, probabilities: Value, members: usize) -> Value {
        if self.top_k == 0 || self.top_k >= members {
            return probabilities;
        }
        let best = graph.top(probabilities, self.top_k);
        let everyone = graph.ints("members", (0..members as i64).collect(), &[members]);
        let mark = |graph: &mut Graph, at: usize| {
            let one = graph.narrow(best, 1, at, 1);
            let is_member = graph.equal(one, everyone);
            graph.cast(is_member, Element::Float)
        };
        let first = mark(graph, 0);
        let mask = (1..self.top_k).fold(first, |mask, at| {
            let marked = mark(graph, at);
            graph.add(mask, marked)
        });
        let selected = graph.mul(probabilities, mask);
        if self.renormalizes {
            let sum = graph.reduce(Reduction::Sum, selected, 1);
            graph.div(selected, sum)
        } else {
            selected
        }
    }

    /// Selects from probabilities `[batch, M']`. Of equal ones the earlier member is taken.
    fn apply(self, probabilities: Tensor<2>) -> Tensor<2> {
        let [samples, members] = probabilities.dims();
        if self.top_k == 0 || self.top_k >= members {
            return probabilities;
        }
        let values = weights::values(&probabilities);
        let mut mask = vec![0f32; values.len()];
        for (row, mask) in values
            .chunks_exact(members)
            .zip(mask.chunks_exact_mut(members))
        {
            let mut order: Vec<usize> = (0..members).collect();
            order.sort_by(|a, b| row[*b].total_cmp(&row[*a]).then(a.cmp(b)));
            order[..self.top_k]
                .iter()
                .for_each(|member| mask[*member] = 1.0);
        }
        let device = probabilities.device().without_autodiff();
        let selected = probabilities
            * Tensor::<2>::from_data(TensorData::new(mask, [samples, members]), &device);
        if self.renormalizes {
            selected.clone() / selected.sum_dim(1)
        } else {
            selected
        }
    }
}

impl Standard {
    /// Measures rows of gate inputs, each `[G]`, in two passes.
    ///
    /// # Errors
    /// Fails with the first row that is none.
    pub(crate) fn of(
        rows: impl Iterator<Item = io::Result<Vec<f32>>> + Clone,
        width: usize,
        device: &Device,
    ) -> io::Result<Self> {
        let (mut mean, mut square, mut count) = (vec![0f64; width], vec![0f64; width], 0f64);
        for row in rows.clone() {
            mean.iter_mut()
                .zip(&row?)
                .for_each(|(sum, value)| *sum += f64::from(*value));
            count += 1.0;
        }
        mean.iter_mut().for_each(|sum| *sum /= count.max(1.0));
        for row in rows {
            let row = row?;
            let deviations = row
                .iter()
                .zip(&mean)
                .map(|(value, mean)| (f64::from(*value) - mean).powi(2));
            square
                .iter_mut()
                .zip(deviations)
                .for_each(|(sum, value)| *sum += value);
        }
        let deviation = |sum: f64| {
            Some((sum / count.max(1.0)).sqrt()).filter(|root| *root > SMALLEST_DEVIATION)
        };
        let deviations: Vec<f64> = square
            .iter()
            .map(|sum| deviation(*sum).unwrap_or(1.0))
            .collect();
        let upload = |values: &[f64]| {
            let values: Vec<f32> = values.iter().map(|value| *value as f32).collect();
            Tensor::from_data(TensorData::new(values, [width]), device)
        };
        Ok(Self {
            mean: upload(&mean),
            deviation: upload(&deviations),
        })
    }

    /// Returns the arrays as they are saved.
    pub(crate) fn net(width: usize) -> Net {
        let shape = [width];
        Net::arrays(&[
            ("pool.input.mean", &shape, Initial::Zeros),
            ("pool.input.deviation", &shape, Initial::Ones),
        ])
    }
}

/// Mixes outputs `[batch, M', D]` (or `[1, M', D]`, the same for all samples) with weights `[batch, M']`.
pub(crate) fn mix(shares: Tensor<2>, outputs: Tensor<3>) -> Tensor<2> {
    let ([samples, members], width) = (shares.dims(), outputs.dims()[2]);
    (outputs * shares.reshape([samples, members, 1]))
        .sum_dim(1)
        .reshape([samples, width])
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use proptest::prelude::*;

    use fednode_core::spec::Preset;

    use super::*;
    use crate::random::{Purpose, stream, uniform};
    use crate::train::cross_entropy;
    use crate::weights::values;

    const INPUTS: usize = 3;
    const MEMBERS: usize = 4;
    const CLASSES: usize = 3;

    fn random(rows: usize, columns: usize, seed: u64) -> Tensor<2> {
        let values = uniform(
            &mut stream(Purpose::Noise, [seed, 0, 0]),
            1.0,
            rows * columns,
        );
        Tensor::from_data(TensorData::new(values, [rows, columns]), &Device::flex())
    }

    fn outputs(rows: usize) -> Tensor<3> {
        random(rows, MEMBERS * CLASSES, 8)
            .mul_scalar(3.0)
            .reshape([rows, MEMBERS, CLASSES])
    }

    fn gate(top_k: usize, renormalizes: bool) -> Gate {
        let kind = GateKind::of(&PoolSettings::preset(Preset::Fixed));
        let net = net(kind, INPUTS, MEMBERS, 0.0);
        let weights = initial(
            &net,
            BiasStart::Zeros,
            &mut stream(Purpose::PoolGate, [1, 2, 0]),
            &Device::flex(),
        );
        Gate {
            kind,
            net,
            weights,
            selection: Selection {
                top_k,
                renormalizes,
            },
            standard: None,
        }
    }

    fn shares(gate: &Gate, rows: usize) -> Tensor<2> {
        gate.shares(&gate.weights, random(rows, INPUTS, 7))
    }

    /// The weights of the members for one sample, in double precision on plain numbers; tensors as in the net.
    fn plain_shares(weights: &[Vec<f64>], selection: Selection, input: &[f32]) -> Vec<f64> {
        let mut features: Vec<f64> = input.iter().map(|value| f64::from(*value)).collect();
        for (layer, pair) in weights.chunks(2).enumerate() {
            let width = pair[1].len();
            let product = |out: usize| {
                features
                    .iter()
                    .enumerate()
                    .map(move |(i, x)| x * pair[0][i * width + out])
            };
            let sums = (0..width).map(|out| product(out).sum::<f64>() + pair[1][out]);
            features = sums
                .map(|sum| {
                    if sum < 0.0 && layer < 3 {
                        0.01 * sum
                    } else {
                        sum
                    }
                })
                .collect();
        }
        let sum: f64 = features.iter().map(|logit| logit.exp()).sum();
        let mut shares: Vec<f64> = features.iter().map(|logit| logit.exp() / sum).collect();
        let mut order: Vec<usize> = (0..MEMBERS).collect();
        order.sort_by(|a, b| shares[*b].total_cmp(&shares[*a]));
        order[selection.top_k..]
            .iter()
            .for_each(|member| shares[*member] = 0.0);
        let kept: f64 = if selection.renormalizes {
            shares.iter().sum()
        } else {
            1.0
        };
        shares.into_iter().map(|share| share / kept).collect()
    }

    fn plain_loss(weights: &[Vec<f64>], selection: Selection, labels: &[usize]) -> f64 {
        let (inputs, outputs) = (
            values(&random(labels.len(), INPUTS, 7)),
            values(&outputs(labels.len())),
        );
        let of = |(row, label): (usize, &usize)| {
            let shares = plain_shares(weights, selection, &inputs[row * INPUTS..][..INPUTS]);
            let outputs = &outputs[row * MEMBERS * CLASSES..][..MEMBERS * CLASSES];
            let logit = |class: usize| {
                let weighted = shares.iter().zip(outputs.chunks_exact(CLASSES));
                weighted
                    .map(|(share, output)| share * f64::from(output[class]))
                    .sum::<f64>()
            };
            (0..CLASSES)
                .map(|class| logit(class).exp())
                .sum::<f64>()
                .ln()
                - logit(*label)
        };
        labels.iter().enumerate().map(of).sum::<f64>() / labels.len() as f64
    }

    #[test]
    fn loss_and_gradient_agree_with_finite_differences_in_double_precision() {
        let labels = [0, 2, 1, 2, 2];
        for (top_k, renormalizes) in [(MEMBERS, false), (2, false), (2, true)] {
            let gate = gate(top_k, renormalizes);
            let tape = gate.weights.recorded();
            let mixed = mix(gate.shares(&tape, random(5, INPUTS, 7)), outputs(5));
            let found = cross_entropy(
                mixed,
                crate::gate::one_hot(&labels, CLASSES, &Device::flex()),
            );
            let plain: Vec<Vec<f64>> = gate
                .weights
                .tensors()
                .map(|tensor| values(tensor).into_iter().map(f64::from).collect())
                .collect();
            let expected = plain_loss(&plain, gate.selection, &labels);
            assert!(
                (f64::from(values(&found)[0]) - expected).abs() < 1e-5,
                "{found} is not {expected}"
            );
            let mut gradients = found.backward();
            for (tensor, gradient) in tape.take_gradients(&mut gradients).into_iter().enumerate() {
                let gradient = values(&gradient.unwrap());
                for at in (0..gradient.len()).step_by(gradient.len().div_ceil(23)) {
                    let moved = |by: f64| {
                        let mut weights = plain.clone();
                        weights[tensor][at] += by;
                        plain_loss(&weights, gate.selection, &labels)
                    };
                    let (got, expected) =
                        (f64::from(gradient[at]), (moved(1e-5) - moved(-1e-5)) / 2e-5);
                    assert!(
                        (got - expected).abs() < 1e-5 + 1e-3 * expected.abs(),
                        "{tensor} {at}: {got}, {expected}"
                    );
                }
            }
        }
    }

    #[test]
    fn weights_add_up_to_1_or_less() {
        for (top_k, renormalizes) in [
            (0, false),
            (MEMBERS, true),
            (9, false),
            (2, false),
            (2, true),
            (1, true),
        ] {
            for row in values(&shares(&gate(top_k, renormalizes), 20)).chunks_exact(MEMBERS) {
                let (sum, taken) = (
                    row.iter().sum::<f32>(),
                    row.iter().filter(|share| **share > 0.0).count(),
                );
                let is_dense = top_k == 0 || top_k >= MEMBERS;
                assert_eq!(taken, if is_dense { MEMBERS } else { top_k });
                assert!(
                    sum < 1.0 + 1e-6 && ((sum - 1.0).abs() < 1e-6 || !(is_dense || renormalizes)),
                    "{row:?}"
                );
            }
        }
        let [all, dense] =
            [gate(MEMBERS, true), gate(0, false)].map(|gate| values(&shares(&gate, 5)));
        assert_eq!(all, dense, "k = M is the dense mixture");
    }

    #[test]
    fn the_likeliest_members_are_taken_and_the_first_of_equal_ones() {
        let rows = Tensor::<2>::from_floats(
            [[0.1, 0.4, 0.3, 0.2], [0.25, 0.25, 0.25, 0.25]],
            &Device::flex(),
        );
        let selected = Selection {
            top_k: 2,
            renormalizes: false,
        }
        .apply(rows);
        assert_eq!(
            values(&selected),
            [0.0, 0.4, 0.3, 0.0, 0.25, 0.25, 0.0, 0.0]
        );
    }

    #[track_caller]
    fn assert_close(got: &Tensor<2>, expected: &Tensor<2>) {
        let close = values(got)
            .into_iter()
            .zip(values(expected))
            .all(|(got, expected)| (got - expected).abs() < 1e-5);
        assert!(close, "{got} is not {expected}");
    }

    #[test]
    fn equal_members_are_one() {
        let one = random(6, CLASSES, 3);
        assert_close(
            &mix(
                shares(&gate(0, false), 6),
                Tensor::stack(vec![one.clone(); MEMBERS], 1),
            ),
            &one,
        );
    }

    #[test]
    fn permuting_the_pool_permutes_the_gates_outputs_only() {
        let order = [2, 0, 3, 1];
        let permute = |values: Vec<f32>| -> Vec<f32> {
            values
                .chunks_exact(MEMBERS)
                .flat_map(|row| order.map(|member| row[member]))
                .collect()
        };
        let (original, mut permuted) = (gate(2, true), gate(2, true));
        let mut tensors: Vec<Tensor<1>> = original.weights.tensors().cloned().collect();
        for tensor in &mut tensors[6..] {
            let moved = permute(values(tensor));
            let length = moved.len();
            *tensor = Tensor::from_data(TensorData::new(moved, [length]), &Device::flex());
        }
        permuted.weights = Weights::new(tensors);
        let moved = TensorData::new(permute(values(&shares(&original, 9))), [9, MEMBERS]);
        assert_close(
            &shares(&permuted, 9),
            &Tensor::from_data(moved, &Device::flex()),
        );
        let moved = Tensor::cat(
            order.map(|member| outputs(9).narrow(1, member, 1)).to_vec(),
            1,
        );
        assert_close(
            &mix(shares(&permuted, 9), moved),
            &mix(shares(&original, 9), outputs(9)),
        );
    }

    proptest! {
        /// Weights of selected members sum to 1 or less, to 1 if they are made to or all are taken. Of them k are
        /// taken, none of which is less likely than one that is not.
        #[test]
        fn a_selection_takes_the_likeliest(
            (logits, members) in (1usize..9).prop_flat_map(|members| {
                (prop::collection::vec(-20f32..20.0, members..=5 * members), Just(members))
            }),
            top_k in 0usize..12,
            renormalizes: bool,
        ) {
            let rows = logits.len() / members;
            let logits = TensorData::new(logits[..rows * members].to_vec(), [rows, members]);
            let likely = softmax(Tensor::<2>::from_data(logits, &Device::flex()), 1);
            let selected = values(&Selection { top_k, renormalizes }.apply(likely.clone()));
            let is_dense = top_k == 0 || top_k >= members;
            let taken = if is_dense { members } else { top_k };
            for (likely, selected) in values(&likely).chunks_exact(members).zip(selected.chunks_exact(members)) {
                let sum: f32 = selected.iter().sum();
                prop_assert!(sum <= 1.0 + 1e-5 && (!(renormalizes || is_dense) || sum > 1.0 - 1e-5), "{sum}");
                prop_assert!(selected.iter().filter(|share| **share > 0.0).count() <= taken);
                let least = (0..members).filter(|at| selected[*at] > 0.0).map(|at| likely[at]).fold(1.0, f32::min);
                let left = (0..members).filter(|at| selected[*at] == 0.0).map(|at| likely[at]).fold(0.0, f32::max);
                prop_assert!(least >= left, "{likely:?} {selected:?}");
            }
        }

        /// Whatever the gate says, members that agree are one, and a gate that knows only the own member is it.
        #[test]
        fn a_mixture_lies_between_its_members(
            shares in prop::collection::vec(0f32..1.0, 4), own in prop::collection::vec(-50f32..50.0, 3),
        ) {
            let sum: f32 = shares.iter().sum();
            prop_assume!(sum > 1e-3);
            let shares: Vec<f32> = shares.into_iter().map(|share| share / sum).collect();
            let tensor = |values: Vec<f32>| Tensor::<2>::from_data(TensorData::new(values, [1, 4]), &Device::flex());
            let outputs = |values: Vec<f32>| {
                Tensor::<3>::from_data(TensorData::new(values, [1, 4, 3]), &Device::flex())
            };
            let alike = values(&mix(tensor(shares), outputs(own.repeat(4))));
            prop_assert!(alike.iter().zip(&own).all(|(got, own)| (got - own).abs() < 1e-3), "{alike:?}");
            let others = [own.clone(), own.iter().rev().map(|value| value + 7.0).collect::<Vec<_>>().repeat(3)].concat();
            prop_assert_eq!(values(&mix(tensor(vec![1.0, 0.0, 0.0, 0.0]), outputs(others))), own);
        }
    }

    #[test]
    fn constant_outputs_serve_every_sample() {
        let repeated = Tensor::cat(vec![outputs(1); 6], 0);
        assert_close(
            &mix(shares(&gate(0, false), 6), outputs(1)),
            &mix(shares(&gate(0, false), 6), repeated),
        );
    }

    /// PM-MoE's released code: 134,164 numbers for 512 features and 20 members.
    #[test]
    fn biases_are_zeros_or_drawn_as_pytorch_draws_them() {
        let net = net(
            GateKind::of(&PoolSettings::preset(Preset::Code)),
            512,
            20,
            0.0,
        );
        assert_eq!(
            net.parameters()
                .iter()
                .map(crate::model::Parameter::n_values)
                .sum::<usize>(),
            134_164
        );
        let drawn = |biases| {
            initial(
                &net,
                biases,
                &mut stream(Purpose::PoolGate, [1, 2, 0]),
                &Device::flex(),
            )
        };
        for (at, inputs) in [(1, 512f32), (3, 128.0), (5, 256.0), (7, 128.0)] {
            assert!(
                values(&drawn(BiasStart::Zeros).tensor(at))
                    .iter()
                    .all(|bias| *bias == 0.0)
            );
            let biases = values(&drawn(BiasStart::Uniform).tensor(at));
            let (bound, largest) = (
                1.0 / inputs.sqrt(),
                biases.iter().fold(0f32, |most, bias| most.max(bias.abs())),
            );
            assert!(
                (0.7 * bound..=bound).contains(&largest),
                "layer {at}: {largest} of {bound}"
            );
        }
    }

    #[test]
    fn dropout_is_for_training_only_and_seeded() {
        let mut gate = gate(0, false);
        let plain = values(&shares(&gate, 9));
        gate.net = net(gate.kind, INPUTS, MEMBERS, 0.5);
        let with = |seed| {
            let draws = stream(Purpose::PoolDropout, [seed, 0, 0]);
            let tape = gate
                .weights
                .recorded_with(Some(Arc::new(Mutex::new(draws))));
            values(&gate.shares(&tape, random(9, INPUTS, 7)))
        };
        assert_eq!(with(1), with(1));
        assert_ne!(with(1), with(2));
        assert_ne!(with(1), plain);
        assert_eq!(values(&shares(&gate, 9)), plain, "served without dropout");
    }

    #[test]
    fn standardised_inputs_have_mean_0_and_deviation_1() {
        let rows = [vec![1.0, 5.0], vec![3.0, 5.0], vec![5.0, 5.0]];
        let Standard { mean, deviation } =
            Standard::of(rows.iter().cloned().map(Ok), 2, &Device::flex()).unwrap();
        assert_eq!(values(&mean), [3.0, 5.0]);
        assert_eq!(
            values(&deviation),
            [(8f64 / 3.0).sqrt() as f32, 1.0],
            "what never varies is only centred"
        );
    }
}
