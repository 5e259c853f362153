//! What a learner knows as one set of numbers: for checkpoints, for export, and to become another node.

use std::borrow::Cow;
use std::sync::Arc;

use fednode_core::{Layout, ParamSet, Slot};
use fednode_data::Split;

use super::Learner;
use super::parts::check;
use super::parts::join;
use crate::agreement::Agreement;
use crate::algorithm::{Part, Role};
use crate::batch;
use crate::error::LearnError;
use crate::memory::NodeMemory;
use crate::noised::Noised;
use crate::pool::Mixture;
use crate::regression::Regression;

use super::preparing::Preparation;

impl Learner {
    /// Returns everything this node has learned, for checkpoints and export.
    ///
    /// Experts are under `experts.<slot>.`, the gate under `gate.`; a model without experts has the names that it has in
    /// PyTorch. A pool that is served is under `pool.`.
    pub fn state(&self) -> ParamSet {
        let prefixed = |part: &Part| {
            let mut params = ParamSet::new();
            let result = params.extend_prefixed(&part.prefix(), part.params());
            result
                .map(|()| params)
                .expect("prefixes are short and keep names distinct")
        };
        let own = self
            .parts
            .device
            .run(|| join(self.parts.of_role(|_| true).into_iter().map(prefixed)));
        let mut state = join([own, self.pool_state()].into_iter());
        self.memory().write(&mut state);
        state
    }

    /// Takes over a complete state, with a pool or without.
    ///
    /// # Errors
    /// Names the first parameter that is missing, too many, of another shape or not finite; nothing is changed then.
    pub fn restore(&mut self, state: &ParamSet) -> Result<(), LearnError> {
        self.restore_with(state, None)
    }

    /// As [`Self::restore`], with other raw samples if there are any.
    fn restore_with(
        &mut self,
        state: &ParamSet,
        raw: Option<Arc<Split>>,
    ) -> Result<(), LearnError> {
        let layout = |part: &Part| {
            let prefix = part.prefix();
            part.layout()
                .into_iter()
                .map(move |(name, shape)| (format!("{prefix}{name}"), shape))
                .collect::<Layout>()
        };
        let memory = NodeMemory::of(state)?;
        let (pool, own) = self.read_pool(state, memory.pool.as_ref())?;
        let (own, retired) = self.without_retired(own);
        check(
            "the state",
            &own,
            &self
                .parts
                .of_role(|_| true)
                .into_iter()
                .flat_map(layout)
                .collect(),
        )?;
        let changes = self.parts.pick(&own, |_| true, Part::prefix);
        let statistics_memory = memory.statistics.map(|memory| memory.read()).transpose()?;
        let algorithm = memory.algorithm.as_ref();
        self.parts.algorithm.recall(algorithm, &retired)?;
        self.parts.load(changes);
        (self.pool, self.ahead) = (pool, None);
        self.recall_moments(memory.preparation.as_ref(), raw)?;
        let tensors = self.parts.device.tensors();
        if let Some((_, statistics)) = &mut self.parts.statistics {
            self.parts.device.run(|| {
                statistics.recall(statistics_memory);
                statistics.solve(tensors);
            });
        }
        if let Some(agreement) = &mut self.parts.agreement {
            let memory = memory.agreement.as_ref();
            self.parts
                .device
                .run(|| agreement.recall(memory, tensors))?;
        }
        if let Some(regression) = &mut self.parts.regression {
            let memory = memory.regression.as_ref();
            let recall = || regression.recall(memory, tensors);
            self.parts.device.run(recall)?;
        }
        if let Some(noised) = &mut self.parts.noised {
            let memory = memory.noised.as_ref();
            self.parts.device.run(|| noised.recall(memory, tensors))?;
        }
        Ok(())
    }

    /// Returns the part of the state that is neither averaged nor an expert, under the names of [`Self::state`]; a pool
    /// that is served is in it.
    pub fn private_state(&self) -> ParamSet {
        let parts = self
            .parts
            .of_role(|role| matches!(role, Role::Gate | Role::Private));
        let own = self
            .parts
            .device
            .run(|| join(parts.into_iter().map(Part::params)));
        let mut state = join([own, self.pool_state()].into_iter());
        self.memory().write(&mut state);
        state
    }

    /// Becomes another node of the same federation: its data, its seed, and everything it has learned. One learner per
    /// thread is enough for a simulation of many nodes.
    ///
    /// # Errors
    /// As [`Self::new`] and [`Self::restore`]; nothing is changed then.
    pub fn become_node(
        &mut self,
        node_seed: u64,
        data: Arc<Split>,
        private: &ParamSet,
        shared: Option<&ParamSet>,
        experts: &[Arc<ParamSet>],
    ) -> Result<(), LearnError> {
        let data = self.places.split(data)?;
        let is_raw = self.parts.preparation.is_some();
        for samples in [&data.train, &data.validation, &data.test] {
            match &self.parts.preparation {
                Some(preparation) => preparation.check(samples)?,
                None => batch::check(samples, &self.model, &self.fingerprints)?,
            }
        }
        let mut state = private.clone();
        if let Some(shared) = shared {
            state.extend_prefixed("", shared.clone())?;
        }
        for (slot, expert) in (0..).map(Slot).zip(experts) {
            state.extend_prefixed(&Role::Expert(slot).prefix(), ParamSet::clone(expert))?;
        }
        self.restore_with(&state, is_raw.then(|| Arc::clone(&data)))?;
        self.training.node_seed = node_seed;
        if !is_raw {
            self.data = data;
        }
        if let Some(promise) = &mut self.training.promise {
            promise.become_node(node_seed, self.data.train.len())?;
        }
        Ok(())
    }

    /// Returns what the node remembers besides its numbers.
    fn memory(&self) -> NodeMemory {
        let statistics = self.parts.statistics.as_ref();
        NodeMemory {
            algorithm: self.parts.algorithm.memory(),
            statistics: statistics.and_then(|(_, statistics)| statistics.memory()),
            pool: self.pool.as_ref().map(Mixture::memory),
            agreement: self.parts.agreement.as_ref().and_then(Agreement::memory),
            regression: self.parts.regression.as_ref().and_then(Regression::memory),
            noised: self.parts.noised.as_ref().and_then(Noised::memory),
            preparation: self
                .parts
                .preparation
                .as_ref()
                .and_then(Preparation::memory),
        }
    }

    /// Takes out of a state the arrays that an older version kept in place of a memory.
    fn without_retired<'a>(&self, state: Cow<'a, ParamSet>) -> (Cow<'a, ParamSet>, ParamSet) {
        let is_retired = |name: &str| self.parts.algorithm.retired().contains(&name);
        let mut retired = ParamSet::new();
        if !state.iter().any(|(name, _)| is_retired(name)) {
            return (state, retired);
        }
        let mut own = ParamSet::new();
        for (name, tensor) in state.iter() {
            let set = if is_retired(name) {
                &mut retired
            } else {
                &mut own
            };
            set.insert(name, tensor.shape(), tensor.values().to_vec())
                .expect("a part of a set is a set");
        }
        (Cow::Owned(own), retired)
    }
}
