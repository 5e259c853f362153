//! Flags of a command line, made of the definition of the settings, with the documentation of a key as help.
//!
//! A key `partition_file` is the flag `--partition-file`. A key of a table has its flat name, so that flags know no
//! tables. A program may leave keys without a flag ([`Settings::has_flag`]); `--set TABLE.KEY=VALUE` reaches all of
//! them. What is typed becomes a layer; whether it is right is said where all layers meet.

use std::fmt;
use std::marker::PhantomData;

use clap::builder::{StyledStr, UnknownArgumentValueParser};
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use crate::doc::{Entry, KeyDoc};
use crate::layers::{Settings, expected, typed as typed_as};
use crate::read::{ConfigError, to_table};
use crate::spelling::unknown_name;

/// The flag that sets any key.
const SET: &str = "set";

/// What was typed of the settings of a program.
#[derive(Clone)]
pub struct Flags<T> {
    /// The layer.
    pub layer: toml::Table,
    settings: PhantomData<fn() -> T>,
}

impl<T> Default for Flags<T> {
    fn default() -> Self {
        Self {
            layer: toml::Table::new(),
            settings: PhantomData,
        }
    }
}

impl<T> fmt::Debug for Flags<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Flags").field(&self.layer).finish()
    }
}

/// Types that a flag's value can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Switch,
    Whole,
    Number,
    List,
    Text,
}

impl Kind {
    fn of(default: Option<&toml::Value>) -> Self {
        match default {
            Some(toml::Value::Boolean(_)) => Self::Switch,
            Some(toml::Value::Integer(_)) => Self::Whole,
            Some(toml::Value::Float(_)) => Self::Number,
            Some(toml::Value::Array(_)) => Self::List,
            _ => Self::Text,
        }
    }
}

/// Refuses a flag that was dropped, as any other that there is not, and says what to write instead.
pub fn dropped(instead: &str) -> UnknownArgumentValueParser {
    UnknownArgumentValueParser::suggest(StyledStr::from(format!("write {instead}")))
}

/// Returns a key's flag where there is none any more: it only says how the key is set.
fn no_flag(entry: &Entry<'_>) -> Arg {
    let instead = format!("--set {}=VALUE", entry.dotted());
    Arg::new(entry.doc.flat)
        .long(entry.doc.flat.replace('_', "-"))
        .hide(true)
        .value_name("VALUE")
        .num_args(0..=1)
        .default_missing_value("")
        .value_parser(dropped(&instead))
}

fn set_flag() -> Arg {
    Arg::new(SET)
        .long(SET)
        .value_name("KEY=VALUE")
        .action(ArgAction::Append)
        .help("Any key of the file, as `network.mdns=true`; may be repeated")
}

fn flag<T: Settings>(doc: &KeyDoc, default: Option<&toml::Value>) -> Arg {
    let help = T::help(doc.flat).unwrap_or_else(|| {
        let words: Vec<&str> = doc.lines.iter().map(|line| line.trim()).collect();
        words.join(" ").trim_end_matches('.').to_owned()
    });
    let arg = Arg::new(doc.flat)
        .long(doc.flat.replace('_', "-"))
        .help(format!("{help}{}", shown(default)));
    let arg = match T::old_flag(doc.flat) {
        Some(old) => arg.alias(old),
        None => arg,
    };
    let arg = match doc.value {
        Some(value) => arg.value_name(value),
        None => arg,
    };
    match Kind::of(default) {
        Kind::Switch => arg
            .value_name("true|false")
            .hide_possible_values(true)
            .num_args(0..=1)
            .default_missing_value("true")
            .require_equals(true)
            .value_parser(value_parser!(bool)),
        Kind::Whole => arg.value_parser(value_parser!(i64)),
        Kind::Number => arg.value_parser(value_parser!(f64)),
        Kind::List => arg
            .num_args(1..)
            .value_delimiter(',')
            .action(ArgAction::Append),
        Kind::Text => arg,
    }
}

