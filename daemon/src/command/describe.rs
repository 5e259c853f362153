//! `fednode describe`: what everybody's table holds, column by column, as nodes agreed in the first round.
//!
//! A node publishes of its table what the features are made of, and nothing else: means, bins, shares. What nodes agreed on
//! is their mean by the rule of the federation, weighted by samples, and it is in the model. So this asks nobody, and shows
//! nothing that a member does not have already.

use std::cmp::Ordering;

use fednode_core::spec::{Scaling, TableColumn};
use fednode_core::{Round, Weighting};
use fednode_data::table::{Of, Summary, n_moments};
use fednode_engine::weights;
use fednode_runtime::exit::ExitCode;
use fednode_runtime::records;
use serde::Serialize;

use fednode_cli::failure::{OrFail, fail};
use fednode_cli::model::Model;
use fednode_cli::output::{self, Form, Report};
use fednode_cli::state::StateArgs;
use fednode_cli::table::{number, percent, render, text};

/// The tensor of a model that holds what was agreed on.
const MOMENTS: &str = "preparation.moments";

/// What is typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    state: StateArgs,
    /// Shares of fewer rows than this are not shown.
    #[arg(long, value_name = "ROWS", default_value_t = 10)]
    least: u32,
}

/// Reads the model of the state folder and prints what it knows of the columns.
pub(crate) fn run(args: &Args, form: Form) -> anyhow::Result<()> {
    let folder = args.state.folder()?;
    let model = Model::of_state(&folder)?;
    let spec = &model.card.spec;
    let columns = &spec.data.columns;
    if !columns.is_empty() && spec.privacy.hides_rows() {
        let text = "nothing is agreed on here: under masks or a promise of privacy no node says what its columns are like";
        return Err(fail(ExitCode::Configuration, text));
    }
    if columns.is_empty() || !spec.exchange.prepares {
        let text = "nothing is agreed on here: this is for federations of raw tables (`--data csv:FILE,label=COLUMN`)";
        return Err(fail(ExitCode::Configuration, text));
    }
    let Some(moments) = agreed(&model, n_moments(columns)) else {
        let text = "nodes agree on their columns in the first round: ask again when it has passed";
        return Err(fail(ExitCode::State, text));
    };
    let samples = fednode_runtime::training_samples(&folder).or_fail(ExitCode::State)?;
    let samples: Vec<u32> = samples.into_values().collect();
    let records = records::read(&records::path_in(&folder)).or_fail(ExitCode::State)?;
    let first = records.iter().find(|record| record.round == Round(1));
    let members = first.map_or(spec.fewest_members(), |record| record.members);
    let surely = surely_of(&samples, members as usize, spec.round.max_weight);
    let described = columns.iter().zip(Summary::all(columns, &moments));
    let answer = Answer {
        nodes: samples.len(),
        rows: samples.iter().map(|n| u64::from(*n)).sum(),
        least: args.least,
        columns: described
            .map(|(column, summary)| Column::of(column, &summary, surely, args.least))
            .collect(),
    };
    output::print(&answer, form)
}

/// Returns what nodes agreed on; nothing before they have. Until then the part that all have in common is zero.
fn agreed(model: &Model, count: usize) -> Option<Vec<f64>> {
    let common = if model.is_under_way {
        model.common.as_ref()?
    } else {
        &model.params
    };
    let moments = common.get(MOMENTS)?.values();
    let is_agreed = moments.len() == count && moments.iter().any(|value| *value != 0.0);
    is_agreed.then(|| moments.iter().map(|value| f64::from(*value)).collect())
}

/// Returns how many rows there were at least, if so many nodes took part in the first round, and none weighed more than so
/// many medians. A share of a mean is of this share of them at least: rows of a node that weighs less than it has count less.
fn surely_of(samples: &[u32], members: usize, max_weight: f64) -> f64 {
    let mut weights = weights(samples, Weighting::Samples, max_weight);
    weights.sort_unstable_by(f64::total_cmp);
    weights.into_iter().take(members).sum()
}

/// What is known of everybody's rows.
#[derive(Debug, Serialize)]
struct Answer {
    /// Training rows, and of how many nodes, as their newest updates say.
    rows: u64,
    nodes: usize,
    least: u32,
    columns: Vec<Column>,
}

