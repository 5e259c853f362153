//! `fednode data`: what a table holds, column by column, and whether it goes with a federation.

mod words;

use std::path::PathBuf;

use fednode_core::FederationSpec;
use fednode_core::spec::{ColumnKind, TableColumn, Target};
use fednode_data::table::Proposal;
use fednode_data::{DataSource, Facts};
use fednode_runtime::exit::ExitCode;
use fednode_runtime::streams::say;
use serde::Serialize;

use fednode_cli::data::{self, units};
use fednode_cli::failure::{OrFail, fail};
use fednode_cli::federation::DataFacts;
use fednode_cli::output::{self, Form, Report};
use fednode_cli::table::{number, percent, render, text};

use super::start::read_and_tell;

/// Levels of a category that are shown.
const SHOWN: usize = 6;

/// What is typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The data: a table's file, or any source as `--data` takes it.
    #[arg(value_name = "SOURCE")]
    source: String,
    /// A federation that the data should go with: its federation.toml.
    #[arg(long, value_name = "FILE")]
    spec: Option<PathBuf>,
    /// Write the words of texts to this new file, the most frequent first: one list for all nodes of a federation. A word
    /// that fewer than five texts have is left out.
    #[arg(long, value_name = "FILE", conflicts_with = "spec")]
    words: Option<PathBuf>,
}

/// Looks at the data and prints what they hold; fails if they do not go with the federation.
pub(crate) fn run(args: &Args, form: Form) -> anyhow::Result<()> {
    let source = source(&args.source)?;
    if let Some(path) = &args.words {
        return words::write(&source, path, form);
    }
    let spec = args.spec.as_deref().map(read).transpose()?;
    let source = match &spec {
        Some(spec) => source.with_target_of(spec),
        None => source,
    };
    let found = look(&source)?;
    let misfits = spec
        .as_ref()
        .map_or_else(Vec::new, |spec| misfits(&found, spec));
    // Words where numbers are wanted show when every cell is read as the node would read it.
    let read = spec.as_ref().map(|spec| data::look_at(source, Some(spec)));
    let is_unread = read.as_ref().is_some_and(Result::is_err);
    let answer = Look {
        // If a cell does not go, it cannot be said that all columns do.
        misfits: spec
            .is_some()
            .then(|| misfits.clone())
            .filter(|misfits| !is_unread || !misfits.is_empty()),
        ..found
    };
    output::print(&answer, form)?;
    read.transpose()?;
    match misfits.iter().filter(|misfit| misfit.breaks).count() {
        0 => Ok(()),
        n => {
            let text = format!("{n} columns do not go with the federation: see the list");
            Err(fail(ExitCode::Data, text))
        }
    }
}

/// Reads a source; the path of a table is one.
pub(super) fn source(text: &str) -> anyhow::Result<DataSource> {
    let ending = text.rsplit('.').next().unwrap_or_default();
    let is_table = ["csv", "tsv"]
        .iter()
        .any(|known| ending.eq_ignore_ascii_case(known));
    if is_table && std::path::Path::new(text).is_file() {
        return data::source(&format!("csv:{text}"));
    }
    data::source(text)
}

fn read(path: &std::path::Path) -> anyhow::Result<FederationSpec> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| {
        fail(
            ExitCode::Configuration,
            format!("cannot read `{shown}`: {error}"),
        )
    })?;
    read_and_tell(&text)
        .map_err(|error| fail(ExitCode::Configuration, format!("`{shown}`: {error}")))
}

/// What the data hold.
#[derive(Debug, Serialize)]
pub(super) struct Look {
    pub(super) source: String,
    pub(super) samples: usize,
    /// Samples for tests, where the data say which those are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) test_samples: Option<usize>,
    pub(super) classes: Vec<Class>,
    /// The column of a table that the classes are in.
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<String>,
    /// Whether that is only because it is the last one.
    #[serde(skip)]
    is_label_guessed: bool,
    /// Channels, height and width of a sample as a model gets it.
    pub(super) input: [usize; 3],
    columns: Vec<Column>,
    /// What a federation of such data is told of them.
    #[serde(skip)]
    pub(super) facts: DataFacts,
    /// What does not go with the federation, if one was named.
    #[serde(skip_serializing_if = "Option::is_none")]
    misfits: Option<Vec<Misfit>>,
}

