//! The command line of `fedboot`. Only spelling and types are checked here; meaning is checked where a value is used.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand};
use fednode_core::config::{is_of_a_service, unknown_name};
use fednode_net::Compression;
use fednode_runtime::telemetry::Format;

/// The bootstrap aggregator of a fednode federation.
///
/// It introduces nodes to each other and averages the part of the model that all share.
#[derive(Debug, Parser)]
#[command(name = "fedboot", version, about, after_help = AFTER_HELP)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const AFTER_HELP: &str = "\
Exit codes: 0 done, 2 command line, 3 configuration, 5 network, 6 refused by the federation, 7 state folder,
70 defect, 130 stopped by Ctrl-C.

Example: fedboot start --spec federation.toml --listen /ip4/0.0.0.0/tcp/4001";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run until Ctrl-C.
    Start(Box<StartArgs>),
    /// Show what a running fedboot does and what it waits for.
    Status(ReportArgs),
    /// Ask a running fedboot to stop.
    Stop(ReportArgs),
    /// Print the node id. Make the key if there is none.
    Id(ReportArgs),
    /// Print the script with which a shell completes commands and flags.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// State folder of the running fedboot.
    #[arg(
        long,
        value_name = "DIR",
        default_value = "fedboot-state",
        env = "FEDBOOT_STATE"
    )]
    pub(crate) state: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct StartArgs {
    /// The federation's spec, the same file as every node has.
    #[arg(
        long,
        value_name = "FILE",
        default_value = "federation.toml",
        env = "FEDBOOT_SPEC"
    )]
    pub(crate) spec: PathBuf,
    /// Multiaddress to listen at; may be repeated.
    #[arg(
        long,
        value_name = "ADDRESS",
        default_value = "/ip4/0.0.0.0/tcp/4001",
        env = "FEDBOOT_LISTEN",
        value_delimiter = ','
    )]
    pub(crate) listen: Vec<String>,
    /// Address at which others reach this machine, for example behind a port forward; may be repeated.
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "FEDBOOT_EXTERNAL",
        value_delimiter = ','
    )]
    pub(crate) external: Vec<String>,
    /// Address of a member to connect to, any member; may be repeated.
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "FEDBOOT_PEERS",
        value_delimiter = ','
    )]
    pub(crate) peers: Vec<String>,
    /// State folder: key, checkpoints, blobs.
    #[arg(
        long,
        value_name = "DIR",
        default_value = "fedboot-state",
        env = "FEDBOOT_STATE"
    )]
    pub(crate) state: PathBuf,
    /// File with the pre-shared network key (64 hexadecimal digits).
    #[arg(long, value_name = "FILE", env = "FEDBOOT_NETWORK_KEY")]
    pub(crate) network_key: Option<PathBuf>,
    /// File with the node ids that may take part, one a line. Without it, every node with the same spec may take part.
    #[arg(long, value_name = "FILE", env = "FEDBOOT_ALLOW")]
    pub(crate) allow: Option<PathBuf>,
    /// Look for members on the local network.
    #[arg(long, env = "FEDBOOT_MDNS")]
    pub(crate) mdns: bool,
    /// How blobs are received: `zstd` (fewer bytes, some processor time, the same numbers) or `off`.
    #[arg(
        long,
        value_name = "METHOD",
        default_value = "zstd",
        env = "FEDBOOT_COMPRESSION"
    )]
    pub(crate) compression: Compression,
    /// Largest number of connected peers.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1024,
        env = "FEDBOOT_MAX_PEERS"
    )]
    pub(crate) max_peers: usize,
    /// Largest size of all blobs on disk, in mebibytes.
    #[arg(
        long,
        value_name = "MIB",
        default_value_t = 2048,
        env = "FEDBOOT_QUOTA_MIB",
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    pub(crate) quota_mib: u64,
    /// Address of the control API; port 0 takes any free port.
    #[arg(
        long,
        value_name = "ADDRESS",
        default_value = "127.0.0.1:0",
        env = "FEDBOOT_CONTROL"
    )]
    pub(crate) control: SocketAddr,
    /// Do not serve the control API.
    #[arg(long)]
    pub(crate) no_control: bool,
    /// Stop when all rounds are done and no node needs this process any more.
    #[arg(long, env = "FEDBOOT_EXIT_WHEN_FINISHED")]
    pub(crate) exit_when_finished: bool,
    /// With `--exit-when-finished`: longest time in seconds to go on serving after the last round.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 600,
        env = "FEDBOOT_LINGER_SECONDS"
    )]
    pub(crate) linger_seconds: u64,
    /// Form of the log on standard error: `human` or `json`.
    #[arg(
        long,
        value_name = "FORM",
        default_value = "human",
        env = "FEDBOOT_LOG_FORM"
    )]
    pub(crate) log: Format,
    /// Print the addresses at which it listens as JSON, one object a line.
    #[arg(long)]
    pub(crate) json: bool,
    /// Stop when standard input closes, so that a swarm's children end with the swarm.
    #[arg(long, hide = true)]
    pub(crate) stop_when_stdin_closes: bool,
}

/// The prefix of every variable of `fedboot`.
const PREFIX: &str = "FEDBOOT_";

/// Returns an error text for the first variable that looks like a setting and is none; it offers the nearest setting.
pub(crate) fn unknown_variable(names: impl IntoIterator<Item = String>) -> Option<String> {
    let program = Cli::command();
    let settings = program
        .get_subcommands()
        .flat_map(clap::Command::get_arguments)
        .filter_map(clap::Arg::get_env);
    let known: BTreeSet<&str> = settings.filter_map(|name| name.to_str()).collect();
    let is_meant = |name: &String| {
        name.strip_prefix(PREFIX)
            .is_some_and(|rest| !is_of_a_service(rest))
    };
    let unknown = names
        .into_iter()
        .find(|name| is_meant(name) && !known.contains(name.as_str()))?;
    Some(unknown_name(
        "variable",
        &unknown,
        &known.into_iter().collect::<Vec<_>>(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_variable_is_found() {
        let found = |name: &str| unknown_variable(["PATH".to_owned(), name.to_owned()]);
        for fine in [
            "FEDBOOT_MAX_PEERS",
            "FEDBOOT_PORT",
            "FEDBOOT_SERVICE_PORT_P2P",
            "FEDBOOT_PORT_4001_TCP_ADDR",
        ] {
            assert_eq!(found(fine), None, "{fine}");
        }
        assert_eq!(
            found("FEDBOOT_MAXPEERS").unwrap(),
            "unknown variable `FEDBOOT_MAXPEERS`: did you mean `FEDBOOT_MAX_PEERS`?"
        );
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn lists_may_be_repeated_or_separated_by_commas() {
        let cli = Cli::parse_from([
            "fedboot",
            "start",
            "--peers",
            "/dns4/a/tcp/1,/dns4/b/tcp/1",
            "--peers",
            "/dns4/c/tcp/1",
        ]);
        let Command::Start(args) = cli.command else {
            panic!("start was asked for")
        };
        assert_eq!(args.peers.len(), 3);
        assert!(Cli::try_parse_from(["fedboot", "start", "--quota-mib", "0"]).is_err());
    }
}
