//! Numbers and text of a report. A number that is absent or not finite is "–". Text from outside is escaped.

use fednode_cli::table;

/// Stands for a number that is not there.
pub(crate) const ABSENT: &str = "–";

/// Returns a number that can be shown. `f64::MAX` stands for one that JSON could not hold (see [`super::load`]).
pub(crate) fn known(value: impl Into<Option<f64>>) -> Option<f64> {
    value
        .into()
        .filter(|value: &f64| value.is_finite() && value.abs() < f64::MAX)
}

/// Writes a share of 1 as per cent.
pub(crate) fn percent(share: impl Into<Option<f64>>) -> String {
    known(share).map_or(ABSENT.into(), |share| format!("{:.1} %", 100.0 * share))
}

/// Writes a difference of two shares in percentage points, with its sign.
pub(crate) fn points(share: impl Into<Option<f64>>) -> String {
    known(share).map_or(ABSENT.into(), |share| {
        signed(&format!("{:+.2}", 100.0 * share))
    })
}

/// Writes a number with this many decimals.
pub(crate) fn decimal(value: impl Into<Option<f64>>, decimals: usize) -> String {
    known(value).map_or(ABSENT.into(), |value| {
        signed(&format!("{value:.decimals$}"))
    })
}

/// Writes a negative sign as a minus, and none before a number that rounds to 0.
fn signed(number: &str) -> String {
    let is_zero = number.chars().all(|c| "+-0.".contains(c));
    if is_zero {
        number.trim_start_matches(['+', '-']).into()
    } else {
        number.replace('-', "−")
    }
}

/// Writes a probability. A small one is written as such, not as 0.
pub(crate) fn probability(p: impl Into<Option<f64>>) -> String {
    match known(p) {
        None => ABSENT.into(),
        Some(p) if p < 0.0001 => "&lt; 0.0001".into(),
        Some(p) => format!("{p:.4}"),
    }
}

/// Writes bytes with a unit that keeps them short.
pub(crate) fn bytes(count: impl Into<Option<f64>>) -> String {
    known(count).map_or(ABSENT.into(), |count| {
        table::bytes(count.max(0.0).round() as u64)
    })
}

/// Writes a large number with a prefix that keeps it short.
pub(crate) fn large(count: impl Into<Option<f64>>) -> String {
    known(count).map_or(ABSENT.into(), |count| {
        table::large(count.max(0.0).round() as u64)
    })
}

/// Writes seconds in a form for people.
pub(crate) fn duration(seconds: impl Into<Option<f64>>) -> String {
    known(seconds).map_or(ABSENT.into(), table::duration)
}

/// Escapes text for HTML and SVG, between tags and within quotes.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // XML 1.0 forbids the other control characters even when they are written as references.
            '\t' | '\n' => out.push(character),
            character if character.is_control() => out.push('\u{fffd}'),
            character => out.push(character),
        }
    }
    out
}

/// Writes a word as a POSIX shell reads it back.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-=+:,@".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.into()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_number_is_a_dash() {
        for absent in [None, Some(f64::NAN), Some(f64::INFINITY), Some(f64::MAX)] {
            assert_eq!(
                [
                    percent(absent),
                    points(absent),
                    decimal(absent, 2),
                    bytes(absent)
                ],
                [ABSENT; 4]
            );
            assert_eq!(
                [probability(absent), duration(absent), large(absent)],
                [ABSENT; 3]
            );
        }
        assert_eq!(
            [percent(0.0), decimal(0.0, 2), bytes(0.0)],
            ["0.0 %", "0.00", "0 B"]
        );
        assert_eq!(
            [large(0.0), large(999.0), large(2.66e10)],
            ["0", "999", "26.6 G"]
        );
    }

    #[test]
    fn signs_and_small_numbers() {
        assert_eq!(
            [points(0.0125), points(-0.0125), points(-0.000_01)],
            ["+1.25", "−1.25", "0.00"]
        );
        assert_eq!([decimal(-0.001, 2), decimal(-1.5, 1)], ["0.00", "−1.5"]);
        assert_eq!(
            [probability(0.05), probability(1e-9)],
            ["0.0500", "&lt; 0.0001"]
        );
    }

    #[test]
    fn names_cannot_be_markup() {
        let name = "<script a=\"1\">&'\u{7}";
        assert_eq!(
            escape(name),
            "&lt;script a=&quot;1&quot;&gt;&amp;&#39;\u{fffd}"
        );
        assert_eq!(
            [quoted("runs/a-1"), quoted("my run's"), quoted("")],
            ["runs/a-1", r"'my run'\''s'", "''"]
        );
    }
}
