//! Counts the words of sentences in Markdown and in Rust doc comments.
//!
//! ```text
//! file ─► lines ─► blocks (a paragraph, one item of a list) ─► sentences ─► words
//! ```
//!
//! Headings, tables, code blocks and pictures hold no sentences. Inline code counts as one word, a link as its text. A
//! sentence ends at `.`, `!` or `?` before a space, and at the end of its block. A colon or a semicolon ends nothing.

/// Tokens whose full stop ends no sentence.
const ABBREVIATIONS: [&str; 12] = [
    "e.g.", "i.e.", "vs.", "cf.", "al.", "fig.", "eq.", "sec.", "ca.", "approx.", "resp.", "no.",
];

/// What stands for a piece of inline code while sentences are divided: one word of capitals.
const CODE: &str = "CODE";

/// One sentence, and where it begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sentence {
    /// The line of the file, counted from 1.
    pub line: usize,
    /// How many words it has.
    pub words: usize,
    /// The sentence, with inline code as `CODE`.
    pub text: String,
}

/// Returns the sentences of a Markdown document.
pub fn of_markdown(text: &str) -> Vec<Sentence> {
    sentences(&mut text.lines().enumerate())
}

/// Returns the sentences of the doc comments (`///` and `//!`) of a Rust file.
pub fn of_doc_comments(text: &str) -> Vec<Sentence> {
    let comment = |line: &str| {
        let line = line.trim_start();
        let inner = line.strip_prefix("//!");
        let outer = || {
            line.strip_prefix("///")
                .filter(|rest| !rest.starts_with('/'))
        };
        inner.or_else(outer).map(str::to_owned)
    };
    // A line of code ends the block before it, as an empty line does.
    let lines = text.lines().map(|line| comment(line).unwrap_or_default());
    let lines: Vec<String> = lines.map(|line| unindented(&line)).collect();
    sentences(&mut lines.iter().map(String::as_str).enumerate())
}

/// Takes away the one space that follows the slashes.
fn unindented(line: &str) -> String {
    line.strip_prefix(' ').unwrap_or(line).to_owned()
}

/// A word of a block: its text, and the line that it is on.
type Token = (String, usize);

fn sentences(lines: &mut dyn Iterator<Item = (usize, &str)>) -> Vec<Sentence> {
    let mut found = Vec::new();
    let mut block: Vec<(usize, &str)> = Vec::new();
    let mut fence = None;
    for (number, line) in lines {
        let trimmed = line.trim_start().trim_start_matches("> ").trim_start();
        let mark = ["```", "~~~"]
            .into_iter()
            .find(|mark| trimmed.starts_with(mark));
        if let Some(open) = fence {
            if mark == Some(open) {
                fence = None;
            }
            continue;
        }
        // Four spaces after an empty line are code, unless a list goes on there.
        let code = block.is_empty() && line.starts_with("    ") && item(trimmed).is_none();
        if mark.is_some() || trimmed.is_empty() || without_sentences(trimmed) || code {
            end(&mut block, &mut found);
            fence = mark;
            continue;
        }
        let rest = item(trimmed);
        if rest.is_some() {
            end(&mut block, &mut found);
        }
        block.push((number + 1, rest.unwrap_or(trimmed)));
    }
    end(&mut block, &mut found);
    found
}

/// Whether a line is a heading, a row of a table, HTML, a rule or the target of a link.
fn without_sentences(line: &str) -> bool {
    let target = line.starts_with('[') && line.contains("]: ");
    line.starts_with(['#', '|', '<']) || line.starts_with("---") || target
}

/// Returns what follows the mark of a list's item.
fn item(line: &str) -> Option<&str> {
    let bullet = ["- ", "* ", "+ "]
        .iter()
        .find_map(|mark| line.strip_prefix(mark));
    let numbered = || {
        let rest = line.trim_start_matches(|c: char| c.is_ascii_digit());
        rest.strip_prefix(". ").filter(|_| rest.len() < line.len())
    };
    bullet.or_else(numbered)
}

