//! What is looked at, as commands take it, and the link that a page prints.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use fednode_page::{Settings, StartError, Watched, sentence, warning};
use fednode_runtime::exit::ExitCode;
use fednode_runtime::streams::say;
use serde::Serialize;

use crate::failure::{OrFail, fail};
use crate::layers::{self, DEFAULT_FILE};
use crate::output::{self, Form, Report};
use crate::state::{StateArgs, refuse_closed};

/// The link that works now.
pub type Newest = Arc<Mutex<String>>;

/// How what is looked at is named.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct WatchedArgs {
    /// What to look at: a node's folder or state folder, or that of a swarm or of a simulated run [default: this node's].
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
        let Some(folder) = &self.folder else {
            return of_state(&self.state);
        };
        refuse_closed(folder)?;
        match Watched::folder(folder) {
            Ok(watched) if watched.is_node() => of_state(&StateArgs::of(folder.clone())),
            Err(_) if folder.join(DEFAULT_FILE).is_file() => {
                let config =
                    layers::resolve(&toml::Table::new(), Some(&folder.join(DEFAULT_FILE)))?;
                of_state(&StateArgs::of(config.storage.state))
            }
            watched => watched.or_fail(ExitCode::State),
        }
    }
}

/// Looks at the node of a state folder.
fn of_state(args: &StateArgs) -> anyhow::Result<Watched> {
    let state = args.folder()?;
    if !state.is_dir() {
        let text = format!(
            "there is no state folder `{}`: start a node first, or name a folder to look at",
            state.display()
        );
        return Err(fail(ExitCode::State, text));
    }
    Ok(Watched::node(state, args.owners_budget()?))
}

/// A link, as it is printed.
#[derive(Debug, Serialize)]
pub struct Link {
    link: String,
}

impl Report for Link {
    fn human(&self) -> String {
        sentence(&self.link) + "\n"
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

/// Returns how a page is served whose links are printed, and the newest of them.
pub fn settings(bind: SocketAddr, to: To) -> (Settings, Newest) {
    if let Some(warning) = warning(bind) {
        say(warning);
    }
    let newest = Newest::default();
    let keep = Arc::clone(&newest);
    let print = move |link: &str| {
        link.clone_into(&mut keep.lock().unwrap_or_else(PoisonError::into_inner));
        let link = Link {
            link: link.to_owned(),
        };
        match to {
            // Whoever has closed the output does not want it.
            To::Output(form) => _ = output::print_line(&link, form),
            To::Error => say(link.human().trim_end()),
        }
    };
    let on_link = Box::new(print);
    (Settings { bind, on_link }, newest)
}

/// Says why there is no page.
pub fn refused(error: &StartError) -> anyhow::Error {
    fail(ExitCode::Network, error.to_string())
}
