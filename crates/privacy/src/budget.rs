//! What a node's releases cost together, and whether another one still fits into its owner's budget.
//!
//! ```text
//! releases ──► cost of each ──► all Gaussian:    1/σ² adds, and ε is exact           ──► Spent ──► Budget::may_release
//!                           ├─► some training:   Rényi curves add, Gaussian ones too
//!                           └─► some unknown:    ε is infinite
//! ```
//!
//! Each way stays valid if later releases are chosen by what earlier ones said, and a limit is checked before each. Smith
//! and Thakurta (2022, arXiv 2210.17520) show it for Gaussian noise, Feldman and Zrnic (NeurIPS 2021) and Lécuyer (2021) for
//! Rényi curves. For the tighter accountant of [`crate::pld`] nobody has shown that, so it plans a run and does not decide
//! here.
//!
//! A budget speaks of one pair of neighbouring data sets. A release that was accounted for another pair says nothing about
//! it, so it counts as one without protection. Nothing here reads a clock or a file: who releases says when.

use serde::{Deserialize, Serialize};

use crate::gaussian;
use crate::rdp::{Curve, Orders, Sampled};
use crate::units::{Delta, Epsilon, Noise, Rate, UnitError};

/// What two neighbouring data sets differ by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adjacency {
    /// What is protected.
    pub unit: Unit,
    /// What may happen to it.
    pub change: Change,
}

/// What is protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// One row of the data.
    Row,
    /// All rows of one group, such as a patient.
    Group,
    /// All data of one node.
    Node,
}

/// What may happen to a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// It is there or not.
    AddRemove,
    /// It is another one.
    ReplaceOne,
}

/// One thing that leaves the node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Release {
    /// What is released, in words.
    pub what: String,
    /// When, in seconds since 1970.
    pub when: u64,
    /// How it is protected.
    pub mechanism: Mechanism,
}

/// How a release is protected.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Mechanism {
    /// A sum with Gaussian noise.
    Gaussian {
        /// The noise.
        noise: Calibrated,
        /// For which neighbours the sensitivity holds.
        adjacency: Adjacency,
    },
    /// Steps of training, each with noise on the sum over a Poisson sample.
    Training {
        /// The probability with which a unit takes part in a step.
        rate: Rate,
        /// The noise of a step.
        noise: Calibrated,
        /// The number of steps.
        steps: u32,
        /// For which neighbours the sensitivity holds.
        adjacency: Adjacency,
    },
    /// Nothing: its cost is infinite.
    Unprotected,
}

/// Noise beside the sensitivity of what it is added to, both in the same units.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Numbers", into = "Numbers")]
pub struct Calibrated {
    deviation: f64,
    sensitivity: f64,
}

/// Calibrated noise as it is stored, not yet checked.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Numbers {
    deviation: f64,
    sensitivity: f64,
}

/// What releases cost together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spent {
    /// ε at the owner's δ: infinite if anything was released without protection.
    pub epsilon: f64,
    /// The owner's δ.
    pub delta: Delta,
}

/// What the owner allows.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// The most ε of all releases together.
    pub epsilon: Epsilon,
    /// The probability with which that may fail.
    pub delta: Delta,
    /// The neighbours of which the promise speaks.
    pub adjacency: Adjacency,
}

/// Tells why a release does not leave the node.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// The release itself promises nothing that the budget asks for.
    #[error("this release is not published: {0}")]
    Unbounded(Unbounded),
    /// Something like that was released before.
    #[error(
        "this release is not published: what was released before has no bound, so no budget can hold"
    )]
    AlreadyUnbounded,
    /// The budget would be passed.
    #[error(
        "this release is not published: it would bring epsilon from {before:.3} to {after:.3}, above the budget of {budget} \
         at delta {delta:e}"
    )]
    Passed {
        /// ε of what was released before.
        before: f64,
        /// ε with this release.
        after: f64,
        /// The owner's ε.
        budget: f64,
        /// The owner's δ.
        delta: f64,
    },
}

/// Tells why a release has no bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unbounded {
    /// Nothing protects it.
    #[error("nothing protects it")]
    Unprotected,
    /// It protects something else.
    #[error("its noise was not calibrated for what the budget protects")]
    OtherAdjacency,
    /// Sampled training is accounted for units that are there or not.
    #[error(
        "the cost of training is known for units that are there or not, and the budget is for replaced ones"
    )]
    ReplacedInTraining,
}

/// What a release adds to the cost.
enum Cost {
    Gaussian(Noise),
    Training(Sampled),
}

