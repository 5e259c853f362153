//! Parameters as plain numbers: names, shapes, little-endian `f32`, one canonical byte form.
//!
//! A [`ParamSet`] is the only shape in which weights cross a crate, a disk or a wire. Its canonical bytes are a
//! safetensors file, tensors in name order, without metadata but for the [note](ParamSet::note) that a node's own state
//! may have, so that equal parameters have equal bytes and therefore
//! one [`BlobId`](crate::BlobId). On their way they may have 16 bits each ([`Precision`]), all tensors of a set alike;
//! that is another canonical form with another name, and whoever decodes it has `f32` again. Names and layouts follow
//! PyTorch (`fc.weight` is `[out, in]`), which makes an exported node model loadable elsewhere without a conversion.
//!
//! [`ParamSet::decode`] is gate two of the four that hostile bytes pass: what it allocates is bounded by the bytes it
//! was given, and it accepts nothing but the canonical form. It does not judge the values; screening (`fednode-mix`)
//! does.

use std::collections::BTreeMap;

use safetensors::tensor::{Dtype, Metadata, SafeTensors, TensorInfo};

use crate::{BlobRef, Precision};

/// Most tensors that a parameter set may have: far above any model here, low enough to bound a hostile header.
pub const MAX_TENSORS: usize = 4096;
/// Longest tensor name in bytes.
pub const MAX_NAME_BYTES: usize = 256;
/// Longest note in bytes.
pub(crate) const MAX_NOTE_BYTES: usize = 64 << 10;
/// The key of the note in the metadata of the file.
const NOTE: &str = "fednode";
/// What a batch normalisation of PyTorch counts in, as a whole number.
const BATCH_COUNTER: &str = ".num_batches_tracked";
/// Most dimensions of a tensor.
pub const MAX_RANK: usize = 8;

/// Names and shapes of a parameter set, without its numbers.
pub type Layout = BTreeMap<String, Vec<usize>>;

/// Tells why parameters could not be built or decoded.
#[derive(Debug, thiserror::Error)]
pub enum ParamsError {
    /// The bytes are no safetensors file.
    #[error("not a safetensors file")]
    Format(#[source] safetensors::SafeTensorError),
    /// A tensor holds something else than floats of 32 or 16 bits.
    #[error("tensor `{name}` holds {dtype:?}, expected F32, F16 or BF16")]
    Dtype {
        /// The tensor.
        name: String,
        /// What it holds.
        dtype: Dtype,
    },
    /// A name, rank or count is beyond its limit.
    #[error("tensor `{0}` is beyond the limits on names and shapes")]
    Limit(String),
    /// A shape does not fit the number of values.
    #[error("tensor `{name}` of shape {shape:?} cannot hold {values} values")]
    Shape {
        /// The tensor.
        name: String,
        /// Its declared shape.
        shape: Vec<usize>,
        /// The values it was given.
        values: usize,
    },
    /// Two tensors share a name.
    #[error("tensor `{0}` appears twice")]
    Duplicate(String),
    /// The file is readable but not in the canonical form, so its hash would not name its content.
    #[error("parameters are not in canonical form")]
    NotCanonical,
    /// The layout differs from what was expected.
    #[error("{0}")]
    Mismatch(LayoutMismatch),
}

/// Names the first difference between two layouts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayoutMismatch {
    /// A tensor is missing.
    #[error("tensor `{0}` is missing")]
    Missing(String),
    /// A tensor is not part of the model.
    #[error("tensor `{0}` is not part of this model")]
    Unexpected(String),
    /// A tensor has another shape.
    #[error("tensor `{name}` has shape {got:?}, expected {expected:?}")]
    Shape {
        /// The tensor.
        name: String,
        /// Shape of our model.
        expected: Vec<usize>,
        /// Shape that arrived.
        got: Vec<usize>,
    },
}

/// One named array of `f32`, row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    shape: Vec<usize>,
    values: Vec<f32>,
}

impl Tensor {
    /// Returns the shape, outermost dimension first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the values in row-major order.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Returns the values for writing; the shape cannot change.
    pub fn values_mut(&mut self) -> &mut [f32] {
        &mut self.values
    }

    /// Gives the values away.
    pub fn into_values(self) -> Vec<f32> {
        self.values
    }
}

/// Named tensors in name order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ParamSet {
    tensors: BTreeMap<String, Tensor>,
    note: Option<String>,
}

