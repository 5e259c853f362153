//! What commands need of data: the facts that shape a spec, the division of all, one node's shard.
//!
//! Readers and divisions are `fednode-data`; here the spec's words become its types and its errors get exit codes.

mod division;
mod mine;
mod shard_facts;
mod sources;
pub mod units;

use fednode_core::FederationSpec;
use fednode_core::spec::{Target, width_of};
use fednode_data::{Columns, DataSource, Facts, Samples, source};
use fednode_runtime::exit::ExitCode;
use fednode_runtime::streams::say;

use crate::failure::{OrFail, fail};
use crate::federation::DataFacts;

pub use division::{
    Division, Yardstick, check_hash, divided, is_of_lists, partition_help, partition_text,
    shard_params,
};
pub use mine::Mine;
pub use shard_facts::ShardFacts;
pub use sources::Sources;

/// The partition with which each node brings its own data.
pub const OWN: &str = "own";

/// Tells whether a partition is that with which each node brings its own data.
pub fn is_own(partition: &str) -> bool {
    let rest = partition.strip_prefix(OWN);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}

/// Most classes, and most columns, whose names a spec holds, which people read.
const MOST_NAMES: usize = 1000;

/// Returns the help of a flag that names a data source.
pub fn help() -> String {
    let forms: Vec<String> = source::KINDS.iter().map(source::Kind::form).collect();
    format!("Where the data comes from: {}", forms.join(", "))
}

/// Reads the name of a source.
///
/// # Errors
/// Says what is possible.
pub fn source(text: &str) -> anyhow::Result<DataSource> {
    text.parse().or_fail(ExitCode::Data)
}

/// Returns what a source says of itself.
///
/// # Errors
/// Names the file that is missing or damaged.
pub fn facts(source: &DataSource) -> anyhow::Result<DataFacts> {
    let opened = source.open().or_fail(ExitCode::Data)?;
    let pool = opened.pool().or_fail(ExitCode::Data)?;
    let survey = opened.survey().or_fail(ExitCode::Data)?;
    let described = survey.map(|survey| survey.columns()).unwrap_or_default();
    let (mut is_table, mut columns) = (false, Vec::new());
    let (mut vocabulary, mut vocabulary_hash) = (0, None);
    match opened.describe().or_fail(ExitCode::Data)? {
        Facts::Images => {}
        Facts::Table { columns: named } => {
            is_table = true;
            columns = named.unwrap_or_default();
        }
        Facts::Text {
            vocabulary: words, ..
        } => (vocabulary, vocabulary_hash) = (words.len(), Some(words.hash().to_owned())),
    }
    let target = pool.targets.as_deref().map(|numbers| Target {
        name: pool.class_names[0].clone(),
        range: range_of(numbers),
    });
    if columns.len() > MOST_NAMES || !described.is_empty() {
        columns.clear();
    }
    let input = if described.is_empty() {
        pool.shape
    } else {
        [1, 1, width_of(&described)]
    };
    Ok(DataFacts {
        name: source.kind().name.to_owned(),
        input,
        classes: pool.class_names.len(),
        class_names: if pool.class_names.len() <= MOST_NAMES {
            pool.class_names.to_vec()
        } else {
            Vec::new()
        },
        is_table,
        is_featured: false,
        target,
        columns,
        described,
        samples: pool.labels.len(),
        vocabulary,
        vocabulary_hash,
    })
}

/// Returns a range whose ends went out to one digit of its width: a spec is for all to see.
pub(crate) fn rounded([low, high]: [f64; 2]) -> [f64; 2] {
    let step = 10f64.powf((high - low).log10().floor());
    let ends = [(low / step).floor() * step, (high / step).ceil() * step];
    // Of numbers at the edge of what a float holds there are no rounder ones, and one value has no width.
    if low < high && ends.iter().all(|end| end.is_finite()) {
        ends
    } else {
        [low, high]
    }
}

