//! `fednode invite`, `members` and `revoke`: what an organiser does, from its folder.

use std::path::{Path, PathBuf};
use std::time::Duration;

use fednode_core::{FederationSpec, MemberName, NodeId, Role, Timestamp};
use fednode_net::{
    Identity, InvitationSecret, MemberBook, Multiaddr, NetworkKey, Ticket, is_circuit, is_loopback,
};
use fednode_runtime::control::Client;
use fednode_runtime::exit::ExitCode;
use fednode_runtime::membership;
use fednode_runtime::organiser::{self, Organiser, OrganiserError, Row};
use fednode_runtime::streams::say;
use serde::Serialize;

use crate::command::start;
use fednode_cli::config::Config;
use fednode_cli::failure::{OrFail, code, fail, one_line};
use fednode_cli::files::{NODE, SPEC};
use fednode_cli::layers;
use fednode_cli::output::{self, Form, Report};
use fednode_cli::state::{meant, refuse_closed, refuse_unused};
use fednode_cli::table::{render, text};

/// Addresses that a ticket names at most: more make it long, and one that works is enough.
const MAX_ADDRESSES: usize = 6;
const DAY: Duration = Duration::from_secs(24 * 3600);

/// What a node may be.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum RoleArg {
    /// Trains.
    Node,
    /// Introduces and averages: for `fedboot join`.
    Aggregator,
}

/// What is typed.
#[derive(Debug, clap::Args)]
pub(crate) struct InviteArgs {
    /// What everybody will call the new member: letters, digits, `-`, `_` and `.`.
    name: MemberName,
    /// What it may be.
    #[arg(long, value_enum, default_value = "node", conflicts_with = "replace")]
    role: RoleArg,
    /// Invite a member to come back with another key, by `fednode rotate-key`. Using the ticket ends its membership with the
    /// old one.
    #[arg(long)]
    replace: bool,
    /// Days until the ticket expires (1 to 365).
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=365))]
    days: u32,
    /// Addresses of the process that has the organiser's folder, each with `/p2p/` and its node id; may be repeated, or
    /// separated by commas [default: those of the node that runs from this folder].
    #[arg(long, value_name = "ADDR", value_delimiter = ',')]
    at: Vec<Multiaddr>,
    #[command(flatten)]
    folder: FolderArgs,
}

/// What is typed.
#[derive(Debug, clap::Args)]
pub(crate) struct MembersArgs {
    #[command(flatten)]
    folder: FolderArgs,
    /// The state folder of any member, to list what it has heard of the others.
    #[arg(long, value_name = "DIR", conflicts_with = "dir")]
    state: Option<PathBuf>,
}

/// What is typed.
#[derive(Debug, clap::Args)]
pub(crate) struct RevokeArgs {
    /// The member's name or node id, or the name of somebody who has not used the ticket yet.
    who: String,
    #[command(flatten)]
    folder: FolderArgs,
}

/// Where the federation was prepared.
#[derive(Debug, clap::Args)]
struct FolderArgs {
    /// The folder in which `fednode init` prepared the federation.
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
}

