//! `fedboot`: the bootstrap aggregator of a federation.
//!
//! ```text
//! main ─► cli (what was typed) ─► start:  config, spec ─► fednode-runtime's aggregator
//!                               ├► join: a ticket
//!                               ├► status, stop: the control API of a running one
//!                               ├► dashboard: the same in a browser, by fednode-page
//!                               └► id: the key file
//! ```
//!
//! It introduces nodes to each other and averages the part that all share. It trains nothing, holds no data and links no
//! tensor library. The federation goes on without it. This crate is wiring only. An error is one line on standard error
//! and an exit code by cause.
#![deny(clippy::print_stderr)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod cli;
mod config;
mod dashboard;
mod join;
mod print;
mod start;

use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use fednode_runtime::control::{self, Client, ClientError, Farewell};
use fednode_runtime::streams::say;
use fednode_runtime::{ExitCode as Cause, owner};

use crate::cli::{Cli, Command};

/// What went wrong, and the exit code that says so.
#[derive(Debug)]
pub(crate) struct Failure {
    cause: Cause,
    text: String,
}

impl Failure {
    pub(crate) fn new(cause: Cause, text: impl ToString) -> Self {
        Self {
            cause,
            text: text.to_string(),
        }
    }
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.cause.complain(&failure.text);
            failure.cause.into()
        }
    }
}

fn run(cli: Cli) -> Result<(), Failure> {
    let json = cli.json;
    match cli.command {
        Command::Start(args) => start::start(&args, json),
        Command::Join(args) => join::join(&args, json),
        Command::Status(args) => status(&args.folder()?, json),
        Command::Dashboard(args) => dashboard::dashboard(&args, json),
        Command::Stop(args) => stop(&args.folder()?, json),
        Command::Id(args) => id(&args.folder()?, json),
        Command::Completions { shell } => completions(shell),
    }
}

fn completions(shell: clap_complete::Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "fedboot", &mut script);
    print::text(&String::from_utf8_lossy(&script))
}

fn status(state: &Path, json: bool) -> Result<(), Failure> {
    // What is printed calls members by their names.
    _ = fednode_runtime::membership::look(state);
    let client = Client::of(state).map_err(|error| Failure::new(Cause::State, error))?;
    let status = client
        .status()
        .map_err(|error| Failure::new(Cause::State, error))?;
    print::status(&status, json)
}

/// Stops a running aggregator and waits until its process has ended.
fn stop(state: &Path, json: bool) -> Result<(), Failure> {
    let stopped = control::end(state, Farewell::Stop);
    let pid = stopped.map_err(|error| match error {
        ClientError::NotRunning(folder) => {
            let text = format!(
                "nothing to stop: no fedboot runs with state folder {folder}; --state names another"
            );
            Failure::new(Cause::State, text)
        }
        error => Failure::new(Cause::State, error),
    })?;
    print::stopped(pid, json)
}

/// Prints the node id. Makes the key if there is none yet, so that addresses can be handed out before the first start.
/// Says so, since another folder may have been meant.
fn id(state: &Path, json: bool) -> Result<(), Failure> {
    let unusable = |error: &dyn std::fmt::Display| Failure::new(Cause::State, error);
    owner::make_folders(state)
        .map_err(|error| unusable(&format!("{}: {error}", state.display())))?;
    let key = state.join("key");
    let is_new = !key.exists();
    let identity = fednode_net::Identity::load_or_create(&key).map_err(|error| unusable(&error))?;
    if is_new {
        say(format_args!(
            "note: there was no key, so `{}` was made; --config and --state name a fedboot that there is",
            key.display()
        ));
    }
    print::id(identity.node_id(), json)
}
