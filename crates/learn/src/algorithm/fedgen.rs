//! FedGen: Zhu, Hong and Zhou, "Data-Free Knowledge Distillation for Heterogeneous Federated Learning", ICML 2021,
//! Algorithm 1.
//!
//! ```text
//! aggregator   G(e, y) -> z learns from all nodes' heads what they take for class y, each head counting by what its
//!              node has of the class (rule `generator` of `fednode_mix::rule`)
//! node         L = CE(head(base(x)), y) + alpha * CE(head(G(e, y')), y')
//!              y' uniform over the classes that anybody has
//! ```
//!
//! The aggregator is trusted with nothing here: it learns the generator from what the nodes sent, by draws that the
//! nodes' numbers seed, so that everybody can repeat it bit for bit. The generator is not trained on any node. Base and
//! head are averaged by samples. Nodes share the frequencies of their classes, as in both codes.
//!
//! The paper was not at hand, the authors' code and PFLlib's are followed. Generated features are as many as the samples
//! of the batch, new in every step. As in PFLlib there is that one term, with the weight 1. The authors give it a
//! weight of 10 that falls by 2 % a round. They draw the answer on real samples to that on generated ones as well. The
//! generator is the authors' for MNIST, 32 numbers of noise and 256 hidden units, without batch normalisation. In the
//! first round there is no generator, and the round is FedAvg's.

use burn::tensor::{Device, Tensor, TensorData};
use fednode_core::{Averaging, Exchange, Weighting};
use fednode_mix::names;
use fednode_onnx::{Graph, Value};

use super::hyper::{Hyper, Kind};
use super::part::{Part, Role};
use super::whole::{self, BASE, HEAD};
use super::{
    Algorithm, Extractor, Optimizers, Output, RoundContext, Row, Setup, Stage, Step, StepContext,
};
use crate::batch::Batch;
use crate::error::LearnError;
use crate::gate::one_hot;
use crate::model::{Activation, Initial, Linear, Net, leaf};
use crate::random::Draws;
use crate::train::cross_entropy;
use crate::weights::{self, Weights};

pub(super) const ROW: Row = Row {
    name: "fedgen",
    summary: "FedAvg whose heads also learn from features that a generator makes, taught by all nodes' heads",
    reference: "Zhu et al., ICML 2021, arXiv 2105.10056",
    averages: "the whole model and the shares of the classes; the aggregator learns the generator",
    peer_to_peer: "nothing",
    keeps_private: "nothing but the data",
    trains_ahead: false,
    optimizers: Optimizers::Any,
    hyper: &[
        Hyper {
            name: "alpha",
            kind: Kind::Real { min: 0.0, max: 1e6 },
            default: "1",
            doc: "weight of the cross-entropy on generated features",
        },
        Hyper {
            name: "noise",
            kind: Kind::Integer { min: 1, max: 4096 },
            default: "32",
            doc: "numbers of noise that the generator reads",
        },
        Hyper {
            name: "hidden_units",
            kind: Kind::Integer { min: 1, max: 4096 },
            default: "256",
            doc: "hidden units of the generator",
        },
        Hyper {
            name: "server_learning_rate",
            kind: Kind::Real {
                min: 1e-9,
                max: 1e3,
            },
            default: "0.005",
            doc: "step size of the aggregator's generator (Adam)",
        },
        Hyper {
            name: "server_batch_size",
            kind: Kind::Integer { min: 1, max: 4096 },
            default: "32",
            doc: "features that the generator makes in a step",
        },
        Hyper {
            name: "server_steps",
            kind: Kind::Integer {
                min: 1,
                max: 10_000,
            },
            default: "40",
            doc: "steps of the generator in a round; whoever audits a round repeats them",
        },
    ],
    profiles: &[],
    exchange: |values| Exchange {
        averaging: Some(Averaging {
            weighting: Weighting::Samples,
            rule: values.learning("generator", "server_steps"),
        }),
        experts: None,
        everybody_first: false,
        prepares: false,
        total: None,
    },
    build: |setup| FedGen::new(setup).map(|algorithm| Box::new(algorithm) as Box<dyn Algorithm>),
};

