//! Hyper-parameters: declared once per algorithm, resolved and checked here, printed by `fednode algorithms NAME`.

use std::collections::BTreeMap;

use fednode_core::config::unknown_name;
use fednode_core::{ConfigError, HyperValue, PeersPerExpert, Rule};
use fednode_mix::rule;

use super::Row;

/// The key that chooses a profile.
const PROFILE: &str = "profile";

/// How shared parts are combined; the same for every algorithm that averages. An algorithm that declares it takes the
/// parameters of the chosen rule too.
pub(super) const AGGREGATION: Hyper = Hyper {
    name: "aggregation",
    kind: Kind::AggregationRule,
    default: "clipped",
    doc: "how the shared parts of the nodes become one; all but the mean resist liars",
};

/// The rule of the papers, which a profile that is named after one sets.
pub(super) const PLAIN_MEAN: (&str, &str) = (AGGREGATION.name, "mean");

/// Makes the hyper-parameter of an algorithm that every node tunes for itself after the last round.
pub(super) const fn fine_tuning_epochs(default: &'static str) -> Hyper {
    Hyper {
        name: FINE_TUNING_EPOCHS,
        kind: Kind::Integer {
            min: 0,
            max: 100_000,
        },
        default,
        doc: "epochs that every node trains for itself after the last round",
    }
}

/// The name of that hyper-parameter.
pub(super) const FINE_TUNING_EPOCHS: &str = "fine_tuning_epochs";

/// One hyper-parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hyper {
    /// Its key in table `hyper` of the spec.
    pub name: &'static str,
    /// What values it takes.
    pub kind: Kind,
    /// Its default, as text.
    pub default: &'static str,
    /// What it does.
    pub doc: &'static str,
}

/// What values a hyper-parameter takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// One of these words.
    Choice(&'static [&'static str]),
    /// The name of a rule that a federation may choose ([`rule::choices`]).
    AggregationRule,
    /// A whole number.
    Integer {
        /// The smallest.
        min: i64,
        /// The largest.
        max: i64,
    },
    /// A number.
    Real {
        /// The smallest.
        min: f64,
        /// The largest.
        max: f64,
    },
    /// A whole number from 0, or `all`.
    CountOrAll {
        /// The largest.
        max: i64,
    },
}

impl Kind {
    /// Returns the range in words.
    pub fn range(&self) -> String {
        match self {
            Self::Choice(words) => words.join(" | "),
            Self::AggregationRule => rule_names().join(" | "),
            Self::Integer { min, max } => format!("{min} to {max}"),
            Self::Real { min, max } => format!("{min} to {max}, real"),
            Self::CountOrAll { max } => format!("0 to {max}, or all"),
        }
    }

    fn admits(&self, value: &HyperValue) -> bool {
        match (self, value) {
            (Self::Choice(words), HyperValue::Text(text)) => words.contains(&text.as_str()),
            (Self::AggregationRule, HyperValue::Text(text)) => {
                rule_names().contains(&text.as_str())
            }
            (Self::Integer { min, max }, HyperValue::Integer(n)) => (min..=max).contains(&n),
            (Self::Real { min, max }, HyperValue::Integer(n)) => {
                (*min..=*max).contains(&(*n as f64))
            }
            (Self::Real { min, max }, HyperValue::Real(x)) => (min..=max).contains(&x),
            (Self::CountOrAll { .. }, HyperValue::Text(text)) => text == "all",
            (Self::CountOrAll { max }, HyperValue::Integer(n)) => (0..=*max).contains(n),
            _ => false,
        }
    }
}

fn rule_names() -> Vec<&'static str> {
    rule::choices().map(|row| row.name).collect()
}

impl From<&rule::Param> for Hyper {
    /// Makes the hyper-parameter that sets a rule's parameter: both have one name.
    fn from(param: &rule::Param) -> Self {
        let kind = match param.kind {
            rule::Kind::Count { min, max } => Kind::Integer {
                min: i64::from(min),
                max: i64::from(max),
            },
            rule::Kind::Real { min, max } => Kind::Real { min, max },
        };
        Self {
            name: param.name,
            kind,
            default: param.default,
            doc: param.doc,
        }
    }
}

