//! `fednode swarm`: a whole federation on this machine, and what it learned.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fednode_core::FederationSpec;
use fednode_learn::own_model;
use fednode_net::Compression;
use fednode_page::{Background, Watched};
use fednode_runtime::exit::ExitCode;
use fednode_runtime::final_model;
use fednode_runtime::records;
use fednode_runtime::settings::Network;
use fednode_runtime::status::RoundRecord;
use fednode_runtime::streams::say;

use crate::control::{self, Compared, Worth};
use crate::ending;
use crate::swarm::collect::{self, Observed};
use crate::swarm::folder::Folder;
use crate::swarm::run::{self, Outcome, Plan};
use crate::swarm::summary::Summary;
use fednode_cli::clock;
use fednode_cli::config::Config;
use fednode_cli::data::{self, Division, Mine, Sources};
use fednode_cli::device::Choice;
use fednode_cli::everyone::Everyone;
use fednode_cli::failure::{OrFail, fail};
use fednode_cli::federation;
use fednode_cli::initial;
use fednode_cli::interrupt::Interrupts;
use fednode_cli::layers;
use fednode_cli::model::Model;
use fednode_cli::origin;
use fednode_cli::output::{self, Form, Located};
use fednode_cli::page::{self, Newest, To};
use fednode_cli::shard::Shard;

/// The aggregator's binary; it lies beside this one.
const AGGREGATOR: &str = "fedboot";

/// How long a wait may be that only Ctrl-C ends.
const LONG: Duration = Duration::from_secs(3600);

/// What is typed.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    federation: federation::Args,
    #[arg(long, help = data::help(), value_name = "SOURCE", default_value = "digits")]
    data: String,
    /// A node's own data, once for each node, instead of one data set that is divided.
    #[arg(long, value_name = "SOURCE", conflicts_with = "data")]
    own: Vec<String>,
    /// What to train on: auto, vulkan, vulkan:I, cpu.
    #[arg(long, default_value = "auto")]
    device: String,
    /// Threads per node for training on the CPU [default: cores divided by nodes, at least 1].
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// How blobs come to nodes and fedboot: off, as simulations count them, or zstd for fewer bytes.
    #[arg(long, value_name = "METHOD", default_value = "off")]
    compression: Compression,
    /// Where to write everything (default: `runs/<time>`).
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Go on when a process dies; otherwise the swarm fails.
    #[arg(long)]
    keep_going: bool,
    /// Evaluate every node's result on everyone's test samples too.
    #[arg(long)]
    global_test: bool,
    /// Do not train each node alone afterwards, to say whether joining was worth it.
    #[arg(long)]
    no_control: bool,
    /// Start no fedboot: the nodes average among themselves.
    #[arg(long)]
    no_aggregator: bool,
    /// Show the swarm in a browser, until Ctrl-C after the result. The link goes to standard error.
    #[arg(long)]
    dashboard: bool,
}

/// Runs it and prints the result.
pub fn run(args: &Args, form: Form) -> anyhow::Result<()> {
    let interrupts = Interrupts::install().or_fail(ExitCode::Internal)?;
    layers::warn_of_variables("swarm");
    let sources = Sources::read(&args.data, &args.own)?.map(origin::rooted_source);
    let (spec, division) = prepare(args, &sources)?;
    let sources = sources.behind(&spec, args.federation.backbone_file())?;
    let aggregator = if args.no_aggregator {
        None
    } else {
        Some(aggregator()?)
    };
    let choice = device(args, &spec, &sources)?;
    let device = choice.text();
    let folder = folder(args)?;
    folder.write_spec(&spec)?;
    let plan = Plan {
        node: node_config(args, &spec, &device),
        sources: sources.clone(),
        nodes: spec.nodes,
        rounds: spec.rounds,
        aggregator,
        keep_going: args.keep_going,
        folder,
    };
    announce(&plan, &spec, choice.reason.as_deref());
    let page = args.dashboard.then(|| dashboard(&plan)).transpose()?;
    let outcome = run::run(&plan, &interrupts)?;
    let summary = conclude(args, &plan, &spec, &division, outcome, &interrupts)?;
    output::print(
        &Located {
            report: &summary,
            out: plan.folder.root().display().to_string(),
        },
        form,
    )?;
    if interrupts.count() > 0 {
        let text = "stopped before each node was trained alone; the result is complete without it";
        return Err(fail(ExitCode::Interrupted, text));
    }
    if let Some((_page, newest)) = page {
        // Lines of progress may have overwritten a link that was printed meanwhile.
        let link = newest.lock().map(|link| link.clone()).unwrap_or_default();
        say(format_args!(
            "the page stays until Ctrl-C; the next link to it is {link}"
        ));
        while interrupts.count() == 0 && interrupts.sleep(LONG) {}
    }
    match summary.why_useless() {
        None => Ok(()),
        Some(useless) => Err(fail(ExitCode::Training, useless)),
    }
}

