//! A learner whose peers' statistics are multiplied with its own model (FedMoE-DA, profile `agreement`).

use std::borrow::Borrow;

use fednode_core::work::PeerExpert;
use fednode_core::{FederationSpec, ParamSet, Round};

use super::Learner;
use crate::agreement::Agreement;
use crate::error::LearnError;
use crate::pool::Predictor;

impl Learner {
    /// Makes the expert of a node that has added up nothing yet.
    pub(super) fn new_agreement(&self, spec: &FederationSpec) -> Result<Agreement, LearnError> {
        let device = &self.parts.device;
        device.run(|| Agreement::new(spec, device.tensors()))
    }

    /// Adds up the own statistics and chooses anew how they are joined with the own model.
    ///
    /// Samples that stay the same are added up once. Others are where proxies are published: statistics and proxies then
    /// say the same.
    pub(super) fn renew_agreement(&mut self, round: Round) {
        let are_others = self.data.train.drift() && self.schedule.refreshes_in(round);
        let device = &self.parts.device;
        if let Some(agreement) = &mut self.parts.agreement
            && (are_others || agreement.gathered_in().is_none())
        {
            let samples = self.data.train.in_round(round.0, self.rounds);
            device.run(|| agreement.gather(round, &samples, device.tensors()));
        }
        // A release is made once: another one would cost privacy again.
        if let Some(noised) = &mut self.parts.noised
            && !noised.is_released()
        {
            let samples = self.data.train.in_round(round.0, self.rounds);
            let seeds = [self.seed, self.node_seed];
            device.run(|| noised.release(&samples, seeds, device.tensors()));
        }
        self.choose_agreement();
    }

    /// Solves for the classifiers of peers' statistics that were checked.
    pub(super) fn adopt_agreeing<P: Borrow<ParamSet> + Sync>(&mut self, peers: &[PeerExpert<P>]) {
        let device = &self.parts.device;
        if let Some(noised) = &mut self.parts.noised {
            device.run(|| noised.adopt(peers, device.tensors()));
        } else if let Some(agreement) = &mut self.parts.agreement
            && let Some(round) = agreement.gathered_in()
        {
            let train = self.data.train.in_round(round.0, self.rounds);
            let samples = [&*train, &self.data.validation];
            device.run(|| agreement.adopt(peers, samples, device.tensors()));
        }
        self.choose_agreement();
    }

    /// Chooses how statistics and own model are joined, where there are statistics.
    pub(super) fn choose_agreement(&mut self) {
        let own = Predictor {
            algorithm: self.parts.algorithm.as_ref(),
            pool: self.pool.as_ref(),
        };
        let (validation, device) = (&self.data.validation, &self.parts.device);
        if let Some(agreement) = &mut self.parts.agreement {
            device.run(|| agreement.choose(&own, validation, device.tensors()));
            if let Some(noised) = &mut self.parts.noised {
                let alone = |inputs| agreement.forward(&own, inputs);
                device.run(|| noised.choose(&alone, validation, device.tensors()));
            }
        }
    }
}
