//! FedMix: Reisser, Louizos, Gavves and Welling, "Federated Mixture of Experts", arXiv 2107.06724 (not the mixup of the
//! same name).
//!
//! ```text
//! p(y | x) = sum_k G_k(x) p_k(y | x)      G = softmax over the node's selected experts of a linear gate on x
//! L = -log p(y | x)                       gate and selected experts, jointly
//! r_k = G_k p_k(y | x) / p(y | x)         how far expert k is responsible for a sample
//! expert k: mean over the nodes that selected it, by their samples times its share of their responsibilities
//! ```
//!
//! The paper was not at hand, and there is no public code. From its abstract: an ensemble of specialised models, of
//! which each node adaptively selects and trains a few, so that nodes of similar data select the same. From FedMoE-DA,
//! which compares itself with it: a gate beside the shared experts, four of them; a node first drops, by gate and local
//! data, the less effective ones. The choices made here:
//!
//! - an expert is a whole model (the abstract's "models"), and each starts apart from the others, so that there is
//!   something to select by;
//! - the gate is the node's own and linear in the raw input, so there are no texts;
//! - the variational bound of the paper is replaced by the likelihood itself, which it equals when the posterior over
//!   experts is exact, as it can be computed for a sum over so few;
//! - before it trains, a node goes over its samples once with all experts, each with its gate's weight, and selects
//!   those of the largest responsibility, two by default, as in FedJETs' comparison;
//! - predictions are the mixture over the selection, not its best expert alone.
//!
//! All experts travel, not the selected ones alone as in the paper: the traffic of a round is that of FedAvg, times the
//! experts.

use burn::tensor::Tensor;
use burn::tensor::activation::{log_softmax, softmax};
use fednode_core::ParamSet;
use fednode_onnx::{Graph, Value};

use super::common_experts::{self, Tally};
use super::hyper::{Hyper, Kind};
use super::part::{Part, Role, plain};
use super::{
    Algorithm, Loss, Optimizers, Output, RoundContext, Row, Setup, Stage, Step, StepContext,
};
use crate::batch::Batch;
use crate::error::LearnError;
use crate::gate::{argmax, emit_mix};
use crate::memory::Memory;
use crate::model::{self, Activation, Linear, Net, leaf};
use crate::weights::{self, Weights};

pub(super) const ROW: Row = Row {
    name: "fedmix",
    summary: "models that all nodes share, of which each node selects, trains and mixes those that fit its data",
    reference: "Reisser et al., arXiv 2107.06724; choices where the source is unverified",
    averages: "each expert, a whole model, over the nodes that selected it, and how much it was used",
    peer_to_peer: "nothing",
    keeps_private: "the gate",
    trains_ahead: false,
    optimizers: Optimizers::Any,
    hyper: &[SELECTED],
    profiles: &[],
    exchange: |_| common_experts::exchange(),
    build: |setup| FedMix::new(setup).map(|algorithm| Box::new(algorithm) as Box<dyn Algorithm>),
};

/// How many experts a node uses; `fedjets` has the same.
pub(super) const SELECTED: Hyper = Hyper {
    name: "selected_experts",
    kind: Kind::Integer { min: 1, max: 64 },
    default: "2",
    doc: "how many of the `model.experts` experts a node selects in a round",
};

const GATE: usize = 0;
const EXPERTS: usize = 1;

/// The array of states from before the selection was remembered: a 1 for each selected expert.
const RETIRED: &str = "selection";

/// The passes: over all experts without training, then over the selected ones.
const LOOKING: usize = 0;

/// Keeps a probability of 0 from becoming a logarithm of minus infinity.
const SMALLEST: f64 = 1e-12;

struct FedMix {
    parts: Vec<Part>,
    n_selected: usize,
    /// The experts that the node uses: all, until it has selected some.
    selection: Vec<usize>,
    /// The responsibilities of all experts, while they are looked at.
    looked: Option<Tally>,
    /// Those of the selected ones in training.
    used: Tally,
}

impl FedMix {
    fn new(setup: &Setup<'_>) -> Result<Self, LearnError> {
        model::refuse_texts(setup.model, ROW.name)?;
        let n_experts = setup.model.experts;
        let gate = leaf(Linear {
            name: "gate",
            inputs: setup.model.input.iter().product(),
            outputs: n_experts,
            activation: Activation::Identity,
            bias: true,
        });
        let n_selected = setup.hyper.count(SELECTED.name);
        common_experts::check_selected(n_selected, n_experts)?;
        let part = |net| Part::new(Role::Private, net, setup.seed, 0, setup.device);
        let mut parts = vec![part(Net::new(vec![gate]))];
        parts.extend(common_experts::parts(setup, n_experts)?);
        Ok(Self {
            parts,
            n_selected: n_selected as usize,
            selection: (0..n_experts).collect(),
            looked: None,
            used: Tally::new(n_experts),
        })
    }