/// Returns a default as help shows it.
fn shown(default: Option<&toml::Value>) -> String {
    let text = match default {
        Some(toml::Value::String(text)) => text.clone(),
        Some(toml::Value::Integer(number)) => number.to_string(),
        Some(toml::Value::Float(number)) => number.to_string(),
        Some(toml::Value::Array(items)) => {
            let items: Vec<&str> = items.iter().filter_map(toml::Value::as_str).collect();
            items.join(",")
        }
        _ => String::new(),
    };
    if text.is_empty() {
        text
    } else {
        format!(" [default: {text}]")
    }
}

fn typed(matches: &ArgMatches, entry: &Entry<'_>, kind: Kind) -> Option<toml::Value> {
    let id = entry.doc.flat;
    match kind {
        Kind::Switch => matches.get_one::<bool>(id).map(|on| (*on).into()),
        Kind::Whole => matches.get_one::<i64>(id).map(|number| (*number).into()),
        Kind::Number => matches.get_one::<f64>(id).map(|number| (*number).into()),
        Kind::List => matches.get_many::<String>(id).map(|items| {
            let items = items.map(|item| item.clone().into());
            toml::Value::Array(items.collect())
        }),
        Kind::Text => matches
            .get_one::<String>(id)
            .map(|text| text.clone().into()),
    }
}

impl<T: Settings> clap::Args for Flags<T> {
    fn augment_args(command: Command) -> Command {
        let (doc, defaults) = (T::table(), to_table(&T::default()));
        let entries = doc.entries();
        let flags = entries.iter().map(|entry| {
            if T::has_flag(entry.doc.flat) {
                flag::<T>(entry.doc, entry.of(&defaults))
            } else {
                no_flag(entry)
            }
        });
        command.args(flags).arg(set_flag())
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<T: Settings> clap::FromArgMatches for Flags<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        let (doc, defaults) = (T::table(), to_table(&T::default()));
        let entries = doc.entries();
        for entry in entries.iter().filter(|entry| T::has_flag(entry.doc.flat)) {
            let kind = Kind::of(entry.of(&defaults));
            if let Some(value) = typed(matches, entry, kind) {
                entry.put(&mut self.layer, value);
            }
        }
        let of_flags = self.layer.clone();
        for assignment in matches.get_many::<String>(SET).into_iter().flatten() {
            let (entry, value) = assigned(assignment, &entries, &defaults)
                .and_then(|(entry, value)| match entry.of(&of_flags) {
                    Some(typed) if *typed != value => Err(twice(entry)),
                    _ => Ok((entry, value)),
                })
                .map_err(|error| clap::Error::raw(ErrorKind::ValueValidation, error))?;
            entry.put(&mut self.layer, value);
        }
        Ok(())
    }
}

/// Reads one `key=value`; the value has the type that its key has.
fn assigned<'a>(
    text: &str,
    entries: &'a [Entry<'a>],
    defaults: &toml::Table,
) -> Result<(&'a Entry<'a>, toml::Value), ConfigError> {
    let Some((key, value)) = text.split_once('=') else {
        return Err(ConfigError(format!(
            "`{text}` is not of the form key=value"
        )));
    };
    let (key, value) = (key.trim(), value.trim());
    let Some(entry) = entries.iter().find(|entry| entry.dotted() == key) else {
        let valid: Vec<String> = entries.iter().map(Entry::dotted).collect();
        let valid: Vec<&str> = valid.iter().map(String::as_str).collect();
        return Err(ConfigError(unknown_name("key", key, &valid)));
    };
    let default = entry.of(defaults);
    match typed_as(value, default) {
        Some(value) => Ok((entry, value)),
        None => {
            let expected = expected(default);
            Err(ConfigError(format!("`{key}={value}`: expected {expected}")))
        }
    }
}

