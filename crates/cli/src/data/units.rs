//! Columns whose values are far from those that a federation expects, as if they were measured in another unit.

use fednode_core::FederationSpec;
use fednode_core::spec::{ColumnKind, TableColumn};
use fednode_data::DataSource;
use fednode_runtime::exit::ExitCode;

use crate::failure::OrFail;

/// Returns what is odd about a column of numbers beside the federation's: values that are all outside its range, or some that are
/// farther outside than it is wide.
pub fn oddity(own: &TableColumn, wanted: &TableColumn) -> Option<String> {
    let are_numbers = [own, wanted].map(|column| column.kind == ColumnKind::Number) == [true; 2];
    let ([low, high], [from, to]) = (own.range, wanted.range);
    let width = to - from;
    let are_outside = low > to || high < from;
    let some_are_far = low < from - width || high > to + width;
    let what = format!(
        "holds {low} to {high}, where the federation has {from} to {to}: look whether the unit is the same, and whether a number \
         stands for a gap"
    );
    (are_numbers && width > 0.0 && (are_outside || some_are_far)).then_some(what)
}

/// Returns the columns of a table of which something is odd, and what.
///
/// # Errors
/// Names the file that is missing or damaged.
pub fn oddities(
    source: &DataSource,
    spec: &FederationSpec,
) -> anyhow::Result<Vec<(String, String)>> {
    if spec.data.columns.is_empty() {
        return Ok(Vec::new());
    }
    let source = source.clone().for_federation(spec);
    let opened = source.open().or_fail(ExitCode::Data)?;
    let survey = opened.survey().or_fail(ExitCode::Data)?;
    let own = survey.map(|survey| survey.columns()).unwrap_or_default();
    let odd = spec.data.columns.iter().filter_map(|wanted| {
        let is_it = |own: &&TableColumn| own.name.eq_ignore_ascii_case(&wanted.name);
        let what = oddity(own.iter().find(is_it)?, wanted)?;
        Some((wanted.name.clone(), what))
    });
    Ok(odd.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(low: f64, high: f64) -> TableColumn {
        TableColumn {
            name: "height".into(),
            range: [low, high],
            ..TableColumn::default()
        }
    }

    #[test]
    fn another_unit_and_a_number_for_a_gap_are_odd_and_a_few_more_years_are_not() {
        let metres = oddity(&number(1.5, 2.0), &number(150.0, 205.0)).unwrap();
        assert!(
            metres.starts_with("holds 1.5 to 2, where the federation has 150 to 205"),
            "{metres}"
        );
        let of_a_gap = oddity(&number(-999.0, 190.0), &number(150.0, 205.0));
        assert!(of_a_gap.is_some());
        assert_eq!(oddity(&number(18.0, 101.0), &number(30.0, 77.0)), None);
        let word = TableColumn {
            kind: ColumnKind::Category,
            ..number(0.0, 1.0)
        };
        assert_eq!(oddity(&number(5.0, 6.0), &word), None);
    }
}
