//! Every reader on small files that the tests write, whole and damaged.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Write;
use std::path::Path;

use fednode_core::FederationSpec;
use fednode_data::{Columns, DataSource, Facts, Pixels, Samples, ShardParams, Source, load_shard};
use flate2::{Compression, write::GzEncoder};
use tempfile::{TempDir, tempdir};

fn be(n: u32) -> [u8; 4] {
    n.to_be_bytes()
}

fn images(n: u32, height: u32, width: u32, pixels: &[u8]) -> Vec<u8> {
    [
        be(0x803).as_slice(),
        &be(n),
        &be(height),
        &be(width),
        pixels,
    ]
    .concat()
}

fn labels(labels: &[u8]) -> Vec<u8> {
    [be(0x801).as_slice(), &be(labels.len() as u32), labels].concat()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn put(folder: &TempDir, name: &str, bytes: &[u8]) {
    fs::write(folder.path().join(name), bytes).unwrap();
}

fn source(kind: &str, path: &Path, options: &str) -> String {
    format!("{kind}:{}{options}", path.display())
}

fn read(text: &str, wanted: &[u32]) -> Result<Samples, String> {
    let source: DataSource = text
        .parse()
        .map_err(|error: fednode_data::DataError| error.to_string())?;
    let source = source.open().map_err(|error| error.to_string())?;
    let pool = source.pool().map_err(|error| error.to_string())?;
    source
        .read(&pool, wanted)
        .map_err(|error| error.to_string())
}

fn bytes(samples: &Samples) -> &[u8] {
    match &samples.pixels {
        Pixels::Bytes { values, .. } => values,
        Pixels::Floats(_) | Pixels::Tokens { .. } => panic!("images are bytes"),
    }
}

/// Returns the names of a table's columns.
fn columns(opened: &dyn Source) -> Option<Vec<String>> {
    match opened.describe().unwrap() {
        Facts::Table { columns } => columns,
        other => panic!("a table is expected, not {other:?}"),
    }
}

/// Three training images and two test images of 1×2, pixels counting up.
fn tiny_idx() -> TempDir {
    let folder = tempdir().unwrap();
    put(
        &folder,
        "train-images-idx3-ubyte",
        &images(3, 1, 2, &[0, 1, 2, 3, 4, 5]),
    );
    put(&folder, "train-labels-idx1-ubyte", &labels(&[0, 1, 2]));
    put(
        &folder,
        "t10k-images-idx3-ubyte.gz",
        &gzip(&images(2, 1, 2, &[6, 7, 8, 9])),
    );
    put(
        &folder,
        "t10k-labels-idx1-ubyte.gz",
        &gzip(&labels(&[1, 0])),
    );
    folder
}

fn idx_error(damage: impl FnOnce(&TempDir)) -> String {
    let folder = tiny_idx();
    damage(&folder);
    let text = read(&source("idx", folder.path(), ""), &[0, 1, 2, 3, 4]).unwrap_err();
    assert_eq!(text.lines().count(), 1, "{text}");
    text.replace(folder.path().to_str().unwrap(), "DIR")
}

#[test]
fn idx_counts_training_images_first_and_reads_in_the_order_wanted() {
    let folder = tiny_idx();
    let samples = read(&source("idx", folder.path(), ""), &[4, 0, 3, 0]).unwrap();
    assert_eq!((samples.shape, samples.classes), ([1, 1, 2], 3));
    assert_eq!(samples.labels, [0, 0, 1, 0]);
    assert_eq!(bytes(&samples), [8, 9, 0, 1, 6, 7, 0, 1]);
}

#[test]
fn idx_names_file_and_damage() {
    let truncated = idx_error(|dir| put(dir, "train-images-idx3-ubyte", &images(3, 1, 2, &[0; 5])));
    assert_eq!(
        truncated,
        "`DIR/train-images-idx3-ubyte` is truncated in record 2 of 3"
    );
    let header = idx_error(|dir| put(dir, "train-images-idx3-ubyte", &be(0x803)));
    assert_eq!(header, "`DIR/train-images-idx3-ubyte` is truncated");
    let longer = idx_error(|dir| put(dir, "train-images-idx3-ubyte", &images(3, 1, 2, &[0; 7])));
    assert_eq!(
        longer,
        "`DIR/train-images-idx3-ubyte` goes on after its 3 records"
    );
    let swapped = idx_error(|dir| put(dir, "train-images-idx3-ubyte", &labels(&[0, 1, 2])));
    assert!(
        swapped.contains("is no IDX image file: it starts with 0x00000801"),
        "{swapped}"
    );
    let fewer = idx_error(|dir| put(dir, "train-labels-idx1-ubyte", &labels(&[0, 1])));
    assert_eq!(
        fewer,
        "`DIR/train-images-idx3-ubyte` holds 3 images, but there are 2 labels"
    );
    let resized = idx_error(|dir| {
        put(
            dir,
            "t10k-images-idx3-ubyte.gz",
            &gzip(&images(2, 2, 1, &[0; 4])),
        )
    });
    assert_eq!(
        resized,
        "`DIR/t10k-images-idx3-ubyte.gz` holds images of another size than the training file"
    );
}

#[test]
fn idx_notices_damaged_gzip() {
    let whole = gzip(&images(2, 1, 2, &[6, 7, 8, 9]));
    let cut = idx_error(|dir| put(dir, "t10k-images-idx3-ubyte.gz", &whole[..whole.len() - 9]));
    assert!(
        cut.starts_with("`DIR/t10k-images-idx3-ubyte.gz` is truncated"),
        "{cut}"
    );
    let mut flipped = whole.clone();
    let checksum = flipped.len() - 8;
    flipped[checksum] ^= 1;
    let flipped = idx_error(|dir| put(dir, "t10k-images-idx3-ubyte.gz", &flipped));
    assert!(
        flipped.starts_with("cannot read `DIR/t10k-images-idx3-ubyte.gz`: "),
        "{flipped}"
    );
    let garbage = idx_error(|dir| {
        put(
            dir,
            "t10k-images-idx3-ubyte.gz",
            &[whole.as_slice(), b"garbage"].concat(),
        )
    });
    assert!(
        garbage.contains("DIR/t10k-images-idx3-ubyte.gz"),
        "{garbage}"
    );
}

#[test]
fn idx_allocates_nothing_for_a_false_header() {
    let huge = [be(0x803), be(1 << 30), be(4096), be(4096)].concat();
    let plain = idx_error(|dir| put(dir, "train-images-idx3-ubyte", &huge));
    assert!(
        plain.contains("is truncated: it declares 1073741824 records of 16777216 bytes"),
        "{plain}"
    );
    let packed = idx_error(|dir| put(dir, "t10k-images-idx3-ubyte.gz", &gzip(&huge)));
    assert!(packed.contains("is truncated: it declares"), "{packed}");
    let wide = [be(0x803), be(1), be(u32::MAX), be(u32::MAX)].concat();
    assert!(idx_error(|dir| put(dir, "train-images-idx3-ubyte", &wide)).contains("out of range"));
    let labels = [be(0x801), be(u32::MAX)].concat();
    assert!(idx_error(|dir| put(dir, "train-labels-idx1-ubyte", &labels)).contains("out of range"));
}

#[test]
fn mnist_has_ten_classes_and_needs_all_four_files() {
    let folder = tiny_idx();
    let text = source("mnist", folder.path(), "");
    assert_eq!(read(&text, &[0]).unwrap().classes, 10);
    put(&folder, "train-labels-idx1-ubyte", &labels(&[0, 10, 2]));
    let error = read(&text, &[0]).unwrap_err();
    assert!(
        error.ends_with("train-labels-idx1-ubyte` holds label 10 at 1, beyond its 10 classes"),
        "{error}"
    );
    fs::remove_file(folder.path().join("t10k-labels-idx1-ubyte.gz")).unwrap();
    let error = read(&text, &[0]).unwrap_err();
    assert!(
        error.contains("lacks `t10k-images-idx3-ubyte` or `t10k-labels-idx1-ubyte`"),
        "{error}"
    );
}

#[test]
fn emnist_is_transposed_and_letters_count_from_one() {
    let folder = tempdir().unwrap();
    for part in ["train", "test"] {
        put(
            &folder,
            &format!("emnist-letters-{part}-images-idx3-ubyte"),
            &images(1, 2, 2, &[1, 2, 3, 4]),
        );
        put(
            &folder,
            &format!("emnist-letters-{part}-labels-idx1-ubyte"),
            &labels(&[26]),
        );
    }
    let samples = read(&source("idx", folder.path(), ""), &[0, 1]).unwrap();
    assert_eq!(
        (samples.classes, samples.labels.as_slice()),
        (26, [25, 25].as_slice())
    );
    assert_eq!(bytes(&samples)[..4], [1, 3, 2, 4]);

    put(
        &folder,
        "emnist-digits-train-images-idx3-ubyte",
        &images(1, 2, 2, &[1, 2, 3, 4]),
    );
    put(
        &folder,
        "emnist-digits-train-labels-idx1-ubyte",
        &labels(&[3]),
    );
    let error = read(&source("idx", folder.path(), ""), &[0]).unwrap_err();
    assert!(
        error.ends_with("holds several data sets: choose one with `,split=digits|letters`"),
        "{error}"
    );
    assert_eq!(
        read(&source("idx", folder.path(), ",split=digits"), &[0])
            .unwrap()
            .labels,
        [3]
    );
    put(
        &folder,
        "emnist-letters-train-labels-idx1-ubyte",
        &labels(&[0]),
    );
    assert!(
        read(&source("idx", folder.path(), ",split=letters"), &[0])
            .unwrap_err()
            .contains("holds label 0 at 0")
    );
}

/// Writes CIFAR files of one record each; the record's pixels all have the file's number.
fn cifar(folder: &TempDir, names: &[&str], label_bytes: &[u8]) {
    for (number, name) in (0u8..).zip(names) {
        let mut label = label_bytes.to_vec();
        *label.last_mut().unwrap() += number;
        put(folder, name, &[label, vec![number; 3072]].concat());
    }
}

const CIFAR10: [&str; 6] = [
    "data_batch_1.bin",
    "data_batch_2.bin",
    "data_batch_3.bin",
    "data_batch_4.bin",
    "data_batch_5.bin",
    "test_batch.bin",
];

#[test]
fn cifar10_reads_five_batches_and_the_test_batch() {
    let folder = tempdir().unwrap();
    cifar(&folder, &CIFAR10, &[1]);
    let samples = read(&source("cifar10", folder.path(), ""), &[5, 0]).unwrap();
    assert_eq!(
        (samples.shape, samples.labels.as_slice()),
        ([3, 32, 32], [6, 1].as_slice())
    );
    assert_eq!(bytes(&samples)[..3072], [5; 3072]);
    assert_eq!(samples.class_names[6], "frog");
}

#[test]
fn cifar100_uses_the_fine_label_and_finds_the_unpacked_folder() {
    let outer = tempdir().unwrap();
    let inner = outer.path().join("cifar-100-binary");
    fs::create_dir(&inner).unwrap();
    let record = |fine: u8| [vec![7, fine], vec![fine; 3072]].concat();
    fs::write(inner.join("train.bin"), [record(42), record(43)].concat()).unwrap();
    fs::write(inner.join("test.bin"), record(99)).unwrap();
    let samples = read(&source("cifar100", outer.path(), ""), &[2, 1]).unwrap();
    assert_eq!(
        (samples.classes, samples.labels.as_slice()),
        (100, [99, 43].as_slice())
    );
    fs::write(inner.join("test.bin"), record(100)).unwrap();
    assert!(
        read(&source("cifar100", outer.path(), ""), &[0])
            .unwrap_err()
            .contains("holds label 100 at 0")
    );
}

#[test]
fn cifar_names_missing_and_truncated_files() {
    let folder = tempdir().unwrap();
    cifar(&folder, &CIFAR10[..5], &[0]);
    let error = read(&source("cifar10", folder.path(), ""), &[0]).unwrap_err();
    assert!(
        error.starts_with("cannot read `") && error.contains("test_batch.bin"),
        "{error}"
    );
    put(&folder, "test_batch.bin", &[0; 3072]);
    let error = read(&source("cifar10", folder.path(), ""), &[0]).unwrap_err();
    assert!(error.ends_with(
        "test_batch.bin` is truncated or no CIFAR file: 3072 bytes are not whole records of 3073"
    ));
}

#[test]
fn csv_with_header_finds_the_label_column_and_sorts_classes() {
    let folder = tempdir().unwrap();
    put(
        &folder,
        "flowers.csv",
        b"a,label,b\n1,rose,2.5\n3, daisy ,-4\n5,rose,6e1\n",
    );
    let samples = read(
        &source("csv", &folder.path().join("flowers.csv"), ""),
        &[2, 1],
    )
    .unwrap();
    assert_eq!(
        (samples.shape, samples.labels.as_slice()),
        ([1, 1, 2], [1, 0].as_slice())
    );
    assert_eq!(*samples.class_names, ["daisy", "rose"]);
    assert_eq!(samples.pixels, Pixels::Floats(vec![5.0, 60.0, 3.0, -4.0]));
}

/// Opens a table of two classes for a federation with these columns.
fn table(folder: &TempDir, name: &str, text: &str, wanted: &[&str]) -> Box<dyn Source> {
    put(folder, name, text.as_bytes());
    let parsed: DataSource = source("csv", &folder.path().join(name), ",classes=2")
        .parse()
        .unwrap();
    let wanted: Vec<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
    parsed
        .with_columns(if wanted.is_empty() {
            Columns::All
        } else {
            Columns::Named(wanted)
        })
        .open()
        .unwrap()
}

/// Reads the first row of a table, or tells what is wrong.
fn first_row(opened: &dyn Source) -> Result<([usize; 3], Pixels), String> {
    let pool = opened.pool().map_err(|error| error.to_string())?;
    opened
        .read(&pool, &[0])
        .map(|samples| (samples.shape, samples.pixels))
        .map_err(|error| error.to_string())
}

#[test]
fn csv_columns_are_found_by_the_federations_names() {
    let folder = tempdir().unwrap();
    let (hers, his, bare) = (
        "age,bmi,label\n40,21.5,0\n",
        "bmi,ward,label,age\n30.5,7,1,50\n",
        "60,19.5,1\n",
    );
    let names = columns(table(&folder, "hers.csv", hers, &[]).as_ref()).unwrap();
    assert_eq!(names, ["age", "bmi"]);
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let second = table(&folder, "his.csv", his, &names);
    assert_eq!(
        first_row(second.as_ref()),
        Ok(([1, 1, 2], Pixels::Floats(vec![50.0, 30.5])))
    );
    let unnamed = table(&folder, "bare.csv", bare, &names);
    assert_eq!(
        (
            columns(unnamed.as_ref()),
            first_row(unnamed.as_ref()).unwrap().1
        ),
        (None, Pixels::Floats(vec![60.0, 19.5]))
    );
    let third = table(&folder, "case.csv", "Label,BMI,Age\n1,22.5,70\n", &names);
    assert_eq!(
        first_row(third.as_ref()).unwrap().1,
        Pixels::Floats(vec![70.0, 22.5])
    );
}

#[test]
fn csv_columns_that_are_missing_or_in_doubt_are_refused() {
    let folder = tempdir().unwrap();
    let error = |name: &str, text: &str, wanted: &[&str]| {
        first_row(table(&folder, name, text, wanted).as_ref()).unwrap_err()
    };
    let missing = error("hers.csv", "age,bmi,label\n40,21.5,0\n", &["age", "weight"]);
    assert!(
        missing.ends_with("has no column `weight`, one of the columns of the federation's spec"),
        "{missing}"
    );
    // Which column is the label must be clear where more columns are there than are wanted.
    let names = ["age", "bmi"];
    let unclear = error("ward.csv", "age,bmi,outcome,ward\n1,2,0,1\n", &names);
    assert!(
        unclear.contains("outcome") && unclear.contains("`,label=COLUMN`"),
        "{unclear}"
    );
    let none = error("none.csv", "bmi,age\n1,2\n", &names);
    assert!(none.contains("has no label"), "{none}");
    let text = "age,age,label\n1,2,0\n";
    let twice = error("twice.csv", text, &["age"]);
    assert!(twice.contains("has two columns `age`"), "{twice}");
    // What is meant is in doubt, too, where all columns are wanted.
    let twice = error("twice.csv", text, &[]);
    assert!(twice.contains("has two columns `age`"), "{twice}");
    let unnamed = error("unnamed.csv", ",,label\n1,2,0\n", &[]);
    assert!(unnamed.contains("columns without a name"), "{unnamed}");
}

/// R writes `NA` where there is none.
#[test]
fn a_row_without_a_label_is_named_however_that_is_written() {
    let folder = tempdir().unwrap();
    let classes = |name: &str, text: &str| {
        put(&folder, name, text.as_bytes());
        let parsed = source("csv", &folder.path().join(name), "").parse::<DataSource>();
        let opened = parsed.unwrap().open().unwrap();
        opened.pool().map(|pool| pool.class_names.to_vec())
    };
    for gap in ["", "NA", "?", "null"] {
        let text = format!("a,label\n1,no\n2,{gap}\n3,yes\n");
        let refused = classes("gap.csv", &text).unwrap_err().to_string();
        assert!(refused.contains("in line 3"), "{refused}");
    }
    // The credit table of UCI has these two, and pains are `None` or more.
    let found = classes("signs.csv", "a,label\n1,+\n2,-\n").unwrap();
    assert_eq!(found, ["+", "-"]);
    let found = classes("pains.csv", "a,label\n1,None\n2,mild\n").unwrap();
    assert_eq!(found, ["None", "mild"]);
    let file = folder.path().join("texts.csv");
    std::fs::write(&file, "money,stocks fall\n\"\",no label\n").unwrap();
    let texts: DataSource = format!("text:{}", file.display()).parse().unwrap();
    let refused = texts.open().and_then(|opened| opened.pool()).unwrap_err();
    assert!(
        refused.to_string().contains("has no label in line 2"),
        "{refused}"
    );
}

#[test]
fn an_option_that_is_given_twice_is_refused() {
    let refused = "csv:t.csv,label=a,label=b"
        .parse::<DataSource>()
        .unwrap_err();
    assert!(
        refused.to_string().contains("`label` is given twice"),
        "{refused}"
    );
}

#[test]
fn the_only_column_of_a_csv_table_that_is_no_feature_is_the_label() {
    let folder = tempdir().unwrap();
    let text = "outcome,bmi,age\n0,1,2\n1,3,4\n";
    let first = table(&folder, "first.csv", text, &["age", "bmi"]);
    let (pool, samples) = (first.pool().unwrap(), first_row(first.as_ref()).unwrap());
    assert_eq!(&*pool.class_names, ["0", "1"]);
    assert_eq!(samples.1, Pixels::Floats(vec![2.0, 1.0]));
    put(&folder, "said.csv", text.as_bytes());
    let said = source("csv", &folder.path().join("said.csv"), ",label=age");
    let said: DataSource = said.parse().unwrap();
    let wanted = Columns::Named(vec!["age".into(), "bmi".into()]);
    let error = said.with_columns(wanted).open().unwrap().pool();
    let error = error.unwrap_err().to_string();
    assert!(error.contains("takes `age` for the label"), "{error}");
}

#[test]
fn classes_have_the_federations_names_whatever_the_data_call_them() {
    let folder = tempdir().unwrap();
    put(&folder, "t.csv", b"1,2,M\n3,4,B\n");
    let path = folder.path().join("t.csv");
    let samples = read(
        &source("csv", &path, ",classes=B=>benign|M=>malignant"),
        &[0, 1],
    )
    .unwrap();
    assert_eq!(
        (samples.labels.as_slice(), &*samples.class_names),
        (
            [1, 0].as_slice(),
            &["benign".into(), "malignant".into()][..]
        )
    );
    let error = read(&source("csv", &path, ",classes=B=>benign|malignant"), &[0]).unwrap_err();
    assert!(
        error.contains("has label `M` in line 1, which is none of its 2 classes"),
        "{error}"
    );
    for twice in ["B=>x|M=>x", "B=>x|B=>y"] {
        let error = read(&source("csv", &path, &format!(",classes={twice}")), &[0]).unwrap_err();
        assert!(
            error.contains("expected names like `cat|dog`, `0=>cat|1=>dog`"),
            "{error}"
        );
    }
    put(&folder, "t.csv", b"1,2,<=50K\n3,4,>50K\n");
    assert_eq!(
        read(&source("csv", &path, ",classes=<=50K|>50K"), &[0, 1])
            .unwrap()
            .labels,
        [0, 1]
    );
    put(&folder, "t.txt", b"1,good film\n0,bad film\n");
    let text = read(
        &source(
            "text",
            &folder.path().join("t.txt"),
            ",classes=0=>bad|1=>good",
        ),
        &[0, 1],
    )
    .unwrap();
    assert_eq!(
        (text.labels.as_slice(), &*text.class_names),
        ([1, 0].as_slice(), &["bad".into(), "good".into()][..])
    );
}

/// A site that has no sample of some class counts the others as all do; one that calls them otherwise is found out.
#[test]
fn classes_that_a_site_lacks_are_still_the_federations() {
    let folder = tempdir().unwrap();
    put(&folder, "t.csv", b"1,2,sick\n3,4,sick\n");
    let mut spec = FederationSpec::default();
    let parsed: DataSource = source("csv", &folder.path().join("t.csv"), "")
        .parse()
        .unwrap();
    let mut labels = |classes: [&str; 2]| {
        spec.fingerprints.class_names = classes.map(str::to_owned).into();
        let opened = parsed.clone().for_federation(&spec).open().unwrap();
        let pool = opened.pool().unwrap();
        let samples = opened.read(&pool, &[0, 1]).unwrap();
        (samples.labels, pool.class_names.len())
    };
    assert_eq!(labels(["healthy", "sick"]), (vec![1, 1], 2));
    assert_eq!(labels(["0", "1"]), (vec![0, 0], 1), "not its classes");
}

#[test]
fn csv_without_header_uses_the_last_column_or_the_one_named() {
    let folder = tempdir().unwrap();
    put(&folder, "t.csv", b"1,2,0\n3,4,2\n");
    let path = folder.path().join("t.csv");
    let last = read(&source("csv", &path, ""), &[0, 1]).unwrap();
    assert_eq!(
        (last.labels.as_slice(), last.classes),
        ([0, 2].as_slice(), 3)
    );
    let first = read(&source("csv", &path, ",label=0"), &[0, 1]).unwrap();
    assert_eq!(
        (first.labels.as_slice(), &first.pixels),
        ([0, 1].as_slice(), &Pixels::Floats(vec![2.0, 0.0, 4.0, 2.0]))
    );
    let named = read(&source("csv", &path, ",classes=5"), &[1]).unwrap();
    assert_eq!(
        (named.labels.as_slice(), named.classes),
        ([2].as_slice(), 5)
    );
}

#[test]
fn numbered_csv_headers_are_not_mistaken_for_data() {
    let folder = tempdir().unwrap();
    put(&folder, "t.csv", b"0,1,kind\n5,6,x\n7,8,y\n");
    for options in [",label=kind", ""] {
        let samples = read(
            &source("csv", &folder.path().join("t.csv"), options),
            &[0, 1],
        )
        .unwrap();
        assert_eq!(
            samples.pixels,
            Pixels::Floats(vec![5.0, 6.0, 7.0, 8.0]),
            "{options}"
        );
    }
    put(&folder, "t.csv", b"0,1,x\n5,6,x\n7,8,y\n");
    let samples = read(&source("csv", &folder.path().join("t.csv"), ""), &[0, 1, 2]).unwrap();
    assert_eq!(
        samples.labels,
        [0, 0, 1],
        "a class that occurs again is no header"
    );
    put(&folder, "t.csv", b"10,age,dx\n5,6,0\n7,8,1\n");
    let error = read(&source("csv", &folder.path().join("t.csv"), ""), &[0]).unwrap_err();
    assert!(
        error.contains("the label `dx` in its first row") && error.contains("`,label=dx`"),
        "{error}"
    );
}

#[test]
fn csv_names_line_and_cell() {
    let folder = tempdir().unwrap();
    let error = |text: &str, options: &str| {
        put(&folder, "t.csv", text.as_bytes());
        let error = read(
            &source("csv", &folder.path().join("t.csv"), options),
            &[0, 1],
        )
        .unwrap_err();
        error.rsplit_once("t.csv` ").unwrap().1.to_owned()
    };
    assert_eq!(
        error("a,b,label\n1,2,x\n1,oops,y\n", ""),
        "holds `oops`, which is no number, in column `b` of line 3"
    );
    assert_eq!(
        error("a,b,label\n1,2,x\n1,nan,y\n", ""),
        "holds `nan`, which is no number, in column `b` of line 3"
    );
    assert_eq!(
        error("a,b,label\r\n1,2,x\r\n1,oops,y\r\n", ""),
        "holds `oops`, which is no number, in column `b` of line 3"
    );
    assert_eq!(
        error("a,b,label\n1,2,x\n1,2,\n", ""),
        "has no label in line 3: leave that row out"
    );
    assert_eq!(
        error("a;b;label\n1,5;2;x\n1,25;oops;y\n", ""),
        "holds `oops`, which is no number, in column `b` of line 3"
    );
    let fraction = "has the label `0.5`, a number with a fraction: name the column of the classes with `,label=COLUMN`, or that of a number to \
                    predict with `,target=COLUMN`";
    assert_eq!(error("diagnosis,age,bmi\n1,2,3\n0,2,0.5\n", ""), fraction);
    let people: String = (0..30).map(|row| format!("{row},p{row}\n")).collect();
    assert_eq!(
        error(&format!("age,patient\n{people}"), ",label=patient"),
        "has 30 different labels in 30 rows: name the column of the classes with `,label=COLUMN`"
    );
    assert_eq!(
        error("age,sex\n41,m\n42,f\n43,\n", ",target=sex"),
        "holds words in column `sex`, and numbers are predicted: name another one with `,target=COLUMN`"
    );
    assert_eq!(
        error("age,dose\n41,1.5\n42,2\n43,\n", ",target=dose"),
        "has no number to predict in line 4: leave that row out"
    );
    assert_eq!(
        error("1,2,0\n1,0\n", ""),
        "has 2 cells in line 2, but 3 before"
    );
    assert_eq!(error("", ""), "is empty");
    assert_eq!(error("a,b,label\n", ""), "has no rows");
    assert_eq!(
        error("a,part,label\n1,train,0\n2,holdout,1\n", ",split=part"),
        "says `holdout` in line 3 of its column of `split`, which may say `test`, `true`, `yes` or `1`, and `train`, `false`, `no` \
         or `0`"
    );
    assert_eq!(
        error("1,2,0\n", ",label=kind"),
        "has no column `kind` (names from the header, or 0 to 2)"
    );
    assert_eq!(
        error("1,2,x\n1,2,z\n", ",classes=x|y"),
        "has label `z` in line 2, which is none of its 2 classes"
    );
}

fn picture(folder: &Path, name: &str, image: &image::DynamicImage) {
    fs::create_dir_all(folder).unwrap();
    image.save(folder.join(name)).unwrap();
}

fn grey(width: u32, height: u32, value: u8) -> image::DynamicImage {
    image::GrayImage::from_pixel(width, height, image::Luma([value])).into()
}

fn colour(width: u32, height: u32, value: [u8; 3]) -> image::DynamicImage {
    image::RgbImage::from_pixel(width, height, image::Rgb(value)).into()
}

#[test]
fn folder_takes_classes_and_files_in_alphabetical_order() {
    let folder = tempdir().unwrap();
    picture(&folder.path().join("dog"), "a.png", &grey(3, 2, 30));
    picture(&folder.path().join("cat"), "b.png", &grey(3, 2, 20));
    picture(&folder.path().join("cat"), "a.PNG", &grey(3, 2, 10));
    fs::write(folder.path().join("cat/notes.txt"), "no image").unwrap();
    let samples = read(&source("folder", folder.path(), ""), &[2, 0, 1]).unwrap();
    assert_eq!(
        (samples.shape, samples.labels.as_slice()),
        ([1, 2, 3], [1, 0, 0].as_slice())
    );
    assert_eq!(*samples.class_names, ["cat", "dog"]);
    assert_eq!(bytes(&samples), [[30; 6], [10; 6], [20; 6]].concat());
}

#[test]
fn folder_of_test_images_stands_behind_the_others() {
    let folder = tempdir().unwrap();
    let put = |name: &str, value| picture(&folder.path().join(name), "a.png", &grey(1, 1, value));
    put("train/cat", 1);
    put("train/dog", 2);
    put("test/cat", 3);
    put("test/dog", 4);
    let test = folder.path().join("test");
    let train = folder.path().join("train");
    let text = source("folder", &train, &format!(",test={}", test.display()));
    let opened = text.parse::<DataSource>().unwrap().open().unwrap();
    let pool = opened.pool().unwrap();
    assert_eq!(pool.labels, [0, 1, 0, 1]);
    assert_eq!(pool.tests, Some(vec![false, false, true, true]));
    let params = ShardParams {
        nodes: 1,
        seed: 1,
        samples_per_node: 0,
        validation_share: 0.0,
    };
    let own = load_shard(&text.parse().unwrap(), "own", &params, 0).unwrap();
    let bytes = |samples: &Samples| match &samples.pixels {
        Pixels::Bytes { values, .. } => values.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(bytes(&own.split.test), [3, 4]);
    put("test/cow", 5);
    let error = text.parse::<DataSource>().unwrap().open().unwrap_err();
    assert!(
        error.to_string().contains("is none of the classes"),
        "{error}"
    );
}

#[test]
fn folder_stores_colours_channel_by_channel_and_reads_jpeg() {
    let folder = tempdir().unwrap();
    picture(&folder.path().join("a"), "1.png", &colour(2, 1, [1, 2, 3]));
    picture(
        &folder.path().join("b"),
        "1.jpg",
        &colour(2, 1, [200, 200, 200]),
    );
    let samples = read(&source("folder", folder.path(), ""), &[0, 1]).unwrap();
    assert_eq!(
        (samples.shape, &bytes(&samples)[..6]),
        ([3, 1, 2], [1, 1, 2, 2, 3, 3].as_slice())
    );
    assert!(
        bytes(&samples)[6..]
            .iter()
            .all(|byte| byte.abs_diff(200) < 4)
    );
}

#[test]
fn folder_refuses_odd_sizes_and_channels_and_offers_the_option() {
    let folder = tempdir().unwrap();
    picture(&folder.path().join("a"), "1.png", &grey(4, 4, 100));
    picture(
        &folder.path().join("b"),
        "1.png",
        &colour(8, 8, [100, 100, 100]),
    );
    let error =
        |options: &str| read(&source("folder", folder.path(), options), &[0, 1]).unwrap_err();
    assert!(
        error("")
            .ends_with("b/1.png` has 3 channels, but the first image has 1: add `,channels=1`")
    );
    let size = error(",channels=1");
    assert!(
        size.ends_with("b/1.png` is 8x8, but the first image is 4x4: add `,resize=4x4`"),
        "{size}"
    );
    let samples = read(
        &source("folder", folder.path(), ",channels=1,resize=2x2"),
        &[0, 1],
    )
    .unwrap();
    assert_eq!(
        (samples.shape, bytes(&samples)),
        ([1, 2, 2], [100; 8].as_slice())
    );
}

#[test]
fn folder_names_damaged_images_and_unknown_classes() {
    let folder = tempdir().unwrap();
    let error =
        |options: &str| read(&source("folder", folder.path(), options), &[0, 1]).unwrap_err();
    assert!(error("").ends_with("holds no sub-folders with PNG or JPEG files"));
    picture(&folder.path().join("a"), "1.png", &grey(4, 4, 100));
    picture(&folder.path().join("b"), "1.png", &grey(4, 4, 100));
    assert!(error(",classes=a|c").ends_with("b` is none of the classes"));
    let whole = fs::read(folder.path().join("b/1.png")).unwrap();
    fs::write(folder.path().join("b/1.png"), &whole[..40]).unwrap();
    let text = error("");
    assert!(
        text.contains("b/1.png`") && text.lines().count() == 1,
        "{text}"
    );
    assert!(
        read("folder:/nowhere", &[0])
            .unwrap_err()
            .starts_with("cannot read `/nowhere`")
    );
}

/// A picture whose header says that it is of this size. Nothing of it is there.
fn header_of(side: u32) -> Vec<u8> {
    let mut header = b"IHDR".to_vec();
    header.extend([side.to_be_bytes(), side.to_be_bytes()].concat());
    // 8 bits of red, green and blue.
    header.extend([8, 2, 0, 0, 0]);
    let crc = header.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0xedb8_8320 * (crc & 1))
        })
    });
    let length = 13_u32.to_be_bytes();
    let chunk = [&length[..], &header, &(!crc).to_be_bytes()].concat();
    let data = [&[0, 0, 0, 0][..], b"IDAT", &0x35af_061e_u32.to_be_bytes()].concat();
    [b"\x89PNG\r\n\x1a\n".to_vec(), chunk, data].concat()
}

