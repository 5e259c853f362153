//! How many bits a parameter has on its way: 32 as it was trained, or 16 for half the bytes.
//!
//! Weights are plain `f32` on both sides of the wire. Narrowing rounds to the nearest number that 16 bits can hold, ties
//! to even, so narrowing twice changes nothing, and widening is exact: all receivers mix the same numbers.
//!
//! | precision | bits of the fraction | smallest step at 1 | largest |
//! |---|---|---|---|
//! | `f32` | 23 | 1.2e-7 | 3.4e38 |
//! | `f16` | 10 | 9.8e-4 | 65504 |
//! | `bf16` | 7 | 7.8e-3 | 3.4e38 |
//!
//! A finite number beyond the largest becomes the largest, never an infinity: a node with one wild weight is judged by
//! its norm like every other. What was infinite or not a number stays so, and is refused by whoever screens it.

use half::{bf16, f16};
use safetensors::tensor::Dtype;
use serde::{Deserialize, Serialize};

/// How a number is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// IEEE 754 binary32: as it was trained.
    #[default]
    F32,
    /// IEEE 754 binary16: finer than `bf16`, for numbers of moderate size.
    F16,
    /// The upper half of a binary32: the range of `f32`, coarser.
    Bf16,
}

impl Precision {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::F32, Self::F16, Self::Bf16];

    /// Returns the name used in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }

    /// Returns the number that a receiver reads when this one is sent.
    pub fn narrow(self, value: f32) -> f32 {
        match self {
            Self::F32 => value,
            Self::F16 => to_f16(value).to_f32(),
            Self::Bf16 => to_bf16(value).to_f32(),
        }
    }

    /// Returns the bytes of a number.
    pub(crate) const fn n_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// Writes numbers, little-endian, behind what is there.
    pub(crate) fn append(self, values: &[f32], bytes: &mut Vec<u8>) {
        match self {
            Self::F32 => bytes.extend(values.iter().flat_map(|value| value.to_le_bytes())),
            Self::F16 => bytes.extend(values.iter().flat_map(|value| to_f16(*value).to_le_bytes())),
            Self::Bf16 => bytes.extend(
                values
                    .iter()
                    .flat_map(|value| to_bf16(*value).to_le_bytes()),
            ),
        }
    }

    /// Tells whether these bytes are what numbers that were read from them are written as. With 32 bits they always are;
    /// a 16-bit number that is none may be another one that is none.
    pub(crate) fn is_written(self, values: &[f32], bytes: &[u8]) -> bool {
        let is_same = |(value, two): (&f32, &[u8; 2])| match self {
            Self::F32 => true,
            Self::F16 => to_f16(*value).to_le_bytes() == *two,
            Self::Bf16 => to_bf16(*value).to_le_bytes() == *two,
        };
        bytes.len() == values.len() * self.n_bytes()
            && (self == Self::F32 || values.iter().zip(bytes.as_chunks().0).all(is_same))
    }

    /// Reads numbers; what is left over of the bytes is no number.
    pub(crate) fn read(self, bytes: &[u8]) -> Vec<f32> {
        match self {
            Self::F32 => bytes
                .as_chunks()
                .0
                .iter()
                .map(|four| f32::from_le_bytes(*four))
                .collect(),
            Self::F16 => bytes
                .as_chunks()
                .0
                .iter()
                .map(|two| f16::from_le_bytes(*two).to_f32())
                .collect(),
            Self::Bf16 => bytes
                .as_chunks()
                .0
                .iter()
                .map(|two| bf16::from_le_bytes(*two).to_f32())
                .collect(),
        }
    }

    pub(crate) const fn dtype(self) -> Dtype {
        match self {
            Self::F32 => Dtype::F32,
            Self::F16 => Dtype::F16,
            Self::Bf16 => Dtype::BF16,
        }
    }

    pub(crate) fn of_dtype(dtype: Dtype) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|precision| precision.dtype() == dtype)
    }
}

fn to_f16(value: f32) -> f16 {
    f16::from_f32(saturate(value, f16::MAX.to_f32()))
}

fn to_bf16(value: f32) -> bf16 {
    bf16::from_f32(saturate(value, bf16::MAX.to_f32()))
}

fn saturate(value: f32, largest: f32) -> f32 {
    if value.is_finite() {
        value.clamp(-largest, largest)
    } else {
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Values and bit patterns of IEEE 754-2019 table 3.5 and of the bfloat16 definition, computed by hand.
    #[test]
    fn bit_patterns_are_those_of_the_standards() {
        let bits = |precision: Precision, value: f32| {
            let mut bytes = Vec::new();
            precision.append(&[value], &mut bytes);
            u16::from_le_bytes([bytes[0], bytes[1]])
        };
        for (value, half, brain) in [
            (1.0, 0x3c00, 0x3f80),
            (-2.0, 0xc000, 0xc000),
            (65504.0, 0x7bff, 0x4780),
            (0.1, 0x2e66, 0x3dcd),
            (2f32.powi(-24), 0x0001, 0x3380),
            // Half-way between two neighbours: the even one.
            (1.0 + 2f32.powi(-11), 0x3c00, 0x3f80),
            (1.0 + 3.0 * 2f32.powi(-11), 0x3c02, 0x3f80),
        ] {
            assert_eq!(bits(Precision::F16, value), half, "f16 of {value}");
            assert_eq!(bits(Precision::Bf16, value), brain, "bf16 of {value}");
        }
    }

    #[test]
    fn narrowing_saturates_and_keeps_nan() {
        for value in [65520.0, 1e9, f32::MAX] {
            assert_eq!(Precision::F16.narrow(value), 65504.0);
            assert_eq!(Precision::F16.narrow(-value), -65504.0);
        }
        let largest = f32::from_bits(0x7f7f_0000);
        assert_eq!(
            (
                Precision::Bf16.narrow(f32::MAX),
                Precision::Bf16.narrow(f32::MIN)
            ),
            (largest, -largest)
        );
        for precision in Precision::ALL {
            assert!(precision.narrow(f32::NAN).is_nan());
            assert_eq!(precision.narrow(f32::INFINITY), f32::INFINITY);
            assert_eq!(precision.narrow(f32::NEG_INFINITY), f32::NEG_INFINITY);
        }
    }

    #[test]
    fn names_are_those_of_the_file() {
        for precision in Precision::ALL {
            assert_eq!(serde_json::to_value(precision).unwrap(), precision.name());
        }
    }

    proptest! {
        #[test]
        fn narrowing_is_what_a_receiver_reads_and_idempotent(value: f32) {
            for precision in Precision::ALL {
                let narrowed = precision.narrow(value);
                let mut bytes = Vec::new();
                precision.append(&[value], &mut bytes);
                prop_assert_eq!(precision.read(&bytes)[0].to_bits(), narrowed.to_bits());
                prop_assert_eq!(precision.narrow(narrowed).to_bits(), narrowed.to_bits());
            }
        }

        #[test]
        fn the_error_is_at_most_half_a_step(value in -60000f32..60000.0) {
            let step = |bits: i32| (value.abs() * 2f32.powi(-bits - 1)).max(2f32.powi(-25));
            prop_assert!((Precision::F16.narrow(value) - value).abs() <= step(10));
            prop_assert!((Precision::Bf16.narrow(value) - value).abs() <= step(7));
        }
    }
}
