//! FedMoE-DA: Zhan et al., "FedMoE-DA: Federated Mixture of Experts via Domain Aware Fine-grained Aggregation",
//! MSN 2024, arXiv 2411.02115.
//!
//! ```text
//! x = embed(u; Theta)      first layer of the model, averaged over all nodes, every node counts the same (Eq. 5)
//! G = softmax(x · Pi)      the gate, never averaged; its columns are the proxies that are gossiped
//! o = G_k * E_k(x)         one expert per sample (top-1), the rest of the model; experts go peer to peer
//! ```
//!
//! All of it is trained jointly in the local update (Algorithm 1, line 5); mixing experts by the similarity of their
//! proxies (Eq. 8 to 11) is the engine's work. The choices where the paper is silent are these:
//! all experts of all nodes start from one Phi0 (averaging needs a common start), the random proxies break the
//! symmetry. Profile `robust` adds Switch's load-balancing loss, bounds the slots of one remote node in a row, and
//! weights sources by their use. Without these a gate of so many inputs soon sends all samples to one expert. Mixing
//! that one with experts that no sample ever reached undoes its training.
//!
//! `head = private`, which the paper does not have, keeps every expert's last layer at its node, as FedPer does. What
//! is fetched and mixed are the layers between. The mix leaves alone what tells this node's classes apart. Profile
//! `personal` is `robust` with that.
//!
//! In the paper all nodes take part in every round. Where only some do (`round.participation`), a node mixes in the rounds
//! for which it has a plan: it trained in the last refresh, and the plan is no older than I rounds.
//!
//! With `statistics.enabled` the last round adds up statistics of the embedding: its maps, too many numbers
//! as they are, are averaged over squares of places first. Experts are neither trained nor mixed in that round.
//!
//! What can be set, and what follows from it for the exchange, is in `settings`. Here is the model.

mod settings;

use burn::tensor::Tensor;
use fednode_core::{ConfigError, Slot};
use fednode_onnx::{Graph, Value};

use self::settings::{AVERAGED, PRIVATE, TRIED};
pub(super) use self::settings::{ROW, check};
use super::module::emit_alone;
use super::part::{Part, Role};
use super::{
    Algorithm, Extractor, Modular, Module, ModuleKind, Opened, Output, Setup, Stage, Step,
    StepContext,
};
use crate::batch::Batch;
use crate::error::LearnError;
use crate::gate::{self, Gated, emit_top1};
use crate::model::{self, Activation, Cut, Linear, Net, leaf};
use crate::train::cross_entropy;
use crate::weights::Weights;

/// Where the parts are: the embedding, the gate, then the experts and, where these are private, their heads.
const EMBEDDING: usize = 0;
const GATE: usize = 1;
const EXPERTS: usize = 2;

struct FedMoeDa {
    parts: Vec<Part>,
    n_experts: usize,
    /// Those that learn: all, or all but the embedding.
    trained: Vec<usize>,
    load_balance: f64,
    tries_experts: bool,
}

impl FedMoeDa {
    fn new(setup: &Setup<'_>) -> Result<Self, LearnError> {
        let (embedding, expert) = model::halves(setup.model, Cut::Embedding)?;
        let n_experts = setup.model.experts;
        let gate = Net::new(vec![leaf(Linear {
            name: "gate",
            inputs: embedding.n_outputs(),
            outputs: n_experts,
            activation: Activation::Identity,
            bias: false,
        })]);
        let part = |role, net, slot| Part::new(role, net, setup.seed, slot, setup.device);
        let is_frozen = setup.hyper.text("embedding") != AVERAGED;
        let role = if is_frozen {
            Role::Private
        } else {
            Role::Shared
        };
        let mut parts = vec![part(role, embedding, 0), part(Role::Gate, gate, 0)];
        let is_whole = setup.hyper.text("head") != PRIVATE;
        let (body, head) = if is_whole {
            (expert, None)
        } else {
            in_two(&expert, &setup.model.name)?
        };
        let start = |slot| {
            if setup.hyper.text("init") == "shared" {
                0
            } else {
                u64::from(slot)
            }
        };
        for slot in (0..n_experts as u16).map(Slot) {
            parts.push(part(Role::Expert(slot), body.clone(), start(slot.0)));
        }
        for slot in (0..n_experts as u16).map(Slot) {
            let Some(head) = &head else { break };
            let mut head = part(Role::Private, head.clone(), start(slot.0));
            // Names as of whole experts, so that a saved model looks the same; its numbers start as theirs.
            head.net = head.net.prefixed(&Role::Expert(slot).prefix());
            parts.push(head);
        }
        let load_balance = setup.hyper.real("load_balance");
        let trained = (usize::from(is_frozen)..parts.len()).collect();
        Ok(Self {
            parts,
            n_experts,
            trained,
            load_balance,
            tries_experts: setup.hyper.text("trial") == TRIED,
        })
    }

