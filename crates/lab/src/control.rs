//! The control: what each node would do alone, and so whether joining was worth it.
//!
//! ```text
//! alone    the node's own model, with the rounds and epochs of the federation, times a classifier in closed form of its own
//!          statistics (profile `agreement` without peers); for data without statistics the model alone; for a
//!          number ridge regression of its own rows, or the model where that is better on its validation samples
//! served   what the federation left the node with
//! ```
//!
//! Both predict the node's test samples. The interval is that of a paired bootstrap over the test samples of all nodes.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Once};

use fednode_cli::device::Choice;
use fednode_cli::failure::{OrFail, fail, no_learner};
use fednode_cli::initial;
use fednode_cli::interrupt::Interrupts;
use fednode_cli::table::{measured, significant};
use fednode_core::spec::{Preset, PrivacySpec};
use fednode_core::{
    ConfigError, FederationSpec, HyperValue, ParamSet, Precision, Round, Schedule, Stage,
};
use fednode_data::{Samples, Split};
use fednode_learn::{ComputeDevice, Learner, Prediction, algorithm, metric, own_model};
use fednode_measure::{Better, Bootstrap, Measure, Predictions, Task};
use fednode_runtime::exit::ExitCode;
use fednode_runtime::streams::say;
use serde::{Deserialize, Serialize};

/// A difference below this is none in tenths of points: R² is hardly ever the same to the last digit.
const UNSEEN: f64 = 0.0005;

/// Whether joining was worth it, by the measure of the spec: accuracy unless it names another, or R² of a number.
///
/// Of classes it is the mean of the nodes' values, weighted by test samples: scores of two models are in no common order. Of
/// numbers it is that of all test samples together, less each node's own mean, so R² is 1 − Σ error² / Σ (number − mean of its
/// node)².
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Worth {
    /// By what it is judged.
    #[serde(default = "accuracy")]
    pub(crate) measure: Measure,
    /// Of what the federation left the nodes with.
    pub(crate) served: f64,
    /// Of what each node does alone.
    pub(crate) alone: f64,
    /// By how much the first is better than the second: below 0 where it is worse, whichever way the measure goes.
    pub(crate) difference: f64,
    /// Where the difference may lie, with 95 % confidence; absent of fewer than two test samples.
    pub(crate) interval: Option<[f64; 2]>,
    /// The node that gains least.
    pub(crate) worst_node: NodeWorth,
    /// Every measure that has a value: served, alone.
    pub(crate) measures: BTreeMap<Measure, [f64; 2]>,
    /// Each node; in the result it stands with the node.
    #[serde(skip)]
    pub(crate) per_node: Vec<NodeWorth>,
}

/// Whether joining was worth it for one node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct NodeWorth {
    /// Which shard, counting from 1.
    pub(crate) shard: u32,
    /// Its test samples.
    pub(crate) test_samples: u32,
    /// The measure of what it serves.
    pub(crate) served: f64,
    /// The measure alone.
    pub(crate) alone: f64,
}

/// Returns what files that name no measure are judged by.
fn accuracy() -> Measure {
    Measure::Accuracy
}

/// A node whose result is compared.
pub(crate) struct Compared {
    /// Which shard, counting from 1.
    pub(crate) shard: u32,
    /// The seed of its draws.
    pub(crate) node_seed: u64,
    /// Its samples.
    pub(crate) split: Arc<Split>,
    /// What it serves of its test samples.
    pub(crate) served: Vec<Prediction>,
}

/// What a node does alone.
struct Alone {
    spec: FederationSpec,
    /// Whether columns of raw tables are also read by what the spec says of them, as the federation does under a promise of privacy
    /// or under masks. Validation samples choose.
    reads_by_spec: bool,
    /// What the model starts from; drawn if absent.
    initial: Option<ParamSet>,
    /// That it does not fit is said for all nodes at once.
    told: Once,
}