/// Makes a ticket.
pub(crate) fn invite(args: &InviteArgs, form: Form) -> anyhow::Result<()> {
    let dir = &args.folder.dir;
    let organiser = open(dir)?;
    let spec = own_spec(dir, &organiser)?;
    let config = config(dir)?;
    let addresses = if args.at.is_empty() {
        own_addresses(&config)?
    } else {
        args.at.clone()
    };
    if let Some(nameless) = addresses.iter().find(|address| !has_node(address)) {
        let text =
            format!("`{nameless}` does not say whose address it is: `/p2p/NODE_ID` must follow");
        return Err(fail(ExitCode::Usage, text));
    }
    let now = fednode_net::now();
    if args.replace {
        refuse_own(&organiser.list(now).map_err(failure)?, args, &addresses)?;
    }
    let network_key = config.network.key.as_deref().map(NetworkKey::load);
    let network_key = network_key.transpose().or_fail(ExitCode::Network)?;
    let life = DAY * args.days;
    let (secret, role) = secret(&organiser, args, life, now).map_err(failure)?;
    let ticket = Ticket {
        addresses,
        federation: spec.id(),
        organiser: organiser.id(),
        secret,
        role,
        not_after: now + life,
        network_key,
    };
    let invited = Invited {
        name: args.name.to_string(),
        ticket: ticket.to_string(),
        days: args.days,
        program: match role {
            Role::Node => "fednode",
            Role::Aggregator => "fedboot",
        },
        replaces: args.replace,
    };
    output::print(&invited, form).map_err(|error| unseen(&organiser, args, &error))?;
    if form == Form::Human {
        say(invited.advice().trim_end());
    }
    Ok(())
}

/// Withdraws a ticket that could not be printed, so that the name is free again.
fn unseen(organiser: &Organiser, args: &InviteArgs, error: &anyhow::Error) -> anyhow::Error {
    let ticket = match organiser.withdraw(&args.name) {
        Ok(()) => {
            "the ticket, which nobody has seen, is withdrawn: then run the command again".into()
        }
        Err(error) => format!("the ticket, which nobody has seen, cannot be withdrawn: {error}"),
    };
    fail(code(error), format!("{}; {ticket}", one_line(error)))
}

/// Refuses to replace the key of the very node that would answer: it must be stopped for that.
fn refuse_own(members: &[Row], args: &InviteArgs, addresses: &[Multiaddr]) -> anyhow::Result<()> {
    let mut members = members.iter();
    let member = members.find(|row| row.name == args.name && row.standing == "member");
    let Some(node) = member.and_then(|row| row.node) else {
        return Ok(());
    };
    let own = format!("/p2p/{node}");
    if !addresses
        .iter()
        .all(|address| address.to_string().ends_with(&own))
    {
        return Ok(());
    }
    let text = format!(
        "`{}` would have to answer its own ticket, and is stopped when it uses it: let `fedboot start --organiser` answer, and \
         give its address with --at",
        args.name
    );
    Err(fail(ExitCode::Usage, text))
}

/// Invites, and returns what the ticket must hold.
fn secret(
    organiser: &Organiser,
    args: &InviteArgs,
    life: Duration,
    now: Timestamp,
) -> Result<(InvitationSecret, Role), OrganiserError> {
    let role = match args.role {
        _ if args.replace => return organiser.invite_again(args.name.clone(), life, now),
        RoleArg::Node => Role::Node,
        RoleArg::Aggregator => Role::Aggregator,
    };
    let secret = organiser.invite(args.name.clone(), role, life, now)?;
    Ok((secret, role))
}

/// Lists the members.
pub(crate) fn list(args: &MembersArgs, form: Form) -> anyhow::Result<()> {
    let now = fednode_net::now();
    let rows = match &args.state {
        None => open(&args.folder.dir)?.list(now).map_err(failure)?,
        Some(state) => {
            let state = &meant(state);
            refuse_closed(state)?;
            let book = membership::look(state).or_fail(ExitCode::State)?;
            if book.is_none() {
                refuse_unused(state)?;
            }
            let book = book.ok_or_else(|| {
                let text = format!(
                    "`{}` knows no members: it is of a federation without an organiser, or no state folder",
                    state.display()
                );
                fail(ExitCode::State, text)
            })?;
            organiser::rows(&book, now)
        }
    };
    output::print(&Members { now, members: rows }, form)
}

/// Shuts a member out.
pub(crate) fn revoke(args: &RevokeArgs, form: Form) -> anyhow::Result<()> {
    let organiser = open(&args.folder.dir)?;
    refuse_to_revoke_own(&organiser, args)?;
    let revoked = organiser
        .revoke(&args.who, fednode_net::now())
        .map_err(failure)?;
    output::print(
        &Revoked {
            revoked: args.who.clone(),
            node: revoked,
        },
        form,
    )
}

