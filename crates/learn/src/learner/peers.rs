//! Experts of other nodes that nothing was done to: the algorithm judges them (matching `each`).

use std::borrow::Borrow;

use fednode_core::{ExpertId, ParamSet};

use super::{Learner, check};
use crate::algorithm::{HeldOut, Peer, Role};
use crate::error::LearnError;
use crate::weights::Weights;

impl Learner {
    /// Hands experts of other nodes over to the algorithm, which judges them by the node's validation samples, or by its
    /// training samples if it has no others, and changes the model accordingly. A pool that was assembled is dropped.
    ///
    /// # Errors
    /// As [`Self::adopt`]; nothing is changed then.
    pub fn adopt_peers<P: Borrow<ParamSet>>(
        &mut self,
        peers: &[(ExpertId, P)],
    ) -> Result<(), LearnError> {
        if peers.is_empty() {
            return Ok(());
        }
        let device = self.parts.device.clone();
        let mut given = Vec::new();
        for (expert, params) in peers {
            let (slot, params) = (expert.slot, params.borrow());
            let part = self.parts.of_role(|role| role == Role::Expert(slot)).pop();
            let part = part.ok_or_else(|| LearnError::NoSuchPart(format!("expert {slot}")))?;
            check(&part.title(), params, &part.layout())?;
            let loaded = device.run(|| Weights::load(&part.net, params, device.tensors()));
            given.push(Peer {
                expert: *expert,
                weights: loaded.expect("the layout was checked"),
            });
        }
        let samples = if self.data.validation.is_empty() {
            &self.data.train
        } else {
            &self.data.validation
        };
        let held_out = HeldOut::new(samples, self.model.classes, device.tensors());
        let algorithm = self.parts.algorithm.as_mut();
        device.run(|| algorithm.judge(&given, &held_out));
        self.pool = None;
        Ok(())
    }
}
