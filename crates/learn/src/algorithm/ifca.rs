//! IFCA: Ghosh, Chung, Yin and Ramchandran, "An Efficient Framework for Clustered Federated Learning", NeurIPS 2020,
//! Algorithm 1 with the option of model averaging.
//!
//! ```text
//! choose      k = argmin over j of F_i(theta_j)          F_i: mean cross-entropy on all training samples of node i
//! train       theta_k by SGD; the other models stay as they came
//! exchange    theta_j = sum over i that chose j of n_i theta_ij / sum over i that chose j of n_i
//! ```
//!
//! Every model is a shared part, and beside them a node shares its choice, a 1 among zeros. The aggregation rule `usage` takes
//! each model's mean over the nodes that chose it, exactly. A model that nobody chose stays as it was. The paper counts all
//! nodes of a cluster alike, since theirs have equally many samples; here a node counts by its training samples, as in
//! FedAvg.
//!
//! The models start apart, each from a draw of its own that all nodes have in common. The paper starts some runs anew from
//! other draws where clusters do not form; here another seed of the federation does that. A node chooses at the beginning of
//! every local update, by one pass over all its samples as they are, and remembers its choice. Before its first one it
//! predicts by the first model. All models travel to all nodes in each round, as in the paper, and back, where the
//! paper's nodes send the chosen one alone.

use burn::tensor::Tensor;
use fednode_core::ParamSet;
use fednode_onnx::{Graph, Value};

use super::common_experts::{self, array};
use super::hyper::{Hyper, Kind};
use super::part::Part;
use super::{
    Algorithm, Loss, Optimizers, Output, RoundContext, Row, Setup, Stage, Step, StepContext,
};
use crate::batch::Batch;
use crate::error::LearnError;
use crate::memory::Memory;
use crate::train::cross_entropy;
use crate::weights;

pub(super) const ROW: Row = Row {
    name: "ifca",
    summary: "a few models for all, of which each node trains the one that fits its data best",
    reference: "Ghosh et al., NeurIPS 2020, arXiv 2006.04088",
    averages: "each of the models over the nodes that chose it, and the choice",
    peer_to_peer: "nothing",
    keeps_private: "nothing but the data",
    trains_ahead: false,
    optimizers: Optimizers::Any,
    hyper: &[Hyper {
        name: CLUSTERS,
        kind: Kind::Integer { min: 1, max: 64 },
        default: "2",
        doc: "how many models there are, each for one cluster of nodes",
    }],
    profiles: &[],
    exchange: |_| common_experts::exchange(),
    build: |setup| Ifca::new(setup).map(|algorithm| Box::new(algorithm) as Box<dyn Algorithm>),
};

const CLUSTERS: &str = "clusters";

/// The passes: over all models without training, then the training of the chosen one.
const LOOKING: usize = 0;

struct Ifca {
    /// The models, then the choice as it is shared.
    parts: Vec<Part>,
    /// The chosen model; nothing before the first choice.
    choice: Option<usize>,
    /// The sum of the losses of each model, while they are looked at.
    looked: Option<Vec<f64>>,
}

impl Ifca {
    fn new(setup: &Setup<'_>) -> Result<Self, LearnError> {
        let n_models = setup.hyper.count(CLUSTERS) as usize;
        Ok(Self {
            parts: common_experts::parts(setup, n_models)?,
            choice: None,
            looked: None,
        })
    }

    fn n_models(&self) -> usize {
        self.parts.len() - 1
    }

    /// Returns the model that predicts.
    fn serving(&self) -> usize {
        self.choice.unwrap_or(0)
    }

    /// Adds up the losses of a batch under all models; returns the mean under the one that predicts.
    fn look(&mut self, batch: Batch) -> Loss {
        let n_samples = batch.inputs.dims()[0] as f64;
        let losses: Vec<f64> = self.parts[..self.n_models()]
            .iter()
            .map(|part| {
                let logits = part.net.forward(&part.weights, batch.inputs.clone());
                let loss = cross_entropy(logits, batch.targets.clone());
                f64::from(weights::values(&loss)[0])
            })
            .collect();
        let sums = self.looked.get_or_insert_with(|| vec![0.0; losses.len()]);
        for (sum, loss) in sums.iter_mut().zip(&losses) {
            *sum += loss * n_samples;
        }
        losses[self.serving()].into()
    }

