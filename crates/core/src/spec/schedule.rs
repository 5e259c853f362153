//! Schedules of the learning rate, and their short form in a file.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How the learning rate changes from round to round. Its text is `constant`, `step:EVERY:FACTOR` or `cosine`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Schedule {
    /// Not at all.
    #[default]
    Constant,
    /// By a factor after every few rounds.
    Step {
        /// Rounds of one learning rate (1 to 100000).
        every: u32,
        /// What the learning rate is multiplied by (above 0 to 1).
        factor: f64,
    },
    /// Along half a cosine, from the full rate in the first round to nearly nothing in the last.
    Cosine,
}

impl Schedule {
    /// What `step` alone means.
    pub const STEP: Self = Self::Step {
        every: 1,
        factor: 0.99,
    };
}

/// A text is no schedule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown schedule `{0}`: it is `constant`, `step:EVERY:FACTOR` or `cosine`")]
pub struct UnknownSchedule(String);

impl FromStr for Schedule {
    type Err = UnknownSchedule;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unknown = || UnknownSchedule(text.to_owned());
        let words: Vec<&str> = text.split(':').collect();
        match words[..] {
            ["constant"] => Ok(Self::Constant),
            ["cosine"] => Ok(Self::Cosine),
            ["step"] => Ok(Self::STEP),
            ["step", every, factor] => Ok(Self::Step {
                every: every.parse().map_err(|_| unknown())?,
                factor: factor.parse().map_err(|_| unknown())?,
            }),
            _ => Err(unknown()),
        }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Constant => f.write_str("constant"),
            Self::Step { every, factor } => write!(f, "step:{every}:{factor}"),
            Self::Cosine => f.write_str("cosine"),
        }
    }
}

impl TryFrom<String> for Schedule {
    type Error = UnknownSchedule;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Schedule> for String {
    fn from(schedule: Schedule) -> Self {
        schedule.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_are_written_as_they_are_read() {
        for text in ["constant", "step:3:0.5", "cosine"] {
            assert_eq!(text.parse::<Schedule>().unwrap().to_string(), text);
        }
        let bare: Schedule = "step".parse().unwrap();
        assert_eq!(bare.to_string(), "step:1:0.99");
        for wrong in [
            "",
            "stp",
            "step:3",
            "step:x:0.5",
            "step:3:0.5:1",
            "cosine:2",
        ] {
            let error = wrong.parse::<Schedule>().unwrap_err().to_string();
            let forms = "it is `constant`, `step:EVERY:FACTOR` or `cosine`";
            assert_eq!(error, format!("unknown schedule `{wrong}`: {forms}"));
        }
    }
}
