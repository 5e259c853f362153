//! `fednode personalise --out FILE`: what an algorithm trains for a node alone, at any time and without a network.
//!
//! PFL-MoE's classifier and gate (Algorithms 1 and 2) and FedBABU's tuning need nothing but the newest
//! common model and the node's own samples. The state folder is only read; the result is a file of its own.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fednode_core::spec::PrivacySpec;
use fednode_core::work::Evaluations;
use fednode_core::{FederationSpec, Judged, ParamSet, Round, Score};
use fednode_learn::{CacheBudget, Learner, Subset, algorithm};
use fednode_runtime::exit::ExitCode;
use fednode_runtime::streams::say;
use serde::Serialize;

use crate::command::export;
use fednode_cli::data::{self, Mine};
use fednode_cli::device::Choice;
use fednode_cli::dotted::{self, Assignment};
use fednode_cli::failure::{OrFail, fail, no_learner};
use fednode_cli::interrupt::Interrupts;
use fednode_cli::model::{Model, ModelArgs, Typed};
use fednode_cli::output::{self, Form, Report};
use fednode_cli::shard::Shard;
use fednode_cli::table::score;

/// What is typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// The data to train on, instead of the node's own; forms as in `fednode start`.
    #[arg(long, value_name = "SOURCE")]
    data: Option<String>,
    /// Which part of it is mine.
    #[arg(long, value_name = "I/N", requires = "data")]
    shard: Option<Shard>,
    /// The file of index lists, if the federation is divided by one.
    #[arg(long, value_name = "FILE", requires = "shard")]
    partition_file: Option<PathBuf>,
    /// The algorithm whose last stage to train on the common model, instead of the federation's own: pfl-fb, pfl-mf, pfl-mfe.
    #[arg(long, value_name = "NAME")]
    algorithm: Option<String>,
    /// A hyper-parameter of that algorithm; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", requires = "algorithm")]
    set: Vec<Assignment>,
    /// The file to write; the card goes beside it with the ending json.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

/// Trains, evaluates and writes the result.
pub(crate) fn run(args: &Args, form: Form) -> anyhow::Result<()> {
    let interrupts = Interrupts::install().or_fail(ExitCode::Internal)?;
    let mut model = args.model.load()?;
    refuse_what_is_personal(&model, args)?;
    let spec = spec(args, model.spec())?;
    let mut learner = learner(args, &spec)?;
    begin(&mut learner, args, &model)?;
    let before = scores(&learner);
    let steps = train(&mut learner, &spec, &interrupts)?;
    let after = scores(&learner);
    enter(&mut model, spec, &learner, &after);
    let card = export::write_model(&args.out, &model)?;
    let name = model.spec().score_name().to_owned();
    output::print(
        &Answer {
            model: args.out.clone(),
            card,
            from: model.path,
            steps,
            name,
            before,
            after,
        },
        form,
    )
}

/// Makes a learner of the samples that are meant. It keeps its cache where the result goes.
fn learner(args: &Args, spec: &FederationSpec) -> anyhow::Result<Learner> {
    let config = args.model.samples_of(Typed {
        data: args.data.as_deref(),
        shard: args.shard,
        partition_file: args.partition_file.as_deref(),
    })?;
    let mine = Mine::load(&config, spec)?;
    data::warn_of_table(&config.data, Some(spec))?;
    let device = Choice::find(&args.model.device)?.open(0)?;
    let mut learner =
        Learner::new(spec, mine.node_seed, Arc::clone(&mine.split), &device).map_err(no_learner)?;
    let folder = args.out.parent().map(|folder| {
        if folder.as_os_str().is_empty() {
            Path::new(".")
        } else {
            folder
        }
    });
    learner.keep_in(CacheBudget {
        folder: folder.map(Path::to_owned),
        ..CacheBudget::default()
    });
    Ok(learner)
}

/// Gives a learner what the model knows: all of it, or for another algorithm the common part.
fn begin(learner: &mut Learner, args: &Args, model: &Model) -> anyhow::Result<()> {
    if args.algorithm.is_none() {
        learner.restore(&model.params).or_fail(ExitCode::State)?;
    }
    if model.is_under_way && model.common.is_none() && learner.shared_layout().is_some() {
        say(format_args!(
            "the newest common model is not held here: this starts from what the node itself trained last"
        ));
    }
    // Under way a node's own update is in the place of the newest common model.
    if args.algorithm.is_some() || model.common.is_some() {
        let common = common_part(learner, model)?;
        learner
            .adopt(Some(common), Vec::new())
            .or_fail(ExitCode::State)?;
    }
    Ok(())
}

