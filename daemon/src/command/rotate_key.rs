//! `fednode rotate-key TICKET`: another key for a member, and everything that it has learned.

use std::path::PathBuf;

use fednode_runtime::exit::ExitCode;
use fednode_runtime::joining::{self, Home};
use serde::Serialize;

use crate::home::Home as Folder;
use fednode_cli::failure::{OrFail, fail};
use fednode_cli::output::{self, Form, Report};

/// What is typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The line that the organiser made with `fednode invite NAME --replace`. `-` reads it from standard input.
    ticket: String,
    /// The member's folder, with node.toml in it, or its state folder.
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
}

/// Uses the ticket, and replaces the key.
pub(crate) fn run(args: &Args, form: Form) -> anyhow::Result<()> {
    let ticket = joining::ticket(&args.ticket).or_fail(ExitCode::Usage)?;
    let state = args.dir.join(Folder::of(&args.dir)?.state()?);
    let home = Home {
        dir: args.dir.clone(),
        state,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .or_fail(ExitCode::Internal)?;
    let joined = runtime
        .block_on(joining::rotate(&ticket, &home))
        .map_err(|error| fail(error.exit_code(), error.to_string()))?;
    let rotated = Rotated {
        name: joined.name,
        federation: joined.spec.id().to_string(),
        state: home.state.display().to_string(),
    };
    output::print(&rotated, form)
}

/// What came of it.
#[derive(Debug, Serialize)]
struct Rotated {
    name: String,
    federation: String,
    state: String,
}

impl Report for Rotated {
    fn human(&self) -> String {
        format!(
            "{} has a new key in `{}`, and goes on with all that it has learned.\nStart it as before.\n",
            self.name, self.state
        )
    }
}
