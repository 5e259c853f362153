//! A model's part as a vector with masks on it, and the blob that carries it.
//!
//! A masked part has the tensors of the part, each with one axis more, of length 2: the two halves of each number of 64 bits.
//! One more tensor, [`WEIGHT`], holds the weight. So it travels like any part, its layout is to be seen, and its numbers are
//! noise to everybody.

use fednode_core::{Layout, ParamSet};

use crate::fixed::{self, SumFault, VectorFault};

/// The tensor that holds the weight. The name sorts before all others, as the weight comes first in the vector.
pub const WEIGHT: &str = "\u{1}weight";

/// Tells why parameters are no masked part.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PartFault {
    /// A tensor's last axis does not hold the two halves of a number.
    #[error("tensor `{0}` of a masked part does not hold pairs of halves")]
    Halves(String),
    /// It has no weight.
    #[error("a masked part without a weight")]
    NoWeight,
    /// It has other tensors than the others.
    #[error("a masked part of another layout than the others")]
    Layout,
}

/// Tells why a sum of masked parts has no mean.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MeanFault {
    /// The numbers are none that honest members' could add up to.
    #[error(transparent)]
    Sum(#[from] SumFault),
    /// The layout is not one of a part.
    #[error(transparent)]
    Part(#[from] PartFault),
}

/// Returns a part as a vector: the weight, then all values times the weight, tensor after tensor.
///
/// # Errors
/// Fails if the weight or a value is out of range, which is the author's own fault.
pub fn vector(part: &ParamSet, weight: u32) -> Result<Vec<u64>, VectorFault> {
    let values: Vec<f32> = part.values().collect();
    fixed::encode(&values, weight)
}

/// Returns the layout of the masked part of a part with this layout.
pub fn masked_layout(layout: &Layout) -> Layout {
    let halves = |shape: &Vec<usize>| shape.iter().copied().chain([2]).collect();
    let tensors = layout
        .iter()
        .map(|(name, shape)| (name.clone(), halves(shape)));
    tensors.chain([(WEIGHT.to_owned(), vec![2])]).collect()
}

/// Wraps a vector as parameters, so that it travels like any part.
///
/// # Errors
/// Fails if a part of this layout has another number of values.
pub fn wrap(layout: &Layout, vector: &[u64]) -> Result<ParamSet, PartFault> {
    let mut rest = vector;
    let mut wrapped = ParamSet::new();
    let weight = (WEIGHT.to_owned(), vec![2]);
    let tensors = masked_layout(layout);
    let others = tensors.into_iter().filter(|(name, _)| name != WEIGHT);
    for (name, shape) in [weight].into_iter().chain(others) {
        let halves: usize = shape.iter().product();
        let (own, left) = rest.split_at_checked(halves / 2).ok_or(PartFault::Layout)?;
        rest = left;
        let halves = own.iter().flat_map(|number| {
            // Bits, not numbers: some of them are none.
            [*number as u32, (number >> 32) as u32].map(f32::from_bits)
        });
        wrapped
            .insert(name, &shape, halves.collect())
            .map_err(|_| PartFault::Layout)?;
    }
    rest.is_empty().then_some(wrapped).ok_or(PartFault::Layout)
}

/// Takes the vector out of a masked part.
///
/// # Errors
/// Fails for parameters that [`wrap`] did not make.
pub fn unwrap(part: &ParamSet) -> Result<Vec<u64>, PartFault> {
    let weight = part.get(WEIGHT).ok_or(PartFault::NoWeight)?;
    let others = part.iter().filter(|(name, _)| *name != WEIGHT);
    let mut vector = Vec::with_capacity(part.n_values() / 2);
    for (name, tensor) in [(WEIGHT, weight)].into_iter().chain(others) {
        let is_weight = name == WEIGHT;
        let is_paired = tensor.shape().last() == Some(&2);
        if !is_paired || is_weight && tensor.shape() != [2] {
            return Err(PartFault::Halves(name.to_owned()));
        }
        let pairs = tensor.values().as_chunks().0.iter();
        vector.extend(pairs.map(|[low, high]: &[f32; 2]| {
            u64::from(low.to_bits()) | u64::from(high.to_bits()) << 32
        }));
    }
    Ok(vector)
}

/// Returns the layout of the parts that masked ones of this layout were made of.
///
/// # Errors
/// Fails for a layout of no masked part.
pub fn layout_of(masked: &Layout) -> Result<Layout, PartFault> {
    if masked.get(WEIGHT).map(Vec::as_slice) != Some(&[2]) {
        return Err(PartFault::NoWeight);
    }
    let others = masked.iter().filter(|(name, _)| *name != WEIGHT);
    let plain = others.map(|(name, shape)| match shape.split_last() {
        Some((2, shape)) => Ok((name.clone(), shape.to_vec())),
        _ => Err(PartFault::Halves(name.clone())),
    });
    plain.collect()
}

/// Returns the weighted mean that a sum without masks stands for, and the sum of the weights.
///
/// # Errors
/// Fails if the numbers cannot be a sum of what [`vector`] made of parts with this layout.
pub fn mean(layout: &Layout, sum: &[u64]) -> Result<(ParamSet, u32), MeanFault> {
    let decoded = fixed::decode(sum)?;
    Ok((part_of(layout, &decoded.mean())?, decoded.weight))
}

/// Returns what a sum without masks stands for: all parts added up, each times its weight, and the sum of the weights.
///
/// # Errors
/// As [`mean`].
pub fn total(layout: &Layout, sum: &[u64]) -> Result<(ParamSet, u32), MeanFault> {
    let decoded = fixed::decode(sum)?;
    Ok((part_of(layout, &decoded.total())?, decoded.weight))
}

/// Puts values into the tensors of a layout.
fn part_of(layout: &Layout, values: &[f32]) -> Result<ParamSet, PartFault> {
    let mut rest = values;
    let mut part = ParamSet::new();
    for (name, shape) in layout {
        let (own, left) = rest
            .split_at_checked(shape.iter().product())
            .ok_or(PartFault::Layout)?;
        rest = left;
        part.insert(name.clone(), shape, own.to_vec())
            .map_err(|_| PartFault::Layout)?;
    }
    rest.is_empty().then_some(part).ok_or(PartFault::Layout)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(values: [f32; 3]) -> ParamSet {
        let mut part = ParamSet::new();
        part.insert("a", &[1, 2], values[..2].to_vec()).unwrap();
        part.insert("b", &[], values[2..].to_vec()).unwrap();
        part
    }

    #[test]
    fn all_bits_survive_the_blob() {
        let layout = part([0.0; 3]).layout();
        // Among them halves that are no number as an `f32`, of both kinds.
        let vector = [u64::MAX, 0x7f80_0001_ff80_0001, 0x7fc0_0000_7fa0_0000, 5];
        let wrapped = wrap(&layout, &vector).unwrap();
        let (blob, bytes) = wrapped.to_blob();
        let came = ParamSet::decode(&bytes).unwrap();
        assert_eq!(came.to_blob().0, blob);
        assert_eq!(unwrap(&came).unwrap(), vector);
        assert_eq!(layout_of(&came.layout()).unwrap(), layout);
        assert_eq!(masked_layout(&layout), came.layout());
    }

    #[test]
    fn the_mean_of_weighted_parts_is_the_mean() {
        let parts = [(part([1.0, 2.0, 3.0]), 1), (part([5.0, -2.0, 7.0]), 3)];
        let mut sum = vec![0; 4];
        for (part, weight) in &parts {
            fixed::add(&mut sum, &vector(part, *weight).unwrap());
        }
        let layout = parts[0].0.layout();
        let (mean, weight) = mean(&layout, &sum).unwrap();
        assert_eq!((mean, weight), (part([4.0, -1.0, 6.0]), 4));
        assert_eq!(total(&layout, &sum), Ok((part([16.0, -4.0, 24.0]), 4)));
    }

    #[test]
    fn parameters_that_are_no_masked_part_are_refused() {
        let plain = part([1.0, 2.0, 3.0]);
        assert_eq!(unwrap(&plain), Err(PartFault::NoWeight));
        let layout = plain.layout();
        assert_eq!(wrap(&layout, &[1, 2, 3]), Err(PartFault::Layout));
        assert_eq!(wrap(&layout, &[1, 2, 3, 4, 5]), Err(PartFault::Layout));
        let mut odd = wrap(&layout, &[1, 2, 3, 4]).unwrap();
        odd.insert("c", &[3], vec![0.0; 3]).unwrap();
        assert_eq!(unwrap(&odd), Err(PartFault::Halves("c".into())));
        assert_eq!(layout_of(&odd.layout()), Err(PartFault::Halves("c".into())));
        assert!(mean(&layout, &[1, 2, 3]).is_err());
    }
}