/// Starts a page of the swarm on a port of this machine that the system chooses.
fn dashboard(plan: &Plan) -> anyhow::Result<(Background, Newest)> {
    let has_aggregator = plan.aggregator.is_some();
    let watched = Watched::swarm(plan.folder.root(), plan.nodes, has_aggregator);
    let (settings, newest) = page::settings(([127, 0, 0, 1], 0).into(), To::Error);
    let page = Background::start(watched, settings).map_err(|error| page::refused(&error))?;
    Ok((page, newest))
}

/// Makes the spec and divides the data, which gives the spec its hash.
fn prepare(args: &Args, sources: &Sources) -> anyhow::Result<(FederationSpec, Division)> {
    let facts = sources.facts()?;
    data::warn_of_table(sources.of_node(0), None)?;
    let federation = sources.suit(&args.federation)?;
    let mut spec = federation::spec(&federation, &facts).or_fail(ExitCode::Configuration)?;
    ending::check(&spec)?;
    if args.global_test {
        Everyone::check(&spec)?;
    }
    let division = sources.division(&spec, federation.partition_file.as_deref())?;
    spec.fingerprints.partition = Some(division.hash.clone()).filter(|hash| !hash.is_empty());
    Ok((spec, division))
}

/// Finds the device for all nodes. A GPU is tried at the first node's model and data.
fn device(args: &Args, spec: &FederationSpec, sources: &Sources) -> anyhow::Result<Choice> {
    let choice = Choice::find(&args.device)?;
    if choice.is_cpu() {
        return Ok(choice);
    }
    let config = Config {
        data: sources.of_node(0).clone(),
        shard: Some(Shard {
            index: 1,
            of: spec.nodes,
        })
        .filter(|_| !sources.are_own()),
        ..node_config(args, spec, &choice.text())
    };
    let mine = Mine::load(&config, spec)?;
    let own = own_model::by_number(spec, mine.position);
    choice.for_model(&own, &mine.split, (spec.nodes as usize, config.threads))
}

fn folder(args: &Args) -> anyhow::Result<Folder> {
    let out = match &args.out {
        Some(out) => out.clone(),
        None => clock::new_run(SystemTime::now()).or_fail(ExitCode::State)?,
    };
    Folder::create(&out)
}

/// Returns what all nodes have in common.
fn node_config(args: &Args, spec: &FederationSpec, device: &str) -> Config {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let fair_share = (cores / spec.nodes as usize).max(1);
    let absolute = |path: &PathBuf| path.canonicalize().unwrap_or_else(|_| path.clone());
    Config {
        device: device.to_owned(),
        threads: args.threads.unwrap_or(fair_share),
        partition_file: args.federation.partition_file.as_ref().map(absolute),
        initial: args.federation.initial.as_deref().map(initial::absolute),
        backbone: args
            .federation
            .backbone_file()
            .map(|file| absolute(&file.to_owned())),
        network: Network {
            compression: args.compression,
            ..Network::default()
        },
        ..Config::default()
    }
}

fn aggregator() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().or_fail(ExitCode::Internal)?;
    let path = own.with_file_name(AGGREGATOR);
    if path.is_file() {
        return Ok(path);
    }
    let advice = "build it too (`cargo build --release --bin fedboot`), or use --no-aggregator";
    Err(fail(
        ExitCode::Child,
        format!("`{}` is missing: {advice}", path.display()),
    ))
}

fn announce(plan: &Plan, spec: &FederationSpec, reason: Option<&str>) {
    let Config {
        device, threads, ..
    } = &plan.node;
    say(format_args!(
        "{} nodes, {} rounds of {} on {} ({}), {device}, {threads} thread(s) per node; logs in {}",
        spec.nodes,
        spec.rounds,
        spec.algorithm,
        plan.sources,
        spec.data.partition,
        plan.folder.root().join("logs").display()
    ));
    if let Some(reason) = reason {
        say(format_args!("training on the CPU: {reason}"));
    }
}