/// A named set of defaults.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Profile {
    /// Its name in `hyper.profile`.
    pub name: &'static str,
    /// What it sets, beside the defaults.
    pub sets: &'static [(&'static str, &'static str)],
}

/// The resolved hyper-parameters of one algorithm: every declared one has a value that was checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Values(BTreeMap<&'static str, HyperValue>);

impl Row {
    /// Resolves hyper-parameters: what the spec gives, else the profile, else the default.
    ///
    /// # Errors
    /// Refuses unknown names, offering the nearest, and values out of range, naming the range.
    pub fn values(&self, given: &BTreeMap<String, HyperValue>) -> Result<Values, ConfigError> {
        let profile = self.profile(given)?;
        let mut values: BTreeMap<_, _> = self
            .hyper
            .iter()
            .map(|hyper| (hyper.name, parse(hyper.default)))
            .collect();
        values.extend(
            profile
                .map_or(&[][..], |profile| profile.sets)
                .iter()
                .map(|(name, text)| (*name, parse(text))),
        );
        let rule = given.get(AGGREGATION.name);
        let rule = rule.or(values.get(AGGREGATION.name)).map(text);
        let declared = self.declared(rule.as_deref().unwrap_or_default());
        for (name, value) in given.iter().filter(|(name, _)| *name != PROFILE) {
            let Some(hyper) = declared.iter().find(|hyper| hyper.name == name) else {
                return Err(self.unknown(name, &declared));
            };
            if !hyper.kind.admits(value) {
                let (range, got) = (hyper.kind.range(), text(value));
                return Err(ConfigError(format!(
                    "`hyper.{name}` is `{got}`, but must be {range}"
                )));
            }
            values.insert(hyper.name, value.clone());
        }
        Ok(Values(values))
    }

    /// Returns all names that table `hyper` may hold for this algorithm, whatever the aggregation rule.
    pub fn hyper_names(&self) -> Vec<&'static str> {
        let profile = (!self.profiles.is_empty()).then_some(PROFILE);
        let of_rules = self.rule_hyper().into_iter().map(|(_, hyper)| hyper.name);
        let own = self.hyper.iter().map(|hyper| hyper.name);
        own.chain(of_rules).chain(profile).collect()
    }

    /// Returns the parameters of all rules that this algorithm may be averaged with, each with the names of its rules.
    pub fn rule_hyper(&self) -> Vec<(Vec<&'static str>, Hyper)> {
        let mut all: Vec<(Vec<&'static str>, Hyper)> = Vec::new();
        for row in rule::choices().filter(|_| self.hyper.contains(&AGGREGATION)) {
            for hyper in row.params.iter().map(Hyper::from) {
                match all.iter_mut().find(|(_, known)| *known == hyper) {
                    Some((rules, _)) => rules.push(row.name),
                    None => all.push((vec![row.name], hyper)),
                }
            }
        }
        all
    }

    /// Returns what is declared under an aggregation rule.
    fn declared(&self, rule: &str) -> Vec<Hyper> {
        let of_rule = self.rule_hyper().into_iter();
        let of_rule = of_rule.filter(|(rules, _)| rules.contains(&rule));
        let own = self.hyper.iter().copied();
        own.chain(of_rule.map(|(_, hyper)| hyper)).collect()
    }

    fn profile(
        &self,
        given: &BTreeMap<String, HyperValue>,
    ) -> Result<Option<&Profile>, ConfigError> {
        let Some(value) = given.get(PROFILE) else {
            return Ok(self.profiles.first());
        };
        if self.profiles.is_empty() {
            return Err(self.unknown(PROFILE, self.hyper));
        }
        let name = text(value);
        let names: Vec<&str> = self.profiles.iter().map(|profile| profile.name).collect();
        let found = self.profiles.iter().find(|profile| profile.name == name);
        found
            .map(Some)
            .ok_or_else(|| ConfigError(unknown_name("profile", &name, &names)))
    }

    fn unknown(&self, name: &str, declared: &[Hyper]) -> ConfigError {
        let profile = (!self.profiles.is_empty()).then_some(PROFILE);
        let names: Vec<&str> = declared
            .iter()
            .map(|hyper| hyper.name)
            .chain(profile)
            .collect();
        ConfigError(unknown_name(
            &format!("hyper-parameter of `{}`", self.name),
            name,
            &names,
        ))
    }
}

