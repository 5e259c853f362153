//! What does not change while a gate or a module is trained, computed once.
//!
//! Backbone and members are frozen, so for every sample the inputs of the gate, what closing needs, and the output of
//! every member are constants; an epoch is then a few small products. All of it is kept as far as the [`CacheBudget`] allows: as 32-bit
//! floats in memory, as 16-bit ones, which only affects what the gate is trained on, not what is served, in a file. Beyond
//! that a seeded draw of the samples is used; how many are left out is reported.

use std::ops::ControlFlow;

use burn::tensor::{Device, Tensor, TensorData};
use fednode_data::Samples;

use super::gate;
use super::mixture::Member;
use super::settings::GateInput;
use super::{Node, train};
use crate::algorithm::{ModuleKind, Opened};
use crate::batch;
use crate::error::LearnError;
use crate::evaluate::BATCH;
use crate::feature_cache::{CacheBudget, CacheSpace, FeatureCache};
use crate::gate::one_hot;
use crate::random::{self, Purpose};
use fednode_core::work::{Progress, Watch};

/// Which input of an opened model is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keeps {
    /// What the gate judges by.
    GateInput(GateInput),
    /// What modules take.
    ModuleInput,
}

/// How a cache is filled.
pub(super) struct Source<'a> {
    pub(super) node: Node<'a>,
    pub(super) keeps: Keeps,
    /// Epochs that follow, for whoever watches.
    pub(super) epochs: u32,
}

/// The constants of a node's samples.
#[derive(Debug)]
pub(super) struct Cache {
    pub(super) inputs: FeatureCache,
    sides: Option<FeatureCache>,
    /// One per member; vectors have one row for all samples.
    pub(super) outputs: Vec<FeatureCache>,
    labels: Vec<usize>,
    classes: usize,
}

/// Some samples of a cache on the device.
pub(super) struct CachedBatch {
    /// `[batch, G]`.
    pub(super) input: Tensor<2>,
    /// `[batch, …]`.
    pub(super) side: Option<Tensor<2>>,
    /// `[batch, classes]`, a one at each label.
    pub(super) targets: Tensor<2>,
}

impl Cache {
    /// Opens the model for all samples and runs every member. Where the disk is full, it begins again without it.
    ///
    /// # Errors
    /// Fails when the watcher breaks off; it sees this as epoch 0.
    pub(super) fn fill(
        source: &Source<'_>,
        members: &[Member],
        samples: &Samples,
        watch: &mut Watch<'_>,
    ) -> Result<Self, LearnError> {
        match Self::fill_once(source, members, samples, watch) {
            Err(LearnError::Cache(_)) if source.node.budget.folder.is_some() => {
                let budget = &source.node.budget.in_memory();
                let node = Node {
                    budget,
                    ..source.node
                };
                Self::fill_once(&Source { node, ..*source }, members, samples, watch)
            }
            result => result,
        }
    }

    fn fill_once(
        source: &Source<'_>,
        members: &[Member],
        samples: &Samples,
        watch: &mut Watch<'_>,
    ) -> Result<Self, LearnError> {
        let (positions, space) = source.plan(members, samples);
        let n_rows = positions.len();
        let n_outputs = if source.is_constant() {
            n_rows.min(1)
        } else {
            n_rows
        };
        let output = |_: &Member| FeatureCache::new(&space, n_outputs);
        let label = |at: &u32| usize::from(samples.labels[*at as usize]);
        let mut cache = Self {
            inputs: FeatureCache::new(&space, n_rows),
            sides: None,
            outputs: members.iter().map(output).collect(),
            labels: positions.iter().map(label).collect(),
            classes: source.node.classes,
        };
        let batches = n_rows.div_ceil(BATCH) as u32;
        for (batch, chunk) in (1..).zip(cache.chunks()) {
            let from: Vec<u32> = chunk.iter().map(|at| positions[*at as usize]).collect();
            let inputs = batch::inputs(samples, &from, source.node.device);
            cache.put(source, members, &space, &chunk, inputs)?;
            let progress = Progress {
                epoch: 0,
                epochs: source.epochs,
                batch,
                batches,
                loss: None,
            };
            if watch(progress) == ControlFlow::Break(()) {
                return Err(LearnError::Abandoned);
            }
        }
        Ok(cache)
    }

    /// Opens the model for the samples at some positions, and runs every member on them.
    fn put(
        &mut self,
        source: &Source<'_>,
        members: &[Member],
        space: &CacheSpace,
        positions: &[u32],
        inputs: Tensor<2>,
    ) -> Result<(), LearnError> {
        let n_rows = self.len();
        let (kept, module_input, side) = source.open(inputs);
        self.inputs.put(positions, &kept)?;
        if let Some(side) = side {
            let sides = self
                .sides
                .get_or_insert_with(|| FeatureCache::new(space, n_rows));
            sides.put(positions, &side)?;
        }
        let run = |member, input| source.node.modular.run_module(member, input);
        for (member, rows) in members.iter().zip(&mut self.outputs) {
            if !source.is_constant() {
                rows.put(positions, &run(member, module_input.clone()))?;
            } else if positions.contains(&0) {
                let first = module_input.clone().narrow(0, 0, 1);
                rows.put(&[0], &run(member, first))?;
            }
        }
        Ok(())
    }

    /// Returns the number of samples.
    pub(super) fn len(&self) -> usize {
        self.labels.len()
    }

