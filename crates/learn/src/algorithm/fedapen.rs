//! FedAPEN: Qin et al., "FedAPEN: Personalized Cross-silo Federated Learning with Adaptability to Statistical
//! Heterogeneity", KDD 2023.
//!
//! ```text
//! p: the node's own model    q: the shared model    e = w * p + (1 - w) * q, of logits
//! first   w -= rate * dCE(e, y)/dw, clipped to [0, 1]      on a twentieth of the samples, which nothing else learns from
//! then    L = CE(p, y) + KL(q -> p) + CE(q, y) + KL(p -> q) + CE(e, y)        on the others, w being a constant
//! ```
//!
//! `KL(t -> s)` is `sum_c t_c (log t_c - log s_c)`, a mean over the samples, and its t a constant. The authors' code adds
//! CE(e, y) to the loss of either model, with the other one a constant: the gradients are those of the one term here,
//! the loss that is reported counts it once. The weight w starts at one half and goes on from round to round, as in that
//! code; with its rate of 0.001 it moves little; `training.momentum`, `weight_decay` and `clip_norm` shape its steps, too. The ensemble e predicts. Averages are uniform; there is no decay of the
//! learning rate, which the code multiplies by 0.99 every round.
//!
//! A node with fewer than 20 samples has none for w, which stays at one half.

use burn::tensor::Tensor;
use fednode_core::{Averaging, Exchange, Weighting};
use fednode_onnx::{Graph, Value};

use super::companion::{self, SMALL_MODEL};
use super::distances::divergence;
use super::hyper::{AGGREGATION, Hyper, Kind};
use super::part::{Part, Role, plain};
use super::whole::{self, BASE, HEAD, output};
use super::{
    Algorithm, Extractor, Fraction, Loss, Optimizers, Output, RoundContext, Row, Selection, Setup,
    Stage, Step, StepContext,
};
use crate::batch::Batch;
use crate::error::LearnError;
use crate::model::{Initial, Net};
use crate::optimizer::StepRule;
use crate::train::cross_entropy;
use crate::weights::{self, Weights};

pub(super) const ROW: Row = Row {
    name: "fedapen",
    summary: "a model of one's own and a shared one that teach each other and predict together, by a learned weight",
    reference: "Qin et al., KDD 2023",
    averages: "a small model",
    peer_to_peer: "nothing",
    keeps_private: "the node's own model and its weight in the ensemble",
    trains_ahead: false,
    optimizers: Optimizers::Any,
    hyper: &[
        SMALL_MODEL,
        Hyper {
            name: "weight_passes",
            kind: Kind::Integer {
                min: 0,
                max: 10_000,
            },
            default: "10",
            doc: "passes of a local update in which the weight of the ensemble learns, before the models do",
        },
        Hyper {
            name: "weight_rate",
            kind: Kind::Real { min: 0.0, max: 1e3 },
            default: "0.001",
            doc: "step size of the weight of the ensemble",
        },
        AGGREGATION,
    ],
    profiles: &[],
    exchange: |values| Exchange {
        averaging: Some(Averaging {
            weighting: Weighting::Uniform,
            rule: values.rule(),
        }),
        experts: None,
        everybody_first: false,
        prepares: false,
        total: None,
    },
    build: |setup| FedApen::new(setup).map(|algorithm| Box::new(algorithm) as Box<dyn Algorithm>),
};

/// Where the shared model begins.
const SMALL: usize = 2;
/// w, one number.
const WEIGHT: usize = 4;

/// The pass in which w learns.
const WEIGHING: usize = 0;

struct FedApen {
    parts: [Part; 5],
    weight_passes: u32,
    weight_rate: f64,
}

impl FedApen {
    fn new(setup: &Setup<'_>) -> Result<Self, LearnError> {
        let [base, head] = whole::halves(setup, Role::Private)?;
        let [small_base, small_head] = companion::halves(setup)?;
        let net = Net::arrays(&[("ensemble_weight", &[1], Initial::Zeros)]);
        let mut weight = Part::new(Role::Private, net, setup.seed, 0, setup.device);
        weight.weights = Weights::new(vec![Tensor::full([1], 0.5, setup.device)]);
        let (weight_passes, weight_rate) = (
            setup.hyper.count("weight_passes"),
            setup.hyper.real("weight_rate"),
        );
        let parts = [base, head, small_base, small_head, weight];
        Ok(Self {
            parts,
            weight_passes,
            weight_rate,
        })
    }

    /// Returns the logits of the own and of the shared model.
    fn run(&self, weights: &[Weights], inputs: Tensor<2>) -> [Tensor<2>; 2] {
        let (_, own) = whole::run(&self.parts, weights, inputs.clone());
        let (_, shared) = whole::run(&self.parts[SMALL..], &weights[SMALL..], inputs);
        [own, shared]
    }

    fn weigh(&mut self, batch: Batch, ctx: &mut StepContext<'_>) -> Loss {
        let tape = ctx.record_only(&self.parts, &[WEIGHT]);
        let [own, shared] = self.run(&tape, batch.inputs);
        let loss = cross_entropy(
            ensemble(&own, &shared, tape[WEIGHT].tensor(0)),
            batch.targets,
        );
        let loss = ctx.step(&mut self.parts, tape, loss);
        let weight = &mut self.parts[WEIGHT].weights;
        *weight = Weights::new(vec![weight.tensor(0).clamp(0.0, 1.0)]);
        loss
    }

    fn teach(&mut self, batch: Batch, ctx: &mut StepContext<'_>) -> Loss {
        let tape = ctx.record_only(&self.parts, &[BASE, HEAD, SMALL + BASE, SMALL + HEAD]);
        let [own, shared] = self.run(&tape, batch.inputs);
        let loss = mutual(own, shared, tape[WEIGHT].tensor(0), batch.targets);
        ctx.step(&mut self.parts, tape, loss)
    }
}

