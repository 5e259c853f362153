//! The object a node owns: its model, its data, and what can be done with them.
//!
//! The learner trains, scores and predicts; it does not know rounds' phases, peers or files. Parameters go in and out as
//! [`ParamSet`]s. Everything is determined by the spec, the node's seed and the data: two learners with the same three
//! hold the same bits after the same calls.

use std::borrow::{Borrow, Cow};
use std::sync::Arc;

use burn::tensor::Tensor;
use fednode_core::spec::{Architecture, Fingerprints};
use fednode_core::work::{Update, Watch};
use fednode_core::{FederationSpec, Layout, ParamSet, ProxySet, Round, Slot};
use fednode_data::{Samples, Split};
use fednode_mix::statistics::robust::Limits;

use crate::agreement::Agreement;
use crate::algorithm;
use crate::batch;
use crate::device::ComputeDevice;
use crate::error::LearnError;
use crate::evaluate::{self, Evaluation, Prediction};
use crate::feature_cache::CacheBudget;
use crate::metric::Judge;
use crate::pool::{Mixture, PoolSettings};
use crate::private::Promise;
use crate::regression::Regression;
use crate::train::{self, Epochs};

use self::ahead::Ahead;
use self::parts::Parts;
use self::places::Places;
use self::preparing::Preparation;
use self::training::{Stretch, Training};

mod agreeing;
mod ahead;
mod checking;
mod columns;
mod composing;
mod exporting;
mod exposing;
mod guarding;
mod initial;
mod judging;
mod parts;
mod peers;
mod places;
mod pool;
mod preparing;
mod state;
mod statistics;
mod training;
mod trying;
mod usefulness;

/// One of the three divisions of a node's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subset {
    /// What the model is trained on.
    Train,
    /// Held-out samples of the training data; the only ones that may influence a choice.
    Validation,
    /// Seen by reported scores only.
    Test,
}

/// A node's model and data.
pub struct Learner {
    parts: Parts,
    data: Arc<Split>,
    training: Training,
    model: Architecture,
    fingerprints: Fingerprints,
    /// The number that is predicted, if it is no class.
    places: Places,
    /// Whether its samples are features that a backbone made of images.
    is_behind_backbone: bool,
    /// From which distance on others' statistics are not believed.
    limits: Limits,
    /// Judges by the measure that the spec names, if it names one.
    judge: Option<Judge>,
    /// What each round is.
    schedule: fednode_core::Schedule,
    /// How the pool stage goes; what is served after it is in `pool`.
    pub(crate) pool_settings: PoolSettings,
    initial_shared: Option<ParamSet>,
    /// What is served instead of the own module alone, after the pool stage.
    pool: Option<Mixture>,
    /// The epochs of the next local update that are trained already.
    ahead: Option<Ahead>,
}

impl std::fmt::Debug for Learner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Learner")
            .field("device", &self.parts.device)
            .finish_non_exhaustive()
    }
}

impl Learner {
    /// Builds the algorithm that the spec names, with initial parameters drawn from the spec's seed. `node_seed` decides
    /// the order of this node's samples; give each node its own, for example the number of its shard.
    ///
    /// # Errors
    /// Fails on an unknown algorithm, model or hyper-parameter, on an exchange that is not the algorithm's, on data
    /// that does not fit the model, and on an empty training set.
    pub fn new(
        spec: &FederationSpec,
        node_seed: u64,
        data: Arc<Split>,
        device: &ComputeDevice,
    ) -> Result<Self, LearnError> {
        algorithm::check_exchange(spec)?;
        let model = spec.architecture();
        let places = Places::of(spec.data.target.as_ref());
        let data = places.split(data)?;
        let is_raw = !spec.data.columns.is_empty();
        let preparation = is_raw
            .then(|| device.run(|| Preparation::new(spec, Arc::clone(&data), device.tensors())));
        let data = preparation.as_ref().map_or(data, Preparation::split);
        for samples in [&data.train, &data.validation, &data.test] {
            batch::check(samples, &model, &spec.fingerprints)?;
        }
        if data.train.is_empty() {
            return Err(LearnError::NoTrainingSamples);
        }
        let mut learner = Self {
            parts: Parts {
                preparation,
                ..Parts::build(spec, device)?
            },
            data,
            training: Training::of(spec, node_seed),
            model,
            fingerprints: spec.fingerprints.clone(),
            places,
            is_behind_backbone: spec.model.backbone.is_some(),
            limits: Limits {
                distance: spec.statistics.max_distance,
                weight: spec.round.max_weight,
            },
            judge: Judge::of(spec)?,
            schedule: fednode_core::Schedule::of(spec),
            pool_settings: PoolSettings::of(&spec.pool),
            initial_shared: None,
            pool: None,
            ahead: None,
        };
        if let Some(round) = learner.schedule.statistics_round() {
            learner.parts.statistics = Some((round, learner.empty_statistics(spec)?));
        }
        if Agreement::is_wanted(spec) {
            learner.parts.agreement = Some(learner.new_agreement(spec)?);
        }
        if Regression::is_wanted(spec) {
            learner.parts.regression = Some(learner.new_regression(spec)?);
        }
        learner.parts.noised = learner.new_noised(spec)?;
        learner.initial_shared = learner.shared();
        learner.training.promise = Promise::of(spec, node_seed, learner.data.train.len())?;
        Ok(learner)
    }