/// Refuses to shut out the node of this very folder: it answers tickets, and could not get one any more.
fn refuse_to_revoke_own(organiser: &Organiser, args: &RevokeArgs) -> anyhow::Result<()> {
    let key = config(&args.folder.dir)?.state().join("key");
    // Without a key that can be read, no node of this folder answers.
    let Ok(own) = Identity::load(&key) else {
        return Ok(());
    };
    let rows = organiser.list(fednode_net::now()).map_err(failure)?;
    let is_meant = |row: &Row| {
        let own = Some(own.node_id());
        row.standing == "member"
            && row.node == own
            && (row.name.as_ref() == args.who
                || own.map(|node| node.to_string()) == Some(args.who.clone()))
    };
    if rows.iter().any(is_meant) {
        let text = format!(
            "`{0}` is the node of this folder, which answers tickets, and could get no new one: stop it for good with `fednode leave`, or \
             give it another key: let `fedboot start --organiser` answer, and make a ticket by `fednode invite {0} --replace --at ADDRESS`",
            args.who
        );
        return Err(fail(ExitCode::Usage, text));
    }
    Ok(())
}

/// Opens the organiser's folder of a federation that was prepared here.
///
/// # Errors
/// Fails if there is none, or if it cannot be used.
pub(super) fn open(dir: &Path) -> anyhow::Result<Organiser> {
    let folder = dir.join(organiser::FOLDER);
    if !folder.exists() {
        let text = format!(
            "there is no `{}`: this is done where `fednode init` prepared the federation (--dir)",
            folder.display()
        );
        return Err(fail(ExitCode::State, text));
    }
    let organiser = Organiser::open(&folder).map_err(failure)?;
    // The node beside it may know more, if the organiser's folder was restored from a backup.
    let known = config(dir)?.state().join(organiser::MEMBERS_FILE);
    if known.exists() {
        let book = MemberBook::load(&known, organiser.id()).or_fail(ExitCode::State)?;
        organiser.exchange(&book).map_err(failure)?;
    }
    Ok(organiser)
}

pub(super) fn failure(error: OrganiserError) -> anyhow::Error {
    let code = match error {
        OrganiserError::NameTaken(_) | OrganiserError::Nobody(_) => ExitCode::Usage,
        OrganiserError::Extension(_) => ExitCode::Configuration,
        _ => ExitCode::State,
    };
    fail(code, error.to_string())
}

/// Reads the spec beside an organiser's folder.
///
/// # Errors
/// Fails if it cannot be read, or names another organiser.
pub(super) fn own_spec(dir: &Path, organiser: &Organiser) -> anyhow::Result<FederationSpec> {
    let spec = start::read_spec(&Config {
        spec: dir.join(SPEC),
        ..Config::default()
    })?;
    if spec.organiser == Some(organiser.id()) {
        return Ok(spec);
    }
    let text = format!(
        "`{}` names another organiser than the key beside it: bring together what `fednode init` made",
        dir.join(SPEC).display()
    );
    Err(fail(ExitCode::Configuration, text))
}

pub(super) fn config(dir: &Path) -> anyhow::Result<Config> {
    let file = dir.join(NODE);
    if !file.exists() {
        return Ok(Config::default());
    }
    layers::resolve(&toml::Table::new(), Some(&file))
}

