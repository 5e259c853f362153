//! What a reader is: its name, its typed options, how it opens a data set.

use fednode_config::{ConfigError, KeyDoc, TableDoc, from_table, to_table};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Columns, Source};
use crate::error::DataError;

/// The typed options of one reader: what a table `[data]` says beside `kind`. Declared with `config!`.
pub(super) trait Reader: Serialize + DeserializeOwned + Default {
    /// The word that names the reader.
    const NAME: &'static str;
    /// What it reads, in one line.
    const ABOUT: &'static str;
    /// The option that must be there, which the short form gives without its name.
    const ARGUMENT: Option<&'static str>;

    /// Returns the documentation of the options.
    fn table() -> TableDoc;

    /// Checks what no type says.
    ///
    /// # Errors
    /// Names the first option that is out of range, and the range.
    fn check(&self) -> Result<(), ConfigError> {
        Ok(())
    }

    /// Finds the files. Of a table the samples have these columns.
    ///
    /// # Errors
    /// Says which files are missing and how to get them.
    fn open(self, columns: &Columns) -> Result<Box<dyn Source>, DataError>;
}

/// Opens a source with these options, a table by these columns.
type Open = fn(toml::Table, &Columns) -> Result<Box<dyn Source>, DataError>;

/// A row of the table of readers.
#[derive(Debug)]
pub struct Kind {
    /// The word that names the reader.
    pub name: &'static str,
    /// What it reads, in one line.
    pub about: &'static str,
    /// The option that must be there.
    argument: Option<&'static str>,
    doc: fn() -> TableDoc,
    defaults: fn() -> toml::Table,
    read: fn(toml::Table) -> Result<toml::Table, ConfigError>,
    open: Open,
}

impl Kind {
    /// Makes the row of a reader.
    pub(super) const fn of<R: Reader>() -> Self {
        Self {
            name: R::NAME,
            about: R::ABOUT,
            argument: R::ARGUMENT,
            doc: R::table,
            defaults: || to_table(&R::default()),
            read: read::<R>,
            open: open::<R>,
        }
    }

    /// Returns the documentation of the options.
    pub fn doc(&self) -> TableDoc {
        (self.doc)()
    }

    /// Returns how the short form is written, as `csv:FILE[,label=COL]`.
    pub fn form(&self) -> String {
        let doc = self.doc();
        let value = |key: &KeyDoc| key.value.unwrap_or("TEXT");
        let of_key = |key: &KeyDoc| {
            if Some(key.key) == self.argument {
                format!(":{}", value(key))
            } else {
                format!("[,{}={}]", key.key, value(key))
            }
        };
        let (argument, others): (Vec<&KeyDoc>, Vec<&KeyDoc>) = doc
            .keys
            .iter()
            .partition(|key| Some(key.key) == self.argument);
        let rest: String = argument.into_iter().chain(others).map(of_key).collect();
        format!("{}{rest}", self.name)
    }

    /// Returns the option that must be there.
    pub(super) fn argument(&self) -> Option<&'static str> {
        self.argument
    }

    /// Returns the options as they are by default.
    pub(super) fn defaults(&self) -> toml::Table {
        (self.defaults)()
    }

    /// Reads options as the reader's type and writes them back: all of them, each as its type writes it.
    pub(super) fn checked(&self, options: toml::Table) -> Result<toml::Table, ConfigError> {
        if let Some(key) = self.argument.filter(|key| !options.contains_key(*key)) {
            let name = self.name;
            return Err(ConfigError(format!("data of kind `{name}` need `{key}`")));
        }
        (self.read)(options)
    }

    /// Opens a data set with options that were [`checked`](Self::checked).
    pub(super) fn open(
        &self,
        options: &toml::Table,
        columns: &Columns,
    ) -> Result<Box<dyn Source>, DataError> {
        (self.open)(options.clone(), columns)
    }
}

fn read<R: Reader>(options: toml::Table) -> Result<toml::Table, ConfigError> {
    let options: R = from_table(options)?;
    options.check()?;
    Ok(to_table(&options))
}

fn open<R: Reader>(options: toml::Table, columns: &Columns) -> Result<Box<dyn Source>, DataError> {
    let options: R = from_table(options).expect("options were checked when they were read");
    options.open(columns)
}
