//! A learner whose peers' statistics are multiplied with its own model (FedMoE-DA, profile `agreement`).

use std::borrow::Borrow;

use burn::tensor::Tensor;
use fednode_core::work::{NoisySteps, PeerExpert};
use fednode_core::{FederationSpec, ParamSet, Round};

use super::Learner;
use crate::agreement::Agreement;
use crate::algorithm::Output;
use crate::error::LearnError;
use crate::noised::{NoiseKey, Noised, Own};
use crate::pool::Predictor;
use crate::private::{self, Promise};
use crate::regression::Regression;

impl Learner {
    /// Makes the expert of noised statistics, if the spec promises privacy.
    pub(super) fn new_noised(&self, spec: &FederationSpec) -> Result<Option<Noised>, LearnError> {
        let device = &self.parts.device;
        let is_wanted = Noised::is_wanted(spec);
        is_wanted
            .then(|| device.run(|| Noised::new(spec, device.tensors())))
            .transpose()
    }

    /// Runs the own model with the statistics that go with it.
    pub(super) fn agreed(
        &self,
        agreement: &Agreement,
        own: &Predictor<'_>,
        inputs: Tensor<2>,
    ) -> Output {
        let alone = agreement.forward(own, inputs.clone());
        match &self.parts.noised {
            Some(noised) => noised.times(alone, inputs),
            None => alone,
        }
    }

    /// Returns the number of training samples that others are told, and how many went to each expert: under a promise of privacy
    /// what the release says, or the same for every node. Under masks others are told nothing.
    pub(super) fn told(&self, routed: Vec<u32>) -> (u32, Vec<u32>) {
        let noised = self.parts.noised.as_ref();
        let released = noised.and_then(|noised| self.parts.device.run(|| noised.n_samples()));
        if let Some(n_samples) = released {
            return (n_samples, Vec::new());
        }
        if self.training.promise.is_some() {
            return private::told(self.parts.algorithm.parts());
        }
        (self.data.train.len() as u32, routed)
    }

    /// Returns what the training of a round costs in privacy, if it is promised to cost something bounded.
    pub(crate) fn steps_of_a_round(&self) -> Option<NoisySteps> {
        let promise = self.training.promise.as_ref();
        promise.map(Promise::steps_of_a_round)
    }

    /// Says where the noise of what is released comes from; by default it is the operating system's, so that a state that
    /// is lost means another release.
    pub fn draw_noise_from(&mut self, key: NoiseKey) {
        if let Some(noised) = &mut self.parts.noised {
            noised.draw_from(key);
        } else if let Some(agreement) = self.parts.agreement.as_mut().filter(|one| one.has_total())
        {
            agreement.draw_from(key);
        } else if let Some(regression) =
            self.parts.regression.as_mut().filter(|one| one.has_total())
        {
            regression.draw_from(key);
        } else if let Some(promise) = &mut self.training.promise {
            promise.draw_from(key);
        }
    }

    /// Makes the expert of a node that has added up nothing yet.
    pub(super) fn new_agreement(&self, spec: &FederationSpec) -> Result<Agreement, LearnError> {
        let device = &self.parts.device;
        device.run(|| Agreement::new(spec, device.tensors()))
    }

    /// Makes the expert of a node that has added up no row yet.
    pub(super) fn new_regression(&self, spec: &FederationSpec) -> Result<Regression, LearnError> {
        let device = &self.parts.device;
        device.run(|| Regression::new(spec, device.tensors()))
    }

    /// Adds up the own statistics and chooses anew how they are joined with the own model.
    ///
    /// Samples that stay the same are added up once. Others are where proxies are published: statistics and proxies then
    /// say the same. Statistics that stay at home are made of others at once.
    pub(super) fn renew_agreement(&mut self, round: Round) {
        let parts = &self.parts;
        let (agreement, regression) = (parts.agreement.as_ref(), parts.regression.as_ref());
        let is_due = [
            agreement.is_some_and(|own| self.is_due(round, own.gathered_in(), own.n_gathered())),
            regression.is_some_and(|own| self.is_due(round, own.gathered_in(), own.n_gathered())),
        ];
        let n_samples = self.data.train.len() as u32;
        if let Some(agreement) = &mut self.parts.agreement {
            agreement.count_from(n_samples);
        }
        if let Some(regression) = &mut self.parts.regression {
            regression.count_from(n_samples);
        }
        let device = &self.parts.device;
        if let Some(agreement) = &mut self.parts.agreement
            && is_due[0]
        {
            let samples = self.data.train.in_round(round.0, self.training.rounds);
            device.run(|| agreement.gather(round, &samples, device.tensors()));
        }
        if let Some(regression) = &mut self.parts.regression
            && is_due[1]
        {
            let samples = self.data.train.in_round(round.0, self.training.rounds);
            device.run(|| regression.gather(round, &samples, device.tensors()));
        }
        // A release is made once: another one would cost privacy again.
        let only = self.schedule.total_round();
        if let Some(noised) = &mut self.parts.noised
            && !noised.is_released()
            && only.is_none_or(|only| only == round)
        {
            let samples = self.data.train.in_round(round.0, self.training.rounds);
            let seeds = [self.training.seed, self.training.node_seed];
            device.run(|| noised.release(&samples, seeds, device.tensors()));
        }
        if let Some(agreement) = &mut self.parts.agreement
            && agreement.waits_for_total()
            && only == Some(round)
        {
            let samples = self.data.train.in_round(round.0, self.training.rounds);
            let seeds = [self.training.seed, self.training.node_seed];
            device.run(|| agreement.release(&samples, seeds, device.tensors()));
        }
        if let Some(regression) = &mut self.parts.regression
            && regression.waits_for_total()
            && only == Some(round)
        {
            let samples = self.data.train.in_round(round.0, self.training.rounds);
            let seeds = [self.training.seed, self.training.node_seed];
            device.run(|| regression.release(&samples, seeds, device.tensors()));
        }
        self.choose_agreement();
    }