#[derive(Debug, Serialize)]
pub(super) struct Class {
    name: String,
    pub(super) samples: usize,
}

#[derive(Debug, Serialize)]
struct Column {
    name: String,
    /// Share of samples without a value.
    gaps: f64,
    /// How the column would be described in a spec.
    #[serde(skip_serializing_if = "Option::is_none")]
    proposed: Option<TableColumn>,
    /// Why it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out: Option<String>,
}

/// What of a column does not go with a federation.
#[derive(Debug, Clone, Serialize)]
struct Misfit {
    column: String,
    what: String,
    /// Whether the node could not take part so.
    breaks: bool,
}

pub(super) fn look(source: &DataSource) -> anyhow::Result<Look> {
    let opened = source.open().or_fail(ExitCode::Data)?;
    let pool = opened.pool().or_fail(ExitCode::Data)?;
    let facts = data::facts(source)?;
    let mut counts = vec![0; pool.class_names.len()];
    pool.labels
        .iter()
        .for_each(|label| counts[usize::from(*label)] += 1);
    let classes = pool.class_names.iter().zip(counts);
    let survey = opened.survey().or_fail(ExitCode::Data)?;
    let named = match opened.describe().or_fail(ExitCode::Data)? {
        Facts::Table { columns } => columns.is_some(),
        Facts::Images | Facts::Text { .. } => true,
    };
    if !named {
        say(format_args!(
            "warning: the table has no header, or two columns of one name: its values are taken as they are, in their order"
        ));
    }
    let label = opened.label().or_fail(ExitCode::Data)?;
    let columns = survey.map(|survey| survey.proposals()).unwrap_or_default();
    Ok(Look {
        source: source.to_string(),
        samples: pool.labels.len(),
        test_samples: pool
            .tests
            .map(|tests| tests.into_iter().filter(|is_test| *is_test).count()),
        classes: classes
            .map(|(name, samples)| Class {
                name: name.clone(),
                samples,
            })
            .collect(),
        is_label_guessed: label.as_ref().is_some_and(|label| label.is_guessed),
        label: label.map(|label| label.name),
        input: facts.input,
        columns: columns.into_iter().map(Column::of).collect(),
        facts,
        misfits: None,
    })
}

impl Column {
    fn of(proposal: Proposal) -> Self {
        let (proposed, left_out) = match proposal.column {
            Ok(column) => (Some(column), None),
            Err(reason) => (None, Some(reason)),
        };
        Self {
            name: proposal.name,
            gaps: proposal.gaps,
            proposed,
            left_out,
        }
    }

    /// Returns what it holds, in words.
    fn about(&self) -> String {
        let Some(column) = &self.proposed else {
            return format!(
                "left out: it {}",
                self.left_out.as_deref().unwrap_or_default()
            );
        };
        match column.kind {
            ColumnKind::Number => format!("{} to {}", column.range[0], column.range[1]),
            ColumnKind::Boolean => "yes or no".to_owned(),
            ColumnKind::Category => {
                let shown = column
                    .levels
                    .iter()
                    .take(SHOWN)
                    .cloned()
                    .collect::<Vec<_>>()
                    .join(", ");
                match column.levels.len().saturating_sub(SHOWN) {
                    0 => shown,
                    more => format!("{shown} and {more} more"),
                }
            }
        }
    }
}

/// Returns what of the data does not go with a federation.
fn misfits(found: &Look, spec: &FederationSpec) -> Vec<Misfit> {
    let of_column = |wanted: &TableColumn| {
        let is_it = |own: &&Column| own.name.eq_ignore_ascii_case(&wanted.name);
        match found.columns.iter().find(is_it) {
            Some(own) => misfits_of(own, wanted),
            None => vec![Misfit::breaking(&wanted.name, "is not there".to_owned())],
        }
    };
    let columns = spec.data.columns.iter().flat_map(of_column);
    let classes = match (&found.facts.target, &spec.data.target) {
        (None, None) => misfit_of_classes(&found.classes, &spec.fingerprints.class_names),
        (own, wanted) => misfit_of_targets(own.as_ref(), wanted.as_ref()),
    };
    columns.chain(classes).collect()
}

