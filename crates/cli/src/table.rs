//! Plain text tables for people: columns as wide as needed, numbers to the right.

use fednode_measure::Measure;

/// One column: its heading and on which side its values stand.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    heading: &'static str,
    side: Side,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

/// A column of words.
pub const fn text(heading: &'static str) -> Column {
    Column {
        heading,
        side: Side::Left,
    }
}

/// A column of numbers.
pub const fn number(heading: &'static str) -> Column {
    Column {
        heading,
        side: Side::Right,
    }
}

/// Writes a table: headings, a rule, the rows. No trailing blanks.
pub fn render(columns: &[Column], rows: &[Vec<String>]) -> String {
    let width = |index: usize| {
        let cells = rows
            .iter()
            .filter_map(|row| row.get(index))
            .map(|cell| cell.chars().count());
        cells
            .chain([columns[index].heading.chars().count()])
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let headings: Vec<String> = columns
        .iter()
        .map(|column| column.heading.to_owned())
        .collect();
    let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
    [headings, rule]
        .iter()
        .chain(rows)
        .map(|row| line(columns, &widths, row))
        .collect()
}

fn line(columns: &[Column], widths: &[usize], row: &[String]) -> String {
    let cells = columns
        .iter()
        .zip(widths)
        .enumerate()
        .map(|(index, (column, width))| {
            let cell = row.get(index).map_or("", String::as_str);
            match column.side {
                Side::Left => format!("{cell:<width$}"),
                Side::Right => format!("{cell:>width$}"),
            }
        });
    let line = cells.collect::<Vec<_>>().join("  ");
    format!("{}\n", line.trim_end())
}

/// Writes a number with four digits, or all those before the point.
pub fn significant(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
    }
    let before_point = value.abs().log10().floor() as i32 + 1;
    format!("{value:.*}", (4 - before_point).clamp(0, 12) as usize)
}

/// Writes a share of 1 as per cent.
pub fn percent(share: f64) -> String {
    if share.is_finite() {
        format!("{:.1} %", 100.0 * share)
    } else {
        "-".into()
    }
}

/// Writes a value of a measure: a share in percent, another one with four digits.
pub fn measured(measure: Measure, value: f64) -> String {
    if measure.is_share() {
        percent(value)
    } else {
        significant(value)
    }
}

/// Writes a value of a measure with the measure's name, where it is not accuracy.
pub fn named(measure: Measure, value: f64) -> String {
    let value = measured(measure, value);
    if measure == Measure::Accuracy {
        return value;
    }
    format!("{value} ({})", measure.label())
}

/// Returns what people call the scores of rounds, and writes one. `name` is what the spec calls them.
pub fn score(name: &str, value: Option<f64>) -> (&str, String) {
    let measure: Option<Measure> = name.parse().ok();
    let label = match measure {
        Some(measure) => measure.label(),
        None => name,
    };
    // A name that is no measure's is that of R², which is a share.
    let shown = value.map(|value| measure.map_or_else(|| percent(value), |it| measured(it, value)));
    (label, shown.unwrap_or_else(|| "-".to_owned()))
}

/// Writes a number of bytes with a unit that keeps it short.
pub fn bytes(count: u64) -> String {
    if count < 1000 {
        format!("{count} B")
    } else {
        scaled(count, ["kB", "MB", "GB", "TB"])
    }
}

/// Writes a large number of anything with a prefix that keeps it short.
pub fn large(count: u64) -> String {
    if count < 1000 {
        count.to_string()
    } else {
        scaled(count, ["k", "M", "G", "T"])
    }
}

/// Writes a number in thousands, millions and so on.
fn scaled(count: u64, units: [&str; 4]) -> String {
    let mut value = count as f64 / 1000.0;
    let mut unit = 0;
    while value >= 999.95 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{value:.1} {}", units[unit])
}

/// Writes seconds as a person would say them.
pub fn duration(seconds: f64) -> String {
    let whole = seconds.max(0.0).round() as u64;
    match whole {
        0..=9 => format!("{seconds:.1} s"),
        10..=119 => format!("{whole} s"),
        120..=7199 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = vec![
            vec!["a".into(), "1".into()],
            vec!["longer é".into(), "12345".into()],
        ];
        let expected = "\
node       bytes
--------  ------
a              1
longer é   12345
";
        // The heading `bytes` is narrower than no cell but the rule is as wide as the widest.
        assert_eq!(render(&[text("node"), number(" bytes")], &rows), expected);
    }

    #[test]
    fn scores_are_shown_as_their_measure_is() {
        let shown = |name, value| {
            let (label, value) = score(name, value);
            format!("{label} {value}")
        };
        assert_eq!(shown("accuracy", Some(0.5)), "accuracy 50.0 %");
        assert_eq!(shown("R²", Some(-0.25)), "R² -25.0 %");
        assert_eq!(shown("auroc", Some(0.875)), "AUROC 87.5 %");
        assert_eq!(shown("mae", Some(12.3456)), "MAE 12.35");
        assert_eq!(shown("auroc", None), "AUROC -");
    }

    #[test]
    fn units_keep_numbers_short() {
        assert_eq!(
            [0, 999, 1000, 999_949, 999_950].map(bytes),
            ["0 B", "999 B", "1.0 kB", "999.9 kB", "1.0 MB"]
        );
        assert_eq!(bytes(18_750_000_000_000), "18.8 TB");
        assert_eq!(percent(0.876_54), "87.7 %");
        assert_eq!(percent(f64::NAN), "-");
        assert_eq!(
            [1.25, 59.6, 185.0, 7260.0].map(duration),
            ["1.2 s", "60 s", "3 min 5 s", "2 h 1 min"]
        );
    }
}