    fn n_experts(&self) -> usize {
        self.parts.len() - EXPERTS - 1
    }

    /// Returns `log G` over the given experts, `[batch, experts]`, and the logits of each.
    fn run(
        &self,
        weights: &[Weights],
        experts: &[usize],
        inputs: Tensor<2>,
    ) -> (Tensor<2>, Vec<Tensor<2>>) {
        let net = |part: usize| self.parts[part].net.forward(&weights[part], inputs.clone());
        let scores = net(GATE);
        let columns = experts
            .iter()
            .map(|expert| scores.clone().narrow(1, *expert, 1))
            .collect();
        let logits = experts.iter().map(|expert| net(EXPERTS + expert)).collect();
        (log_softmax(Tensor::cat(columns, 1), 1), logits)
    }

    /// Returns `log (G_k p_k(y | x))` of the given experts, `[batch, experts]`.
    fn joint(&self, weights: &[Weights], experts: &[usize], batch: Batch) -> Tensor<2> {
        let (gate, logits) = self.run(weights, experts, batch.inputs);
        let fit = |logits: Tensor<2>| (log_softmax(logits, 1) * batch.targets.clone()).sum_dim(1);
        gate + Tensor::cat(logits.into_iter().map(fit).collect(), 1)
    }

    /// Looks at a batch with all experts; returns the loss.
    fn look(&mut self, batch: Batch) -> Loss {
        let everyone: Vec<usize> = (0..self.n_experts()).collect();
        let joint = self.joint(&plain(&self.parts), &everyone, batch);
        let responsibilities = weights::values(&softmax(joint.clone(), 1));
        self.looked
            .get_or_insert_with(|| Tally::new(everyone.len()))
            .add(&responsibilities, &everyone);
        Loss::of(&negative_log_likelihood(joint))
    }

    /// Selects experts by what was seen, if that is not done yet.
    fn select(&mut self) {
        if let Some(looked) = self.looked.take() {
            self.selection = looked.best(self.n_selected, None);
        }
    }
}

/// Reads a selection of so many experts.
fn selected(memory: &Memory, n_experts: usize) -> Result<Vec<usize>, LearnError> {
    let selection: Vec<usize> = memory.read()?;
    if selection.is_empty() || selection.iter().any(|expert| *expert >= n_experts) {
        let text = format!("a selection of {n_experts} experts cannot be {selection:?}");
        return Err(LearnError::Memory(serde::de::Error::custom(text)));
    }
    Ok(selection)
}

/// Returns the mean of `-log sum_k exp(joint_k)`: each column less its log-softmax is that logarithm.
fn negative_log_likelihood(joint: Tensor<2>) -> Tensor<1> {
    (log_softmax(joint.clone(), 1) - joint)
        .narrow(1, 0, 1)
        .mean()
}

impl Algorithm for FedMix {
    fn parts(&self) -> &[Part] {
        &self.parts
    }

    fn parts_mut(&mut self) -> &mut [Part] {
        &mut self.parts
    }

    fn passes(&self, ctx: &RoundContext<'_>) -> Vec<u32> {
        vec![1, ctx.training.local_epochs]
    }

    fn begin_round(&mut self, _ctx: &RoundContext<'_>) {
        self.looked = None;
        self.used = Tally::new(self.n_experts());
    }

    fn looks_only(&self, stage: Stage) -> bool {
        stage == Stage::Pass(LOOKING)
    }

    fn step(&mut self, stage: Stage, batch: Batch, ctx: &mut StepContext<'_>) -> Step {
        let mut routed = vec![0; self.n_experts()];
        if stage == Stage::Pass(LOOKING) {
            return Step {
                loss: self.look(batch),
                routed,
            };
        }
        self.select();
        let selection = self.selection.clone();
        let trained: Vec<usize> = [GATE]
            .into_iter()
            .chain(selection.iter().map(|expert| EXPERTS + expert))
            .collect();
        let tape = ctx.record_only(&self.parts, &trained);
        let joint = self.joint(&tape, &selection, batch);
        let responsibilities = weights::values(&softmax(joint.clone().without_autodiff(), 1));
        for best in argmax(&responsibilities, selection.len()) {
            routed[selection[best]] += 1;
        }
        self.used.add(&responsibilities, &selection);
        let loss = ctx.step(&mut self.parts, tape, negative_log_likelihood(joint));
        Step { loss, routed }
    }

    fn end_round(&mut self, _ctx: &RoundContext<'_>) {
        if let Some(usage) = self.parts.last_mut() {
            usage.weights = self.used.shares(&usage.weights.tensor(0).device());
        }
    }

