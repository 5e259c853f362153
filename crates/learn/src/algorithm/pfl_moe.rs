//! PFL-MoE: Guo et al., "PFL-MoE: Personalized Federated Learning Based on Mixture of Experts", APWeb-WAIM 2021,
//! Algorithms 1 and 2. Three rows: PFL-FB, its baseline, and the mixtures PFL-MF and PFL-MFE.
//!
//! ```text
//! rounds    FedAvg of the whole model theta = (E, C), extractor and classifier (all fully connected layers)
//! stage 2   C_i starts as C; CE(C_i(a), y) with a = E(x); C_i alone learns                                 pfl-fb ends here
//! stage 3   g = sigmoid(w . v + b)    v = x (pfl-mf) or a (pfl-mfe)
//!           y = g * C(a) + (1 - g) * C_i(a); CE(y, label); w and b alone learn                logits are mixed, not probabilities
//! ```
//!
//! Stages 2 and 3 are passes after the last round: no network, no other node. What is frozen gets no gradient, and every
//! sample passes it once per stage. Profile `paper-code`, the default, is what the authors' code does. The gate learns
//! on the first quarter of the node's samples, in a random order drawn once, the classifier on the rest. Each has 200
//! epochs and batches of 64. One stage comes after the other, where the paper alternates. The classifier has stochastic
//! gradient descent with momentum 0.9 (rate 0.001 for LeNet-5; 0.005 for VGG-16, to be set). The gate has Adam, where
//! the paper writes plain descent, and a fresh start. Both have weight decay 0.0005. Profile `sound` trains pfl-fb,
//! which needs no samples for a gate, on all samples; for the mixtures it is the same. In both the last epoch counts
//! and the last round's model is taken, where the code took the best of 1000 rounds on the test set.
//!
//! Averages are uniform, as in the code. The code's momentum of 0.5 in stage 1 is `training.momentum`, 0 by default; its
//! pixels are scaled by mean 0.1307 and deviation 0.3081, here as everywhere by 0.5 and 0.5. The code's random crops and flips are `training.augmentation=crop-flip`, for all
//! stages; every epoch then passes through what is frozen. Not here: the code's scaling of 28x28 to 32x32 (so the gate of
//! pfl-mf has 785 numbers there, not 1025), and dropout in VGG-16's classifier, which stays active in the code while the
//! gate learns. Before stage 2 predictions are theta's.

use burn::tensor::Tensor;
use fednode_core::{Averaging, Exchange, ParamSet, Weighting};
use fednode_onnx::{Graph, Value};
use serde::{Deserialize, Serialize};

use super::hyper::{AGGREGATION, Hyper, Kind, PLAIN_MEAN, Profile};
use super::part::{Part, Role, plain};
use super::sigmoid_gate::{emit_mixed, gate, mixed};
use super::whole::output;
use super::{
    Algorithm, Extractor, Fraction, Optimizers, Output, RoundContext, Row, Selection, Setup, Stage,
    Step, StepContext, Values,
};
use crate::batch::Batch;
use crate::error::LearnError;
use crate::memory::Memory;
use crate::model::{self, Cut};
use crate::optimizer::{Method, Rate, StepRule};
use crate::train::cross_entropy;
use crate::weights::Weights;

pub(super) const FB: Row = Row {
    name: "pfl-fb",
    summary: "FedAvg, then every node tunes a classifier of its own under the common extractor",
    reference: "Guo et al., APWeb-WAIM 2021, arXiv 2012.15589",
    averages: "the whole model",
    peer_to_peer: "nothing",
    keeps_private: "a classifier of one's own, trained after the last round",
    trains_ahead: false,
    optimizers: Optimizers::Any,
    hyper: &[
        PERSONAL_EPOCHS,
        PERSONAL_RATE,
        MOMENTUM,
        WEIGHT_DECAY,
        BATCH_SIZE,
        SAMPLES,
        AGGREGATION,
    ],
    profiles: &[
        Profile {
            name: "paper-code",
            sets: &[PLAIN_MEAN],
        },
        Profile {
            name: "sound",
            sets: &[("personal_samples", "all")],
        },
    ],
    exchange,
    build: |setup| {
        PflMoe::new(setup, None).map(|algorithm| Box::new(algorithm) as Box<dyn Algorithm>)
    },
};

