//! Samples on their way to the device, a bounded number at a time.

use burn::tensor::{Device, Tensor, TensorData};
use fednode_core::spec::{Architecture, Fingerprints};
use fednode_data::Samples;

use crate::augment::Augmenter;
use crate::error::LearnError;
use crate::gate::one_hot;

/// A few samples on the device.
#[derive(Debug)]
pub struct Batch {
    /// `[batch, features]`.
    pub inputs: Tensor<2>,
    /// `[batch, classes]`, a one at each sample's label; `[batch, 1]` where numbers are predicted.
    pub targets: Tensor<2>,
}

impl Batch {
    /// Uploads the samples at these positions, for a model with so many classes.
    pub fn gather(samples: &Samples, positions: &[u32], classes: usize, device: &Device) -> Self {
        Self {
            inputs: inputs(samples, positions, device),
            targets: targets(samples, positions, classes, device),
        }
    }

    /// Uploads the samples at these positions, cropped and flipped.
    pub(crate) fn gather_changed(
        samples: &Samples,
        positions: &[u32],
        classes: usize,
        device: &Device,
        augmenter: &mut Augmenter,
    ) -> Self {
        let mut values = Vec::new();
        samples.write_batch(positions, &mut values);
        augmenter.change(&mut values, samples);
        let shape = [positions.len(), samples.values_per_sample()];
        let inputs = Tensor::from_data(TensorData::new(values, shape), device);
        Self {
            inputs,
            targets: targets(samples, positions, classes, device),
        }
    }
}

/// Uploads the labels of the samples at these positions, `[batch, classes]`, or their numbers, `[batch, 1]`.
pub(crate) fn targets(
    samples: &Samples,
    positions: &[u32],
    classes: usize,
    device: &Device,
) -> Tensor<2> {
    if let Some(numbers) = &samples.targets {
        let numbers: Vec<f32> = positions.iter().map(|at| numbers[*at as usize]).collect();
        let shape = [positions.len(), 1];
        return Tensor::from_data(TensorData::new(numbers, shape), device);
    }
    let labels: Vec<usize> = positions
        .iter()
        .map(|at| usize::from(samples.labels[*at as usize]))
        .collect();
    one_hot(&labels, classes, device)
}

/// Divides an epoch's order into as few batches of at most `size` samples as it takes, of sizes that differ by at most
/// one.
///
/// Filled one after the other, the last batch would hold what is left, now and then a single sample. The gradient of
/// that sample then counts as much as that of a whole batch. On small shards such a last step of a round cost a node up
/// to 40 points of accuracy. Leaving it out, as PFLlib does, is no way for a node with fewer samples than a batch.
pub(crate) fn divide(order: &[u32], size: usize) -> impl ExactSizeIterator<Item = &[u32]> {
    let batches = order.len().div_ceil(size);
    (0..batches).map(move |batch| {
        &order[batch * order.len() / batches..(batch + 1) * order.len() / batches]
    })
}

/// Uploads the values of the samples at these positions, `[batch, features]`.
pub(crate) fn inputs(samples: &Samples, positions: &[u32], device: &Device) -> Tensor<2> {
    let mut values = Vec::new();
    samples.write_batch(positions, &mut values);
    let shape = [positions.len(), samples.values_per_sample()];
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// Checks that samples fit a model's input: their shape, and for texts what their tokens are numbered by.
pub(crate) fn check_inputs(
    samples: &Samples,
    model: &Architecture,
    known: &Fingerprints,
) -> Result<(), LearnError> {
    if samples.shape != model.input {
        return Err(LearnError::SampleShape {
            got: samples.shape,
            expected: model.input,
        });
    }
    let (entries, hash) = samples
        .vocabulary()
        .map_or((0, ""), |words| (words.len(), words.hash()));
    let expected_hash = known.vocabulary.as_deref().unwrap_or_default();
    let is_same = expected_hash.is_empty() || hash == expected_hash;
    if entries == model.vocabulary && is_same {
        return Ok(());
    }
    let describe = |entries: usize, hash: &str| {
        format!("{entries} entries ({})", hash.get(..8).unwrap_or("any"))
    };
    let expected = describe(model.vocabulary, expected_hash);
    Err(LearnError::Vocabulary {
        got: describe(entries, hash),
        expected,
    })
}

/// Checks that samples and their labels fit a model. Labels below the data's own number of classes are [`Samples`]'
/// promise; a shard may lack classes that others have.
pub(crate) fn check(
    samples: &Samples,
    model: &Architecture,
    known: &Fingerprints,
) -> Result<(), LearnError> {
    check_inputs(samples, model, known)?;
    if samples.classes > model.classes {
        return Err(LearnError::Classes {
            got: samples.classes,
            expected: model.classes,
        });
    }
    let pairs = samples
        .class_names
        .iter()
        .zip(&known.class_names)
        .enumerate();
    match pairs
        .into_iter()
        .find(|(_, (got, expected))| got != expected)
    {
        None => Ok(()),
        Some((number, (got, expected))) => Err(LearnError::ClassNames {
            number,
            got: got.clone(),
            expected: expected.clone(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_of_nearly_one_size_and_hold_every_sample_once() {
        for (samples, size, sizes) in [
            (21, 10, vec![7, 7, 7]),
            (20, 10, vec![10, 10]),
            (3, 10, vec![3]),
            (0, 10, vec![]),
        ] {
            let order: Vec<u32> = (0..samples).rev().collect();
            assert_eq!(
                divide(&order, size).map(<[u32]>::len).collect::<Vec<_>>(),
                sizes
            );
            assert_eq!(
                divide(&order, size).flatten().copied().collect::<Vec<_>>(),
                order
            );
        }
        let order: Vec<u32> = (0..391).collect();
        assert!(
            divide(&order, 10).len() == 40
                && divide(&order, 10).all(|batch| (9..=10).contains(&batch.len()))
        );
    }
}
