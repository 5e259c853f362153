//! The pool stage of a learner (`pool`): its private module goes out, others' come in, and a mixture may be served.
//!
//! A pool belongs to the parts that it was assembled over: training, adopting parts, and fine-tuning or assembling anew
//! drop it, and the node predicts with its own module again. Gathering and adopting statistics change none of these parts,
//! so the pool stays; the statistics expert is mixed on top of it.

use std::borrow::Cow;
use std::sync::Arc;

use burn::tensor::Tensor;
use fednode_core::work::{PrivateModule, Watch};
use fednode_core::{Layout, NodeId, ParamSet, PoolOutcome, Served};

use super::parts::check;
use super::training::count;
use super::{Learner, Subset};
use crate::algorithm::Modular;
use crate::error::LearnError;
use crate::memory::Memory;
use crate::pool::{self, GateInput, Meter, Mixture, Node, PREFIX, PoolSettings, Predictor};

impl Learner {
    /// Returns the private module as it is now, with its accuracy on the validation samples; nothing if the algorithm
    /// has none.
    pub fn module(&self) -> Option<PrivateModule> {
        let modular = self.parts.algorithm.modular()?;
        let algorithm = self.parts.algorithm.as_ref();
        let save = || {
            pool::save(
                pool::parts(algorithm, modular),
                &pool::own(algorithm, modular),
            )
        };
        Some(PrivateModule {
            kind: modular.module().kind.name().to_owned(),
            params: Arc::new(self.parts.device.run(save)),
            // Under a promise not even validation samples tell anything.
            score: match self.training.promise {
                Some(_) => 0.0,
                None => self.evaluate(Subset::Validation).score.accuracy,
            },
        })
    }

    /// Returns names and shapes of a private module; all nodes' have the same.
    pub fn module_layout(&self) -> Option<Layout> {
        let modular = self.parts.algorithm.modular()?;
        Some(pool::layout(pool::parts(
            self.parts.algorithm.as_ref(),
            modular,
        )))
    }

    /// Tells whether a mixture of modules is served.
    pub fn serves_pool(&self) -> bool {
        self.pool.is_some()
    }

    /// Fine-tunes the private module on the node's own samples before it is published, the rest of the model frozen; the
    /// step size and batch size are those of local updates, the epochs the pool's. With the guard the epoch of the
    /// lowest validation loss stays, or the module as it was if none is lower, or if there are no validation samples.
    /// `watch` is called after every batch, epoch 0 being the computation of the module's inputs.
    ///
    /// Returns the steps of gradient descent; nothing if the module is an extractor, which is not fine-tuned because
    /// its inputs are the samples themselves. A pool that was assembled before is dropped.
    ///
    /// # Errors
    /// Fails if the algorithm has no private module, and when the watcher breaks off; nothing is changed then.
    pub fn fine_tune_module(
        &mut self,
        spec: &PoolSettings,
        watch: &mut Watch<'_>,
    ) -> Result<Option<u32>, LearnError> {
        let node = self.node()?;
        if !node.is_tunable() {
            return Ok(None);
        }
        let tune = || {
            pool::fine_tune(
                &node,
                spec,
                &mut Meter {
                    watch,
                    epoch: 0,
                    epochs: spec.epochs,
                },
            )
        };
        let (tuned, steps) = self.parts.device.run(tune)?;
        let parts = node.modular.module().parts;
        for (part, weights) in self.parts.algorithm.parts_mut()[parts]
            .iter_mut()
            .zip(tuned)
        {
            part.weights = weights;
        }
        self.pool = None;
        self.choose_again();
        Ok(Some(steps))
    }

    /// Assembles a pool of the own module and others' (`pool`). Checks them, drops those that fit least and trains a
    /// gate over the rest. Serves the mixture if the validation samples do not speak against it. `members` are foreign
    /// modules whose hashes were verified; those that do not fit are left out and named in the outcome. The result does
    /// not depend on their order. `watch` is called after every batch, epoch 0 being the computation of what stays
    /// constant.
    ///
    /// Where statistics are served beside it, the mixture must do them good, too. It is left out if the log loss of both together
    /// is larger on the validation samples than that of the own module with them. A mixture that gives the same answers
    /// and is less sure of them tells the statistics less.
    ///
    /// A mixture that is served goes into [`Self::state`] and [`Self::private_state`]. With the statistics expert, its
    /// temperature and weight are chosen anew, the pool's prediction taking the place of the own one. No expert is named
    /// in predictions of a mixture, for it is made of several.
    ///
    /// # Errors
    /// Fails if the algorithm has no private module, and when the watcher breaks off; nothing is changed then.
    pub fn assemble_pool(
        &mut self,
        spec: &PoolSettings,
        members: Vec<(NodeId, Arc<ParamSet>)>,
        watch: &mut Watch<'_>,
    ) -> Result<PoolOutcome, LearnError> {
        let node = self.node()?;
        let (mut outcome, mixture) = self
            .parts
            .device
            .run(|| pool::assemble(&node, spec, members, watch))?;
        debug_assert_eq!(
            mixture.is_some(),
            outcome.served == Served::Mixture,
            "what is served is what is reported"
        );
        self.pool = None;
        self.choose_again();
        let alone = self.serves_statistics().then(|| self.validation_loss());
        self.pool = mixture;
        self.choose_again();
        if spec.guard
            && outcome.served == Served::Mixture
            && alone.is_some_and(|alone| self.validation_loss() > alone)
        {
            let reason = "joined with statistics, the mixture is worse than the own module on the validation samples";
            outcome.served = Served::Own {
                reason: reason.to_owned(),
            };
            self.pool = None;
            self.choose_again();
        }
        Ok(outcome)
    }

