//! FedJETs: Dun et al., "FedJETs: Efficient Just-In-Time Personalization with Federated Mixture of Experts", arXiv
//! 2306.08586.
//!
//! ```text
//! rounds 1 .. R    FedAvg of the common expert W_c
//! afterwards       G = softmax(gate(features of W_c))             W_c is frozen; the gate is averaged
//!                  a node uses the experts of the largest mean G on its samples; one per sample, k = argmax G
//!                  L = CE(G_k E_k(x), y) + anchor * CE(G, group)  the second term at anchors alone
//!                  expert k: mean over the nodes that used it, by the samples that went to it
//! ```
//!
//! The paper was read in its abstract and in reviews alone, and there is no public code. From those come four traits.
//! Experts and gate are trained jointly. The gate reads features of a pre-trained common expert. A node trains the best
//! 2 of 5 to 10 experts. An additional loss pins as many anchor clients as there are experts to one each. From
//! FedMoE-DA: four experts, one per sample. The choices made here:
//!
//! - nobody brings a pre-trained model: the federation trains the common expert in its first rounds (R, 3 by default),
//!   by FedAvg, and freezes it. The routing is said to collapse if that expert is below 67 % accuracy;
//! - the experts are whole models and start as the common expert, so that one which no sample has reached yet is no
//!   worse;
//! - who is an anchor is not decided by somebody who knows everybody's labels. Class c is of group c modulo the number
//!   of experts. A node is the anchor of the group that at least half of its samples are of (`anchor_share`), if there
//!   is one. Its expert is always among those it uses;
//! - the additional loss is the gate's cross-entropy against the group, with the weight 1;
//! - predictions are those of the best of all experts, used by the node or not, so that the gate serves newcomers at
//!   once.
//!
//! All experts travel, and the common expert in every round, where the paper sends two experts and the common one once.

use burn::tensor::Tensor;
use burn::tensor::activation::softmax;
use fednode_core::ConfigError;
use fednode_onnx::{Graph, Value};

use super::common_experts::{self, Tally, array};
use super::fedmix::SELECTED;
use super::hyper::{Hyper, Kind};
use super::part::{Part, Role, plain};
use super::whole::{self, BASE, HEAD};
use super::{
    Algorithm, Loss, Optimizers, Output, RoundContext, Row, Setup, Stage, Step, StepContext,
};
use crate::batch::Batch;
use crate::error::LearnError;
use crate::gate::{self, Gated, emit_top1, one_hot};
use crate::model::{Activation, Linear, Net, leaf};
use crate::train::cross_entropy;
use crate::weights::{self, Weights};

pub(super) const ROW: Row = Row {
    name: "fedjets",
    summary: "experts that all nodes share, routed by a common gate on the features of a model trained beforehand",
    reference: "Dun et al., arXiv 2306.08586; choices where the source is unverified",
    averages: "the common expert and the gate; each expert, a whole model, over the nodes that used it, and how much it was used",
    peer_to_peer: "nothing",
    keeps_private: "nothing but the data",
    trains_ahead: false,
    optimizers: Optimizers::Any,
    hyper: &[
        SELECTED,
        Hyper {
            name: "common_rounds",
            kind: Kind::Integer {
                min: 1,
                max: 100_000,
            },
            default: "3",
            doc: "R: rounds in which the common expert is trained before it is frozen and the experts begin",
        },
        Hyper {
            name: "anchor",
            kind: Kind::Real { min: 0.0, max: 1e6 },
            default: "1",
            doc: "weight of the gate's cross-entropy against the group that a node is the anchor of",
        },
        Hyper {
            name: "anchor_share",
            kind: Kind::Real { min: 0.0, max: 1.0 },
            default: "0.5",
            doc: "share of a node's samples that must be of one group of classes for the node to be its anchor",
        },
    ],
    profiles: &[],
    exchange: |_| common_experts::exchange(),
    build: |setup| FedJets::new(setup).map(|algorithm| Box::new(algorithm) as Box<dyn Algorithm>),
};

const GATE: usize = 2;
const EXPERTS: usize = 3;

/// The array of states from before the round came with every hook: the rounds that are over.
const RETIRED: &str = "rounds";

/// The passes: over the samples without training, then the training.
const LOOKING: usize = 0;

/// Added to the scores of experts that a node does not use: low enough for a probability of zero, and finite.
const IMPOSSIBLE: f32 = -1e9;

/// What a round trains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The common expert.
    Common,
    /// Gate and experts.
    Experts,
}