fn parse(text: &str) -> HyperValue {
    match text.parse() {
        Ok(value) => value,
        Err(never) => match never {},
    }
}

fn text(value: &HyperValue) -> String {
    match value {
        HyperValue::Bool(value) => value.to_string(),
        HyperValue::Integer(value) => value.to_string(),
        HyperValue::Real(value) => value.to_string(),
        HyperValue::Text(value) => value.clone(),
    }
}

impl Values {
    /// Visits names and values in alphabetical order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &HyperValue)> {
        self.0.iter().map(|(name, value)| (*name, value))
    }

    /// Returns a number.
    ///
    /// # Panics
    /// As all getters: if the algorithm reads a hyper-parameter that it did not declare with this kind.
    pub fn real(&self, name: &str) -> f64 {
        match self.get(name) {
            HyperValue::Real(value) => *value,
            HyperValue::Integer(value) => *value as f64,
            _ => undeclared(name),
        }
    }

    /// Returns a whole number that is not negative.
    pub fn count(&self, name: &str) -> u32 {
        match self.get(name) {
            HyperValue::Integer(value) => u32::try_from(*value).unwrap_or(u32::MAX),
            _ => undeclared(name),
        }
    }

    /// Returns a word.
    pub fn text(&self, name: &str) -> &str {
        match self.get(name) {
            HyperValue::Text(value) => value,
            _ => undeclared(name),
        }
    }

    /// Returns a number of experts to mix with.
    pub fn peers(&self, name: &str) -> PeersPerExpert {
        match self.get(name) {
            HyperValue::Integer(value) => {
                PeersPerExpert::Count(u32::try_from(*value).unwrap_or(u32::MAX))
            }
            _ => PeersPerExpert::ALL,
        }
    }

    /// Returns how shared parts are combined, with the rule's parameters that are given.
    pub fn rule(&self) -> Rule {
        let name = self.text(AGGREGATION.name);
        let params = rule::find(name).map_or(&[][..], |row| row.params);
        params.iter().fold(Rule::named(name), |rule, param| {
            match self.0.get(param.name) {
                Some(value) => rule.with(param.name, value.clone()),
                None => rule,
            }
        })
    }

    /// Returns a rule that learns, so many times over as the named hyper-parameter says.
    pub fn learning(&self, rule: &str, iterations: &str) -> Rule {
        let whole = |name: &str| HyperValue::Integer(i64::from(self.count(name)));
        let learning_rate = HyperValue::Real(self.real("server_learning_rate"));
        Rule::named(rule)
            .with("learning_rate", learning_rate)
            .with("batch_size", whole("server_batch_size"))
            .with("iterations", whole(iterations))
    }

    fn get(&self, name: &str) -> &HyperValue {
        self.0.get(name).unwrap_or_else(|| undeclared(name))
    }
}

