//! What the kinds of simulations have in common, for the command that plays many of them: with learners
//! ([`super::run`]) or the protocol alone ([`super::protocol`]).

use std::fs;
use std::path::Path;

use fednode_core::FederationSpec;
use fednode_runtime::exit::ExitCode;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::run::Means;
use super::table::Row;
use crate::swarm::folder::SUMMARY;
use fednode_cli::failure::fail;
use fednode_cli::output::Report;

/// A run that is ready to be played.
pub(crate) trait Play {
    /// What comes of it; `summary.json`.
    type Summary: Report + DeserializeOwned;
    /// A line of an experiment's table.
    type Row: Row<Of = Self::Summary>;

    /// Returns the federation's spec.
    fn spec(&self) -> &FederationSpec;

    /// Returns what is played, in words.
    fn describe(&self) -> String;

    /// Returns every setting that shapes the result.
    fn effective(&self) -> Value;

    /// Plays it, and writes everything into a folder.
    ///
    /// # Errors
    /// Says what is missing, what failed, or that it was interrupted.
    fn play(&self, folder: &Path, means: &Means<'_>) -> anyhow::Result<Self::Summary>;

    /// Says that no node has a model of any use, if so.
    fn why_useless(_summary: &Self::Summary) -> Option<String> {
        None
    }
}

/// Plays what was not played before.
///
/// # Errors
/// As [`Play::play`]; names the first setting in which an earlier run in the folder differs.
pub(crate) fn play<P: Play>(
    prepared: &P,
    folder: &Path,
    means: &Means<'_>,
) -> anyhow::Result<P::Summary> {
    match finished(prepared, folder)? {
        Some(summary) => Ok(summary),
        None => prepared.play(folder, means),
    }
}

/// Returns the result of an earlier run with the same settings.
pub(crate) fn finished<P: Play>(prepared: &P, folder: &Path) -> anyhow::Result<Option<P::Summary>> {
    let path = folder.join(SUMMARY);
    let Ok(text) = fs::read_to_string(&path) else {
        return Ok(None);
    };
    let shown = path.display();
    let damaged = |error: serde_json::Error| {
        fail(
            ExitCode::State,
            format!(
                "`{shown}` cannot be read ({error}): remove it to play this run again, or name another --out"
            ),
        )
    };
    let summary: Value = serde_json::from_str(&text).map_err(damaged)?;
    let then = summary.get("effective_config").unwrap_or(&Value::Null);
    match difference(then, &prepared.effective()) {
        None => serde_json::from_value(summary).map(Some).map_err(damaged),
        Some(difference) => Err(fail(
            ExitCode::State,
            format!(
                "`{}` holds a run with {difference}: name another --out",
                folder.display()
            ),
        )),
    }
}

/// Returns the first key in which settings differ from those in a file, with both values, in words.
pub(crate) fn difference(then: &Value, now: &Value) -> Option<String> {
    // Reading a number from text can miss its last digit. So numbers that went through text are compared with such numbers.
    let now = &serde_json::from_str(&now.to_string()).unwrap_or_else(|_| now.clone());
    difference_at("", then, now)
}

fn difference_at(path: &str, then: &Value, now: &Value) -> Option<String> {
    if let (Value::Object(before), Value::Object(after)) = (then, now) {
        let keys = before
            .keys()
            .chain(after.keys().filter(|key| !before.contains_key(*key)));
        return keys.into_iter().find_map(|key| {
            let path = if path.is_empty() {
                key.clone()
            } else {
                format!("{path}.{key}")
            };
            let value = |table: &serde_json::Map<String, Value>| {
                table.get(key).cloned().unwrap_or(Value::Null)
            };
            difference_at(&path, &value(before), &value(after))
        });
    }
    (then != now).then(|| format!("`{path}` = {then}, not {now}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_of_two_settings_is_named() {
        let (a, b) = (
            serde_json::json!({"x": {"y": 1, "z": 2}}),
            serde_json::json!({"x": {"y": 1, "z": 3}}),
        );
        assert_eq!(difference(&a, &a), None);
        assert_eq!(difference(&a, &b).as_deref(), Some("`x.z` = 2, not 3"));
        let c = serde_json::json!({"x": {"y": 1, "z": 2}, "w": 0});
        assert_eq!(difference(&a, &c).as_deref(), Some("`w` = null, not 0"));
    }

    /// The noise of `masked+dp:2` among eight nodes, which was read as 1.174865939906372.
    #[test]
    fn a_number_that_went_through_text_is_the_same() {
        let now = serde_json::json!({"noise": 1.174_865_939_906_372_1});
        let then = serde_json::from_str(&now.to_string()).unwrap();
        assert_eq!(difference(&then, &now), None);
    }
}
