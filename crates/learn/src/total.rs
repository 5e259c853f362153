//! Statistics that are added up once under masks: what a node puts into the sum, and what comes out of it.
//!
//! Noise hides a sample in the sum alone if nothing is rounded on the way. So whole numbers go in, and whole numbers come out.
//! Parts of a model are `f32`, which hold whole numbers of 24 bits. Thus each number travels as two:
//!
//! ```text
//! number = high · 2^24 + low, 0 <= low < 2^24          part = (high / 2^10, low / 2^24)          |number| < 2^44
//! ```
//!
//! Both are exact in the fixed point of masked sums (`fednode_masked::fixed`), and so are the sums of both.
//! On the sphere a sample is 2^20 long at most, so a node may have sixteen million of them. What rounding does to the sum as it comes out, as
//! two `f32`, is computed of it and costs no privacy.

use burn::tensor::Device;
use fednode_core::{BlobId, ParamSet, Tensor};

use crate::algorithm::{Part, Role};
use crate::model::{Initial, Net};

/// The names of what travels.
const MEMBERS: &str = "noised.members";
const NUMBERS: &str = "noised.numbers";
/// What separates the two.
const LOW: i64 = 1 << 24;
/// Whole numbers in a unit of what travels as high and as low.
const UNITS: [f64; 2] = [(1 << 10) as f64, LOW as f64];

/// What a node lacks whose statistics were added up with nobody else's.
pub(crate) const NOT_ADDED_UP: &str = "all nodes' statistics were not added up: too few nodes were there when it was their turn, and there is no second one";

/// Returns the part of so many whole numbers, which is zero in the beginning.
pub(crate) fn part(numbers: usize, device: &Device) -> Part {
    let net = Net::arrays(&[
        (MEMBERS, &[1], Initial::Zeros),
        (NUMBERS, &[2, numbers], Initial::Zeros),
    ]);
    Part::new(Role::Shared, net, 0, 0, device)
}

/// Writes the numbers of so many members.
pub(crate) fn write(numbers: impl Iterator<Item = i64>, members: f64) -> ParamSet {
    let pairs = numbers.map(|number| {
        let low = number.rem_euclid(LOW);
        [(number - low) / LOW, low]
    });
    let pairs: Vec<[i64; 2]> = pairs.collect();
    let travelling = |at: usize| pairs.iter().map(move |pair| pair[at] as f64 / UNITS[at]);
    let both = travelling(0).chain(travelling(1));
    let both: Vec<f32> = both.map(|number| number as f32).collect();
    let mut params = ParamSet::new();
    let shape = [2, pairs.len()];
    let tensors = [
        (MEMBERS, [1].as_slice(), vec![members as f32]),
        (NUMBERS, &shape, both),
    ];
    for (name, shape, values) in tensors {
        let inserted = params.insert(name, shape, values);
        inserted.expect("two tensors of a valid layout");
    }
    params
}

/// Reads how many members are in a sum, and its numbers.
pub(crate) fn read(params: &ParamSet) -> (f64, impl Iterator<Item = i64>) {
    let values = |name| params.get(name).map_or(&[] as &[f32], Tensor::values);
    let both = values(NUMBERS);
    let (high, low) = both.split_at(both.len() / 2);
    let units = |number: &f32, at: usize| f64::from(*number) * UNITS[at];
    let numbers = high.iter().zip(low);
    let numbers =
        numbers.map(move |(high, low)| (units(high, 0) * LOW as f64 + units(low, 1)) as i64);
    let members = values(MEMBERS).first().copied().unwrap_or_default();
    (f64::from(members), numbers)
}

/// A sum of members' numbers that came.
pub(crate) struct Arrived {
    /// Which one it is.
    pub(crate) key: BlobId,
    pub(crate) members: f64,
    pub(crate) numbers: Vec<i64>,
}

/// Returns the sum that was adopted into a part, unless it is that which was solved before. Before the last round all have zeros there,
/// and then their own numbers.
pub(crate) fn arrived(part: &Part, solved: Option<BlobId>) -> Option<Arrived> {
    let params = part.params();
    let key = params.to_blob().0.id;
    let (members, numbers) = read(&params);
    let is_new = ![0.0, 1.0].contains(&members) && solved != Some(key);
    is_new.then(|| Arrived {
        key,
        members,
        numbers: numbers.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of both signs and of all sizes come out of a sum as they went in.
    #[test]
    fn whole_numbers_come_out_of_a_sum_exactly() {
        let device = Device::flex();
        let numbers = [
            0,
            1,
            -1,
            LOW - 1,
            LOW,
            -LOW,
            -LOW - 1,
            (1 << 43) + 12_345,
            -(1 << 43) - 6_789,
        ];
        let mut part = part(numbers.len(), &device);
        part.load(&write(numbers.into_iter(), 1.0), &device)
            .unwrap();
        let values: Vec<f32> = part.params().values().collect();
        assert!(values.iter().all(|value| value.abs() <= 1024.0));
        let params = part.params();
        let (members, read) = read(&params);
        assert_eq!(members, 1.0);
        assert_eq!(read.collect::<Vec<_>>(), numbers);
    }
}