impl ParamSet {
    /// Makes an empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tensor.
    ///
    /// # Errors
    /// Refuses a duplicate name, a name, rank or count beyond the limits, and a shape that does not hold the values.
    pub fn insert(
        &mut self,
        name: impl Into<String>,
        shape: &[usize],
        values: Vec<f32>,
    ) -> Result<(), ParamsError> {
        let name = name.into();
        if name.is_empty()
            || name.len() > MAX_NAME_BYTES
            || shape.len() > MAX_RANK
            || self.len() >= MAX_TENSORS
        {
            return Err(ParamsError::Limit(name));
        }
        let count = shape
            .iter()
            .try_fold(1usize, |product, n| product.checked_mul(*n));
        if count != Some(values.len()) {
            return Err(ParamsError::Shape {
                name,
                shape: shape.to_vec(),
                values: values.len(),
            });
        }
        if self.tensors.contains_key(&name) {
            return Err(ParamsError::Duplicate(name));
        }
        self.tensors.insert(
            name,
            Tensor {
                shape: shape.to_vec(),
                values,
            },
        );
        Ok(())
    }

    /// Returns the note: what a node remembers besides numbers, in its own words. What nodes send each other has none.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// Replaces the note. Joining sets, or taking a part of one, leaves notes behind.
    ///
    /// # Errors
    /// Refuses a note of more than 64 KiB.
    pub fn set_note(&mut self, note: Option<String>) -> Result<(), ParamsError> {
        if note
            .as_ref()
            .is_some_and(|note| note.len() > MAX_NOTE_BYTES)
        {
            return Err(ParamsError::Limit(NOTE.into()));
        }
        self.note = note;
        Ok(())
    }

    /// Returns how many tensors there are.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Tells whether there is no tensor.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Returns the number of values in all tensors.
    pub fn n_values(&self) -> usize {
        self.tensors
            .values()
            .map(|tensor| tensor.values.len())
            .sum()
    }

