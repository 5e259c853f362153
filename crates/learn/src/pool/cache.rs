//! What does not change while a gate or a module is trained, computed once (`pm-moe` §2.6, step 3).
//!
//! Backbone and members are frozen, so for every sample the inputs of the gate, what closing needs, and the output of
//! every member are constants; an epoch is then a few small products. All of it is kept as 32-bit floats as long as that
//! takes no more than 256 MiB, else as 16-bit ones, which only affects what the gate is trained on, not what is served.
//! Beyond 1 GiB of those a seeded draw of the samples is used; how many are left out is reported.

use std::ops::ControlFlow;

use burn::tensor::{Device, Tensor, TensorData, f16};
use fednode_data::Samples;

use super::gate::Sees;
use super::mixture::Member;
use crate::algorithm::{Algorithm, Modular, ModuleKind, Opened};
use crate::batch;
use crate::error::LearnError;
use crate::evaluate::BATCH;
use crate::gate::one_hot;
use crate::random::{self, Purpose};
use crate::train::{Progress, Watch};
use crate::weights;

/// Most bytes as 32-bit floats.
const MAX_SINGLE_BYTES: usize = 256 << 20;
/// Most bytes at all.
const MAX_BYTES: usize = 1 << 30;

/// Rows of numbers.
#[derive(Debug)]
pub(super) struct Rows {
    width: usize,
    numbers: Numbers,
}

#[derive(Debug)]
enum Numbers {
    Single(Vec<f32>),
    Half(Vec<f16>),
}

/// How numbers are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Precision {
    Single,
    Half,
}

impl Rows {
    fn new(precision: Precision) -> Self {
        let numbers = match precision {
            Precision::Single => Numbers::Single(Vec::new()),
            Precision::Half => Numbers::Half(Vec::new()),
        };
        Self { width: 0, numbers }
    }

    fn push(&mut self, tensor: &Tensor<2>) {
        self.width = tensor.dims()[1];
        let values = weights::values(tensor);
        match &mut self.numbers {
            Numbers::Single(numbers) => numbers.extend(values),
            Numbers::Half(numbers) => numbers.extend(values.into_iter().map(f16::from_f32)),
        }
    }

    /// Returns how many numbers there are in a row.
    pub(super) const fn width(&self) -> usize {
        self.width
    }

    /// Returns how many rows there are.
    pub(super) fn len(&self) -> usize {
        let numbers = match &self.numbers {
            Numbers::Single(numbers) => numbers.len(),
            Numbers::Half(numbers) => numbers.len(),
        };
        numbers / self.width.max(1)
    }

    /// Returns one row.
    pub(super) fn row(&self, at: usize) -> Vec<f32> {
        let mut row = Vec::with_capacity(self.width);
        self.write(at, &mut row);
        row
    }

    fn write(&self, at: usize, to: &mut Vec<f32>) {
        let range = at * self.width..(at + 1) * self.width;
        match &self.numbers {
            Numbers::Single(numbers) => to.extend_from_slice(&numbers[range]),
            Numbers::Half(numbers) => to.extend(numbers[range].iter().map(|value| value.to_f32())),
        }
    }

    fn is_finite(&self) -> bool {
        match &self.numbers {
            Numbers::Single(numbers) => numbers.iter().all(|value| value.is_finite()),
            Numbers::Half(numbers) => numbers.iter().all(|value| value.is_finite()),
        }
    }

    fn tensor(&self, positions: &[u32], device: &Device) -> Tensor<2> {
        let mut values = Vec::with_capacity(positions.len() * self.width);
        positions.iter().for_each(|at| self.write(*at as usize, &mut values));
        Tensor::from_data(TensorData::new(values, [positions.len(), self.width]), device)
    }
}

