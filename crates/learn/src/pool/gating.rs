//! The gate of a pool, trained: every step size from the same start, the epoch with the
//! lowest validation loss over all of them; without the guard the last epoch of the first step size.

use std::sync::{Arc, Mutex};

use super::Node;
use super::assemble::Pool;
use super::cache::CachedBatch;
use super::gate::{self, Gate, GateKind, Selection, Standard};
use super::settings::{GateInput, PoolSettings, Renormalize};
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
        let start = self.initial_gate(kept.len())?;
        let mut best: Option<(Best<Weights>, f64)> = None;
        for (attempt, learning_rate) in (0..).zip(rates(self.spec)) {
            let found = self.train_at(*learning_rate, attempt, &start, kept, meter)?;
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
                gate: Gate { weights, ..start },
                epoch,
                learning_rate,
            }),
        )
    }

    /// Makes the gate that every training begins with.
    fn initial_gate(&self, n_members: usize) -> Result<Gate, LearnError> {
        let Node {
            device,
            seeds: [seed, node_seed],
            ..
        } = *self.node;
        let kind = GateKind::of(self.spec);
        let width = self.training.inputs.width();
        let net = gate::net(kind, width, n_members, self.spec.gate.dropout);
        let mut rng = random::stream(Purpose::PoolGate, [seed, node_seed, 0]);
        Ok(Gate {
            kind,
            weights: gate::initial(&net, self.spec.gate.biases, &mut rng, device),
            net,
            selection: self.selection(),
            standard: self.standard(kind.input)?,
        })
    }

    /// Trains a gate at one step size; every attempt drops other numbers.
    fn train_at(
        &self,
        learning_rate: f64,
        attempt: u64,
        start: &Gate,
        kept: &[usize],
        meter: &mut Meter<'_, '_>,
    ) -> Result<Option<Best<Weights>>, LearnError> {
        let Node {
            modular,
            device,
            seeds,
            ..
        } = *self.node;
        let plan = Plan {
            stage: Stage::Gate,
            seeds,
            samples: self.training.len(),
            epochs: self.spec.epochs,
            batch_size: self.spec.batch_size,
            drops_last: self.spec.drop_last,
        };
        let rng = random::stream(Purpose::PoolDropout, [seeds[0], seeds[1], attempt]);
        let dropout = Arc::new(Mutex::new(rng));
        let step = |weights: &mut Weights, positions: &[u32]| {
            let tape = weights.recorded_with(Some(Arc::clone(&dropout)));
            let CachedBatch {
                input,
                side,
                targets,
            } = self.training.batch(positions, device)?;
            let shares = start.shares(&tape, input);
            let mixed = gate::mix(shares, self.training.outputs(positions, kept, device)?);
            let loss = cross_entropy(modular.close(side, mixed), targets);
            let weights = std::slice::from_mut(weights);
            Ok(train::sgd_step(weights, vec![tape], loss, learning_rate))
        };
        let judge = |weights: &Weights| self.validation_loss(start, weights, kept);
        let judge: Option<Judge<'_, Weights>> = if self.spec.guard { Some(&judge) } else { None };
        let (best, _) = train::run(&plan, start.weights.clone(), step, judge, meter)?;
        Ok(best)
    }

    fn selection(&self) -> Selection {
        let renormalizes = match self.spec.renormalize {
            Renormalize::Additive => self.node.modular.module().is_additive,
            Renormalize::Never => false,
        };
        Selection {
            top_k: self.spec.top_k,
            renormalizes,
        }
    }

    /// Measures gate inputs that are samples, if they are to be standardised.
    fn standard(&self, input: GateInput) -> Result<Option<Standard>, LearnError> {
        let is_raw =
            input == GateInput::Samples || self.node.modular.module().kind == ModuleKind::Extractor;
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
        let Node {
            modular, device, ..
        } = *self.node;
        self.validation.mean_loss(device, |positions, batch| {
            let outputs = self.validation.outputs(positions, kept, device)?;
            let shares = gate.shares(weights, batch.input);
            Ok(modular.close(batch.side, gate::mix(shares, outputs)))
        })
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
