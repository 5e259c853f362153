//! `fednode start`: one member of a federation.
//!
//! ```text
//! flags ─► Config ─► spec ─► my shard of the data ─► device ─► learner ─► run_node … until finished or stopped
//! ```
//!
//! Everything that can be wrong is checked before the first socket opens, in the order in which a user would fix it. Where the
//! organiser adds rounds, all of it is done once more in the same process: samples that were added meanwhile are read then.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fednode_config::flags::Flags;
use fednode_core::{ConfigError, FederationSpec, Round};
use fednode_data::Stamp;
use fednode_learn::{algorithm, own_model};
use fednode_runtime::exit::ExitCode;
use fednode_runtime::status::WaitingFor;
use fednode_runtime::streams::say;
use fednode_runtime::{Finished, MemberConfig, Outcome, Process, Trainer, signals, telemetry};
use serde::Serialize;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use crate::member;
use crate::served::{self, beside};
use fednode_cli::config::Config;
use fednode_cli::data::{self, Mine};
use fednode_cli::failure::{OrFail, fail};
use fednode_cli::layers;
use fednode_cli::model::{CLASSES_FILE, MODEL_FILE, ModelArgs, VOCABULARY_FILE};
use fednode_cli::origin;
use fednode_cli::output::{self, Form, Report};

/// Threads of the network's own executor; it moves bytes and never computes for long.
const NETWORK_THREADS: usize = 2;
/// Threads for disk, mixing and large requests; each costs memory of its own.
const BLOCKING_THREADS: usize = 4;
/// Addresses that may wait to be printed.
const ADDRESSES: usize = 64;
/// How long tasks that block may take to end after the last word.
const LAST_PATIENCE: Duration = Duration::from_millis(500);
/// How long a node waits before it tries once more to go on after an end, and how long at most.
const SHORTEST_WAIT: Duration = Duration::from_secs(2);
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// A node's settings as they are typed. `--set` reaches every key of node.toml, described there.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Own {
    #[command(flatten)]
    settings: Flags<Config>,
    /// The file with all of these [default: $FEDNODE_CONFIG, else node.toml if it exists].
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Own {
    /// Layers them over the environment and the file.
    ///
    /// # Errors
    /// As [`layers::resolve`].
    pub(crate) fn resolve(&self) -> anyhow::Result<Config> {
        layers::resolve(&self.settings.layer, self.config.as_deref())
    }
}

/// What is typed.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    own: Own,
    /// Print the settings in force, where each could come from, and stop.
    #[arg(long)]
    print_config: bool,
    /// Stop when standard input closes; a swarm's children end with it.
    #[arg(long, hide = true)]
    stop_when_stdin_closes: bool,
}

impl Args {
    /// Starts with the settings of a file.
    pub(crate) fn of_file(file: PathBuf) -> Self {
        let own = Own {
            config: Some(file),
            ..Own::default()
        };
        Self {
            own,
            ..Self::default()
        }
    }
}

/// Takes part until all rounds are done or somebody stops it.
pub(crate) fn run(args: Args, form: Form) -> anyhow::Result<()> {
    let config = args.own.resolve()?;
    if args.print_config {
        return output::print(&Effective { node: config }, form);
    }
    fednode_runtime::allocator::settle();
    telemetry::install(config.log.format).or_fail(ExitCode::Configuration)?;
    let ready = Ready::of(&config, Round::ZERO)?;
    if let Some(bind) = config.serve {
        beside::check(bind, config.network.control)?;
        served::warn_of_reach(bind);
    }
    let config = Arc::new(config);
    let runtime = executor()?;
    let result = runtime.block_on(async {
        let stop = signals::install().or_fail(ExitCode::Internal)?;
        if args.stop_when_stdin_closes {
            signals::stop_when_stdin_closes(stop.clone());
        }
        let serving = config.serve.map(|bind| {
            let args = ModelArgs::of(config.state().to_owned(), config.backbone.clone());
            tokio::spawn(beside::serve(bind, args))
        });
        let mut process = Process::new(&stop);
        let finished = to_the_end(ready, &config, &mut process, form).await;
        process.close().await;
        if let Some(serving) = serving {
            serving.abort();
            // Its file goes with it.
            let _ = serving.await;
        }
        match finished?.useless {
            None => Ok(()),
            Some(useless) => Err(fail(ExitCode::Training, useless)),
        }
    });
    runtime.shutdown_timeout(LAST_PATIENCE);
    result
}

/// Takes part once, and once more whenever rounds were added.
async fn to_the_end(
    mut ready: Ready,
    config: &Arc<Config>,
    process: &mut Process,
    form: Form,
) -> anyhow::Result<Finished> {
    loop {
        let finished = take_part(ready, process, form).await?;
        let Outcome::Extended { done } = finished.outcome else {
            return Ok(finished);
        };
        ready = match again(config, done, process).await {
            Some(ready) => ready,
            None => return Ok(finished),
        };
    }
}

