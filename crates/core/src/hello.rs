//! Meet: what two nodes tell each other on every new connection, before anything else.

use serde::{Deserialize, Serialize};

use crate::spec::Entry;
use crate::{FederationId, Timestamp};

/// Version of the protocol; nodes of different versions refuse each other.
pub const PROTOCOL_VERSION: u32 = 2;

/// What a process is to the federation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Trains (`fednode start`).
    Node,
    /// Averages and introduces, never trains (`fedboot start`).
    Aggregator,
}

/// The first words on a connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// [`PROTOCOL_VERSION`].
    pub protocol: u32,
    /// Name and version of the software, for logs only.
    pub software: String,
    /// What this process is.
    pub role: Role,
    /// The federation.
    pub federation: FederationId,
    /// The spec, key by key, so that a refusal can name the first difference.
    pub spec: Vec<Entry>,
    /// What the sender's clock shows.
    pub clock: Timestamp,
}

/// Tells why two nodes do not talk to each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Another version of the protocol.
    #[error(
        "the peer speaks protocol {theirs}, this node speaks {ours}: use the same release on both"
    )]
    Protocol {
        /// Our version.
        ours: u32,
        /// Their version.
        theirs: u32,
    },
    /// The specs differ.
    #[error("the specs differ first in `{key}`: ours is {ours}, the peer's is {theirs}")]
    Spec {
        /// The first differing key.
        key: String,
        /// Our value.
        ours: String,
        /// Their value.
        theirs: String,
    },
    /// The clocks differ.
    #[error("the clocks differ by {0} s: set both by NTP")]
    Clock(u64),
}

impl Hello {
    /// Checks a peer's hello against ours, heard at `now`.
    ///
    /// # Errors
    /// Names the reason why the two must not talk.
    pub fn check(
        &self,
        theirs: &Self,
        max_skew: std::time::Duration,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        if self.protocol != theirs.protocol {
            return Err(Refusal::Protocol {
                ours: self.protocol,
                theirs: theirs.protocol,
            });
        }
        if self.federation != theirs.federation {
            return Err(first_difference(&self.spec, &theirs.spec));
        }
        let skew = now.distance(theirs.clock);
        if skew > max_skew {
            Err(Refusal::Clock(skew.as_secs()))
        } else {
            Ok(())
        }
    }
}

/// The key that differs between any two runs, also where somebody chose other settings: it is named only if nothing else differs.
const RUN: &str = "fingerprints.run";

/// Names the first key in which two specs differ, in our order.
fn first_difference(ours: &[Entry], theirs: &[Entry]) -> Refusal {
    let absent = || "absent".to_owned();
    let value = |entries: &[Entry], key: &str| {
        entries
            .iter()
            .find(|entry| entry.key == key)
            .map_or_else(absent, |entry| entry.value.clone())
    };
    let keys = ours.iter().chain(theirs).map(|entry| entry.key.as_str());
    let settings = keys.filter(|key| *key != RUN);
    for key in settings.chain([RUN]) {
        let (ours, theirs) = (value(ours, key), value(theirs, key));
        if ours != theirs {
            return Refusal::Spec {
                key: key.to_owned(),
                ours,
                theirs,
            };
        }
    }
    // The ids differ although no key does: the peer computed its id wrongly or lies.
    Refusal::Spec {
        key: "federation id".into(),
        ours: "computed from the spec".into(),
        theirs: "not".into(),
    }
}
