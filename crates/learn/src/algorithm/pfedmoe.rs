//! pFedMoE: Yi et al., "pFedMoE: Data-Level Personalization with Mixture of Experts for Model-Heterogeneous Personalized
//! Federated Learning", arXiv 2402.01350, Eq. 3 to 9.
//!
//! ```text
//! R_G = G(x; theta)          the small extractor, averaged over all nodes, weighted by samples
//! R_F = F(x; omega)          the extractor of the node's own model, of any architecture
//! (a_G, a_F) = H(x; phi)     the node's own gate on the raw sample, see `switch_gate`; a_G + a_F = 1
//! y = head(a_G * R_G + a_F * R_F; omega)
//! ```
//!
//! One loss, the cross-entropy, trains all of it in one step with one step size (Eq. 8). Eq. 9 weighs by samples over
//! those of all nodes, whether they take part or not, which would shrink theta; here as everywhere over those that do.
//!
//! Both extractors must make features of one width, as the members of the family `cnn-1` to `cnn-5` do. Profile
//! `homogeneous` shares an extractor like the node's own, as in the same authors' FedMRL (the paper does not say which);
//! profile `heterogeneous` shares that of `cnn-5`, and nodes may have different models. The gate's width is not in the
//! paper: 64 here; 128 suits 3x32x32. The steps are plain gradient descent. The authors' other code has momentum 0.9,
//! weight decay 0.001 and clips gradients at 50 (`training.momentum`, `weight_decay`, `clip_norm`). It also erases
//! random parts of images, which is not among the augmentations here. Evaluation goes through the gate, with its
//! running statistics.

use burn::tensor::Tensor;
use fednode_core::ConfigError;
use fednode_onnx::{Graph, Value};

use super::companion::{self, SMALL_MODEL};
use super::hyper::{AGGREGATION, Hyper, Kind, Profile};
use super::part::{Part, Role, plain};
use super::switch_gate::{self, Mode};
use super::whole::{self, BASE, HEAD, output};
use super::{
    Algorithm, Extractor, Optimizers, Output, Row, Setup, Stage, Step, StepContext, averaged,
};
use crate::batch::Batch;
use crate::error::LearnError;
use crate::gate::emit_mix;
use crate::train::cross_entropy;
use crate::weights::Weights;

pub(super) const ROW: Row = Row {
    name: "pfedmoe",
    summary: "a gate per node mixes the features of a shared small extractor with those of the node's own model",
    reference: "Yi et al., 2024, arXiv 2402.01350",
    averages: "a small extractor",
    peer_to_peer: "nothing",
    keeps_private: "the node's own model and the gate",
    trains_ahead: true,
    optimizers: Optimizers::Any,
    hyper: &[
        SMALL_MODEL,
        Hyper {
            name: "gate_width",
            kind: Kind::Integer { min: 1, max: 4096 },
            default: "64",
            doc: "m: units of the gate's hidden layer; the paper does not say, and 128 suits 3x32x32",
        },
        AGGREGATION,
    ],
    profiles: &[
        Profile {
            name: "homogeneous",
            sets: &[],
        },
        Profile {
            name: "heterogeneous",
            sets: &[("small_model", "cnn-5")],
        },
    ],
    exchange: averaged,
    build: |setup| PFedMoe::new(setup).map(|algorithm| Box::new(algorithm) as Box<dyn Algorithm>),
};

const SMALL: usize = 2;
const GATE: usize = 3;
const LAST: usize = GATE + switch_gate::N_PARTS;
const TRAINED: [usize; 6] = [BASE, HEAD, SMALL, GATE, GATE + 1, GATE + 2];
const _: () = assert!(
    TRAINED.len() == GATE + switch_gate::N_TRAINED,
    "the gate's statistics are not trained"
);

struct PFedMoe {
    parts: [Part; LAST],
}

impl PFedMoe {
    fn new(setup: &Setup<'_>) -> Result<Self, LearnError> {
        crate::model::refuse_texts(setup.model, "pfedmoe")?;
        let [base, head] = whole::halves(setup, Role::Private)?;
        let [small, _] = companion::halves(setup)?;
        let widths = [base.net.n_outputs(), small.net.n_outputs()];
        if widths[0] != widths[1] {
            let text = format!(
                "`pfedmoe` mixes features of one width, but those of `{}` are {} and those of `hyper.small_model` {}",
                setup.model.name, widths[0], widths[1]
            );
            return Err(LearnError::Config(ConfigError(text)));
        }
        let inputs = setup.model.input.iter().product();
        let [a, b, c, d] =
            switch_gate::parts(setup, inputs, setup.hyper.count("gate_width") as usize);
        Ok(Self {
            parts: [base, head, small, a, b, c, d],
        })
    }

