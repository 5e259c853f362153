//! The command line of `fedboot`. Only spelling and types are checked here; meaning is checked where a value is used.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use fednode_config::flags::Flags;
use fednode_config::layers::set;
use fednode_runtime::{ExitCode as Cause, control, settings};

use crate::Failure;
use crate::config::{Config, DEFAULT_FILE};

/// The bootstrap aggregator of a fednode federation.
///
/// It introduces nodes to each other and averages the part of the model that all share.
#[derive(Debug, Parser)]
#[command(name = "fedboot", version, about, after_help = AFTER_HELP, max_term_width = 120)]
pub(crate) struct Cli {
    /// Print JSON instead of text for people.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const AFTER_HELP: &str = "\
Exit codes: 0 done, 2 command line, 3 configuration, 5 network, 6 refused by the federation, 7 state folder,
11 output, 70 defect, 130 stopped by Ctrl-C.

Example: fedboot start --spec federation.toml --listen /ip4/0.0.0.0/tcp/4001";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run until Ctrl-C.
    Start(Box<StartArgs>),
    /// Become a member with a ticket of role `aggregator`: write federation.toml and fedboot.toml, and the certificate.
    Join(JoinArgs),
    /// Show what a running fedboot does and what it waits for.
    Status(StateArgs),
    /// Show what a fedboot does in a browser, until Ctrl-C.
    Dashboard(DashboardArgs),
    /// Stop a running fedboot, as Ctrl-C does, and wait until it has ended.
    Stop(StateArgs),
    /// Print the node id, making the key if there is none.
    Id(StateArgs),
    /// Print the script with which a shell completes commands and flags.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

/// How a state folder is named.
#[derive(Debug, Args)]
pub(crate) struct StateArgs {
    /// The aggregator's state folder [default: `state` in table `storage` of fedboot.toml, else `fedboot-state`].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// The aggregator's fedboot.toml.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl StateArgs {
    /// Returns the folder.
    pub(crate) fn folder(&self) -> Result<PathBuf, Failure> {
        let mut layer = toml::Table::new();
        if let Some(state) = &self.state {
            set::<Config>(&mut layer, "state", state.to_string_lossy().into_owned());
        }
        let config: Config = settings::load(&layer, self.config.as_deref(), DEFAULT_FILE)
            .map_err(|error| Failure::new(Cause::Configuration, error))?;
        let state = config.storage.state;
        if control::is_closed(&state) {
            let text = format!(
                "cannot look into `{}`: permission denied. Run this as the user that runs fedboot, with `sudo -u USER`",
                state.display()
            );
            return Err(Failure::new(Cause::State, text));
        }
        Ok(state)
    }
}

#[derive(Debug, Args)]
pub(crate) struct DashboardArgs {
    #[command(flatten)]
    pub(crate) state: StateArgs,
    /// Where to listen; port 0 is one that the system chooses.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    pub(crate) bind: std::net::SocketAddr,
}

#[derive(Debug, Args)]
pub(crate) struct JoinArgs {
    /// The line that the organiser sent. `-` reads it from standard input.
    pub(crate) ticket: String,
    /// The folder for everything of this member.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) dir: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct StartArgs {
    #[command(flatten)]
    settings: Flags<Config>,
    /// The file with all of these [default: $FEDBOOT_CONFIG, else fedboot.toml if it exists].
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Stop when standard input closes; a swarm's children end with it.
    #[arg(long, hide = true)]
    pub(crate) stop_when_stdin_closes: bool,
}

impl StartArgs {
    /// Returns the settings in force.
    pub(crate) fn config(&self) -> Result<Config, Failure> {
        settings::load(&self.settings.layer, self.config.as_deref(), DEFAULT_FILE)
            .map_err(|error| Failure::new(Cause::Configuration, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn lists_may_be_repeated_or_separated_by_commas() {
        let line =
            "fedboot start --peers /dns4/a/tcp/1,/dns4/b/tcp/1 --peers /dns4/c/tcp/1 --log json";
        let cli = Cli::parse_from(line.split(' '));
        let Command::Start(args) = cli.command else {
            panic!("start was asked for")
        };
        assert_eq!(args.config().unwrap().network.peers.len(), 3);
    }
}