/// Divides a block that is complete and empties it.
fn end(block: &mut Vec<(usize, &str)>, found: &mut Vec<Sentence>) {
    let tokens = tokens(block);
    block.clear();
    let mut start = 0;
    for at in 0..tokens.len() {
        let last = at + 1 == tokens.len();
        if !last && !ends_sentence(&tokens[at].0, &tokens[at + 1].0) {
            continue;
        }
        let texts: Vec<&str> = tokens[start..=at]
            .iter()
            .map(|token| token.0.as_str())
            .collect();
        let words = texts.iter().filter(|text| is_word(text)).count();
        if words > 0 {
            let (line, text) = (tokens[start].1, texts.join(" "));
            found.push(Sentence { line, words, text });
        }
        start = at + 1;
    }
}

/// Returns the words of a block, with inline code as [`CODE`] and links as their texts.
fn tokens(block: &[(usize, &str)]) -> Vec<Token> {
    let mut tokens: Vec<Token> = Vec::new();
    let (mut word, mut in_code, mut in_target) = (String::new(), false, false);
    for (line, text) in block {
        let mut before = ' ';
        for c in text.chars().chain([' ']) {
            match c {
                '`' => {
                    in_code = !in_code;
                    if in_code {
                        word.push_str(CODE);
                    }
                }
                _ if in_code => {}
                ')' if in_target => in_target = false,
                _ if in_target => {}
                '(' if before == ']' => in_target = true,
                '[' | ']' | '*' => {}
                _ if c.is_whitespace() => {
                    if !word.is_empty() {
                        tokens.push((std::mem::take(&mut word), *line));
                    }
                }
                _ => word.push(c),
            }
            before = c;
        }
    }
    tokens
}

fn is_word(token: &str) -> bool {
    token.chars().any(char::is_alphanumeric)
}

/// Whether a sentence ends with this token, given the next one.
fn ends_sentence(token: &str, next: &str) -> bool {
    let closing = |c: char| matches!(c, ')' | '"' | '”' | '_' | '\'');
    let bare = token.trim_end_matches(closing);
    let abbreviated = || {
        let lower = bare.trim_start_matches(['(', '"', '“']).to_lowercase();
        ABBREVIATIONS.contains(&lower.as_str())
    };
    let first = next
        .trim_start_matches(['(', '"', '“', '_', '\''])
        .chars()
        .next();
    let begins = first.is_some_and(|c| c.is_uppercase() || c.is_numeric());
    bare.ends_with(['.', '!', '?']) && begins && !abbreviated()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(text: &str) -> Vec<usize> {
        of_markdown(text)
            .iter()
            .map(|sentence| sentence.words)
            .collect()
    }

    #[test]
    fn full_stops_inside_words_end_no_sentence() {
        assert_eq!(
            counted("It takes 3.5 s, e.g. Alice waits. It reads node.toml Then."),
            [7, 4]
        );
        assert_eq!(
            counted("See Zhan et al. Table 2 (i.e. The last). Done!"),
            [9, 1]
        );
    }

    #[test]
    fn inline_code_is_one_word_even_across_lines_and_a_link_is_its_text() {
        assert_eq!(
            counted("Run `fednode swarm --nodes\n3` now. `a.b. C` ends."),
            [3, 2]
        );
        assert_eq!(
            counted("See [the page](https://example.org/a. B) twice."),
            [4]
        );
    }

    #[test]
    fn list_items_are_sentences_and_tables_are_none() {
        let text = "# A heading\n\n- one two\n- three\n  four\n1. five\n\n| a | b |\n\n```\nno words\n```\nsix";
        assert_eq!(counted(text), [2, 2, 1, 1]);
    }

    #[test]
    fn a_sentence_knows_its_line_and_signs_are_no_words() {
        let found = of_markdown("One × two = 3\nwords. And\nhere.");
        assert_eq!(found[0].words, 4);
        assert_eq!((found[1].line, found[1].words), (2, 2));
    }

    #[test]
    fn code_between_two_doc_comments_divides_them() {
        let file =
            "//! Header of two\n//! lines.\n\n/// First\nfn a() {}\n//// no doc\n/// second.\n";
        let words: Vec<usize> = of_doc_comments(file).iter().map(|s| s.words).collect();
        assert_eq!(words, [4, 1, 1]);
    }
}