struct FedJets {
    /// The common expert in base and head, the gate, the experts, their use.
    parts: Vec<Part>,
    n_selected: usize,
    common_rounds: u32,
    anchor: f64,
    anchor_share: f64,
    /// What has been trained last, here or where the parts came from; it predicts.
    trained: Phase,
    /// What this round trains.
    trains: Phase,
    /// The group that this node is the anchor of.
    group: Option<usize>,
    /// The gate's probabilities of all experts, while they are looked at.
    looked: Option<Tally>,
    /// The experts that are used in this round.
    selection: Vec<usize>,
    used: Tally,
}

impl FedJets {
    fn new(setup: &Setup<'_>) -> Result<Self, LearnError> {
        let common = whole::halves(setup, Role::Shared)?;
        let n_experts = setup.model.experts;
        let (n_selected, common_rounds) = (
            setup.hyper.count(SELECTED.name),
            setup.hyper.count("common_rounds"),
        );
        common_experts::check_selected(n_selected, n_experts)?;
        if common_rounds >= setup.rounds {
            let text = format!(
                "of {} rounds `common_rounds` takes {common_rounds}, and none is left for the experts: give it less",
                setup.rounds
            );
            return Err(ConfigError(text).into());
        }
        let gate = leaf(Linear {
            name: "gate",
            inputs: common[BASE].net.n_outputs(),
            outputs: n_experts,
            activation: Activation::Identity,
            bias: true,
        });
        let part = |net| Part::new(Role::Shared, net, setup.seed, 0, setup.device);
        let prefixed = |part: Part| Part {
            net: part.net.clone().prefixed("common."),
            ..part
        };
        let mut parts: Vec<Part> = common.into_iter().map(prefixed).collect();
        parts.push(part(Net::new(vec![gate])));
        parts.extend(common_experts::parts(setup, n_experts)?);
        if let Some(usage) = parts.last_mut() {
            // Nobody uses experts yet; by that a node that joins late tells what it received.
            usage.weights = Tally::new(n_experts).shares(setup.device);
        }
        Ok(Self {
            parts,
            n_selected: n_selected as usize,
            common_rounds,
            anchor: setup.hyper.real("anchor"),
            anchor_share: setup.hyper.real("anchor_share"),
            trained: Phase::Common,
            trains: Phase::Common,
            group: None,
            looked: None,
            selection: (0..n_experts).collect(),
            used: Tally::new(n_experts),
        })
    }

    fn phase(&self, ctx: &RoundContext<'_>) -> Phase {
        if ctx.round.0 <= self.common_rounds {
            Phase::Common
        } else {
            Phase::Experts
        }
    }

    fn n_experts(&self) -> usize {
        self.parts.len() - EXPERTS - 1
    }

    /// Returns the group that a node with these samples of each class is the anchor of.
    fn group_of(&self, class_counts: &[u32]) -> Option<usize> {
        let total: u32 = class_counts.iter().sum();
        let mut groups = vec![0; self.n_experts()];
        for (class, count) in class_counts.iter().enumerate() {
            groups[class % self.n_experts()] += count;
        }
        let largest = (0..groups.len()).max_by_key(|group| groups[*group]);
        let least = self.anchor_share * f64::from(total);
        largest.filter(|group| total > 0 && f64::from(groups[*group]) >= least)
    }

    fn scores(&self, weights: &[Weights], inputs: Tensor<2>) -> Tensor<2> {
        let features = self.parts[BASE].net.forward(&weights[BASE], inputs);
        self.parts[GATE].net.forward(&weights[GATE], features)
    }

    /// Routes a batch, given its scores.
    fn route(&self, weights: &[Weights], scores: Tensor<2>, inputs: Tensor<2>) -> Gated {
        let net = |part: usize, inputs| self.parts[part].net.forward(&weights[part], inputs);
        gate::top1(scores, inputs, |expert, inputs| {
            net(EXPERTS + expert, inputs)
        })
    }

    fn train_common(&mut self, batch: Batch, ctx: &mut StepContext<'_>) -> Loss {
        let tape = ctx.record_only(&self.parts, &[BASE, HEAD]);
        let (_, logits) = whole::run(&self.parts, &tape, batch.inputs);
        ctx.step(&mut self.parts, tape, cross_entropy(logits, batch.targets))
    }

    /// Looks at a batch with the gate; returns the loss of the best experts.
    fn look(&mut self, batch: Batch) -> Loss {
        let weights = plain(&self.parts);
        let scores = self.scores(&weights, batch.inputs.clone());
        let everyone: Vec<usize> = (0..self.n_experts()).collect();
        let probabilities = weights::values(&softmax(scores.clone(), 1));
        self.looked
            .get_or_insert_with(|| Tally::new(everyone.len()))
            .add(&probabilities, &everyone);
        let logits = self.route(&weights, scores, batch.inputs).logits;
        Loss::of(&cross_entropy(logits, batch.targets))
    }

