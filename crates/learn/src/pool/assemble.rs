//! The stage from beginning to end (PM-MoE: Feng et al., WWW 2025, arXiv 2502.00354, Algorithm 1).

use std::sync::Arc;

use burn::tensor::Tensor;
use fednode_core::work::Watch;
use fednode_core::{NodeId, ParamSet, PoolMember, PoolOutcome, Score, Scores, Served};
use fednode_data::Samples;
use fednode_measure::Predictions;
use fednode_mix::{Measure, energy};

use super::Node;
use super::admit::{Members, admit};
use super::cache::{Cache, Keeps, Source};
use super::gate::{Gate, GateKind};
use super::gating::{Trained, rates};
use super::mixture::Mixture;
use super::settings::{ModuleScore, PoolSettings};
use super::train::Meter;
use crate::algorithm::Output;
use crate::error::LearnError;
use crate::evaluate;
use crate::feature_cache::FeatureCache;
use crate::metric;

/// On how many samples modules are compared before it is known which come in.
const SAMPLE: usize = 64;
/// A node with fewer samples, for training and validation, has too few validation samples to decide anything.
const FEWEST: usize = 50;
/// Where the own module is among the members.
const OWN: usize = 0;

/// The pool of one node, once its members' outputs are there.
pub(super) struct Pool<'a> {
    pub(super) node: &'a Node<'a>,
    pub(super) spec: &'a PoolSettings,
    pub(super) members: Members,
    pub(super) training: Cache,
    pub(super) validation: Cache,
}

/// A mixture that may be served, if the validation samples allow it.
struct Candidate {
    mixture: Mixture,
    /// The mean weight of each of its members.
    mass: Vec<f64>,
    epoch: u32,
    learning_rate: f64,
}

/// Assembles the pool; returns what is reported, and the mixture if it is to be served.
///
/// # Errors
/// Fails when the watcher breaks off.
pub(crate) fn assemble(
    node: &Node<'_>,
    spec: &PoolSettings,
    offered: Vec<(NodeId, Arc<ParamSet>)>,
    watch: &mut Watch<'_>,
) -> Result<(PoolOutcome, Option<Mixture>), LearnError> {
    let mut meter = Meter {
        watch,
        epoch: 0,
        epochs: epochs(node, spec),
    };
    let stage = Pool::prepare(node, spec, offered, &mut meter)?;
    let scores = stage.scores()?;
    let kept = energy::kept(&scores, OWN, spec.drop_share);
    let kept: Vec<usize> = (0..kept.len()).filter(|member| kept[*member]).collect();
    let candidate = stage.candidate(&kept, &mut meter)?;
    let mixture = candidate.as_ref().ok().map(|candidate| &candidate.mixture);
    let validation = stage.compare(mixture, &kept, &node.data.validation);
    let test = stage.compare(mixture, &kept, &node.data.test);
    let controls = if spec.controls {
        Some(stage.controls(&kept, &test, &mut meter)?)
    } else {
        None
    };
    let trained = candidate.as_ref().ok();
    let outcome = PoolOutcome {
        members: stage.report(
            &scores,
            &kept,
            trained.map(|candidate| candidate.mass.as_slice()),
        ),
        refused: stage.members.refused.clone(),
        served: match candidate.as_ref() {
            Ok(candidate) => stage.verdict(&candidate.mixture, &validation),
            Err(obstacle) => own_module(obstacle),
        },
        epochs: trained.map_or(0, |_| spec.epochs),
        unseen: (node.data.train.len() - stage.training.len()) as u32,
        best_epoch: trained.map(|candidate| candidate.epoch),
        learning_rate: trained.map(|candidate| candidate.learning_rate),
        validation,
        test,
        controls,
    };
    let mixture = candidate.ok().map(|candidate| candidate.mixture);
    let mixture = mixture.filter(|_| outcome.served == Served::Mixture);
    Ok((outcome, mixture))
}

/// Returns how many epochs there will be at most.
fn epochs(node: &Node<'_>, spec: &PoolSettings) -> u32 {
    let gate = spec.epochs.saturating_mul(rates(spec).len() as u32);
    let tuning = if node.is_tunable() { spec.epochs } else { 0 };
    if spec.controls {
        gate.saturating_mul(2).saturating_add(tuning)
    } else {
        gate
    }
}

