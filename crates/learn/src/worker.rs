//! A learner as a [`Worker`]: carries out the orders of the live driver and of the simulator.
//!
//! Only translation. What an order means is the learner's; what is ordered when is the caller's.

use fednode_core::work::{
    Evaluations, NoisySteps, Order, Outcome, PrivateModule, Received, Splits, Watch, WorkError,
    Worker,
};
use fednode_core::{ParamSet, Score};

use crate::{LearnError, Learner, NoiseKey, Subset};

impl Worker for Learner {
    fn perform(&mut self, order: Order, watch: &mut Watch<'_>) -> Result<Outcome, WorkError> {
        let outcome = match order {
            Order::TrainAhead(round) => {
                self.train_ahead(round, watch)?;
                Outcome::TrainedAhead
            }
            Order::Train(round) => Outcome::Trained(self.local_update(round, watch)?),
            Order::Adopt(Received {
                shared,
                experts,
                peers,
                statistics,
            }) => {
                let shared = self.believed(shared, &statistics);
                self.adopt(shared, experts)?;
                self.adopt_peers(&peers)?;
                Outcome::Adopted
            }
            Order::Evaluate(splits) => Outcome::Evaluated(self.evaluations(splits)),
            Order::FineTune(last) => {
                let steps = self.finish(last, watch)?;
                let is_tuned = steps > 0;
                Outcome::FineTuned(is_tuned.then(|| self.evaluations(Splits::ValidationAndTest)))
            }
            Order::MakeModule => Outcome::Module(self.make_module(watch)?),
            Order::AssemblePool(modules) => {
                let spec = self.pool_settings.clone();
                Outcome::Pooled(self.assemble_pool(&spec, modules, watch)?)
            }
            Order::GoOn => {
                self.go_on();
                Outcome::WentOn
            }
            Order::ForgetPeers => {
                self.forget_peers();
                Outcome::Adopted
            }
        };
        Ok(outcome)
    }

    fn initial_shared(&self) -> Option<ParamSet> {
        self.initial_shared()
    }

    fn shared(&self) -> Option<ParamSet> {
        self.shared()
    }

    fn state(&self) -> ParamSet {
        self.state()
    }

    fn restore(&mut self, state: &ParamSet) -> Result<(), WorkError> {
        Ok(self.restore(state)?)
    }

    fn noisy_steps(&self) -> Option<NoisySteps> {
        self.steps_of_a_round()
    }

    fn take_secret(&mut self, secret: &[u8; 32]) {
        self.draw_noise_from(NoiseKey::of_secret(secret));
    }
}

impl Learner {
    /// Evaluates the model as it is. A split without samples has no score.
    fn evaluations(&self, splits: Splits) -> Evaluations {
        let of_any = |score: Score| (score.n_samples > 0).then_some(score);
        let validation = match splits {
            Splits::Test => None,
            Splits::ValidationAndTest => Some(self.evaluate(Subset::Validation)),
        };
        let (test, judged) = self.judge(Subset::Test);
        Evaluations {
            lacks: self.lacks(),
            useless: self.why_useless(validation.iter().chain([&test])),
            composition: self.composition(),
            validation: validation.and_then(|validation| of_any(validation.score)),
            test: of_any(test.score),
            judged,
            expert_share: test.expert_share,
            domain_information: test.domain_information,
        }
    }

    fn make_module(&mut self, watch: &mut Watch<'_>) -> Result<Option<PrivateModule>, LearnError> {
        if self.pool_settings.fine_tune && self.module_layout().is_some() {
            let spec = self.pool_settings.clone();
            self.fine_tune_module(&spec, watch)?;
        }
        Ok(self.module())
    }
}

impl From<LearnError> for WorkError {
    fn from(error: LearnError) -> Self {
        let text = error.to_string();
        match error {
            LearnError::Abandoned => Self::Abandoned,
            LearnError::Diverged { .. }
            | LearnError::Exploded { .. }
            | LearnError::Config(_)
            | LearnError::Cache(_) => Self::Training(text),
            LearnError::NoTrainingSamples
            | LearnError::Classes { .. }
            | LearnError::ClassNames { .. }
            | LearnError::NoNumbers(_)
            | LearnError::Numbers(_)
            | LearnError::SampleShape { .. }
            | LearnError::Vocabulary { .. } => Self::Data(text),
            LearnError::Layout { .. }
            | LearnError::NotFinite { .. }
            | LearnError::NoSuchPart(_)
            | LearnError::NothingInitial { .. }
            | LearnError::Memory(_)
            | LearnError::Graph(_)
            | LearnError::Params(_) => Self::Misfit(text),
        }
    }
}