/// Which input of an opened model is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keeps {
    /// What the gate judges by.
    GateInput(Sees),
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
    /// Opens the model for all samples and runs every member.
    ///
    /// # Errors
    /// Fails when the watcher breaks off; it sees this as epoch 0.
    pub(super) fn fill(
        source: &Source<'_>,
        members: &[Member],
        samples: &Samples,
        watch: &mut Watch<'_>,
    ) -> Result<Self, LearnError> {
        let Source { modular, classes, device, epochs, .. } = *source;
        let is_constant = modular.module().kind == ModuleKind::Vector;
        let (positions, precision) = source.plan(members, samples);
        let label = |at: &u32| usize::from(samples.labels[*at as usize]);
        let mut cache = Self {
            inputs: Rows::new(precision),
            sides: None,
            outputs: members.iter().map(|_| Rows::new(precision)).collect(),
            labels: positions.iter().map(label).collect(),
            classes,
        };
        let batches = positions.len().div_ceil(BATCH) as u32;
        for (batch, chunk) in (1..).zip(positions.chunks(BATCH)) {
            let (kept, module_input, side) = source.open(batch::inputs(samples, chunk, device));
            cache.inputs.push(&kept);
            if let Some(side) = side {
                cache.sides.get_or_insert_with(|| Rows::new(precision)).push(&side);
            }
            for (member, rows) in members.iter().zip(&mut cache.outputs) {
                if !is_constant {
                    rows.push(&modular.run_module(member, module_input.clone()));
                } else if rows.len() == 0 {
                    rows.push(&modular.run_module(member, module_input.clone().narrow(0, 0, 1)));
                }
            }
            if watch(Progress { epoch: 0, epochs, batch, batches, loss: 0.0 }) == ControlFlow::Break(()) {
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
        positions.iter().map(|at| self.labels[*at as usize]).collect()
    }

    /// Tells whether all outputs of a member are finite as they are kept.
    pub(super) fn is_finite(&self, member: usize) -> bool {
        self.outputs[member].is_finite()
    }

    /// Uploads some samples.
    pub(super) fn batch(&self, positions: &[u32], device: &Device) -> CachedBatch {
        CachedBatch {
            input: self.inputs.tensor(positions, device),
            side: self.sides.as_ref().map(|sides| sides.tensor(positions, device)),
            targets: one_hot(&self.labels(positions), self.classes, device),
        }
    }

    /// Uploads the outputs of some members for some samples, `[batch, members, D]`, or `[1, members, D]` if they are the
    /// same for all samples.
    pub(super) fn outputs(&self, positions: &[u32], members: &[usize], device: &Device) -> Tensor<3> {
        let rows: Vec<&Rows> = members.iter().map(|member| &self.outputs[*member]).collect();
        let width = rows[0].width;
        let is_constant = rows[0].len() < self.len() || self.len() == 1;
        let positions = if is_constant { &[0] } else { positions };
        let mut values = Vec::with_capacity(positions.len() * members.len() * width);
        for at in positions {
            rows.iter().for_each(|rows| rows.write(*at as usize, &mut values));
        }
        Tensor::from_data(TensorData::new(values, [positions.len(), members.len(), width]), device)
    }
}

impl Source<'_> {
    /// Opens the model for a batch: what is kept of it, what modules take, what closing needs.
    fn open(&self, inputs: Tensor<2>) -> (Tensor<2>, Tensor<2>, Option<Tensor<2>>) {
        let Opened { gate_input, module_input, side } = self.modular.open(inputs.clone());
        let kept = match self.keeps {
            Keeps::GateInput(sees) => sees.input(self.algorithm, &inputs, gate_input),
            Keeps::ModuleInput => module_input.clone(),
        };
        (kept, module_input, side)
    }

    /// Decides which samples are looked at and how their numbers are kept.
    fn plan(&self, members: &[Member], samples: &Samples) -> (Vec<u32>, Precision) {
        let all: Vec<u32> = (0..samples.len() as u32).collect();
        let Some(first) = all.first() else { return (all, Precision::Single) };
        let numbers = self.numbers_of_sample(members, samples, *first);
        let (most, precision) = match plan(numbers, samples.len()) {
            // Numbers of words are names: they are kept exactly or not at all.
            (most, Precision::Half) if self.keeps == Keeps::ModuleInput && samples.vocabulary().is_some() => {
                (most.min(MAX_BYTES / (4 * numbers)), Precision::Single)
            }
            planned => planned,
        };
        if most >= samples.len() {
            return (all, precision);
        }
        let mut rng = random::stream(Purpose::PoolSamples, [self.seeds[0], self.seeds[1], 0]);
        let mut drawn = random::permutation(&mut rng, samples.len() as u32);
        drawn.truncate(most);
        drawn.sort_unstable();
        (drawn, precision)
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

/// Returns how many samples may be looked at, each with so many numbers, and how these are kept.
fn plan(numbers_per_sample: usize, samples: usize) -> (usize, Precision) {
    let per_sample = numbers_per_sample.max(1);
    if samples <= MAX_SINGLE_BYTES / (4 * per_sample) {
        return (samples, Precision::Single);
    }
    (samples.min((MAX_BYTES / (2 * per_sample)).max(1)), Precision::Half)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded() {
        // 6413 samples: features of 512 and 20 heads, then images and 20 extractors (263 MB of outputs as 32-bit floats,
        // `pm-moe` §2.6), then a thousand extractors.
        assert_eq!(plan(512 + 20 * 10, 6413), (6413, Precision::Single));
        assert_eq!(plan(784 + 20 * 512, 6413), (6413, Precision::Half));
        assert_eq!(plan(784 + 1000 * 512, 6413), ((1 << 30) / 1_025_568, Precision::Half));
    }

    #[test]
    fn halves_come_back_as_near_as_they_can() {
        let mut rows = Rows::new(Precision::Half);
        rows.push(&Tensor::from_floats([[1.0, 0.1], [-2.5, 1e-3]], &Device::flex()));
        assert_eq!((rows.len(), rows.width(), rows.is_finite()), (2, 2, true));
        assert!(rows.row(0).iter().zip([1.0, 0.1]).all(|(got, expected)| (got - expected).abs() < 1e-4));
        rows.push(&Tensor::from_floats([[1e6, 0.0]], &Device::flex()));
        assert!(!rows.is_finite());
    }
}