/// Returns what a node does alone: the same model and data, and as many rounds of training.
///
/// # Errors
/// Fails on a model that is unknown, which the spec of a federation is not.
fn alone(spec: &FederationSpec) -> Result<Alone, ConfigError> {
    let reads_by_spec = spec.privacy.hides_rows();
    let mut own = spec.clone();
    own.pool.preset = None::<Preset>;
    own.statistics.enabled = false;
    own.training.ahead_epochs = 0;
    own.round.participation = 1.0;
    own.transfer.precision = Precision::F32;
    // Alone, nothing leaves a node.
    own.privacy = PrivacySpec::default();
    let trained = rounds_of_training(spec);
    let mut with_statistics = own.clone();
    "fedmoe-da".clone_into(&mut with_statistics.algorithm);
    let hyper = [
        ("profile", HyperValue::Text("agreement".to_owned())),
        ("peers_per_expert", HyperValue::Integer(0)),
    ];
    with_statistics.hyper = hyper.map(|(key, value)| (key.to_owned(), value)).into();
    if algorithm::fill_exchange(&mut with_statistics).is_ok() {
        return Ok(Alone {
            spec: with_rounds(with_statistics, trained),
            reads_by_spec,
            initial: None,
            told: Once::new(),
        });
    }
    "local".clone_into(&mut own.algorithm);
    own.hyper.clear();
    algorithm::fill_exchange(&mut own)?;
    Ok(Alone {
        spec: with_rounds(own, trained),
        reads_by_spec,
        initial: None,
        told: Once::new(),
    })
}

/// Returns in how many rounds everybody trains. In others columns are agreed on, or statistics are added up.
fn rounds_of_training(spec: &FederationSpec) -> u32 {
    let schedule = Schedule::of(spec);
    let trains = |round: &u32| matches!(schedule.round(Round(*round)), Some(Stage::Train(_)));
    (1..=spec.rounds).filter(trains).count() as u32
}

/// Gives a spec so many rounds that it trains in `trained` of them.
fn with_rounds(mut spec: FederationSpec, trained: u32) -> FederationSpec {
    spec.rounds = trained;
    while rounds_of_training(&spec) < trained {
        spec.rounds += 1;
    }
    spec
}

/// Trains each node alone, and compares that with what it serves; nothing without any test sample.
///
/// # Errors
/// Fails if a node cannot be trained, the device cannot be used, or the user wants to stop. What the federation learned is
/// no worse for it: whoever calls this says so, and keeps the result.
pub(crate) fn compare(
    spec: &FederationSpec,
    initial: Option<&ParamSet>,
    nodes: &[Compared],
    device: &Choice,
    interrupts: &Interrupts,
) -> anyhow::Result<Option<Worth>> {
    let mut own = alone(spec).or_fail(ExitCode::Configuration)?;
    own.initial = initial.cloned();
    let measure = metric::of(spec).or_fail(ExitCode::Configuration)?;
    let judged: Vec<&Compared> = nodes
        .iter()
        .filter(|node| !node.split.test.is_empty())
        .collect();
    if judged.is_empty() {
        return Ok(None);
    }
    let controls = train_all(&own, &judged, device, interrupts)?;
    let pairs = judged
        .iter()
        .zip(&controls)
        .map(|(node, control)| {
            let truth = &node.split.test;
            Ok([beside(&node.served, truth)?, beside(control, truth)?])
        })
        .collect::<anyhow::Result<Vec<[Predictions; 2]>>>()?;
    let nodes = judged.iter().zip(&pairs);
    let per_node: Vec<NodeWorth> = nodes
        .filter_map(|(node, pair)| NodeWorth::of(node, measure, pair))
        .collect();
    let gain = |node: &NodeWorth| node.gain(measure);
    let gains = per_node.iter().min_by(|a, b| gain(a).total_cmp(&gain(b)));
    let Some(worst_node) = gains.cloned() else {
        return Err(no_value(measure));
    };
    let pairs = match measure.task() {
        Task::Classes => pairs,
        Task::Numbers => vec![[together(&pairs, 0)?, together(&pairs, 1)?]],
    };
    let [served, alone] = mean(measure, &pairs).ok_or_else(|| no_value(measure))?;
    let gain = Bootstrap::seeded(spec.seed).mean_gain(measure, &pairs);
    let interval = gain
        .or_fail(ExitCode::Internal)?
        .map(|gain| [gain.low, gain.high]);
    Ok(Some(Worth {
        measure,
        served,
        alone,
        difference: measure.gain(served, alone),
        interval,
        worst_node,
        measures: Measure::all()
            .filter_map(|measure| Some((measure, mean(measure, &pairs)?)))
            .collect(),
        per_node,
    }))
}

