//! A constant tensor of an ONNX file: its shape, its type, and small integers as numbers.
//!
//! The weights themselves stay bytes. They are measured and searched for NaN, and the runtime reads them later.

use crate::error::{Refusal, shown};
use crate::limits;
use crate::wire::{Content, Field, Fields, WireError};

/// Most integers that are kept as numbers: those that say shapes and axes.
pub(crate) const SMALL: usize = 256;

/// What a value is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Float,
    Int,
    Bool,
}

impl Kind {
    /// Returns the kind of a `TensorProto.DataType`, as the runtime keeps it.
    pub(crate) fn of(data_type: i64) -> Option<Self> {
        Element::of(data_type).map(Element::kind)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Float => "floats",
            Self::Int => "integers",
            Self::Bool => "truth values",
        }
    }
}

/// The types of numbers that are read, by their number in ONNX's `TensorProto.DataType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Element {
    Float = 1,
    Uint8 = 2,
    Int8 = 3,
    Int32 = 6,
    Int64 = 7,
    Bool = 9,
    Float16 = 10,
    Double = 11,
}

impl Element {
    fn of(data_type: i64) -> Option<Self> {
        use Element::{Bool, Double, Float, Float16, Int8, Int32, Int64, Uint8};
        [Float, Uint8, Int8, Int32, Int64, Bool, Float16, Double]
            .into_iter()
            .find(|element| *element as i64 == data_type)
    }

    fn bytes(self) -> usize {
        match self {
            Self::Uint8 | Self::Int8 | Self::Bool => 1,
            Self::Float16 => 2,
            Self::Float | Self::Int32 => 4,
            Self::Int64 | Self::Double => 8,
        }
    }

    fn kind(self) -> Kind {
        match self {
            Self::Float | Self::Float16 | Self::Double => Kind::Float,
            Self::Bool => Kind::Bool,
            Self::Uint8 | Self::Int8 | Self::Int32 | Self::Int64 => Kind::Int,
        }
    }

    fn is_nan(self, number: &[u8]) -> bool {
        match (self, number) {
            (Self::Float, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]).is_nan(),
            (Self::Float16, &[low, high]) => u16::from_le_bytes([low, high]) & 0x7fff > 0x7c00,
            (Self::Double, &[a, b, c, d, e, f, g, h]) => {
                f64::from_le_bytes([a, b, c, d, e, f, g, h]).is_nan()
            }
            _ => false,
        }
    }

    fn int(self, number: &[u8]) -> i64 {
        match *number {
            [byte] if self == Self::Int8 => i64::from(byte.cast_signed()),
            [byte] => i64::from(byte),
            [a, b, c, d] => i64::from(i32::from_le_bytes([a, b, c, d])),
            [a, b, c, d, e, f, g, h] => i64::from_le_bytes([a, b, c, d, e, f, g, h]),
            _ => 0,
        }
    }
}

/// A constant that was checked.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tensor {
    pub(crate) kind: Kind,
    pub(crate) dims: Vec<usize>,
    /// The numbers, if they are few integers or truth values.
    pub(crate) ints: Option<Vec<i64>>,
}

/// The fields of a `TensorProto` that matter.
#[derive(Debug, Default)]
struct Raw<'a> {
    dims: Vec<i64>,
    data_type: i64,
    raw: Option<&'a [u8]>,
    floats: Vec<u8>,
    doubles: Vec<u8>,
    ints: Vec<i64>,
    external: bool,
}

impl<'a> Raw<'a> {
    fn read(message: &'a [u8]) -> Result<Self, WireError> {
        let mut tensor = Self::default();
        for field in Fields::of(message) {
            let field = field?;
            match field.number {
                1 => tensor.dims.push(field.int()?),
                2 => tensor.data_type = field.int()?,
                4 => append(&field, &mut tensor.floats)?,
                5 | 7 => field.ints(&mut tensor.ints)?,
                9 if tensor.raw.is_some() => return Err(WireError::Form),
                9 => tensor.raw = Some(field.bytes()?),
                10 => append(&field, &mut tensor.doubles)?,
                13 => tensor.external = true,
                14 => tensor.external |= field.int()? != 0,
                _ => {}
            }
        }
        Ok(tensor)
    }
}

/// Appends numbers of fixed size, one by one or packed.
fn append(field: &Field, into: &mut Vec<u8>) -> Result<(), WireError> {
    match field.content {
        Content::Bytes(bytes) => into.extend_from_slice(bytes),
        Content::Fixed32(bytes) => into.extend(bytes),
        Content::Fixed64(bytes) => into.extend(bytes),
        Content::Varint(_) => return Err(WireError::Form),
    }
    Ok(())
}

/// Returns the name of a `TensorProto`.
pub(crate) fn name(message: &[u8]) -> Result<&str, WireError> {
    let mut name = "";
    for field in Fields::of(message) {
        let field = field?;
        if field.number == 8 {
            name = field.text()?;
        }
    }
    Ok(name)
}