    /// Returns all samples, a batch at a time.
    pub(super) fn chunks(&self) -> Vec<Vec<u32>> {
        let positions: Vec<u32> = (0..self.len() as u32).collect();
        positions.chunks(BATCH).map(<[u32]>::to_vec).collect()
    }

    /// Returns the labels of some samples.
    pub(super) fn labels(&self, positions: &[u32]) -> Vec<usize> {
        positions
            .iter()
            .map(|at| self.labels[*at as usize])
            .collect()
    }

    /// Tells whether all outputs of a member are finite as they are kept.
    pub(super) fn is_finite(&self, member: usize) -> bool {
        self.outputs[member].is_finite()
    }

    /// Returns the mean loss of a prediction `[batch, classes]` for all samples.
    ///
    /// # Errors
    /// Fails when they cannot be read back.
    pub(super) fn mean_loss(
        &self,
        device: &Device,
        predict: impl Fn(&[u32], CachedBatch) -> Result<Tensor<2>, LearnError>,
    ) -> Result<f64, LearnError> {
        let mut sum = 0.0;
        for positions in &self.chunks() {
            let logits = predict(positions, self.batch(positions, device)?)?;
            sum += train::log_loss(&logits, &self.labels(positions));
        }
        Ok(sum / self.len().max(1) as f64)
    }

    /// Uploads some samples.
    ///
    /// # Errors
    /// Fails when they cannot be read back.
    pub(super) fn batch(
        &self,
        positions: &[u32],
        device: &Device,
    ) -> Result<CachedBatch, LearnError> {
        Ok(CachedBatch {
            input: self.inputs.tensor(positions, device)?,
            side: self
                .sides
                .as_ref()
                .map(|sides| sides.tensor(positions, device))
                .transpose()?,
            targets: one_hot(&self.labels(positions), self.classes, device),
        })
    }

    /// Uploads the outputs of some members for some samples, `[batch, members, D]`, or `[1, members, D]` if they are the
    /// same for all samples.
    ///
    /// # Errors
    /// Fails when they cannot be read back.
    pub(super) fn outputs(
        &self,
        positions: &[u32],
        members: &[usize],
        device: &Device,
    ) -> Result<Tensor<3>, LearnError> {
        let rows: Vec<&FeatureCache> = members
            .iter()
            .map(|member| &self.outputs[*member])
            .collect();
        let width = rows[0].width();
        let is_constant = rows[0].len() < self.len() || self.len() == 1;
        let positions = if is_constant { &[0] } else { positions };
        let mut values = Vec::with_capacity(positions.len() * members.len() * width);
        for at in positions {
            rows.iter()
                .try_for_each(|rows| rows.write(*at as usize, &mut values))?;
        }
        Ok(Tensor::from_data(
            TensorData::new(values, [positions.len(), members.len(), width]),
            device,
        ))
    }
}

impl Source<'_> {
    /// Tells whether a member's output is the same for all samples.
    fn is_constant(&self) -> bool {
        self.node.modular.module().kind == ModuleKind::Vector
    }

    /// Opens the model for a batch: what is kept of it, what modules take, what closing needs.
    fn open(&self, inputs: Tensor<2>) -> (Tensor<2>, Tensor<2>, Option<Tensor<2>>) {
        let Opened {
            gate_input,
            module_input,
            side,
        } = self.node.modular.open(inputs.clone());
        let kept = match self.keeps {
            Keeps::GateInput(input) => gate::input(input, self.node.algorithm, &inputs, gate_input),
            Keeps::ModuleInput => module_input.clone(),
        };
        (kept, module_input, side)
    }

    /// Decides which samples are looked at, and where their numbers are kept.
    fn plan(&self, members: &[Member], samples: &Samples) -> (Vec<u32>, CacheSpace) {
        // Numbers of words are names: they are kept exactly or not at all.
        let is_exact = self.keeps == Keeps::ModuleInput && samples.vocabulary().is_some();
        if samples.is_empty() {
            return (Vec::new(), CacheSpace::memory(is_exact));
        }
        let numbers = self.numbers_of_sample(members, samples, 0).max(1);
        let fits = |budget: &CacheBudget| {
            let most = samples.len().min(budget.most(is_exact) / numbers).max(1);
            budget
                .space(most * numbers, is_exact)
                .map(|place| (most, place))
        };
        let budget = self.node.budget;
        let found = fits(budget).or_else(|| fits(&budget.in_memory()));
        let (most, place) = found.unwrap_or_else(|| (1, CacheSpace::memory(is_exact)));
        (self.draw(most, samples.len()), place)
    }

    /// Draws so many of the samples, in their order.
    fn draw(&self, most: usize, samples: usize) -> Vec<u32> {
        if most >= samples {
            return (0..samples as u32).collect();
        }
        let [seed, node_seed] = self.node.seeds;
        let mut rng = random::stream(Purpose::PoolSamples, [seed, node_seed, 0]);
        let mut drawn = random::permutation(&mut rng, samples as u32);
        drawn.truncate(most);
        drawn.sort_unstable();
        drawn
    }

    /// Counts the numbers that are kept of a sample.
    fn numbers_of_sample(&self, members: &[Member], samples: &Samples, at: u32) -> usize {
        let (kept, module_input, side) = self.open(batch::inputs(samples, &[at], self.node.device));
        let around = kept.dims()[1] + side.map_or(0, |side| side.dims()[1]);
        let output = match members.first().filter(|_| !self.is_constant()) {
            Some(member) => self.node.modular.run_module(member, module_input).dims()[1],
            None => 0,
        };
        around + members.len() * output
    }
}
