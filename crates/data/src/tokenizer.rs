//! Texts cut into tokens as torchtext's tokenizer `basic_english` does, which PFLlib and PM-MoE use.
//!
//! | in the text | becomes |
//! |---|---|
//! | capital letters | small ones, by Unicode's rules |
//! | `"` | nothing: what it parted grows together |
//! | `'` `.` `,` `(` `)` `!` `?` | a token of its own |
//! | `;` `:` `<br />` | a space |
//! | white space, of any kind and length | the border of two tokens |
//!
//! Everything else stays as it is: hyphens, digits, `&`, `$` and backslashes are parts of their tokens, so that
//! `Wall St. (Reuters) - Short-sellers' #39;s` is `wall st . ( reuters ) - short-sellers ' #39 s`.

/// Returns the text in the form whose words are its tokens: `normalize(text).split_whitespace()`.
pub fn normalize(text: &str) -> String {
    let plain = text.to_lowercase().replace('"', "").replace("<br />", " ");
    let mut normal = String::with_capacity(plain.len() + plain.len() / 8);
    for letter in plain.chars() {
        match letter {
            '\'' | '.' | ',' | '(' | ')' | '!' | '?' => normal.extend([' ', letter, ' ']),
            // Python counts the four separators of ASCII as white space, Unicode does not.
            ';' | ':' | '\u{1c}'..='\u{1f}' => normal.push(' '),
            _ => normal.push(letter),
        }
    }
    normal
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(text: &str) -> Vec<String> {
        normalize(text)
            .split_whitespace()
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn agrees_with_the_documentation_of_torchtext() {
        let expected = [
            "you",
            "can",
            "now",
            "install",
            "torchtext",
            "using",
            "pip",
            "!",
        ];
        assert_eq!(tokens("You can now install TorchText using pip!"), expected);
        // Its own test of `basic_english`.
        let text = "'\".<br />,()!?;:   Basic English Normalization for a Line of Text   '\".<br />,()!?;:";
        let marks = ["'", ".", ",", "(", ")", "!", "?"];
        let words = [
            "basic",
            "english",
            "normalization",
            "for",
            "a",
            "line",
            "of",
            "text",
        ];
        assert_eq!(tokens(text), [marks.as_slice(), &words, &marks].concat());
    }

    #[test]
    fn cuts_news_as_the_table_says() {
        let got = tokens(
            "Wall St. (Reuters) - Short-sellers' #39;s \\$5.4 \"ultra\"cynics\tSay\u{1f}it\u{a0}ÄÖ",
        );
        let expected =
            "wall st . ( reuters ) - short-sellers ' #39 s \\$5 . 4 ultracynics say it äö";
        assert_eq!(got.join(" "), expected);
        assert_eq!(tokens("don't;stop"), ["don", "'", "t", "stop"]);
        assert!(tokens(" \" ;: <BR /> ").is_empty());
    }
}
