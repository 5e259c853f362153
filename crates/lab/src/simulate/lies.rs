//! Liars in a simulation, to measure what the others lose by them.
//!
//! `KIND:EVERY`: the last of every EVERY nodes lies, as with the transform `flipped:EVERY`. The result is that of the honest
//! nodes alone. They have the same data whatever the others do, so two kinds are compared node by node; `absent` is what
//! they reach by themselves.

use std::fmt;
use std::str::FromStr;

use fednode_core::config::unknown_name;
use fednode_core::{ConfigError, FederationSpec};
use fednode_sim::{Behaviour, Scenario};

/// One way to lie.
#[derive(Debug, PartialEq)]
struct Kind {
    name: &'static str,
    about: &'static str,
    does: Does,
    /// Whether it learns from labels that are turned round.
    flips: bool,
}

/// What a liar does.
#[derive(Debug, PartialEq)]
enum Does {
    /// Nothing: it is not there.
    Nothing,
    /// It sends what it trains.
    AsTrained,
    /// It lies.
    Lies(Behaviour),
}

const KINDS: [Kind; 6] = [
    Kind {
        name: "absent",
        about: "is not there: what the others reach by themselves",
        does: Does::Nothing,
        flips: false,
    },
    Kind {
        name: "flipped",
        about: "has its labels turned round",
        does: Does::AsTrained,
        flips: true,
    },
    Kind {
        name: "repeated",
        about: "has its labels turned round, and says that it has twenty times as many samples",
        does: Does::Lies(Behaviour::Repeated),
        flips: true,
    },
    Kind {
        name: "long-step",
        about: "sends a hundred times its step",
        does: Does::Lies(Behaviour::LongStep),
        flips: false,
    },
    Kind {
        name: "step-back",
        about: "sends its step with the sign turned",
        does: Does::Lies(Behaviour::StepBack),
        flips: false,
    },
    Kind {
        name: "copied",
        about: "says the proxies of another node for its own, and turns its experts round",
        does: Does::Lies(Behaviour::Copied),
        flips: false,
    },
];

/// Fewest nodes of which one lies.
const FEWEST: usize = 2;

/// Who lies, and how.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Lies {
    kind: &'static Kind,
    every: usize,
}

/// Lists the kinds, for `--help`.
pub(crate) fn help() -> String {
    let kinds = KINDS
        .iter()
        .map(|kind| format!("{}: {}", kind.name, kind.about));
    let kinds = kinds.collect::<Vec<_>>().join("; ");
    format!(
        "Let the last of every EVERY nodes lie, and show the result of the others. A liar of kind {kinds}"
    )
}

impl FromStr for Lies {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let (name, every) = text.split_once(':').unwrap_or((text, ""));
        let names = KINDS.map(|kind| kind.name);
        let kind = KINDS.iter().find(|kind| kind.name == name);
        let kind = kind.ok_or_else(|| ConfigError(unknown_name("kind of liar", name, &names)))?;
        let every = every.parse().ok().filter(|every| *every >= FEWEST);
        let form =
            || format!("liars are `{name}:EVERY`, EVERY a whole number of at least {FEWEST}");
        let every = every.ok_or_else(|| ConfigError(form()))?;
        Ok(Self { kind, every })
    }
}

impl fmt::Display for Lies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind.name, self.every)
    }
}

impl Lies {
    /// Tells whether a node lies, or is not there.
    pub(super) fn are_told_by(&self, member: usize) -> bool {
        (member + 1).is_multiple_of(self.every)
    }

    /// Changes the data of liars.
    ///
    /// # Errors
    /// Says that nobody would lie.
    pub(super) fn change(&self, spec: &mut FederationSpec) -> Result<(), ConfigError> {
        let nodes = spec.nodes as usize;
        if !(0..nodes).any(|member| self.are_told_by(member)) {
            let text = format!(
                "`lies = {self}`: of {nodes} nodes none would lie, so name a smaller EVERY"
            );
            return Err(ConfigError(text));
        }
        if self.kind.flips {
            spec.data.partition += &format!("+flipped:{}", self.every);
        }
        Ok(())
    }

    /// Returns a scenario in which they lie.
    pub(super) fn play(&self, mut scenario: Scenario) -> Scenario {
        let liars = (0..scenario.nodes).filter(|member| self.are_told_by(*member));
        match self.kind.does {
            Does::Lies(behaviour) => {
                scenario.behaviours = liars.map(|liar| (liar, behaviour)).collect();
            }
            Does::AsTrained => {}
            Does::Nothing => {
                scenario.absent = liars.collect();
                // The others do not wait for them: their federation is as large as they are.
                scenario.spec.nodes -= scenario.absent.len() as u32;
            }
        }
        scenario
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_every_few_nodes_lies() {
        let lies: Lies = "step-back:3".parse().unwrap();
        let liars: Vec<usize> = (0..7).filter(|node| lies.are_told_by(*node)).collect();
        assert_eq!(liars, [2, 5]);
        assert_eq!(lies.to_string(), "step-back:3");
        let scenario = lies.play(Scenario::new(1, 7, 2));
        let behaviours: Vec<_> = scenario.behaviours.into_iter().collect();
        let back = Behaviour::StepBack;
        assert_eq!(behaviours, [(2, back), (5, back)]);
        let absent: Lies = "absent:3".parse().unwrap();
        let alone = absent.play(Scenario::new(1, 7, 2));
        assert_eq!((alone.absent, alone.spec.nodes), (vec![2, 5], 5));
    }

    #[test]
    fn who_repeats_its_samples_has_turned_labels() {
        let lies: Lies = "repeated:4".parse().unwrap();
        let mut spec = FederationSpec::default();
        (spec.data.partition, spec.nodes) = ("iid".into(), 5);
        lies.change(&mut spec).unwrap();
        assert_eq!(spec.data.partition, "iid+flipped:4");
        spec.nodes = 3;
        let refused = lies.change(&mut spec).unwrap_err().0;
        assert!(refused.contains("of 3 nodes none would lie"), "{refused}");
    }

    #[test]
    fn a_wrong_kind_or_number_is_named() {
        let refused = |text: &str| text.parse::<Lies>().unwrap_err().0;
        assert!(refused("steps-back:3").contains("step-back"));
        assert!(refused("copied").starts_with("liars are `copied:EVERY`"));
        assert!(refused("copied:1").contains("at least 2"));
    }
}