/// Reads settings and data anew after an end. What cannot be read just then is tried again: a table may be half copied, or a share
/// away. Returns nothing once somebody stops it.
async fn again(config: &Arc<Config>, done: Round, process: &mut Process) -> Option<Ready> {
    let (begun, mut wait) = (Instant::now(), SHORTEST_WAIT);
    let mut waits = WaitingFor::of_nobody(format!("its samples, after the end of round {done}"));
    while !process.stop().is_cancelled() {
        let config = Arc::clone(config);
        let reading = tokio::task::spawn_blocking(move || Ready::of(&config, done));
        let error = match process.answer_while(waits.clone(), reading).await? {
            Ok(Ok(ready)) => return Some(ready),
            Ok(Err(error)) => format!("{error:#}"),
            Err(defect) => defect.to_string(),
        };
        tracing::warn!(
            "this node cannot go on after the end of round {done}: {error}; it tries again in {} s",
            wait.as_secs()
        );
        waits.seconds = begun.elapsed().as_secs_f64();
        waits.remedy = Some(format!("{error}; the node tries again by itself"));
        let pause = tokio::time::sleep(wait);
        process.answer_while(waits.clone(), pause).await?;
        wait = LONGEST_WAIT.min(2 * wait);
    }
    None
}

/// Takes part until all rounds that are known are done, or somebody stops it.
async fn take_part(ready: Ready, process: &mut Process, form: Form) -> anyhow::Result<Finished> {
    let Ready {
        mut member,
        trainer,
    } = ready;
    let (told, mut addresses) = mpsc::channel(ADDRESSES);
    member.on_listening = Some(told);
    let printing = tokio::spawn(async move {
        while let Some(listening) = addresses.recv().await {
            output::print_line(&Listening { listening }, form)?;
        }
        anyhow::Ok(())
    });
    let finished = fednode_runtime::run_node(member, trainer, process).await;
    printing.abort();
    finished.map_err(|error| fail(error.exit_code(), error.to_string()))
}

/// A member that is ready to start: all that can be wrong with its settings, its data and its device is found.
struct Ready {
    member: MemberConfig,
    trainer: Trainer,
}

impl Ready {
    /// All ends up to `done` are done with.
    fn of(config: &Config, done: Round) -> anyhow::Result<Self> {
        let agreed = read_spec(config)?;
        let folders = (config.state(), config.network.organiser.as_deref());
        let spec = fednode_runtime::extended(agreed, folders, done);
        let spec = spec.map_err(|error| fail(error.exit_code(), error.to_string()))?;
        let spec = Arc::new(spec);
        let mut member = member::config(config, Arc::clone(&spec))?;
        // Before anything is read: what is appended meanwhile is a change.
        let stamp = Stamp::of(&config.data);
        let mine = Mine::load(config, &spec)?;
        data::warn_of_table(&config.data, Some(&spec))?;
        if let Some(change) = origin::change(config) {
            tracing::warn!(
                "{change}: its scores are those of the new samples, of which others may have been its own"
            );
        }
        let own = with_own_model(&spec, config, &mine)?;
        let trainer = crate::trainer::build(config, (&spec, &own), &mine, stamp)?;
        member.facts = facts(config, own.model.name.first(), &mine)?;
        Ok(Self { member, trainer })
    }
}

/// Starts the threads on which a node or a server talks.
///
/// # Errors
/// Fails if the system refuses them.
pub(super) fn executor() -> anyhow::Result<Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder
        .worker_threads(NETWORK_THREADS)
        .max_blocking_threads(BLOCKING_THREADS)
        .enable_all();
    builder.build().or_fail(ExitCode::Internal)
}

/// Returns the spec of this node's own model.
///
/// # Errors
/// Fails on a model that the settings name and that there is not, or that the federation does not allow.
pub(crate) fn with_own_model(
    spec: &FederationSpec,
    config: &Config,
    mine: &Mine,
) -> anyhow::Result<FederationSpec> {
    match &config.model {
        None => Ok(own_model::by_number(spec, mine.position)),
        Some(name) => own_model::chosen(spec, name).or_fail(ExitCode::Configuration),
    }
}

/// Reads the federation's spec.
///
/// # Errors
/// Names the file, the line and the key.
pub(crate) fn read_spec(config: &Config) -> anyhow::Result<FederationSpec> {
    let path = config.spec.display();
    let text = std::fs::read_to_string(&config.spec).map_err(|error| {
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
        say(format_args!("warning: {notice}"));
    }
    Ok(reading.spec)
}

/// Returns what is kept beside the state and the spec, so that `evaluate`, `predict`, `personalise` and `export` need the state
/// folder only. These are the model's and the classes' names, the vocabulary, and where the samples are.
fn facts(config: &Config, model: &str, mine: &Mine) -> anyhow::Result<Vec<(&'static str, String)>> {
    let samples = &mine.split.train;
    let mut facts = vec![
        (MODEL_FILE, format!("{model}\n")),
        (CLASSES_FILE, samples.class_names.join("\n") + "\n"),
        (
            origin::FILE,
            origin::text(config, mine.began_with.as_ref())?,
        ),
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
    use fednode_config::layers;
    use fednode_runtime::telemetry::Format;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn resolved(line: &[&str]) -> Config {
        let args = Cli::parse_from([&["fednode"], line].concat()).args;
        let resolved = layers::resolve(&args.own.settings.layer, [], None);
        resolved.unwrap().settings
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
            "--set",
            "network.mdns=true",
            "--network-key=k",
            "--data=csv:x",
        ]);
        assert_eq!((config.network.peers.len(), config.network.mdns), (2, true));
        assert_eq!(config.network.key, Some("k".into()));
        assert_eq!(config.shard.map(|shard| shard.position()), Some(1));
        assert_eq!(config.data.to_string(), "csv:x");
        let json = resolved(&["--set", "log.format=json"]);
        assert_eq!(json.log.format, Format::Json);
    }
}
