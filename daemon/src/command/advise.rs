//! `fednode advise`: what to begin with, by what the data are. Nothing leaves the machine.

use fednode_cli::failure::fail;
use fednode_cli::output::{self, Form, Report};
use fednode_cli::table::percent;
use fednode_data::partition::TEST_SHARE;
use fednode_runtime::exit::ExitCode;
use serde::Serialize;

use super::data::{Look, look, source};
use crate::advice::{self, Facts, Kind, Row};

/// What is typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The data: a table's file, or any source as `--data` takes it.
    #[arg(value_name = "SOURCE", required_unless_present = "all")]
    source: Option<String>,
    /// Print all advice for whatever data, as a table in Markdown.
    #[arg(long, conflicts_with = "source")]
    all: bool,
}

/// Looks at the data and prints the advice for them.
pub(crate) fn run(args: &Args, form: Form) -> anyhow::Result<()> {
    let Some(source_text) = &args.source else {
        return output::print(
            &Whole {
                advice: advice::TABLE.iter().map(Piece::of).collect(),
            },
            form,
        );
    };
    let source = source(source_text)?;
    let found = look(&source)?;
    let kind = match (found.facts.vocabulary, found.facts.is_table) {
        _ if found.facts.target.is_some() => Kind::Numbers,
        (0, false) => Kind::Image,
        (0, true) => Kind::Table,
        _ => Kind::Text,
    };
    let tests = found
        .test_samples
        .unwrap_or((found.samples as f64 * TEST_SHARE) as usize);
    let facts = Facts {
        kind,
        samples: found.samples,
        tests,
        classes: found.classes.iter().map(|class| class.samples).collect(),
        input: found.input,
    };
    if kind != Kind::Numbers && facts.classes.iter().filter(|n| **n > 0).count() < 2 {
        let text = format!(
            "`{}` has samples of one class only: there is nothing to tell apart",
            found.source
        );
        return Err(fail(ExitCode::Data, text));
    }
    output::print(&Answer::of(&found, &facts), form)
}

/// The advice for some data.
#[derive(Debug, Serialize)]
struct Answer {
    source: String,
    samples: usize,
    test_samples: usize,
    /// What is said of classes; nothing where a number is predicted.
    #[serde(flatten)]
    classes: Option<OfClasses>,
    advice: Vec<Piece>,
}

/// What the classes say.
#[derive(Debug, Serialize)]
struct OfClasses {
    /// The share of the commonest class.
    commonest: f64,
    /// How far chance alone moves an accuracy on the test samples, up or down, at 95 %.
    uncertainty: f64,
}

#[derive(Debug, Serialize)]
struct Piece {
    about: &'static str,
    when: &'static str,
    advice: &'static str,
    why: &'static str,
    page: &'static str,
}

impl Piece {
    const fn of(row: &Row) -> Self {
        Self {
            about: row.about,
            when: row.when,
            advice: row.advice,
            why: row.why,
            page: row.page,
        }
    }
}

/// All advice for whatever data.
#[derive(Debug, Serialize)]
struct Whole {
    advice: Vec<Piece>,
}

impl Report for Whole {
    fn human(&self) -> String {
        advice::markdown()
    }
}

impl Answer {
    fn of(found: &Look, facts: &Facts) -> Self {
        Self {
            source: found.source.clone(),
            samples: facts.samples,
            test_samples: facts.tests,
            classes: (facts.kind != Kind::Numbers).then(|| OfClasses {
                commonest: facts.commonest(),
                uncertainty: facts.uncertainty(),
            }),
            advice: advice::of(facts).map(Piece::of).collect(),
        }
    }
}

impl Report for Answer {
    fn human(&self) -> String {
        let tests = match (self.test_samples, &self.classes) {
            (0, _) => "none of them for tests".to_owned(),
            (n, None) => format!("{n} of them for tests"),
            (n, Some(classes)) => format!(
                "{n} of them for tests (an accuracy is known to ± {})",
                percent(classes.uncertainty)
            ),
        };
        let commonest = self.classes.as_ref().map_or_else(String::new, |classes| {
            format!("; the commonest class has {}", percent(classes.commonest))
        });
        let mut page = format!(
            "{}: {} samples, {tests}{commonest}\n",
            self.source, self.samples
        );
        for piece in &self.advice {
            page += &format!(
                "\n{}: {}\n    because {}\n    {}\n",
                piece.about, piece.advice, piece.why, piece.page
            );
        }
        let tried =
            "\nTry it on this machine, with another owner's data or a part of yours as OTHER:\n";
        let own = quoted(&self.source);
        page + tried + &format!("    fednode swarm --own {own} --own OTHER\n")
    }
}

/// Quotes a word for a shell where it needs that.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/:.,=_-".contains(c);
    if word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}