pub(super) const MF: Row = Row {
    name: "pfl-mf",
    summary: "PFL-FB, then a gate on the raw input mixes the common classifier with the node's own",
    keeps_private: "a classifier of one's own and a gate, trained after the last round",
    trains_ahead: false,
    optimizers: Optimizers::Any,
    hyper: MIXTURE_HYPER,
    profiles: MIXTURE_PROFILES,
    build: |setup| {
        PflMoe::new(setup, Some(GateInput::Samples))
            .map(|algorithm| Box::new(algorithm) as Box<dyn Algorithm>)
    },
    ..FB
};

pub(super) const MFE: Row = Row {
    name: "pfl-mfe",
    summary: "PFL-FB, then a gate on the features mixes the common classifier with the node's own",
    build: |setup| {
        PflMoe::new(setup, Some(GateInput::Features))
            .map(|algorithm| Box::new(algorithm) as Box<dyn Algorithm>)
    },
    ..MF
};

const MIXTURE_HYPER: &[Hyper] = &[
    PERSONAL_EPOCHS,
    PERSONAL_RATE,
    MOMENTUM,
    Hyper {
        name: "gate_epochs",
        kind: Kind::Integer {
            min: 0,
            max: 100_000,
        },
        default: "200",
        doc: "epochs in which the gate alone learns, after the classifier's; 0 leaves it at the classifier",
    },
    Hyper {
        name: "gate_rate",
        kind: Kind::Real {
            min: 1e-9,
            max: 1e3,
        },
        default: "0.001",
        doc: "step size of the gate",
    },
    Hyper {
        name: "gate_optimizer",
        kind: Kind::Choice(&["adam", "sgd"]),
        default: "adam",
        doc: "how the gate learns: as in the authors' code, or by the plain descent of the paper",
    },
    WEIGHT_DECAY,
    BATCH_SIZE,
    AGGREGATION,
];

const MIXTURE_PROFILES: &[Profile] = &[
    Profile {
        name: "paper-code",
        sets: &[PLAIN_MEAN],
    },
    Profile {
        name: "sound",
        sets: &[],
    },
];

const PERSONAL_EPOCHS: Hyper = Hyper {
    name: "personal_epochs",
    kind: Kind::Integer {
        min: 0,
        max: 100_000,
    },
    default: "200",
    doc: "epochs in which the node's own classifier learns, after the last round; 0 leaves everything at FedAvg",
};
const PERSONAL_RATE: Hyper = Hyper {
    name: "personal_rate",
    kind: Kind::Real {
        min: 1e-9,
        max: 1e3,
    },
    default: "0.001",
    doc: "step size of the node's own classifier",
};
const MOMENTUM: Hyper = Hyper {
    name: "personal_momentum",
    kind: Kind::Real {
        min: 0.0,
        max: 0.999,
    },
    default: "0.9",
    doc: "momentum of the node's own classifier",
};
const WEIGHT_DECAY: Hyper = Hyper {
    name: "weight_decay",
    kind: Kind::Real { min: 0.0, max: 1e3 },
    default: "0.0005",
    doc: "weight decay of classifier and gate after the last round",
};
const BATCH_SIZE: Hyper = Hyper {
    name: "finishing_batch_size",
    kind: Kind::Integer {
        min: 1,
        max: 65_536,
    },
    default: "64",
    doc: "samples per step after the last round",
};
const SAMPLES: Hyper = Hyper {
    name: "personal_samples",
    kind: Kind::Choice(&["three-quarters", "all"]),
    default: "three-quarters",
    doc: "what the node's own classifier learns from: what pfl-mf and pfl-mfe leave it, or all",
};

fn exchange(values: &Values) -> Exchange {
    Exchange {
        averaging: Some(Averaging {
            weighting: Weighting::Uniform,
            rule: values.rule(),
        }),
        experts: None,
        everybody_first: false,
        prepares: false,
        total: None,
    }
}

const EXTRACTOR: usize = 0;
const CLASSIFIER: usize = 1;
const PERSONAL: usize = 2;
/// Only in mixtures.
const GATE: usize = 3;

/// What predicts: how far the node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Predictor {
    /// The common model: no stage after the last round has begun.
    #[default]
    Common,
    /// The node's own classifier.
    Personal,
    /// The mixture.
    Mixture,
}

/// The array of states from before the predictor was remembered: 0, 1 or 2.
const RETIRED: &str = "progress";

/// What the gate judges by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GateInput {
    /// Raw samples: PFL-MF.
    Samples,
    /// What the extractor makes of them: PFL-MFE.
    Features,
}

