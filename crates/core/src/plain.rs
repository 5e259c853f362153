//! Text of others, made safe to show: names in files and reasons of peers must not steer a terminal.
//!
//! A tensor, a class or a node may be called anything. Printed as it is, such a name could clear the screen, colour a
//! lie or change the clipboard. So whatever is shown to people goes through here: status, log, peers, errors.

use std::borrow::Cow;

/// Writes control characters as `\u{1b}`, and likewise those that reverse the direction of writing. Lines and tabs stay.
///
/// ```
/// assert_eq!(fednode_core::plain("fine\n"), "fine\n");
/// assert_eq!(fednode_core::plain("\u{1b}[31mred"), "\\u{1b}[31mred");
/// ```
pub fn plain(text: &str) -> Cow<'_, str> {
    escaped(text, |letter| {
        steers(letter) && !matches!(letter, '\n' | '\t')
    })
}

/// As [`plain()`], for what must stay one line: ends of lines and tabs are written out, too.
pub fn plain_line(text: &str) -> Cow<'_, str> {
    escaped(text, steers)
}

fn escaped(text: &str, steers: impl Fn(char) -> bool) -> Cow<'_, str> {
    // Nearly every text is plain already.
    if !text.contains(&steers) {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len());
    for letter in text.chars() {
        if steers(letter) {
            plain.extend(letter.escape_unicode());
        } else {
            plain.push(letter);
        }
    }
    Cow::Owned(plain)
}

/// Tells whether a terminal does something else with a character than to show it.
fn steers(letter: char) -> bool {
    let reverses = matches!(letter, '\u{200e}' | '\u{200f}' | '\u{061c}')
        || ('\u{202a}'..='\u{202e}').contains(&letter)
        || ('\u{2066}'..='\u{2069}').contains(&letter);
    letter.is_control() || reverses || matches!(letter, '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_a_terminal_is_written_out() {
        let hostile = "a\u{1b}]0;title\u{7}b\u{9b}2Jc\rd\u{202e}e";
        let shown = plain_line(hostile);
        assert!(!shown.chars().any(steers), "{shown}");
        assert!(shown.starts_with("a\\u{1b}]0;title\\u{7}b"), "{shown}");
        assert_eq!(plain_line("one\ntwo"), "one\\u{a}two");
        assert_eq!(plain("one\n\ttwo"), "one\n\ttwo");
    }

    #[test]
    fn letters_of_all_languages_stay() {
        let text = "Größe 数字 عدد é";
        assert!(matches!(plain_line(text), Cow::Borrowed(same) if same == text));
    }
}