    fn forward(&self, inputs: Tensor<2>) -> Output {
        let selection = self.selection.clone();
        let (gate, logits) = self.run(&plain(&self.parts), &selection, inputs);
        let best = argmax(&weights::values(&gate), selection.len());
        let shares = gate.exp();
        let weighted = logits
            .into_iter()
            .enumerate()
            .map(|(at, z)| softmax(z, 1) * shares.clone().narrow(1, at, 1));
        let mixed = weighted
            .reduce(|sum, more| sum + more)
            .expect("a node always has a selected expert");
        Output {
            logits: mixed.add_scalar(SMALLEST).log(),
            chosen: Some(best.into_iter().map(|at| selection[at]).collect()),
            n_experts: self.n_experts(),
        }
    }

    fn emit(&self, graph: &mut Graph, inputs: Value) -> Value {
        let scores = self.parts[GATE].emit(graph, inputs);
        let scores = graph.columns(scores, &self.selection);
        let shares = graph.softmax(scores);
        let emit = |expert: &usize| {
            let logits = self.parts[EXPERTS + expert].emit(graph, inputs);
            graph.softmax(logits)
        };
        let probabilities: Vec<Value> = self.selection.iter().map(emit).collect();
        let mixed = emit_mix(graph, shares, &probabilities);
        let safe = graph.add_number(mixed, SMALLEST);
        graph.log(safe)
    }

    fn memory(&self) -> Option<Memory> {
        (self.selection.len() < self.n_experts()).then(|| Memory::of(&self.selection))
    }

    fn recall(&mut self, memory: Option<&Memory>, retired: &ParamSet) -> Result<(), LearnError> {
        let all = 0..self.n_experts();
        let flags = retired.get(RETIRED).map(|array| array.values());
        self.selection = match (memory, flags) {
            (Some(memory), _) => selected(memory, self.n_experts())?,
            (None, Some(flags)) => all.filter(|expert| flags[*expert] > 0.5).collect(),
            (None, None) => all.collect(),
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
    use crate::algorithm::testing::{Driven, assert_close, batch, matrix, numbers, setup};
    use crate::weights::values;

    /// A node with three experts, of which it selects two.
    fn node() -> FedMix {
        setup("fedmix", &[], |setup| {
            let model = Architecture {
                experts: 3,
                ..setup.model.clone()
            };
            FedMix::new(&Setup {
                model: &model,
                ..*setup
            })
            .unwrap()
        })
    }

    /// G = (1/4, 3/4), p(y) = (0.8, 0.4): the likelihood is 0.2 + 0.3, the responsibilities are 0.4 and 0.6, and so are
    /// the gradients of the loss, with a minus.
    #[test]
    fn likelihood_and_responsibilities_agree_with_a_worked_example() {
        let joint = matrix([[0.2f32.ln(), 0.3f32.ln()]])
            .autodiff()
            .require_grad();
        let loss = negative_log_likelihood(joint.clone());
        assert_close(&values(&loss), &[-(0.5f32.ln())], 1e-6);
        assert_close(&values(&softmax(joint.clone(), 1)), &[0.4, 0.6], 1e-6);
        assert_close(
            &values(&joint.grad(&loss.backward()).unwrap()),
            &[-0.4, -0.6],
            1e-6,
        );
    }

    #[test]
    fn trains_and_reports_only_what_it_selected() {
        let mut node = node();
        let before: Vec<_> = (0..3)
            .map(|expert| numbers(&node, &format!("experts.{expert}.")))
            .collect();
        assert_ne!(before[0], before[1], "experts start apart");
        node.begin(1);
        node.train(LOOKING, batch());
        let looked = node.looked.clone().unwrap();
        assert_eq!(
            numbers(&node, "experts.0."),
            before[0],
            "looking trains nothing"
        );
        node.train(1, batch());
        node.end();
        let (selection, usage) = (node.selection.clone(), numbers(&node, "usage"));
        assert_eq!(selection, looked.best(2, None));
        assert!((usage.iter().sum::<f32>() - 1.0).abs() < 1e-6);
        for (expert, before) in before.iter().enumerate() {
            let is_selected = selection.contains(&expert);
            assert_eq!(
                numbers(&node, &format!("experts.{expert}.")) != *before,
                is_selected
            );
            assert_eq!(usage[expert] > 0.0, is_selected);
        }
    }

    /// The logits are the logarithms of the mixture, so their cross-entropy is the loss.
    #[test]
    fn predicts_the_mixture_that_it_trains() {
        let mut node = node();
        node.begin(1);
        node.train(LOOKING, batch());
        node.select();
        let joint = node.joint(&plain(&node.parts), &node.selection, batch());
        let predicted =
            crate::train::cross_entropy(node.forward(batch().inputs).logits, batch().targets);
        assert_close(
            &values(&negative_log_likelihood(joint)),
            &values(&predicted),
            1e-5,
        );
    }
}