/// Returns what of a column does not go with the federation's.
fn misfits_of(own: &Column, wanted: &TableColumn) -> Vec<Misfit> {
    let mut all = Vec::new();
    if own.gaps >= 1.0 {
        let what = "has no values: all are filled in".to_owned();
        all.push(Misfit::bearable(&own.name, what));
    } else if own.gaps > 0.0 && !wanted.gaps {
        let what = format!(
            "lacks {} of its values, which are filled in; nothing tells the model where, unless `gaps = true` is set for \
             it in federation.toml",
            percent(own.gaps)
        );
        all.push(Misfit::bearable(&own.name, what));
    }
    let Some(proposed) = &own.proposed else {
        return all;
    };
    let is_known = |level: &String| {
        let same = |known: &String| known.eq_ignore_ascii_case(level);
        wanted.levels.iter().any(same)
    };
    let unknown: Vec<&String> = proposed
        .levels
        .iter()
        .filter(|level| !is_known(level))
        .collect();
    if wanted.kind == ColumnKind::Category && !unknown.is_empty() {
        let what = format!("has words that count as `other`: {}", quoted(unknown));
        all.push(Misfit::bearable(&own.name, what));
    }
    if let Some(what) = units::oddity(proposed, wanted) {
        all.push(Misfit::bearable(&own.name, what));
    }
    if wanted.kind == ColumnKind::Number && proposed.kind == ColumnKind::Category {
        let what = "holds words, where numbers are expected".to_owned();
        all.push(Misfit::breaking(&own.name, what));
    }
    all
}

/// Returns how what is predicted differs from the federation's, where one of both predicts a number.
fn misfit_of_targets(own: Option<&Target>, wanted: Option<&Target>) -> Option<Misfit> {
    let what = match (own, wanted) {
        (Some(own), Some(wanted)) if own.name == wanted.name => return None,
        (_, Some(wanted)) => format!(
            "the federation predicts the number `{0}`: name it with `,target={0}`",
            wanted.name
        ),
        (_, None) => {
            "the federation predicts classes: name their column with `,label=COLUMN`".to_owned()
        }
    };
    Some(Misfit::breaking("target", what))
}

/// Returns how the classes differ from the federation's, if they do.
fn misfit_of_classes(own: &[Class], expected: &[String]) -> Option<Misfit> {
    let names: Vec<&String> = own.iter().map(|class| &class.name).collect();
    let lacks = |name: &&String| !names.contains(name);
    let missing: Vec<&String> = expected.iter().filter(lacks).collect();
    if expected.is_empty() || names.iter().all(|name| expected.contains(name)) {
        let what = || format!("has no row of {}", quoted(missing.iter().copied()));
        return (!missing.is_empty()).then(|| Misfit::bearable("label", what()));
    }
    let what = format!(
        "has the classes {}, and the federation has {}: name them with `,classes=LABEL=>NAME|…`",
        quoted(names),
        quoted(expected)
    );
    Some(Misfit::breaking("label", what))
}

fn quoted<'a>(names: impl IntoIterator<Item = &'a String>) -> String {
    let quoted: Vec<String> = names.into_iter().map(|name| format!("`{name}`")).collect();
    quoted.join(", ")
}

impl Misfit {
    /// Makes one with which the node could not take part.
    fn breaking(column: &str, what: String) -> Self {
        Self {
            breaks: true,
            ..Self::bearable(column, what)
        }
    }

    /// Makes one that the node's owner should know of.
    fn bearable(column: &str, what: String) -> Self {
        Self {
            column: column.to_owned(),
            what,
            breaks: false,
        }
    }
}

impl Look {
    /// Returns what is predicted, in words.
    fn predicted(&self) -> String {
        if let Some(Target { name, range }) = &self.facts.target {
            return format!("predicts the number `{name}`, {} to {}", range[0], range[1]);
        }
        let classes = self.classes.iter();
        let classes: Vec<String> = classes
            .map(|class| format!("{} {}", class.name, class.samples))
            .collect();
        let (of, note) = match &self.label {
            Some(label) if self.is_label_guessed => (
                format!("classes of `{label}`"),
                " (the last column: name another one with `,label=COLUMN`)",
            ),
            Some(label) => (format!("classes of `{label}`"), ""),
            None => ("classes".to_owned(), ""),
        };
        format!("{of}: {}{note}", classes.join(", "))
    }
}

