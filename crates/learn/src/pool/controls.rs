//! The comparators of a study, on the test samples.

use fednode_core::{Controls, Scores};

use super::assemble::Pool;
use super::fine_tune::fine_tune;
use super::gate::{self, Gate, GateKind, Selection};
use super::train::Meter;
use crate::algorithm::Opened;
use crate::error::LearnError;

impl Pool<'_> {
    /// Computes the comparators.
    pub(super) fn controls(
        &self,
        kept: &[usize],
        test: &Scores,
        meter: &mut Meter<'_, '_>,
    ) -> Result<Controls, LearnError> {
        let (node, samples) = (self.node, &self.node.data.test);
        let fine_tuned_head = if node.is_tunable() {
            let (tuned, _) = fine_tune(node, self.spec, meter)?;
            Some(node.score(samples, &|inputs| {
                let Opened {
                    module_input, side, ..
                } = node.modular.open(inputs);
                node.modular
                    .close(side, node.modular.run_module(&tuned, module_input))
            }))
        } else {
            None
        };
        let all: Vec<usize> = (0..self.members.weights.len()).collect();
        // A gate of zeros weighs all members alike.
        let kind = GateKind::of(self.spec);
        let net = gate::net(kind, self.training.inputs.width(), all.len(), 0.0);
        let selection = Selection {
            top_k: 0,
            renormalizes: false,
        };
        let uniform = Gate {
            kind,
            weights: gate::zeros(&net, node.device),
            net,
            selection,
            standard: None,
        };
        let without_denoising = if kept.len() == all.len() {
            test.mixture
        } else if self.obstacle(&all).is_none() {
            self.train_gate(&all, meter)?
                .map(|trained| self.score(&self.mixture(trained.gate, &all), samples))
        } else {
            None
        };
        Ok(Controls {
            fine_tuned_head,
            uniform: self.score(&self.mixture(uniform, &all), samples),
            without_denoising,
        })
    }
}