/// What is known of a column.
#[derive(Debug, Serialize)]
struct Column {
    name: String,
    /// The share of rows with a value.
    present: Share,
    #[serde(flatten)]
    of: Known,
}

/// What is known of a column of one kind.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
enum Known {
    /// Too few rows have a value.
    Hidden,
    /// Quartiles are as exact as a 32nd of the range.
    Number {
        /// Whether the numbers are logarithms.
        is_logarithm: bool,
        mean: f64,
        deviation: f64,
        quartiles: [f64; 3],
    },
    Boolean {
        yes: Share,
    },
    Category {
        levels: Vec<Level>,
    },
}

#[derive(Debug, Serialize)]
struct Level {
    /// Nothing stands for all other words.
    name: Option<String>,
    share: Share,
}

/// A share of the rows with a value; nothing if it is of too few rows.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(transparent)]
struct Share(Option<f64>);

impl Share {
    /// Hides a share of a few rows, and one of all but a few. 0 % and 100 % are shown.
    fn of(share: f64, with_value: f64, least: u32) -> Self {
        let few = |share: f64| {
            // Less than half a row is what rounding leaves of none.
            let rows = share * with_value;
            rows >= 0.5 && rows < f64::from(least) - 1e-6
        };
        Self((!few(share) && !few(1.0 - share)).then_some(share))
    }

    fn words(self) -> String {
        self.0.map_or_else(|| "hidden".to_owned(), percent)
    }
}

/// Hides shares of a few rows. Hides more until two levels at least are hidden, with enough rows together.
fn shares_of(shares: &[f64], with_value: f64, least: u32) -> Vec<Share> {
    let mut shown: Vec<Share> = shares
        .iter()
        .map(|share| Share::of(*share, with_value, least))
        .collect();
    loop {
        let hidden = shown.iter().zip(shares);
        let hidden = hidden.filter(|(shown, _)| shown.0.is_none());
        let (count, sum) = hidden.fold((0, 0.0), |(count, sum), (_, share)| {
            (count + 1, sum + share)
        });
        if count == 0 || count >= 2 && sum * with_value >= f64::from(least) - 1e-6 {
            return shown;
        }
        let seen = shown
            .iter_mut()
            .filter(|share| share.0.is_some_and(|share| share > 0.0));
        let Some(smallest) =
            seen.min_by(|one, other| one.0.partial_cmp(&other.0).unwrap_or(Ordering::Equal))
        else {
            return shown;
        };
        *smallest = Share(None);
    }
}

impl Column {
    fn of(column: &TableColumn, summary: &Summary, rows: f64, least: u32) -> Self {
        let with_value = summary.present * rows;
        let share = |share: f64| Share::of(share, with_value, least);
        let of = match &summary.of {
            _ if with_value < f64::from(least) => Known::Hidden,
            Of::Numbers {
                mean,
                deviation,
                quartiles,
            } => Known::Number {
                is_logarithm: column.scaling == Scaling::Log,
                mean: *mean,
                deviation: *deviation,
                quartiles: *quartiles,
            },
            Of::Truths(yes) => Known::Boolean { yes: share(*yes) },
            Of::Levels(shares) => {
                let names = column.levels.iter().cloned().map(Some);
                let shares = shares_of(shares, with_value, least);
                let levels = names.chain([None]).zip(shares);
                let levels = levels.map(|(name, share)| Level { name, share }).collect();
                Known::Category { levels }
            }
        };
        Self {
            name: column.name.clone(),
            present: Share::of(summary.present, rows, least),
            of,
        }
    }

