//! What members may learn of a node's samples, as all members agree on it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The word for no protection.
const OPEN: &str = "open";
/// The word for sums of which nobody sees a single part.
const MASKED: &str = "masked";
/// What stands before the promise.
const DIFFERENTIAL: &str = "dp:";
/// What stands before the promise of a masked sum.
const OF_A_SUM: &str = "masked+dp:";

/// How what is averaged is added up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sums {
    /// Each node publishes its own part.
    #[default]
    Open,
    /// Each node publishes its part with masks on it, which come off the sum of all.
    Masked,
}

crate::config! {
    /// What members may learn of a node's samples. With a promise, a node publishes statistics with noise, once (`fedmoe-da`,
    /// profile `agreement`), or what it trained by gradients with noise (`fedavg`, `fedper`, `lg-fedavg`, `fedmoe-da`).
    pub struct PrivacySpec {
        /// ε of the promise (0.05 to 100): whether one training sample is there changes the odds of whatever is published by e^ε
        /// at most, but for a probability of δ. Absent, everything leaves the node as it is.
        epsilon: Option<f64> = None,
        /// δ: the probability with which the promise may fail (1e-12 to 0.01). It goes with an ε.
        delta: f64 = 1e-5,
        /// How what is averaged is added up: `open` (the default), each node's part for all to see, or `masked`, so that nobody
        /// sees more than the sum. A masked sum takes three nodes, at most 255, that all train in every round. With `fedmoe-da` the
        /// nodes' statistics are added up once, before the first end, and with an ε nodes share the noise.
        sums: Sums = Sums::Open,
        /// How many nodes' statistics are added up together at least under masks (3 to 48). Absent, those of all nodes are. Groups let
        /// each node judge their sums and leave liars out, and they hide a node among fewer: 4 is a choice for members that trust each
        /// other less. An ε holds for each group's sum.
        group: Option<u32> = None,
    }
}

impl PrivacySpec {
    /// Tells whether no number may be published that is computed of a node's rows alone.
    pub fn hides_rows(&self) -> bool {
        self.epsilon.is_some() || self.sums == Sums::Masked
    }

    /// Returns how a federation with this protection is called: `open`, `masked`, `dp:EPSILON` or `masked+dp:EPSILON`.
    pub fn mode(&self) -> PrivacyMode {
        match (self.epsilon, self.sums) {
            (Some(epsilon), Sums::Open) => PrivacyMode::Differential(epsilon),
            (Some(epsilon), Sums::Masked) => PrivacyMode::MaskedDifferential(epsilon),
            (None, Sums::Masked) => PrivacyMode::Masked,
            (None, Sums::Open) => PrivacyMode::Open,
        }
    }
}

/// How what leaves a node is protected.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PrivacyMode {
    /// Not at all.
    Open,
    /// Nobody sees more than sums of what is averaged.
    Masked,
    /// By noise that each node adds in full, with this ε.
    Differential(f64),
    /// By both, with this ε: nobody sees more than sums, so nodes share the noise of statistics.
    MaskedDifferential(f64),
}

impl PrivacyMode {
    /// Returns ε, if there is a promise.
    pub const fn epsilon(self) -> Option<f64> {
        match self {
            Self::Open | Self::Masked => None,
            Self::Differential(epsilon) | Self::MaskedDifferential(epsilon) => Some(epsilon),
        }
    }

    /// Returns how what is averaged is added up.
    pub const fn sums(self) -> Sums {
        match self {
            Self::Open | Self::Differential(_) => Sums::Open,
            Self::Masked | Self::MaskedDifferential(_) => Sums::Masked,
        }
    }
}

/// A text names no protection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` names no protection: give `open`, `masked`, `dp:` and a number such as `dp:4`, or both as in `masked+dp:4`"
)]
pub struct NoMode(String);

impl FromStr for PrivacyMode {
    type Err = NoMode;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == OPEN {
            return Ok(Self::Open);
        }
        if text == MASKED {
            return Ok(Self::Masked);
        }
        let after = |prefix| text.strip_prefix(prefix)?.parse().ok();
        let differential = after(DIFFERENTIAL).map(Self::Differential);
        differential
            .or_else(|| after(OF_A_SUM).map(Self::MaskedDifferential))
            .ok_or_else(|| NoMode(text.to_owned()))
    }
}

impl fmt::Display for PrivacyMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open => f.write_str(OPEN),
            Self::Masked => f.write_str(MASKED),
            Self::Differential(epsilon) => write!(f, "{DIFFERENTIAL}{epsilon}"),
            Self::MaskedDifferential(epsilon) => write!(f, "{OF_A_SUM}{epsilon}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FederationSpec;

    #[test]
    fn modes_are_read_as_they_are_written() {
        for text in ["open", "masked", "dp:4", "dp:0.5", "masked+dp:4"] {
            assert_eq!(text.parse::<PrivacyMode>().unwrap().to_string(), text);
        }
        for text in ["", "dp", "dp:", "dp:much", "mask", "masked+", "masked+dp:"] {
            assert!(text.parse::<PrivacyMode>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_open_federation_keeps_its_id() {
        let written = FederationSpec::default().canonical_bytes();
        assert!(!String::from_utf8(written).unwrap().contains("privacy"));
        let read = |text: &str| FederationSpec::from_toml(text);
        let spec = read("[privacy]\nepsilon = 4.0").unwrap();
        assert_eq!(spec.privacy.mode(), PrivacyMode::Differential(4.0));
        assert_ne!(spec.id(), FederationSpec::default().id());
        assert_eq!(read(&spec.to_toml()), Ok(spec));
        let masked = |nodes| read(&format!("nodes = {nodes}\n[privacy]\nsums = \"masked\""));
        assert_eq!(masked(5).unwrap().privacy.mode(), PrivacyMode::Masked);
        for nodes in [2, 256] {
            assert!(masked(nodes).unwrap_err().0.contains("`nodes`"));
        }
        for text in [
            "epsilon = 0.0",
            "epsilon = nan",
            "epsilon = 1.0\ndelta = 0.5",
            "delta = 1e-6",
        ] {
            assert!(read(&format!("[privacy]\n{text}")).is_err(), "{text}");
        }
    }
}