    /// Returns logits, and the gate's statistics after this batch.
    fn run(&self, weights: &[Weights], inputs: Tensor<2>, mode: Mode) -> (Tensor<2>, Weights) {
        let net = |part: usize, features| self.parts[part].net.forward(&weights[part], features);
        let (shares, statistics) =
            switch_gate::shares(&self.parts[GATE..], &weights[GATE..], inputs.clone(), mode);
        let mixed = net(SMALL, inputs.clone()) * shares.clone().narrow(1, 0, 1)
            + net(BASE, inputs) * shares.narrow(1, 1, 1);
        (net(HEAD, mixed), statistics)
    }
}

impl Algorithm for PFedMoe {
    fn parts(&self) -> &[Part] {
        &self.parts
    }

    fn parts_mut(&mut self) -> &mut [Part] {
        &mut self.parts
    }

    fn step(&mut self, _stage: Stage, batch: Batch, ctx: &mut StepContext<'_>) -> Step {
        let tape = ctx.record_only(&self.parts, &TRAINED);
        let (logits, statistics) = self.run(&tape, batch.inputs, Mode::Training);
        let fit = cross_entropy(logits, batch.targets);
        let loss = ctx.step(&mut self.parts, tape, fit);
        switch_gate::keep(&mut self.parts[GATE..], statistics);
        Step {
            loss,
            routed: Vec::new(),
        }
    }

    fn extractor(&self) -> Option<Extractor<'_>> {
        Some(Extractor::of(&self.parts[SMALL]))
    }

    fn forward(&self, inputs: Tensor<2>) -> Output {
        output(self.run(&plain(&self.parts), inputs, Mode::Inference).0)
    }

    fn emit(&self, graph: &mut Graph, inputs: Value) -> Value {
        let shares = switch_gate::emit_shares(&self.parts[GATE..], graph, inputs);
        let features = [SMALL, BASE].map(|part| self.parts[part].emit(graph, inputs));
        let mixed = emit_mix(graph, shares, &features);
        self.parts[HEAD].emit(graph, mixed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::testing::{Driven, assert_close, batch, build, matrix, numbers, setup};
    use crate::weights::values;

    /// A gate whose last layer is zero gives both extractors one half: the logits are those of the head on the mean of
    /// both features.
    #[test]
    fn mixes_features_by_the_gate() {
        let mut moe = setup("pfedmoe", &[], |setup| PFedMoe::new(setup).unwrap());
        let second = &mut moe.parts[GATE + 2].weights;
        *second = Weights::new(
            second
                .tensors()
                .map(|tensor| tensor.clone().mul_scalar(0.0))
                .collect(),
        );
        let net = |part: usize, input| moe.parts[part].net.forward(&moe.parts[part].weights, input);
        let (small, own) = (net(SMALL, batch().inputs), net(BASE, batch().inputs));
        assert_ne!(
            values(&small),
            values(&own),
            "extractors of one architecture start apart"
        );
        let expected = net(HEAD, (small + own).mul_scalar(0.5));
        assert_close(
            &values(&moe.forward(batch().inputs).logits),
            &values(&expected),
            1e-6,
        );
    }

    /// With four samples, for of two the last normalisation makes -1 and 1 whatever the scores are.
    #[test]
    fn one_step_trains_all_of_it() {
        let mut moe = build("pfedmoe", &[]);
        let four = || Batch {
            inputs: Tensor::cat(
                vec![
                    batch().inputs,
                    matrix([[0.4, 0.9, 0.1, 0.8], [0.2, 0.0, 0.6, 0.3]]),
                ],
                0,
            ),
            targets: Tensor::cat(vec![batch().targets, batch().targets], 0),
        };
        let gate = [
            "gate.norm.mean_weight",
            "gate.norm.running_mean",
            "gate.fc1",
            "gate.fc2",
        ];
        let names = [&["fc1", "fc.", "small.fc1"], &gate[..]].concat();
        let before: Vec<_> = names
            .iter()
            .map(|name| numbers(moe.as_ref(), name))
            .collect();
        let losses: Vec<f64> = (0..30).map(|_| moe.train(0, four()).loss).collect();
        assert!(losses[29] < losses[0], "{losses:?}");
        for (name, before) in names.iter().zip(before) {
            assert_ne!(numbers(moe.as_ref(), name), before, "{name}");
        }
    }

    #[test]
    fn refuses_extractors_of_different_widths() {
        let row = crate::algorithm::find("pfedmoe").unwrap();
        let heterogeneous = fednode_core::HyperValue::Text("heterogeneous".into());
        let hyper = row
            .values(&[("profile".to_owned(), heterogeneous)].into())
            .unwrap();
        let built = |name: &str| {
            setup("pfedmoe", &[], |setup| {
                let model = fednode_core::spec::Architecture {
                    name: name.into(),
                    input: [1, 8, 8],
                    ..setup.model.clone()
                };
                PFedMoe::new(&Setup {
                    model: &model,
                    hyper: &hyper,
                    ..*setup
                })
                .map(|moe| moe.parts.len())
            })
        };
        assert_eq!(built("cnn-3").unwrap(), LAST);
        let error = built("mlp").unwrap_err().to_string();
        assert!(
            error.contains("those of `mlp` are 200 and those of `hyper.small_model` 500"),
            "{error}"
        );
    }
}