    /// Chooses the model of the least loss, the first of equal ones, if all samples have been looked at.
    fn choose(&mut self) {
        if let Some(sums) = self.looked.take() {
            self.choice = (0..sums.len()).min_by(|a, b| sums[*a].total_cmp(&sums[*b]));
        }
    }

    /// Returns a number at the place of the model that predicts, among zeros.
    fn at_choice(&self, value: u32) -> Vec<u32> {
        let mut all = vec![0; self.n_models()];
        all[self.serving()] = value;
        all
    }
}

impl Algorithm for Ifca {
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
    }

    fn looks_only(&self, stage: Stage) -> bool {
        stage == Stage::Pass(LOOKING)
    }

    fn step(&mut self, stage: Stage, batch: Batch, ctx: &mut StepContext<'_>) -> Step {
        let n_samples = batch.inputs.dims()[0] as u32;
        if stage == Stage::Pass(LOOKING) {
            return Step {
                loss: self.look(batch),
                routed: self.at_choice(0),
            };
        }
        self.choose();
        let model = self.serving();
        let tape = ctx.record_only(&self.parts, &[model]);
        let logits = self.parts[model].net.forward(&tape[model], batch.inputs);
        let loss = ctx.step(&mut self.parts, tape, cross_entropy(logits, batch.targets));
        Step {
            loss,
            routed: self.at_choice(n_samples),
        }
    }

    fn end_round(&mut self, _ctx: &RoundContext<'_>) {
        let choice: Vec<f32> = self.at_choice(1).iter().map(|one| *one as f32).collect();
        if let Some(shared) = self.parts.last_mut() {
            shared.weights = array(&choice, &shared.weights.tensor(0).device());
        }
    }

    fn forward(&self, inputs: Tensor<2>) -> Output {
        let (n_samples, model) = (inputs.dims()[0], self.serving());
        let part = &self.parts[model];
        Output {
            logits: part.net.forward(&part.weights, inputs),
            chosen: Some(vec![model; n_samples]),
            n_experts: self.n_models(),
        }
    }

    fn emit(&self, graph: &mut Graph, inputs: Value) -> Value {
        self.parts[self.serving()].emit(graph, inputs)
    }

    fn memory(&self) -> Option<Memory> {
        self.choice.map(|choice| Memory::of(&choice))
    }

    fn recall(&mut self, memory: Option<&Memory>, _retired: &ParamSet) -> Result<(), LearnError> {
        let choice: Option<usize> = memory.map(Memory::read).transpose()?;
        if let Some(choice) = choice.filter(|choice| *choice >= self.n_models()) {
            let text = format!("there is no model {choice} among {}", self.n_models());
            return Err(LearnError::Memory(serde::de::Error::custom(text)));
        }
        self.choice = choice;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fednode_core::Rule;
    use fednode_mix::average;

    use super::*;
    use crate::algorithm::testing::{Driven, assert_close, batch, build, numbers, setup};
    use crate::weights::Weights;

    /// A node with three models.
    fn node() -> Ifca {
        setup("ifca", &[(CLUSTERS, 3.0)], |setup| {
            Ifca::new(setup).unwrap()
        })
    }

    fn model(node: &Ifca, model: usize) -> Vec<f32> {
        numbers(node, &format!("experts.{model}."))
    }

    fn look(node: &mut Ifca) {
        node.begin(1);
        node.train(LOOKING, batch());
    }

    /// Replaces a model by zeros, whose loss on two classes is ln 2 for every sample.
    fn empty(node: &mut Ifca, model: usize) {
        let zeros = node.parts[model].weights.tensors();
        let zeros = zeros.map(Tensor::zeros_like).collect();
        node.parts[model].weights = Weights::new(zeros);
    }

    #[test]
    fn losses_are_added_up_over_all_samples() {
        let mut node = node();
        (0..3).for_each(|model| empty(&mut node, model));
        look(&mut node);
        node.train(LOOKING, batch());
        // Twice two samples.
        let sums = node.looked.clone().unwrap();
        let expected = 4.0 * 2f64.ln();
        assert!(
            sums.iter().all(|sum| (sum - expected).abs() < 1e-5),
            "{sums:?}"
        );
        node.choose();
        assert_eq!(node.choice, Some(0), "the first of equal ones");
    }

    #[test]
    fn a_node_trains_the_model_of_the_least_loss_alone() {
        let mut node = node();
        empty(&mut node, 0);
        empty(&mut node, 1);
        // A model that was trained on these samples is below ln 2.
        let mut alone = build("local", &[]);
        for _ in 0..20 {
            alone.train(0, batch());
        }
        node.parts[2].weights = alone.parts()[0].weights.clone();
        let before: Vec<_> = (0..3).map(|at| model(&node, at)).collect();
        look(&mut node);
        assert_eq!(node.choice, None);
        let step = node.train(1, batch());
        assert_eq!((node.choice, &step.routed), (Some(2), &vec![0, 0, 2]));
        assert_eq!(step.loss, alone.train(0, batch()).loss);
        node.end();
        assert_eq!(numbers(&node, "usage"), [0.0, 0.0, 1.0]);
        assert_eq!([model(&node, 0), model(&node, 1)], before[..2]);
        assert_eq!(model(&node, 2), numbers(alone.as_ref(), ""));
        let output = node.forward(batch().inputs);
        assert_eq!((output.chosen, output.n_experts), (Some(vec![2, 2]), 3));
    }

    /// Nodes of 1, 3 and 4 samples; the first two choose model 0, the third model 1. Model 0 becomes (1 a + 3 b) / 4, model
    /// 1 that of the third node, to the bit, and model 2 stays as it was, to the bit.
    #[test]
    fn models_are_averaged_over_the_nodes_that_chose_them() {
        let start = node();
        let member = |samples: f64, choice: usize, by: f64| {
            let mut node = node();
            let weights = &node.parts[choice].weights;
            let moved = weights
                .tensors()
                .map(|tensor| tensor.clone().add_scalar(by));
            node.parts[choice].weights = Weights::new(moved.collect());
            node.choice = Some(choice);
            node.end();
            let mut params = ParamSet::new();
            for part in &node.parts {
                params.extend_prefixed("", part.params()).unwrap();
            }
            fednode_mix::Part {
                weight: samples,
                params: Arc::new(params),
            }
        };
        let members = [
            member(1.0, 0, 1.0),
            member(3.0, 0, 3.0),
            member(4.0, 1, 0.5),
        ];
        let mean = average(&Rule::named("usage"), &members).unwrap();
        let name = |model: usize| format!("experts.{model}.fc.bias");
        let of = |params: &ParamSet, model| params.get(&name(model)).unwrap().values().to_vec();
        let started = |model: usize| numbers(&start, &name(model));
        let expected: Vec<f32> = started(0).iter().map(|value| value + 2.5).collect();
        assert_close(&of(&mean, 0), &expected, 1e-6);
        assert_eq!(of(&mean, 1), of(&members[2].params, 1));
        assert_eq!(of(&mean, 2), started(2));
    }

    #[test]
    fn models_start_apart_and_the_choice_is_remembered() {
        let mut node = node();
        assert_ne!(model(&node, 0), model(&node, 1));
        assert_ne!(model(&node, 1), model(&node, 2));
        assert_eq!(node.memory(), None);
        node.choice = Some(1);
        let (memory, nothing) = (node.memory().unwrap(), ParamSet::new());
        let mut other = self::node();
        other.recall(Some(&memory), &nothing).unwrap();
        assert_eq!(other.choice, Some(1));
        assert!(other.recall(Some(&Memory::of(&3)), &nothing).is_err());
        assert_eq!(other.choice, Some(1));
        other.recall(None, &nothing).unwrap();
        assert_eq!(other.choice, None);
    }
}