    /// Says in words what is known.
    fn words(&self) -> String {
        match &self.of {
            Known::Hidden => "hidden".to_owned(),
            Known::Number {
                is_logarithm,
                mean,
                deviation,
                quartiles: [lower, median, upper],
            } => {
                let of = if *is_logarithm { "of logarithms: " } else { "" };
                let [mean, deviation, lower, median, upper] =
                    [mean, deviation, lower, median, upper].map(|value| short(*value));
                format!(
                    "{of}mean {mean}, deviation {deviation}; quartiles {lower}, {median}, {upper}"
                )
            }
            Known::Boolean { yes } => format!("yes {}", yes.words()),
            Known::Category { levels } => {
                let shown = levels.iter().filter(|level| level.share.0 != Some(0.0));
                let level = |level: &Level| {
                    let name = level.name.as_deref().unwrap_or("other words");
                    format!("{name} {}", level.share.words())
                };
                shown.map(level).collect::<Vec<_>>().join(", ")
            }
        }
    }
}

/// Writes a number with four digits that count.
fn short(value: f64) -> String {
    let digits = match value.abs() {
        0.0 => 0,
        size => (3.0 - size.log10().floor()).clamp(0.0, 12.0) as usize,
    };
    format!("{value:.digits$}")
}

impl Report for Answer {
    fn human(&self) -> String {
        let columns = [
            text("column"),
            number("with a value"),
            text("of these rows"),
        ];
        let row = |column: &Column| {
            let words = column.words();
            vec![column.name.clone(), column.present.words(), words]
        };
        let rows: Vec<Vec<String>> = self.columns.iter().map(row).collect();
        format!(
            "{} nodes say that they train on {} rows; what they agreed on in the first round:\n\n{}\
             \nhidden is what is of fewer than {} rows, and what would give that away\n",
            self.nodes,
            self.rows,
            render(&columns, &rows),
            self.least,
        )
    }
}

#[cfg(test)]
mod tests {
    use fednode_core::spec::ColumnKind;

    use super::*;

    #[test]
    fn shares_of_a_few_rows_are_not_shown_and_those_of_none_are() {
        let share = |rows: f64| Share::of(rows / 100.0, 100.0, 10).0;
        assert_eq!(share(0.0), Some(0.0));
        assert_eq!(share(9.0), None);
        assert_eq!(share(10.0), Some(0.1));
        assert_eq!(share(90.0), Some(0.9));
        assert_eq!(share(91.0), None, "the rest would be few");
        assert_eq!(share(100.0), Some(1.0));
    }

    #[test]
    fn rows_are_counted_for_as_little_as_they_weigh() {
        // The largest weighs three medians; two of four were there, perhaps the smallest.
        assert_eq!(surely_of(&[50, 60, 50, 10_000], 4, 3.0), 310.0);
        assert_eq!(surely_of(&[50, 60, 50, 10_000], 2, 3.0), 100.0);
        assert_eq!(surely_of(&[], 2, 3.0), 0.0);
    }

    #[test]
    fn nothing_is_said_of_a_column_with_few_values() {
        let column = TableColumn {
            kind: ColumnKind::Number,
            ..TableColumn::default()
        };
        let summary = Summary {
            present: 0.09,
            of: Of::Numbers {
                mean: 61.0,
                deviation: 0.0,
                quartiles: [61.0; 3],
            },
        };
        let known = |rows| Column::of(&column, &summary, rows, 10).of;
        assert!(matches!(known(100.0), Known::Hidden));
        assert!(matches!(known(200.0), Known::Number { .. }));
        assert!(matches!(
            Column::of(&column, &summary, 0.0, 10).of,
            Known::Hidden
        ));
    }

    #[test]
    fn what_lacks_to_the_whole_gives_no_hidden_share_away() {
        let of = |rows: [f64; 4]| {
            let shares = shares_of(&rows.map(|n| n / 100.0), 100.0, 10);
            shares
                .iter()
                .map(|share| share.0.is_none())
                .collect::<Vec<_>>()
        };
        assert_eq!(of([50.0, 30.0, 20.0, 0.0]), [false; 4]);
        assert_eq!(of([50.0, 30.0, 15.0, 5.0]), [false, false, true, true]);
        assert_eq!(of([50.0, 41.0, 5.0, 4.0]), [false, true, true, true]);
    }

    #[test]
    fn numbers_have_four_digits() {
        let written = [0.0, 53.511, 0.012_345, 1234.5, 123_456.7, -9.4247].map(short);
        assert_eq!(
            written,
            ["0", "53.51", "0.01235", "1234", "123457", "-9.425"]
        );
    }
}
