//! Experts of other nodes that nothing was done to: the algorithm judges them, or they are statistics of peers that agree.

use std::borrow::Borrow;

use fednode_core::ParamSet;
use fednode_core::work::PeerExpert;

use super::Learner;
use super::parts::check;
use crate::algorithm::{HeldOut, Part, Peer, Role};
use crate::error::LearnError;
use crate::weights::Weights;

impl Learner {
    /// Hands experts of other nodes over to the algorithm, which judges them by the node's validation samples, or by its
    /// training samples if it has no others, and changes the model accordingly. A pool that was assembled is dropped.
    ///
    /// By agreement they are statistics, which change nothing of the model: classifiers are solved of them, and a pool stays.
    ///
    /// # Errors
    /// As [`Self::adopt`]; nothing is changed then.
    pub fn adopt_peers<P: Borrow<ParamSet> + Sync>(
        &mut self,
        peers: &[PeerExpert<P>],
    ) -> Result<(), LearnError> {
        let parts = peers.iter().map(|peer| self.part_of(peer));
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        if peers.is_empty() {
            return Ok(());
        }
        if self.parts.agreement.is_some() || self.parts.regression.is_some() {
            self.adopt_agreeing(peers);
            return Ok(());
        }
        let device = self.parts.device.clone();
        let given = peers.iter().zip(parts).map(|(peer, part)| {
            let params = peer.params.borrow();
            let loaded = device.run(|| Weights::load(&part.net, params, device.tensors()));
            Peer {
                expert: peer.expert,
                weights: loaded.expect("the layout was checked"),
            }
        });
        let given: Vec<Peer> = given.collect();
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

    /// Deletes what was made of peers' statistics, as if none had ever come.
    pub fn forget_peers(&mut self) {
        let device = &self.parts.device;
        if let Some(noised) = &mut self.parts.noised {
            device.run(|| noised.forget_peers(device.tensors()));
        }
        if let Some(agreement) = &mut self.parts.agreement {
            device.run(|| agreement.forget_peers(device.tensors()));
        }
        if let Some(regression) = &mut self.parts.regression {
            device.run(|| regression.forget_peers(device.tensors()));
        }
        self.choose_agreement();
    }

    /// Returns the own part that a peer's expert is like.
    fn part_of<P: Borrow<ParamSet>>(&self, peer: &PeerExpert<P>) -> Result<&Part, LearnError> {
        let slot = peer.expert.slot;
        let part = self.parts.of_role(|role| role == Role::Expert(slot)).pop();
        let part = part.ok_or_else(|| LearnError::NoSuchPart(format!("expert {slot}")))?;
        check(&part.title(), peer.params.borrow(), &part.layout())?;
        Ok(part)
    }
}
