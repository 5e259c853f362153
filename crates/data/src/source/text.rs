//! Texts in CSV files, one a row: AG News, and any table of a class and texts.
//!
//! | source | files | cells of a row | classes |
//! |---|---|---|---|
//! | `ag-news:DIR` | `train.csv`, `test.csv` | 1 to 4, title, description | World, Sports, Business, Sci/Tech |
//! | `text:FILE` | FILE, then the one that `test=` names | class, one or more texts | as for `csv` |
//!
//! Files whose names end in `.gz` are unpacked on the way; those of AG News may lie in `ag_news_csv` below DIR, where its
//! archive puts them. The texts of a row are joined by a space and cut into tokens as `tokenizer` says. A sample is the
//! numbers of its first `length=` tokens (200), filled up with padding: shape `[1, 1, length]`. A first row `Class Index,
//! …` (Kaggle's copy of AG News), or one that begins with `label`, `class` or `target`, is a header.
//!
//! **Vocabulary.** The most frequent `vocabulary=` entries (32,000, the two special ones among them) of the *training*
//! file. No text of the official test file has a say in it, and neither has the division among nodes. So a text of the
//! training file has a say even where the division makes it a node's test sample. `text:` without `test=` has one file
//! for everything, and its vocabulary counts all texts of it. Nodes that read the same files with the same options have
//! the same vocabulary. Where each node brings its own texts (partition `own`), vocabularies would differ, and equal
//! numbers would mean different words: then `vocabulary_file=` must name a list that all nodes have.
//!
//! Differs from PM-MoE's code, which counts the words of the test file too and has one entry for padding and unknown
//! words.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fednode_config::{ConfigError, TableDoc, config};

use super::csv_table::{LABEL_NAMES, class_names};
use super::kind::Reader;
use super::options::{Classes, Number};
use super::records::Wanted;
use super::rows::{Row, Rows};
use super::{Columns, Facts, Pool, Source, unpacked};
use crate::error::DataError;
use crate::samples::{Pixels, Samples};
use crate::table::is_no_label;
use crate::tokenizer::normalize;
use crate::vocabulary::{Counts, MAX_ENTRIES, Vocabulary};

/// Classes of AG News; its files count them from 1.
const AG_NEWS_CLASSES: [&str; 4] = ["World", "Sports", "Business", "Sci/Tech"];
/// First cell of the header that Kaggle's copy of AG News has.
const AG_NEWS_HEADER: &str = "class index";
/// The folder that the archive of AG News unpacks to.
const AG_NEWS_FOLDER: &str = "ag_news_csv";
/// Entries of a vocabulary unless `vocabulary=` says otherwise, as PFLlib bounds them.
const ENTRIES: usize = 32_000;
/// Tokens of a sample unless `length=` says otherwise, as in PFLlib.
const LENGTH: usize = 200;
/// Most tokens of a sample: the largest side of a model's input.
const MAX_LENGTH: usize = 4_096;
/// Fewest entries of a vocabulary: the two special ones and a word.
const FEWEST_ENTRIES: usize = 3;

/// What the first cell of a row means.
#[derive(Debug)]
enum Labels {
    /// A number from 1 to 4.
    AgNews,
    /// One of these, or of those that occur.
    Words(Option<Classes>),
}

#[derive(Debug)]
struct Text {
    /// The training file, then the test file if there is one.
    files: Vec<PathBuf>,
    labels: Labels,
    length: usize,
    entries: usize,
    vocabulary_file: Option<PathBuf>,
    /// Found when it is first asked for.
    vocabulary: OnceCell<Arc<Vocabulary>>,
}

/// How many tokens a sample has.
type Length = Number<1, MAX_LENGTH>;
/// How many entries a vocabulary has.
type Entries = Number<FEWEST_ENTRIES, MAX_ENTRIES>;

config! {
    /// AG News.
    pub(super) struct AgNewsOptions {
        /// The folder of `train.csv` and `test.csv`.
        folder: PathBuf = PathBuf::new() => "DIR",
        /// Most entries of the vocabulary that is counted from the training texts (3 to 1000000; 32000 without it).
        vocabulary: Option<Entries> = None => "N",
        /// Tokens of a sample (1 to 4096).
        length: Length = Number(LENGTH) => "N",
        /// A list of words that is the vocabulary instead, one a line.
        vocabulary_file: Option<PathBuf> = None => "FILE",
    }
}

config! {
    /// Texts in a CSV file.
    pub(super) struct Options {
        /// The texts: in each row a class and one or more texts.
        file: PathBuf = PathBuf::new() => "FILE",
        /// More texts, which have no say in the vocabulary.
        test: Option<PathBuf> = None => "FILE",
        /// Most entries of the vocabulary that is counted from `file` (3 to 1000000; 32000 without it).
        vocabulary: Option<Entries> = None => "N",
        /// Tokens of a sample (1 to 4096).
        length: Length = Number(LENGTH) => "N",
        /// A list of words that is the vocabulary instead, one a line. All nodes that bring their own texts need the same.
        vocabulary_file: Option<PathBuf> = None => "FILE",
        /// The classes, where every node brings its own texts: how many, names in order, or `LABEL=>NAME`, or a table of
        /// labels and names. Without it, the labels that are there.
        classes: Option<Classes> = None => "[LABEL=>]A|…",
    }
}

