//! Samples on their way to the device, a bounded number at a time.

use burn::tensor::{Device, Tensor, TensorData};
use fednode_data::Samples;

use crate::error::LearnError;
use crate::gate::one_hot;

/// A few samples on the device.
#[derive(Debug)]
pub struct Batch {
    /// `[batch, features]`.
    pub inputs: Tensor<2>,
    /// `[batch, classes]`, a one at each sample's label.
    pub targets: Tensor<2>,
}

impl Batch {
    /// Uploads the samples at these positions, for a model with so many classes.
    pub fn gather(samples: &Samples, positions: &[u32], classes: usize, device: &Device) -> Self {
        let labels: Vec<usize> = positions.iter().map(|at| usize::from(samples.labels[*at as usize])).collect();
        Self { inputs: inputs(samples, positions, device), targets: one_hot(&labels, classes, device) }
    }
}

/// Uploads the values of the samples at these positions, `[batch, features]`.
pub(crate) fn inputs(samples: &Samples, positions: &[u32], device: &Device) -> Tensor<2> {
    let mut values = Vec::new();
    samples.write_batch(positions, &mut values);
    let shape = [positions.len(), samples.values_per_sample()];
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// Checks that samples fit a model of this input shape.
pub(crate) fn check_shape(samples: &Samples, shape: [usize; 3]) -> Result<(), LearnError> {
    match samples.shape == shape {
        true => Ok(()),
        false => Err(LearnError::SampleShape { got: samples.shape, expected: shape }),
    }
}

/// Checks that samples and their labels fit a model of this input shape and number of classes. Labels below the
/// data's own number of classes are [`Samples`]' promise; a shard may lack classes that others have.
pub(crate) fn check(samples: &Samples, shape: [usize; 3], classes: usize) -> Result<(), LearnError> {
    check_shape(samples, shape)?;
    match samples.classes <= classes {
        true => Ok(()),
        false => Err(LearnError::Classes { got: samples.classes, expected: classes }),
    }
}
