//! A federation that goes on: the rounds that its organiser adds after the last one, and the spec that follows from them.
//!
//! ```text
//! as agreed at first        first extension             second
//! rounds 1 … T ──► end ──► rounds T+1 … U ──► end ──► …
//! ```
//!
//! An extension only appends. What a round up to T is, it stays, and the end after T takes place: statistics are gathered in T,
//! and pools are made after it. A member takes an extension up when it is done with that end. So nobody needs to know of it
//! before, nobody disagrees on a round, and settings change in the same round for all. The federation keeps its id, which is the
//! hash of what was agreed at first.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{FederationSpec, Sums};
use crate::config::{self, ConfigError};
use crate::{FederationId, Round};

/// The keys that may have another value in the rounds that are added: they change no parameter's shape, and nothing by which
/// rounds that were closed before are judged.
pub const CHANGEABLE: [&str; 9] = [
    "round.audit",
    "round.deadline_seconds",
    "round.grace_seconds",
    "training.batch_size",
    "training.clip_norm",
    "training.learning_rate",
    "training.local_epochs",
    "training.schedule",
    "training.weight_decay",
];
/// Most settings that one extension changes: a statement of the organiser stays small.
pub const MOST_SETTINGS: usize = 4;
/// Most bytes of a setting's value.
const MOST_VALUE_BYTES: usize = 24;

/// Rounds that are added after the last one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Extension {
    /// Which federation goes on: its organiser may have several, one after the other.
    pub federation: FederationId,
    /// The last round so far. Where another one is the last, the extension counts nothing.
    pub after: Round,
    /// How many rounds follow it.
    pub rounds: u32,
    /// What is different in them: dotted keys of [`CHANGEABLE`] with their values, as `--set` takes them.
    pub settings: BTreeMap<String, String>,
}

/// A spec with rounds that were added, as far as they can be followed.
#[derive(Debug, Clone, PartialEq)]
pub struct Followed {
    /// The spec.
    pub spec: FederationSpec,
    /// Why the next extension cannot be followed, if one cannot.
    pub trouble: Option<ConfigError>,
}

/// What was agreed at first, and what has been added since.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Extended {
    original: FederationSpec,
    extensions: Vec<Extension>,
}

impl FederationSpec {
    /// Returns the spec with these rounds added. Its id, its file and its canonical form stay those of the spec that was agreed
    /// at first.
    ///
    /// # Errors
    /// Says why this federation cannot go on, or which setting cannot be changed.
    pub fn extended(&self, extension: &Extension) -> Result<Self, ConfigError> {
        if extension.after.0 != self.rounds {
            return Err(ConfigError(format!(
                "the extension follows round {}, and the last round is {}",
                extension.after, self.rounds
            )));
        }
        if extension.federation != self.id() {
            let text = "the extension is of another federation";
            return Err(ConfigError(text.to_owned()));
        }
        if extension.rounds == 0 {
            let text = "an extension adds one round at least";
            return Err(ConfigError(text.to_owned()));
        }
        self.check_end()?;
        let mut extensions = self.extensions().to_vec();
        extensions.push(extension.clone());
        let spec = Self {
            rounds: self.rounds.saturating_add(extension.rounds),
            scale: self.scale,
            extended: Some(Arc::new(Extended {
                original: self.original().clone(),
                extensions,
            })),
            ..self.with(&extension.settings)?
        };
        spec.validate()?;
        Ok(spec)
    }

    /// Returns the spec with other values of some keys.
    fn with(&self, settings: &BTreeMap<String, String>) -> Result<Self, ConfigError> {
        if settings.len() > MOST_SETTINGS {
            return Err(ConfigError(format!(
                "an extension changes {MOST_SETTINGS} settings at most"
            )));
        }
        let wrong = |error: serde_json::Error| ConfigError(config::explain(&error.to_string()));
        let mut json = serde_json::to_value(self).map_err(wrong)?;
        for (key, value) in settings {
            put(&mut json, key, value)?;
        }
        serde_json::from_value(json).map_err(wrong)
    }

