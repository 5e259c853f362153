//! What does not change while a gate or a module is trained, computed once (`pm-moe` §2.6, step 3).
//!
//! Backbone and members are frozen, so for every sample the inputs of the gate, what closing needs, and the output of
//! every member are constants; an epoch is then a few small products. All of it is kept where there is [`Room`]: as 32-bit
//! floats in memory, as 16-bit ones, which only affects what the gate is trained on, not what is served, in a file. Beyond
//! that a seeded draw of the samples is used; how many are left out is reported.

use std::ops::ControlFlow;

use burn::tensor::{Device, Tensor, TensorData};
use fednode_data::Samples;

use super::mixture::Member;
use super::settings::GateInput;
use crate::algorithm::{Algorithm, Modular, ModuleKind, Opened};
use crate::batch;
use crate::error::LearnError;
use crate::evaluate::BATCH;
use crate::gate::one_hot;
use crate::random::{self, Purpose};
use crate::room::{Place, Room, Rows};
use crate::train::{Progress, Watch};

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
    pub(super) algorithm: &'a dyn Algorithm,
    pub(super) modular: &'a dyn Modular,
    pub(super) classes: usize,
    pub(super) device: &'a Device,
    /// The federation's seed and the node's.
    pub(super) seeds: [u64; 2],
    pub(super) room: &'a Room,
    pub(super) keeps: Keeps,
    /// Epochs that follow, for whoever watches.
    pub(super) epochs: u32,
}

/// The constants of a node's samples.
#[derive(Debug)]
pub(super) struct Cache {
    pub(super) inputs: Rows,
    sides: Option<Rows>,
    /// One per member; vectors have one row for all samples.
    pub(super) outputs: Vec<Rows>,
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
            Err(LearnError::Room(_)) if source.room.folder.is_some() => {
                let room = &source.room.in_memory();
                Self::fill_once(&Source { room, ..*source }, members, samples, watch)
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
        let Source {
            modular,
            classes,
            device,
            epochs,
            ..
        } = *source;
        let is_constant = modular.module().kind == ModuleKind::Vector;
        let (positions, place) = source.plan(members, samples);
        let n_rows = positions.len();
        let n_outputs = if is_constant { n_rows.min(1) } else { n_rows };
        let label = |at: &u32| usize::from(samples.labels[*at as usize]);
        let mut cache = Self {
            inputs: Rows::new(&place, n_rows),
            sides: None,
            outputs: members
                .iter()
                .map(|_| Rows::new(&place, n_outputs))
                .collect(),
            labels: positions.iter().map(label).collect(),
            classes,
        };
        let batches = n_rows.div_ceil(BATCH) as u32;
        for (batch, chunk) in (1..).zip(cache.chunks()) {
            let from: Vec<u32> = chunk.iter().map(|at| positions[*at as usize]).collect();
            let (kept, module_input, side) = source.open(batch::inputs(samples, &from, device));
            cache.inputs.put(&chunk, &kept)?;
            if let Some(side) = side {
                cache
                    .sides
                    .get_or_insert_with(|| Rows::new(&place, n_rows))
                    .put(&chunk, &side)?;
            }
            for (member, rows) in members.iter().zip(&mut cache.outputs) {
                if !is_constant {
                    rows.put(&chunk, &modular.run_module(member, module_input.clone()))?;
                } else if batch == 1 {
                    rows.put(
                        &[0],
                        &modular.run_module(member, module_input.clone().narrow(0, 0, 1)),
                    )?;
                }
            }
            if watch(Progress {
                epoch: 0,
                epochs,
                batch,
                batches,
                loss: 0.0,
            }) == ControlFlow::Break(())
            {
                return Err(LearnError::Abandoned);
            }
        }
        Ok(cache)
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
        let rows: Vec<&Rows> = members
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
    /// Opens the model for a batch: what is kept of it, what modules take, what closing needs.
    fn open(&self, inputs: Tensor<2>) -> (Tensor<2>, Tensor<2>, Option<Tensor<2>>) {
        let Opened {
            gate_input,
            module_input,
            side,
        } = self.modular.open(inputs.clone());
        let kept = match self.keeps {
            Keeps::GateInput(sees) => sees.input(self.algorithm, &inputs, gate_input),
            Keeps::ModuleInput => module_input.clone(),
        };
        (kept, module_input, side)
    }

    /// Decides which samples are looked at, and where their numbers are kept.
    fn plan(&self, members: &[Member], samples: &Samples) -> (Vec<u32>, Place) {
        // Numbers of words are names: they are kept exactly or not at all.
        let is_exact = self.keeps == Keeps::ModuleInput && samples.vocabulary().is_some();
        if samples.is_empty() {
            return (Vec::new(), Place::memory(is_exact));
        }
        let numbers = self.numbers_of_sample(members, samples, 0).max(1);
        let fits = |room: &Room| {
            let most = samples.len().min(room.most(is_exact) / numbers).max(1);
            room.place(most * numbers, is_exact)
                .map(|place| (most, place))
        };
        let found = fits(self.room).or_else(|| fits(&self.room.in_memory()));
        let (most, place) = found.unwrap_or_else(|| (1, Place::memory(is_exact)));
        (self.draw(most, samples.len()), place)
    }

    /// Draws so many of the samples, in their order.
    fn draw(&self, most: usize, samples: usize) -> Vec<u32> {
        if most >= samples {
            return (0..samples as u32).collect();
        }
        let mut rng = random::stream(Purpose::PoolSamples, [self.seeds[0], self.seeds[1], 0]);
        let mut drawn = random::permutation(&mut rng, samples as u32);
        drawn.truncate(most);
        drawn.sort_unstable();
        drawn
    }

    /// Counts the numbers that are kept of a sample.
    fn numbers_of_sample(&self, members: &[Member], samples: &Samples, at: u32) -> usize {
        let (kept, module_input, side) = self.open(batch::inputs(samples, &[at], self.device));
        let around = kept.dims()[1] + side.map_or(0, |side| side.dims()[1]);
        let is_constant = self.modular.module().kind == ModuleKind::Vector;
        let output = match members.first().filter(|_| !is_constant) {
            Some(member) => self.modular.run_module(member, module_input).dims()[1],
            None => 0,
        };
        around + members.len() * output
    }
}