const GENERATOR: usize = 2;
const SHARES: usize = 3;

struct FedGen {
    parts: [Part; 4],
    /// The generator as it is drawn.
    untaught: Weights,
    n_classes: usize,
    /// The classes that features are generated of in this round.
    classes: Vec<usize>,
    draws: Option<Draws>,
    noise: usize,
    alpha: f64,
}

impl FedGen {
    fn new(setup: &Setup<'_>) -> Result<Self, LearnError> {
        let [base, mut head] = whole::halves(setup, Role::Shared)?;
        head.net = head.net.renamed(names::HEAD);
        let (classes, width) = (setup.model.classes, base.net.n_outputs());
        let [noise, hidden] =
            ["noise", "hidden_units"].map(|name| setup.hyper.count(name) as usize);
        let layer = |name, inputs, outputs, activation| {
            leaf(Linear {
                name,
                inputs,
                outputs,
                activation,
                bias: true,
            })
        };
        let generator = Net::new(vec![
            layer(names::HIDDEN, noise + classes, hidden, Activation::Relu),
            layer(names::FEATURES, hidden, width, Activation::Identity),
        ]);
        let shares = Net::arrays(&[(names::SHARES, &[classes], Initial::Zeros)]);
        let part = |net| Part::new(Role::Shared, net, setup.seed, 0, setup.device);
        let generator = part(generator);
        Ok(Self {
            untaught: generator.weights.clone(),
            parts: [base, head, generator, part(shares)],
            n_classes: classes,
            classes: Vec::new(),
            draws: None,
            noise,
            alpha: setup.hyper.real("alpha"),
        })
    }

    /// Generates as many features as asked for; returns them with their classes, nothing while there is no generator.
    fn generate(&mut self, count: usize, device: &Device) -> Option<(Tensor<2>, Tensor<2>)> {
        let draws = self.draws.as_mut().filter(|_| !self.classes.is_empty())?;
        let classes: Vec<usize> = draws
            .below(self.classes.len(), count)
            .into_iter()
            .map(|at| self.classes[at])
            .collect();
        let noise = TensorData::new(draws.unit(count * self.noise), [count, self.noise]);
        let targets = one_hot(&classes, self.n_classes, device);
        let generator = &self.parts[GENERATOR];
        let input = Tensor::cat(vec![Tensor::from_data(noise, device), targets.clone()], 1);
        Some((generator.net.forward(&generator.weights, input), targets))
    }
}

impl Algorithm for FedGen {
    fn parts(&self) -> &[Part] {
        &self.parts
    }

    fn parts_mut(&mut self) -> &mut [Part] {
        &mut self.parts
    }

    fn begin_round(&mut self, ctx: &RoundContext<'_>) {
        // Until a mean came in, the shares are the node's own, and nobody has taught the generator.
        let numbers =
            |weights: &Weights| weights.tensors().map(weights::values).collect::<Vec<_>>();
        self.classes.clear();
        self.draws = Some(ctx.draws());
        if numbers(&self.parts[GENERATOR].weights) == numbers(&self.untaught) {
            return;
        }
        let shares = weights::values(&self.parts[SHARES].weights.tensor(0));
        self.classes = (0..shares.len())
            .filter(|class| shares[*class] > 0.0)
            .collect();
    }

    fn step(&mut self, _stage: Stage, batch: Batch, ctx: &mut StepContext<'_>) -> Step {
        let generated = self.generate(batch.inputs.dims()[0], &batch.inputs.device());
        let tape = ctx.record_only(&self.parts, &[BASE, HEAD]);
        let (_, logits) = whole::run(&self.parts, &tape, batch.inputs);
        let fit = cross_entropy(logits, batch.targets);
        let loss = match generated {
            Some((features, targets)) => {
                let logits = self.parts[HEAD].net.forward(&tape[HEAD], features);
                fit + cross_entropy(logits, targets).mul_scalar(self.alpha)
            }
            None => fit,
        };
        Step {
            loss: ctx.step(&mut self.parts, tape, loss),
            routed: Vec::new(),
        }
    }

