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
//!
//! An endless federation (`endless`) goes on by itself after each end, with as many rounds as before, and nobody has to say so:
//!
//! ```text
//! rounds 1 … T ──► end ──► rounds T+1 … 2T ──► end ──► …   until its members are stopped
//! ```
//!
//! Its organiser can only change settings, from a later end on. Who has not heard of that in time goes on with those of before, and
//! takes them up at the next end. Nobody's word depends on them: see [`CHANGEABLE`].

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{FederationSpec, Sums};
use crate::config::{self, ConfigError};
use crate::limits::{MOST_ENDLESS_ROUNDS, MOST_ROUNDS};
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
        let term = self.term();
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
        if extension.rounds < self.fewest_rounds() {
            let text = "an extension under masks adds two rounds at least: in the first one nodes make new masks";
            return Err(ConfigError(text.to_owned()));
        }
        if self.endless && extension.rounds != term {
            return Err(ConfigError(format!(
                "this federation is endless, and goes on by {term} rounds each time"
            )));
        }
        if self.endless && extension.settings.is_empty() {
            let text =
                "this federation is endless and goes on by itself: name a setting that changes";
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

    /// Returns how few rounds are worth adding: one more where the first of them has no mean.
    fn fewest_rounds(&self) -> u32 {
        let makes_masks = self.privacy.sums == Sums::Masked && self.exchange.total.is_none();
        if makes_masks { 2 } else { 1 }
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
    ///
    /// An endless federation has begun with the rounds after `done` in any case. What it cannot follow it leaves out.
    pub fn extended_by<'a>(
        &self,
        extensions: impl IntoIterator<Item = &'a Extension>,
        done: Round,
    ) -> Followed {
        if self.endless {
            return self.continued(extensions, done);
        }
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

    /// As [`Self::extended_by`], of an endless federation.
    fn continued<'a>(
        &self,
        extensions: impl IntoIterator<Item = &'a Extension>,
        done: Round,
    ) -> Followed {
        let (term, id) = (self.term(), self.id());
        let (mut spec, mut trouble) = (self.clone(), None);
        for extension in extensions {
            let after = extension.after;
            let is_end = after.0.is_multiple_of(term) && after.0 >= spec.rounds && after <= done;
            if !is_end || extension.federation != id {
                continue;
            }
            spec.go_on_to(after);
            match spec.extended(extension) {
                Ok(extended) => spec = extended,
                Err(error) => trouble = Some(error),
            }
        }
        let terms = (done.0 / term).saturating_add(1);
        spec.go_on_to(Round(terms.saturating_mul(term)));
        Followed { spec, trouble }
    }

    /// Makes this round the last one that is known.
    fn go_on_to(&mut self, last: Round) {
        if last.0 <= self.rounds {
            return;
        }
        if self.extended.is_none() {
            self.extended = Some(Arc::new(Extended {
                original: self.clone(),
                extensions: Vec::new(),
            }));
        }
        self.rounds = last.0;
    }

    /// Returns how many rounds lie between two ends of an endless federation.
    pub fn term(&self) -> u32 {
        self.original().rounds.max(1)
    }

    /// Returns the first end after a round, from which on an endless federation can have other settings; nothing if it has an end.
    pub fn end_after(&self, round: Round) -> Option<Round> {
        let term = self.term();
        let terms = (round.0 / term).saturating_add(1);
        self.endless.then(|| Round(terms.saturating_mul(term)))
    }

    /// Returns the end before the rounds that were added last; 0 if none were.
    pub fn since(&self) -> Round {
        match self.extensions().last() {
            _ if self.endless => Round(self.rounds.saturating_sub(self.term())),
            None => Round::ZERO,
            Some(extension) => extension.after,
        }
    }

    /// Returns how many rounds a schedule of learning rates takes: all that are known. In an endless federation it takes those up to
    /// the first end, and begins anew after each (SGDR: Loshchilov and Hutter, ICLR 2017).
    pub fn scheduled_rounds(&self) -> u32 {
        match self.endless {
            true => self.term(),
            false => self.rounds,
        }
    }

    /// Returns the furthest round that a member can be in while this one knows of fewer; nothing if there are no others.
    pub fn furthest_round(&self) -> Option<Round> {
        match (self.endless, self.organiser) {
            (true, _) => Some(Round(MOST_ENDLESS_ROUNDS)),
            (false, Some(_)) => Some(Round(MOST_ROUNDS)),
            (false, None) => None,
        }
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

    /// Refuses what more rounds would break: noise that was planned for so many rounds of training. What is released once is not
    /// released again.
    pub(super) fn check_end(&self) -> Result<(), ConfigError> {
        let experts = self.exchange.experts.as_ref();
        let is_released_once = experts.is_some_and(|experts| experts.noise.is_some());
        if self.privacy.epsilon.is_none() || self.exchange.total.is_some() || is_released_once {
            return Ok(());
        }
        let on = if self.endless {
            "be `endless`"
        } else {
            "be extended"
        };
        Err(ConfigError(format!(
            "a federation that trains with noise (`privacy.epsilon`) cannot {on}: its noise is for the rounds that were agreed on"
        )))
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

    fn endless() -> FederationSpec {
        FederationSpec {
            endless: true,
            ..agreed()
        }
    }

    #[test]
    fn an_endless_federation_goes_on_by_as_many_rounds_after_each_end() {
        let endless = endless();
        let known = |done| {
            let followed = endless.extended_by([], Round(done));
            assert_eq!(followed.trouble, None);
            (followed.spec.rounds, followed.spec.since().0)
        };
        let all = [0, 2, 3, 5, 6, 3_000_000].map(known);
        let expected = [
            (3, 0),
            (3, 0),
            (6, 3),
            (6, 3),
            (9, 6),
            (3_000_003, 3_000_000),
        ];
        assert_eq!(all, expected);
        let later = endless.extended_by([], Round(7)).spec;
        assert_eq!((later.id(), later.original()), (endless.id(), &endless));
        assert_eq!((later.validate(), later.scheduled_rounds()), (Ok(()), 3));
        let schedule = Schedule::of(&later);
        let gathers = |round: &u32| schedule.gathers_statistics_in(Round(*round));
        let ends: Vec<u32> = (0..=12).filter(gathers).collect();
        assert_eq!(ends, [3, 6, 9], "what is not known yet is no round");
        assert_eq!(schedule.since(), Round(6));
    }

    #[test]
    fn settings_of_an_endless_federation_change_from_an_end_on() {
        let endless = endless();
        let change = |after, epochs| Extension {
            federation: endless.id(),
            ..more(after, 3, &[("training.local_epochs", epochs)])
        };
        let said = [
            change(6, "7"),
            change(6, "8"),
            change(12, "0"),
            change(15, "9"),
        ];
        let epochs = |done| {
            let followed = endless.extended_by(&said, Round(done));
            (followed.spec.training.local_epochs, followed.spec.rounds)
        };
        let before = endless.training.local_epochs;
        assert_eq!(
            [3, 5, 6, 14].map(epochs),
            [(before, 6), (before, 6), (7, 9), (7, 15)]
        );
        assert_eq!(epochs(15), (9, 18), "what cannot be followed is left out");
        let trouble = endless.extended_by(&said, Round(12)).trouble.unwrap();
        assert!(
            trouble
                .to_string()
                .contains("`training.local_epochs` is out of range")
        );
        // Who hears of it late takes it up at its next end, since it begins with what was agreed on then.
        let late = endless.extended_by([], Round(6)).spec;
        let epochs_after = |spec: &FederationSpec| {
            let followed = spec.extended_by(&said[..1], Round(9));
            followed.spec.training.local_epochs
        };
        assert_eq!([late, endless].each_ref().map(epochs_after), [before, 7]);
    }

    #[test]
    fn what_an_endless_federation_cannot_be_says_why() {
        let refusal = |spec: &FederationSpec, more: Extension| {
            let own = Extension {
                federation: spec.id(),
                ..more
            };
            spec.extended(&own).unwrap_err().to_string()
        };
        let spec = endless();
        let settings = [("round.audit", "1")];
        assert!(refusal(&spec, more(3, 2, &settings)).contains("by 3 rounds each time"));
        assert!(refusal(&spec, more(3, 3, &[])).contains("goes on by itself"));
        let mut promised = endless();
        promised.privacy.epsilon = Some(4.0);
        let text = promised.validate().unwrap_err().to_string();
        assert!(text.contains("trains with noise"), "{text}");
        promised.exchange.total = Some(crate::Total::of(5));
        promised.privacy.sums = Sums::Masked;
        promised.statistics.enabled = false;
        assert_eq!(promised.validate(), Ok(()), "a sum is there once");
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
        let mut masked = spec.clone();
        (masked.privacy.sums, masked.statistics.enabled) = (Sums::Masked, false);
        let own = |rounds| Extension {
            federation: masked.id(),
            ..more(3, rounds, &[])
        };
        assert!(refusal(&masked, &own(1)).contains("two rounds at least"));
        assert!(masked.extended(&own(2)).is_ok());
        let mut promised = spec;
        promised.privacy.epsilon = Some(4.0);
        let own = Extension {
            federation: promised.id(),
            ..more(3, 1, &[])
        };
        assert!(refusal(&promised, &own).contains("trains with noise"));
        assert!(refusal(&promised, &more(3, 1, &[])).contains("another federation"));
    }
}