    /// Returns the spec with the rounds that an organiser has added, in the order in which it said so, of all ends up to `done`.
    /// It stops before the first that cannot be followed.
    pub fn extended_by<'a>(
        &self,
        extensions: impl IntoIterator<Item = &'a Extension>,
        done: Round,
    ) -> Followed {
        let (mut spec, id) = (self.clone(), self.id());
        for extension in extensions {
            let is_next = extension.after.0 == spec.rounds && extension.after <= done;
            if !is_next || extension.federation != id {
                continue;
            }
            match spec.extended(extension) {
                Ok(extended) => spec = extended,
                Err(error) => {
                    let trouble = Some(error);
                    return Followed { spec, trouble };
                }
            }
        }
        let trouble = None;
        Followed { spec, trouble }
    }

    /// Returns what was agreed at first.
    pub fn original(&self) -> &Self {
        self.extended
            .as_ref()
            .map_or(self, |extended| &extended.original)
    }

    /// Returns what was added since.
    pub fn extensions(&self) -> &[Extension] {
        self.extended
            .as_ref()
            .map_or(&[], |extended| &extended.extensions)
    }

    /// Refuses what more rounds would break.
    fn check_end(&self) -> Result<(), ConfigError> {
        if self.privacy.epsilon.is_some() {
            return Err(ConfigError(
                "with `privacy.epsilon` a federation cannot be extended: the promise is for the rounds that were agreed on"
                    .to_owned(),
            ));
        }
        if self.privacy.sums == Sums::Masked {
            return Err(ConfigError(
                "a federation with masked sums cannot be extended: the difference of two sums could tell what one node has \
                 changed in between"
                    .to_owned(),
            ));
        }
        Ok(())
    }
}

