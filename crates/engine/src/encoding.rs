//! How values are written that have no form of their own in a file.

/// Writes a map as a list of pairs, since JSON objects have text keys only.
pub(crate) mod as_list {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<K: Serialize, V: Serialize, S: Serializer>(
        map: &BTreeMap<K, V>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        map.iter().collect::<Vec<_>>().serialize(serializer)
    }

    pub(crate) fn deserialize<'de, K, V, D>(deserializer: D) -> Result<BTreeMap<K, V>, D::Error>
    where
        K: Deserialize<'de> + Ord,
        V: Deserialize<'de>,
        D: Deserializer<'de>,
    {
        let pairs = Vec::<(K, V)>::deserialize(deserializer)?;
        Ok(pairs.into_iter().collect())
    }
}

/// Writes what is shared in memory as if it were not.
pub(crate) mod shared {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<T: Serialize, S: Serializer>(
        value: &Arc<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        value.as_ref().serialize(serializer)
    }

    pub(crate) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Arc<T>, D::Error> {
        T::deserialize(deserializer).map(Arc::new)
    }
}

/// Writes proxies as the bytes of their blob.
pub(crate) mod proxies_as_bytes {
    use std::sync::Arc;

    use fednode_core::{ParamSet, ProxySet};
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(
        proxies: &Arc<ProxySet>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        proxies.to_params().to_bytes().serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Arc<ProxySet>, D::Error> {
        let bytes = Vec::<u8>::deserialize(deserializer)?;
        let params = ParamSet::decode(&bytes).map_err(D::Error::custom)?;
        let proxies = ProxySet::from_params(&params).map_err(D::Error::custom)?;
        Ok(Arc::new(proxies))
    }
}
