//! Parquet files that pandas and pyarrow wrote (`data/parquet.py`), beside the CSV file that pandas wrote of the same table.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use fednode_data::source::text_of;
use fednode_data::{Columns, DataSource, Pixels, Samples, Source};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

fn opened(path: &Path, columns: Columns) -> Result<Box<dyn Source>, String> {
    let source: DataSource = format!("csv:{}", path.display()).parse().unwrap();
    let source = source.with_columns(columns).open();
    source.map_err(|error| error.to_string())
}

/// Returns all rows of a table as its own survey proposes to read them.
fn rows(path: &Path) -> Samples {
    let survey = opened(path, Columns::All).unwrap().survey().unwrap();
    let columns = survey.unwrap().proposals().into_iter();
    let columns = columns.filter_map(|proposal| proposal.column.ok());
    let source = opened(path, Columns::Described(columns.collect())).unwrap();
    let pool = source.pool().unwrap();
    let all: Vec<u32> = (0..pool.labels.len() as u32).collect();
    source.read(&pool, &all).unwrap()
}

#[test]
fn a_table_is_the_same_in_each_compression_and_as_csv() {
    let bits = |samples: &Samples| match &samples.pixels {
        // Gaps are NaN, which equals nothing.
        Pixels::Floats(values) => values.iter().map(|value| value.to_bits()).collect(),
        _ => Vec::new(),
    };
    let expected = rows(&data("clinic.csv"));
    assert_eq!(expected.len(), 12);
    assert!(bits(&expected).contains(&f32::NAN.to_bits()));
    for codec in ["none", "snappy", "zstd", "gzip", "lz4"] {
        let table = rows(&data(&format!("clinic-{codec}.parquet")));
        assert_eq!(bits(&table), bits(&expected), "{codec}");
        assert_eq!(table.shape, expected.shape);
        assert_eq!(
            (&table.labels, &table.class_names),
            (&expected.labels, &expected.class_names)
        );
    }
}

/// The text is that of pandas, but for the names of truth values.
#[test]
fn cells_are_written_as_a_spreadsheet_shows_them() {
    let bytes = std::fs::read(data("clinic-snappy.parquet")).unwrap();
    let text = String::from_utf8(text_of(&bytes).unwrap().into_owned()).unwrap();
    let pandas = std::fs::read_to_string(data("clinic.csv")).unwrap();
    let pandas = pandas.replace("True", "true").replace("False", "false");
    let whole = |text: &str| text.replace(".00,", ",").replace(".50,", ".5,");
    assert_eq!(whole(&text), whole(&pandas));
    assert!(matches!(
        text_of(b"a,b\n1,2\n").unwrap(),
        std::borrow::Cow::Borrowed(_)
    ));
}

#[test]
fn what_is_no_table_is_refused_with_the_name_of_the_column() {
    let error = opened(&data("lists.parquet"), Columns::All)
        .map(drop)
        .unwrap_err();
    assert!(
        error.contains("lists.parquet` has lists in column `values`")
            && error.contains("leave that column out"),
        "{error}"
    );
}

/// A file that is cut anywhere, and one with a wrong byte anywhere, gives rows or one line; it never ends the program.
#[test]
fn a_damaged_file_is_refused_in_one_line() {
    let whole = std::fs::read(data("clinic-snappy.parquet")).unwrap();
    for length in (4..whole.len()).step_by(7) {
        let error = text_of(&whole[..length]).unwrap_err().to_string();
        assert!(
            error.starts_with("is no Parquet file") && !error.contains('\n'),
            "{error}"
        );
    }
    std::panic::set_hook(Box::new(|_| {}));
    let mut refused = 0;
    for at in 4..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x80;
        refused +=
            usize::from(text_of(&damaged).is_err_and(|error| !error.to_string().contains('\n')));
    }
    assert!(refused > 1000, "{refused} of {}", whole.len());
}