/// Says that a measure has no value.
fn no_value(measure: Measure) -> anyhow::Error {
    let why = match measure.task() {
        Task::Classes => "they lack a class",
        Task::Numbers => "their numbers are all the same",
    };
    let text = format!(
        "the {} has no value on the test samples of any node, since {why}: name another `metric`",
        measure.label()
    );
    fail(ExitCode::Data, text)
}

/// Puts numbers that all nodes predict together, less each node's own mean of the truth: what tells nodes apart is then no
/// merit of a model.
fn together(pairs: &[[Predictions; 2]], which: usize) -> anyhow::Result<Predictions> {
    let (mut predicted, mut truth) = (Vec::new(), Vec::new());
    for pair in pairs {
        if let Predictions::Numbers(node) = &pair[which] {
            let mean = node.truth().iter().sum::<f64>() / node.rows() as f64;
            predicted.extend(node.predicted().iter().map(|number| number - mean));
            truth.extend(node.truth().iter().map(|number| number - mean));
        }
    }
    Predictions::of_numbers(&predicted, &truth).or_fail(ExitCode::Internal)
}

/// Trains all nodes, as many side by side as there are cores, and lets each predict its test samples.
fn train_all(
    own: &Alone,
    nodes: &[&Compared],
    device: &Choice,
    interrupts: &Interrupts,
) -> anyhow::Result<Vec<Vec<Prediction>>> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let workers = if device.is_cpu() { cores } else { 1 };
    let at_once = nodes.len().div_ceil(workers).max(1);
    let work = |nodes: &[&Compared]| -> anyhow::Result<Vec<Vec<Prediction>>> {
        let device = device.open(1)?;
        nodes
            .iter()
            .map(|node| train(own, node, &device, interrupts))
            .collect()
    };
    let parts: anyhow::Result<Vec<_>> = std::thread::scope(|scope| {
        let threads: Vec<_> = nodes
            .chunks(at_once)
            .map(|part| scope.spawn(|| work(part)))
            .collect();
        let done = threads.into_iter().map(|thread| thread.join());
        done.map(|part| {
            part.unwrap_or_else(|_| Err(fail(ExitCode::Internal, "a control ended unexpectedly")))
        })
        .collect()
    });
    Ok(parts?.into_iter().flatten().collect())
}

/// Trains a node alone, and lets it predict its test samples.
fn train(
    alone: &Alone,
    node: &Compared,
    device: &ComputeDevice,
    interrupts: &Interrupts,
) -> anyhow::Result<Vec<Prediction>> {
    let own = own_model::by_number(&alone.spec, node.shard as usize - 1);
    let begin = || {
        let split = Arc::clone(&node.split);
        let mut learner = Learner::new(&own, node.node_seed, split, device).map_err(no_learner)?;
        // Another algorithm may name its parts otherwise. Its control starts from drawn ones then.
        if let Err(error) = initial::start(&mut learner, alone.initial.as_ref()) {
            let warning =
                format_args!("warning: each node alone starts from drawn parameters: {error}");
            alone.told.call_once(|| say(warning));
        }
        anyhow::Ok(learner)
    };
    let mut learners = vec![begin()?];
    if alone.reads_by_spec {
        let mut other = begin()?;
        if other.prepare_by_spec() {
            learners.push(other);
        }
    }
    let validation = &node.split.validation;
    let mut best: Option<(f64, Learner)> = None;
    for mut learner in learners {
        train_one(&own, &mut learner, interrupts)?;
        let loss = if validation.is_empty() {
            0.0
        } else {
            let evaluation = learner.evaluate_on(validation).or_fail(ExitCode::Data)?;
            evaluation.score.loss
        };
        if best.as_ref().is_none_or(|(least, _)| loss < *least) {
            best = Some((loss, learner));
        }
    }
    let (_, learner) = best.expect("there is one learner at least");
    learner.predict(&node.split.test).or_fail(ExitCode::Data)
}

