//! `fednode swarm`: a whole federation on this machine, and what it learned.

use std::path::PathBuf;
use std::time::SystemTime;

use fednode_core::FederationSpec;
use fednode_data::DataSource;
use fednode_net::Compression;
use fednode_runtime::exit::ExitCode;
use fednode_runtime::final_model;
use fednode_runtime::records;
use fednode_runtime::settings::Network;
use fednode_runtime::status::RoundRecord;

use crate::swarm::collect::{self, Observed};
use crate::swarm::folder::Folder;
use crate::swarm::run::{self, Outcome, Plan};
use crate::swarm::summary::Summary;
use fednode_cli::clock;
use fednode_cli::config::Config;
use fednode_cli::data::{self, Division};
use fednode_cli::device::Choice;
use fednode_cli::everyone::Everyone;
use fednode_cli::failure::{OrFail, fail};
use fednode_cli::federation;
use fednode_cli::interrupt::Interrupts;
use fednode_cli::layers;
use fednode_cli::model::Model;
use fednode_cli::origin;
use fednode_cli::output::{self, Form, Located};

/// The aggregator's binary; it lies beside this one.
const AGGREGATOR: &str = "fedboot";

/// What is typed.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    federation: federation::Args,
    #[arg(long, help = data::help(), value_name = "SOURCE", default_value = "digits")]
    data: String,
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
    /// Start no fedboot: the nodes average among themselves.
    #[arg(long)]
    no_aggregator: bool,
}

/// Runs it and prints the result.
pub fn run(args: &Args, form: Form) -> anyhow::Result<()> {
    let interrupts = Interrupts::install().or_fail(ExitCode::Internal)?;
    layers::warn_of_variables("swarm");
    let source = data::source(&args.data)?;
    let (spec, division) = prepare(args, &source)?;
    let aggregator = if args.no_aggregator {
        None
    } else {
        Some(aggregator()?)
    };
    let choice = Choice::find(&args.device)?;
    let device = choice.text();
    let folder = folder(args)?;
    folder.write_spec(&spec)?;
    let plan = Plan {
        node: node_config(args, &source, &spec, &device),
        nodes: spec.nodes,
        rounds: spec.rounds,
        aggregator,
        keep_going: args.keep_going,
        folder,
    };
    announce(&plan, &spec, args, choice.reason.as_deref());
    let outcome = run::run(&plan, &interrupts)?;
    let summary = conclude(args, &plan, &spec, &division, outcome)?;
    output::print(
        &Located {
            report: &summary,
            out: plan.folder.root().display().to_string(),
        },
        form,
    )
}

/// Makes the spec and divides the data, which gives the spec its hash.
fn prepare(args: &Args, source: &DataSource) -> anyhow::Result<(FederationSpec, Division)> {
    let facts = data::facts(source)?;
    data::warn_of_table(source, &[])?;
    let mut spec = federation::spec(&args.federation, &facts).or_fail(ExitCode::Configuration)?;
    data::refuse_own(&spec, "a swarm")?;
    let division = Division::make(source, &spec, args.federation.partition_file.as_deref())?;
    spec.fingerprints.partition = Some(division.hash.clone());
    Ok((spec, division))
}

fn folder(args: &Args) -> anyhow::Result<Folder> {
    let out = match &args.out {
        Some(out) => out.clone(),
        None => clock::new_run(SystemTime::now()).or_fail(ExitCode::State)?,
    };
    Folder::create(&out)
}

/// Returns what all nodes have in common.
fn node_config(args: &Args, source: &DataSource, spec: &FederationSpec, device: &str) -> Config {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let fair_share = (cores / spec.nodes as usize).max(1);
    let absolute = |path: &PathBuf| path.canonicalize().unwrap_or_else(|_| path.clone());
    Config {
        data: origin::rooted_source(source),
        device: device.to_owned(),
        threads: args.threads.unwrap_or(fair_share),
        partition_file: args.federation.partition_file.as_ref().map(absolute),
        initial: args.federation.initial.as_ref().map(absolute),
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

fn announce(plan: &Plan, spec: &FederationSpec, args: &Args, reason: Option<&str>) {
    let Config {
        device, threads, ..
    } = &plan.node;
    eprintln!(
        "{} nodes, {} rounds of {} on {} ({}), {device}, {threads} thread(s) per node; logs in {}",
        spec.nodes,
        spec.rounds,
        spec.algorithm,
        args.data,
        spec.data.partition,
        plan.folder.root().join("logs").display()
    );
    if let Some(reason) = reason {
        eprintln!("training on the CPU: {reason}");
    }
}

/// Gathers what the nodes left and writes the result.
fn conclude(
    args: &Args,
    plan: &Plan,
    spec: &FederationSpec,
    division: &Division,
    outcome: Outcome,
) -> anyhow::Result<Summary> {
    let mut observed = observe(plan, division, outcome.statuses)?;
    let all: Vec<RoundRecord> = observed
        .iter()
        .flat_map(|observed| observed.records.clone())
        .collect();
    plan.folder.write_metrics(all)?;
    let everyone = if args.global_test {
        Some(Everyone::load(
            &data::source(&args.data)?.with_columns(&spec.fingerprints.columns),
            spec,
            args.federation.partition_file.as_deref(),
        )?)
    } else {
        None
    };
    for observed in &mut observed {
        let model = keep_model(plan, observed.shard)?;
        if let (Some(everyone), Some(model)) = (&everyone, model) {
            observed.everyones_test =
                Some(everyone.test(&model, &plan.node.device, observed.shard as usize - 1)?);
        }
    }
    let device = observed
        .iter()
        .map(|observed| observed.card.device.clone())
        .find(|device| !device.is_empty());
    let run = collect::Run {
        spec,
        data: &args.data,
        device: &device.unwrap_or_else(|| plan.node.device.clone()),
        cores: std::thread::available_parallelism().ok().map(usize::from),
        wall_seconds: outcome.wall_seconds,
        effective_config: serde_json::json!({ "federation": spec, "node": plan.node }),
    };
    let summary = collect::summarise(run, &observed, outcome.failed);
    plan.folder.write_summary(&summary)?;
    Ok(summary)
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
        let majority_class_accuracy = division
            .floors
            .get(shard as usize - 1)
            .copied()
            .unwrap_or(0.0);
        // One that never spoke has nothing to be entered.
        observed.extend(
            status.map(|status| Observed::live(shard, &status, records, majority_class_accuracy)),
        );
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
