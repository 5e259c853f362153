//! Layers of settings: what is typed, variables, a file, defaults.
//!
//! ```text
//! flags  >  PREFIX_* variables  >  file  >  defaults          (the later a layer, the weaker)
//! ```
//!
//! The layers meet as TOML tables of one shape, so every layer is checked by the same rules. A file of the old form,
//! without tables, is read too: each of its keys is moved to where it stands now. Paths of a file are relative to the
//! file's folder, all others to the current one. A text that is empty stands for none, where a key may have no value.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer};

use crate::doc::{Entry, TableDoc};
use crate::read::{ConfigError, at_line, from_table, line_of, to_table};
use crate::spelling::unknown_name;
use crate::variables::unknown_variable;

/// What a program calls its variables.
#[derive(Debug, Clone, Copy)]
pub struct Variables {
    /// What all of them begin with.
    pub prefix: &'static str,
    /// Those that begin like them and set no key.
    pub others: &'static [&'static str],
    /// Keys whose variable is called otherwise than the key, by the key's flat name.
    pub renamed: &'static [(&'static str, &'static str)],
}

/// Settings of a program, declared with [`config!`](crate::config!).
pub trait Settings: Serialize + DeserializeOwned + Default {
    /// What its variables are called.
    const VARIABLES: Variables;

    /// Returns the documentation of its keys.
    fn table() -> TableDoc;

    /// Checks what no type says.
    ///
    /// # Errors
    /// Names the first key that is out of range, and the range.
    fn validate(&self) -> Result<(), ConfigError>;

    /// Changes paths that are inside of a key's value; a key that is a path itself is not meant.
    ///
    /// # Errors
    /// Says what is wrong with a value, where that is seen now.
    fn change_inner_paths(
        _key: &str,
        value: toml::Value,
        _change: &dyn Fn(&str) -> String,
    ) -> Result<toml::Value, ConfigError> {
        Ok(value)
    }

    /// Tells whether a key has a flag of its own; the others are set by `--set`.
    fn has_flag(_key: &str) -> bool {
        true
    }

    /// Returns the help of a flag, where it is more than the key's documentation.
    fn help(_key: &str) -> Option<String> {
        None
    }

    /// Returns what a flag was called before, which is still understood.
    fn old_flag(_key: &str) -> Option<&'static str> {
        None
    }
}

/// A file of settings as found: its text and the folder its paths are relative to.
#[derive(Debug, Clone, Copy)]
pub struct File<'a> {
    /// What it contains.
    pub text: &'a str,
    /// The folder it lies in.
    pub folder: &'a Path,
}

/// Settings, and what is to be said of where they come from.
#[derive(Debug, Clone, PartialEq)]
pub struct Resolved<T> {
    /// The settings.
    pub settings: T,
    /// One line, if the file is of the old form.
    pub note: Option<String>,
}

/// Layers flags over variables over a file over the defaults.
///
/// # Errors
/// One line that names the layer and the key.
pub fn resolve<T: Settings>(
    flags: &toml::Table,
    variables: impl IntoIterator<Item = (String, String)>,
    file: Option<File<'_>>,
) -> Result<Resolved<T>, ConfigError> {
    let (doc, defaults) = (T::table(), to_table(&T::default()));
    let entries = doc.entries();
    let (read, note) = match file {
        Some(file) => read::<T>(&doc, &defaults, file)?,
        None => (toml::Table::new(), None),
    };
    let variables = from_variables::<T>(&entries, &defaults, variables)?;
    let mut merged = defaults.clone();
    for layer in [&read, &variables, flags] {
        for entry in &entries {
            match entry.of(layer) {
                Some(value) if is_none(value, entry, &defaults) => drop(entry.take(&mut merged)),
                Some(value) => entry.put(&mut merged, value.clone()),
                None => {}
            }
        }
    }
    let settings: T = from_table(merged)?;
    settings.validate()?;
    Ok(Resolved { settings, note })
}