impl Calibrated {
    /// Returns noise of a standard deviation beside the sensitivity of what it is added to.
    ///
    /// # Errors
    /// Refuses numbers whose quotient is no noise.
    pub fn new(deviation: f64, sensitivity: f64) -> Result<Self, UnitError> {
        Noise::new(deviation / sensitivity)?;
        if deviation > 0.0 && deviation.is_finite() {
            Ok(Self {
                deviation,
                sensitivity,
            })
        } else {
            Err(UnitError::Noise(deviation))
        }
    }

    /// Returns the standard deviation over the sensitivity.
    pub fn noise(self) -> Noise {
        Noise::new(self.deviation / self.sensitivity).expect("checked when it was made")
    }
}

impl TryFrom<Numbers> for Calibrated {
    type Error = UnitError;

    fn try_from(numbers: Numbers) -> Result<Self, UnitError> {
        Self::new(numbers.deviation, numbers.sensitivity)
    }
}

impl From<Calibrated> for Numbers {
    fn from(calibrated: Calibrated) -> Self {
        Self {
            deviation: calibrated.deviation,
            sensitivity: calibrated.sensitivity,
        }
    }
}

impl Budget {
    /// Returns what these releases cost together.
    pub fn spent<'a>(&self, releases: impl IntoIterator<Item = &'a Release>) -> Spent {
        let costs: Result<Vec<Cost>, Unbounded> = releases
            .into_iter()
            .map(|release| self.cost(release))
            .collect();
        let epsilon = costs.map_or(f64::INFINITY, |costs| self.epsilon_of(&costs));
        Spent {
            epsilon,
            delta: self.delta,
        }
    }

    /// Returns what is spent once this release has left, too.
    ///
    /// # Errors
    /// Refuses a release that would pass the budget, or has no bound.
    pub fn may_release(&self, before: &[Release], next: &Release) -> Result<Spent, Refusal> {
        self.cost(next).map_err(Refusal::Unbounded)?;
        let spent = self.spent(before);
        if spent.epsilon.is_infinite() {
            return Err(Refusal::AlreadyUnbounded);
        }
        let then = self.spent(before.iter().chain([next]));
        if then.epsilon <= self.epsilon.get() {
            return Ok(then);
        }
        Err(Refusal::Passed {
            before: spent.epsilon,
            after: then.epsilon,
            budget: self.epsilon.get(),
            delta: self.delta.get(),
        })
    }

    fn cost(&self, release: &Release) -> Result<Cost, Unbounded> {
        match release.mechanism {
            Mechanism::Unprotected => Err(Unbounded::Unprotected),
            Mechanism::Gaussian { adjacency, .. } | Mechanism::Training { adjacency, .. }
                if adjacency != self.adjacency =>
            {
                Err(Unbounded::OtherAdjacency)
            }
            Mechanism::Training { adjacency, .. } if adjacency.change == Change::ReplaceOne => {
                Err(Unbounded::ReplacedInTraining)
            }
            Mechanism::Gaussian { noise, .. } => Ok(Cost::Gaussian(noise.noise())),
            Mechanism::Training {
                rate, noise, steps, ..
            } => Ok(Cost::Training(Sampled {
                rate,
                noise: noise.noise(),
                steps,
            })),
        }
    }

    fn epsilon_of(&self, costs: &[Cost]) -> f64 {
        let gaussian = |cost: &Cost| match cost {
            Cost::Gaussian(noise) => Some(*noise),
            Cost::Training(_) => None,
        };
        if costs.is_empty() {
            return 0.0;
        }
        if let Some(noises) = costs.iter().map(gaussian).collect::<Option<Vec<Noise>>>() {
            // A sum out of the range of a noise is one of almost none.
            return Noise::of_all(noises)
                .map_or(f64::INFINITY, |noise| gaussian::epsilon(noise, self.delta));
        }
        let (mut curve, mut runs) = (Curve::zero(Orders::Google), Vec::<Sampled>::new());
        for cost in costs {
            match cost {
                Cost::Gaussian(noise) => curve = curve.with_gaussian(*noise),
                Cost::Training(run) => join(&mut runs, *run),
            }
        }
        let curve = runs.iter().fold(curve, Curve::with_sampled);
        curve.epsilon(self.delta).value
    }
}

/// Adds a run to others. Rounds of one federation are alike, and steps alike are accounted at once.
fn join(runs: &mut Vec<Sampled>, run: Sampled) {
    let is_alike = |other: &&mut Sampled| other.rate == run.rate && other.noise == run.noise;
    match runs
        .iter_mut()
        .find(is_alike)
        .map(|alike| (alike.steps.checked_add(run.steps), alike))
    {
        Some((Some(steps), alike)) => alike.steps = steps,
        _ => runs.push(run),
    }
}

#[cfg(test)]
mod tests;
