//! How a command fails: one line that says what happened and what to do, and an exit code by cause.
//!
//! Libraries return typed errors; here each is given its exit code, once, where it enters a command. What reaches
//! `main` without one is a mistake of ours and ends as `internal`.

use std::fmt;

use fednode_core::{ConfigError, plain_line};
use fednode_learn::LearnError;
use fednode_runtime::exit::ExitCode;

/// An error with its exit code.
#[derive(Debug)]
pub struct Failure {
    code: ExitCode,
    message: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// Makes an error with an exit code.
pub fn fail(code: ExitCode, message: impl Into<String>) -> anyhow::Error {
    Failure {
        code,
        message: message.into(),
    }
    .into()
}

/// Gives the errors of libraries their exit codes.
pub trait OrFail<T> {
    /// Attaches a code; the message is that of the error and its sources.
    fn or_fail(self, code: ExitCode) -> anyhow::Result<T>;
}

impl<T, E: Into<anyhow::Error>> OrFail<T> for Result<T, E> {
    fn or_fail(self, code: ExitCode) -> anyhow::Result<T> {
        self.map_err(|error| fail(code, one_line(&error.into())))
    }
}

/// Why there is no learner: the settings, or else the data.
pub fn no_learner(error: LearnError) -> anyhow::Error {
    let code = if matches!(error, LearnError::Config(_)) {
        ExitCode::Configuration
    } else {
        ExitCode::Data
    };
    fail(code, error.to_string())
}

/// Returns the exit code of an error.
pub fn code(error: &anyhow::Error) -> ExitCode {
    let failure = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<Failure>());
    let is_configuration = error.chain().any(|cause| cause.is::<ConfigError>());
    match failure {
        Some(failure) => failure.code,
        None if is_configuration => ExitCode::Configuration,
        None => ExitCode::Internal,
    }
}

/// Writes an error and its sources in one line. A cause that the error has already quoted is not said twice.
pub fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain().map(|cause| {
        cause
            .to_string()
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    }) {
        if !line.contains(&cause) {
            line += if line.is_empty() { "" } else { ": " };
            line += &cause;
        }
    }
    plain_line(&line).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn the_innermost_code_counts_and_the_line_has_every_cause() {
        let inner: Result<(), std::io::Error> = Err(std::io::Error::other("disk\non fire"));
        let error = inner
            .or_fail(ExitCode::State)
            .context("cannot save")
            .unwrap_err();
        assert_eq!(code(&error), ExitCode::State);
        assert_eq!(one_line(&error), "cannot save: disk on fire");
        let hostile = anyhow::anyhow!("no tensor \u{1b}[2J");
        assert_eq!(one_line(&hostile), "no tensor \\u{1b}[2J");
    }

    #[test]
    fn a_quoted_cause_is_not_said_twice() {
        let error = anyhow::Error::new(std::io::Error::other("disk full"))
            .context("cannot save: disk full");
        assert_eq!(one_line(&error), "cannot save: disk full");
    }

    #[test]
    fn error_without_a_code_is_internal() {
        assert_eq!(code(&anyhow::anyhow!("surprise")), ExitCode::Internal);
        assert_eq!(
            code(&ConfigError("bad".into()).into()),
            ExitCode::Configuration
        );
    }
}