/// Puts a value into a layer, by the flat name of its key.
///
/// # Panics
/// If there is no such key.
pub fn set<T: Settings>(layer: &mut toml::Table, flat: &str, value: impl Into<toml::Value>) {
    let doc = T::table();
    let entries = doc.entries();
    let entry = entries.iter().find(|entry| entry.doc.flat == flat);
    entry
        .expect("a key of these settings")
        .put(layer, value.into());
}

/// Tells whether a variable is a setting of this program, rightly spelt or not.
pub fn is_setting<T: Settings>(name: &str) -> bool {
    let is_meant = name
        .strip_prefix(T::VARIABLES.prefix)
        .is_some_and(|rest| !is_of_a_service(rest));
    is_meant && !T::VARIABLES.others.contains(&name)
}

/// Tells whether a value stands for none: an empty text, where the key has no value by default.
fn is_none(value: &toml::Value, entry: &Entry<'_>, defaults: &toml::Table) -> bool {
    entry.of(defaults).is_none() && value.as_str() == Some("")
}

/// Reads a file as a layer, and says whether it is of the old form.
fn read<T: Settings>(
    doc: &TableDoc,
    defaults: &toml::Table,
    file: File<'_>,
) -> Result<(toml::Table, Option<String>), ConfigError> {
    let named = |error: toml::de::Error| at_line(&error, file.text);
    let mut root = DeTable::parse(file.text).map_err(named)?;
    let moved = lift(root.get_mut(), doc, file.text)?;
    check_names(root.get_ref(), doc, doc, file.text)?;
    let entries = doc.entries();
    for entry in entries.iter().filter(|entry| entry.of(defaults).is_none()) {
        drop_empty(root.get_mut(), entry);
    }
    // Read as a whole first: only then does an error know its line.
    T::deserialize(Deserializer::from(root.clone())).map_err(named)?;
    let mut table = toml::Table::deserialize(Deserializer::from(root)).map_err(named)?;
    let within = |path: &str| file.folder.join(path).to_string_lossy().into_owned();
    for entry in &entries {
        let Some(value) = entry.take(&mut table) else {
            continue;
        };
        let value = match value {
            toml::Value::String(path) if entry.doc.is_path => within(&path).into(),
            value => T::change_inner_paths(entry.doc.flat, value, &within)?,
        };
        entry.put(&mut table, value);
    }
    Ok((table, note(&moved)))
}

/// Moves keys of the old form to where they stand now, and returns those that were moved, each with its table.
fn lift<'i>(
    root: &mut DeTable<'i>,
    doc: &TableDoc,
    text: &str,
) -> Result<Vec<(&'static str, &'static str)>, ConfigError> {
    let mut moved = Vec::new();
    for entry in doc.entries() {
        let [table] = entry.path[..] else { continue };
        let flat = entry.doc.flat;
        if doc.key(flat).is_some() {
            continue; // The name means something else at the top.
        }
        let Some(value) = root.remove(flat) else {
            continue;
        };
        let span = value.span();
        let place = root
            .entry(Spanned::new(span.clone(), Cow::Borrowed(table)))
            .or_insert_with(|| Spanned::new(span.clone(), DeValue::Table(DeTable::new())));
        if let DeValue::Table(inner) = place.get_mut() {
            let key = Spanned::new(span.clone(), Cow::Borrowed(entry.doc.key));
            if inner.insert(key, value).is_some() {
                return Err(ConfigError(format!(
                    "line {}: `{flat}` is there twice: here and as `{}` of [{table}]",
                    line_of(text, span.start),
                    entry.doc.key
                )));
            }
        }
        moved.push((flat, table));
    }
    Ok(moved)
}

fn note(moved: &[(&'static str, &'static str)]) -> Option<String> {
    if moved.is_empty() {
        return None;
    }
    let keys: Vec<String> = moved.iter().map(|(key, _)| format!("`{key}`")).collect();
    let tables: BTreeSet<String> = moved.iter().map(|(_, t)| format!("[{t}]")).collect();
    let tables: Vec<String> = tables.into_iter().collect();
    Some(format!(
        "is of the old form, which is still read: {} belong into {} now",
        keys.join(", "),
        tables.join(", ")
    ))
}

