//! What a definition says of its keys, as data.

use std::any::TypeId;
use std::path::PathBuf;

/// The documentation of one key.
#[derive(Debug, Clone)]
pub struct KeyDoc {
    /// The key as written in its table.
    pub key: &'static str,
    /// What it is called where there are no tables: as a flag, as a variable, in an old file. It is the key itself unless
    /// the definition says otherwise.
    pub flat: &'static str,
    /// Its doc comment, one string per line.
    pub lines: Vec<String>,
    /// What help calls its value.
    pub value: Option<&'static str>,
    /// Whether its type is a path.
    pub is_path: bool,
    /// The documentation of the table it opens, if it is one.
    pub table: Option<TableDoc>,
}

/// The documentation of a table.
#[derive(Debug, Clone, Default)]
pub struct TableDoc {
    /// The doc comment of the table itself.
    pub lines: Vec<String>,
    /// Its keys, in file order.
    pub keys: Vec<KeyDoc>,
}

/// A key and the tables that lead to it.
#[derive(Debug, Clone)]
pub struct Entry<'a> {
    /// The tables, outermost first; none at the top.
    pub path: Vec<&'static str>,
    /// The key.
    pub doc: &'a KeyDoc,
}

impl TableDoc {
    /// Returns the documentation of a key of this very table.
    pub fn key(&self, name: &str) -> Option<&KeyDoc> {
        self.keys.iter().find(|doc| doc.key == name)
    }

    /// Returns all keys that hold values, those of inner tables among them, in file order.
    pub fn entries(&self) -> Vec<Entry<'_>> {
        let mut entries = Vec::new();
        self.collect(&mut Vec::new(), &mut entries);
        entries
    }

    fn collect<'a>(&'a self, path: &mut Vec<&'static str>, entries: &mut Vec<Entry<'a>>) {
        for doc in &self.keys {
            match &doc.table {
                Some(table) => {
                    path.push(doc.key);
                    table.collect(path, entries);
                    path.pop();
                }
                None => entries.push(Entry {
                    path: path.clone(),
                    doc,
                }),
            }
        }
    }
}

impl Entry<'_> {
    /// Returns the key with the tables that lead to it, as `network.listen`.
    pub fn dotted(&self) -> String {
        let mut parts = self.path.clone();
        parts.push(self.doc.key);
        parts.join(".")
    }

    /// Returns the value of this key.
    pub fn of<'t>(&self, table: &'t toml::Table) -> Option<&'t toml::Value> {
        let inner = self
            .path
            .iter()
            .try_fold(table, |table, name| table.get(*name)?.as_table())?;
        inner.get(self.doc.key)
    }

    /// Puts a value in its place, making the tables that lead there.
    pub fn put(&self, table: &mut toml::Table, value: toml::Value) {
        let mut inner = table;
        for name in &self.path {
            let next = inner
                .entry(*name)
                .or_insert_with(|| toml::Table::new().into());
            let toml::Value::Table(next) = next else {
                return; // What is no table here is refused when the whole is read.
            };
            inner = next;
        }
        inner.insert(self.doc.key.to_owned(), value);
    }

    /// Takes the value out of its place.
    pub fn take(&self, table: &mut toml::Table) -> Option<toml::Value> {
        let inner = self
            .path
            .iter()
            .try_fold(table, |table, name| table.get_mut(*name)?.as_table_mut())?;
        inner.remove(self.doc.key)
    }
}

/// Tells whether a type is that of a path, which may be optional.
pub fn is_path<T: 'static>() -> bool {
    let of = TypeId::of::<T>();
    of == TypeId::of::<PathBuf>() || of == TypeId::of::<Option<PathBuf>>()
}
