//! `fednode join TICKET`: from a line of text to a running member.

use std::path::{Path, PathBuf};

use fednode_core::Role;
use fednode_data::DataSource;
use fednode_net::Ticket;
use fednode_runtime::addresses;
use fednode_runtime::exit::ExitCode;
use fednode_runtime::joining::{self, Home};
use fednode_runtime::settings::Network;
use serde::Serialize;

use crate::command::start;
use fednode_cli::config::Config;
use fednode_cli::data;
use fednode_cli::failure::{OrFail, code, fail, one_line};
use fednode_cli::files::{NETWORK_KEY, NODE};
use fednode_cli::origin;
use fednode_cli::output::{self, Form, Report};
use fednode_cli::shard::Shard;
use fednode_files::whole_file;

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
    /// Addresses to listen on; may be repeated, or separated by commas [default: every interface, any port].
    #[arg(long, value_name = "ADDR", value_delimiter = ',')]
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
    let ticket = joining::ticket(&args.ticket).or_fail(ExitCode::Usage)?;
    let node_file = args.dir.join(NODE);
    addresses::check("listen", &args.listen)
        .map_err(|error| fail(error.exit_code(), error.to_string()))?;
    let source = source(&args, &node_file)?;
    let config = config(&args, &ticket, source);
    let home = Home {
        dir: args.dir.clone(),
        state: args.dir.join(config.state()),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .or_fail(ExitCode::Internal)?;
    let joined = runtime
        .block_on(joining::join(&ticket, &home, Role::Node))
        .map_err(|error| fail(error.exit_code(), error.to_string()))?;
    // What the runtime holds ends with it. A connection that stayed open, and that nobody serves any more, would be taken for a
    // second one of the node that starts now, and half of what the organiser asks of it would go there.
    drop(runtime);
    if !node_file.exists() {
        whole_file::write(&node_file, config.to_toml().as_bytes()).map_err(|error| {
            let text = format!("cannot use `{}`: {error}", node_file.display());
            fail(ExitCode::State, text)
        })?;
    }
    let said = output::print_line(
        &Membership {
            joined: joined.name,
            federation: joined.spec.id().to_string(),
            config: node_file.display().to_string(),
            starts: !args.no_start,
        },
        form,
    );
    // The ticket is used up, so a node that is to start does so whether or not that could be said.
    if args.no_start {
        return said;
    }
    let file = node_file.display().to_string();
    start::run(start::Args::of_file(node_file), form).map_err(|error| to_be_corrected(error, &file))
}

/// Says how a member goes on whose file cannot be used. Its ticket is used up, so it must not join again.
fn to_be_corrected(error: anyhow::Error, file: &str) -> anyhow::Error {
    match code(&error) {
        code @ (ExitCode::Data | ExitCode::Configuration) => {
            let text = format!(
                "{}; this node is a member now: correct it, in `{file}` where a setting is wrong, then run `fednode start --config \
                 {file}`",
                one_line(&error)
            );
            fail(code, text)
        }
        _ => error,
    }
}

/// Returns where the samples are, read once: whatever is wrong with them is found before the ticket is used.
fn source(args: &Args, node_file: &Path) -> anyhow::Result<Option<DataSource>> {
    if !node_file.exists() {
        let text = "say where this member's samples are: --data csv:FILE,label=COLUMN, for example";
        let named = args.data.as_deref();
        let named = named.ok_or_else(|| fail(ExitCode::Usage, text.to_owned()))?;
        let source = data::source(named)?;
        if source.may_predict_a_number() {
            // Its column may be that of a number, which only the spec behind the ticket knows.
            let opened = source.open().or_fail(ExitCode::Data)?;
            opened.describe().or_fail(ExitCode::Data)?;
        } else {
            data::facts(&source)?;
        }
        return Ok(Some(source));
    }
    let kept = [
        ("data", args.data.is_some()),
        ("shard", args.shard.is_some()),
        ("listen", !args.listen.is_empty()),
        ("device", args.device.is_some()),
    ];
    let kept = kept.into_iter().find(|(_, is_given)| *is_given);
    kept.map_or(Ok(None), |(key, _)| {
        let file = node_file.display();
        let text = format!(
            "`{file}` is kept as it is, so nothing would set `{key}`: write it there; a node that has joined already is started \
             by `fednode start --config {file}`"
        );
        Err(fail(ExitCode::Configuration, text))
    })
}

fn config(args: &Args, ticket: &Ticket, source: Option<DataSource>) -> Config {
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