    /// Says where to keep what frozen parts make of the samples; by default [`CacheBudget::default`].
    pub fn keep_in(&mut self, budget: CacheBudget) {
        self.training.budget = budget;
    }

    /// Returns the shared part as it was in the beginning, the same on all nodes; its blob id is the lineage
    /// of round 1.
    pub fn initial_shared(&self) -> Option<ParamSet> {
        self.initial_shared.clone()
    }

    /// Trains all local epochs of a round, those that [`Self::train_ahead`] trained for it being done. `watch` is called
    /// after every batch. A pool that was assembled is dropped: it belongs to the parts from before.
    ///
    /// # Errors
    /// Fails when the watcher breaks off or the loss is no longer finite; all parameters are then those from before.
    pub fn local_update(
        &mut self,
        round: Round,
        watch: &mut Watch<'_>,
    ) -> Result<Update, LearnError> {
        let ahead = self.ahead.take().filter(|ahead| ahead.is_of(round));
        if self.prepares_in(round) {
            return Ok(self.report(train::Outcome::default()));
        }
        if self.gathers_statistics_in(round) {
            return self.checked_statistics(round);
        }
        let before = self.parts.snapshot();
        let mut stretch = Stretch {
            round,
            epochs: Epochs::All,
            run: train::train,
        };
        let outcome = match ahead {
            None => self.run(stretch, watch)?,
            Some(ahead) => {
                let received = self.parts.weights();
                let first;
                (first, stretch.epochs) = self.catch_up(ahead);
                let rest = self.run(stretch, watch);
                first.and_then(rest.inspect_err(|_| self.parts.put_back(received))?)
            }
        };
        self.renew_agreement(round);
        let update = self.report(outcome);
        let update = self.checked(round, update);
        if update.is_err() {
            self.parts.go_back(before)?;
            // It was chosen by what the refused parts predict.
            self.choose_agreement();
        }
        update
    }

    /// Trains for this node alone after the last round, if the algorithm has such a stage: FedBABU tunes its head then.
    /// It starts from the parts as they are, the node's own from its last update or what it adopted since. `round` is the
    /// last round. Returns the steps of gradient descent, 0 if there is nothing to do.
    ///
    /// What comes out is personal as a whole, the shared part too: it is for use and export, not for another round.
    ///
    /// # Errors
    /// As [`Self::local_update`].
    pub fn finish(&mut self, round: Round, watch: &mut Watch<'_>) -> Result<u32, LearnError> {
        let stretch = Stretch {
            round,
            epochs: Epochs::All,
            run: train::finish,
        };
        self.run(stretch, watch).map(|outcome| outcome.steps)
    }

    /// Trains, or leaves all parameters as they are. A pool belongs to the parts from before.
    fn run(
        &mut self,
        stretch: Stretch,
        watch: &mut Watch<'_>,
    ) -> Result<train::Outcome, LearnError> {
        let samples = (&self.data, self.model.classes);
        let result = self.training.run(&mut self.parts, samples, stretch, watch);
        if result.as_ref().is_ok_and(|outcome| outcome.steps > 0) {
            self.pool = None;
        }
        result.map_err(|error| self.advised(error))
    }

    fn report(&self, outcome: train::Outcome) -> Update {
        let train::Outcome {
            train_loss,
            routed,
            steps,
            multiply_adds,
        } = outcome;
        let (n_samples, routed) = self.told(routed);
        let total = f64::from(routed.iter().sum::<u32>().max(1));
        Update {
            // What is added up once is nothing before.
            shared: self
                .shared()
                .filter(|_| !self.waits_for_total())
                .map(Arc::new),
            // Where statistics were gathered instead, nobody counted.
            experts: self
                .experts()
                .into_iter()
                .map(Arc::new)
                .zip(routed.iter().copied().chain(std::iter::repeat(0)))
                .collect(),
            proxies: self.proxies(),
            n_samples,
            train_loss,
            expert_share: routed
                .iter()
                .map(|count| f64::from(*count) / total)
                .collect(),
            steps,
            multiply_adds,
        }
    }

    /// Tells whether what is shared is added up in a later round.
    fn waits_for_total(&self) -> bool {
        let regression = self.parts.regression.as_ref();
        if regression.is_some_and(Regression::waits_for_total) {
            return true;
        }
        let agreement = self.parts.agreement.as_ref();
        match &self.parts.noised {
            Some(noised) => noised.has_total() && !noised.is_released(),
            None => agreement.is_some_and(Agreement::waits_for_total),
        }
    }

    /// Returns the current shared part, if the algorithm averages anything.
    pub fn shared(&self) -> Option<ParamSet> {
        self.parts.shared()
    }