/// Trains all rounds of a node that is alone.
fn train_one(
    own: &FederationSpec,
    learner: &mut Learner,
    interrupts: &Interrupts,
) -> anyhow::Result<()> {
    for round in 1..=own.rounds {
        learner
            .local_update(Round(round), &mut |_| match interrupts.count() {
                0 => ControlFlow::Continue(()),
                _ => ControlFlow::Break(()),
            })
            .or_fail(ExitCode::Training)?;
    }
    Ok(())
}

fn beside(predictions: &[Prediction], truth: &Samples) -> anyhow::Result<Predictions> {
    metric::beside(predictions, truth).or_fail(ExitCode::Internal)
}

/// Returns the measure of what is served and of what is done alone; nothing where either has none.
fn values(measure: Measure, [served, alone]: &[Predictions; 2]) -> Option<[f64; 2]> {
    Some([measure.of(served)?, measure.of(alone)?])
}

/// Returns the mean of a measure over the pairs of which both have a value, weighted by test samples.
fn mean(measure: Measure, pairs: &[[Predictions; 2]]) -> Option<[f64; 2]> {
    let mut sums = [0.0; 3];
    for pair in pairs {
        if let Some([served, alone]) = values(measure, pair) {
            let rows = pair[0].rows() as f64;
            let parts = [served * rows, alone * rows, rows];
            let both = sums.iter_mut().zip(parts);
            both.for_each(|(sum, part)| *sum += part);
        }
    }
    let [served, alone, rows] = sums;
    (rows > 0.0).then(|| [served / rows, alone / rows])
}

impl NodeWorth {
    /// Compares what a node serves with what it does alone; nothing where the measure has no value.
    fn of(node: &Compared, measure: Measure, pair: &[Predictions; 2]) -> Option<Self> {
        let [served, alone] = values(measure, pair)?;
        Some(Self {
            shard: node.shard,
            test_samples: node.split.test.len() as u32,
            served,
            alone,
        })
    }

    /// Returns how much joining brought.
    pub(crate) fn gain(&self, measure: Measure) -> f64 {
        measure.gain(self.served, self.alone)
    }
}

/// Returns the comparison, or says in one line that there is none.
pub(crate) fn or_say(worth: anyhow::Result<Option<Worth>>) -> Option<Worth> {
    worth.unwrap_or_else(|error| {
        say(format_args!("warning: the result is complete, but nobody knows whether joining was worth it: {error:#}"));
        None
    })
}

impl Worth {
    /// Says it in one line.
    pub(crate) fn sentence(&self) -> String {
        let verdict = match self.interval {
            _ if self.is_unseen(self.difference) => "no difference that shows",
            Some([low, _]) if low > 0.0 => "joining pays",
            Some([_, high]) if high < 0.0 => "joining harms: a node does better alone",
            _ => "no difference that shows",
        };
        let interval = self.interval.map_or_else(String::new, |[low, high]| {
            let [low, high] = [low, high].map(|gain| self.gain(gain));
            format!(" (95 % interval {low} to {high})")
        });
        let label = self.measure.label();
        let (name, difference) = match self.measure.better() {
            Better::Higher if self.measure == Measure::Accuracy => (String::new(), "difference"),
            Better::Higher => (format!("{label}: "), "difference"),
            Better::Lower => (format!("{label}, of which less is better: "), "gain"),
        };
        let unit = if self.measure.is_share() {
            " points"
        } else {
            ""
        };
        format!(
            "{name}served {}, alone {}, {difference} {}{unit}{interval}: {verdict}; worst node {}: {}",
            self.value(self.served),
            self.value(self.alone),
            self.gain(self.difference),
            self.worst_node.shard,
            self.gain(self.worst_node.gain(self.measure))
        )
    }