    /// Runs the model with the given weights of all parts, plain or recorded.
    fn run(&self, weights: &[&Weights], inputs: Tensor<2>) -> Gated {
        let features = self.parts[EMBEDDING]
            .net
            .forward(weights[EMBEDDING], inputs);
        self.route(|part| weights[part], features)
    }

    /// Runs gate and experts, given the weights of a part.
    fn route<'a>(&self, weights: impl Fn(usize) -> &'a Weights, features: Tensor<2>) -> Gated {
        let net = |part: usize, features| self.parts[part].net.forward(weights(part), features);
        let scores = net(GATE, features.clone());
        let has_heads = self.parts.len() > EXPERTS + self.n_experts;
        gate::top1(scores, features, |expert, features| {
            let outputs = net(EXPERTS + expert, features);
            if has_heads {
                net(EXPERTS + self.n_experts + expert, outputs)
            } else {
                outputs
            }
        })
    }
}

/// Cuts an expert into what travels and what stays.
fn in_two(expert: &Net, model: &str) -> Result<(Net, Option<Net>), LearnError> {
    let (body, head) = expert.split(Cut::Head);
    if body.parameters().is_empty() {
        let text = format!(
            "`head=private` leaves nothing to mix of `{model}`: an expert of it is its last layer"
        );
        return Err(LearnError::Config(ConfigError(text)));
    }
    Ok((body, Some(head)))
}

impl Algorithm for FedMoeDa {
    fn parts(&self) -> &[Part] {
        &self.parts
    }

    fn parts_mut(&mut self) -> &mut [Part] {
        &mut self.parts
    }

    fn tries_experts(&self) -> bool {
        self.tries_experts
    }

    fn step(&mut self, _stage: Stage, batch: Batch, ctx: &mut StepContext<'_>) -> Step {
        let tape = ctx.record_only(&self.parts, &self.trained);
        let gated = self.run(&tape.iter().collect::<Vec<_>>(), batch.inputs);
        let mut routed = vec![0; self.n_experts];
        for expert in &gated.chosen {
            routed[*expert] += 1;
        }
        let balance = (self.load_balance > 0.0)
            .then(|| gate::load_balance(&gated).mul_scalar(self.load_balance));
        let fit = cross_entropy(gated.logits, batch.targets);
        let loss = match balance {
            Some(balance) => fit + balance,
            None => fit,
        };
        Step {
            loss: ctx.step(&mut self.parts, tape, loss),
            routed,
        }
    }

    fn extractor(&self) -> Option<Extractor<'_>> {
        let embedding = &self.parts[EMBEDDING];
        (embedding.role == Role::Shared).then(|| Extractor::condensed(embedding))
    }

    fn modular(&self) -> Option<&dyn Modular> {
        Some(self)
    }

    fn forward(&self, inputs: Tensor<2>) -> Output {
        let weights: Vec<&Weights> = self.parts.iter().map(|part| &part.weights).collect();
        let gated = self.run(&weights, inputs);
        Output {
            logits: gated.logits,
            chosen: Some(gated.chosen),
            n_experts: self.n_experts,
        }
    }

    fn emit(&self, graph: &mut Graph, inputs: Value) -> Value {
        emit_alone(self, graph, inputs)
    }
}

/// The module is the gate with all experts and their heads.
impl Modular for FedMoeDa {
    fn module(&self) -> Module {
        Module {
            kind: ModuleKind::Expert,
            parts: GATE..self.parts.len(),
            is_additive: false,
        }
    }

    fn open(&self, inputs: Tensor<2>) -> Opened {
        Opened::at(
            self.parts[EMBEDDING]
                .net
                .forward(&self.parts[EMBEDDING].weights, inputs),
        )
    }

    fn run_module(&self, weights: &[Weights], input: Tensor<2>) -> Tensor<2> {
        self.route(|part| &weights[part - GATE], input).logits
    }

    fn close(&self, _side: Option<Tensor<2>>, mixed: Tensor<2>) -> Tensor<2> {
        mixed
    }

    fn emit_open(&self, graph: &mut Graph, inputs: Value) -> Opened<Value> {
        Opened::at(self.parts[EMBEDDING].emit(graph, inputs))
    }

    fn emit_module(&self, weights: &[Weights], graph: &mut Graph, input: Value) -> Value {
        let net = |graph: &mut Graph, part: usize, features| {
            let weights = &weights[part - GATE];
            self.parts[part].net.emit(weights, graph, features)
        };
        let scores = net(graph, GATE, input);
        let has_heads = self.parts.len() > EXPERTS + self.n_experts;
        emit_top1(graph, scores, self.n_experts, |graph, expert| {
            let outputs = net(graph, EXPERTS + expert, input);
            if has_heads {
                net(graph, EXPERTS + self.n_experts + expert, outputs)
            } else {
                outputs
            }
        })
    }

    fn emit_close(&self, _graph: &mut Graph, _side: Option<Value>, mixed: Value) -> Value {
        mixed
    }
}
