//! The values of hyper-parameters, which algorithms declare themselves.

use serde::{Deserialize, Serialize};

/// A value of an algorithm's own hyper-parameter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum HyperValue {
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Integer(i64),
    /// A real number.
    Real(f64),
    /// A word.
    Text(String),
}

impl std::str::FromStr for HyperValue {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = || {
            text.parse()
                .map(Self::Integer)
                .or_else(|_| text.parse().map(Self::Real))
        };
        Ok(text
            .parse()
            .map(Self::Bool)
            .or_else(|_| number())
            .unwrap_or_else(|_| Self::Text(text.to_owned())))
    }
}
