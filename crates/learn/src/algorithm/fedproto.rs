//! FedProto: Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022, Algorithm 1.
//!
//! ```text
//! r = base(x)    P_c: mean over the nodes that have class c of their means of r over class c
//! L = CE(head(r), y) + lambda * mean_{batch, d} (r_d - P_y,d)^2       a class without P_c adds nothing
//! prediction: the class whose P_c is nearest to r
//! ```
//!
//! Nothing but prototypes is shared, so nodes may have different models with features of one width. A node's prototypes
//! come from one more pass over its samples when training is done, as the paper's Eq. 3 reads. That pass trains
//! nothing, counts among the update's steps and reports the loss of the trained model. PFLlib takes the features from
//! under way. The mean over nodes is unweighted as in both codes, where the paper's Eq. 6 has the class's share of
//! samples as well.
//!
//! The authors' momentum of 0.5 is `training.momentum`, 0 by default. Lambda is 1, the authors' default (the author of
//! PFLlib recommends 10 with this mean). Inference by nearest prototype is PFLlib's; `inference=head` takes the node's own head, which is trained either way. While no prototype is
//! known, before the first round, there is nothing to be near to, and the head decides.

use burn::tensor::Tensor;
use fednode_core::{Averaging, Exchange, Rule, Weighting};
use fednode_onnx::{Graph, Value};

use super::class_means::{self, Gathered, Known};
use super::hyper::{Hyper, Kind};
use super::part::{Part, Role, plain};
use super::whole::{self, BASE, HEAD};
use super::{
    Algorithm, Loss, Optimizers, Output, RoundContext, Row, Setup, Stage, Step, StepContext,
};
use crate::batch::Batch;
use crate::error::LearnError;
use crate::train::cross_entropy;

pub(super) const ROW: Row = Row {
    name: "fedproto",
    summary: "a model of one's own whose features are drawn to everyone's class prototypes",
    reference: "Tan et al., AAAI 2022, arXiv 2105.00243",
    averages: "the mean feature of each class, over the nodes that have the class",
    peer_to_peer: "nothing",
    keeps_private: "the whole model",
    trains_ahead: false,
    optimizers: Optimizers::Any,
    hyper: &[
        Hyper {
            name: "lambda",
            kind: Kind::Real { min: 0.0, max: 1e6 },
            default: "1",
            doc: "weight of the mean squared distance between features and the prototypes of their classes",
        },
        Hyper {
            name: "inference",
            kind: Kind::Choice(&["prototypes", "head"]),
            default: "prototypes",
            doc: "what predicts: the nearest prototype, or the node's own head",
        },
    ],
    profiles: &[],
    exchange: |_| Exchange {
        averaging: Some(Averaging {
            weighting: Weighting::Uniform,
            rule: Rule::default(),
        }),
        experts: None,
        everybody_first: false,
        prepares: false,
        total: None,
    },
    build: |setup| FedProto::new(setup).map(|algorithm| Box::new(algorithm) as Box<dyn Algorithm>),
};

const PROTOTYPES: usize = 2;

/// The pass that gathers features after those that train.
const GATHERING: usize = 1;

struct FedProto {
    parts: [Part; 3],
    /// Everyone's prototypes as this round found them.
    known: Option<Known>,
    gathered: Gathered,
    lambda: f64,
    by_prototype: bool,
}

impl FedProto {
    fn new(setup: &Setup<'_>) -> Result<Self, LearnError> {
        let [base, head] = whole::halves(setup, Role::Private)?;
        let prototypes = class_means::part(
            setup,
            ["prototypes", "prototypes_present"],
            base.net.n_outputs(),
        );
        Ok(Self {
            parts: [base, head, prototypes],
            known: None,
            gathered: Gathered::default(),
            lambda: setup.hyper.real("lambda"),
            by_prototype: setup.hyper.text("inference") == "prototypes",
        })
    }
}

impl Algorithm for FedProto {
    fn parts(&self) -> &[Part] {
        &self.parts
    }

    fn parts_mut(&mut self) -> &mut [Part] {
        &mut self.parts
    }

    fn passes(&self, ctx: &RoundContext<'_>) -> Vec<u32> {
        vec![ctx.training.local_epochs, 1]
    }

    fn begin_round(&mut self, _ctx: &RoundContext<'_>) {
        self.known = Known::of(&self.parts[PROTOTYPES].weights);
        self.gathered = Gathered::default();
    }