/// Returns a range whose ends went out to round numbers, a tenth to a quarter of its width apart: a spec is for all to see. Nothing else
/// tells what the numbers are like, so it is no coarser.
pub(crate) fn coarse([low, high]: [f64; 2]) -> [f64; 2] {
    let least = (high - low) / 10.0;
    let power = 10f64.powf(least.log10().ceil());
    let steps = [0.2, 0.5, 1.0].map(|part| part * power);
    let step = steps.into_iter().find(|step| *step >= least);
    let step = step.unwrap_or(power);
    // Ten digits: 3 · 0.2 is not quite 0.6.
    let plain = |end: f64| format!("{end:.10e}").parse().unwrap_or(end);
    let ends = [(low / step).floor() * step, (high / step).ceil() * step];
    if low < high && ends.iter().all(|end| end.is_finite()) {
        ends.map(plain)
    } else {
        [low, high]
    }
}

/// Returns about the smallest and the largest of numbers; the same one twice if they do not differ.
fn range_of(numbers: &[f32]) -> [f64; 2] {
    let ends = numbers.iter().copied().map(f64::from);
    let ends = ends.fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], number| {
        [low.min(number), high.max(number)]
    });
    rounded(ends)
}

/// Images that are looked at before anything is trained.
const SOME: usize = 100;

/// Returns what a source says of itself once some of its samples were read: of a table or of texts all, of images the
/// first. A table is read by the columns of a federation if there is one, else by those that are proposed for it.
///
/// # Errors
/// As [`facts`].
pub fn look_at(source: DataSource, spec: Option<&FederationSpec>) -> anyhow::Result<DataFacts> {
    let source = match spec {
        Some(spec) => source.for_federation(spec),
        None => source,
    };
    let facts = facts(&source)?;
    if let (None, Some(target)) = (spec, &facts.target)
        && target.range[0] >= target.range[1]
    {
        let text = format!(
            "all rows of `{source}` have the same `{}`, so there is nothing to predict: name another column with `,target=COLUMN`",
            target.name
        );
        return Err(fail(ExitCode::Data, text));
    }
    if let (None, Some(target)) = (spec, &facts.target)
        && let Some(fault) = target.fault()
    {
        let text = format!(
            "`{}` of `{source}` cannot be predicted: {fault}",
            target.name
        );
        return Err(fail(ExitCode::Data, text));
    }
    let source = match (spec, facts.described.is_empty()) {
        (None, false) => source.with_columns(Columns::Described(facts.described.clone())),
        _ => source,
    };
    let opened = source.open().or_fail(ExitCode::Data)?;
    let pool = opened.pool().or_fail(ExitCode::Data)?;
    let count = match opened.describe().or_fail(ExitCode::Data)? {
        Facts::Images => pool.labels.len().min(SOME),
        Facts::Table { .. } | Facts::Text { .. } => pool.labels.len(),
    };
    opened
        .read(&pool, &(0..count as u32).collect::<Vec<_>>())
        .or_fail(ExitCode::Data)?;
    Ok(facts)
}

/// Rows of a table that are looked at for their scale.
const ROWS: u32 = 1000;
/// Largest amount of a value that can be learned from as it is.
const LARGEST: f32 = 50.0;