struct PflMoe {
    parts: Vec<Part>,
    gate_input: Option<GateInput>,
    hyper: Values,
    predictor: Predictor,
    /// What the gate starts as.
    fresh_gate: Option<Weights>,
}

impl PflMoe {
    fn new(setup: &Setup<'_>, gate_input: Option<GateInput>) -> Result<Self, LearnError> {
        if gate_input == Some(GateInput::Samples) {
            model::refuse_texts(setup.model, "pfl-mf")?;
        }
        let (extractor, classifier) = model::halves(setup.model, Cut::Classifier)?;
        let part = |role, net| Part::new(role, net, setup.seed, 0, setup.device);
        let gate = gate_input.map(|input| match input {
            GateInput::Samples => gate(setup.model.input.iter().product()),
            GateInput::Features => gate(classifier.n_inputs()),
        });
        let mut personal = part(Role::Private, classifier.clone().prefixed("personal."));
        let classifier = part(Role::Shared, classifier);
        personal.weights = classifier.weights.clone();
        let mut parts = vec![part(Role::Shared, extractor), classifier, personal];
        parts.extend(gate.map(|gate| part(Role::Private, gate)));
        let fresh_gate = parts.get(GATE).map(|gate| gate.weights.clone());
        let hyper = setup.hyper.clone();
        Ok(Self {
            parts,
            gate_input,
            hyper,
            predictor: Predictor::Common,
            fresh_gate,
        })
    }

    /// Runs extractor and one of the classifiers.
    fn run(&self, weights: &[Weights], classifier: usize, inputs: Tensor<2>) -> Tensor<2> {
        let features = self.parts[EXTRACTOR]
            .net
            .forward(&weights[EXTRACTOR], inputs);
        self.parts[classifier]
            .net
            .forward(&weights[classifier], features)
    }

    /// Runs the mixture; the node's own classifier alone in PFL-FB.
    fn mix(&self, weights: &[Weights], inputs: Tensor<2>) -> Tensor<2> {
        let net = |part: usize, features| self.parts[part].net.forward(&weights[part], features);
        let features = net(EXTRACTOR, inputs.clone());
        let personal = net(PERSONAL, features.clone());
        let score = match self.gate_input {
            None => return personal,
            Some(GateInput::Samples) => net(GATE, inputs),
            Some(GateInput::Features) => net(GATE, features.clone()),
        };
        mixed(score, net(CLASSIFIER, features), personal)
    }

    /// Trains the node's own classifier (pass 0) or the gate on one batch of what is frozen.
    fn fine_tune(&mut self, pass: usize, batch: Batch, ctx: &mut StepContext<'_>) -> Step {
        let trained = if pass == 0 { PERSONAL } else { GATE };
        let tape = ctx.record_only(&self.parts, &[trained]);
        let net = &self.parts[trained].net;
        let logits = if pass == 0 {
            net.forward(&tape[PERSONAL], batch.inputs)
        } else {
            let (width, classes) = (net.n_inputs(), self.parts[CLASSIFIER].net.n_outputs());
            let columns = |from: usize, count: usize| batch.inputs.clone().narrow(1, from, count);
            let score = net.forward(&tape[GATE], columns(0, width));
            mixed(
                score,
                columns(width, classes),
                columns(width + classes, classes),
            )
        };
        let loss = cross_entropy(logits, batch.targets);
        Step {
            loss: ctx.step(&mut self.parts, tape, loss),
            routed: Vec::new(),
        }
    }
}

impl Algorithm for PflMoe {
    fn parts(&self) -> &[Part] {
        &self.parts
    }

    fn parts_mut(&mut self) -> &mut [Part] {
        &mut self.parts
    }

    fn begin_round(&mut self, _ctx: &RoundContext<'_>) {
        self.predictor = Predictor::Common;
    }

    /// The features for stage 2; for stage 3 what the gate judges by and the logits of both classifiers, side by side.
    fn frozen(&self, stage: Stage, inputs: Tensor<2>) -> Option<Tensor<2>> {
        let Stage::FineTuning(pass) = stage else {
            return None;
        };
        let net = |part: usize, inputs| {
            self.parts[part]
                .net
                .forward(&self.parts[part].weights, inputs)
        };
        let features = net(EXTRACTOR, inputs.clone());
        if pass == 0 {
            return Some(features);
        }
        let logits = [CLASSIFIER, PERSONAL].map(|classifier| net(classifier, features.clone()));
        let seen = if self.gate_input == Some(GateInput::Samples) {
            inputs
        } else {
            features
        };
        Some(Tensor::cat([vec![seen], logits.to_vec()].concat(), 1))
    }