impl Node<'_> {
    /// Evaluates a function from inputs to logits.
    pub(super) fn score(
        &self,
        samples: &Samples,
        forward: &(dyn Fn(Tensor<2>) -> Tensor<2> + Sync),
    ) -> Score {
        let output = |inputs| plain(forward(inputs));
        evaluate::evaluate(&output, samples, self.classes, self.device).score
    }

    /// Puts what a function predicts from inputs beside the truth; nothing without samples.
    fn predict(
        &self,
        samples: &Samples,
        forward: &(dyn Fn(Tensor<2>) -> Tensor<2> + Sync),
    ) -> Option<Predictions> {
        let output = |inputs| plain(forward(inputs));
        let predictions = evaluate::predict(&output, samples, self.device);
        metric::beside(&predictions, samples).ok()
    }
}

/// Returns the output of a model without experts.
fn plain(logits: Tensor<2>) -> Output {
    Output {
        logits,
        chosen: None,
        n_experts: 0,
    }
}

fn own_module(reason: &str) -> Served {
    Served::Own {
        reason: reason.to_owned(),
    }
}

impl<'a> Pool<'a> {
    /// Lets members in and runs them on the node's samples; those whose outputs are not finite there are out again.
    fn prepare(
        node: &'a Node<'a>,
        spec: &'a PoolSettings,
        offered: Vec<(NodeId, Arc<ParamSet>)>,
        meter: &mut Meter<'_, '_>,
    ) -> Result<Self, LearnError> {
        let mut members = admit(node, offered);
        let source = Source {
            node: *node,
            keeps: Keeps::GateInput(GateKind::of(spec).input),
            epochs: meter.epochs,
        };
        if members.weights.len() > spec.max_members {
            let sample = Cache::fill(
                &source,
                &members.weights,
                &some_of(&node.data.train),
                meter.watch,
            )?;
            members.keep_best(spec.max_members, &scores(spec, &sample.outputs)?);
        }
        let mut training = Cache::fill(&source, &members.weights, &node.data.train, meter.watch)?;
        let mut validation = Cache::fill(
            &source,
            &members.weights,
            &node.data.validation,
            meter.watch,
        )?;
        for member in (OWN + 1..members.weights.len()).rev() {
            if !(training.is_finite(member) && validation.is_finite(member)) {
                members.refuse(
                    member,
                    "its outputs are not finite, or too large to work with",
                );
                training.outputs.remove(member);
                validation.outputs.remove(member);
            }
        }
        Ok(Self {
            node,
            spec,
            members,
            training,
            validation,
        })
    }

    /// Returns how well each member fits the own one, over the training samples.
    fn scores(&self) -> Result<Vec<f64>, LearnError> {
        scores(self.spec, &self.training.outputs)
    }