    fn looks_only(&self, stage: Stage) -> bool {
        stage == Stage::Pass(GATHERING)
    }

    fn step(&mut self, stage: Stage, batch: Batch, ctx: &mut StepContext<'_>) -> Step {
        let loss = if stage == Stage::Pass(GATHERING) {
            let (features, logits) = whole::run(&self.parts, &plain(&self.parts), batch.inputs);
            self.gathered.add(features, batch.targets.clone());
            Loss::of(&cross_entropy(logits, batch.targets))
        } else {
            let tape = ctx.record_only(&self.parts, &[BASE, HEAD]);
            let (features, logits) = whole::run(&self.parts, &tape, batch.inputs);
            let fit = cross_entropy(logits, batch.targets.clone());
            let loss = match &self.known {
                Some(known) => {
                    fit + known
                        .distance(features, batch.targets)
                        .mul_scalar(self.lambda)
                }
                None => fit,
            };
            ctx.step(&mut self.parts, tape, loss)
        };
        Step {
            loss,
            routed: Vec::new(),
        }
    }

    fn end_round(&mut self, _ctx: &RoundContext<'_>) {
        if let Some(prototypes) = self.gathered.take() {
            self.parts[PROTOTYPES].weights = prototypes;
        }
    }

    fn forward(&self, inputs: Tensor<2>) -> Output {
        let known = self
            .by_prototype
            .then(|| Known::of(&self.parts[PROTOTYPES].weights))
            .flatten();
        match known {
            Some(known) => whole::output(known.nearest(whole::features(&self.parts, inputs))),
            None => whole::forward(&self.parts, inputs),
        }
    }

    fn emit(&self, graph: &mut Graph, inputs: Value) -> Value {
        let known = self
            .by_prototype
            .then(|| Known::of(&self.parts[PROTOTYPES].weights))
            .flatten();
        match known {
            Some(known) => {
                let features = self.parts[BASE].emit(graph, inputs);
                known.emit_nearest(graph, features)
            }
            None => whole::emit(&self.parts, graph, inputs),
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::algorithm::testing::{Driven, batch, build, numbers};
    use crate::weights::{Weights, values};

    /// Prototypes of zeros for both classes: the term is lambda times the mean square of the features.
    #[test]
    fn the_loss_is_drawn_to_the_prototypes_that_came_in() {
        let (mut proto, mut alone) = (build("fedproto", &[("lambda", 3.0)]), build("local", &[]));
        proto.begin(1);
        assert_eq!(
            proto.train(0, batch()),
            alone.train(0, batch()),
            "nothing came in yet"
        );
        let logits = |algorithm: &dyn Algorithm| values(&algorithm.forward(batch().inputs).logits);
        assert_eq!(
            logits(proto.as_ref()),
            logits(alone.as_ref()),
            "the head decides while nothing is known"
        );
        assert_eq!(numbers(proto.as_ref(), "fc"), numbers(alone.as_ref(), ""));

        let device = Device::flex();
        proto.parts_mut()[PROTOTYPES].weights = Weights::new(vec![
            Tensor::zeros([400], &device),
            Tensor::full([2], 0.5, &device),
        ]);
        let base = &proto.parts()[BASE];
        let features = values(&base.net.forward(&base.weights, batch().inputs));
        let mean_square = features
            .iter()
            .map(|value| f64::from(value * value))
            .sum::<f64>()
            / 400.0;
        proto.begin(2);
        let pull = proto.train(0, batch()).loss - alone.train(0, batch()).loss;
        assert!(
            (pull - 3.0 * mean_square).abs() < 1e-6,
            "{pull} is not 3 times {mean_square}"
        );
    }

    #[test]
    fn predicts_by_the_nearest_of_the_means_of_the_trained_features() {
        let mut proto = build("fedproto", &[]);
        proto.begin(1);
        proto.train(0, batch());
        proto.train(GATHERING, batch());
        proto.end();
        // One sample of each class: the prototypes are their features, and each sample is nearest to its own.
        let base = &proto.parts()[BASE];
        let features = base.net.forward(&base.weights, batch().inputs);
        assert_eq!(
            values(&proto.parts()[PROTOTYPES].weights.tensor(0)),
            values(&features)
        );
        let logits = values(&proto.forward(batch().inputs).logits);
        assert!(logits[0] > logits[1] && logits[3] > logits[2], "{logits:?}");
    }
}