fn undeclared(name: &str) -> ! {
    panic!("hyper-parameter `{name}` is read but not declared with this kind")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::find;

    fn values(name: &str, given: &[(&str, &str)]) -> Result<Values, ConfigError> {
        let given = given
            .iter()
            .map(|(name, text)| ((*name).to_owned(), parse(text)))
            .collect();
        find(name)?.values(&given)
    }

    #[test]
    fn given_beats_profile_beats_default() {
        assert_eq!(values("fedmoe-da", &[]).unwrap().real("load_balance"), 0.0);
        let robust = values("fedmoe-da", &[("profile", "robust")]).unwrap();
        assert_eq!(
            (robust.real("load_balance"), robust.count("slots_per_node")),
            (0.01, 2)
        );
        let given = values(
            "fedmoe-da",
            &[
                ("profile", "robust"),
                ("load_balance", "1"),
                ("peers_per_expert", "all"),
            ],
        );
        let given = given.unwrap();
        assert_eq!(
            (given.real("load_balance"), given.peers("peers_per_expert")),
            (1.0, PeersPerExpert::ALL)
        );
    }

    #[test]
    fn the_chosen_rule_takes_its_own_parameters() {
        let krum = values("fedavg", &[("aggregation", "krum"), ("faulty", "2")]).unwrap();
        let expected = Rule::named("krum").with("faulty", HyperValue::Integer(2));
        assert_eq!(krum.rule(), expected);
        let plain = values("fedavg", &[("aggregation", "krum")]).unwrap();
        assert_eq!(plain.rule(), Rule::named("krum"), "defaults are left out");
        let refused = |given: &[(&str, &str)]| values("fedavg", given).unwrap_err().0;
        assert_eq!(
            refused(&[("faulty", "2")]),
            "unknown hyper-parameter of `fedavg` `faulty`: expected one of `aggregation`, `reach`"
        );
        assert_eq!(
            refused(&[("aggregation", "krum"), ("faulty", "-1")]),
            "`hyper.faulty` is `-1`, but must be 0 to 1000"
        );
        assert!(values("fedgh", &[("aggregation", "krum")]).is_err());
    }

    #[test]
    fn parts_are_clipped_unless_a_profile_of_a_paper_or_the_user_says_otherwise() {
        let rule = |name, given: &[(&str, &str)]| values(name, given).unwrap().rule();
        let reach = HyperValue::Integer(1);
        assert_eq!(rule("fedavg", &[]), Rule::named("clipped"));
        assert_eq!(
            rule("fedavg", &[("reach", "1")]),
            Rule::named("clipped").with("reach", reach)
        );
        let paper = ("profile", "paper");
        assert_eq!(rule("fedmoe-da", &[paper]), Rule::named("mean"));
        assert!(values("fedmoe-da", &[paper, ("reach", "1")]).is_err());
        assert_eq!(
            rule("fedmoe-da", &[paper, ("aggregation", "clipped")]),
            Rule::named("clipped")
        );
        assert_eq!(
            rule("fedmoe-da", &[("profile", "robust")]),
            Rule::named("clipped")
        );
    }

    #[test]
    fn no_rule_has_a_parameter_of_an_algorithm() {
        for row in crate::algorithm::TABLE {
            let own: Vec<&str> = row.hyper.iter().map(|hyper| hyper.name).collect();
            for (_, hyper) in row.rule_hyper() {
                assert!(!own.contains(&hyper.name), "{} of {}", hyper.name, row.name);
            }
        }
    }

    #[test]
    fn names_what_is_wrong() {
        let error = |name, given: &[(&str, &str)]| values(name, given).unwrap_err().0;
        assert_eq!(
            error("fedmoe-da", &[("temprature", "1")]),
            "unknown hyper-parameter of `fedmoe-da` `temprature`: did you mean `temperature`?"
        );
        assert_eq!(
            error("fedmoe-da", &[("refresh_every", "0")]),
            "`hyper.refresh_every` is `0`, but must be 1 to 100000"
        );
        assert_eq!(
            error("fedmoe-da", &[("profile", "papr")]),
            "unknown profile `papr`: did you mean `paper`?"
        );
        assert_eq!(
            error("local", &[("profile", "paper")]),
            "unknown hyper-parameter of `local` `profile`: none is allowed here"
        );
        assert_eq!(
            error("fedavg", &[("aggregation", "mode")]),
            "`hyper.aggregation` is `mode`, but must be mean | clipped | median | trimmed-mean | \
             geometric-median | krum | multi-krum"
        );
        assert!(values("fedmoe-da", &[("temperature", "NaN")]).is_err());
    }
}