/// Returns where the node of this folder can be reached from elsewhere, as it says itself while it runs.
fn own_addresses(config: &Config) -> anyhow::Result<Vec<Multiaddr>> {
    let unknown = |why: &str| {
        let text = format!(
            "{why}, so nobody knows where the new member should ask: start it with `fednode start`, or name the addresses of \
             the process that has the organiser's folder (--at)"
        );
        fail(ExitCode::Usage, text)
    };
    let client =
        Client::of(config.state()).map_err(|_| unknown("the node of this folder does not run"))?;
    let status = client.status().or_fail(ExitCode::State)?;
    let key = Identity::load(&config.state().join("key")).or_fail(ExitCode::State)?;
    let named = format!("/p2p/{}", key.node_id());
    let external = config.network.external.iter().map(|address| {
        let is_named = address.contains("/p2p/");
        if is_named {
            address.clone()
        } else {
            format!("{address}{named}")
        }
    });
    let addresses = external.chain(status.listeners);
    let mut addresses: Vec<Multiaddr> = addresses.filter_map(|text| text.parse().ok()).collect();
    // A relay takes members only.
    addresses.retain(|address| !is_circuit(address));
    // Those of this machine only help a member on this machine.
    if addresses.iter().any(|address| !is_loopback(address)) {
        addresses.retain(|address| !is_loopback(address));
    }
    addresses.truncate(MAX_ADDRESSES);
    if addresses.is_empty() {
        return Err(unknown("the node of this folder listens nowhere"));
    }
    Ok(addresses)
}

fn has_node(address: &Multiaddr) -> bool {
    address.to_string().contains("/p2p/")
}

/// A ticket.
#[derive(Debug, Serialize)]
struct Invited {
    name: String,
    ticket: String,
    days: u32,
    program: &'static str,
    replaces: bool,
}

impl Invited {
    /// Returns what the organiser does with the ticket. It goes to standard error: the ticket alone can be kept in a
    /// file.
    fn advice(&self) -> String {
        let Self {
            name,
            days,
            program,
            replaces,
            ..
        } = self;
        let (program, how, about) = if *replaces {
            let about = "The node is stopped first. What it has learned stays.\n";
            ("fednode", "rotate-key TICKET --dir FOLDER", about)
        } else if *program == "fednode" {
            let about = "SOURCE is csv:FILE,label=COLUMN for a table; `fednode join --help` lists the others.\n";
            (*program, "join TICKET --data SOURCE --dir FOLDER", about)
        } else {
            (*program, "join TICKET", "")
        };
        format!(
            "\nSend this ticket to {name} by a way that nobody else reads. It is good for one node and {days} days:\n  \
             {program} {how}\n{about}"
        )
    }
}

impl Report for Invited {
    fn human(&self) -> String {
        format!("{}\n", self.ticket)
    }
}

/// Who belongs to the federation.
#[derive(Debug, Serialize)]
struct Members {
    #[serde(skip)]
    now: Timestamp,
    members: Vec<Row>,
}

impl Report for Members {
    fn human(&self) -> String {
        let columns = [
            text("name"),
            text("role"),
            text("standing"),
            text("for another"),
            text("node"),
        ];
        let row = |row: &Row| {
            let left = row.until.since(self.now).as_secs().div_ceil(DAY.as_secs());
            let is_open = matches!(row.standing, "member" | "invited");
            vec![
                row.name.to_string(),
                match row.role {
                    Role::Node => "node".to_owned(),
                    Role::Aggregator => "aggregator".to_owned(),
                },
                row.standing.to_owned(),
                if is_open {
                    format!("{left} days")
                } else {
                    "-".to_owned()
                },
                row.node
                    .as_ref()
                    .map_or_else(|| "-".to_owned(), NodeId::to_string),
            ]
        };
        render(&columns, &self.members.iter().map(row).collect::<Vec<_>>())
    }
}

/// Who is shut out.
#[derive(Debug, Serialize)]
struct Revoked {
    revoked: String,
    node: Option<NodeId>,
}

impl Report for Revoked {
    fn human(&self) -> String {
        match &self.node {
            Some(node) => format!(
                "{} ({node}) is no member any more; the others hear of it within seconds\n",
                self.revoked
            ),
            None => format!("the ticket of {} is withdrawn\n", self.revoked),
        }
    }
}
