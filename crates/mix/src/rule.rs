//! Aggregation rules: many members' parameters become one. One file and one row of [`TABLE`] each.
//!
//! Core and engine see a rule as a name with parameters ([`fednode_core::Rule`]); its meaning is here alone. A rule gets
//! whole parts, not coordinates, so that it may compare members. It gets them one by one: a rule that streams drops a
//! part before it asks for the next, and an aggregator's memory does not grow with the number of members.
//!
//! Members are combined in the order given, in `f64`, and with no draw but those that the parts seed: all nodes that have
//! the same list get the same bits, which an audit needs. Equal members come back unchanged under each rule that learns
//! nothing. The robust rules ignore weights or bound them, since a liar would lie about its weight too. Callers screen
//! members first.

mod clipped;
mod coordinates;
mod generator;
mod geometric_median;
mod krum;
mod learning;
mod mean;
mod median;
mod params;
mod prototypes;
mod trimmed_mean;
mod usage;

use std::sync::Arc;

use fednode_core::{LayoutMismatch, ParamSet, Rule};

use crate::statistics::robust::Doubt;

pub use mean::Accumulator;
pub(crate) use median::lower_median;
pub use params::{Kind, Param, Params, RuleError};

/// All rules.
pub const TABLE: &[RuleRow] = &[
    mean::ROW,
    clipped::ROW,
    median::ROW,
    trimmed_mean::ROW,
    geometric_median::ROW,
    krum::ROW,
    krum::MULTI_ROW,
    prototypes::ROW,
    usage::ROW,
    generator::ROW,
];

/// One rule.
#[derive(Debug, Clone, Copy)]
pub struct RuleRow {
    /// Its name in files and on the wire.
    pub name: &'static str,
    /// What it does, in one line.
    pub summary: &'static str,
    /// Where it is from.
    pub reference: &'static str,
    /// Which parts it takes.
    pub takes: Takes,
    /// Whether it drops each part before it asks for the next.
    pub streams: bool,
    /// Whether a member's weight counts.
    pub uses_weights: bool,
    /// Its parameters.
    pub params: &'static [Param],
    /// Combines members.
    pub combine: Combine,
}

/// Which parts a rule takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// Parts of any kind: a federation may choose the rule (`aggregation`).
    AnyParts,
    /// Parts with tensors that it knows by their names: one algorithm's own rule.
    PartsOfItsAlgorithm,
}

/// Combines members in the order given. The parameters were checked.
pub type Combine = fn(&Params, &mut dyn Iterator<Item = Part>) -> Result<ParamSet, AverageError>;

/// One member's part and how much it counts.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    /// The member's weight.
    pub weight: f64,
    /// Its parameters.
    pub params: Arc<ParamSet>,
}

/// Tells why members could not be averaged.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum AverageError {
    /// There is nobody to average, or all weights are zero.
    #[error("there is nothing to average: no member has a weight above zero")]
    NoMembers,
    /// No member's statistics can be those of samples.
    #[error("nobody's statistics are believed: {0}")]
    NobodyBelieved(Doubt),
    /// A weight is negative or not finite.
    #[error("a weight of {0} is not a finite number of at least zero")]
    Weight(f64),
    /// The rule needs parts of a kind, and these are others.
    #[error("the shared part is not {0}")]
    Unsuited(&'static str),
    /// A member belongs to another model.
    #[error("a member does not fit the others: {0}")]
    Layout(#[from] LayoutMismatch),
    /// The rule is unknown, or one of its parameters is.
    #[error(transparent)]
    Rule(#[from] RuleError),
}

/// Returns the row of a name.
pub fn find(name: &str) -> Option<&'static RuleRow> {
    TABLE.iter().find(|row| row.name == name)
}

/// Visits the rules that a federation may choose for parts of any kind.
pub fn choices() -> impl Iterator<Item = &'static RuleRow> {
    TABLE.iter().filter(|row| row.takes == Takes::AnyParts)
}

/// Combines members in the order given, each asked for when the rule needs it.
///
/// # Errors
/// Refuses an unknown rule, parameters out of range, an empty list, members of different layouts and unusable weights.
pub fn combine(
    rule: &Rule,
    parts: &mut dyn Iterator<Item = Part>,
) -> Result<ParamSet, AverageError> {
    let (row, params) = Params::of(rule)?;
    (row.combine)(&params, parts)
}

/// Combines members that are all in memory, in the order given.
///
/// # Errors
/// As [`combine`].
pub fn average(rule: &Rule, parts: &[Part]) -> Result<ParamSet, AverageError> {
    combine(rule, &mut parts.iter().cloned())
}

/// Takes all parts at once and checks that they have one layout.
pub(crate) fn together(parts: &mut dyn Iterator<Item = Part>) -> Result<Vec<Part>, AverageError> {
    let parts: Vec<Part> = parts.collect();
    let layout = parts
        .first()
        .ok_or(AverageError::NoMembers)?
        .params
        .layout();
    for part in &parts {
        part.params.check_layout(&layout)?;
    }
    Ok(parts)
}

#[cfg(test)]
mod tests;
