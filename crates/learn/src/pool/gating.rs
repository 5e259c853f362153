//! The gate of a pool, trained (`pm-moe` §2.6, steps 6 to 8): every step size from the same start, the epoch with the
//! lowest validation loss over all of them; without the guard the last epoch of the first step size.

use super::Node;
use super::assemble::Pool;
use super::cache::CachedBatch;
use super::gate::{self, Dropout, Form, Gate, Selection, Standard};
use super::settings::{Biases, GateInput, PoolSettings, Renormalize};
use super::train::{self, Best, Judge, Meter, Plan, Stage};
use crate::algorithm::ModuleKind;
use crate::error::LearnError;
use crate::random::{self, Purpose};
use crate::train::cross_entropy;
use crate::weights::{self, Weights};

/// A gate that was trained.
pub(super) struct Trained {
    pub(super) gate: Gate,
    pub(super) epoch: u32,
    pub(super) learning_rate: f64,
}

/// Returns the step sizes that are tried: without the guard nothing chooses among them.
pub(super) fn rates(spec: &PoolSettings) -> &[f64] {
    if spec.guard {
        &spec.learning_rates
    } else {
        &spec.learning_rates[..spec.learning_rates.len().min(1)]
    }
}

impl Pool<'_> {
    /// Trains a gate over some members at every step size from the same start; the validation samples choose.
    pub(super) fn train_gate(
        &self,
        kept: &[usize],
        meter: &mut Meter<'_, '_>,
    ) -> Result<Option<Trained>, LearnError> {
        let Node {
            modular,
            device,
            seeds: [seed, node_seed],
            ..
        } = *self.node;
        let form = Form::of(self.spec);
        let net = gate::net(form, self.training.inputs.width(), kept.len());
        let mut rng = random::stream(Purpose::PoolGate, [seed, node_seed, 0]);
        let draws_biases = self.spec.gate.biases == Biases::Uniform;
        let weights = gate::initial(&net, draws_biases, &mut rng, device);
        let gate = Gate {
            form,
            net,
            weights,
            selection: self.selection(),
            standard: self.standard(form.sees)?,
        };
        let judge = |weights: &Weights| self.validation_loss(&gate, weights, kept);
        let judge: Option<Judge<'_, Weights>> = if self.spec.guard { Some(&judge) } else { None };
        let PoolSettings {
            epochs,
            batch_size,
            drop_last: drops_last,
            ..
        } = *self.spec;
        let (stage, seeds, samples) = (Stage::Gate, [seed, node_seed], self.training.len());
        let plan = Plan {
            stage,
            seeds,
            samples,
            epochs,
            batch_size,
            drops_last,
        };
        let mut best: Option<(Best<Weights>, f64)> = None;
        for (at, learning_rate) in (0..).zip(rates(self.spec)) {
            let rng = random::stream(Purpose::PoolDropout, [seed, node_seed, at]);
            let mut dropout = (self.spec.gate.dropout > 0.0).then_some(Dropout {
                rng,
                share: self.spec.gate.dropout,
            });
            let step = |weights: &mut Weights, positions: &[u32]| {
                let tape = weights.recorded();
                let CachedBatch {
                    input,
                    side,
                    targets,
                } = self.training.batch(positions, device)?;
                let shares = gate.shares(&tape, input, dropout.as_mut());
                let mixed = gate::mix(shares, self.training.outputs(positions, kept, device)?);
                let loss = cross_entropy(modular.close(side, mixed), targets);
                Ok(train::descend(
                    std::slice::from_mut(weights),
                    vec![tape],
                    loss,
                    *learning_rate,
                ))
            };
            let (found, _) = train::run(&plan, gate.weights.clone(), step, judge, meter)?;
            let loss = |best: &Best<Weights>| best.loss.unwrap_or(f64::INFINITY);
            if let Some(found) = found
                && best
                    .as_ref()
                    .is_none_or(|(least, _)| loss(&found) < loss(least))
            {
                best = Some((found, *learning_rate));
            }
        }
        Ok(
            best.map(|(Best { weights, epoch, .. }, learning_rate)| Trained {
                gate: Gate {
                    weights,
                    ..gate.clone()
                },
                epoch,
                learning_rate,
            }),
        )
    }

    fn selection(&self) -> Selection {
        let renormalizes = match self.spec.renormalize {
            Renormalize::Never => false,
            Renormalize::Additive => self.node.modular.module().is_additive,
        };
        Selection {
            top_k: self.spec.top_k,
            renormalizes,
        }
    }

    /// Measures gate inputs that are samples, if they are to be standardised.
    fn standard(&self, sees: GateInput) -> Result<Option<Standard>, LearnError> {
        let is_raw =
            sees == GateInput::Samples || self.node.modular.module().kind == ModuleKind::Extractor;
        if !(is_raw && self.spec.gate.standardize) {
            return Ok(None);
        }
        let inputs = &self.training.inputs;
        let rows = (0..inputs.len()).map(|at| inputs.row(at));
        Ok(Some(Standard::of(rows, inputs.width(), self.node.device)?))
    }

    /// Returns the mean loss of the mixture on the validation samples.
    fn validation_loss(
        &self,
        gate: &Gate,
        weights: &Weights,
        kept: &[usize],
    ) -> Result<f64, LearnError> {
        let mut sum = 0.0;
        for positions in &self.validation.chunks() {
            let CachedBatch { input, side, .. } =
                self.validation.batch(positions, self.node.device)?;
            let outputs = self.validation.outputs(positions, kept, self.node.device)?;
            let logits = self
                .node
                .modular
                .close(side, gate::mix(gate.shares(weights, input, None), outputs));
            sum += train::log_loss(&logits, &self.validation.labels(positions));
        }
        Ok(sum / self.validation.len().max(1) as f64)
    }

    /// Returns the mean weight of every kept member.
    pub(super) fn gate_mass(&self, gate: &Gate) -> Result<Vec<f64>, LearnError> {
        let cache = if self.validation.len() > 0 {
            &self.validation
        } else {
            &self.training
        };
        let mut mass = vec![0.0; gate.net.n_outputs()];
        for positions in cache.chunks() {
            let shares = gate.shares(
                &gate.weights,
                cache.batch(&positions, self.node.device)?.input,
                None,
            );
            for row in weights::values(&shares).chunks_exact(mass.len()) {
                mass.iter_mut()
                    .zip(row)
                    .for_each(|(sum, share)| *sum += f64::from(*share));
            }
        }
        Ok(mass
            .iter()
            .map(|sum| sum / cache.len().max(1) as f64)
            .collect())
    }
}
