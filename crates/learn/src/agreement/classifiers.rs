//! The classifiers that a node keeps, one of each source, and its prior. They are its private part, so its state holds them.

use std::ops::Range;

use burn::tensor::Device;
use fednode_core::Component;
use fednode_mix::slots::{SLOTS, Slots};
use fednode_mix::statistics::Discriminant;
use serde::{Deserialize, Serialize};

use super::doubles;
use crate::algorithm::{Part, Role};
use crate::class_statistics::upload;
use crate::model::{Initial, Net};
use crate::weights::Weights;

/// Where the arrays are.
const WEIGHTS_ARRAY: usize = 0;
const OFFSETS_ARRAY: usize = 1;
const SHARES_ARRAY: usize = 2;
const PRIOR_ARRAY: usize = 3;

/// Whose statistics are served, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Source {
    /// Those of the node and of the peers that agree.
    Peers,
    /// The node's own alone.
    Own,
    /// Those of the node and of the peers that agree, with slots within the classes.
    Slots,
}

impl Source {
    /// Returns what it is called in what is served.
    pub(super) const fn component(self) -> Component {
        match self {
            Self::Peers => Component::PeersStatistics,
            Self::Own => Component::OwnStatistics,
            Self::Slots => Component::Slots,
        }
    }

    /// Slots of a class.
    const fn per_class(self) -> usize {
        match self {
            Self::Peers | Self::Own => 1,
            Self::Slots => SLOTS,
        }
    }

    /// Returns where its rows are among those of all classifiers.
    const fn rows(self, classes: usize) -> Range<usize> {
        let first = match self {
            Self::Peers => 0,
            Self::Own => 1,
            Self::Slots => 2,
        };
        first * classes..(first + self.per_class()) * classes
    }
}

/// Rows of all classifiers for each class.
const ROWS: usize = 2 + SLOTS;

/// All classifiers, each with its rows of the same arrays.
pub(super) struct Classifiers {
    /// The arrays: weights, offsets, logarithms of the slots' shares, and the prior.
    pub(super) part: Part,
    classes: usize,
}

impl Classifiers {
    /// Makes classifiers that are all zero: there is none yet.
    pub(super) fn new(classes: usize, width: usize, device: &Device) -> Self {
        let zero = Initial::Zeros;
        let rows = ROWS * classes;
        let arrays = Net::arrays(&[
            ("agreement.weights", &[rows, width], zero),
            ("agreement.offsets", &[rows], zero),
            ("agreement.shares", &[rows], zero),
            ("agreement.prior", &[classes], zero),
        ]);
        Self {
            part: Part::new(Role::Private, arrays, 0, 0, device),
            classes,
        }
    }

    /// Returns a source's classifier; nothing where it is all zero, as of features that are all alike.
    pub(super) fn of(&self, source: Source) -> Option<Slots> {
        let rows = source.rows(self.classes);
        let of = |array: usize| {
            let all = self.array(array);
            let one = self.numbers_of_row(&all);
            all[rows.start * one..rows.end * one].to_vec()
        };
        let slots = Slots {
            rows: Discriminant::new(of(WEIGHTS_ARRAY), of(OFFSETS_ARRAY)),
            log_shares: of(SHARES_ARRAY),
            per_class: source.per_class(),
        };
        let is_there = slots.rows.weights.iter().any(|weight| *weight != 0.0);
        is_there.then_some(slots)
    }

    /// Returns the prior, a share for each class.
    pub(super) fn prior(&self) -> Vec<f64> {
        self.array(PRIOR_ARRAY)
    }

    /// Writes a source's classifier.
    pub(super) fn write(&mut self, source: Source, slots: &Slots, device: &Device) {
        let mut arrays = self.arrays();
        let rows = source.rows(self.classes);
        let written = [&slots.rows.weights, &slots.rows.offsets, &slots.log_shares];
        // The prior is last, and no classifier's.
        for (array, written) in arrays.iter_mut().zip(written) {
            let one = self.numbers_of_row(array);
            array[rows.start * one..rows.end * one].copy_from_slice(written);
        }
        self.put(arrays, device);
    }

    /// Deletes a source's classifier: there is none.
    pub(super) fn erase(&mut self, source: Source, device: &Device) {
        let mut arrays = self.arrays();
        let rows = source.rows(self.classes);
        for array in &mut arrays[..PRIOR_ARRAY] {
            let one = self.numbers_of_row(array);
            array[rows.start * one..rows.end * one].fill(0.0);
        }
        self.put(arrays, device);
    }

    /// Writes the prior.
    pub(super) fn write_prior(&mut self, prior: Vec<f64>, device: &Device) {
        let mut arrays = self.arrays();
        arrays[PRIOR_ARRAY] = prior;
        self.put(arrays, device);
    }

    fn numbers_of_row(&self, array: &[f64]) -> usize {
        array.len() / (ROWS * self.classes)
    }

    fn arrays(&self) -> [Vec<f64>; 4] {
        [WEIGHTS_ARRAY, OFFSETS_ARRAY, SHARES_ARRAY, PRIOR_ARRAY].map(|array| self.array(array))
    }

    fn array(&self, array: usize) -> Vec<f64> {
        doubles(&self.part.weights.tensor(array))
    }

    fn put(&mut self, arrays: [Vec<f64>; 4], device: &Device) {
        let tensors = arrays.map(|values| upload(&values, device));
        self.part.weights = Weights::new(tensors.to_vec());
    }
}
