//! Gating proxies: the columns of a node's gate, `n` floats per expert (FedMoE-DA Eq. 1 and 6).
//!
//! A proxy says where its expert is good: the direction in the shared feature space for which the gate chooses it.
//! Two proxies compare only within one lineage. A proxy is a weighted sum of its node's feature vectors, so it reveals
//! more than the averaged embedding does.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{ParamSet, ParamsError};

/// Name of the one tensor in the blob form.
const TENSOR: &str = "proxies";
/// Most experts of one node: bounds adverts and rows.
pub const MAX_EXPERTS: usize = 64;

/// All proxies of one node: `K` vectors of `n` floats.
#[derive(Debug, Clone, PartialEq)]
pub struct ProxySet {
    dimension: usize,
    values: Vec<f32>,
}

impl ProxySet {
    /// Takes `K × n` values, proxy after proxy.
    ///
    /// # Errors
    /// Refuses a dimension of zero, no proxy or more than [`MAX_EXPERTS`], and a count that does not divide.
    pub fn new(dimension: usize, values: Vec<f32>) -> Result<Self, ParamsError> {
        let fits = dimension > 0 && !values.is_empty() && values.len().is_multiple_of(dimension);
        if !fits || values.len() / dimension > MAX_EXPERTS {
            let shape = vec![0, dimension];
            return Err(ParamsError::Shape {
                name: TENSOR.into(),
                shape,
                values: values.len(),
            });
        }
        Ok(Self { dimension, values })
    }

    /// Returns `n`, the floats per proxy.
    pub fn dimension(&self) -> usize {
        self.dimension
    }

    /// Returns `K`, the number of proxies.
    pub fn len(&self) -> usize {
        self.values.len() / self.dimension
    }

    /// Tells whether there is no proxy; never true for a constructed set.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Visits the proxies in slot order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[f32]> {
        self.values.chunks_exact(self.dimension)
    }

    /// Returns the parameter form, whose canonical bytes travel as a blob: one tensor `proxies` of shape `[K, n]`.
    pub fn to_params(&self) -> ParamSet {
        let mut params = ParamSet::new();
        let shape = [self.len(), self.dimension];
        params
            .insert(TENSOR, &shape, self.values.clone())
            .expect("new checked the shape");
        params
    }

    /// Reads the parameter form.
    ///
    /// # Errors
    /// Refuses anything but one tensor `proxies` of two dimensions within the limits.
    pub fn from_params(params: &ParamSet) -> Result<Self, ParamsError> {
        let tensor = params
            .get(TENSOR)
            .filter(|tensor| params.len() == 1 && tensor.shape().len() == 2);
        let tensor = tensor.ok_or(ParamsError::NotCanonical)?;
        Self::new(tensor.shape()[1], tensor.values().to_vec())
    }
}

/// Written as the canonical bytes that travel.
impl Serialize for ProxySet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.to_params().to_bytes())
    }
}

impl<'de> Deserialize<'de> for ProxySet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = serde_bytes::ByteBuf::deserialize(deserializer)?;
        ParamSet::decode(&bytes)
            .and_then(|params| Self::from_params(&params))
            .map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survives_the_blob_form() {
        let set = ProxySet::new(2, vec![1.0, 2.0, 3.0, 4.0]).unwrap();
        let bytes = set.to_params().to_bytes();
        assert_eq!(
            ProxySet::from_params(&ParamSet::decode(&bytes).unwrap()).unwrap(),
            set
        );
        assert_eq!(set.iter().collect::<Vec<_>>(), [[1.0, 2.0], [3.0, 4.0]]);
    }

    #[test]
    fn rejects_ragged_empty_and_oversized_sets() {
        assert!(ProxySet::new(0, vec![]).is_err());
        assert!(ProxySet::new(2, vec![]).is_err());
        assert!(ProxySet::new(2, vec![1.0]).is_err());
        assert!(ProxySet::new(1, vec![0.0; MAX_EXPERTS + 1]).is_err());
    }
}