/// Gathers what the nodes left and writes the result.
fn conclude(
    args: &Args,
    plan: &Plan,
    spec: &FederationSpec,
    division: &Division,
    outcome: Outcome,
    interrupts: &Interrupts,
) -> anyhow::Result<Summary> {
    let mut observed = observe(plan, division, outcome.statuses)?;
    let all: Vec<RoundRecord> = observed
        .iter()
        .flat_map(|observed| observed.records.clone())
        .collect();
    plan.folder.write_metrics(all)?;
    let everyone = if args.global_test {
        Some(Everyone::load(
            &plan.sources.of_node(0).clone().for_federation(spec),
            spec,
            args.federation.partition_file.as_deref(),
        )?)
    } else {
        None
    };
    let mut models = Vec::new();
    for observed in &mut observed {
        let model = keep_model(plan, observed.shard)?;
        if let (Some(everyone), Some(model)) = (&everyone, &model) {
            observed.everyones_test =
                Some(everyone.test(model, &plan.node.device, observed.shard as usize - 1)?);
        }
        models.extend(model.map(|model| (observed.shard, model)));
    }
    let worth = if args.no_control {
        None
    } else {
        control::or_say(worth(args, plan, spec, &models, interrupts))
    };
    let device = observed
        .iter()
        .map(|observed| observed.card.device.clone())
        .find(|device| !device.is_empty());
    let run = collect::Run {
        spec,
        data: &plan.sources.to_string(),
        device: &device.unwrap_or_else(|| plan.node.device.clone()),
        cores: std::thread::available_parallelism().ok().map(usize::from),
        wall_seconds: outcome.wall_seconds,
        effective_config: serde_json::json!({ "federation": spec, "node": plan.node }),
    };
    let summary = collect::summarise(run, &observed, outcome.failed).judged(worth);
    plan.folder.write_summary(&summary)?;
    Ok(summary)
}

/// Compares what the nodes serve with what each does alone.
fn worth(
    args: &Args,
    plan: &Plan,
    spec: &FederationSpec,
    models: &[(u32, Model)],
    interrupts: &Interrupts,
) -> anyhow::Result<Option<Worth>> {
    say(format_args!(
        "training each node alone, to say whether joining was worth it (--no-control leaves that out)"
    ));
    let shards = plan
        .sources
        .shards(spec, args.federation.partition_file.as_deref())?;
    let mut nodes = Vec::new();
    for (shard, model) in models {
        let number = *shard as usize - 1;
        let split = Arc::new(shards[number].split.clone());
        if split.test.is_empty() {
            continue;
        }
        let learner = model.learner(&split.train.subset(&[0]), &plan.node.device)?;
        nodes.push(Compared {
            shard: *shard,
            node_seed: number as u64,
            served: learner.predict(&split.test).or_fail(ExitCode::Data)?,
            split,
        });
    }
    let initial = initial::of(spec, args.federation.initial.as_deref())?;
    let device = Choice::find(&plan.node.device)?;
    control::compare(spec, initial.as_deref(), &nodes, &device, interrupts)
}

fn observe(
    plan: &Plan,
    division: &Division,
    statuses: Vec<Option<Box<fednode_runtime::status::Status>>>,
) -> anyhow::Result<Vec<Observed>> {
    let mut observed = Vec::new();
    for (shard, status) in (1..).zip(statuses) {
        let path = records::path_in(&plan.folder.node_state(shard));
        let records = records::read(&path).or_fail(ExitCode::State)?;
        let yardstick = division.yardsticks.get(shard as usize - 1).copied();
        let yardstick = yardstick.unwrap_or_default();
        // One that never spoke has nothing to be entered.
        observed.extend(status.map(|status| Observed::live(shard, &status, records, yardstick)));
    }
    Ok(observed)
}

/// Copies a node's final model and returns it; a node that died has none.
fn keep_model(plan: &Plan, shard: u32) -> anyhow::Result<Option<Model>> {
    let state = plan.folder.node_state(shard);
    if !state.join(final_model::FOLDER).exists() {
        return Ok(None);
    }
    let model = Model::of_state(&state)?;
    plan.folder.write_model(
        shard,
        &model.params.to_bytes(),
        &(serde_json::to_string_pretty(&model.card)? + "\n"),
    )?;
    Ok(Some(model))
}