fn twice(entry: &Entry<'_>) -> ConfigError {
    ConfigError(format!(
        "`{}` is given twice, by its flag and by --set: drop one of them",
        entry.dotted()
    ))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use clap::{Args, FromArgMatches};

    use super::*;
    use crate::layers::{Variables, resolve};
    use crate::{ConfigError, TableDoc};

    crate::config! {
        /// The log.
        struct Log {
            /// How lines
            /// are written.
            @flat("log_format") format: String = "human".into() => "FORM",
        }
    }

    crate::config! {
        /// A program.
        struct Program {
            /// How many.
            threads: usize = 2 => "N",
            /// How long, in seconds.
            linger_seconds: f64 = 1.5,
            /// Whether it is quiet.
            quiet: bool = false,
            /// Whom to ask.
            peers: Vec<String> = Vec::new() => "ADDR",
            /// Where.
            folder: Option<PathBuf> = None => "DIR",
            /// The log.
            @table log: Log = Log::default(),
        }
    }

    impl Settings for Program {
        const VARIABLES: Variables = Variables {
            prefix: "PROGRAM_",
            others: &[],
            renamed: &[],
        };

        fn table() -> TableDoc {
            Self::doc()
        }

        fn validate(&self) -> Result<(), ConfigError> {
            Ok(())
        }

        fn has_flag(key: &str) -> bool {
            key != "peers"
        }

        fn help(key: &str) -> Option<String> {
            (key == "folder").then(|| "Somewhere".into())
        }
    }

    fn command() -> Command {
        Flags::<Program>::augment_args(Command::new("program"))
    }

    fn parsed(line: &str) -> Program {
        let matches = command().get_matches_from(std::iter::once("program").chain(line.split(' ')));
        let flags = Flags::<Program>::from_arg_matches(&matches).unwrap();
        resolve(&flags.layer, [], None).unwrap().settings
    }

    fn refusal(line: &str) -> String {
        let line = std::iter::once("program").chain(line.split(' '));
        let matches = command().try_get_matches_from(line);
        let refused = matches.and_then(|matches| Flags::<Program>::from_arg_matches(&matches));
        refused.unwrap_err().to_string()
    }

    #[test]
    fn set_reaches_every_key_and_says_what_is_wrong() {
        assert_eq!(parsed("--set threads=3").threads, 3);
        assert_eq!(parsed("--set log.format=json").log.format, "json");
        for (line, wanted) in [
            (
                "--set threads=two",
                "`threads=two`: expected a whole number",
            ),
            (
                "--set format=x",
                "unknown key `format`: did you mean `log.format`?",
            ),
            ("--set quiet", "`quiet` is not of the form key=value"),
            ("--threads 2 --set threads=3", "`threads` is given twice"),
            ("--peers a", "tip: write --set peers=VALUE"),
            ("--peers", "unexpected argument '--peers"),
        ] {
            let error = refusal(line);
            assert!(error.contains(wanted), "{line}: {error}");
        }
        let help = command().render_help().to_string();
        assert!(!help.contains("--peers"), "{help}");
    }

    #[test]
    fn flags_have_the_type_of_their_key() {
        let line = "--threads 3 --linger-seconds=2 --quiet --set peers=a,b --set peers=a,b,c --folder f --log-format json";
        let expected = Program {
            threads: 3,
            linger_seconds: 2.0,
            quiet: true,
            peers: ["a", "b", "c"].map(str::to_owned).into(),
            folder: Some("f".into()),
            log: Log {
                format: "json".into(),
            },
        };
        assert_eq!(parsed(line), expected);
        assert!(!parsed("--quiet=false").quiet);
        command().debug_assert();
    }

    #[test]
    fn the_documentation_is_the_help() {
        let help = command().render_help().to_string();
        for line in [
            "--threads <N>",
            "How many [default: 2]",
            "How lines are written [default: human]",
            "--folder <DIR>",
            "Somewhere",
        ] {
            assert!(help.contains(line), "`{line}` is not in {help}");
        }
    }
}