    /// Returns the current experts in slot order.
    pub fn experts(&self) -> Vec<ParamSet> {
        self.parts.experts()
    }

    /// Returns the current gating proxies, if there is a gate.
    pub fn proxies(&self) -> Option<ProxySet> {
        self.parts.proxies()
    }

    /// Returns names and shapes of the shared part.
    pub fn shared_layout(&self) -> Option<Layout> {
        self.parts.shared_layout()
    }

    /// Takes over a shared part and experts, all or none of them. A pool that was assembled over others is dropped.
    ///
    /// # Errors
    /// Names the first part that this node does not have, does not fit or holds a value that is not finite.
    pub fn adopt<P: Borrow<ParamSet>>(
        &mut self,
        shared: Option<P>,
        experts: Vec<(Slot, P)>,
    ) -> Result<(), LearnError> {
        let believed = match &shared {
            Some(shared) => self.believed_groups(shared.borrow()),
            None => None,
        };
        let shared = match &believed {
            Some(believed) => Some(believed),
            None => shared.as_ref().map(Borrow::borrow),
        };
        let mut changes = Vec::new();
        let adopts_statistics = shared.is_some() && self.parts.shares_statistics();
        let adopts_shared = shared.is_some();
        if let Some(shared) = shared {
            changes.extend(self.parts.pick_shared(shared)?);
        }
        let mut mixed = Vec::new();
        for (slot, expert) in &experts {
            mixed.push((*slot, self.parts.pick_expert(*slot, expert.borrow())?));
        }
        // Statistics are no parts of the model; a pool stays as it is beside them.
        let is_empty = changes.is_empty() && mixed.is_empty();
        let changes_model = !is_empty && !adopts_statistics;
        self.parts.load(changes);
        self.take_experts(mixed);
        if adopts_shared {
            self.adopt_moments();
            self.adopt_total();
        }
        if changes_model {
            self.pool = None;
        }
        if adopts_statistics {
            self.adopt_statistics();
        }
        self.choose_agreement();
        Ok(())
    }

    /// Evaluates on one division of the node's data.
    pub fn evaluate(&self, subset: Subset) -> Evaluation {
        self.score(self.samples(subset))
    }

    fn samples(&self, subset: Subset) -> &Samples {
        match subset {
            Subset::Train => &self.data.train,
            Subset::Validation => &self.data.validation,
            Subset::Test => &self.data.test,
        }
    }

    /// Evaluates on other samples, for example everyone's.
    ///
    /// # Errors
    /// Fails on samples that do not fit the model.
    pub fn evaluate_on(&self, samples: &Samples) -> Result<Evaluation, LearnError> {
        self.places.check(samples)?;
        let samples = &*self.places.samples(self.features_of(samples)?);
        batch::check(samples, &self.model, &self.fingerprints)?;
        Ok(self.score(samples))
    }

    /// Returns what the model takes: the features of raw rows, other samples as they are.
    fn features_of<'a>(&self, samples: &'a Samples) -> Result<Cow<'a, Samples>, LearnError> {
        let Some(preparation) = &self.parts.preparation else {
            return Ok(Cow::Borrowed(samples));
        };
        preparation.check(samples)?;
        Ok(Cow::Owned(preparation.features(samples)))
    }

    fn score(&self, samples: &Samples) -> Evaluation {
        self.score_and(samples, |_| ())
    }

    fn score_and(&self, samples: &Samples, visit: impl FnMut(Prediction) + Send) -> Evaluation {
        let (classes, tensors) = (self.model.classes, self.parts.device.tensors());
        let forward = |inputs| self.forward(inputs);
        self.parts
            .device
            .run(|| evaluate::evaluate_and(&forward, samples, classes, tensors, visit))
    }

    /// Runs the model, with the pool if one is served, mixed with the statistics expert if there is one.
    fn forward(&self, inputs: Tensor<2>) -> algorithm::Output {
        let predictor = self.predictor();
        if let Some(regression) = &self.parts.regression {
            return regression.forward(&predictor, inputs);
        }
        match (&self.parts.statistics, &self.parts.agreement) {
            (Some((_, statistics)), _) => statistics.forward(&predictor, inputs),
            (None, Some(agreement)) => self.agreed(agreement, &predictor, inputs),
            (None, None) => predictor.forward(inputs),
        }
    }

    /// Predicts the class of each sample, or its number in the unit of the data; labels are not looked at.
    ///
    /// # Errors
    /// Fails on samples that do not fit the model.
    pub fn predict(&self, samples: &Samples) -> Result<Vec<Prediction>, LearnError> {
        let samples = &*self.features_of(samples)?;
        batch::check_inputs(samples, &self.model, &self.fingerprints)?;
        let predictions = self.parts.device.run(|| {
            evaluate::predict(
                &|inputs| self.forward(inputs),
                samples,
                self.parts.device.tensors(),
            )
        });
        let in_unit = |prediction| self.places.prediction(prediction);
        Ok(predictions.into_iter().map(in_unit).collect())
    }
}
