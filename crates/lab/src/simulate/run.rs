//! One simulation, from its settings to its summary.

mod interruption;
mod result;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fednode_core::{FederationSpec, MAX_INLINE_PROXY_BYTES};
use fednode_data::{Shard, Split};
use fednode_engine::book::Calendar;
use fednode_learn::{CacheBudget, ComputeDevice, Learner, NoiseKey, own_model};
use fednode_runtime::exit::ExitCode;
use fednode_runtime::streams::say;
use fednode_sim::{self as sim, Scenario};

use self::interruption::{go_on, interrupted, saver};
use self::result::Finished;
use super::job::Knowledge;
use super::lies::Lies;
use super::memory::{Load, Parts};
use super::models::{Models, Settings};
use super::play::Play;
use super::pool::Pool;
use super::progress::{Counts, Progress};
use super::saver::Saver;
use super::snapshot;
use super::table::Learned;
use crate::ending;
use crate::swarm::folder::Folder;
use crate::swarm::summary::Summary;
use fednode_cli::data::{Division, ShardFacts, Sources};
use fednode_cli::device::Choice;
use fednode_cli::everyone::Everyone;
use fednode_cli::failure::{OrFail, fail, no_learner};
use fednode_cli::federation;
use fednode_cli::initial;
use fednode_cli::interrupt::Interrupts;

/// The settings of one run.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    /// What shapes the federation.
    pub(crate) federation: federation::Args,
    /// The data source.
    pub(crate) data: String,
    /// Each node's own data source, instead of one that is divided.
    pub(crate) own: Vec<String>,
    /// Whether there is an aggregator; without, the nodes average among themselves.
    pub(crate) aggregator: bool,
    /// Rounds between two complete evaluations.
    pub(crate) evaluate_every: u32,
    /// Whether every node's result is evaluated on everyone's test samples too.
    pub(crate) global_test: bool,
    /// Whether each node is trained alone afterwards, to say whether joining was worth it.
    pub(crate) control: bool,
    /// Who lies, if somebody does.
    pub(crate) lies: Option<Lies>,
    /// How many nodes compute side by side, at most; changes no result.
    pub(crate) threads: usize,
}

/// What is the same for all runs of an experiment, and changes no result.
#[derive(Debug)]
pub(crate) struct Means<'a> {
    /// The device.
    pub(crate) device: &'a Choice,
    /// How many nodes compute side by side.
    pub(crate) threads: usize,
    /// Says when the user wants to stop.
    pub(crate) interrupts: &'a Interrupts,
    /// Whether to show no progress.
    pub(crate) quiet: bool,
}

/// A run that is ready: the spec is checked, the data divided.
#[derive(Debug)]
pub(crate) struct Prepared {
    spec: FederationSpec,
    division: Division,
    /// The hash of the division as the honest nodes have it: runs with and without liars of turned labels are pairs.
    honest_hash: String,
    sources: Sources,
    run: Run,
}

impl Run {
    /// Checks the settings and divides the data.
    ///
    /// # Errors
    /// Names the first setting that is wrong, or the file that is missing.
    pub(crate) fn prepare(self) -> anyhow::Result<Prepared> {
        let sources = Sources::read(&self.data, &self.own)?;
        let facts = sources.facts()?;
        let federation = sources.suit(&self.federation)?;
        let mut spec = federation::spec(&federation, &facts).or_fail(ExitCode::Configuration)?;
        ending::check(&spec)?;
        let honest = spec.clone();
        if let Some(lies) = &self.lies {
            lies.change(&mut spec).or_fail(ExitCode::Configuration)?;
        }
        if self.global_test {
            Everyone::refuse_a_number(&spec)?;
        }
        let divide = |spec| sources.division(spec, self.federation.partition_file.as_deref());
        let division = divide(&spec)?;
        let honest_hash = if honest.data.partition == spec.data.partition {
            division.hash.clone()
        } else {
            divide(&honest)?.hash
        };
        spec.fingerprints.partition = Some(division.hash.clone()).filter(|hash| !hash.is_empty());
        let sources = sources.behind(&spec, self.federation.backbone_file())?;
        let prepared = Prepared {
            spec,
            division,
            honest_hash,
            sources,
            run: self,
        };
        prepared.load()?.check()?;
        Ok(prepared)
    }
}

impl Play for Prepared {
    type Summary = Summary;
    type Row = Learned;

    fn spec(&self) -> &FederationSpec {
        &self.spec
    }

    fn describe(&self) -> String {
        let FederationSpec {
            nodes,
            rounds,
            algorithm,
            data,
            ..
        } = &self.spec;
        format!(
            "{nodes} nodes, {rounds} rounds of {algorithm} on {} ({})",
            data.name, data.partition
        )
    }

    fn why_useless(summary: &Summary) -> Option<String> {
        summary.why_useless()
    }

