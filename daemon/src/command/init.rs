//! `fednode init [DIR]`: a key, a commented federation.toml and a commented node.toml.
//!
//! What exists is kept: whoever was given a federation.toml puts it into DIR first and gets the rest. `--again` makes
//! another run of what is there.

mod prepared;
mod privacy;
mod run_id;

use std::path::{Path, PathBuf};

use fednode_core::spec::PrivacyMode;
use fednode_core::{FederationSpec, MemberName, NodeId, Role};
use fednode_data::DataSource;
use fednode_net::{Identity, NetworkKey};
use fednode_runtime::addresses;
use fednode_runtime::exit::ExitCode;
use fednode_runtime::organiser::{self, Organiser};
use fednode_runtime::settings::Network;
use serde::Serialize;

use self::prepared::Federation;
use fednode_cli::config::Config;
use fednode_cli::data;
use fednode_cli::failure::{OrFail, fail};
use fednode_cli::federation;
use fednode_cli::files::{NETWORK_KEY, NODE as NODE_FILE, SPEC as SPEC_FILE};
use fednode_cli::initial;
use fednode_cli::layers;
use fednode_cli::origin;
use fednode_cli::output::{self, Form, Report};
use fednode_cli::shard::Shard;
use fednode_files::{owner, whole_file};

/// What is typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The folder to prepare.
    #[arg(default_value = ".")]
    dir: PathBuf,
    #[command(flatten)]
    federation: federation::Args,
    #[arg(long, help = format!("{} [default: {}]", data::help(), DataSource::default()), value_name = "SOURCE")]
    data: Option<String>,
    /// Which part of the data this node has, counting from 1.
    #[arg(long, value_name = "I/N")]
    shard: Option<Shard>,
    /// Members to join through, any of them; may be repeated, or separated by commas.
    #[arg(long, value_name = "ADDR", value_delimiter = ',')]
    peers: Vec<String>,
    /// No organiser and no tickets: whoever has federation.toml may take part, if nothing else keeps strangers out (a network
    /// key, a list of nodes).
    #[arg(long)]
    open: bool,
    /// What the others call this node [default: organiser].
    #[arg(long, value_name = "NAME")]
    name: Option<MemberName>,
    /// Make a pre-shared network key too, without which nobody can connect; give it to all members.
    #[arg(long)]
    network_key: bool,
    /// Make another run of the federation that is there: same settings, new id. Give federation.toml to all members again.
    #[arg(long)]
    again: bool,
}

/// Writes what is missing and says what there is.
pub(crate) fn run(args: &Args, form: Form) -> anyhow::Result<()> {
    federation::refuse_preset(&args.federation, &args.dir).or_fail(ExitCode::Configuration)?;
    refuse_what_is_kept(args)?;
    addresses::check("peers", &args.peers)
        .map_err(|error| fail(error.exit_code(), error.to_string()))?;
    let state = state(&args.dir)?;
    if args.again {
        run_id::refuse_fedboot(&args.dir)?;
        run_id::refuse_if_used(&state)?;
    }
    let organised = Entry::of(&args.dir.join(organiser::FOLDER));
    let prepared = Federation::prepare(args, form)?;
    let (spec, organiser) = (&prepared.spec, prepared.organiser.as_ref());
    // Before the new spec is written: a plain start must find both of one run.
    let aside = if args.again {
        run_id::set_aside(&state, spec.id())?
    } else {
        None
    };
    prepared.write_renewed(args)?;
    let config = config(args, spec, organiser.is_some())?;
    let node_file = write_if_absent(&args.dir.join(NODE_FILE), || Ok(config.to_toml()))?;
    let is_new = !node_file.existed;
    let mut files = vec![prepared.file.clone(), node_file];
    let identity = keys(args, organiser, &state, &mut files)?;
    files.extend(organiser.map(|_| organised));
    let has_certificate = state.join(organiser::MEMBERS_FILE).exists();
    output::print(
        &Prepared {
            node_id: identity.node_id().to_string(),
            federation: spec.id().to_string(),
            privacy: spec.privacy.mode(),
            files,
            folder: args.dir.clone(),
            is_of_digits: organiser.is_some() && args.data.is_none() && !prepared.file.existed,
            to_edit: if is_new {
                to_edit(args, &config, organiser.is_some())
            } else {
                Vec::new()
            },
            organises: organiser.is_some(),
            needs_ticket: spec.organiser.is_some() && organiser.is_none() && !has_certificate,
            // A member that was not given the new spec first has the run that there was.
            is_old: args.again && run_id::is_of(&state, spec.id()),
            aside,
        },
        form,
    )
}