    fn step(&mut self, stage: Stage, batch: Batch, ctx: &mut StepContext<'_>) -> Step {
        if let Stage::FineTuning(pass) = stage {
            return self.fine_tune(pass, batch, ctx);
        }
        let tape = ctx.record_only(&self.parts, &[EXTRACTOR, CLASSIFIER]);
        let fit = cross_entropy(self.run(&tape, CLASSIFIER, batch.inputs), batch.targets);
        Step {
            loss: ctx.step(&mut self.parts, tape, fit),
            routed: Vec::new(),
        }
    }

    fn selection(&self, stage: Stage) -> Selection {
        let Stage::FineTuning(pass) = stage else {
            return Selection::ALL;
        };
        let uses_all = self.gate_input.is_none() && self.hyper.text("personal_samples") == "all";
        // The first quarter of the samples is the gate's.
        let fraction = match pass {
            0 if uses_all => Fraction::ALL,
            0 => Fraction::new(1, 4, 4),
            _ => Fraction::new(0, 1, 4),
        };
        Selection {
            fraction,
            batch_size: Some(self.hyper.count("finishing_batch_size") as usize),
        }
    }

    fn fine_tuning_passes(&self) -> Vec<u32> {
        let gate = self.gate_input.map(|_| self.hyper.count("gate_epochs"));
        match (self.hyper.count("personal_epochs"), gate) {
            (0, _) => Vec::new(),
            (personal, None | Some(0)) => vec![personal],
            (personal, Some(gate)) => vec![personal, gate],
        }
    }

    fn step_rule(&self, stage: Stage) -> StepRule {
        let Stage::FineTuning(pass) = stage else {
            return StepRule::Federation;
        };
        let (method, learning) = if pass == 0 {
            let momentum = self.hyper.real("personal_momentum");
            (Method::Momentum(momentum), self.hyper.real("personal_rate"))
        } else if self.hyper.text("gate_optimizer") == "adam" {
            (Method::Adam, self.hyper.real("gate_rate"))
        } else {
            (Method::Sgd, self.hyper.real("gate_rate"))
        };
        let weight_decay = self.hyper.real("weight_decay");
        StepRule::Prescribed(
            method,
            Rate {
                learning,
                weight_decay,
            },
        )
    }

    fn begin_fine_tuning(&mut self, pass: usize, _ctx: &RoundContext<'_>) {
        if pass == 0 {
            self.parts[PERSONAL].weights = self.parts[CLASSIFIER].weights.clone();
            self.predictor = Predictor::Personal;
        } else if let Some(fresh) = &self.fresh_gate {
            self.parts[GATE].weights = fresh.clone();
            self.predictor = Predictor::Mixture;
        }
    }

    fn extractor(&self) -> Option<Extractor<'_>> {
        Some(Extractor::of(&self.parts[EXTRACTOR]))
    }

    fn forward(&self, inputs: Tensor<2>) -> Output {
        let weights = plain(&self.parts);
        output(match self.predictor {
            Predictor::Common => self.run(&weights, CLASSIFIER, inputs),
            Predictor::Personal => self.run(&weights, PERSONAL, inputs),
            Predictor::Mixture => self.mix(&weights, inputs),
        })
    }

    fn emit(&self, graph: &mut Graph, inputs: Value) -> Value {
        let net = |graph: &mut Graph, part: usize, input| self.parts[part].emit(graph, input);
        let features = net(graph, EXTRACTOR, inputs);
        let (gate, input) = match (self.predictor, self.gate_input) {
            (Predictor::Common, _) => return net(graph, CLASSIFIER, features),
            (Predictor::Personal, _) | (_, None) => return net(graph, PERSONAL, features),
            (_, Some(GateInput::Samples)) => (GATE, inputs),
            (_, Some(GateInput::Features)) => (GATE, features),
        };
        let [score, common, own] = [(gate, input), (CLASSIFIER, features), (PERSONAL, features)]
            .map(|(part, input)| net(graph, part, input));
        emit_mixed(graph, score, common, own)
    }

    fn memory(&self) -> Option<Memory> {
        (self.predictor != Predictor::Common).then(|| Memory::of(&self.predictor))
    }

    fn recall(&mut self, memory: Option<&Memory>, retired: &ParamSet) -> Result<(), LearnError> {
        let progress = retired.get(RETIRED).map_or(0.0, |array| array.values()[0]);
        self.predictor = match memory {
            Some(memory) => memory.read()?,
            None if progress >= 2.0 => Predictor::Mixture,
            None if progress >= 1.0 => Predictor::Personal,
            None => Predictor::Common,
        };
        Ok(())
    }

    fn retired(&self) -> &'static [&'static str] {
        &[RETIRED]
    }
}