impl Reader for AgNewsOptions {
    const NAME: &'static str = "ag-news";
    const ABOUT: &'static str = "AG News: train.csv and test.csv, texts of four classes";
    const ARGUMENT: Option<&'static str> = Some("folder");

    fn table() -> TableDoc {
        Self::doc()
    }

    fn check(&self) -> Result<(), ConfigError> {
        refuse_two_vocabularies(self.vocabulary, self.vocabulary_file.as_deref())
    }

    fn open(self, _columns: &Columns) -> Result<Box<dyn Source>, DataError> {
        let folder = unpacked(&self.folder, AG_NEWS_FOLDER);
        let file = |name: &str| {
            let names = [name.to_owned(), format!("{name}.gz")];
            names
                .iter()
                .map(|name| folder.join(name))
                .find(|path| path.is_file())
                .ok_or_else(|| {
                    DataError::Absent(format!(
                        "`{}` lacks `{name}` (which may end in .gz)",
                        folder.display()
                    ))
                })
        };
        Ok(Box::new(Text {
            files: vec![file("train.csv")?, file("test.csv")?],
            labels: Labels::AgNews,
            length: self.length.0,
            entries: self.vocabulary.map_or(ENTRIES, |Number(entries)| entries),
            vocabulary_file: self.vocabulary_file,
            vocabulary: OnceCell::new(),
        }))
    }
}

impl Reader for Options {
    const NAME: &'static str = "text";
    const ABOUT: &'static str =
        "a CSV table whose first column is the class and whose others are text";
    const ARGUMENT: Option<&'static str> = Some("file");

    fn table() -> TableDoc {
        Self::doc()
    }

    fn check(&self) -> Result<(), ConfigError> {
        refuse_two_vocabularies(self.vocabulary, self.vocabulary_file.as_deref())
    }

    fn open(self, _columns: &Columns) -> Result<Box<dyn Source>, DataError> {
        Ok(Box::new(Text {
            files: std::iter::once(self.file).chain(self.test).collect(),
            labels: Labels::Words(self.classes),
            length: self.length.0,
            entries: self.vocabulary.map_or(ENTRIES, |Number(entries)| entries),
            vocabulary_file: self.vocabulary_file,
            vocabulary: OnceCell::new(),
        }))
    }
}

/// Refuses a size for a vocabulary that is a file's.
fn refuse_two_vocabularies(
    entries: Option<Entries>,
    file: Option<&Path>,
) -> Result<(), ConfigError> {
    match (entries, file) {
        (Some(_), Some(_)) => Err(ConfigError(
            "a vocabulary file is taken as it is: leave `vocabulary` out".into(),
        )),
        _ => Ok(()),
    }
}

impl Text {
    /// Shows each row of a file but the header: its label and its text.
    fn for_each(
        &self,
        path: &Path,
        mut visit: impl FnMut(&Rows, &Row, String) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let mut rows = Rows::open(path)?;
        let mut is_first = true;
        while let Some(row) = rows.next()? {
            if !(std::mem::take(&mut is_first) && self.is_header(&row)) {
                let text = self.text(&rows, &row)?;
                visit(&rows, &row, text)?;
            }
        }
        Ok(())
    }

    fn is_header(&self, row: &Row) -> bool {
        let first = row.cells[0].trim().to_ascii_lowercase();
        match self.labels {
            Labels::AgNews => first == AG_NEWS_HEADER,
            Labels::Words(_) => LABEL_NAMES.contains(&first.as_str()),
        }
    }

    fn text(&self, rows: &Rows, row: &Row) -> Result<String, DataError> {
        let n = row.cells.len();
        let cells = if n == 1 {
            "1 cell".to_owned()
        } else {
            format!("{n} cells")
        };
        match self.labels {
            Labels::AgNews if n != 3 => Err(rows.malformed(
                row.line,
                format!("has {cells}, not class, title and description,"),
            )),
            Labels::Words(_) if n < 2 => {
                Err(rows.malformed(row.line, format!("has {cells}, not a class and a text,")))
            }
            _ => Ok(row.cells[1..].join(" ")),
        }
    }

    /// Returns all labels as they are written, each word once in memory, with the lines they are in.
    fn written_labels(
        &self,
        path: &Path,
        words: &mut BTreeSet<Arc<str>>,
    ) -> Result<Vec<(Arc<str>, u64)>, DataError> {
        let mut labels = Vec::new();
        self.for_each(path, |rows, row, text| {
            if normalize(&text).trim().is_empty() {
                return Err(rows.malformed(row.line, "has an empty text"));
            }
            let written = row.cells[0].trim();
            let counts = matches!(self.labels, Labels::Words(None));
            if written.is_empty() || counts && is_no_label(written) {
                return Err(rows.malformed(row.line, "has no label"));
            }
            let word = words
                .get(written)
                .cloned()
                .unwrap_or_else(|| Arc::from(written));
            words.insert(Arc::clone(&word));
            labels.push((word, row.line));
            Ok(())
        })?;
        if labels.is_empty() {
            Err(DataError::malformed(path, "holds no texts"))
        } else {
            Ok(labels)
        }
    }