/// Returns what goes into node.toml.
fn config(args: &Args, spec: &FederationSpec, organises: bool) -> anyhow::Result<Config> {
    Ok(Config {
        data: origin::rooted_source(&source(args)?),
        shard: shard(args, spec),
        partition_file: args.federation.partition_file.as_deref().map(absolute),
        initial: args.federation.initial.as_deref().map(initial::absolute),
        backbone: args.federation.backbone_file().map(absolute),
        network: Network {
            peers: args.peers.clone(),
            key: args.network_key.then(|| NETWORK_KEY.into()),
            organiser: organises.then(|| organiser::FOLDER.into()),
            open: args.open && !args.network_key,
            ..Network::default()
        },
        ..Config::default()
    })
}

/// Returns the keys of node.toml that were not given, and that a node like this one needs.
fn to_edit(args: &Args, config: &Config, organises: bool) -> Vec<&'static str> {
    let is_set = [
        // What the organiser makes without any is about the built-in digits, and runs so.
        ("data", organises || args.data.is_some()),
        // The first shard is the organiser's; others must say which is theirs.
        (
            "shard",
            organises || args.shard.is_some() || config.shard.is_none(),
        ),
        ("peers", organises || !args.peers.is_empty()),
    ];
    let lacking = is_set.into_iter().filter(|(_, is_set)| !is_set);
    lacking.map(|(key, _)| key).collect()
}

/// Makes the keys that are missing, and adds them to the files. Returns this node's.
fn keys(
    args: &Args,
    organiser: Option<&Organiser>,
    state: &Path,
    files: &mut Vec<Entry>,
) -> anyhow::Result<Identity> {
    owner::make_folders(state).map_err(|error| unwritable(state, &error))?;
    let key = state.join("key");
    files.push(Entry::of(&key));
    let identity = Identity::load_or_create(&key).or_fail(ExitCode::State)?;
    if let Some(organiser) = organiser {
        admit(organiser, args, identity.node_id())?;
    }
    if args.network_key {
        let path = args.dir.join(NETWORK_KEY);
        files.push(Entry::of(&path));
        if !path.exists() {
            let key = NetworkKey::generate();
            key.save(&path).or_fail(ExitCode::State)?;
        }
    }
    Ok(identity)
}

/// Refuses flags that would change nothing, because the file that they are for is there already.
fn refuse_what_is_kept(args: &Args) -> anyhow::Result<()> {
    let of_node = [
        ("data", args.data.is_some()),
        ("shard", args.shard.is_some()),
        ("peers", !args.peers.is_empty()),
        ("network_key", args.network_key),
        ("open", args.open),
        ("partition_file", args.federation.partition_file.is_some()),
        ("initial", args.federation.initial.is_some()),
        ("backbone", args.federation.backbone.is_some()),
    ];
    let of_node = of_node
        .into_iter()
        .find(|(_, is_given)| *is_given)
        .map(|(key, _)| key.to_owned());
    // Where lists and initial parameters lie is the node's own business.
    let of_spec = federation::keys_of_flags(&federation::Args {
        initial: None,
        backbone: None,
        partition_file: None,
        ..args.federation.clone()
    });
    for (file, key) in [
        (SPEC_FILE, of_spec.into_iter().next()),
        (NODE_FILE, of_node),
    ] {
        let path = args.dir.join(file);
        if let Some(key) = key.filter(|_| path.exists()) {
            let text = format!(
                "`{}` is kept as it is, so nothing would set `{key}`: write it there",
                path.display()
            );
            return Err(fail(ExitCode::Configuration, text));
        }
    }
    Ok(())
}

/// Returns the state folder that is meant: that of node.toml, if there is one.
fn state(dir: &Path) -> anyhow::Result<PathBuf> {
    let file = dir.join(NODE_FILE);
    if !file.exists() {
        return Ok(dir.join(Config::default().state()));
    }
    let config = layers::resolve(&toml::Table::new(), Some(&file))?;
    Ok(config.state().to_owned())
}

