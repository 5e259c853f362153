//! A node's training samples on a GPU, uploaded once and not again in every batch of every epoch.
//!
//! ```text
//! once per node      samples ─► inputs [n, features], targets [n, classes]
//! once per epoch     order   ─► [n]
//! every batch        a slice of the order chooses rows; nothing is uploaded
//! ```
//!
//! The CPU gathers rows faster by itself, so nothing is resident there.

use std::ops::Range;

use burn::tensor::{Device, Int, Tensor, TensorData};
use fednode_data::Samples;

use crate::batch::Batch;
use crate::device;

/// Most bytes of the inputs: what every Vulkan driver offers as one buffer. With more, batches are uploaded one by one.
const MOST_BYTES: usize = 128 << 20;

/// The samples on the device.
#[derive(Debug)]
pub(crate) struct Resident {
    inputs: Tensor<2>,
    targets: Tensor<2>,
}

impl Resident {
    /// Uploads samples; nothing on the CPU, and of samples that are too many.
    pub(crate) fn upload(samples: &Samples, classes: usize, device: &Device) -> Option<Self> {
        let values = samples.values_per_sample().max(classes);
        if device::is_cpu(device) || samples.len() * values * size_of::<f32>() > MOST_BYTES {
            return None;
        }
        Some(Self::whole(samples, classes, device))
    }

    /// Uploads samples, wherever that is and however many they are.
    pub(crate) fn whole(samples: &Samples, classes: usize, device: &Device) -> Self {
        let all: Vec<u32> = (0..samples.len() as u32).collect();
        let Batch { inputs, targets } = Batch::gather(samples, &all, classes, device);
        Self { inputs, targets }
    }

    /// Begins an epoch in this order.
    pub(crate) fn in_order(&self, order: &[u32]) -> Ordered<'_> {
        let rows: Vec<i32> = order.iter().map(|at| *at as i32).collect();
        let count = rows.len();
        let device = self.inputs.device();
        Ordered {
            samples: self,
            order: Tensor::from_data(TensorData::new(rows, [count]), &device),
        }
    }
}

/// The samples in the order of an epoch.
#[derive(Debug)]
pub(crate) struct Ordered<'a> {
    samples: &'a Resident,
    order: Tensor<1, Int>,
}

impl Ordered<'_> {
    /// Returns the samples at these places of the order.
    pub(crate) fn batch(&self, places: Range<usize>) -> Batch {
        let rows = self.order.clone().narrow(0, places.start, places.len());
        let Resident { inputs, targets } = self.samples;
        Batch {
            inputs: inputs.clone().select(0, rows.clone()),
            targets: targets.clone().select(0, rows),
        }
    }
}
