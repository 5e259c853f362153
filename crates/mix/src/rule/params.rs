//! The parameters of a rule: declared once in its row, resolved and checked here.

use std::collections::BTreeMap;

use fednode_core::config::unknown_name;
use fednode_core::{HyperValue, Rule};

use super::{RuleRow, TABLE, find};

/// One parameter of a rule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Param {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub doc: &'static str,
    /// What values it takes.
    pub kind: Kind,
    /// Its default, as text.
    pub default: &'static str,
}

/// What values a parameter takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// A whole number.
    Count {
        /// The smallest.
        min: u32,
        /// The largest.
        max: u32,
    },
    /// A number.
    Real {
        /// The smallest.
        min: f64,
        /// The largest.
        max: f64,
    },
}

impl Kind {
    /// Returns the range in words.
    pub fn range(&self) -> String {
        match self {
            Self::Count { min, max } => format!("{min} to {max}"),
            Self::Real { min, max } => format!("{min} to {max}, real"),
        }
    }

    /// Returns a value as a number if it is in range.
    fn read(&self, value: &HyperValue) -> Option<f64> {
        let number = match value {
            HyperValue::Integer(whole) => *whole as f64,
            HyperValue::Real(real) => *real,
            HyperValue::Bool(_) | HyperValue::Text(_) => return None,
        };
        let is_in_range = match self {
            Self::Count { min, max } => {
                let range = f64::from(*min)..=f64::from(*max);
                matches!(value, HyperValue::Integer(_)) && range.contains(&number)
            }
            Self::Real { min, max } => (min..=max).contains(&&number),
        };
        is_in_range.then_some(number)
    }
}

/// Tells why a rule is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// No rule has this name.
    #[error("{0}")]
    UnknownRule(String),
    /// The rule has no such parameter.
    #[error("{0}")]
    UnknownParam(String),
    /// A parameter is out of range.
    #[error("`{param}` of rule `{rule}` must be {range}")]
    OutOfRange {
        /// The rule.
        rule: &'static str,
        /// The parameter.
        param: &'static str,
        /// Its range in words.
        range: String,
    },
}

/// The resolved parameters of a rule: all declared ones have a value in range.
#[derive(Debug, Clone, PartialEq)]
pub struct Params(BTreeMap<&'static str, f64>);

impl Params {
    /// Resolves a rule: what it sets, else the defaults.
    ///
    /// # Errors
    /// Offers the nearest name for an unknown one, or names the range of a value.
    pub fn of(rule: &Rule) -> Result<(&'static RuleRow, Self), RuleError> {
        let row = find(rule.name()).ok_or_else(|| {
            let names: Vec<&str> = TABLE.iter().map(|row| row.name).collect();
            RuleError::UnknownRule(unknown_name("aggregation rule", rule.name(), &names))
        })?;
        let names: Vec<&str> = row.params.iter().map(|param| param.name).collect();
        if let Some((name, _)) = rule.params().find(|(name, _)| !names.contains(name)) {
            let kind = format!("parameter of rule `{}`", row.name);
            return Err(RuleError::UnknownParam(unknown_name(&kind, name, &names)));
        }
        let mut values = BTreeMap::new();
        for param in row.params {
            let given = rule.params().find(|(name, _)| *name == param.name);
            let value = match given {
                Some((_, value)) => value.clone(),
                None => param.default_value(),
            };
            let number = param.kind.read(&value);
            values.insert(
                param.name,
                number.ok_or_else(|| RuleError::OutOfRange {
                    rule: row.name,
                    param: param.name,
                    range: param.kind.range(),
                })?,
            );
        }
        Ok((row, Self(values)))
    }

    /// Returns a number.
    ///
    /// # Panics
    /// If the rule reads a parameter that its row does not declare.
    pub fn real(&self, name: &str) -> f64 {
        let value = self.0.get(name).copied();
        value.unwrap_or_else(|| panic!("parameter `{name}` is read but not declared"))
    }

    /// Returns a whole number.
    ///
    /// # Panics
    /// As [`Self::real`].
    pub fn count(&self, name: &str) -> usize {
        self.real(name) as usize
    }
}

impl Param {
    /// Returns the default.
    pub fn default_value(&self) -> HyperValue {
        let Ok(value) = self.default.parse();
        value
    }
}