    fn train_experts(&mut self, batch: Batch, ctx: &mut StepContext<'_>) -> Step {
        if let Some(looked) = self.looked.take() {
            self.selection = looked.best(self.n_selected, self.group);
        }
        let trained: Vec<usize> = [GATE]
            .into_iter()
            .chain(self.selection.iter().map(|expert| EXPERTS + expert))
            .collect();
        let tape = ctx.record_only(&self.parts, &trained);
        let (n_samples, device) = (batch.inputs.dims()[0], batch.inputs.device());
        let scores = self.scores(&tape, batch.inputs.clone());
        let gated = self.route(&tape, scores.clone() + self.mask(&device), batch.inputs);
        let mut routed = vec![0; self.n_experts()];
        gated.chosen.iter().for_each(|expert| routed[*expert] += 1);
        let everyone: Vec<usize> = (0..self.n_experts()).collect();
        self.used.add(
            &routed.iter().map(|count| *count as f32).collect::<Vec<_>>(),
            &everyone,
        );
        let fit = cross_entropy(gated.logits, batch.targets);
        let loss = match self.group {
            Some(group) => {
                let groups = one_hot(&vec![group; n_samples], everyone.len(), &device);
                fit + cross_entropy(scores, groups).mul_scalar(self.anchor)
            }
            None => fit,
        };
        Step {
            loss: ctx.step(&mut self.parts, tape, loss),
            routed,
        }
    }

    /// Returns what keeps samples from experts that are not used, `[1, experts]`.
    fn mask(&self, device: &burn::tensor::Device) -> Tensor<2> {
        let of = |expert| {
            if self.selection.contains(&expert) {
                0.0
            } else {
                IMPOSSIBLE
            }
        };
        array(&(0..self.n_experts()).map(of).collect::<Vec<_>>(), device)
            .tensor(0)
            .reshape([1, self.n_experts()])
    }
}

impl Algorithm for FedJets {
    fn parts(&self) -> &[Part] {
        &self.parts
    }

    fn parts_mut(&mut self) -> &mut [Part] {
        &mut self.parts
    }

    fn passes(&self, ctx: &RoundContext<'_>) -> Vec<u32> {
        vec![
            u32::from(self.phase(ctx) == Phase::Experts),
            ctx.training.local_epochs,
        ]
    }

    fn begin_round(&mut self, ctx: &RoundContext<'_>) {
        self.group = self.group_of(ctx.class_counts);
        self.looked = None;
        self.used = Tally::new(self.n_experts());
        self.trains = self.phase(ctx);
        if self.trained == Phase::Common && self.trains == Phase::Experts {
            // The first round of the experts: they start as what came in.
            let [base, head] = [BASE, HEAD].map(|half| self.parts[half].weights.clone());
            let common = Weights::new(base.tensors().chain(head.tensors()).cloned().collect());
            let n_experts = self.n_experts();
            self.parts[EXPERTS..EXPERTS + n_experts]
                .iter_mut()
                .for_each(|expert| expert.weights = common.clone());
        }
    }

    fn looks_only(&self, stage: Stage) -> bool {
        stage == Stage::Pass(LOOKING)
    }

    fn step(&mut self, stage: Stage, batch: Batch, ctx: &mut StepContext<'_>) -> Step {
        match stage {
            Stage::Pass(LOOKING) => Step {
                loss: self.look(batch),
                routed: vec![0; self.n_experts()],
            },
            _ if self.trains == Phase::Common => Step {
                loss: self.train_common(batch, ctx),
                routed: Vec::new(),
            },
            _ => self.train_experts(batch, ctx),
        }
    }

    fn end_round(&mut self, _ctx: &RoundContext<'_>) {
        if self.trains == Phase::Experts
            && let Some(usage) = self.parts.last_mut()
        {
            usage.weights = self.used.shares(&usage.weights.tensor(0).device());
        }
        self.trained = self.trains;
    }

    fn on_parts_replaced(&mut self) {
        let usage = self.parts.last().map(|usage| usage.weights.tensor(0));
        let is_used =
            usage.is_some_and(|usage| weights::values(&usage).iter().any(|one| *one > 0.0));
        self.trained = if is_used {
            Phase::Experts
        } else {
            Phase::Common
        };
    }

