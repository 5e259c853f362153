//! A data source as a user writes it: as a table, or short in one text.
//!
//! ```toml
//! [data]                                    # data = "csv:flowers.csv,label=species"
//! kind = "csv"
//! file = "flowers.csv"
//! label = "species"
//! ```
//!
//! Both become the same typed options. In the short form the reader's first option comes behind a colon, without its name;
//! others follow as `,key=value`. They are taken off the end, so a path may hold colons and commas.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use fednode_config::{ConfigError, KeyDoc, TableDoc, unknown_name};
use fednode_core::FederationSpec;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::federated::Federated;
use super::kind::Kind;
use super::options::{short, typed};
use super::unknown::unknown_kind;
use super::{Columns, KINDS, Source};
use crate::error::{DataError, TextError};
use crate::extractor::Extractor;

/// The key that names the reader.
const KIND: &str = "kind";
/// The key that names the column of a number.
const TARGET: &str = "target";

/// Where samples come from: a reader and its options.
#[derive(Clone)]
pub struct DataSource {
    kind: &'static Kind,
    /// All options, as the reader's type writes them.
    options: toml::Table,
    columns: Columns,
    /// What a federation calls the classes; none where it does not name them.
    classes: Arc<[String]>,
    extractor: Option<Arc<dyn Extractor>>,
}

impl DataSource {
    /// Returns the reader.
    pub fn kind(&self) -> &'static Kind {
        self.kind
    }

    /// Reads a table: `kind`, and the options of that reader.
    ///
    /// # Errors
    /// Names the reader or the option that is unknown, missing or out of range.
    pub fn from_table(mut table: toml::Table) -> Result<Self, ConfigError> {
        let names: Vec<&str> = KINDS.iter().map(|kind| kind.name).collect();
        let listed = || {
            let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
            quoted.join(", ")
        };
        let Some(toml::Value::String(name)) = table.remove(KIND) else {
            return Err(ConfigError(format!(
                "data need a `{KIND}`, one of {}",
                listed()
            )));
        };
        let kind = KINDS
            .iter()
            .find(|kind| kind.name == name)
            .ok_or_else(|| ConfigError(unknown_name("kind of data", &name, &names)))?;
        Ok(Self {
            kind,
            options: kind.checked(table)?,
            columns: Columns::All,
            classes: [].into(),
            extractor: None,
        })
    }

    /// Returns the table that stands for this source, with all options.
    pub fn to_table(&self) -> toml::Table {
        let mut table = self.options.clone();
        table.insert(KIND.into(), self.kind.name.into());
        table
    }

    /// Returns the documentation of that table's keys: `kind`, then the reader's options.
    pub fn doc(&self) -> TableDoc {
        let kind = KeyDoc {
            key: KIND,
            flat: KIND,
            lines: vec![format!(" `{}`: {}.", self.kind.name, self.kind.about)],
            value: None,
            is_path: false,
            table: None,
        };
        let mut keys = vec![kind];
        keys.extend(self.kind.doc().keys);
        TableDoc {
            lines: Vec::new(),
            keys,
        }
    }

    /// Returns the same source with these columns of a table.
    #[must_use]
    pub fn with_columns(self, columns: Columns) -> Self {
        Self { columns, ..self }
    }

    /// Returns the same source with what turns its images into features, if anything does.
    #[must_use]
    pub fn with_extractor(self, extractor: Option<Arc<dyn Extractor>>) -> Self {
        Self { extractor, ..self }
    }

    /// Returns what turns its images into features; nothing if they stay as they are.
    pub fn extractor(&self) -> Option<&Arc<dyn Extractor>> {
        self.extractor.as_ref()
    }

    /// Returns the same source with the number that a federation's spec predicts, found by its name, unless the source says what is
    /// predicted.
    #[must_use]
    pub fn with_target_of(mut self, spec: &FederationSpec) -> Self {
        if let Some(target) = &spec.data.target
            && self.may_predict_a_number()
        {
            let name = toml::Value::String(target.name.clone());
            self.options.insert(TARGET.into(), name);
        }
        self
    }

    /// Tells whether it is a table that does not say what is predicted, so that it may be a number.
    pub fn may_predict_a_number(&self) -> bool {
        let says_so = |key: &&str| self.options.contains_key(*key);
        let can = self.kind.doc().keys.iter().any(|key| key.key == TARGET);
        can && ![TARGET, "label", "classes"].iter().any(says_so)
    }

    /// Returns the same source with the columns that a federation's spec wants of a table, and the classes or the number that it
    /// predicts.
    #[must_use]
    pub fn for_federation(self, spec: &FederationSpec) -> Self {
        let (described, named) = (&spec.data.columns, &spec.fingerprints.columns);
        let classes = spec.fingerprints.class_names.iter().cloned().collect();
        Self { classes, ..self }.with_target_of(spec).with_columns(
            match (described.is_empty(), named.is_empty()) {
                (false, _) => Columns::Described(described.clone()),
                (true, false) => Columns::Named(named.clone()),
                (true, true) => Columns::All,
            },
        )
    }

    /// Returns the same source with every path changed.
    #[must_use]
    pub fn with_paths(mut self, change: impl Fn(&Path) -> PathBuf) -> Self {
        let doc = self.kind.doc();
        for key in doc.keys.iter().filter(|key| key.is_path) {
            if let Some(toml::Value::String(path)) = self.options.get_mut(key.key) {
                *path = change(Path::new(path)).to_string_lossy().into_owned();
            }
        }
        self
    }

    /// Finds the files.
    ///
    /// # Errors
    /// Says which files are missing and how to get them.
    pub fn open(&self) -> Result<Box<dyn Source>, DataError> {
        let source = self.kind.open(&self.options, &self.columns)?;
        if self.classes.is_empty() {
            return Ok(source);
        }
        let classes = Arc::clone(&self.classes);
        Ok(Box::new(Federated { source, classes }))
    }
}

