//! `fednode simulate`: federations in one process, one after the other, and a table of what they learned.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use fednode_config::flags::dropped;
use fednode_core::ConfigError;
use fednode_runtime::exit::ExitCode;

use crate::simulate::experiment::{Experiment, Variant};
use crate::simulate::lies::{self, Lies};
use crate::simulate::listing::Listing;
use crate::simulate::play::Play;
use crate::simulate::player::{Planned, Player, folder, play_share, shared, total};
use crate::simulate::protocol;
use crate::simulate::run::{Means, Run};
use crate::simulate::table::{Row, Table};
use fednode_cli::clock;
use fednode_cli::data::{self, Sources};
use fednode_cli::device::Choice;
use fednode_cli::dotted::{self, Assignment};
use fednode_cli::failure::{OrFail, fail};
use fednode_cli::federation;
use fednode_cli::interrupt::Interrupts;
use fednode_cli::layers;
use fednode_cli::output::{self, Form, Located};
use fednode_cli::shard::Shard;

/// What is typed.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// An experiment's file; flags override its settings, `--sweep` its lists of values.
    file: Option<PathBuf>,
    #[command(flatten)]
    federation: federation::Args,
    #[arg(long, help = data::help(), value_name = "SOURCE")]
    data: Option<String>,
    /// A node's own data, once for each node, instead of one data set that is divided.
    #[arg(long, value_name = "SOURCE", conflicts_with = "data")]
    own: Vec<String>,
    /// Run with each of these values; may be repeated, every combination is run.
    #[arg(long, value_name = "KEY=VALUE,…")]
    sweep: Vec<Assignment>,
    /// Run with each of these seeds.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "SEED,…",
        conflicts_with = "seed"
    )]
    seeds: Vec<u64>,
    /// Have no aggregator: the nodes average among themselves.
    #[arg(long)]
    no_aggregator: bool,
    /// Rounds between two evaluations before the exchange and on validation samples [default: 10].
    #[arg(long, value_name = "ROUNDS", value_parser = clap::value_parser!(u32).range(1..))]
    evaluate_every: Option<u32>,
    /// Evaluate every node's result on everyone's test samples too.
    #[arg(long)]
    global_test: bool,
    /// Play the protocol alone: messages, bytes and time with many nodes. Toys take the models' place, with so many floats in
    /// the shared part and in every expert; 0 for a few.
    #[arg(long, value_name = "N", conflicts_with_all = ["data", "partition_file", "evaluate_every", "global_test"])]
    toy_floats: Option<u32>,
    #[arg(long = "no-training", value_name = "VALUE", hide = true, num_args = 0..=1, default_missing_value = "", value_parser = dropped("--toy-floats 0"))]
    dropped_no_training: Option<String>,
    /// With `--toy-floats`: compare the nodes' plans with those of somebody who knows all proxies; slower, more memory.
    #[arg(long)]
    compare_plans: bool,
    /// Train each node alone afterwards, to say whether joining was worth it.
    #[arg(long)]
    control: bool,
    #[arg(long, help = lies::help(), value_name = "KIND:EVERY", conflicts_with = "toy_floats")]
    lies: Option<Lies>,
    /// Check all settings and list the runs, but play none.
    #[arg(long, visible_alias = "list")]
    dry_run: bool,
    /// Play only every M-th run from the N-th on: one of M jobs, on as many machines, that share the folder.
    #[arg(long = "run", value_name = "N/M")]
    share: Option<Shard>,
    /// What to train on: auto, vulkan, vulkan:I, cpu.
    #[arg(long, default_value = "cpu")]
    device: String,
    /// How many nodes compute side by side [default: one per core].
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Where to write everything; runs that are finished there are not run again (default: `runs/<time>`, for an
    /// experiment's file `runs/<its name>`).
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// The key of who lies, in an experiment's file.
const LIES: &str = "lies";

/// Rounds between two complete evaluations, unless somebody says otherwise.
const EVALUATE_EVERY: u32 = 10;

/// Runs everything and prints the result.
pub fn run(args: &Args, form: Form) -> anyhow::Result<()> {
    let experiment = experiment(args)?;
    if experiment.toy_floats.is_none() {
        fednode_runtime::allocator::settle();
    }
    layers::warn_of_variables("simulate");
    if experiment.toy_floats.is_none() {
        let (data, own) = data_of(args, &experiment);
        data::warn_of_table(Sources::read(&data, &own)?.of_node(0), None)?;
    }
    if let Some(toy_floats) = experiment.toy_floats {
        let wanted = protocol::Wanted {
            compare_plans: experiment.compare_plans,
            toy_floats,
        };
        let prepare = |run: Run| protocol::Prepared::new(&run.federation, run.aggregator, wanted);
        play_all(args, plan(args, &experiment, prepare)?, form)
    } else {
        play_all(args, plan(args, &experiment, Run::prepare)?, form)
    }
}

fn play_all<P: Play>(args: &Args, planned: Vec<Planned<P>>, form: Form) -> anyhow::Result<()> {
    if args.dry_run {
        return list(&out(args)?, &planned, args.share, form);
    }
    let interrupts = Interrupts::install().or_fail(ExitCode::Internal)?;
    let device = Choice::find(&args.device)?;
    let means = Means {
        device: &device,
        threads: threads(args),
        interrupts: &interrupts,
        quiet: form == Form::Json,
    };
    let out = out(args)?;
    if args.share.is_some() && args.out.is_none() && args.file.is_none() {
        let text = "jobs that share the runs have to share a folder: name it with --out";
        return Err(fail(ExitCode::Usage, text));
    }
    let mut player = Player::new(out, total(&planned), means);
    if let Some(share) = args.share {
        if player.total == 1 && share.of > 1 {
            let text = format!("there is one run, which {} jobs cannot share", share.of);
            return Err(fail(ExitCode::Usage, text));
        }
        return play_share(&mut player, &planned, share, form);
    }
    let mut table: Table<P::Row> = Table {
        rows: Vec::new(),
        out: player.out.display().to_string(),
    };
    for Planned { name, runs } in planned {
        let mut summaries = Vec::new();
        for prepared in runs {
            summaries.extend(player.play(&name, &prepared)?);
        }
        if let ([summary], 1) = (summaries.as_slice(), player.total) {
            return output::print(
                &Located {
                    report: summary,
                    out: table.out,
                },
                form,
            );
        }
        if !summaries.is_empty() {
            table.rows.push(Row::new(name, &summaries));
        }
        table.write(&player.out)?;
    }
    output::print(&table, form)?;
    player.verdict()
}

/// Lists what would be played; of several jobs that share the runs, what one of them would play.
fn list<P: Play>(
    out: &Path,
    planned: &[Planned<P>],
    share: Option<Shard>,
    form: Form,
) -> anyhow::Result<()> {
    let mut listing = Listing::default();
    let total = total(planned);
    for (name, prepared) in shared(planned, share) {
        let folder = folder(out, total, name, prepared.spec().seed);
        listing.add(name, prepared, &folder)?;
    }
    output::print(&listing, form)
}

fn experiment(args: &Args) -> anyhow::Result<Experiment> {
    let mut experiment = match &args.file {
        None => Experiment::default(),
        Some(path) => {
            let shown = path.display();
            federation::refuse_preset(&args.federation, path).or_fail(ExitCode::Configuration)?;
            let text = fs::read_to_string(path).map_err(|error| {
                fail(
                    ExitCode::Configuration,
                    format!("cannot read the experiment `{shown}`: {error}"),
                )
            })?;
            let folder = path.parent().unwrap_or(Path::new(""));
            let named =
                |ConfigError(error)| fail(ExitCode::Configuration, format!("`{shown}`: {error}"));
            Experiment::parse(&text, folder).map_err(named)?
        }
    };
    if let Some([Assignment { key, .. }, _]) = dotted::contradiction(&args.sweep) {
        let text = format!(
            "`--sweep {key}` is given twice: give all its values at once, as `--sweep {key}=A,B`"
        );
        return Err(fail(ExitCode::Configuration, text));
    }
    for Assignment { key, value } in &args.sweep {
        let values = value
            .split(',')
            .map(str::trim)
            .filter(|value| !value.is_empty())
            .map(str::to_owned)
            .collect();
        experiment
            .add_axis(key, values)
            .or_fail(ExitCode::Configuration)?;
    }
    if !args.seeds.is_empty() {
        experiment.seeds.clone_from(&args.seeds);
    }
    experiment.compare_plans |= args.compare_plans;
    experiment.toy_floats = args.toy_floats.or(experiment.toy_floats);
    experiment
        .check_training()
        .or_fail(ExitCode::Configuration)?;
    if args.federation.partition.is_some() {
        experiment.partition_file = None;
    }
    let mut flags = federation::keys_of_flags(&args.federation);
    flags.extend(
        experiment
            .partition_file
            .as_ref()
            .map(|_| "data.partition".to_owned()),
    );
    flags.extend(args.lies.map(|_| LIES.to_owned()));
    experiment.check(&flags).or_fail(ExitCode::Configuration)?;
    Ok(experiment)
}

/// Checks all settings before the first run: a wrong one must not show after hours.
fn plan<P>(
    args: &Args,
    experiment: &Experiment,
    prepare: impl Fn(Run) -> anyhow::Result<P>,
) -> anyhow::Result<Vec<Planned<P>>> {
    let seeds = match (experiment.seeds.is_empty(), args.federation.seed) {
        (_, Some(seed)) => vec![Some(seed)],
        (true, None) => vec![None],
        (false, None) => experiment.seeds.iter().copied().map(Some).collect(),
    };
    let mut planned = Vec::new();
    for variant in experiment.settings() {
        let mut runs = Vec::new();
        for seed in &seeds {
            let named = |error: anyhow::Error| {
                if variant.name.is_empty() {
                    error
                } else {
                    error.context(format!("`{}`", variant.name))
                }
            };
            let run = settings(args, experiment, &variant, *seed);
            let prepared = run.or_fail(ExitCode::Configuration).and_then(&prepare);
            runs.push(prepared.map_err(named)?);
        }
        planned.push(Planned {
            name: variant.name,
            runs,
        });
    }
    Ok(planned)
}

/// File, then variant and grid, then flags; the later wins.
fn settings(
    args: &Args,
    experiment: &Experiment,
    variant: &Variant,
    seed: Option<u64>,
) -> Result<Run, ConfigError> {
    let mut federation = args.federation.clone();
    let mut set = [experiment.set.as_slice(), &variant.set].concat();
    // The later wins, here as in the spec.
    let lies = set.iter().rfind(|assignment| assignment.key == LIES);
    let lies = lies.map(|lies| lies.value.parse()).transpose()?;
    if lies.is_some() && experiment.toy_floats.is_some() {
        return Err(ConfigError("without training there is no `lies`".into()));
    }
    set.retain(|assignment| match assignment.key.as_str() {
        LIES => false,
        "algorithm" => {
            if args.federation.algorithm.is_none() {
                federation.algorithm = Some(assignment.value.clone());
            }
            false
        }
        "initial" => {
            if args.federation.initial.is_none() {
                federation.initial = Some(experiment.folder.join(&assignment.value));
            }
            false
        }
        _ => true,
    });
    federation.defaults = set;
    federation.seed = seed;
    let lists = lists(args, experiment).cloned();
    federation.partition_file = federation.partition_file.or(lists);
    let (data, own) = data_of(args, experiment);
    Ok(Run {
        federation,
        data,
        own,
        aggregator: !args.no_aggregator && experiment.aggregator.unwrap_or(true),
        evaluate_every: args
            .evaluate_every
            .or(experiment.evaluate_every)
            .unwrap_or(EVALUATE_EVERY),
        control: args.control,
        global_test: args.global_test || experiment.global_test.unwrap_or(false),
        lies: args.lies.or(lies),
        threads: threads(args),
    })
}

/// Returns the data that are divided, and the nodes' own, which go before: those of flags, else those of the experiment.
fn data_of(args: &Args, experiment: &Experiment) -> (String, Vec<String>) {
    let data = args.data.as_ref().or(experiment.data.as_ref());
    let is_typed = !args.own.is_empty() || args.data.is_some();
    let own = if is_typed { &args.own } else { &experiment.own };
    let data = data.cloned().unwrap_or_else(|| "digits".into());
    (data, own.clone())
}

/// Returns the experiment's file of index lists, unless flags divide the data otherwise.
fn lists<'a>(args: &Args, experiment: &'a Experiment) -> Option<&'a PathBuf> {
    let mut set = args.federation.set.iter();
    let is_divided_otherwise =
        set.any(|set| set.key == "data.partition" && !data::is_of_lists(&set.value));
    let lists = experiment.partition_file.as_ref();
    lists.filter(|_| !is_divided_otherwise)
}

fn threads(args: &Args) -> usize {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    args.threads.unwrap_or_else(cores).max(1)
}

fn out(args: &Args) -> anyhow::Result<PathBuf> {
    let name = args.file.as_deref().and_then(Path::file_stem);
    match (&args.out, name) {
        (Some(out), _) => Ok(out.clone()),
        (None, Some(name)) => Ok(Path::new("runs").join(name)),
        (None, None) if args.dry_run => {
            Ok(Path::new("runs").join(clock::utc_name(SystemTime::now())))
        }
        (None, None) => clock::new_run(SystemTime::now()).or_fail(ExitCode::State),
    }
}
