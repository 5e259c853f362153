//! What members may learn of a node's samples, as all members agree on it.

use std::fmt;
use std::str::FromStr;

/// The word for no protection.
const OPEN: &str = "open";
/// What stands before the promise.
const DIFFERENTIAL: &str = "dp:";

crate::config! {
    /// What members may learn of a node's samples. With a promise, a node publishes statistics with noise, once (`fedmoe-da`,
    /// profile `agreement`), or what it trained by gradients with noise (`fedavg`, `fedper`, `lg-fedavg`, `fedmoe-da`).
    pub struct PrivacySpec {
        /// ε of the promise (0.05 to 100): whether one training sample is there changes the odds of whatever is published by e^ε
        /// at most, but for a probability of δ. Absent, everything leaves the node as it is.
        epsilon: Option<f64> = None,
        /// δ: the probability with which the promise may fail (1e-12 to 0.01). It goes with an ε.
        delta: f64 = 1e-5,
    }
}

impl PrivacySpec {
    /// Returns how a federation with this protection is called: `open` or `dp:EPSILON`.
    pub fn mode(&self) -> PrivacyMode {
        self.epsilon
            .map_or(PrivacyMode::Open, PrivacyMode::Differential)
    }
}

/// How what leaves a node is protected.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PrivacyMode {
    /// Not at all.
    Open,
    /// By noise, with this ε.
    Differential(f64),
}

/// A text names no protection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` names no protection: give `open`, or `dp:` and a number such as `dp:4`")]
pub struct NoMode(String);

impl FromStr for PrivacyMode {
    type Err = NoMode;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == OPEN {
            return Ok(Self::Open);
        }
        let epsilon = text.strip_prefix(DIFFERENTIAL);
        let epsilon = epsilon.and_then(|number| number.parse().ok());
        epsilon
            .map(Self::Differential)
            .ok_or_else(|| NoMode(text.to_owned()))
    }
}

impl fmt::Display for PrivacyMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open => f.write_str(OPEN),
            Self::Differential(epsilon) => write!(f, "{DIFFERENTIAL}{epsilon}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FederationSpec;

    #[test]
    fn modes_are_read_as_they_are_written() {
        for text in ["open", "dp:4", "dp:0.5"] {
            assert_eq!(text.parse::<PrivacyMode>().unwrap().to_string(), text);
        }
        for text in ["", "dp", "dp:", "dp:much", "masked"] {
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