/// Says aloud if the columns of a table are so large that training would blow up, where values are taken as they are, or if
/// nothing tells that they are those of the federation.
///
/// # Errors
/// As [`facts`].
pub fn warn_of_table(source: &DataSource, spec: Option<&FederationSpec>) -> anyhow::Result<()> {
    let source = match spec {
        Some(spec) => source.clone().for_federation(spec),
        None => source.clone(),
    };
    if let Some(spec) = spec {
        for (column, what) in units::oddities(&source, spec)? {
            say(format_args!("warning: column `{column}` {what}"));
        }
    }
    let opened = source.open().or_fail(ExitCode::Data)?;
    if spec.is_none()
        && let Some(label) = opened.label().or_fail(ExitCode::Data)?
        && label.is_guessed
        // A column without a name is a number, and where there are no names the last one is the usual place.
        && label.name.parse::<usize>().is_err()
    {
        let name = label.name;
        say(format_args!(
            "note: the last column, `{name}`, is taken for the label: name another one with `,label=COLUMN`"
        ));
    }
    let is_described = match spec {
        Some(spec) => !spec.data.columns.is_empty(),
        None => opened
            .survey()
            .or_fail(ExitCode::Data)?
            .is_some_and(|survey| !survey.columns().is_empty()),
    };
    if is_described {
        return Ok(());
    }
    let columns = spec.map_or(&[][..], |spec| &spec.fingerprints.columns);
    let Facts::Table { columns: named } = opened.describe().or_fail(ExitCode::Data)? else {
        return Ok(());
    };
    if let (None, [first, ..]) = (named, columns) {
        say(format_args!(
            "warning: the table has no header, so its columns are taken in their order: it must be that of `fingerprints.columns` in \
             federation.toml, which begins with `{first}`"
        ));
    }
    let pool = opened.pool().or_fail(ExitCode::Data)?;
    let some: Vec<u32> = (0..ROWS.min(pool.labels.len() as u32)).collect();
    let mut values = Vec::new();
    opened
        .read(&pool, &some)
        .or_fail(ExitCode::Data)?
        .write_batch(&some, &mut values);
    let largest = values
        .iter()
        .fold(0_f32, |largest, value| largest.max(value.abs()));
    if largest > LARGEST {
        say(format_args!(
            "warning: the table has values up to {largest}, and they are taken as they are: scale each column beforehand, all \
             members alike (mean 0, deviation 1 is best), or training may blow up"
        ));
    }
    Ok(())
}

/// Reads all samples of a source, of a table the columns of a federation, of images what its extractor makes of them.
///
/// # Errors
/// As [`facts`].
pub fn everything(source: DataSource, spec: &FederationSpec) -> anyhow::Result<Samples> {
    let source = source.for_federation(spec);
    let opened = source.open().or_fail(ExitCode::Data)?;
    let pool = opened.pool().or_fail(ExitCode::Data)?;
    let all: Vec<u32> = (0..pool.labels.len() as u32).collect();
    let samples = opened.read(&pool, &all).or_fail(ExitCode::Data)?;
    match source.extractor() {
        Some(extractor) => samples
            .extracted(extractor.as_ref())
            .or_fail(ExitCode::Data),
        None => Ok(samples),
    }
}

/// Refuses a federation whose nodes bring their own data where there is one data set for all.
///
/// # Errors
/// Says so, and what to do.
pub fn refuse_own(spec: &FederationSpec, remedy: &str) -> anyhow::Result<()> {
    if is_own(&spec.data.partition) {
        let text = format!(
            "this takes one data set that is divided, and with partition `{OWN}` nodes bring their own: {remedy}"
        );
        Err(fail(ExitCode::Configuration, text))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_for_all_to_see_end_at_round_numbers_close_by() {
        let cases = [
            ([18.0, 95.0], [10.0, 100.0]),
            ([-0.9, 11.5], [-2.0, 12.0]),
            ([70.2, 190.4], [60.0, 200.0]),
            ([0.61, 0.89], [0.6, 0.9]),
            ([5.0, 5.0], [5.0, 5.0]),
        ];
        for (range, expected) in cases {
            assert_eq!(coarse(range), expected, "{range:?}");
        }
    }

    #[test]
    fn a_number_that_never_differs_is_nothing_to_predict() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("t.csv");
        let looked = |rows: &str| {
            std::fs::write(&file, format!("a,y\n{rows}")).unwrap();
            let source: DataSource = format!("csv:{},target=y", file.display()).parse().unwrap();
            look_at(source, None)
        };
        looked("1,5\n2,6\n").unwrap();
        let refused = looked("1,5\n2,5\n").unwrap_err().to_string();
        assert!(refused.contains("have the same `y`"), "{refused}");
    }
}
