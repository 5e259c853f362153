//! How values are written that have no form of their own in a file.

use std::sync::Arc;

use fednode_core::{BroadcastSet, FederationSpec, Schedule};

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

/// Writes what may be there, and is shared in memory.
pub(crate) mod shared_option {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<T: Serialize, S: Serializer>(
        value: &Option<Arc<T>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        value.as_deref().serialize(serializer)
    }

    pub(crate) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Arc<T>>, D::Error> {
        Ok(Option::<T>::deserialize(deserializer)?.map(Arc::new))
    }
}

/// Writes a list of what is shared in memory.
pub(crate) mod shared_list {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<T: Serialize, S: Serializer>(
        values: &[Arc<T>],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(values.iter().map(Arc::as_ref))
    }

    pub(crate) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<Arc<T>>, D::Error> {
        let values = Vec::<T>::deserialize(deserializer)?;
        Ok(values.into_iter().map(Arc::new).collect())
    }
}

/// Writes proxies with the rounds that refreshed them.
pub(crate) mod proxies_by_round {
    use std::sync::Arc;

    use fednode_core::{ProxySet, Round};
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(
        known: &[(Round, Arc<ProxySet>)],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(known.iter().map(|(round, set)| (round, set.as_ref())))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<(Round, Arc<ProxySet>)>, D::Error> {
        let known = Vec::<(Round, ProxySet)>::deserialize(deserializer)?;
        let shared = |(round, set)| (round, Arc::new(set));
        Ok(known.into_iter().map(shared).collect())
    }
}

/// Writes a map by name as a list of pairs, in its order, which is part of what a machine does.
pub(crate) mod in_order {
    use std::hash::Hash;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::names::OrderedNames;

    pub(crate) fn serialize<K: Serialize, V: Serialize, S: Serializer>(
        map: &OrderedNames<K, V>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(map)
    }

    pub(crate) fn deserialize<'de, K, V, D>(deserializer: D) -> Result<OrderedNames<K, V>, D::Error>
    where
        K: Deserialize<'de> + Hash + Eq,
        V: Deserialize<'de>,
        D: Deserializer<'de>,
    {
        let pairs = Vec::<(K, V)>::deserialize(deserializer)?;
        Ok(pairs.into_iter().collect())
    }
}

/// Stands in for the schedule of a machine that is read from a file, until it is given its spec.
pub(crate) fn schedule_of_default_spec() -> Arc<Schedule> {
    Arc::new(Schedule::of(&FederationSpec::default()))
}

/// Stands in for the broadcast set of a machine that is read from a file, until it is given its spec.
pub(crate) fn broadcast_set_of_default_spec() -> BroadcastSet {
    BroadcastSet::of(&FederationSpec::default())
}