    /// Returns the classes, and how files write each of them.
    fn classes(&self, words: &BTreeSet<Arc<str>>) -> Result<Classes, DataError> {
        match &self.labels {
            Labels::AgNews => Ok(Classes::numbered_from_one(&AG_NEWS_CLASSES)),
            Labels::Words(Some(classes)) => Ok(classes.clone()),
            Labels::Words(None) => class_names(words)
                .map(Classes::called)
                .map_err(|cause| DataError::malformed(&self.files[0], cause)),
        }
    }

    fn find_vocabulary(&self) -> Result<Arc<Vocabulary>, DataError> {
        if let Some(path) = &self.vocabulary_file {
            return Vocabulary::read(path).map(Arc::new);
        }
        Ok(Arc::new(self.counts()?.into_vocabulary(self.entries)))
    }

    /// Counts the tokens of the training file.
    fn counts(&self) -> Result<Counts, DataError> {
        let mut counts = Counts::default();
        self.for_each(&self.files[0], |_, _, text| {
            counts.add(&text);
            Ok(())
        })?;
        Ok(counts)
    }

    fn known_vocabulary(&self) -> Result<Arc<Vocabulary>, DataError> {
        if let Some(vocabulary) = self.vocabulary.get() {
            return Ok(Arc::clone(vocabulary));
        }
        let vocabulary = self.find_vocabulary()?;
        Ok(Arc::clone(self.vocabulary.get_or_init(|| vocabulary)))
    }
}

/// Returns the texts of a CSV file that is written as one to train on: whatever class a row begins with is not looked at.
///
/// # Errors
/// Fails if the file cannot be read.
pub fn texts_of(path: &Path) -> Result<Vec<String>, DataError> {
    let (mut rows, mut texts) = (Rows::open(path)?, Vec::new());
    let mut is_first = true;
    while let Some(row) = rows.next()? {
        let word = row.cells[0].trim().to_ascii_lowercase();
        let names_columns = word == AG_NEWS_HEADER || LABEL_NAMES.contains(&word.as_str());
        if !(std::mem::take(&mut is_first) && names_columns) {
            let from = usize::from(row.cells.len() > 1);
            texts.push(row.cells[from..].join(" "));
        }
    }
    Ok(texts)
}

impl Source for Text {
    fn grows_at_the_end(&self) -> bool {
        true
    }

    fn common_words(&self, fewest_texts: u64) -> Result<Option<Vocabulary>, DataError> {
        let mut counts = self.counts()?;
        counts.keep_common(fewest_texts);
        Ok(Some(counts.into_vocabulary(self.entries)))
    }

    fn describe(&self) -> Result<Facts, DataError> {
        Ok(Facts::Text {
            vocabulary: self.known_vocabulary()?,
            is_counted: self.vocabulary_file.is_none(),
        })
    }

    fn pool(&self) -> Result<Pool, DataError> {
        let (mut words, mut written) = (BTreeSet::new(), Vec::new());
        for path in &self.files {
            written.push(self.written_labels(path, &mut words)?);
        }
        let classes = self.classes(&words)?;
        let class_names = Arc::clone(&classes.names);
        let mut labels = Vec::new();
        for (path, written) in self.files.iter().zip(&written) {
            for (word, line) in written {
                let class = classes.of(word).ok_or_else(|| {
                    let cause = match self.labels {
                        Labels::AgNews => {
                            format!("has label `{word}` in line {line}, not 1, 2, 3 or 4")
                        }
                        Labels::Words(_) => format!(
                            "has label `{word}` in line {line}, which is none of its classes"
                        ),
                    };
                    DataError::malformed(path, cause)
                })?;
                labels.push(class);
            }
        }
        Ok(Pool {
            shape: [1, 1, self.length],
            labels,
            class_names,
            ..Pool::default()
        })
    }

    fn read(&self, pool: &Pool, indices: &[u32]) -> Result<Samples, DataError> {
        let vocabulary = self.known_vocabulary()?;
        let wanted = Wanted::new(indices);
        let mut cursor = wanted.within(0..u32::MAX);
        let mut ids = vec![Vocabulary::PADDING; indices.len() * self.length];
        let mut at = 0;
        for path in &self.files {
            self.for_each(path, |_, _, text| {
                for place in cursor.places(at) {
                    vocabulary.encode(
                        &text,
                        &mut ids[place * self.length..(place + 1) * self.length],
                    );
                }
                at += 1;
                Ok(())
            })?;
        }
        pool.samples(indices, Pixels::Tokens { ids, vocabulary })
    }
}