impl Tensor {
    /// Checks a `TensorProto`: data within the file, as many as its shape says, no NaN.
    pub(crate) fn read(message: &[u8], name: &str) -> Result<Self, Refusal> {
        let raw = Raw::read(message)?;
        let tensor = || shown(name);
        if raw.external {
            return Err(Refusal::External { tensor: tensor() });
        }
        let Some(element) = Element::of(raw.data_type) else {
            let kind = raw.data_type;
            return Err(Refusal::Kind {
                tensor: tensor(),
                kind,
            });
        };
        let typed: Vec<u8>;
        let data = if let Some(raw) = raw.raw {
            raw
        } else {
            typed = raw.typed(element);
            &typed
        };
        let said = || {
            format!(
                "{:?} of {element:?}",
                &raw.dims[..raw.dims.len().min(limits::RANK)]
            )
        };
        let wrong = || Refusal::Data {
            tensor: tensor(),
            said: said(),
            bytes: data.len(),
        };
        let dims = sizes(&raw.dims).ok_or_else(wrong)?;
        let n = elements(&dims).ok_or_else(wrong)?;
        if n.checked_mul(element.bytes()) != Some(data.len()) {
            return Err(wrong());
        }
        let mut numbers = data.chunks_exact(element.bytes());
        let kind = element.kind();
        if kind == Kind::Float && numbers.any(|number| element.is_nan(number)) {
            return Err(Refusal::NotANumber { tensor: tensor() });
        }
        let small = kind != Kind::Float && n <= SMALL;
        let ints = small.then(|| numbers.map(|number| element.int(number)).collect());
        Ok(Self { kind, dims, ints })
    }
}

impl Raw<'_> {
    /// Returns data that stand in a list of numbers as bytes of the stated type.
    ///
    /// Of each list only numbers that fit are taken, so a list of another type leaves too few bytes.
    fn typed(&self, element: Element) -> Vec<u8> {
        let narrow = |value: &i64| match element {
            Element::Int64 => value.to_le_bytes().to_vec(),
            Element::Int32 => (*value as i32).to_le_bytes().to_vec(),
            Element::Float16 => (*value as u16).to_le_bytes().to_vec(),
            _ => vec![*value as u8],
        };
        match element {
            Element::Float => self.floats.clone(),
            Element::Double => self.doubles.clone(),
            _ => self.ints.iter().flat_map(narrow).collect(),
        }
    }
}

/// Returns sizes as numbers of a bounded rank, each at least 0.
fn sizes(dims: &[i64]) -> Option<Vec<usize>> {
    if dims.len() > limits::RANK {
        return None;
    }
    dims.iter()
        .map(|&size| usize::try_from(size).ok())
        .collect()
}

/// Returns the number of elements of a shape.
pub(crate) fn elements(dims: &[usize]) -> Option<usize> {
    dims.iter()
        .try_fold(1_usize, |n, &size| n.checked_mul(size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Message;

    fn message(dims: &[i64], data_type: i64, raw: &[u8]) -> Vec<u8> {
        let mut message = Message::default();
        for &size in dims {
            message.int(1, size);
        }
        message.int(2, data_type);
        message.bytes(9, raw);
        message.finish()
    }

    #[test]
    fn reads_few_integers_as_numbers() {
        let mut raw = (-1_i64).to_le_bytes().to_vec();
        raw.extend(3_i64.to_le_bytes());
        let tensor = Tensor::read(&message(&[2], 7, &raw), "shape").unwrap();
        assert_eq!(tensor.ints, Some(vec![-1, 3]));
        assert_eq!((tensor.kind, tensor.dims), (Kind::Int, vec![2]));
    }

    #[test]
    fn refuses_shapes_that_do_not_fit_the_data() {
        for dims in [
            &[3][..],
            &[-1],
            &[i64::MAX, 4],
            &[1 << 40, 1 << 40],
            &[1; 9],
        ] {
            let read = Tensor::read(&message(dims, 1, &[0; 8]), "weight");
            assert!(
                matches!(read, Err(Refusal::Data { .. })),
                "{dims:?}: {read:?}"
            );
        }
    }

    #[test]
    fn refuses_nan_in_every_width_and_takes_infinity() {
        let half_nan = 0x7e00_u16.to_le_bytes();
        for (data_type, raw) in [
            (1, f32::NAN.to_le_bytes().to_vec()),
            (10, half_nan.to_vec()),
            (11, f64::NAN.to_le_bytes().to_vec()),
        ] {
            let read = Tensor::read(&message(&[1], data_type, &raw), "weight");
            assert!(
                matches!(read, Err(Refusal::NotANumber { .. })),
                "{data_type}"
            );
        }
        let infinite = message(&[1], 1, &f32::INFINITY.to_le_bytes());
        assert!(Tensor::read(&infinite, "bound").is_ok());
    }
}
