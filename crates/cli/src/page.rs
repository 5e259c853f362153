//! What is looked at, as commands take it, and the link that a page prints.

use std::net::SocketAddr;
use std::path::PathBuf;

use fednode_page::{Settings, StartError, Watched};
use fednode_runtime::exit::ExitCode;
use serde::Serialize;

use crate::failure::{OrFail, fail};
use crate::output::{self, Form, Report};
use crate::state::StateArgs;

/// How what is looked at is named.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct WatchedArgs {
    /// What to look at: a state folder, or the folder of a swarm or of a simulated run [default: this node's state folder].
    #[arg(conflicts_with_all = ["state", "config"])]
    folder: Option<PathBuf>,
    #[command(flatten)]
    state: StateArgs,
}

impl WatchedArgs {
    /// Returns what is looked at.
    ///
    /// # Errors
    /// Fails on a wrong configuration, and on a folder that is not there or of another kind.
    pub fn watched(&self) -> anyhow::Result<Watched> {
        if let Some(folder) = &self.folder {
            return Watched::folder(folder).or_fail(ExitCode::State);
        }
        let config = self.state.config()?;
        let state = config.storage.state.clone();
        if !state.is_dir() {
            let text = format!(
                "there is no state folder `{}`: start a node first, or name a folder to look at",
                state.display()
            );
            return Err(fail(ExitCode::State, text));
        }
        Ok(Watched::node(state, config.owners_budget()))
    }
}

/// A link, as it is printed.
#[derive(Debug, Serialize)]
pub struct Link {
    link: String,
}

impl Report for Link {
    fn human(&self) -> String {
        format!("the page is at {} (a link works once)\n", self.link)
    }
}

/// Where links go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum To {
    /// To standard output: they are what the command prints.
    Output(Form),
    /// To standard error: standard output belongs to something else.
    Error,
}

/// Returns how a page is served whose links are printed.
pub fn settings(bind: SocketAddr, to: To) -> Settings {
    if !bind.ip().is_loopback() {
        eprintln!(
            "the page is not encrypted, and {bind} can be reached from other machines: whoever listens on the way can read it; \
             `ssh -L` to an address of this machine is safer"
        );
    }
    let print = move |link: &str| {
        let link = Link {
            link: link.to_owned(),
        };
        match to {
            // Whoever has closed the output does not want it.
            To::Output(form) => _ = output::print_line(&link, form),
            To::Error => eprint!("{}", link.human()),
        }
    };
    Settings {
        bind,
        on_link: Box::new(print),
    }
}

/// Says why there is no page.
pub fn refused(error: &StartError) -> anyhow::Error {
    fail(ExitCode::Network, error.to_string())
}