/// Returns e.
fn ensemble(own: &Tensor<2>, shared: &Tensor<2>, weight: Tensor<1>) -> Tensor<2> {
    shared.clone() + (own.clone() - shared.clone()) * weight.unsqueeze()
}

/// Returns L.
fn mutual(own: Tensor<2>, shared: Tensor<2>, weight: Tensor<1>, targets: Tensor<2>) -> Tensor<1> {
    let together = cross_entropy(ensemble(&own, &shared, weight), targets.clone());
    let taught = |student: &Tensor<2>, teacher: &Tensor<2>| {
        let labels = cross_entropy(student.clone(), targets.clone());
        labels + divergence(student.clone(), teacher.clone().without_autodiff())
    };
    taught(&own, &shared) + taught(&shared, &own) + together
}

impl Algorithm for FedApen {
    fn parts(&self) -> &[Part] {
        &self.parts
    }

    fn parts_mut(&mut self) -> &mut [Part] {
        &mut self.parts
    }

    fn passes(&self, ctx: &RoundContext<'_>) -> Vec<u32> {
        vec![self.weight_passes, ctx.training.local_epochs]
    }

    fn selection(&self, stage: Stage) -> Selection {
        let fraction = match stage {
            Stage::Pass(WEIGHING) => Fraction::new(0, 1, 20),
            _ => Fraction::new(1, 20, 20),
        };
        Selection {
            fraction,
            ..Selection::ALL
        }
    }

    fn step_rule(&self, stage: Stage) -> StepRule {
        match stage {
            Stage::Pass(WEIGHING) => StepRule::At(self.weight_rate),
            _ => StepRule::Federation,
        }
    }

    fn step(&mut self, stage: Stage, batch: Batch, ctx: &mut StepContext<'_>) -> Step {
        let loss = if stage == Stage::Pass(WEIGHING) {
            self.weigh(batch, ctx)
        } else {
            self.teach(batch, ctx)
        };
        Step {
            loss,
            routed: Vec::new(),
        }
    }

    fn extractor(&self) -> Option<Extractor<'_>> {
        Some(Extractor::of(&self.parts[SMALL + BASE]))
    }

    fn forward(&self, inputs: Tensor<2>) -> Output {
        let [own, shared] = self.run(&plain(&self.parts), inputs);
        output(ensemble(
            &own,
            &shared,
            self.parts[WEIGHT].weights.tensor(0),
        ))
    }

    fn emit(&self, graph: &mut Graph, inputs: Value) -> Value {
        let own = whole::emit(&self.parts, graph, inputs);
        let shared = whole::emit(&self.parts[SMALL..], graph, inputs);
        let weight = weights::values(&self.parts[WEIGHT].weights.tensor(0));
        let weight = graph.floats("ensemble_weight", weight, &[1]);
        let difference = graph.sub(own, shared);
        let step = graph.mul(difference, weight);
        graph.add(shared, step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::testing::{Driven, assert_close, batch, build, matrix, numbers};
    use crate::weights::values;

    /// Own (0, 0), shared (ln 3, 0), w = 1/2, label 0: CE 0.693 147 and 0.287 682, KL 0.130 812 and 0.143 841. The
    /// ensemble's odds are sqrt 3, so CE ln(1 + 1/sqrt 3) = 0.455 747. Gradients in the first logits: own -1/2 - 1/4
    /// and half the ensemble's -0.366 025; shared -1/4 + 1/4 and the same half.
    #[test]
    fn the_mutual_loss_agrees_with_a_worked_example() {
        let own = matrix([[0.0, 0.0]]).autodiff().require_grad();
        let shared = matrix([[3f32.ln(), 0.0]]).autodiff().require_grad();
        let weight = Tensor::from_floats([0.5], &burn::tensor::Device::flex());
        let loss = mutual(own.clone(), shared.clone(), weight, matrix([[1.0, 0.0]]));
        assert_close(&values(&loss), &[1.711_229], 1e-5);
        let gradients = loss.backward();
        assert_close(
            &values(&own.grad(&gradients).unwrap()),
            &[-0.933_013, 0.933_013],
            1e-5,
        );
        assert_close(
            &values(&shared.grad(&gradients).unwrap()),
            &[-0.183_013, 0.183_013],
            1e-5,
        );
    }

    #[test]
    fn the_weight_learns_first_and_alone_and_stays_between_zero_and_one() {
        let mut apen = build("fedapen", &[("weight_rate", 1.0)]);
        assert_eq!(numbers(apen.as_ref(), "ensemble_weight"), [0.5]);
        let models = |apen: &dyn Algorithm| [numbers(apen, "fc"), numbers(apen, "small.")];
        let before = models(apen.as_ref());
        apen.train(WEIGHING, batch());
        let weight = numbers(apen.as_ref(), "ensemble_weight");
        assert_ne!(weight, [0.5]);
        assert_eq!(models(apen.as_ref()), before);
        apen.train(1, batch());
        assert_eq!(numbers(apen.as_ref(), "ensemble_weight"), weight);
        let after = models(apen.as_ref());
        assert!(after[0] != before[0] && after[1] != before[1]);
        let mut far = build("fedapen", &[("weight_rate", 1000.0)]);
        for _ in 0..3 {
            far.train(WEIGHING, batch());
            let weight = numbers(far.as_ref(), "ensemble_weight")[0];
            assert!((0.0..=1.0).contains(&weight), "{weight}");
        }
    }
}
