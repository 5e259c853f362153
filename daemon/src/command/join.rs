//! `fednode join TICKET`: from a line of text to a running member.

use std::fs;
use std::path::{Path, PathBuf};

use fednode_core::Role;
use fednode_net::{NetworkKey, Ticket};
use fednode_runtime::exit::ExitCode;
use fednode_runtime::joining::{self, Joined};
use fednode_runtime::settings::Network;
use serde::Serialize;

use crate::command::start;
use crate::whole_file;
use fednode_cli::config::Config;
use fednode_cli::data;
use fednode_cli::failure::{OrFail, fail};
use fednode_cli::files::{NETWORK_KEY, NODE, SPEC};
use fednode_cli::origin;
use fednode_cli::output::{self, Form, Report};
use fednode_cli::shard::Shard;

/// What is typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The line that the organiser sent. `-` reads it from standard input.
    ticket: String,
    /// The folder for everything of this member.
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    #[arg(long, help = data::help(), value_name = "SOURCE")]
    data: Option<String>,
    /// Which part of the data is this member's, where one data set is divided among all.
    #[arg(long, value_name = "I/N")]
    shard: Option<Shard>,
    /// Addresses to listen on [default: every interface, any port].
    #[arg(long, value_name = "ADDR", num_args = 1.., value_delimiter = ',')]
    listen: Vec<String>,
    /// What to train on: `auto`, `vulkan`, `cpu`.
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
    /// Whether to prepare the folder only, and start later with `fednode start --config DIR/node.toml`.
    #[arg(long)]
    no_start: bool,
}

/// Uses the ticket, writes what is missing, and starts.
pub(crate) fn run(args: Args, form: Form) -> anyhow::Result<()> {
    // First of all: it may start this program anew.
    fednode_runtime::allocator::settle();
    let ticket = ticket(&args.ticket)?;
    let node_file = args.dir.join(NODE);
    if args.data.is_none() && !node_file.exists() {
        let text = "say where this member's samples are: --data csv:FILE,label=COLUMN, for example";
        return Err(fail(ExitCode::Usage, text));
    }
    // Before the ticket is used: a source that cannot be read is found first.
    let source = args.data.as_deref().map(data::source).transpose()?;
    let config = config(&args, &ticket, source);
    let state = args.dir.join(config.state());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .or_fail(ExitCode::Internal)?;
    let joined = runtime
        .block_on(joining::join(&ticket, &state, Role::Node))
        .map_err(|error| fail(error.exit_code(), error.to_string()))?;
    write(&args.dir, &ticket, &joined, &config)?;
    output::print_line(
        &Membership {
            joined: joined.name,
            federation: joined.spec.id().to_string(),
            config: node_file.display().to_string(),
            starts: !args.no_start,
        },
        form,
    )?;
    if args.no_start {
        return Ok(());
    }
    start::run(start::Args::of_file(node_file), form)
}

fn ticket(text: &str) -> anyhow::Result<Ticket> {
    let text = if text == "-" {
        let mut line = String::new();
        std::io::stdin()
            .read_line(&mut line)
            .or_fail(ExitCode::Usage)?;
        line
    } else {
        text.to_owned()
    };
    text.parse().or_fail(ExitCode::Usage)
}

fn config(args: &Args, ticket: &Ticket, source: Option<fednode_data::DataSource>) -> Config {
    let plain = Config::default();
    let listen = if args.listen.is_empty() {
        plain.network.listen.clone()
    } else {
        args.listen.clone()
    };
    Config {
        data: source.map_or_else(
            || plain.data.clone(),
            |source| origin::rooted_source(&source),
        ),
        shard: args.shard,
        device: args.device.clone().unwrap_or_else(|| plain.device.clone()),
        network: Network {
            listen,
            peers: ticket.addresses.iter().map(ToString::to_string).collect(),
            key: ticket.network_key.as_ref().map(|_| NETWORK_KEY.into()),
            ..plain.network.clone()
        },
        ..plain
    }
}

/// Writes the files of a member. What is there stays, if it says the same.
fn write(dir: &Path, ticket: &Ticket, joined: &Joined, config: &Config) -> anyhow::Result<()> {
    let unwritable = |path: &Path, error: std::io::Error| {
        let text = format!("cannot use `{}`: {error}", path.display());
        fail(ExitCode::State, text)
    };
    let spec = dir.join(SPEC);
    if spec.exists() {
        let text = fs::read_to_string(&spec).map_err(|error| unwritable(&spec, error))?;
        if start::read_and_tell(&text).is_ok_and(|there| there.id() != joined.spec.id()) {
            let text = format!(
                "`{}` is of another federation: join in an empty folder (--dir)",
                spec.display()
            );
            return Err(fail(ExitCode::Configuration, text));
        }
    } else {
        let text = joined.spec.to_toml();
        whole_file::write(&spec, text.as_bytes()).map_err(|error| unwritable(&spec, error))?;
    }
    if let Some(key) = &ticket.network_key {
        let path = dir.join(NETWORK_KEY);
        if !path.exists() {
            key.save(&path).or_fail(ExitCode::State)?;
        } else if NetworkKey::load(&path).or_fail(ExitCode::State)? != *key {
            let text = format!(
                "`{}` is another key than the ticket's: move it away",
                path.display()
            );
            return Err(fail(ExitCode::Configuration, text));
        }
    }
    let node = dir.join(NODE);
    if !node.exists() {
        let text = config.to_toml();
        whole_file::write(&node, text.as_bytes()).map_err(|error| unwritable(&node, error))?;
    }
    Ok(())
}

/// What came of it.
#[derive(Debug, Serialize)]
struct Membership {
    joined: String,
    federation: String,
    config: String,
    starts: bool,
}

impl Report for Membership {
    fn human(&self) -> String {
        let first = format!(
            "joined the federation {} as {}\n",
            &self.federation[..16],
            self.joined
        );
        let next = format!("start it with `fednode start --config {}`", self.config);
        if self.starts {
            format!("{first}later {next}\n")
        } else {
            format!("{first}{next}\n")
        }
    }
}