    fn retired(&self) -> &'static [&'static str] {
        &[RETIRED]
    }

    fn forward(&self, inputs: Tensor<2>) -> Output {
        if self.trained == Phase::Common {
            return whole::forward(&self.parts, inputs);
        }
        let weights = plain(&self.parts);
        let scores = self.scores(&weights, inputs.clone());
        let gated = self.route(&weights, scores, inputs);
        Output {
            logits: gated.logits,
            chosen: Some(gated.chosen),
            n_experts: self.n_experts(),
        }
    }

    fn emit(&self, graph: &mut Graph, inputs: Value) -> Value {
        if self.trained == Phase::Common {
            return whole::emit(&self.parts, graph, inputs);
        }
        let features = self.parts[BASE].emit(graph, inputs);
        let scores = self.parts[GATE].emit(graph, features);
        emit_top1(graph, scores, self.n_experts(), |graph, expert| {
            self.parts[EXPERTS + expert].emit(graph, inputs)
        })
    }
}

#[cfg(test)]
mod tests {
    use fednode_core::spec::Architecture;

    use super::*;
    use crate::algorithm::testing::{Driven, assert_close, batch, build, numbers, setup};
    use crate::weights::values;

    /// A node with three experts, of which it uses two; the common expert has one round.
    fn node(hyper: &[(&str, f64)]) -> FedJets {
        setup(
            "fedjets",
            &[hyper, &[("common_rounds", 1.0)]].concat(),
            |setup| {
                let model = Architecture {
                    experts: 3,
                    ..setup.model.clone()
                };
                FedJets::new(&Setup {
                    model: &model,
                    ..*setup
                })
                .unwrap()
            },
        )
    }

    fn round(node: &mut FedJets, round: u32) {
        node.begin(round);
        for (pass, epochs) in node.round_passes(round).into_iter().enumerate() {
            (0..epochs.min(1)).for_each(|_| drop(node.train(pass, batch())));
        }
        node.end();
    }

    /// The first round is FedAvg's; the second trains two experts that start as its outcome, and leaves it alone.
    #[test]
    fn experts_start_as_the_common_one_and_only_the_used_learn() {
        let (mut node, mut average) = (node(&[]), build("fedavg", &[]));
        round(&mut node, 1);
        average.train(0, batch());
        let common = numbers(average.as_ref(), "");
        assert_eq!(numbers(&node, "common."), common);
        let logits = values(&node.forward(batch().inputs).logits);
        assert_eq!(logits, values(&average.forward(batch().inputs).logits));
        round(&mut node, 2);
        assert_eq!(numbers(&node, "common."), common, "frozen");
        assert_eq!(node.selection.len(), 2);
        let usage = numbers(&node, "usage");
        for (expert, usage) in usage.iter().enumerate() {
            let moved = numbers(&node, &format!("experts.{expert}.")) != common;
            assert_eq!(moved, *usage > 0.0, "expert {expert}");
            assert!(!moved || node.selection.contains(&expert));
        }
        assert!(node.trained == Phase::Experts && (usage.iter().sum::<f32>() - 1.0).abs() < 1e-6);
    }

    /// Groups of classes modulo 3: of counts (4, 1, 0, 2) group 0 has 6 of 7, of (1, 1, 1) none has half.
    #[test]
    fn anchors_are_told_by_their_own_classes() {
        let mut node = node(&[]);
        node.begin_with(1, &[4, 1, 0, 2]);
        assert_eq!(node.group, Some(0));
        node.begin_with(1, &[1, 1, 1]);
        assert_eq!(node.group, None);
        node.begin_with(1, &[0, 1, 1]);
        assert!(node.group.is_some());
    }

    /// The anchor's loss is more than another node's by the weight times the gate's cross-entropy against its group,
    /// and its expert is among those it uses.
    #[test]
    fn anchors_pull_the_gate_to_their_expert() {
        let at_experts = |counts: [u32; 2]| {
            let mut node = node(&[("anchor", 2.0), ("anchor_share", 0.9)]);
            round(&mut node, 1);
            node.begin_with(2, &counts);
            node.train(LOOKING, batch());
            node.looked = Some(Tally::new(3));
            node
        };
        let (mut anchor, mut other) = (at_experts([0, 9]), at_experts([5, 5]));
        let scores = anchor.scores(&plain(&anchor.parts), batch().inputs);
        let groups = one_hot(&[1, 1], 3, &scores.device());
        let expected = 2.0 * f64::from(values(&cross_entropy(scores, groups))[0]);
        let more = anchor.train(1, batch()).loss - other.train(1, batch()).loss;
        assert_eq!(
            (&anchor.selection, &other.selection),
            (&vec![0, 1], &vec![0, 1])
        );
        assert!((more - expected).abs() < 1e-6, "{more} is not {expected}");
        assert_close(&[anchor.group.unwrap() as f32], &[1.0], 0.0);
    }
}