/// Admits the organiser's own node, unless it is a member already.
fn admit(organiser: &Organiser, args: &Args, node: NodeId) -> anyhow::Result<()> {
    let book = organiser.book().or_fail(ExitCode::State)?;
    if book.certificate(&node).is_some() {
        return Ok(());
    }
    let name = args.name.clone();
    let name = name.unwrap_or_else(|| "organiser".parse().expect("letters"));
    organiser
        .admit(node, name, Role::Node, fednode_net::now())
        .or_fail(ExitCode::State)
}

/// Returns the shard to put into node.toml: the one given, else the first, which the user changes on other machines.
fn shard(args: &Args, spec: &FederationSpec) -> Option<Shard> {
    let first = Shard {
        index: 1,
        of: spec.nodes,
    };
    args.shard
        .or((!data::is_own(&spec.data.partition)).then_some(first))
}

fn source(args: &Args) -> anyhow::Result<DataSource> {
    args.data
        .as_deref()
        .map_or(Ok(DataSource::default()), data::source)
}

fn absolute(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

fn write_if_absent(
    path: &Path,
    text: impl FnOnce() -> anyhow::Result<String>,
) -> anyhow::Result<Entry> {
    let entry = Entry::of(path);
    if !entry.existed {
        whole_file::write(path, text()?.as_bytes()).map_err(|error| unwritable(path, &error))?;
    }
    Ok(entry)
}

fn unwritable(path: &Path, error: &std::io::Error) -> anyhow::Error {
    fail(
        ExitCode::State,
        format!("cannot use `{}`: {error}", path.display()),
    )
}

/// What there is now.
#[derive(Debug, Serialize)]
struct Prepared {
    node_id: String,
    federation: String,
    #[serde(serialize_with = "privacy::as_text")]
    privacy: PrivacyMode,
    folder: PathBuf,
    files: Vec<Entry>,
    organises: bool,
    /// Whether a new federation was made and no data was named for it.
    is_of_digits: bool,
    /// Keys of node.toml that nobody set and that this node needs.
    to_edit: Vec<&'static str>,
    needs_ticket: bool,
    /// Another run was wanted, and the spec is that of the state that there is.
    is_old: bool,
    /// Where the state of the run before lies now.
    aside: Option<PathBuf>,
}

/// One file.
#[derive(Debug, Clone, Serialize)]
struct Entry {
    path: PathBuf,
    existed: bool,
}

impl Entry {
    fn of(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            existed: path.exists(),
        }
    }
}

impl Report for Prepared {
    fn human(&self) -> String {
        let line = |entry: &Entry| {
            format!(
                "{} {}\n",
                match (
                    entry.existed,
                    self.aside.is_some() && entry.path.ends_with(SPEC_FILE)
                ) {
                    (false, _) => "wrote",
                    (true, true) => "changed",
                    (true, false) => "kept ",
                },
                entry.path.display()
            )
        };
        let files: String = self.files.iter().map(line).collect();
        let config = self.folder.join(NODE_FILE);
        let aside = self.aside.iter().map(|aside| {
             let aside = aside.display();
             format!("\nThe state of the run before lies in {aside}. Give federation.toml to all members again.\n")
         });
        let aside: String = aside.collect();
        let old = if self.is_old {
            "\nThe state is of this run already. For another one, put the organiser's new federation.toml here first.\n"
        } else {
            ""
        };
        let digits = if self.is_of_digits {
            "\nIt is about the built-in digits. For your own data make it in another folder, with --data csv:FILE,label=COLUMN for example.\n"
        } else {
            ""
        };
        let (config, dir) = (config.display(), self.folder.display());
        let others = if self.organises {
            format!(
                "While it runs, invite the others, one ticket each:\n  fednode invite NAME --dir {dir}\n"
            )
        } else if self.needs_ticket {
            "This federation admits members by ticket: ask its organiser for one, and run `fednode join TICKET` instead.\n".to_owned()
        } else {
            String::new()
        };
        let edit = if self.to_edit.is_empty() {
            String::new()
        } else {
            format!(" edit {config} ({}), then", self.to_edit.join(", "))
        };
        format!(
            "{files}{aside}{old}{digits}\nnode        {}\nfederation  {}\nprivacy     {}\n\nNext:{edit}\n  fednode start --config {config}\n{others}",
            self.node_id,
            self.federation,
            privacy::in_words(self.privacy),
        )
    }
}

#[cfg(test)]
mod tests;