impl Default for DataSource {
    /// Returns the built-in data set.
    fn default() -> Self {
        "digits".parse().expect("a reader without options")
    }
}

impl fmt::Debug for DataSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DataSource")
            .field(&self.to_string())
            .finish()
    }
}

/// Writes the short form; options that are as by default are left out.
impl fmt::Display for DataSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.name)?;
        let argument = self.kind.argument();
        if let Some(value) = argument.and_then(|key| self.options.get(key)) {
            write!(f, ":{}", short(value))?;
        }
        let defaults = self.kind.defaults();
        for key in self.kind.doc().keys {
            let value = self.options.get(key.key);
            if let Some(value) = value.filter(|_| Some(key.key) != argument)
                && defaults.get(key.key) != Some(value)
            {
                write!(f, ",{}={}", key.key, short(value))?;
            }
        }
        Ok(())
    }
}

impl PartialEq for DataSource {
    fn eq(&self, other: &Self) -> bool {
        self.kind.name == other.kind.name && self.options == other.options
    }
}

impl FromStr for DataSource {
    type Err = DataError;

    fn from_str(text: &str) -> Result<Self, DataError> {
        let wrong = |cause: TextError| DataError::Text {
            text: text.to_owned(),
            what: "data source",
            cause,
        };
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        let Some(kind) = KINDS.iter().find(|kind| kind.name == name) else {
            return Err(wrong(unknown_kind(text, name)));
        };
        if kind.argument().is_none() != rest.is_empty() {
            return Err(wrong(TextError::Form(kind.form())));
        }
        let options = options(kind, rest).map_err(wrong)?;
        let options = kind.checked(options).map_err(|error| wrong(error.into()))?;
        Ok(Self {
            kind,
            options,
            columns: Columns::All,
            classes: [].into(),
            extractor: None,
        })
    }
}