/// Trains what comes after the last round; returns the steps.
fn train(
    learner: &mut Learner,
    spec: &FederationSpec,
    interrupts: &Interrupts,
) -> anyhow::Result<u32> {
    let mut watch = |_| {
        if interrupts.count() > 0 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    let steps = learner
        .finish(Round(spec.rounds), &mut watch)
        .map_err(|error| match interrupts.count() {
            0 => fail(ExitCode::Training, error.to_string()),
            _ => fail(ExitCode::Interrupted, "interrupted: nothing was written"),
        })?;
    if steps == 0 {
        let text = format!(
            "algorithm `{}` trains nothing after the last round: name one that does with --algorithm, as pfl-mfe",
            spec.algorithm
        );
        return Err(fail(ExitCode::Configuration, text));
    }
    Ok(steps)
}

/// Puts what was trained in the place of the model as it was.
fn enter(model: &mut Model, spec: FederationSpec, learner: &Learner, after: &Scores) {
    let [validation, test] = [&after.validation, &after.test].map(Option::as_ref);
    model.params = learner.state();
    model.card.model.algorithm.clone_from(&spec.algorithm);
    model.card.model.finished = Some(Evaluations {
        validation: validation.map(|scored| scored.score),
        test: test.map(|scored| scored.score),
        judged: test.and_then(|scored| scored.judged.clone()),
        expert_share: Vec::new(),
        domain_information: None,
        lacks: None,
        useless: None,
        composition: None,
    });
    model.card.spec = spec;
}

/// A model is personalised once: a second time would start from the first one's result.
fn refuse_what_is_personal(model: &Model, args: &Args) -> anyhow::Result<()> {
    let is_personal = model.card.model.finished.is_some() && args.algorithm.is_none();
    let advice = "it was personalised after its last round; use `fednode export`";
    let text = || format!("`{}` needs nothing more: {advice}", model.path.display());
    if is_personal {
        Err(fail(ExitCode::State, text()))
    } else {
        Ok(())
    }
}

/// Returns the spec with the algorithm that is asked for.
fn spec(args: &Args, federation: &FederationSpec) -> anyhow::Result<FederationSpec> {
    let Some(name) = &args.algorithm else {
        return Ok(federation.clone());
    };
    let row = algorithm::find(name).or_fail(ExitCode::Configuration)?;
    let mut spec = FederationSpec {
        algorithm: name.clone(),
        ..federation.clone()
    };
    spec.hyper.clear();
    spec.pool.preset = None;
    spec.statistics.enabled = false;
    // What is made here stays here.
    spec.privacy = PrivacySpec::default();
    // How the rounds overlapped says nothing of what comes after them.
    spec.training.ahead_epochs = 0;
    let names = row.hyper_names();
    let mut spec = dotted::assign(&spec, &args.set, &names).or_fail(ExitCode::Configuration)?;
    algorithm::fill_exchange(&mut spec).or_fail(ExitCode::Configuration)?;
    Ok(spec)
}

/// Returns the averaged part of the algorithm that is asked for, out of a model that another one trained.
fn common_part(learner: &Learner, model: &Model) -> anyhow::Result<ParamSet> {
    let mut common = ParamSet::new();
    for name in learner.shared_layout().unwrap_or_default().keys() {
        let algorithm = &model.card.spec.algorithm;
        let missing = || {
            let text = format!(
                "the model of algorithm `{algorithm}` has no `{name}`: there is no common model in it"
            );
            fail(ExitCode::State, text)
        };
        let newest = model.common.as_ref().and_then(|newest| newest.get(name));
        let tensor = newest
            .or_else(|| model.params.get(name))
            .ok_or_else(missing)?;
        common
            .insert(name.as_str(), tensor.shape(), tensor.values().to_vec())
            .or_fail(ExitCode::State)?;
    }
    Ok(common)
}

fn scores(learner: &Learner) -> Scores {
    let of = |subset| {
        let (evaluation, judged) = learner.judge(subset);
        let score = evaluation.score;
        (score.n_samples > 0).then_some(Scored { score, judged })
    };
    Scores {
        validation: of(Subset::Validation),
        test: of(Subset::Test),
    }
}

/// How good a model is on the node's own samples.
#[derive(Debug, Serialize)]
struct Scores {
    validation: Option<Scored>,
    test: Option<Scored>,
}

/// How good it is on samples of one kind, also by the measure that the federation names, if it names one.
#[derive(Debug, Serialize)]
struct Scored {
    #[serde(flatten)]
    score: Score,
    judged: Option<Judged>,
}

impl Scored {
    fn value(&self) -> Option<f64> {
        let accuracy = Some(self.score.accuracy);
        self.judged.as_ref().map_or(accuracy, |judged| judged.value)
    }
}

#[derive(Debug, Serialize)]
struct Answer {
    model: PathBuf,
    card: PathBuf,
    from: PathBuf,
    steps: u32,
    /// What the scores are called.
    #[serde(skip)]
    name: String,
    before: Scores,
    after: Scores,
}

impl Report for Answer {
    fn human(&self) -> String {
        let shown = |scored: &Option<Scored>| {
            let value = scored.as_ref().and_then(Scored::value);
            score(&self.name, value).1
        };
        format!(
            "{} steps of training on the node's own samples\n\
             {} on its test samples {} (before {}), on its validation samples {} (before {})\n\
             wrote {} and {}, from {}\n",
            self.steps,
            score(&self.name, None).0,
            shown(&self.after.test),
            shown(&self.before.test),
            shown(&self.after.validation),
            shown(&self.before.validation),
            self.model.display(),
            self.card.display(),
            self.from.display()
        )
    }
}