    fn effective(&self) -> serde_json::Value {
        let Run {
            aggregator,
            evaluate_every,
            global_test,
            ..
        } = &self.run;
        let run = serde_json::json!({
            "data": self.sources,
            "aggregator": aggregator,
            "evaluate_every": evaluate_every,
            "global_test": global_test,
        });
        let mut effective = serde_json::json!({ "federation": self.spec, "simulation": run });
        // Where it is not wanted, settings are those of runs from before there was any.
        if self.run.control {
            effective["simulation"]["control"] = true.into();
        }
        if let Some(lies) = &self.run.lies {
            effective["simulation"]["lies"] = lies.to_string().into();
        }
        effective
    }

    fn play(&self, folder: &Path, means: &Means<'_>) -> anyhow::Result<Summary> {
        let file = snapshot::path(folder);
        let folder = Folder::of_simulation(folder, &[snapshot::NAME, snapshot::PARTIAL])?;
        let Finished { summary, records } = self.learn(&file, means)?;
        folder.write_spec(&self.spec)?;
        folder.write_metrics(records)?;
        folder.write_summary(&summary)?;
        // The result is there; a snapshot that stays is only in the way of another run.
        let _ = std::fs::remove_file(file);
        Ok(summary)
    }
}

/// A federation that is played, or was.
struct Played {
    models: Models,
    shards: Vec<ShardFacts>,
    /// How many values each of the models has.
    sizes: Vec<usize>,
    /// The device, for people.
    device: String,
}

impl Prepared {
    fn learn(&self, file: &Path, means: &Means<'_>) -> anyhow::Result<Finished> {
        let mut settings = self.effective();
        settings["device"] = means.device.text().into();
        let earlier = snapshot::read(file, &settings)?;
        let saver = || saver(file, settings, earlier.as_ref(), means.interrupts);
        let mut played = self.start(file, means, saver)?;
        let scenario = scenario(&self.spec, self.run.aggregator);
        let scenario = match &self.run.lies {
            Some(lies) => lies.play(scenario),
            None => scenario,
        };
        let models = &mut played.models;
        let outcome = match earlier {
            None => sim::run_with(&scenario, models),
            Some(earlier) => {
                let past = go_on(earlier, models, means);
                sim::go_on(&scenario, models, past)
            }
        };
        if outcome.stopped {
            return Err(interrupted(file, models.saver()));
        }
        let banned = self.banned(&outcome);
        match self.failure(outcome, models, file) {
            Some(error) => Err(error),
            None => Ok(self.finish(&played, banned, means)),
        }
    }

    /// Makes the nodes as they are before the first round, and then the saver, which begins to count the time.
    fn start(
        &self,
        file: &Path,
        means: &Means<'_>,
        saver: impl FnOnce() -> Saver,
    ) -> anyhow::Result<Played> {
        let spec = &self.spec;
        let (data, shards): (Vec<_>, Vec<_>) = self
            .shards()?
            .into_iter()
            .map(ShardFacts::split_from)
            .unzip();
        let learners = self.learners(&data, means, &cache_budget(file, means))?;
        let sizes = learners[0]
            .iter()
            .map(|learner| learner.state().n_values())
            .collect();
        let initial: Vec<Knowledge> = learners[0].iter().map(Knowledge::of).collect();
        let pool = Pool::start(learners, means.interrupts).or_fail(ExitCode::Internal)?;
        let counts = if spec.round.participation < 1.0 {
            Counts::Closings
        } else {
            Counts::Records
        };
        let progress = Progress::new(data.len(), spec.rounds, counts, means.quiet).of(spec);
        let rules = Settings {
            seed: spec.seed,
            calendar: Calendar {
                rounds: spec.rounds,
                evaluate_every: self.run.evaluate_every,
            },
            global_test: self.run.global_test,
        };
        let models = Models::new(
            pool,
            means.interrupts.clone(),
            progress,
            saver(),
            &initial,
            data,
            &rules,
        );
        Ok(Played {
            models,
            shards,
            sizes,
            device: means.device.text(),
        })
    }

    /// Makes the learners: for each thread one of each model.
    fn learners(
        &self,
        data: &[Arc<Split>],
        means: &Means<'_>,
        budget: &CacheBudget,
    ) -> anyhow::Result<Vec<Vec<Learner>>> {
        let spec = &self.spec;
        let initial = initial::of(spec, self.run.federation.initial.as_deref())?;
        let workers = if means.device.is_cpu() {
            means.threads.clamp(1, data.len())
        } else {
            1
        };
        let first_note = std::sync::Once::new();
        let learner = |device: &ComputeDevice, model: usize| {
            let own = own_model::by_number(spec, model);
            let mut learner =
                Learner::new(&own, 0, Arc::clone(&data[0]), device).map_err(no_learner)?;
            learner.keep_in(budget.clone());
            learner.draw_noise_from(NoiseKey::Seeded);
            if let Some(note) = initial::start(&mut learner, initial.as_deref())? {
                first_note.call_once(|| say(format_args!("warning: {note}")));
            }
            anyhow::Ok(learner)
        };
        let worker = |_| -> anyhow::Result<Vec<Learner>> {
            let device = means.device.open(1)?;
            (0..spec.model.name.iter().len())
                .map(|model| learner(&device, model))
                .collect()
        };
        (0..workers).map(worker).collect()
    }