#[test]
fn a_picture_that_would_fill_the_memory_is_refused_by_its_header() {
    let folder = tempdir().unwrap();
    std::fs::create_dir(folder.path().join("a")).unwrap();
    std::fs::write(folder.path().join("a/1.png"), header_of(16_000)).unwrap();
    let error = read(&source("folder", folder.path(), ""), &[0]).unwrap_err();
    assert!(
        error.contains("a/1.png") && error.contains("limit"),
        "{error}"
    );
}

#[test]
fn a_column_of_numbers_is_predicted_where_it_is_named() {
    let folder = tempdir().unwrap();
    put(
        &folder,
        "t.csv",
        b"age,dose,ward\n40,1.5,1\n50,-2,2\n60,3e2,1\n70,0,2\n",
    );
    let path = folder.path().join("t.csv");
    let samples = read(&source("csv", &path, ",target=dose"), &[2, 0]).unwrap();
    assert_eq!(samples.targets.as_deref(), Some(&[300.0, 1.5][..]));
    assert_eq!(*samples.class_names, ["dose".to_owned()]);
    assert_eq!(samples.pixels, Pixels::Floats(vec![60.0, 1.0, 40.0, 1.0]));
    // German files have decimal commas.
    put(&folder, "de.csv", b"a;y\n1,5;2,25\n2,5;3\n");
    let german = folder.path().join("de.csv");
    let samples = read(&source("csv", &german, ",target=y"), &[0]).unwrap();
    assert_eq!(samples.targets.as_deref(), Some(&[2.25][..]));
    // Each file of a table has its own.
    put(&folder, "points.csv", b"a,y\n1.5,4.5\n");
    let points = format!(
        ",target=y,test={}",
        folder.path().join("points.csv").display()
    );
    let both = read(&source("csv", &german, &points), &[0, 2]).unwrap();
    assert_eq!(both.targets.as_deref(), Some(&[2.25, 4.5][..]));
    let without = read(&source("csv", &path, ",target=1"), &[1]).unwrap();
    assert_eq!(
        without.targets.as_deref(),
        Some(&[-2.0][..]),
        "by its place"
    );
    put(&folder, "bad.csv", b"a,y\n1,2\n2,many\n");
    let bad = folder.path().join("bad.csv");
    let error = read(&source("csv", &bad, ",target=y"), &[0]).unwrap_err();
    assert!(
        error.ends_with(
            "holds `many`, which is no number, in column `y` of line 3: leave that row out"
        ),
        "{error}"
    );
    let both = source("csv", &path, ",target=dose,label=ward").parse::<DataSource>();
    assert!(both.unwrap_err().to_string().contains("leave one out"));
}