    /// Returns the log loss of what is served on the validation samples.
    fn validation_loss(&self) -> f64 {
        self.evaluate(Subset::Validation).score.loss
    }

    fn node(&self) -> Result<Node<'_>, LearnError> {
        let algorithm = self.parts.algorithm.as_ref();
        let modular = algorithm
            .modular()
            .ok_or_else(|| LearnError::NoSuchPart("private module".into()))?;
        Ok(Node {
            algorithm,
            modular,
            data: &self.data,
            training: &self.training.spec,
            classes: self.model.classes,
            device: self.parts.device.tensors(),
            seeds: [self.training.seed, self.training.node_seed],
            budget: &self.training.budget,
            judge: self.judge,
        })
    }

    /// Returns what predicts, before statistics.
    pub(super) fn predictor(&self) -> Predictor<'_> {
        Predictor {
            algorithm: self.parts.algorithm.as_ref(),
            pool: self.pool.as_ref(),
        }
    }

    /// Chooses anew how statistics are joined with the own model, because that is another one now.
    fn choose_again(&mut self) {
        let class_counts = count(&self.data.train, self.model.classes);
        let predictor = Predictor {
            algorithm: self.parts.algorithm.as_ref(),
            pool: self.pool.as_ref(),
        };
        let (validation, tensors) = (&self.data.validation, self.parts.device.tensors());
        if let Some((_, statistics)) = &mut self.parts.statistics {
            self.parts
                .device
                .run(|| statistics.choose_again(&predictor, &class_counts, validation, tensors));
            self.guard();
        }
        self.choose_agreement();
    }

    /// Returns the pool's share in the state.
    pub(super) fn pool_state(&self) -> ParamSet {
        let (Some(pool), Some(modular)) = (&self.pool, self.parts.algorithm.modular()) else {
            return ParamSet::new();
        };
        let parts = pool::parts(self.parts.algorithm.as_ref(), modular);
        self.parts.device.run(|| pool.save(parts))
    }

    /// Reads the pool of a state, if it has one; returns the rest of the state with it.
    pub(super) fn read_pool<'a>(
        &self,
        state: &'a ParamSet,
        memory: Option<&Memory>,
    ) -> Result<(Option<Mixture>, Cow<'a, ParamSet>), LearnError> {
        let modular = match self.parts.algorithm.modular() {
            Some(modular) if state.iter().any(|(name, _)| name.starts_with(PREFIX)) => modular,
            // Without a private module, a pool is simply too much of a state.
            _ => return Ok((None, Cow::Borrowed(state))),
        };
        let (mut own, mut params) = (ParamSet::new(), ParamSet::new());
        for (name, tensor) in state.iter() {
            let set = if name.starts_with(PREFIX) {
                &mut params
            } else {
                &mut own
            };
            set.insert(name, tensor.shape(), tensor.values().to_vec())?;
        }
        check("the pool", &params, &params.layout())?;
        let memory = memory.map(Memory::read).transpose()?;
        let (parts, tensors) = (
            pool::parts(self.parts.algorithm.as_ref(), modular),
            self.parts.device.tensors(),
        );
        let loaded = self.parts.device.run(|| {
            Mixture::load(
                &params,
                memory,
                parts,
                |input| self.gate_inputs(modular, input),
                tensors,
            )
        });
        let mismatch = |mismatch| LearnError::Layout {
            part: "the pool".into(),
            mismatch,
        };
        Ok((Some(loaded.map_err(mismatch)?), Cow::Owned(own)))
    }

    /// Returns how wide is what a gate judges by.
    fn gate_inputs(&self, modular: &dyn Modular, input: GateInput) -> usize {
        let one = Tensor::zeros(
            [1, self.model.input.iter().product()],
            self.parts.device.tensors(),
        );
        let opened = modular.open(one.clone()).gate_input;
        pool::gate_input(input, self.parts.algorithm.as_ref(), &one, opened).dims()[1]
    }
}
