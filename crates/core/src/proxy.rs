//! Gating proxies: the columns of a node's gate, `n` floats per expert (FedMoE-DA Eq. 1 and 6).
//!
//! A proxy says where its expert is good: the direction in the shared feature space for which the gate chooses it.
//! Two proxies compare only within one lineage. A proxy is a weighted sum of its node's feature vectors, so it reveals
//! more than the averaged embedding does.

use std::fmt;
use std::sync::{Arc, OnceLock};

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

    /// Decodes the canonical bytes of the parameter form.
    ///
    /// # Errors
    /// As [`ParamSet::decode`] and [`ProxySet::from_params`].
    pub fn decode(bytes: &[u8]) -> Result<Self, ParamsError> {
        Self::from_params(&ParamSet::decode(bytes)?)
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
        Self::decode(&bytes).map_err(D::Error::custom)
    }
}

/// Proxies that ride inside an advert: their canonical bytes, which are decoded once for all who share the advert.
///
/// The bytes are not judged before somebody asks for the proxies. They alone are sent, compared and shown.
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct InlineProxies {
    /// The encoded proxies.
    #[serde(with = "serde_bytes")]
    bytes: Vec<u8>,
    /// What the bytes say, once somebody asked.
    #[serde(skip)]
    decoded: OnceLock<Arc<ProxySet>>,
}

impl InlineProxies {
    /// Takes the canonical bytes of [`ProxySet::to_params`], as they came.
    pub const fn new(bytes: Vec<u8>) -> Self {
        Self {
            bytes,
            decoded: OnceLock::new(),
        }
    }

    /// Returns the bytes that travel.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the proxies.
    ///
    /// # Errors
    /// As [`ProxySet::decode`], every time: a fault is not remembered.
    pub fn decoded(&self) -> Result<Arc<ProxySet>, ParamsError> {
        if let Some(known) = self.decoded.get() {
            return Ok(Arc::clone(known));
        }
        let proxies = Arc::new(ProxySet::decode(&self.bytes)?);
        // Somebody else may have been faster: then theirs, which are equal, are shared.
        Ok(Arc::clone(self.decoded.get_or_init(|| proxies)))
    }
}

impl PartialEq for InlineProxies {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl fmt::Debug for InlineProxies {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes.fmt(formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survives_the_blob_form() {
        let set = ProxySet::new(2, vec![1.0, 2.0, 3.0, 4.0]).unwrap();
        let bytes = set.to_params().to_bytes();
        assert_eq!(ProxySet::decode(&bytes).unwrap(), set);
        assert_eq!(set.iter().collect::<Vec<_>>(), [[1.0, 2.0], [3.0, 4.0]]);
    }

    #[test]
    fn rejects_ragged_empty_and_oversized_sets() {
        assert!(ProxySet::new(0, vec![]).is_err());
        assert!(ProxySet::new(2, vec![]).is_err());
        assert!(ProxySet::new(2, vec![1.0]).is_err());
        assert!(ProxySet::new(1, vec![0.0; MAX_EXPERTS + 1]).is_err());
    }

    #[test]
    fn inline_proxies_are_decoded_once_for_all_who_share_them() {
        let set = ProxySet::new(2, vec![1.0, 2.0]).unwrap();
        let inline = InlineProxies::new(set.to_params().to_bytes());
        let decoded = inline.decoded().unwrap();
        assert_eq!(*decoded, set);
        for again in [inline.decoded(), inline.clone().decoded()] {
            assert!(Arc::ptr_eq(&decoded, &again.unwrap()));
        }
    }

    #[test]
    fn only_the_bytes_of_inline_proxies_are_sent_compared_and_shown() {
        let bytes = ProxySet::new(1, vec![1.0]).unwrap().to_params().to_bytes();
        let [fresh, asked] = [(); 2].map(|()| InlineProxies::new(bytes.clone()));
        asked.decoded().unwrap();
        assert_eq!(fresh, asked);
        assert_ne!(fresh, InlineProxies::new(Vec::new()));
        let plain = serde_bytes::Bytes::new(&bytes);
        for inline in [fresh, asked] {
            assert_eq!(format!("{inline:?}"), format!("{bytes:?}"));
            let sent = serde_json::to_string(&inline).unwrap();
            assert_eq!(sent, serde_json::to_string(plain).unwrap());
            let received: InlineProxies = serde_json::from_str(&sent).unwrap();
            assert_eq!(received, inline);
            assert!(received.decoded.get().is_none(), "not before it is asked");
        }
    }

    #[test]
    fn malformed_inline_proxies_are_refused_every_time() {
        let inline = InlineProxies::new(b"no proxies".to_vec());
        assert!(inline.decoded().is_err());
        assert!(inline.decoded().is_err());
    }
}
