//! `fednode start`: one member of a federation.
//!
//! ```text
//! flags ─► Config ─► spec ─► my shard of the data ─► device ─► learner ─► run_node … until finished or stopped
//! ```
//!
//! Everything that can be wrong is checked before the first socket opens, in the order in which a user would fix it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fednode_core::{ConfigError, FederationSpec};
use fednode_data::Samples;
use fednode_learn::{Learner, PoolSettings, Room, algorithm, own_model};
use fednode_runtime::exit::ExitCode;
use fednode_runtime::{signals, telemetry};
use serde::Serialize;
use tokio::sync::mpsc;

use crate::config::Config;
use crate::data::{self, Mine};
use crate::device::Choice;
use crate::failure::{OrFail, fail, no_learner};
use crate::initial;
use crate::layers;
use crate::member;
use crate::model::{CLASSES_FILE, MODEL_FILE, SPEC_FILE, VOCABULARY_FILE};
use crate::origin;
use crate::output::{self, Form, Report};
use crate::trainer::LearnerTrainer;

/// Threads of the network's own executor; it moves bytes and never computes for long.
const NETWORK_THREADS: usize = 2;
/// Threads for disk and mixing; each costs memory of its own.
const BLOCKING_THREADS: usize = 4;
/// Addresses that may wait to be printed.
const ADDRESSES: usize = 64;
/// How long tasks that block may take to end after the last word.
const LAST_PATIENCE: Duration = Duration::from_millis(500);

/// What is typed. Every flag is a key of node.toml, described there.
#[derive(Debug, Default, clap::Args, Serialize)]
pub(crate) struct Args {
    /// The federation's spec, the same file for all members.
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    spec: Option<String>,
    #[arg(long, help = data::help(), value_name = "SOURCE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<String>,
    /// Which part of the data is mine, counting from 1.
    #[arg(long, value_name = "I/N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    shard: Option<String>,
    /// The file of index lists when the spec's partition is `file`.
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    partition_file: Option<String>,
    /// The file of the parameters that the federation starts from, if it does.
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    initial: Option<String>,
    /// The folder for everything that must survive a restart.
    #[arg(long, value_name = "DIR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<String>,
    /// This node's own model, where its algorithm shares nothing of it.
    #[arg(long, value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    /// What to train on: auto, vulkan, vulkan:I, cpu.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<String>,
    /// Threads for training on the CPU; 0 takes every core.
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    threads: Option<usize>,
    /// Addresses to listen on.
    #[arg(long, value_name = "ADDR", num_args = 1.., value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    listen: Vec<String>,
    /// Addresses under which others reach this node.
    #[arg(long, value_name = "ADDR", num_args = 1.., value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    external: Vec<String>,
    /// Members to join through, any of them.
    #[arg(long, value_name = "ADDR", num_args = 1.., value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    peers: Vec<String>,
    /// A file with the federation's pre-shared network key.
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    network_key: Option<String>,
    /// A file with the node ids that may take part, one a line.
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    allow: Option<String>,
    /// Look for members on the local network.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    mdns: Option<bool>,
    /// How blobs come here: zstd, or off for bytes as they are.
    #[arg(long, value_name = "METHOD")]
    #[serde(skip_serializing_if = "Option::is_none")]
    compression: Option<String>,
    /// Where the control API listens, or `off`.
    #[arg(long, value_name = "ADDR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    control: Option<String>,
    /// Most mebibytes of other nodes' experts kept on disk.
    #[arg(long, value_name = "MIB")]
    #[serde(skip_serializing_if = "Option::is_none")]
    quota_mib: Option<u64>,
    /// Most mebibytes of memory for what frozen parts make of the samples; the rest lies in the state folder.
    #[arg(long, value_name = "MIB")]
    #[serde(skip_serializing_if = "Option::is_none")]
    feature_memory_mib: Option<u64>,
    /// How log lines are written: human or json.
    #[arg(long = "log", value_name = "FORM")]
    #[serde(skip_serializing_if = "Option::is_none")]
    log_format: Option<String>,
    /// Stop after the last round instead of serving experts to others.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_when_finished: Option<bool>,
    /// Rounds between two evaluations before the exchange and on validation samples.
    #[arg(long, value_name = "ROUNDS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    evaluate_every: Option<u32>,
    /// Let others have the private module, where the federation pools them; `=false` keeps it.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    share_module: Option<bool>,
    /// Seconds to go on serving before that stop.
    #[arg(long, value_name = "SECONDS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    linger_seconds: Option<f64>,
    /// The file with all of these [default: $FEDNODE_CONFIG, else node.toml if it exists].
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    config: Option<PathBuf>,
    /// Print the settings in force, where each could come from, and stop.
    #[arg(long)]
    #[serde(skip)]
    print_config: bool,
    /// Stop when standard input closes; a swarm's children end with it.
    #[arg(long, hide = true)]
    #[serde(skip)]
    stop_when_stdin_closes: bool,
}