/// Refuses names that are no keys, and offers the nearest ones of this table and of those in it.
fn check_names(
    table: &DeTable<'_>,
    doc: &TableDoc,
    whole: &TableDoc,
    text: &str,
) -> Result<(), ConfigError> {
    for (name, value) in table {
        let Some(key) = doc.key(name.get_ref()) else {
            let here = doc.keys.iter().map(|key| key.key.to_owned());
            let deeper = doc.entries().into_iter().map(|entry| entry.dotted());
            let else_where = whole.entries().into_iter().map(|entry| entry.dotted());
            let valid: BTreeSet<String> = here.chain(deeper).chain(else_where).collect();
            let valid: Vec<&str> = valid.iter().map(String::as_str).collect();
            let line = line_of(text, name.span().start);
            let unknown = unknown_name("key", name.get_ref(), &valid);
            return Err(ConfigError(format!("line {line}: {unknown}")));
        };
        if let (Some(inner_doc), DeValue::Table(inner)) = (&key.table, value.get_ref()) {
            check_names(inner, inner_doc, whole, text)?;
        }
    }
    Ok(())
}

/// Takes an empty text out: it stands for no value.
fn drop_empty(root: &mut DeTable<'_>, entry: &Entry<'_>) {
    let mut table = root;
    for name in &entry.path {
        let Some(DeValue::Table(inner)) = table.get_mut(*name).map(Spanned::get_mut) else {
            return;
        };
        table = inner;
    }
    let is_empty = |value: &Spanned<DeValue<'_>>| value.get_ref().as_str() == Some("");
    if table.get(entry.doc.key).is_some_and(is_empty) {
        table.remove(entry.doc.key);
    }
}