impl Report for Look {
    fn human(&self) -> String {
        let tests = self.test_samples.map_or(String::new(), |tests| {
            format!(", {tests} of them for tests")
        });
        let predicted = self.predicted();
        let mut page = format!(
            "{}: {} samples{tests}; {predicted}\n",
            self.source, self.samples
        );
        if !self.columns.is_empty() {
            let head = [
                text("column"),
                text("kind"),
                number("gaps"),
                number("features"),
                text("holds"),
            ];
            let row = |column: &Column| {
                let kind = column
                    .proposed
                    .as_ref()
                    .map_or("-", |proposed| match proposed.kind {
                        ColumnKind::Number => "number",
                        ColumnKind::Boolean => "boolean",
                        ColumnKind::Category => "category",
                    });
                let width = column.proposed.as_ref().map_or(0, TableColumn::width);
                vec![
                    column.name.clone(),
                    kind.to_owned(),
                    percent(column.gaps),
                    width.to_string(),
                    column.about(),
                ]
            };
            let rows: Vec<Vec<String>> = self.columns.iter().map(row).collect();
            page += &format!("\n{}", render(&head, &rows));
        }
        let [channels, height, width] = self.input;
        page += &format!("\na model gets {channels}x{height}x{width} numbers of each sample\n");
        match &self.misfits {
            None => {}
            Some(misfits) if misfits.is_empty() => page += "\nall columns go with the federation\n",
            Some(misfits) => {
                page += "\nbeside the federation\n";
                for misfit in misfits {
                    let mark = if misfit.breaks { "fail" } else { "note" };
                    page += &format!("{mark}  `{}` {}\n", misfit.column, misfit.what);
                }
            }
        }
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(text: &str) -> (tempfile::TempDir, DataSource) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.csv");
        std::fs::write(&path, text).unwrap();
        let source = source(&path.display().to_string()).unwrap();
        (folder, source)
    }

    fn rows(row: impl Fn(usize) -> String) -> String {
        (0..30).map(row).collect()
    }

    #[test]
    fn columns_are_listed_with_what_they_hold() {
        let body = rows(|at| format!("{at},{},{},{}\n", 20 + at % 9, ["a", "b"][at % 2], at % 2));
        let (_folder, source) = table(&format!("id,age,kind,label\n{body}"));
        let answer = look(&source).unwrap();
        let page = answer.human();
        assert!(
            page.contains("30 samples; classes of `label`: 0 15, 1 15"),
            "{page}"
        );
        assert!(page.contains("left out: it numbers the rows"), "{page}");
        assert!(page.contains("20 to 28") && page.contains("a, b"), "{page}");
        assert_eq!(answer.input, [1, 1, 4], "an age, two words and all others");
    }

    #[test]
    fn what_does_not_go_with_a_federation_is_named() {
        let body = rows(|at| format!("{},{},{}\n", 20 + at % 9, ["a", "c"][at % 2], at % 2));
        let (_folder, source) = table(&format!("age,kind,label\n{body}"));
        let column = |toml: &str| toml::from_str::<TableColumn>(toml).unwrap();
        let mut spec = FederationSpec::default();
        spec.data.columns = vec![
            column("name = 'age'\nrange = [0, 1]"),
            column("name = 'kind'\nkind = 'category'\nlevels = ['a', 'b']"),
            column("name = 'dose'\nrange = [0, 1]"),
        ];
        let found = misfits(&look(&source).unwrap(), &spec);
        let lines: Vec<(String, bool)> = found
            .iter()
            .map(|misfit| (format!("{} {}", misfit.column, misfit.what), misfit.breaks))
            .collect();
        let expected = [
            (
                "age holds 20 to 28, where the federation has 0 to 1: look whether the unit is the same, and whether a number \
                 stands for a gap"
                    .to_owned(),
                false,
            ),
            (
                "kind has words that count as `other`: `c`".to_owned(),
                false,
            ),
            ("dose is not there".to_owned(), true),
        ];
        assert_eq!(lines, expected);
    }
}