    fn end_round(&mut self, ctx: &RoundContext<'_>) {
        let total = ctx.class_counts.iter().sum::<u32>().max(1);
        let share = |count: &u32| (f64::from(*count) / f64::from(total)) as f32;
        let shares: Vec<f32> = ctx.class_counts.iter().map(share).collect();
        let shares = TensorData::new(shares, [self.n_classes]);
        let device = self.parts[SHARES].weights.tensor(0).device();
        self.parts[SHARES].weights = Weights::new(vec![Tensor::from_data(shares, &device)]);
    }

    fn extractor(&self) -> Option<Extractor<'_>> {
        Some(Extractor::of(&self.parts[BASE]))
    }

    fn forward(&self, inputs: Tensor<2>) -> Output {
        whole::forward(&self.parts, inputs)
    }

    fn emit(&self, graph: &mut Graph, inputs: Value) -> Value {
        whole::emit(&self.parts, graph, inputs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::testing::{Driven, assert_close, batch, build, numbers, setup};
    use crate::weights::values;

    /// Without a generator a step is FedAvg's. With one of zeros, every generated feature is 0 and the head's answer
    /// its bias: the loss grows by alpha times the cross-entropy of the bias, which all of class 0 here make exact.
    #[test]
    fn heads_also_learn_from_generated_features() {
        let mut node = setup("fedgen", &[("alpha", 2.0)], |setup| {
            FedGen::new(setup).unwrap()
        });
        let mut average = build("fedavg", &[]);
        node.begin_with(1, &[3, 1]);
        assert_eq!(node.train(0, batch()), average.train(0, batch()));
        node.end_with(1, &[3, 1]);
        assert_close(
            &values(&node.parts[SHARES].weights.tensor(0)),
            &[0.75, 0.25],
            0.0,
        );
        node.begin(2);
        assert!(
            node.generate(1, &Device::flex()).is_none(),
            "no mean came: nobody has taught the generator"
        );

        let generator = &mut node.parts[GENERATOR].weights;
        *generator = Weights::new(
            generator
                .tensors()
                .map(|tensor| tensor.clone().mul_scalar(0.0))
                .collect(),
        );
        let only_first = Tensor::from_floats([0.5, 0.0], &Device::flex());
        node.parts[SHARES].weights = Weights::new(vec![only_first]);
        node.begin(2);
        let bias = numbers(&node, "head.bias");
        let expected = 2.0 * (1.0 + f64::from(bias[1] - bias[0]).exp()).ln();
        let more = node.train(0, batch()).loss - average.train(0, batch()).loss;
        assert!((more - expected).abs() < 1e-6, "{more} is not {expected}");
    }

    #[test]
    fn generated_features_are_seeded_and_of_known_classes() {
        let generate = |round: u32| {
            let mut node = setup("fedgen", &[], |setup| FedGen::new(setup).unwrap());
            let shares = Tensor::from_floats([0.0, 1.0], &Device::flex());
            node.parts[SHARES].weights = Weights::new(vec![shares]);
            let generator = &mut node.parts[GENERATOR].weights;
            *generator = Weights::new(
                generator
                    .tensors()
                    .map(|tensor| tensor.clone().mul_scalar(0.5))
                    .collect(),
            );
            node.begin(round);
            let (features, targets) = node.generate(3, &Device::flex()).unwrap();
            assert_eq!(values(&targets), [0.0, 1.0, 0.0, 1.0, 0.0, 1.0]);
            values(&features)
        };
        assert_eq!(generate(5), generate(5));
        assert_ne!(generate(5), generate(6));
    }
}