    /// Looks a tensor up.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    /// Visits tensors in name order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.tensors
            .iter()
            .map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// Visits tensors in name order, for writing values.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&str, &mut Tensor)> {
        self.tensors
            .iter_mut()
            .map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// Visits all values, tensor after tensor in name order.
    pub fn values(&self) -> impl Iterator<Item = f32> + '_ {
        self.tensors
            .values()
            .flat_map(|tensor| tensor.values.iter().copied())
    }

    /// Takes the set apart, in name order.
    pub fn into_tensors(self) -> impl Iterator<Item = (String, Tensor)> {
        self.tensors.into_iter()
    }

    /// Returns the tensors whose name starts with `prefix`, with the prefix taken off.
    #[must_use]
    pub fn strip_prefix(&self, prefix: &str) -> Self {
        let stripped = |(name, tensor): (&String, &Tensor)| {
            name.strip_prefix(prefix)
                .filter(|rest| !rest.is_empty())
                .map(|rest| (rest.to_owned(), tensor.clone()))
        };
        Self {
            tensors: self.tensors.iter().filter_map(stripped).collect(),
            note: None,
        }
    }

    /// Adds all tensors of `other`, each name with `prefix` in front.
    ///
    /// # Errors
    /// As [`ParamSet::insert`].
    pub fn extend_prefixed(&mut self, prefix: &str, other: Self) -> Result<(), ParamsError> {
        for (name, tensor) in other.tensors {
            self.insert(format!("{prefix}{name}"), &tensor.shape, tensor.values)?;
        }
        Ok(())
    }

    /// Returns names and shapes.
    pub fn layout(&self) -> Layout {
        self.tensors
            .iter()
            .map(|(name, tensor)| (name.clone(), tensor.shape.clone()))
            .collect()
    }

    /// Checks names and shapes against a model's.
    ///
    /// # Errors
    /// Names the first difference.
    pub fn check_layout(&self, expected: &Layout) -> Result<(), LayoutMismatch> {
        for (name, shape) in expected {
            let Some(tensor) = self.tensors.get(name) else {
                return Err(LayoutMismatch::Missing(name.clone()));
            };
            if &tensor.shape != shape {
                let (expected, got) = (shape.clone(), tensor.shape.clone());
                return Err(LayoutMismatch::Shape {
                    name: name.clone(),
                    expected,
                    got,
                });
            }
        }
        match self
            .tensors
            .keys()
            .find(|name| !expected.contains_key(*name))
        {
            Some(name) => Err(LayoutMismatch::Unexpected(name.clone())),
            None => Ok(()),
        }
    }

    /// Returns the numbers that a receiver has when these are sent at a precision.
    #[must_use]
    pub fn narrowed(mut self, precision: Precision) -> Self {
        let values = self
            .tensors
            .values_mut()
            .flat_map(|tensor| &mut tensor.values);
        values.for_each(|value| *value = precision.narrow(*value));
        self
    }

    /// Returns the canonical bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.to_bytes_as(Precision::F32)
    }

    /// Returns the canonical bytes at a precision.
    pub fn to_bytes_as(&self, precision: Precision) -> Vec<u8> {
        let mut bytes = self.header(precision);
        bytes.reserve_exact(self.n_values() * precision.n_bytes());
        for tensor in self.tensors.values() {
            precision.append(&tensor.values, &mut bytes);
        }
        bytes
    }

    /// Returns the canonical bytes up to the first value: what `safetensors::serialize` writes, which would copy all values
    /// twice.
    fn header(&self, precision: Precision) -> Vec<u8> {
        let mut end = 0;
        let tensors = self.tensors.iter().map(|(name, tensor)| {
            let start = end;
            end += tensor.values.len() * precision.n_bytes();
            let (dtype, shape) = (precision.dtype(), tensor.shape.clone());
            (
                name.clone(),
                TensorInfo {
                    dtype,
                    shape,
                    data_offsets: (start, end),
                },
            )
        });
        let note = self.note.iter().map(|note| (NOTE.to_owned(), note.clone()));
        let notes = self.note.as_ref().map(|_| note.collect());
        let header = Metadata::new(notes, tensors.collect())
            .expect("shapes hold their values, one after the other");
        let mut json = serde_json::to_vec(&header).expect("a header has only text keys");
        json.resize(json.len().next_multiple_of(size_of::<u64>()), b' ');
        [(json.len() as u64).to_le_bytes().as_slice(), &json].concat()
    }

    /// Returns the canonical bytes together with their name and size.
    pub fn to_blob(&self) -> (BlobRef, Vec<u8>) {
        self.to_blob_as(Precision::F32)
    }

    /// Returns the canonical bytes at a precision together with their name and size.
    pub fn to_blob_as(&self, precision: Precision) -> (BlobRef, Vec<u8>) {
        let bytes = self.to_bytes_as(precision);
        (BlobRef::of(&bytes), bytes)
    }

    /// Decodes canonical bytes; the way in for everything that a peer sent or a disk kept.
    ///
    /// # Errors
    /// Refuses everything that [`ParamSet::to_bytes`] would not have written, byte for byte.
    pub fn decode(bytes: &[u8]) -> Result<Self, ParamsError> {
        Self::decode_as(bytes, Precision::F32)
    }

    /// Decodes canonical bytes of a precision.
    ///
    /// # Errors
    /// Refuses everything that [`ParamSet::to_bytes_as`] would not have written, byte for byte.
    pub fn decode_as(bytes: &[u8], precision: Precision) -> Result<Self, ParamsError> {
        let params = Self::import(bytes)?;
        // With the canonical header the values lie where they belong, so they alone remain to be compared.
        let mut values = bytes
            .strip_prefix(params.header(precision).as_slice())
            .ok_or(ParamsError::NotCanonical)?;
        for tensor in params.tensors.values() {
            let own = values.split_off(..tensor.values.len() * precision.n_bytes());
            if !own.is_some_and(|own| precision.is_written(&tensor.values, own)) {
                return Err(ParamsError::NotCanonical);
            }
        }
        if values.is_empty() {
            Ok(params)
        } else {
            Err(ParamsError::NotCanonical)
        }
    }

    /// Reads any safetensors file of floats of 32 or 16 bits, whatever its order and metadata (PyTorch, burn, …). PyTorch's
    /// counters of batches, which nothing reads, are left out.
    ///
    /// # Errors
    /// Fails on a damaged file, on other element types and beyond the limits of [`ParamSet::insert`].
    pub fn import(bytes: &[u8]) -> Result<Self, ParamsError> {
        // The header is parsed once: `SafeTensors::deserialize` would not give its notes.
        let (header_bytes, header) =
            SafeTensors::read_metadata(bytes).map_err(ParamsError::Format)?;
        let data = &bytes[size_of::<u64>() + header_bytes..];
        let mut params = Self::new();
        for (name, info) in header.tensors() {
            if name.ends_with(BATCH_COUNTER) {
                continue;
            }
            let unknown = || ParamsError::Dtype {
                name: name.clone(),
                dtype: info.dtype,
            };
            let precision = Precision::of_dtype(info.dtype).ok_or_else(unknown)?;
            let (start, end) = info.data_offsets;
            let values = precision.read(&data[start..end]);
            params.insert(name, &info.shape, values)?;
        }
        let notes = header.metadata().as_ref();
        params.set_note(notes.and_then(|notes| notes.get(NOTE).cloned()))?;
        Ok(params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use safetensors::tensor::TensorView;

    fn sample() -> ParamSet {
        let mut params = ParamSet::new();
        params
            .insert(
                "fc.weight",
                &[2, 3],
                vec![1.0, -2.0, 3.5, 0.0, -0.0, f32::MIN_POSITIVE],
            )
            .unwrap();
        params
            .insert("fc.bias", &[2], vec![0.25, f32::MAX])
            .unwrap();
        params.insert("scale", &[], vec![7.0]).unwrap();
        params
    }

    #[test]
    fn a_note_survives_the_bytes_and_stays_behind_when_sets_are_joined() {
        let mut noted = sample();
        noted.set_note(Some("{\"a\":1}".into())).unwrap();
        let decoded = ParamSet::decode(&noted.to_bytes()).unwrap();
        assert_eq!((decoded.note(), &decoded), (Some("{\"a\":1}"), &noted));
        assert_ne!(noted.to_bytes(), sample().to_bytes());
        let mut joined = ParamSet::new();
        joined.extend_prefixed("", noted.clone()).unwrap();
        assert_eq!(
            (joined.note(), noted.strip_prefix("fc.").note()),
            (None, None)
        );
        noted.set_note(None).unwrap();
        assert_eq!(noted.to_bytes(), sample().to_bytes());
        let long = "x".repeat(MAX_NOTE_BYTES + 1);
        assert!(noted.set_note(Some(long)).is_err());
    }

    #[test]
    fn equal_parameters_have_equal_bytes_whatever_the_order() {
        let mut other = ParamSet::new();
        for (name, tensor) in sample()
            .into_tensors()
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
        {
            other.insert(name, &tensor.shape, tensor.values).unwrap();
        }
        assert_eq!(sample().to_blob().0, other.to_blob().0);
    }

    #[test]
    fn canonical_form_never_changes() {
        // Pinned: another serialisation would give every expert of every running federation another name.
        let id = sample().to_blob().0.id.to_string();
        assert_eq!(id, PINNED_ID);
    }

    const PINNED_ID: &str = "b92fdc11bdc8821204cbb0fdcf8a73a6147f5b4ebd54e6623024caa604b1d375";

    #[test]
    fn narrow_bytes_are_a_plain_safetensors_file_of_half_the_size() {
        let mut params = ParamSet::new();
        params.insert("w", &[2], vec![1.0, 1e9]).unwrap();
        // Written out by hand: the length of the header, the header, 1.0 and 65504 as binary16.
        let header = br#"{"w":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}}"#;
        let padding = vec![b' '; header.len().next_multiple_of(8) - header.len()];
        let length = header.len().next_multiple_of(8) as u64;
        let values = [0x00, 0x3c, 0xff, 0x7b];
        let expected = [&length.to_le_bytes()[..], header, &padding, &values].concat();
        assert_eq!(params.to_bytes_as(Precision::F16), expected);
        let decoded = ParamSet::decode_as(&expected, Precision::F16).unwrap();
        assert_eq!(decoded, params.narrowed(Precision::F16));
        assert_eq!(decoded.get("w").unwrap().values(), [1.0, 65504.0]);
    }

    #[test]
    fn a_precision_that_was_not_agreed_on_is_refused() {
        for sent in Precision::ALL {
            let bytes = sample().to_bytes_as(sent);
            for agreed in Precision::ALL {
                assert_eq!(
                    ParamSet::decode_as(&bytes, agreed).is_ok(),
                    sent == agreed,
                    "{sent:?} as {agreed:?}"
                );
            }
            assert_eq!(
                ParamSet::import(&bytes).unwrap(),
                sample().narrowed(sent),
                "a tool reads all of them"
            );
        }
    }

    #[test]
    fn decode_refuses_a_truncated_or_padded_file() {
        let bytes = sample().to_bytes();
        for cut in [0, 1, 7, 8, 20, bytes.len() - 1] {
            assert!(ParamSet::decode(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        assert!(ParamSet::decode(&[bytes.as_slice(), &[0]].concat()).is_err());
    }

    #[test]
    fn decode_refuses_metadata_and_import_reads_it() {
        let values = 1.0f32.to_le_bytes();
        let view = TensorView::new(Dtype::F32, vec![1], &values).unwrap();
        let metadata = Some(
            [("made_by".to_owned(), "torch".to_owned())]
                .into_iter()
                .collect(),
        );
        let bytes = safetensors::serialize([("w", view)], metadata).unwrap();
        assert!(matches!(
            ParamSet::decode(&bytes),
            Err(ParamsError::NotCanonical)
        ));
        assert_eq!(
            ParamSet::import(&bytes).unwrap().get("w").unwrap().values(),
            [1.0]
        );
    }

    #[test]
    fn import_leaves_out_what_pytorch_counts_batches_in() {
        let (values, count) = (1.0f32.to_le_bytes(), 7i64.to_le_bytes());
        let file = |counter: &str| {
            let views = [
                (
                    "bn.weight",
                    TensorView::new(Dtype::F32, vec![1], &values).unwrap(),
                ),
                (
                    counter,
                    TensorView::new(Dtype::I64, vec![], &count).unwrap(),
                ),
            ];
            safetensors::serialize(views, None).unwrap()
        };
        let read = ParamSet::import(&file("bn.num_batches_tracked")).unwrap();
        let names: Vec<&str> = read.iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["bn.weight"]);
        let error = ParamSet::import(&file("bn.count")).unwrap_err();
        assert!(matches!(error, ParamsError::Dtype { .. }), "{error}");
    }

    #[test]
    fn names_the_first_difference_of_layouts() {
        let mut other = sample().layout();
        other.insert("fc.bias".into(), vec![3]);
        let mismatch = sample().check_layout(&other).unwrap_err().to_string();
        assert_eq!(mismatch, "tensor `fc.bias` has shape [2], expected [3]");
    }

    #[test]
    fn rejects_shapes_that_overflow() {
        let mut params = ParamSet::new();
        assert!(params.insert("w", &[usize::MAX, 2], vec![]).is_err());
        assert!(params.insert("w", &[2], vec![0.0]).is_err());
    }

    proptest! {
        /// The header is written here, so that values are copied once; the library writes the same.
        #[test]
        fn the_canonical_form_is_what_the_library_writes(tensors in proptest::collection::btree_map(".{1,9}", 0usize..9, 0..5)) {
            let mut params = ParamSet::new();
            for (name, count) in tensors {
                prop_assume!(params.insert(name, &[count], vec![1.5; count]).is_ok());
            }
            for precision in Precision::ALL {
                let written: Vec<Vec<u8>> = params.iter().map(|(_, tensor)| {
                    let mut bytes = Vec::new();
                    precision.append(tensor.values(), &mut bytes);
                    bytes
                }).collect();
                let views = params.iter().zip(&written).map(|((name, tensor), bytes)| {
                    (name, TensorView::new(precision.dtype(), tensor.shape.clone(), bytes).unwrap())
                });
                prop_assert_eq!(params.to_bytes_as(precision), safetensors::serialize(views, None).unwrap());
            }
        }

        #[test]
        fn decode_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            let _ = ParamSet::decode(&bytes);
        }

        #[test]
        fn decode_never_panics_on_damaged_files(at in 0usize..400, byte: u8) {
            let mut bytes = sample().to_bytes();
            let at = at % bytes.len();
            bytes[at] = byte;
            let _ = ParamSet::decode(&bytes);
        }

        #[test]
        fn round_trips(values in proptest::collection::vec(any::<f32>(), 0..64)) {
            let mut params = ParamSet::new();
            params.insert("w", &[values.len()], values).unwrap();
            for precision in Precision::ALL {
                let bytes = params.to_bytes_as(precision);
                prop_assert_eq!(ParamSet::decode_as(&bytes, precision).unwrap().to_bytes_as(precision), bytes);
            }
        }
    }
}
