//! Joins the two halves of a node: what the round logic asks for, and the learner that can do it.
//!
//! Only translation. Numbers pass through as [`ParamSet`]s, errors get the kind that decides the exit code.

use fednode_core::{ParamSet, PoolOutcome, Round, Score, Slot};
use fednode_learn::{LearnError, Learner, PoolSettings, Progress, Subset};
use fednode_runtime::trainer::{
    Evaluations, Modules, PrivateModule, TrainProgress, Trainer, TrainerCard, TrainerError, Update,
    Watch,
};

/// A learner as the runtime sees it.
#[derive(Debug)]
pub(crate) struct LearnerTrainer {
    learner: Learner,
    card: TrainerCard,
    pool: PoolSettings,
}

impl LearnerTrainer {
    /// Wraps a learner; the card says what it trains on.
    pub(crate) fn new(learner: Learner, card: TrainerCard, pool: PoolSettings) -> Self {
        Self {
            learner,
            card,
            pool,
        }
    }
}

impl Trainer for LearnerTrainer {
    fn initial_shared(&self) -> Option<ParamSet> {
        self.learner.initial_shared()
    }

    fn shared(&self) -> Option<ParamSet> {
        self.learner.shared()
    }

    fn local_update(
        &mut self,
        round: Round,
        watch: &mut Watch<'_>,
    ) -> Result<Update, TrainerError> {
        let update = self
            .learner
            .local_update(round, &mut |now| watch(progress(now)))
            .map_err(error)?;
        Ok(Update {
            shared: update.shared,
            experts: update.experts,
            proxies: update.proxies,
            n_samples: update.n_samples,
            train_loss: update.train_loss,
            expert_share: update.expert_share,
            multiply_adds: update.multiply_adds,
        })
    }

    fn train_ahead(&mut self, round: Round, watch: &mut Watch<'_>) -> Result<(), TrainerError> {
        self.learner
            .train_ahead(round, &mut |now| watch(progress(now)))
            .map_err(error)
    }

    fn finish(
        &mut self,
        last: Round,
        watch: &mut Watch<'_>,
    ) -> Result<Option<Evaluations>, TrainerError> {
        let steps = self
            .learner
            .finish(last, &mut |now| watch(progress(now)))
            .map_err(error)?;
        (steps > 0).then(|| self.evaluate(true)).transpose()
    }

    fn module(&mut self, watch: &mut Watch<'_>) -> Result<Option<PrivateModule>, TrainerError> {
        if self.pool.fine_tune && self.learner.module_layout().is_some() {
            self.learner
                .fine_tune_module(&self.pool, &mut |now| watch(progress(now)))
                .map_err(error)?;
        }
        let Some(module) = self.learner.module() else {
            return Ok(None);
        };
        let score = self.learner.evaluate(Subset::Validation).score.accuracy;
        Ok(Some(PrivateModule {
            kind: module.kind.to_owned(),
            params: module.params,
            score,
        }))
    }

    fn pool(
        &mut self,
        modules: Modules,
        watch: &mut Watch<'_>,
    ) -> Result<PoolOutcome, TrainerError> {
        self.learner
            .assemble_pool(&self.pool, modules, &mut |now| watch(progress(now)))
            .map_err(error)
    }

    fn adopt(
        &mut self,
        shared: Option<ParamSet>,
        experts: Vec<(Slot, ParamSet)>,
    ) -> Result<(), TrainerError> {
        self.learner.adopt(shared, experts).map_err(error)
    }

    fn evaluate(&mut self, with_validation: bool) -> Result<Evaluations, TrainerError> {
        let validation = with_validation.then(|| self.learner.evaluate(Subset::Validation));
        let test = self.learner.evaluate(Subset::Test);
        let of_any = |score: Score| (score.n_samples > 0).then_some(score);
        Ok(Evaluations {
            validation: validation.and_then(|validation| of_any(validation.score)),
            test: of_any(test.score),
            expert_share: test.expert_share,
        })
    }

    fn state(&self) -> ParamSet {
        self.learner.state()
    }

    fn restore(&mut self, state: &ParamSet) -> Result<(), TrainerError> {
        self.learner.restore(state).map_err(error)
    }

    fn describe(&self) -> TrainerCard {
        self.card.clone()
    }
}

fn progress(now: Progress) -> TrainProgress {
    let Progress {
        epoch,
        epochs,
        batch,
        batches,
        loss,
    } = now;
    TrainProgress {
        epoch,
        epochs,
        batch,
        batches,
        loss,
    }
}

fn error(error: LearnError) -> TrainerError {
    let text = error.to_string();
    match error {
        LearnError::Abandoned => TrainerError::Abandoned,
        LearnError::Diverged { .. } | LearnError::Config(_) | LearnError::Room(_) => {
            TrainerError::Training(text)
        }
        LearnError::NoTrainingSamples
        | LearnError::Classes { .. }
        | LearnError::ClassNames { .. }
        | LearnError::SampleShape { .. }
        | LearnError::Vocabulary { .. } => TrainerError::Data(text),
        LearnError::Layout { .. }
        | LearnError::NotFinite { .. }
        | LearnError::NoSuchPart(_)
        | LearnError::NothingInitial { .. }
        | LearnError::Params(_) => TrainerError::Misfit(text),
    }
}
