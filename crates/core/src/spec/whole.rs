//! Whether the text of a spec is whole.
//!
//! Every key has a default, so the beginning of a file is a spec, too: that of another federation. A copy that was cut
//! off and a disk that was full leave such files. Whatever else is said of them leads astray.

use super::FederationSpec;
use crate::config::{self, ConfigError};

/// What to do with a file that is not whole.
const ADVICE: &str = "copy federation.toml from the organiser or any other member again, or move it away and fetch it by your \
                      ticket (`fednode join TICKET`, of an aggregator `fedboot join TICKET`)";
/// The table that `fednode init` writes last.
const LAST: &str = "exchange";

/// Refuses a text without any key, and one that was cut off.
///
/// # Errors
/// Says so, and where to get the file.
pub(super) fn check(text: &str) -> Result<(), ConfigError> {
    match fault(text) {
        Some(fault) => Err(ConfigError(format!("{fault}; {ADVICE}"))),
        None => Ok(()),
    }
}

fn fault(text: &str) -> Option<String> {
    if text.trim().is_empty() {
        return Some("the file is empty".into());
    }
    if !text.lines().any(has_key) {
        return Some("the file ends early, before its first key".into());
    }
    if is_written_by_init(text) && !text.lines().any(is_of_last_table) {
        return Some(format!(
            "the file ends early, before its table [{LAST}] (where tables were taken out by hand, take out its first line, too)"
        ));
    }
    let error = text.parse::<toml::Table>().err()?;
    let is_cut = is_at_the_end(text, error.span()?.start);
    is_cut.then(|| {
        let line = text.trim_end().lines().count();
        let why = config::explain(error.message());
        format!("the file ends early, in line {line} ({why})")
    })
}

fn has_key(line: &str) -> bool {
    let line = line.trim();
    !line.is_empty() && !line.starts_with('#')
}

/// Tells whether a text has the comment with which `fednode init` begins. Such a file has all tables, whatever is in
/// them.
fn is_written_by_init(text: &str) -> bool {
    let doc = FederationSpec::doc();
    let comment = text.lines().next().and_then(|line| line.strip_prefix('#'));
    comment.is_some() && comment == doc.lines.first().map(String::as_str)
}

/// Tells whether a line opens or sets the last table, or is the comment that stands in its place.
fn is_of_last_table(line: &str) -> bool {
    let line = line.trim_start_matches("# ");
    let name = line.strip_prefix('[').unwrap_or(line);
    let rest = name.strip_prefix(LAST).map(str::trim_start);
    rest.is_some_and(|rest| rest.starts_with([']', '.', '=']))
}

/// Tells whether an error is where a text ends: behind all of it, or in a last line that has no end.
fn is_at_the_end(text: &str, error: usize) -> bool {
    let content = text.trim_end();
    let last_line = content.rfind('\n').map_or(0, |end| end + 1);
    error >= content.len() || (error >= last_line && !text.ends_with('\n'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Averaging, Rule, Weighting};

    fn text() -> String {
        let mut spec = FederationSpec::default();
        spec.exchange.averaging = Some(Averaging {
            weighting: Weighting::Samples,
            rule: Rule::default(),
        });
        spec.to_toml()
    }

    fn refusal(text: &str) -> String {
        FederationSpec::from_toml(text).unwrap_err().0
    }

    #[test]
    fn a_file_that_was_cut_off_is_no_other_federation() {
        let text = text();
        let end = text.rfind("[exchange]").unwrap();
        let places = (1..end).step_by(7).filter(|at| text.is_char_boundary(*at));
        for at in places.chain([end, end + 9]) {
            let error = refusal(&text[..at]);
            assert!(error.starts_with("the file ends early, before"), "{error}");
        }
        assert_eq!(check(&text), Ok(()));
        assert_eq!(check(&text.replace('\n', "\r\n")), Ok(()));
        let error = refusal(&text[..text.trim_end().len() - 3]);
        assert!(error.starts_with("the file ends early, in line"), "{error}");
        assert!(error.ends_with(ADVICE), "{error}");
    }

    #[test]
    fn an_empty_file_is_said_to_be_empty() {
        for empty in ["", "\n", " \r\n\n"] {
            let error = refusal(empty);
            assert!(error.starts_with("the file is empty; "), "{error}");
        }
        let error = refusal("# The spec of a federa");
        assert!(error.contains("before its first key"), "{error}");
    }

    #[test]
    fn a_mistake_within_a_file_is_none_of_this() {
        for text in [
            "rounds = \nnodes = 3\n",
            "rounds = 3\nnods = 3\n",
            "rounds = 3\nnods = 3",
            "rounds = 0",
        ] {
            let error = refusal(text);
            assert!(!error.contains("the file ends early"), "{error}");
        }
        let error = refusal("rounds = 3\nname = \"war");
        assert!(
            error.starts_with("the file ends early, in line 2 ("),
            "{error}"
        );
    }
}
