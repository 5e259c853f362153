//! What is looked at, as commands take it, and the link that a page prints.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
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
            Err(_) if of_fedboot(folder).is_some() => Err(unfit(folder)),
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
    // A node that has not started yet has its key.
    if !["layout", "key"]
        .iter()
        .any(|name| state.join(name).exists())
    {
        return Err(unfit(&state));
    }
    Ok(Watched::node(state, args.owners_budget()?))
}

/// Says what a folder is in which no node has run, and what to do.
fn unfit(folder: &Path) -> anyhow::Error {
    let shown = folder.display();
    let text = match of_fedboot(folder) {
        Some(command) => {
            format!(
                "`{shown}` is the folder of a fedboot, not of a node: look at it with `{command}`"
            )
        }
        None => format!(
            "`{shown}` is no state folder, or no node has run with it yet: start one with `fednode start`, or name another folder"
        ),
    };
    fail(ExitCode::State, text)
}

/// Returns the command that looks at the fedboot of a folder; nothing if the folder is none of a fedboot.
fn of_fedboot(folder: &Path) -> Option<String> {
    let (settings, state) = (folder.join("fedboot.toml"), folder.join("fedboot-state"));
    if settings.is_file() {
        let settings = settings.display();
        return Some(format!("fedboot dashboard --config {settings}"));
    }
    let state = state.is_dir().then_some(state)?;
    Some(format!("fedboot dashboard --state {}", state.display()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_in_which_no_node_has_run_is_said_to_be_what_it_is() {
        let refused = |args: &WatchedArgs| args.watched().unwrap_err().to_string();
        let named = |folder: &Path| WatchedArgs {
            folder: Some(folder.to_owned()),
            ..WatchedArgs::default()
        };
        let as_state = |folder: &Path| WatchedArgs {
            state: StateArgs::of(folder.to_owned()),
            ..WatchedArgs::default()
        };
        let folder = tempfile::tempdir().unwrap();
        let empty = refused(&as_state(folder.path()));
        assert!(empty.contains("no node has run with it yet"), "{empty}");
        let state = folder.path().join("fedboot-state");
        std::fs::create_dir(&state).unwrap();
        let command = format!("`fedboot dashboard --state {}`", state.display());
        for args in [named(folder.path()), as_state(folder.path())] {
            let text = refused(&args);
            assert!(text.contains("is the folder of a fedboot"), "{text}");
            assert!(text.contains(&command), "{text}");
        }
        let settings = folder.path().join("fedboot.toml");
        std::fs::write(&settings, "").unwrap();
        let command = format!("`fedboot dashboard --config {}`", settings.display());
        assert!(refused(&named(folder.path())).contains(&command));
        std::fs::write(folder.path().join("key"), "").unwrap();
        assert!(
            as_state(folder.path()).watched().is_ok(),
            "it may start yet"
        );
    }
}
