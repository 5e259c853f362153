//! What commands print: a report for people, or the same as JSON with `--json`.
//!
//! Names of peers and files are in it, so what would steer a terminal is written out.
//!
//! Only answers go to standard output. Progress and errors go to standard error, so that the JSON of a command can be
//! piped on as it is.

use fednode_core::plain;
use fednode_runtime::exit::ExitCode;
use fednode_runtime::streams;
use serde::Serialize;

use crate::failure::OrFail;

/// What a command found out.
pub trait Report: Serialize {
    /// Returns the text for people, every line ended.
    fn human(&self) -> String;
}

/// A report of what lies in a folder.
#[derive(Debug, Serialize)]
pub struct Located<'a, R> {
    /// The report.
    #[serde(flatten)]
    pub report: &'a R,
    /// The folder.
    pub out: String,
}

impl<R: Report> Report for Located<'_, R> {
    fn human(&self) -> String {
        format!("{}\nEverything lies in {}\n", self.report.human(), self.out)
    }
}

/// How reports are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// For people.
    Human,
    /// For programs.
    Json,
}

/// Prints a report.
///
/// # Errors
/// Fails if standard output cannot be written, except when its reader has gone, which is no fault of ours.
pub fn print(report: &impl Report, form: Form) -> anyhow::Result<()> {
    let text = match form {
        Form::Human => plain(&report.human()).into_owned(),
        Form::Json => serde_json::to_string_pretty(report)? + "\n",
    };
    write(&text)
}

/// Prints one of several reports, as JSON in one line.
///
/// # Errors
/// As [`print()`].
pub fn print_line(report: &impl Report, form: Form) -> anyhow::Result<()> {
    match form {
        Form::Human => write(&plain(&report.human())),
        Form::Json => write(&(serde_json::to_string(report)? + "\n")),
    }
}

/// Prints text as it is.
///
/// # Errors
/// As [`print()`].
pub fn write(text: &str) -> anyhow::Result<()> {
    streams::write(text).or_fail(ExitCode::Output).map(drop)
}