    /// Visits the nodes that do not lie.
    fn honest(&self) -> impl Iterator<Item = usize> + '_ {
        let lies = |member: &usize| {
            let lies = self.run.lies.as_ref();
            lies.is_some_and(|lies| lies.are_told_by(*member))
        };
        (0..self.spec.nodes as usize).filter(move |member| !lies(member))
    }

    /// Returns the honest nodes that other honest nodes banned, counting from 1.
    fn banned(&self, outcome: &sim::Outcome) -> Vec<u32> {
        let is_honest = |member: &usize| self.honest().any(|honest| honest == *member);
        let bans = outcome.bans.iter().filter(|(by, _)| is_honest(by));
        let banned = bans.filter_map(|(_, node)| outcome.ids.iter().position(|id| id == node));
        let banned: BTreeSet<u32> = banned
            .filter(is_honest)
            .map(|member| member as u32 + 1)
            .collect();
        banned.into_iter().collect()
    }

    /// Returns why a run that was not interrupted has no result, if it has none.
    fn failure(
        &self,
        outcome: sim::Outcome,
        models: &Models,
        file: &Path,
    ) -> Option<anyhow::Error> {
        let unfinished = outcome.unfinished();
        let reason = match &outcome.failed {
            Some((_, sim::Failure::NotThisRun)) => {
                let text = format!(
                    "`{}` was left by another build of fednode: remove it to begin anew",
                    file.display()
                );
                return Some(fail(ExitCode::State, text));
            }
            Some((member, failure)) => format!("node {}: {failure}", member + 1),
            None if self.honest().any(|member| unfinished.contains(&member)) => {
                "the simulated federation came to a standstill".into()
            }
            None => models.failure()?.to_string(),
        };
        Some(fail(ExitCode::Training, reason))
    }

    fn shards(&self) -> anyhow::Result<Vec<Shard>> {
        self.sources.shards(&self.spec, self.lists())
    }

    /// Returns the file of index lists, if there is one.
    fn lists(&self) -> Option<&Path> {
        self.run.federation.partition_file.as_deref()
    }

    /// Weighs the models on the first node's data.
    fn load(&self) -> anyhow::Result<Load> {
        let spec = &self.spec;
        let first = self.sources.first(spec, self.lists())?;
        let per_sample = first.split.train.bytes_per_sample() as u64;
        let initial = initial::of(spec, self.run.federation.initial.as_deref())?;
        let (first, device) = (
            Arc::new(first.split),
            ComputeDevice::cpu(1).or_fail(ExitCode::Internal)?,
        );
        let weigh = |model: usize| {
            let own = own_model::by_number(spec, model);
            let mut learner =
                Learner::new(&own, 0, Arc::clone(&first), &device).map_err(no_learner)?;
            initial::start(&mut learner, initial.as_deref())?;
            Ok(Parts::of(&learner))
        };
        Ok(Load {
            nodes: spec.nodes as usize,
            models: (0..spec.model.name.iter().len())
                .map(weigh)
                .collect::<anyhow::Result<_>>()?,
            kept_rounds: sim::KEPT_ROUNDS,
            threads: self.run.threads.min(spec.nodes as usize),
            data: self.division.samples as u64 * per_sample,
        })
    }
}

/// Shares the memory for caches among the threads. What does not fit goes beside the snapshot.
fn cache_budget(file: &Path, means: &Means<'_>) -> CacheBudget {
    let whole = CacheBudget::default();
    CacheBudget {
        memory_bytes: whole.memory_bytes / means.threads.max(1) as u64,
        folder: file.parent().map(Path::to_owned),
        ..whole
    }
}

/// Returns what is played: nothing goes wrong, and everything weighs what it weighs on the wire.
pub(super) fn scenario(spec: &FederationSpec, aggregator: bool) -> Scenario {
    Scenario {
        aggregator,
        inline_proxy_bytes: MAX_INLINE_PROXY_BYTES,
        advert_bytes: fednode_net::encoded_len,
        observe: false,
        // Rounds follow each other as fast as training allows; nobody runs into this.
        time_limit: Duration::from_secs(3600).saturating_mul(spec.rounds.max(1)),
        spec: spec.clone(),
        ..Scenario::new(spec.seed, spec.nodes as usize, spec.rounds)
    }
}
