//! Vectors of `f32` as whole numbers modulo 2⁶⁴, so that sums are exact in any order.
//!
//! A member's vector is its weight, then each value times the weight in fixed point with 24 binary digits. The
//! weighted mean of all members follows from the sum alone. Nobody is asked for a range: parameters, and statistics of
//! features of unit length, are far below [`MOST_VALUE`]. An `f32` below 1 loses at most 3·10⁻⁸.

/// Binary digits behind the point.
pub const FRACTION_BITS: u32 = 24;
/// Largest value of a vector.
pub const MOST_VALUE: f32 = 1024.0;
/// Largest sum of all weights: with it no sum leaves the range of 64 bits.
pub const MOST_WEIGHT: u32 = 1 << 28;

/// One unit of the grid.
const SCALE: f64 = (1_u64 << FRACTION_BITS) as f64;

/// Tells why a vector cannot be written in fixed point. It is the author's own fault.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum VectorFault {
    /// A value is no number or beyond the range.
    #[error(
        "value {index} is {value}: a masked sum takes numbers from -1024 to 1024; scale the data, or use open sums"
    )]
    Value {
        /// Its place.
        index: usize,
        /// What it is.
        value: f32,
    },
    /// The weight is 0 or beyond the range.
    #[error("a weight of {0}: a masked sum takes 1 to 268435456 samples")]
    Weight(u32),
}

/// Tells why a sum stands for nothing. A member gave a vector that is none, or masks are still on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SumFault {
    /// The sum is empty, or its weight is not one of honest members.
    #[error("the sum's weight is {0}, which no honest members have")]
    Weight(u64),
    /// A value is larger than honest members' could be.
    #[error("value {0} of the sum is larger than its weight allows")]
    Value(usize),
}

/// What a sum without masks stands for.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoded {
    /// The sum of the weights.
    pub weight: u32,
    /// The sum of each value, times the members' weights.
    values: Vec<f64>,
}

impl Decoded {
    /// Returns the weighted mean of each value.
    pub fn mean(&self) -> Vec<f32> {
        let weight = f64::from(self.weight);
        let mean = |value: &f64| (value / weight) as f32;
        self.values.iter().map(mean).collect()
    }

    /// Returns the weighted sum of each value.
    pub fn total(&self) -> Vec<f32> {
        self.values.iter().map(|value| *value as f32).collect()
    }
}

/// Returns a member's vector: its weight, then its values times the weight.
///
/// # Errors
/// Fails if the weight or a value is out of range.
pub fn encode(values: &[f32], weight: u32) -> Result<Vec<u64>, VectorFault> {
    if weight == 0 || weight > MOST_WEIGHT {
        return Err(VectorFault::Weight(weight));
    }
    let mut vector = Vec::with_capacity(values.len() + 1);
    vector.push(u64::from(weight));
    for (index, &value) in values.iter().enumerate() {
        // What is no number is in no range.
        if !(-MOST_VALUE..=MOST_VALUE).contains(&value) {
            return Err(VectorFault::Value { index, value });
        }
        let units = (f64::from(value) * SCALE).round_ties_even() as i64;
        vector.push((units * i64::from(weight)).cast_unsigned());
    }
    Ok(vector)
}

/// Adds a vector to a sum.
///
/// # Panics
/// If their lengths differ, which callers check where vectors come in.
pub fn add(sum: &mut [u64], vector: &[u64]) {
    assert_eq!(
        sum.len(),
        vector.len(),
        "vectors of one sum are equally long"
    );
    for (sum, value) in sum.iter_mut().zip(vector) {
        *sum = sum.wrapping_add(*value);
    }
}

/// Returns what a sum without masks stands for.
///
/// # Errors
/// Fails if the sum cannot be one of vectors that [`encode`] made.
pub fn decode(sum: &[u64]) -> Result<Decoded, SumFault> {
    let (total, values) = sum.split_first().ok_or(SumFault::Weight(0))?;
    let weight = u32::try_from(*total)
        .ok()
        .filter(|weight| (1..=MOST_WEIGHT).contains(weight))
        .ok_or(SumFault::Weight(*total))?;
    let most = f64::from(weight) * f64::from(MOST_VALUE) * SCALE;
    let in_units = |(index, value): (usize, &u64)| {
        let value = value.cast_signed() as f64;
        let is_sound = value.abs() <= most;
        is_sound
            .then_some(value / SCALE)
            .ok_or(SumFault::Value(index))
    };
    let values = values
        .iter()
        .enumerate()
        .map(in_units)
        .collect::<Result<_, _>>()?;
    Ok(Decoded { weight, values })
}