/// Takes part until all rounds are done or somebody stops it.
pub(crate) fn run(args: Args, form: Form) -> anyhow::Result<()> {
    let flags = toml::Table::try_from(&args).or_fail(ExitCode::Internal)?;
    let config = layers::resolve(flags, args.config.as_deref())?;
    if args.print_config {
        return output::print(&Effective { node: config }, form);
    }
    fednode_runtime::allocator::settle();
    let log_format = config
        .log_format
        .parse()
        .map_err(|error: String| fail(ExitCode::Configuration, error))?;
    telemetry::install(log_format, &telemetry::Target::Stderr).or_fail(ExitCode::Configuration)?;
    let spec = Arc::new(read_spec(&config)?);
    let mut member = member::config(&config, Arc::clone(&spec))?;
    let mine = Mine::load(&config, &spec)?;
    data::warn_of_table(&data::source(&config.data)?, &spec.fingerprints.columns)?;
    if let Some(change) = origin::change(&config) {
        tracing::warn!(
            "{change}: its scores are those of the new samples, of which others may have been its own"
        );
    }
    let own = match config.model.as_str() {
        "" => own_model::by_number(&spec, mine.position),
        name => own_model::chosen(&spec, name).or_fail(ExitCode::Configuration)?,
    };
    let trainer = trainer(&config, &own, &mine)?;
    member.facts = facts(&config, &spec, &own.model.name, &mine.split.train)?;
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder
        .worker_threads(NETWORK_THREADS)
        .max_blocking_threads(BLOCKING_THREADS)
        .enable_all();
    let runtime = builder.build().or_fail(ExitCode::Internal)?;
    let result = runtime.block_on(async {
        let stop = signals::install().or_fail(ExitCode::Internal)?;
        if args.stop_when_stdin_closes {
            signals::stop_when_stdin_closes(stop.clone());
        }
        let (told, mut addresses) = mpsc::channel(ADDRESSES);
        member.on_listening = Some(told);
        let printing = tokio::spawn(async move {
            while let Some(listening) = addresses.recv().await {
                output::print_line(&Listening { listening }, form)?;
            }
            anyhow::Ok(())
        });
        let finished = fednode_runtime::run_node(member, Box::new(trainer), stop).await;
        printing.abort();
        finished
            .map(drop)
            .map_err(|error| fail(error.exit_code(), error.to_string()))
    });
    runtime.shutdown_timeout(LAST_PATIENCE);
    result
}

/// Reads the federation's spec.
///
/// # Errors
/// Names the file, the line and the key.
pub(crate) fn read_spec(config: &Config) -> anyhow::Result<FederationSpec> {
    let path = &config.spec;
    let text = std::fs::read_to_string(path).map_err(|error| {
        let advice = "name it with --spec, or make one with `fednode init`";
        fail(
            ExitCode::Configuration,
            format!("cannot read the federation's spec `{path}`: {error}; {advice}"),
        )
    })?;
    let named = |error| fail(ExitCode::Configuration, format!("`{path}`: {error}"));
    let spec = read_and_tell(&text).map_err(named)?;
    algorithm::check_exchange(&spec).map_err(named)?;
    own_model::check(&spec)
        .map_err(|error| fail(ExitCode::Configuration, format!("`{path}`: {error}")))?;
    Ok(spec)
}

/// Reads a spec, and says on standard error what there is to say about its file.
///
/// # Errors
/// As [`FederationSpec::read`].
pub(crate) fn read_and_tell(text: &str) -> Result<FederationSpec, ConfigError> {
    let reading = FederationSpec::read(text)?;
    if let Some(notice) = reading.notice {
        eprintln!("warning: {notice}");
    }
    Ok(reading.spec)
}