/// Gives a key another value, of the kind that it has.
fn put(json: &mut Value, key: &str, value: &str) -> Result<(), ConfigError> {
    if !CHANGEABLE.contains(&key) {
        let all = CHANGEABLE.join(", ");
        return Err(ConfigError(format!(
            "`{key}` cannot change in a federation that goes on; what can: {all}"
        )));
    }
    if value.len() > MOST_VALUE_BYTES {
        return Err(ConfigError(format!(
            "the value of `{key}` is longer than {MOST_VALUE_BYTES} bytes"
        )));
    }
    let pointer = format!("/{}", key.replace('.', "/"));
    let place = json.pointer_mut(&pointer);
    let place = place.ok_or_else(|| ConfigError(format!("`{key}` has no value")))?;
    *place = if place.is_string() {
        Value::String(value.to_owned())
    } else {
        serde_json::from_str(value)
            .map_err(|_| ConfigError(format!("`{key}={value}`: this is no number")))?
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Schedule, Stage};

    fn more(after: u32, rounds: u32, settings: &[(&str, &str)]) -> Extension {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        Extension {
            federation: agreed().id(),
            after: Round(after),
            rounds,
            settings: settings.iter().map(owned).collect(),
        }
    }

    fn agreed() -> FederationSpec {
        let mut spec = FederationSpec {
            rounds: 3,
            ..FederationSpec::default()
        };
        spec.statistics.enabled = true;
        spec
    }

    #[test]
    fn rounds_are_added_and_the_federation_stays_the_same() {
        let agreed = agreed();
        let settings = [
            ("training.learning_rate", "0.005"),
            ("training.schedule", "cosine"),
        ];
        let once = agreed.extended(&more(3, 2, &settings)).unwrap();
        let twice = once.extended(&more(5, 1, &[("round.audit", "1")])).unwrap();
        assert_eq!((once.rounds, twice.rounds), (5, 6));
        assert_eq!(twice.training.learning_rate, 0.005);
        assert_eq!(twice.training.schedule, super::super::Schedule::Cosine);
        assert_eq!((twice.round.audit, once.round.audit), (1.0, 0.05));
        assert_eq!(
            (twice.id(), twice.to_toml()),
            (agreed.id(), agreed.to_toml())
        );
        assert_eq!((twice.original(), twice.extensions().len()), (&agreed, 2));
    }

    #[test]
    fn what_a_round_was_before_an_extension_it_stays() {
        let agreed = agreed();
        let extended = agreed.extended(&more(3, 2, &[])).unwrap();
        let (before, after) = (Schedule::of(&agreed), Schedule::of(&extended));
        for round in 1..=3 {
            assert_eq!(before.round(Round(round)), after.round(Round(round)));
        }
        assert_eq!(after.round(Round(3)), Some(Stage::GatherStatistics));
        assert!(matches!(after.round(Round(4)), Some(Stage::Train(_))));
        assert_eq!(after.round(Round(5)), Some(Stage::GatherStatistics));
        assert_eq!(after.statistics_round(), Some(Round(5)), "the last of them");
        assert_eq!(
            (before.after(Round(3)), after.after(Round(5))),
            (None, None)
        );
    }

    #[test]
    fn extensions_apply_one_after_the_other_and_those_of_another_end_count_nothing() {
        let agreed = agreed();
        let said = [more(3, 2, &[]), more(3, 9, &[]), more(5, 4, &[])];
        let after = |done| agreed.extended_by(&said, Round(done)).spec;
        let rounds: Vec<u32> = [2, 3, 4, 5]
            .map(after)
            .iter()
            .map(|spec| spec.rounds)
            .collect();
        assert_eq!(rounds, [3, 5, 5, 9], "one end after the other");
        let again = after(5).extended_by(&said, Round(9));
        assert_eq!(again.spec, after(5), "once is enough");
        let other = Extension {
            federation: FederationId::from_bytes([9; 32]),
            ..more(3, 2, &[])
        };
        assert_eq!(agreed.extended_by([&other], Round(3)).spec, agreed);
    }

    #[test]
    fn what_was_added_before_is_followed_where_the_next_cannot_be() {
        let said = [
            more(3, 2, &[]),
            more(5, 2, &[("some.new.key", "1")]),
            more(7, 2, &[]),
        ];
        let followed = agreed().extended_by(&said, Round(9));
        assert_eq!(followed.spec.rounds, 5);
        assert!(
            followed
                .trouble
                .unwrap()
                .to_string()
                .contains("some.new.key")
        );
    }

    #[test]
    fn what_cannot_be_extended_says_why() {
        let refusal = |spec: &FederationSpec, extension: &Extension| {
            spec.extended(extension).unwrap_err().to_string()
        };
        let spec = agreed();
        let after = refusal(&spec, &more(4, 1, &[]));
        assert!(after.contains("the last round is 3"), "{after}");
        assert!(refusal(&spec, &more(3, 0, &[])).contains("one round at least"));
        assert!(refusal(&spec, &more(3, 100_000, &[])).contains("`rounds` is out of range"));
        let kept = refusal(&spec, &more(3, 1, &[("model.name", "cnn")]));
        assert!(kept.contains("`model.name` cannot change") && kept.contains("round.audit"));
        let text = refusal(&spec, &more(3, 1, &[("training.batch_size", "many")]));
        assert!(text.contains("`training.batch_size=many`"), "{text}");
        let range = refusal(&spec, &more(3, 1, &[("training.batch_size", "0")]));
        assert!(
            range.contains("`training.batch_size` is out of range"),
            "{range}"
        );
        let word = refusal(&spec, &more(3, 1, &[("training.schedule", "cosy")]));
        assert!(word.contains("unknown schedule `cosy`"), "{word}");
        let mut promised = spec;
        promised.privacy.epsilon = Some(4.0);
        let own = Extension {
            federation: promised.id(),
            ..more(3, 1, &[])
        };
        assert!(refusal(&promised, &own).contains("the promise"));
        assert!(refusal(&promised, &more(3, 1, &[])).contains("another federation"));
    }
}
