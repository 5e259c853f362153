//! Text sources on small files that the tests write, whole and damaged, and the vocabularies of federations.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use fednode_data::{
    DataError, DataSource, Facts, Pixels, Samples, ShardParams, Vocabulary, load_shard, load_shards,
};
use flate2::{Compression, write::GzEncoder};
use tempfile::{TempDir, tempdir};

const TRAIN: &str = "\"3\",\"Wall St. Bears\",\"Short-sellers are back\"\n\
                     \"1\",\"Peace, at last\",\"They said \"\"peace\"\"\"\n\
                     \"4\",\"Bears of silicon\",\"Bears, bears!\"\n";
const TEST: &str = "\"2\",\"Bears win\",\"unheard unheard unheard unheard\"\n";

fn folder(files: &[(&str, &[u8])]) -> TempDir {
    let folder = tempdir().unwrap();
    for (name, bytes) in files {
        fs::write(folder.path().join(name), bytes).unwrap();
    }
    folder
}

fn ag_news() -> TempDir {
    folder(&[
        ("train.csv", TRAIN.as_bytes()),
        ("test.csv", TEST.as_bytes()),
    ])
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn all(text: &str) -> Result<Samples, String> {
    let read = || {
        let source = text.parse::<DataSource>()?.open()?;
        let pool = source.pool()?;
        source.read(&pool, &(0..pool.labels.len() as u32).collect::<Vec<_>>())
    };
    read().map_err(|error: DataError| error.to_string())
}

fn tokens(samples: &Samples) -> (&[u32], &Vocabulary) {
    let Pixels::Tokens { ids, vocabulary } = &samples.pixels else {
        panic!("texts are tokens")
    };
    (ids, vocabulary)
}

fn ag(folder: &Path, options: &str) -> String {
    format!("ag-news:{}{options}", folder.display())
}

#[test]
fn reads_ag_news_in_the_order_of_its_files() {
    let folder = ag_news();
    let samples = all(&ag(folder.path(), ",length=5")).unwrap();
    assert_eq!((samples.shape, samples.classes), ([1, 1, 5], 4));
    assert_eq!(samples.labels, [2, 0, 3, 1]);
    assert_eq!(samples.class_names[3], "Sci/Tech");
    let (ids, vocabulary) = tokens(&samples);
    // bears 4, `,` 2 and peace 2, the others once, in the order of their code points; no word of the test file.
    let expected = [
        "bears",
        ",",
        "peace",
        "!",
        ".",
        "are",
        "at",
        "back",
        "last",
        "of",
        "said",
        "short-sellers",
    ];
    assert_eq!(vocabulary.tokens()[..12], expected);
    assert_eq!(
        (
            vocabulary.len(),
            vocabulary.id("unheard"),
            vocabulary.id("win")
        ),
        (2 + 16, 1, 1)
    );
    let id = |word| vocabulary.id(word);
    assert_eq!(
        ids[..5],
        [
            id("wall"),
            id("st"),
            id("."),
            id("bears"),
            id("short-sellers")
        ]
    );
    assert_eq!(ids[15..], [id("bears"), Vocabulary::UNKNOWN, 1, 1, 1]);
    let mut batch = Vec::new();
    samples.write_batch(&[3], &mut batch);
    assert_eq!(batch, [2.0, 1.0, 1.0, 1.0, 1.0]);
}

#[test]
fn short_texts_are_filled_up_and_long_ones_cut_at_200() {
    let long = format!("\"1\",\"a\",\"{}\"\n", "b ".repeat(300));
    let folder = folder(&[
        ("train.csv", long.as_bytes()),
        ("test.csv", b"2,\"a\",\"\"\n"),
    ]);
    let samples = all(&ag(folder.path(), "")).unwrap();
    let (ids, _) = tokens(&samples);
    assert_eq!(samples.shape, [1, 1, 200]);
    assert_eq!((ids[0], &ids[1..200]), (3, [2; 199].as_slice()));
    assert_eq!((ids[200], &ids[201..]), (3, [0; 199].as_slice()));
}

#[test]
fn files_may_be_packed_headed_and_in_the_folder_of_the_archive() {
    let plain = all(&ag(ag_news().path(), "")).unwrap();
    let outer = tempdir().unwrap();
    let inner = outer.path().join("ag_news_csv");
    fs::create_dir(&inner).unwrap();
    let headed = format!("Class Index,Title,Description\n{TRAIN}");
    fs::write(inner.join("train.csv.gz"), gzip(headed.as_bytes())).unwrap();
    fs::write(inner.join("test.csv"), TEST).unwrap();
    assert_eq!(all(&ag(outer.path(), "")).unwrap(), plain);
    fs::write(inner.join("train.csv.gz"), &gzip(TRAIN.as_bytes())[..40]).unwrap();
    assert!(
        all(&ag(outer.path(), ""))
            .unwrap_err()
            .ends_with("train.csv.gz` is truncated")
    );
    fs::remove_file(inner.join("test.csv")).unwrap();
    assert!(
        all(&ag(outer.path(), ""))
            .unwrap_err()
            .ends_with("ag_news_csv` lacks `test.csv` (which may end in .gz)")
    );
}

#[test]
fn names_file_and_line_of_what_is_wrong() {
    let table: [(&[u8], &str); 9] = [
        (
            b"\"5\",\"a\",\"b\"\n",
            "has label `5` in line 2, not 1, 2, 3 or 4",
        ),
        (
            b"\"0\",\"a\",\"b\"\n",
            "has label `0` in line 2, not 1, 2, 3 or 4",
        ),
        (
            b"\"x\",\"a\",\"b\"\n",
            "has label `x` in line 2, not 1, 2, 3 or 4",
        ),
        (
            b"\"1\",\"a\"\n",
            "has 2 cells, not class, title and description, in line 2",
        ),
        (b"\"1\",\" \",\"\"\n", "has an empty text in line 2"),
        (b"\"1\",\"a\",\"\xff\"\n", "is no UTF-8 text in line 2"),
        (
            b"\"1\",\"a\",\"b\n\"2\",\"c\",\"d\"\n",
            "goes on after a closing quotation mark in line 3",
        ),
        (
            b"\"1\",\"a\",\"b\n",
            "has a quotation without end in the row that begins in line 2",
        ),
        (
            b"\"1\",\"a\"\"b\" c,\"d\"\n",
            "goes on after a closing quotation mark in line 2",
        ),
    ];
    for (row, expected) in table {
        let bytes = [b"1,good,row\n".as_slice(), row].concat();
        let folder = folder(&[("train.csv", &bytes), ("test.csv", TEST.as_bytes())]);
        let error = all(&ag(folder.path(), "")).unwrap_err();
        assert_eq!(
            error,
            format!("`{}` {expected}", folder.path().join("train.csv").display())
        );
    }
    let folder = folder(&[("train.csv", b"\n"), ("test.csv", TEST.as_bytes())]);
    assert!(
        all(&ag(folder.path(), ""))
            .unwrap_err()
            .ends_with("train.csv` holds no texts")
    );
}

#[test]
fn any_table_of_classes_and_texts_will_do() {
    let folder = folder(&[
        ("a.csv", b"label,text\nspam,Buy now!\nham,\"Hi, you\"\n"),
        ("b.csv", b"ham,new words,too\n"),
    ]);
    let path = |name: &str| folder.path().join(name).display().to_string();
    let samples = all(&format!(
        "text:{},length=4,test={}",
        path("a.csv"),
        path("b.csv")
    ))
    .unwrap();
    assert_eq!(
        (samples.labels.as_slice(), samples.class_names[1].as_str()),
        ([1, 0, 0].as_slice(), "spam")
    );
    let (ids, vocabulary) = tokens(&samples);
    assert_eq!(vocabulary.tokens(), ["!", ",", "buy", "hi", "now", "you"]);
    assert_eq!(ids, [4, 6, 2, 0, 5, 3, 7, 0, 1, 1, 1, 0]);
    let error = all(&format!("text:{},classes=spam|eggs", path("a.csv"))).unwrap_err();
    assert!(
        error.ends_with("a.csv` has label `ham` in line 3, which is none of its classes"),
        "{error}"
    );
    let numbers = all(&format!("text:{},classes=3", path("a.csv"))).unwrap_err();
    assert!(
        numbers.ends_with("has label `spam` in line 2, which is none of its classes"),
        "{numbers}"
    );
}

#[test]
fn options_are_checked() {
    let folder = ag_news();
    for (option, cause) in [
        (
            "vocabulary=2",
            ",vocabulary=2` is not a data source: `vocabulary`: expected a number from 3 to 1000000",
        ),
        (
            "length=0",
            ",length=0` is not a data source: `length`: expected a number from 1 to 4096",
        ),
        ("vocabulary=9,vocabulary_file=x", "leave `vocabulary` out"),
        ("vocabulary_file=/nowhere", "cannot read `/nowhere`"),
        ("test=x", "unknown option `test`"),
    ] {
        let error = all(&ag(folder.path(), &format!(",{option}"))).unwrap_err();
        assert!(error.contains(cause), "{error}");
    }
    let samples = all(&ag(folder.path(), ",vocabulary=4")).unwrap();
    assert_eq!(tokens(&samples).1.tokens(), ["bears", ","]);
}

fn params() -> ShardParams {
    ShardParams {
        nodes: 2,
        seed: 3,
        samples_per_node: 0,
        validation_share: 0.1,
    }
}

/// Sixty texts, of which one word each is in no other.
fn many() -> TempDir {
    let row = |at: usize| format!("{},title,word{at} of {}\n", at % 4 + 1, at % 4);
    let rows = |range: std::ops::Range<usize>| range.map(row).collect::<String>();
    folder(&[
        ("train.csv", rows(0..50).as_bytes()),
        ("test.csv", rows(50..60).as_bytes()),
    ])
}

#[test]
fn all_nodes_have_one_vocabulary_and_every_text_once() {
    let folder = many();
    let source: DataSource = ag(folder.path(), ",length=6").parse().unwrap();
    let together = load_shards(&source, "iid", &params()).unwrap();
    let mut n = 0;
    for (shard, expected) in together.iter().enumerate() {
        let loaded = load_shard(&source, "iid", &params(), shard).unwrap();
        assert_eq!(&loaded, expected);
        let split = &loaded.split;
        for samples in [&split.train, &split.validation, &split.test] {
            assert_eq!(
                samples.vocabulary().map(|words| words.hash()),
                together[0]
                    .split
                    .train
                    .vocabulary()
                    .map(|words| words.hash())
            );
            n += samples.len();
        }
    }
    assert_eq!(n, 60);
    let Facts::Text { vocabulary, .. } = source.open().unwrap().describe().unwrap() else {
        panic!("texts are expected")
    };
    assert_eq!(
        (vocabulary.id("word49") > 1, vocabulary.id("word50")),
        (true, Vocabulary::UNKNOWN)
    );
    assert_eq!(Some(&vocabulary), together[1].split.test.vocabulary());
    let digits = "digits".parse::<DataSource>().unwrap().open().unwrap();
    assert_eq!(digits.describe().unwrap(), Facts::Images);
}

#[test]
fn own_texts_need_a_vocabulary_of_all() {
    let folder = many();
    let load = |options: &str| {
        load_shard(
            &ag(folder.path(), options).parse().unwrap(),
            "own",
            &params(),
            0,
        )
    };
    let error = load("").unwrap_err().to_string();
    assert!(
        error.contains("vocabularies would differ") && error.contains("`,vocabulary_file=FILE`"),
        "{error}"
    );
    let words = folder.path().join("words.txt");
    fs::write(&words, "title\nof\nword7\n").unwrap();
    let shard = load(&format!(",vocabulary_file={}", words.display())).unwrap();
    let vocabulary: &Arc<Vocabulary> = shard.split.test.vocabulary().unwrap();
    assert_eq!((vocabulary.len(), vocabulary.id("of")), (5, 3));
}
