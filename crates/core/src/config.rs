//! Configuration that documents itself.
//!
//! [`config!`](crate::config!) declares a struct whose doc comments are also data: the commented sample file is
//! generated from them, so the sample and the code cannot disagree. Unknown keys are errors, and [`parse`] names the
//! nearest valid one.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The documentation of one key.
#[derive(Debug, Clone, Copy)]
pub struct KeyDoc {
    /// The key as written in the file.
    pub key: &'static str,
    /// Its doc comment, one string per line.
    pub lines: &'static [&'static str],
    /// The documentation of the table it opens, if it is one.
    pub table: Option<fn() -> TableDoc>,
}

/// The documentation of a table.
#[derive(Debug, Clone)]
pub struct TableDoc {
    /// The doc comment of the table itself.
    pub lines: &'static [&'static str],
    /// Its keys, in file order.
    pub keys: Vec<KeyDoc>,
}

/// Tells why a configuration file was refused, in one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);

/// Declares a documented configuration struct.
///
/// Fields are `name: Type = default`; a field that opens a documented table is marked `@table`.
#[macro_export]
macro_rules! config {
    (
        $(#[doc = $struct_doc:literal])*
        pub struct $name:ident {
            $(
                $(#[doc = $doc:literal])*
                $(@$table:ident)? $field:ident : $type:ty = $default:expr
            ),* $(,)?
        }
    ) => {
        $(#[doc = $struct_doc])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            $( $(#[doc = $doc])* pub $field: $type, )*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $( $field: $default, )* }
            }
        }

        impl $name {
            /// Returns the documentation of this table's keys.
            pub fn doc() -> $crate::config::TableDoc {
                $crate::config::TableDoc {
                    lines: &[$($struct_doc),*],
                    keys: vec![$(
                        $crate::config::KeyDoc {
                            key: stringify!($field),
                            lines: &[$($doc),*],
                            table: $crate::config!(@table $($table)? $type),
                        }
                    ),*],
                }
            }
        }
    };
    (@table table $type:ty) => { Some(<$type>::doc) };
    (@table $type:ty) => { None };
}

/// Reads a TOML file into a configuration struct.
///
/// # Errors
/// One line: where, what, and for an unknown key the nearest valid one.
pub fn parse<T: DeserializeOwned>(text: &str) -> Result<T, ConfigError> {
    toml::from_str(text).map_err(|error| {
        let line = error
            .span()
            .map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        let place = line
            .map(|line| format!("line {line}: "))
            .unwrap_or_default();
        ConfigError(format!("{place}{}", explain(error.message())))
    })
}

/// Turns a message of serde into one line: it offers the nearest key for an unknown one, and all words of a closed set for
/// an unknown word.
pub fn explain(message: &str) -> String {
    let names: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    match names.split_first() {
        Some((unknown, valid)) if message.starts_with("unknown field") => {
            unknown_name("key", unknown, valid)
        }
        Some((unknown, valid)) if message.starts_with("unknown variant") => {
            unknown_value(unknown, valid)
        }
        _ => message.split_whitespace().collect::<Vec<_>>().join(" "),
    }
}

/// Says that a word is unknown, which of a closed set is nearest, and which there are.
fn unknown_value(unknown: &str, valid: &[&str]) -> String {
    let offer = unknown_name("value", unknown, valid);
    if offer.ends_with('?') {
        format!("{offer} Allowed are {}", quoted(valid).join(", "))
    } else {
        offer
    }
}

fn quoted(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| format!("`{name}`")).collect()
}

/// Tells whether a variable is one that Kubernetes sets in every container beside a service of our name (`FEDBOOT_PORT`,
/// `FEDBOOT_SERVICE_HOST`), given what follows our prefix.
pub fn is_of_a_service(rest: &str) -> bool {
    rest == "PORT"
        || ["PORT_", "SERVICE_HOST", "SERVICE_PORT"]
            .iter()
            .any(|start| rest.starts_with(start))
}

/// What likeness of last parts counts, of that of whole names.
const LAST_PART: f64 = 0.97;