/// Opens the device and builds the learner; the spec is that of this node's own model.
fn trainer(config: &Config, spec: &FederationSpec, mine: &Mine) -> anyhow::Result<LearnerTrainer> {
    let choice = Choice::find(&config.device)?;
    if let Some(reason) = &choice.reason {
        tracing::info!(%reason, "training on the CPU");
    }
    let device = choice.open(config.threads)?;
    let initial = Some(config.initial.as_str()).filter(|file| !file.is_empty());
    let initial = initial::of(spec, initial.map(Path::new))?;
    let mut learner =
        Learner::new(spec, mine.node_seed, Arc::clone(&mine.split), &device).map_err(no_learner)?;
    let memory_bytes = config.feature_memory_mib.saturating_mul(1 << 20);
    let whole = Room::default();
    let disk_bytes = fednode_store::disk_free(Path::new(&config.state))
        .map_or(whole.disk_bytes, |free| whole.disk_bytes.min(free / 2));
    learner.keep_in(Room {
        memory_bytes,
        folder: Some(config.state.clone().into()),
        disk_bytes,
    });
    initial::start(&mut learner, initial.as_deref())?;
    tracing::info!(
        device = device.name(),
        threads = device.n_threads(),
        samples = mine.split.train.len(),
        "ready to train"
    );
    let card = mine.card(spec, device.name(), learner.state().n_values() as u64);
    Ok(LearnerTrainer::new(
        learner,
        card,
        PoolSettings::of(&spec.pool),
    ))
}

/// Returns what is kept beside the state, so that `evaluate`, `predict`, `personalise` and `export` need the state folder only:
/// a copy of the spec, the model's and the classes' names, the vocabulary, and where the samples are.
fn facts(
    config: &Config,
    spec: &FederationSpec,
    model: &str,
    samples: &Samples,
) -> anyhow::Result<Vec<(&'static str, String)>> {
    let mut facts = vec![
        (SPEC_FILE, spec.to_toml()),
        (MODEL_FILE, format!("{model}\n")),
        (CLASSES_FILE, samples.class_names.join("\n") + "\n"),
        (origin::FILE, origin::text(config)?),
    ];
    facts.extend(
        samples
            .vocabulary()
            .map(|vocabulary| (VOCABULARY_FILE, vocabulary.tokens().join("\n") + "\n")),
    );
    Ok(facts)
}

/// An address at which this node listens, to be copied into `--peers`.
#[derive(Debug, Serialize)]
struct Listening {
    listening: String,
}

impl Report for Listening {
    fn human(&self) -> String {
        format!("listening at {}\n", self.listening)
    }
}

/// The settings in force.
#[derive(Debug, Serialize)]
struct Effective {
    node: Config,
}

impl Report for Effective {
    fn human(&self) -> String {
        self.node.to_toml()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn resolved(line: &[&str]) -> Config {
        let args = Cli::parse_from([&["fednode"], line].concat()).args;
        Config::resolve(toml::Table::try_from(&args).unwrap(), [], None).unwrap()
    }

    #[test]
    fn flags_are_keys_of_the_configuration() {
        assert_eq!(resolved(&[]), Config::default());
        let config = resolved(&[
            "--peers",
            "/ip4/1.2.3.4/tcp/1",
            "/ip4/1.2.3.4/tcp/2",
            "--shard",
            "2/5",
            "--mdns",
        ]);
        assert_eq!(
            (config.peers.len(), config.shard.as_str(), config.mdns),
            (2, "2/5", true)
        );
        assert_eq!(
            resolved(&["--log", "json", "--threads", "3"]).log_format,
            "json"
        );
        assert!(!resolved(&["--mdns=false"]).mdns);
    }

    #[test]
    fn every_key_but_none_else_is_a_flag() {
        let keys = toml::Table::try_from(Config::default()).unwrap();
        let typed = [
            "--spec=a",
            "--data=a",
            "--shard=1/2",
            "--partition-file=a",
            "--initial=a",
            "--state=a",
            "--model=a",
            "--device=a",
            "--threads=1",
            "--listen=a",
            "--external=a",
            "--peers=a",
            "--network-key=a",
            "--allow=a",
            "--mdns",
            "--compression=zstd",
            "--control=off",
            "--quota-mib=1",
            "--feature-memory-mib=1",
            "--log=json",
            "--exit-when-finished",
            "--evaluate-every=1",
            "--share-module=false",
            "--linger-seconds=1",
        ];
        let args = Cli::parse_from([&["fednode"], &typed[..]].concat()).args;
        let flags = toml::Table::try_from(&args).unwrap();
        assert_eq!(
            flags.keys().collect::<Vec<_>>(),
            keys.keys().collect::<Vec<_>>()
        );
    }
}
