//! `fednode explain [TOPIC]`: the page on exit codes, one section at a time.
//!
//! The program holds the page itself, so that an installed one explains its errors without the book at hand.

use std::fmt::Write;

use fednode_runtime::exit::ExitCode;
use serde::Serialize;

use fednode_cli::failure::fail;
use fednode_cli::output::{self, Form, Report};
use fednode_cli::table::{render, text};

const PAGE: &str = include_str!("../../../docs/reference/exit-codes.md");
/// Letters of a line.
const WIDTH: usize = 100;

/// What is typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What to explain: a number that a command ended with, or a topic such as `data` or `waiting` (none: list all).
    topic: Option<String>,
}

/// Prints a section of the page, or the list of all.
pub(crate) fn run(args: &Args, form: Form) -> anyhow::Result<()> {
    let sections = sections();
    let Some(wanted) = &args.topic else {
        return output::print(&List(sections), form);
    };
    let wanted = wanted.to_lowercase();
    let is_wanted = |section: &Section| {
        section.topic == wanted || section.code.is_some_and(|code| code.to_string() == wanted)
    };
    let names: Vec<String> = sections
        .iter()
        .map(|section| section.topic.clone())
        .collect();
    match sections.into_iter().find(is_wanted) {
        Some(section) => output::print(&section, form),
        None => {
            let names = names.join(", ");
            let text = format!(
                "nothing is called `{wanted}` here: there are {names}, and the numbers of exit codes"
            );
            Err(fail(ExitCode::Usage, text))
        }
    }
}

/// All sections.
#[derive(Debug, Serialize)]
struct List(Vec<Section>);

/// One section of the page.
#[derive(Debug, Serialize)]
struct Section {
    topic: String,
    /// The exit code that it is about.
    code: Option<u8>,
    /// In Markdown, with the places of links seen from the page.
    markdown: String,
}

impl Section {
    /// Says in a few words what it is about.
    fn about(&self) -> &str {
        let mut all = ExitCode::ALL.into_iter();
        let code = all.find(|code| Some(code.number()) == self.code);
        let first = || self.markdown.split('.').next().unwrap_or_default();
        code.map_or_else(first, |code| code.cause())
    }
}

impl Report for List {
    fn human(&self) -> String {
        let columns = [text("topic"), text("code"), text("about")];
        let row = |section: &Section| {
            let code = section
                .code
                .map_or_else(|| "-".into(), |code| code.to_string());
            vec![section.topic.clone(), code, section.about().to_owned()]
        };
        let rows: Vec<_> = self.0.iter().map(row).collect();
        render(&columns, &rows) + "\n`fednode explain TOPIC` says what to do.\n"
    }
}

impl Report for Section {
    fn human(&self) -> String {
        let mut shown = String::new();
        let mut lines = self.markdown.lines().peekable();
        while let Some(line) = lines.next() {
            if let Some(row) = line.strip_prefix("| ") {
                // The first row of a table names its columns, and the second one is a rule.
                if lines.next_if(|next| next.starts_with("|---")).is_none() {
                    shown += &cells(row);
                }
                continue;
            }
            // A paragraph is written in lines of our own.
            let mut paragraph = line.to_owned();
            let goes_on = |next: &&str| !next.is_empty() && !next.starts_with(['|', '-']);
            while let Some(next) = lines.next_if(|next| !paragraph.is_empty() && goes_on(next)) {
                paragraph += " ";
                paragraph += next;
            }
            shown += &wrapped(&plain(&paragraph), "");
        }
        shown
    }
}

/// Writes a row of a table: what is met, and below it what to do.
fn cells(row: &str) -> String {
    let mut cells = row.trim_end_matches(" |").splitn(2, " | ");
    let (met, advice) = (
        cells.next().unwrap_or_default(),
        cells.next().unwrap_or_default(),
    );
    let met = plain(met.trim_matches('`'));
    format!("  {met}\n{}\n", wrapped(&plain(advice), "      "))
}

/// Takes the sections from the page.
fn sections() -> Vec<Section> {
    let parts = PAGE.split("\n## ").skip(1);
    let section = |part: &str| {
        let (title, body) = part.split_once('\n').unwrap_or((part, ""));
        let topic = title.to_lowercase();
        let mut codes = ExitCode::ALL.into_iter();
        let code = codes.find(|code| code.topic() == topic);
        Section {
            code: code.map(ExitCode::number),
            markdown: body.trim().to_owned() + "\n",
            topic,
        }
    };
    parts.map(section).collect()
}

/// Writes links as their text, and the page where there is one: `[text](../how-to/page.md#part)` is `text (how-to/page.md)`.
fn plain(markdown: &str) -> String {
    let mut shown = String::new();
    let mut rest = markdown;
    while let Some((before, text, place, after)) = link(rest) {
        let page = place.split('#').next().unwrap_or_default();
        let page = page.trim_start_matches("../");
        shown += before;
        shown += text;
        if !page.is_empty() {
            write!(shown, " ({page})").expect("a string takes it");
        }
        rest = after;
    }
    shown + rest
}

/// Finds the first link: what is before it, its text, its place, what is after it.
fn link(markdown: &str) -> Option<(&str, &str, &str, &str)> {
    let (head, tail) = markdown.split_once("](")?;
    let (before, text) = head.rsplit_once('[')?;
    let (place, after) = tail.split_once(')')?;
    Some((before, text, place, after))
}

/// Divides a paragraph into lines, each with an indent. Those after the first one of an item stand below its text.
fn wrapped(paragraph: &str, indent: &str) -> String {
    let (mut lines, mut line) = (String::new(), indent.to_owned());
    let indent = if paragraph.starts_with("- ") {
        "  "
    } else {
        indent
    };
    for word in paragraph.split_whitespace() {
        let is_first = line.trim().is_empty();
        if !is_first && line.chars().count() + 1 + word.chars().count() > WIDTH {
            lines += &line;
            lines += "\n";
            line = indent.to_owned() + word;
        } else {
            line += if is_first { "" } else { " " };
            line += word;
        }
    }
    lines + line.trim_end() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_exit_code_has_a_section() {
        let sections = sections();
        for code in ExitCode::ALL {
            let has = |section: &Section| section.code == Some(code.number());
            assert!(sections.iter().any(has), "{code:?}");
        }
    }

    #[test]
    fn a_section_reads_as_text() {
        let found = sections()
            .into_iter()
            .find(|section| section.topic == "network");
        let text = found.unwrap().human();
        assert!(
            text.starts_with("Code 5. The state folder is as it was.\n"),
            "{text}"
        );
        let row =
            "\n  the port is in use: is another node running?\n      Stop the other process, or";
        assert!(text.contains(row), "{text}");
        let words: Vec<&str> = text.split_whitespace().collect();
        for link in [
            "the same key (how-to/keys-and-allow-lists.md).",
            "says for whom: see Waiting.",
        ] {
            assert!(words.join(" ").contains(link), "{text}");
        }
        for line in text.lines() {
            assert!(
                line.chars().count() <= WIDTH && !line.contains("]("),
                "{line}"
            );
        }
    }
}