/// Turns variables into a layer; a value is read as the type that its key has.
fn from_variables<T: Settings>(
    entries: &[Entry<'_>],
    defaults: &toml::Table,
    variables: impl IntoIterator<Item = (String, String)>,
) -> Result<toml::Table, ConfigError> {
    let mut layer = toml::Table::new();
    for (name, text) in variables {
        if !is_setting::<T>(&name) {
            continue;
        }
        let Some(entry) = entries.iter().find(|entry| variable::<T>(entry) == name) else {
            let keys = entries.iter().map(|entry| (entry, variable::<T>(entry)));
            let keys: Vec<(&Entry<'_>, String)> = keys.collect();
            let text = unknown_variable(&name, T::VARIABLES, &keys);
            return Err(ConfigError(text));
        };
        let default = entry.of(defaults);
        // An empty variable of a path that has to be somewhere is one that was not set.
        if text.is_empty() && entry.doc.is_path && default.is_some() {
            continue;
        }
        let value = typed(&text, default).ok_or_else(|| {
            ConfigError(format!("`{name}={text}`: expected {}", expected(default)))
        })?;
        entry.put(&mut layer, value);
    }
    Ok(layer)
}

/// Returns the name of a key's variable.
fn variable<T: Settings>(entry: &Entry<'_>) -> String {
    let flat = entry.doc.flat;
    let renamed = T::VARIABLES.renamed.iter().find(|(key, _)| *key == flat);
    renamed.map_or_else(
        || format!("{}{}", T::VARIABLES.prefix, flat.to_ascii_uppercase()),
        |(_, name)| (*name).to_owned(),
    )
}

/// Reads a text as the type of a default.
pub(crate) fn typed(text: &str, like: Option<&toml::Value>) -> Option<toml::Value> {
    match like {
        Some(toml::Value::Integer(_)) => text.parse().ok().map(toml::Value::Integer),
        Some(toml::Value::Float(_)) => text.parse().ok().map(toml::Value::Float),
        Some(toml::Value::Boolean(_)) => text.parse().ok().map(toml::Value::Boolean),
        Some(toml::Value::Array(_)) => list(text).map(toml::Value::Array),
        _ => Some(toml::Value::String(text.to_owned())),
    }
}

/// Reads a list: in brackets as a file has it, or its items with commas between.
fn list(text: &str) -> Option<Vec<toml::Value>> {
    if text.trim_start().starts_with('[') {
        let mut file: toml::Table = format!("list = {text}").parse().ok()?;
        return match file.remove("list") {
            Some(toml::Value::Array(items)) => Some(items),
            _ => None,
        };
    }
    let items = text.split(',').map(str::trim);
    let items = items.filter(|item| !item.is_empty());
    Some(items.map(|item| item.to_owned().into()).collect())
}

/// Says what was expected of a text that is no value like this.
pub(crate) fn expected(like: Option<&toml::Value>) -> &'static str {
    match like {
        Some(toml::Value::Integer(_)) => "a whole number",
        Some(toml::Value::Float(_)) => "a number",
        Some(toml::Value::Boolean(_)) => "`true` or `false`",
        _ => "a text",
    }
}

/// Tells whether a variable is one that Kubernetes sets in every container beside a service of our name (`FEDBOOT_PORT`,
/// `FEDBOOT_SERVICE_HOST`), given what follows our prefix.
fn is_of_a_service(rest: &str) -> bool {
    rest == "PORT"
        || ["PORT_", "SERVICE_HOST", "SERVICE_PORT"]
            .iter()
            .any(|start| rest.starts_with(start))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    crate::config! {
        /// Where to listen.
        struct Network {
            /// Addresses.
            listen: Vec<String> = vec!["a".into()] => "ADDR",
            /// The key's file.
            @flat("network_key") key: Option<PathBuf> = None => "FILE",
        }
    }

    crate::config! {
        /// A program.
        struct Program {
            /// Where its data are.
            data: String = "digits".into(),
            /// How many threads.
            threads: usize = 0 => "N",
            /// Whether it is quiet.
            quiet: bool = false,
            /// Where its files are.
            folder: PathBuf = "state".into() => "DIR",
            /// The network.
            @table network: Network = Network { listen: vec!["b".into()], ..Network::default() },
        }
    }

    impl Settings for Program {
        const VARIABLES: Variables = Variables {
            prefix: "PROGRAM_",
            others: &["PROGRAM_DATA"],
            renamed: &[("data", "PROGRAM_DATA_SOURCE")],
        };

        fn table() -> TableDoc {
            Self::doc()
        }

        fn validate(&self) -> Result<(), ConfigError> {
            match self.threads {
                0..100 => Ok(()),
                _ => Err(ConfigError("`threads` is out of range".into())),
            }
        }

        fn change_inner_paths(
            key: &str,
            value: toml::Value,
            change: &dyn Fn(&str) -> String,
        ) -> Result<toml::Value, ConfigError> {
            Ok(match (key, value.as_str()) {
                ("data", Some(path)) => change(path).into(),
                _ => value,
            })
        }
    }

    fn of(
        flags: &str,
        variables: &[(&str, &str)],
        file: &str,
    ) -> Result<Resolved<Program>, ConfigError> {
        let variables = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let folder = Path::new("/etc");
        let flags = flags.parse().unwrap();
        resolve(&flags, variables, Some(File { text: file, folder }))
    }

    #[test]
    fn stronger_layers_win_and_others_keep_their_keys() {
        let file = "threads = 1\nquiet = true\ndata = \"d\"\n[network]\nkey = \"k\"";
        let resolved = of("threads = 3", &[("PROGRAM_THREADS", "2")], file).unwrap();
        let settings = resolved.settings;
        assert_eq!((settings.threads, settings.quiet), (3, true));
        // What a program gives its table by default is not that table's own default.
        assert_eq!(settings.network.listen, ["b"]);
        assert_eq!(settings.network.key, Some("/etc/k".into()));
        assert_eq!(settings.data, "/etc/d");
        assert_eq!(resolved.note, None);
        assert_eq!(of("", &[], "").unwrap().settings, Program::default());
    }

    #[test]
    fn files_without_tables_are_still_read() {
        let resolved = of(
            "",
            &[],
            "listen = [\"c\"]\nnetwork_key = \"k\"\nthreads = 1",
        )
        .unwrap();
        assert_eq!(resolved.settings.network.listen, ["c"]);
        assert_eq!(resolved.settings.network.key, Some("/etc/k".into()));
        assert_eq!(
            resolved.note.unwrap(),
            "is of the old form, which is still read: `listen`, `network_key` belong into [network] now"
        );
        let empty = of("", &[("PROGRAM_NETWORK_KEY", "")], "network_key = \"\"").unwrap();
        assert_eq!(empty.settings.network.key, None);
        let error = of("", &[], "listen = [\"c\"]\n[network]\nlisten = []").unwrap_err();
        assert_eq!(
            error.0,
            "line 1: `listen` is there twice: here and as `listen` of [network]"
        );
    }

    #[test]
    fn an_empty_text_takes_a_value_away() {
        let file = "[network]\nkey = \"k\"";
        let flags = "[network]\nkey = \"\"";
        assert_eq!(of(flags, &[], file).unwrap().settings.network.key, None);
    }

    #[test]
    fn an_empty_variable_of_a_folder_is_one_that_was_not_set() {
        let folder = |value| {
            let resolved = of("", &[("PROGRAM_FOLDER", value)], "folder = \"f\"");
            resolved.unwrap().settings.folder
        };
        assert_eq!(folder(""), Path::new("/etc/f"));
        assert_eq!(folder("g"), Path::new("g"));
    }

    #[test]
    fn a_list_is_written_as_in_a_file_or_with_commas() {
        let listen = |text: &str| {
            let resolved = of("", &[("PROGRAM_LISTEN", text)], "");
            resolved.map(|resolved| resolved.settings.network.listen)
        };
        for text in ["x, y", r#"["x", "y"]"#, r#" [ "x", "y", ]"#] {
            assert_eq!(listen(text).unwrap(), ["x", "y"], "{text}");
        }
        for text in ["", "[]"] {
            assert!(listen(text).unwrap().is_empty(), "{text}");
        }
        for text in ["[x]", "[\"x\"", "[1]"] {
            assert!(listen(text).is_err(), "{text}");
        }
    }

    #[test]
    fn variables_have_the_type_of_their_key() {
        let variables = [
            ("PROGRAM_LISTEN", "x, y"),
            ("PROGRAM_QUIET", "true"),
            ("PROGRAM_DATA", "/var"),
            ("PROGRAM_DATA_SOURCE", "csv"),
            ("PROGRAM_PORT_4001_TCP_ADDR", "10.0.0.1"),
            ("PROGRAM_SERVICE_HOST", "10.0.0.1"),
            ("HOME", "/root"),
        ];
        let settings = of("", &variables, "").unwrap().settings;
        assert_eq!(settings.network.listen, ["x", "y"]);
        assert_eq!((settings.quiet, settings.data.as_str()), (true, "csv"));
        let error = of("", &[("PROGRAM_THREADS", "two")], "").unwrap_err();
        assert_eq!(error.0, "`PROGRAM_THREADS=two`: expected a whole number");
    }

    #[test]
    fn unknown_names_offer_the_nearest_wherever_it_stands() {
        let error =
            |flags, variables: &[(&str, &str)], file| of(flags, variables, file).unwrap_err().0;
        assert_eq!(
            error("", &[("PROGRAM_LISTN", "x")], ""),
            "unknown variable `PROGRAM_LISTN`: did you mean `PROGRAM_LISTEN`?"
        );
        for with_table in ["PROGRAM_NETWORK_LISTEN", "PROGRAM_NETWORK_LISTN"] {
            assert_eq!(
                error("", &[(with_table, "x")], ""),
                format!("unknown variable `{with_table}`: did you mean `PROGRAM_LISTEN`?")
            );
        }
        assert_eq!(
            error("", &[("PROGRAM_NETWORK_FOO", "x")], ""),
            "unknown variable `PROGRAM_NETWORK_FOO`: expected one of `PROGRAM_LISTEN`, `PROGRAM_NETWORK_KEY`"
        );
        assert_eq!(
            error("", &[], "\nlisen = []"),
            "line 2: unknown key `lisen`: did you mean `network.listen`?"
        );
        assert_eq!(
            error("", &[], "[network]\n\nthreds = 1"),
            "line 3: unknown key `threds`: did you mean `threads`?"
        );
        assert_eq!(
            error("", &[], "[network]\nlisten = 1"),
            "line 2: invalid type: integer `1`, expected a sequence"
        );
        assert_eq!(error("threads = 100", &[], ""), "`threads` is out of range");
    }
}