/// Says that a name is unknown and which valid ones are nearest. Of dotted names the last part may be all that was typed:
/// `batch_size` is as near to `training.batch_size` as to `pool.batch_size`, so both are offered.
pub fn unknown_name(kind: &str, unknown: &str, valid: &[&str]) -> String {
    let last = |name: &str| {
        name.rsplit('.')
            .next()
            .map_or_else(String::new, str::to_owned)
    };
    let likeness = |name: &str| {
        let whole = strsim::jaro_winkler(unknown, name);
        whole.max(strsim::jaro_winkler(&last(unknown), &last(name)) * LAST_PART)
    };
    let mut near: Vec<(f64, &str)> = valid.iter().map(|name| (likeness(name), *name)).collect();
    near.sort_by(|a, b| b.0.total_cmp(&a.0));
    match near.as_slice() {
        [] => format!("unknown {kind} `{unknown}`: none is allowed here"),
        [(score, _), ..] if *score > 0.8 => {
            let best = near.iter().take_while(|(other, _)| other == score);
            let best: Vec<&str> = best.map(|(_, name)| *name).collect();
            format!(
                "unknown {kind} `{unknown}`: did you mean {}?",
                quoted(&best).join(" or ")
            )
        }
        _ => format!(
            "unknown {kind} `{unknown}`: expected one of {}",
            quoted(valid).join(", ")
        ),
    }
}

/// Writes a configuration as a commented sample file: every key, its documentation above it, its value.
///
/// # Panics
/// If the configuration cannot be written as TOML, which would be a mistake in its declaration.
pub fn sample<T: Serialize>(config: &T, doc: &TableDoc) -> String {
    let value = toml::Value::try_from(config).expect("a configuration is a TOML table");
    let mut text = comment(doc.lines);
    write_table(
        &mut text,
        "",
        value.as_table().expect("a configuration is a TOML table"),
        doc,
    );
    text
}

fn write_table(text: &mut String, path: &str, table: &toml::Table, doc: &TableDoc) {
    let (tables, plain): (Vec<&KeyDoc>, Vec<&KeyDoc>) =
        doc.keys.iter().partition(|key| key.table.is_some());
    for key in plain {
        text.push_str(&comment(key.lines));
        match table.get(key.key) {
            Some(value) => write_value(text, key.key, value),
            None => text.push_str(&format!("# {} =\n", key.key)),
        }
        text.push('\n');
    }
    // A table without documented keys is written by a machine: it has what it has.
    if doc.keys.is_empty() {
        for (name, value) in table {
            write_value(text, name, value);
        }
    }
    for key in tables {
        let name = key.key;
        let inner_path = if path.is_empty() {
            name.to_owned()
        } else {
            format!("{path}.{name}")
        };
        text.push_str(&comment(key.lines));
        match (table.get(name), key.table) {
            (Some(toml::Value::Table(inner)), Some(inner_doc)) => {
                text.push_str(&format!("[{inner_path}]\n"));
                write_table(text, &inner_path, inner, &inner_doc());
            }
            _ => text.push_str(&format!("# [{inner_path}]\n\n")),
        }
    }
}

fn write_value(text: &mut String, name: &str, value: &toml::Value) {
    match value {
        toml::Value::Table(inner) => {
            let entries: Vec<String> = inner
                .iter()
                .map(|(key, value)| format!("{key} = {value}"))
                .collect();
            text.push_str(&format!("{name} = {{ {} }}\n", entries.join(", ")));
        }
        value => text.push_str(&format!("{name} = {value}\n")),
    }
}

fn comment(lines: &[&str]) -> String {
    lines.iter().map(|line| format!("#{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    #![allow(unreachable_pub, reason = "the macro declares public structs")]
    use super::*;

    config! {
        /// A sample.
        pub struct Inner {
            /// How deep.
            depth: u32 = 3,
        }
    }

    config! {
        /// A sample of tables.
        pub struct Outer {
            /// What it is called.
            given_name: String = "x".into(),
            /// The inner one.
            @table inner: Inner = Inner::default(),
        }
    }

    #[test]
    fn sample_is_read_back_and_carries_the_docs() {
        let text = sample(&Outer::default(), &Outer::doc());
        assert_eq!(parse::<Outer>(&text), Ok(Outer::default()));
        assert!(
            text.contains("# What it is called.\ngiven_name = \"x\""),
            "{text}"
        );
        assert!(text.contains("[inner]\n# How deep.\ndepth = 3"), "{text}");
    }

    #[test]
    fn offers_the_nearest_key() {
        let error = parse::<Outer>("\n[inner]\ndepht = 1").unwrap_err();
        assert_eq!(
            error.0,
            "line 3: unknown key `depht`: did you mean `depth`?"
        );
        let keys = [
            "pool.batch_size",
            "pool.epochs",
            "seed",
            "training.batch_size",
            "training.local_epochs",
        ];
        let offer = |typed| {
            unknown_name("key", typed, &keys)
                .split_once("mean ")
                .unwrap()
                .1
                .to_owned()
        };
        assert_eq!(
            offer("batch_size"),
            "`pool.batch_size` or `training.batch_size`?"
        );
        assert_eq!(offer("local_epochs"), "`training.local_epochs`?");
        assert_eq!(offer("pool.batchsize"), "`pool.batch_size`?");
    }
}
