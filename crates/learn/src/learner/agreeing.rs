//! A learner whose peers' statistics are multiplied with its own model (FedMoE-DA, profile `agreement`).
//!
//! What is mixed of others is not what this node goes on to publish: its statistics stay its own.

use std::borrow::Borrow;

use fednode_core::{FederationSpec, ParamSet, Round, Slot};

use super::{Learner, check};
use crate::agreement::Agreement;
use crate::error::LearnError;
use crate::pool::Predictor;

impl Learner {
    /// Tells whether experts that are adopted replace those that this node publishes.
    pub fn replaces_experts(&self) -> bool {
        self.parts.agreement.is_none()
    }

    /// Makes the expert of a node that has added up nothing yet.
    pub(super) fn new_agreement(&self, spec: &FederationSpec) -> Result<Agreement, LearnError> {
        let device = &self.parts.device;
        device.run(|| Agreement::new(&spec.architecture(), spec.seed, device.tensors()))
    }

    /// Adds up the own statistics and chooses anew how they are joined with the own model.
    ///
    /// Samples that stay the same are added up once. Others are where proxies are published: statistics and proxies then
    /// say the same.
    pub(super) fn renew_agreement(&mut self, round: Round) {
        let samples = self.data.train.in_round(round.0, self.rounds);
        let are_others = self.data.train.drift() && self.schedule.refreshes_in(round);
        let device = &self.parts.device;
        if let Some(agreement) = &mut self.parts.agreement {
            device.run(|| agreement.gather(&samples, are_others, device.tensors()));
        }
        self.choose_agreement();
    }

    /// Checks that mixed statistics are of this node's layout.
    pub(super) fn check_mixed<P: Borrow<ParamSet>>(
        &self,
        mixed: &[(Slot, P)],
    ) -> Result<(), LearnError> {
        let own = self
            .parts
            .agreement
            .as_ref()
            .map(|agreement| &agreement.own);
        for (slot, params) in mixed {
            let own = own.filter(|_| *slot == Slot(0));
            let own = own.ok_or_else(|| LearnError::NoSuchPart(format!("expert {slot}")))?;
            check(&own.title(), params.borrow(), &own.layout())?;
        }
        Ok(())
    }

    /// Solves for the classifier of mixed statistics that were checked.
    pub(super) fn adopt_mixed<P: Borrow<ParamSet>>(&mut self, mixed: &[(Slot, P)]) {
        let device = &self.parts.device;
        if let Some(agreement) = &mut self.parts.agreement {
            for (_, params) in mixed {
                let params = params.borrow();
                device.run(|| agreement.adopt(params, device.tensors()));
            }
        }
        self.choose_agreement();
    }

    fn choose_agreement(&mut self) {
        let own = Predictor {
            algorithm: self.parts.algorithm.as_ref(),
            pool: self.pool.as_ref(),
        };
        let (validation, device) = (&self.data.validation, &self.parts.device);
        if let Some(agreement) = &mut self.parts.agreement {
            device.run(|| agreement.choose(&own, validation, device.tensors()));
        }
    }
}