    /// Writes a value of the measure: shares in percent.
    fn value(&self, value: f64) -> String {
        measured(self.measure, value)
    }

    /// Writes how much better something is, in points where the measure is a share. What rounds to nothing has no sign.
    fn gain(&self, gain: f64) -> String {
        let gain = if self.is_unseen(gain) { 0.0 } else { gain };
        if self.measure.is_share() {
            return format!("{:+.1}", 100.0 * gain);
        }
        let sign = if gain > 0.0 { "+" } else { "" };
        format!("{sign}{}", significant(gain))
    }

    /// Tells whether a difference is none in what is printed. Of what is no share that depends on its unit.
    fn is_unseen(&self, gain: f64) -> bool {
        let unit = if self.measure.is_share() {
            1.0
        } else {
            self.alone.abs()
        };
        gain.abs() < UNSEEN * unit
    }
}

#[cfg(test)]
mod tests {
    use fednode_core::spec::{Sums, TableColumn};

    use super::*;

    fn worth(measure: Measure, served: f64, alone: f64, interval: [f64; 2]) -> Worth {
        Worth {
            measure,
            served,
            alone,
            difference: measure.gain(served, alone),
            interval: Some(interval),
            worst_node: NodeWorth {
                shard: 2,
                test_samples: 10,
                served,
                alone,
            },
            measures: BTreeMap::new(),
            per_node: Vec::new(),
        }
    }

    #[test]
    fn alone_trains_in_as_many_rounds_as_the_federation() {
        let rounds = |spec: &FederationSpec| {
            let mut spec = spec.clone();
            spec.rounds = 5;
            algorithm::fill_exchange(&mut spec).unwrap();
            [&spec, &alone(&spec).unwrap().spec].map(rounds_of_training)
        };
        let mut spec = FederationSpec {
            algorithm: "fedavg".to_owned(),
            ..FederationSpec::default()
        };
        assert_eq!(rounds(&spec), [5, 5]);
        // In the last round all add up their statistics.
        let mut gathers = spec.clone();
        gathers.statistics.enabled = true;
        assert_eq!(rounds(&gathers), [4, 4]);
        // Of raw tables all agree on their columns first, unless they hide their rows.
        spec.data.columns = vec![TableColumn::default()];
        assert_eq!(rounds(&spec), [4, 4]);
        spec.privacy.sums = Sums::Masked;
        assert_eq!(rounds(&spec), [5, 5]);
    }

    #[test]
    fn a_gain_is_above_zero_whichever_way_the_measure_goes() {
        let less = worth(Measure::Mae, 0.00125, 0.0015, [0.0001, 0.0004]);
        assert_eq!(
            less.sentence(),
            "MAE, of which less is better: served 0.001250, alone 0.001500, gain +0.0002500 (95 % interval +0.0001000 to \
             +0.0004000): joining pays; worst node 2: +0.0002500"
        );
        let more = worth(Measure::Auroc, 0.9, 0.92, [-0.03, -0.01]);
        assert_eq!(
            more.sentence(),
            "AUROC: served 90.0 %, alone 92.0 %, difference -2.0 points (95 % interval -3.0 to -1.0): joining harms: a node \
             does better alone; worst node 2: -2.0"
        );
        let same = worth(Measure::Rmse, 31.0, 31.001, [-1.0, 1.0]);
        assert!(
            same.sentence()
                .contains("gain 0 (95 % interval -1.000 to +1.000): no difference that shows")
        );
    }
}