#[cfg(test)]
mod tests {
    use fednode_core::spec::Architecture;

    use super::*;
    use crate::algorithm::testing::{Driven, batch, build, numbers, setup};
    use crate::weights::values;

    #[test]
    fn rounds_are_fedavgs_and_fine_tuning_keeps_the_common_model() {
        for (name, gate_inputs) in [("pfl-fb", None), ("pfl-mf", Some(4)), ("pfl-mfe", Some(4))] {
            let (mut moe, mut average) = (build(name, &[]), build("fedavg", &[]));
            moe.begin(1);
            assert_eq!(moe.train(0, batch()), average.train(0, batch()), "{name}");
            let common = numbers(average.as_ref(), "");
            assert_eq!(numbers(moe.as_ref(), "fc"), common, "{name}");
            let logits =
                |algorithm: &dyn Algorithm| values(&algorithm.forward(batch().inputs).logits);
            assert_eq!(logits(moe.as_ref()), logits(average.as_ref()), "{name}");

            moe.begin_tuning(0);
            assert_eq!(
                numbers(moe.as_ref(), "personal."),
                common,
                "{name}: the `mlp` has no convolutions"
            );
            moe.train_in(Stage::FineTuning(0), batch());
            let personal = numbers(moe.as_ref(), "personal.");
            assert_ne!(personal, common, "{name}");
            assert_ne!(logits(moe.as_ref()), logits(average.as_ref()), "{name}");
            let gate = numbers(moe.as_ref(), "gate.");
            assert_eq!(
                gate.len(),
                gate_inputs.map_or(0, |inputs| inputs + 1),
                "{name}"
            );
            if gate_inputs.is_some() {
                moe.begin_tuning(1);
                moe.train_in(Stage::FineTuning(1), batch());
                assert_ne!(numbers(moe.as_ref(), "gate."), gate, "{name}");
            }
            assert_eq!(numbers(moe.as_ref(), "personal."), personal, "{name}");
            assert_eq!(numbers(moe.as_ref(), "fc"), common, "{name}");
        }
    }

    /// PFL-MoE (Guo et al., arXiv 2012.15589), with the samples' own size where its code scales images up.
    #[test]
    fn gates_have_the_sizes_of_the_paper() {
        let size = |name: &str, model: &str, input| {
            setup(name, &[], |setup| {
                let model = Architecture {
                    name: model.into(),
                    input,
                    ..setup.model.clone()
                };
                let built = (crate::algorithm::find(name).unwrap().build)(&Setup {
                    model: &model,
                    ..*setup
                })
                .unwrap();
                numbers(built.as_ref(), "gate.").len()
            })
        };
        assert_eq!(size("pfl-mfe", "lenet5", [1, 28, 28]), 400 + 1);
        assert_eq!(size("pfl-mf", "lenet5", [1, 28, 28]), 784 + 1);
        assert_eq!(size("pfl-mf", "lenet5", [3, 32, 32]), 3072 + 1);
        assert_eq!(size("pfl-mfe", "vgg16", [3, 32, 32]), 512 + 1);
    }

    #[test]
    fn samples_are_divided_as_the_profiles_say() {
        let samples = |name: &str, pass| {
            build(name, &[])
                .selection(Stage::FineTuning(pass))
                .fraction
                .of(20)
        };
        assert_eq!(
            (
                samples("pfl-mf", 0),
                samples("pfl-mf", 1),
                samples("pfl-fb", 0)
            ),
            (5..20, 0..5, 5..20)
        );
        let sound = |name: &str| {
            let row = crate::algorithm::find(name).unwrap();
            let profile = fednode_core::HyperValue::Text("sound".into());
            row.values(&[("profile".to_owned(), profile)].into())
                .unwrap()
        };
        assert_eq!(sound("pfl-fb").text("personal_samples"), "all");
        assert_eq!(sound("pfl-mfe").real("gate_rate"), 0.001);
    }
}