    /// Tells whether samples are to be added up in a round, where so many were in an earlier one.
    fn is_due(&self, round: Round, gathered: Option<Round>, n_gathered: Option<u32>) -> bool {
        let n_samples = self.data.train.len();
        let are_others = n_gathered.is_some_and(|before| before as usize != n_samples);
        if gathered.is_none() || are_others && self.adds_up_at_home() {
            return true;
        }
        let has_others = || match n_gathered {
            Some(before) => self.may_publish_again(before as usize),
            // A state of an earlier version does not say how many they were. From now on the samples of today count.
            None => false,
        };
        self.schedule.refreshes_in(round) && (self.data.train.drift() || has_others())
    }

    /// Tells whether the own statistics never leave this node: others get a release with noise, or their sum with everybody's.
    fn adds_up_at_home(&self) -> bool {
        let has_total = self.schedule.total_round().is_some();
        has_total || self.parts.noised.is_some()
    }

    /// Solves for the classifiers of peers' statistics that were checked.
    pub(super) fn adopt_agreeing<P: Borrow<ParamSet> + Sync>(&mut self, peers: &[PeerExpert<P>]) {
        let device = &self.parts.device;
        if let Some(noised) = &mut self.parts.noised {
            device.run(|| noised.adopt(peers, device.tensors()));
        } else if let Some(agreement) = &mut self.parts.agreement
            && let Some(round) = agreement.gathered_in()
        {
            let train = self.data.train.in_round(round.0, self.training.rounds);
            let samples = [&*train, &self.data.validation];
            device.run(|| agreement.adopt(peers, samples, device.tensors()));
        } else if let Some(regression) = &mut self.parts.regression
            && let Some(round) = regression.gathered_in()
        {
            let train = self.data.train.in_round(round.0, self.training.rounds);
            device.run(|| regression.adopt(peers, &train, device.tensors()));
        }
        self.choose_agreement();
    }

    /// Returns the total of the groups of which this node believes the sums, where nodes add up in groups.
    pub(super) fn believed_groups(&mut self, shared: &ParamSet) -> Option<ParamSet> {
        let predictor = Predictor {
            algorithm: self.parts.algorithm.as_ref(),
            pool: self.pool.as_ref(),
        };
        let device = &self.parts.device;
        let (Some(agreement), Some(noised)) = (&self.parts.agreement, &mut self.parts.noised)
        else {
            return None;
        };
        let data = &self.data;
        device.run(|| {
            let alone = |inputs| agreement.forward(&predictor, inputs);
            let own = Own {
                training: &data.train,
                validation: &data.validation,
                alone: &alone,
            };
            noised.believed(shared, own, device.tensors())
        })
    }

    /// Solves for the classifier of everybody's statistics, if their total was adopted.
    pub(super) fn adopt_total(&mut self) {
        let device = &self.parts.device;
        if let Some(noised) = &mut self.parts.noised {
            let samples = &self.data.train;
            device.run(|| noised.adopt_total(samples, device.tensors()));
        } else if let Some(agreement) = &mut self.parts.agreement {
            let samples = &self.data.train;
            device.run(|| agreement.adopt_total(samples, device.tensors()));
        } else if let Some(regression) = &mut self.parts.regression {
            let samples = &self.data.train;
            device.run(|| regression.adopt_total(samples, device.tensors()));
        }
    }

    /// Chooses how statistics and own model are joined, where there are statistics.
    pub(super) fn choose_agreement(&mut self) {
        let own = Predictor {
            algorithm: self.parts.algorithm.as_ref(),
            pool: self.pool.as_ref(),
        };
        let (validation, device) = (&self.data.validation, &self.parts.device);
        if let Some(regression) = &mut self.parts.regression {
            device.run(|| regression.choose(&own, validation, device.tensors()));
        }
        if let Some(agreement) = &mut self.parts.agreement {
            device.run(|| agreement.choose(&own, validation, device.tensors()));
            if let Some(noised) = &mut self.parts.noised {
                let alone = |inputs| agreement.forward(&own, inputs);
                device.run(|| noised.choose(&alone, validation, device.tensors()));
            }
        } else if self.parts.regression.is_none() {
            return;
        }
        self.guard();
    }
}