/// Takes options off the end of the short form, as long as there are any; the rest is the argument, commas and all.
fn options(kind: &Kind, text: &str) -> Result<toml::Table, TextError> {
    let doc = kind.doc();
    let Some(argument) = kind.argument() else {
        return Ok(toml::Table::new());
    };
    let known: Vec<&KeyDoc> = doc.keys.iter().filter(|key| key.key != argument).collect();
    let (mut rest, mut options) = (text, toml::Table::new());
    while !known.is_empty()
        && let Some((head, option)) = rest.rsplit_once(',')
        && let Some((name, value)) = option.split_once('=')
    {
        let Some(key) = known.iter().find(|key| key.key == name) else {
            return Err(TextError::Option {
                name: name.to_owned(),
                known: known.iter().map(|key| key.key).collect(),
            });
        };
        let before = options.insert(name.to_owned(), typed(value, key));
        if before.is_some() {
            let text = format!("`{name}` is given twice: leave one out");
            return Err(ConfigError(text).into());
        }
        rest = head;
    }
    options.insert(argument.to_owned(), rest.into());
    Ok(options)
}

impl Serialize for DataSource {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_table().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for DataSource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match toml::Value::deserialize(deserializer)? {
            toml::Value::String(text) => text.parse().map_err(D::Error::custom),
            toml::Value::Table(table) => Self::from_table(table).map_err(D::Error::custom),
            _ => Err(D::Error::custom(
                "expected a table with a `kind`, or a text as `csv:FILE`",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<DataSource, String> {
        text.parse::<DataSource>()
            .map_err(|error| error.to_string())
    }

    fn table(text: &str) -> Result<DataSource, String> {
        DataSource::from_table(text.parse().unwrap()).map_err(|error| error.0)
    }

    #[test]
    fn a_table_and_a_text_are_the_same_source() {
        for (text, toml) in [
            ("digits", "kind = 'digits'"),
            ("mnist:a,b=c", "kind = 'mnist'\nfolder = 'a,b=c'"),
            (
                "csv:a,b.csv,label=3,classes=B=>no|M=>yes",
                "kind = 'csv'\nfile = 'a,b.csv'\nlabel = 3\nclasses = { M = 'yes', B = 'no' }",
            ),
            (
                "csv:a.csv,classes=x|y",
                "kind = 'csv'\nfile = 'a.csv'\nclasses = ['x', 'y']",
            ),
            (
                "folder:d,resize=28x32,channels=3,classes=2",
                "kind = 'folder'\nfolder = 'd'\nresize = '28x32'\nchannels = 3\nclasses = 2",
            ),
            (
                "text:t.csv,test=2020,length=9,vocabulary_file=v",
                "kind = 'text'\nfile = 't.csv'\ntest = '2020'\nlength = 9\nvocabulary_file = 'v'",
            ),
            (
                "idx:C:/d,split=letters",
                "kind = 'idx'\nfolder = 'C:/d'\nsplit = 'letters'",
            ),
        ] {
            let (short, long) = (read(text).unwrap(), table(toml).unwrap());
            assert_eq!(short, long);
            assert_eq!(long.to_string(), text);
            assert_eq!(DataSource::from_table(long.to_table()).unwrap(), short);
        }
    }

    #[test]
    fn short_form_leaves_defaults_out() {
        let source = read("text:t.csv,length=200,vocabulary=500").unwrap();
        assert_eq!(source.to_string(), "text:t.csv,vocabulary=500");
        assert_eq!(source.to_table()["length"].as_integer(), Some(200));
    }

    #[test]
    fn names_what_is_possible() {
        let error = read("pictures:/data").unwrap_err();
        let start = "`pictures:/data` is not a data source: expected one of digits, fashion-mnist,";
        assert!(error.starts_with(start), "{error}");
        let table = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/clinic.csv");
        let with_prefix = format!("file:{table}");
        let there = format!("did you mean `csv:{table},label=COLUMN`?");
        let missing = |path: &str, short: &str| {
            format!("there is no file `{path}` here: check its name, and write `csv:{short}`")
        };
        let no_kind = |path: &str| {
            let advice = "check its name, and write its kind before it, as in `csv:FILE`";
            format!("there is no `{path}` here: {advice}")
        };
        let csv = "csv:FILE[,label=COL][,classes=[LABEL=>]A|…][,target=COL][,test=FILE][,split=COL][,group=COL]";
        for (text, meant) in [
            (table, there.clone()),
            (with_prefix.as_str(), there),
            ("/a/b.csv", missing("/a/b.csv", "/a/b.csv,label=COLUMN")),
            ("file:t.csv", missing("t.csv", "t.csv,label=COLUMN")),
            (
                "t.parquet,target=x",
                missing("t.parquet", "t.parquet,target=x"),
            ),
            (
                "parquet:t.parquet",
                missing("t.parquet", "t.parquet,label=COLUMN"),
            ),
            ("data/ward", no_kind("data/ward")),
            ("ward.npz", no_kind("ward.npz")),
            ("cvs:t.csv", format!("did you mean `{csv}`?")),
        ] {
            assert_eq!(
                read(text).unwrap_err(),
                format!("`{text}` is not a data source: {meant}")
            );
        }
        let error = read("cifar10").unwrap_err();
        assert_eq!(
            error,
            "`cifar10` is not a data source: expected `cifar10:DIR`"
        );
        assert!(read("digits:x").is_err());
        let error = read("idx:x,splt=y").unwrap_err();
        assert_eq!(
            error,
            "`idx:x,splt=y` is not a data source: unknown option `splt`, expected one of split"
        );
    }

    #[test]
    fn a_table_is_refused_with_the_key_that_is_wrong() {
        let error = |text| table(text).unwrap_err();
        let listed = error("file = 'x'");
        assert!(
            listed.starts_with("data need a `kind`, one of `digits`, "),
            "{listed}"
        );
        assert_eq!(
            error("kind = 'csvv'"),
            "unknown kind of data `csvv`: did you mean `csv`?"
        );
        assert_eq!(error("kind = 'csv'"), "data of kind `csv` need `file`");
        assert_eq!(
            error("kind = 'csv'\nfile = 'x'\nlable = 'y'"),
            "unknown key `lable`: did you mean `label`?"
        );
        assert_eq!(
            error("kind = 'idx'\nfolder = 'x'\nsplit = 'lettres'"),
            "`split`: unknown value `lettres`: did you mean `letters`? Allowed are `mnist`, `balanced`, \
             `byclass`, `bymerge`, `digits`, `letters`, `emnist-mnist`"
        );
        assert_eq!(
            error("kind = 'text'\nfile = 'x'\nlength = 0"),
            "`length`: expected a number from 1 to 4096"
        );
    }

    #[test]
    fn paths_are_changed_wherever_a_source_has_them() {
        let deeper = |text: &str| {
            read(text)
                .unwrap()
                .with_paths(|path| Path::new("/d").join(path))
                .to_string()
        };
        assert_eq!(deeper("digits"), "digits");
        assert_eq!(deeper("csv:a,b.csv,label=x"), "csv:/d/a,b.csv,label=x");
        assert_eq!(deeper("mnist:a,b=c"), "mnist:/d/a,b=c");
        assert_eq!(
            deeper("text:t.csv,test=u.csv,length=9,vocabulary_file=v"),
            "text:/d/t.csv,test=/d/u.csv,length=9,vocabulary_file=/d/v"
        );
    }

    #[test]
    fn forms_are_made_of_the_options() {
        let form = |name: &str| {
            let kind = KINDS.iter().find(|kind| kind.name == name);
            kind.unwrap().form()
        };
        assert_eq!(form("digits"), "digits");
        assert_eq!(form("mnist"), "mnist:DIR");
        assert_eq!(
            form("csv"),
            "csv:FILE[,label=COL][,classes=[LABEL=>]A|…][,target=COL][,test=FILE][,split=COL][,group=COL]"
        );
        assert_eq!(
            form("folder"),
            "folder:DIR[,resize=HxW][,channels=1|3][,classes=[LABEL=>]A|…][,test=DIR]"
        );
        assert_eq!(
            form("ag-news"),
            "ag-news:DIR[,vocabulary=N][,length=N][,vocabulary_file=FILE]"
        );
    }
}