    /// Trains a gate over the members that were kept, or tells why there is none.
    fn candidate(
        &self,
        kept: &[usize],
        meter: &mut Meter<'_, '_>,
    ) -> Result<Result<Candidate, &'static str>, LearnError> {
        if let Some(obstacle) = self.obstacle(kept) {
            return Ok(Err(obstacle));
        }
        let Some(Trained {
            gate,
            epoch,
            learning_rate,
        }) = self.train_gate(kept, meter)?
        else {
            return Ok(Err("the gate's training diverged at every step size"));
        };
        let mass = self.gate_mass(&gate)?;
        Ok(Ok(Candidate {
            mixture: self.mixture(gate, kept),
            mass,
            epoch,
            learning_rate,
        }))
    }

    /// Evaluates own module and mixture; a pool of one is its own module.
    fn compare(&self, mixture: Option<&Mixture>, kept: &[usize], samples: &Samples) -> Scores {
        let own = self.node.score(samples, &|inputs| {
            self.node.algorithm.forward(inputs).logits
        });
        let alone = (kept.len() == 1).then_some(own);
        Scores {
            own,
            mixture: mixture
                .map(|mixture| self.score(mixture, samples))
                .or(alone),
        }
    }

    /// Decides whether the mixture is served.
    fn verdict(&self, mixture: &Mixture, validation: &Scores) -> Served {
        if self.spec.guard && self.is_worse(mixture, validation) {
            return own_module(
                "the mixture is worse than the own module on the validation samples",
            );
        }
        Served::Mixture
    }

    /// Tells whether the mixture is worse than the own module on the validation samples: by the measure that the spec names,
    /// or by accuracy where it names none or that has no value.
    fn is_worse(&self, mixture: &Mixture, validation: &Scores) -> bool {
        let by_accuracy = |mixture: Score| mixture.accuracy < validation.own.accuracy;
        self.is_worse_by_measure(mixture)
            .unwrap_or_else(|| validation.mixture.is_some_and(by_accuracy))
    }

    fn is_worse_by_measure(&self, mixture: &Mixture) -> Option<bool> {
        let judge = self.node.judge?;
        let (samples, own) = (&self.node.data.validation, &self.members.weights[OWN]);
        let (algorithm, modular) = (self.node.algorithm, self.node.modular);
        let of_mixture = self.node.predict(samples, &|inputs| {
            mixture.forward(algorithm, modular, own, inputs)
        });
        let of_own = self
            .node
            .predict(samples, &|inputs| algorithm.forward(inputs).logits);
        judge.is_worse(&of_mixture?, &of_own?)
    }

    /// Tells why no gate is trained.
    pub(super) fn obstacle(&self, kept: &[usize]) -> Option<&'static str> {
        if kept.len() == 1 {
            Some("there is no other member")
        } else if self.spec.guard && self.validation.len() == 0 {
            Some("there are no validation samples to judge the mixture by")
        } else if self.spec.guard
            && self.node.data.train.len() + self.node.data.validation.len() < FEWEST
        {
            Some("there are fewer than 50 samples, too few to tell whether the mixture is better")
        } else {
            None
        }
    }

    pub(super) fn mixture(&self, gate: Gate, kept: &[usize]) -> Mixture {
        Mixture {
            gate,
            foreign: kept[OWN + 1..]
                .iter()
                .map(|member| self.members.weights[*member].clone())
                .collect(),
        }
    }

    pub(super) fn score(&self, mixture: &Mixture, samples: &Samples) -> Score {
        let own = &self.members.weights[OWN];
        self.node.score(samples, &|inputs| {
            mixture.forward(self.node.algorithm, self.node.modular, own, inputs)
        })
    }

    fn report(&self, scores: &[f64], kept: &[usize], mass: Option<&[f64]>) -> Vec<PoolMember> {
        let mass_of = |member: usize| match (mass, kept.iter().position(|kept| *kept == member)) {
            (Some(mass), Some(at)) => mass[at],
            (None, _) if member == OWN => 1.0,
            _ => 0.0,
        };
        let one = |(member, node): (usize, &Option<NodeId>)| PoolMember {
            node: *node,
            score: node.map(|_| scores[member]),
            kept: kept.contains(&member),
            gate_mass: mass_of(member),
        };
        let without_room = |(node, score): &(NodeId, Option<f64>)| PoolMember {
            node: Some(*node),
            score: *score,
            kept: false,
            gate_mass: 0.0,
        };
        let members = self.members.nodes.iter().enumerate().map(one);
        members
            .chain(self.members.surplus.iter().map(without_room))
            .collect()
    }
}

/// Returns how well the outputs of each member fit the own one's, the first.
fn scores(spec: &PoolSettings, outputs: &[FeatureCache]) -> Result<Vec<f64>, LearnError> {
    let measure = match spec.score {
        ModuleScore::Cosine => Measure::Cosine,
        ModuleScore::Energy(temperature) => Measure::Energy(temperature),
    };
    let own = &outputs[OWN];
    let score = |other: &FeatureCache| {
        let of_sample = |at: usize| Ok(measure.of_sample(&own.row(at)?, &other.row(at)?));
        let sum = (0..own.len())
            .map(of_sample)
            .sum::<Result<f64, LearnError>>()?;
        Ok(sum / own.len().max(1) as f64)
    };
    outputs.iter().map(score).collect()
}

/// Returns [`SAMPLE`] samples or a few more, from beginning to end.
fn some_of(samples: &Samples) -> Samples {
    let step = (samples.len() / SAMPLE).max(1);
    samples.subset(&(0..samples.len() as u32).step_by(step).collect::<Vec<_>>())
}
