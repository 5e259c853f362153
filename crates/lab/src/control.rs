//! The control: what each node would do alone, and so whether joining was worth it.
//!
//! ```text
//! alone    the node's own model, with the rounds and epochs of the federation, times a classifier in closed form of its own
//!          statistics (profile `agreement` without peers); for texts and other data without statistics the model alone
//! served   what the federation left the node with
//! ```
//!
//! Both predict the node's test samples. The interval is that of a paired bootstrap over the test samples of all nodes.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use fednode_cli::device::Choice;
use fednode_cli::failure::{OrFail, no_learner};
use fednode_core::spec::Preset;
use fednode_core::{ConfigError, FederationSpec, HyperValue, Precision, Round};
use fednode_data::Split;
use fednode_learn::{Learner, Prediction, algorithm};
use fednode_measure::{Bootstrap, Classified, Measure, Predictions, Task};
use fednode_runtime::exit::ExitCode;
use serde::{Deserialize, Serialize};

/// Whether joining was worth it, by accuracy, weighted by test samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Worth {
    /// Of what the federation left the nodes with.
    pub(crate) served: f64,
    /// Of what each node does alone.
    pub(crate) alone: f64,
    /// The first less the second.
    pub(crate) difference: f64,
    /// Where the difference may lie, with 95 % confidence; absent of fewer than two test samples.
    pub(crate) interval: Option<[f64; 2]>,
    /// The node that gains least.
    pub(crate) worst_node: NodeWorth,
    /// Every measure of classes that has a value, mean over nodes weighted by test samples: served, alone.
    pub(crate) measures: BTreeMap<Measure, [f64; 2]>,
    /// Each node.
    pub(crate) per_node: Vec<NodeWorth>,
}

/// Whether joining was worth it for one node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct NodeWorth {
    /// Which shard, counting from 1.
    pub(crate) shard: u32,
    /// Its test samples.
    pub(crate) test_samples: u32,
    /// Accuracy of what it serves.
    pub(crate) served: f64,
    /// Accuracy alone.
    pub(crate) alone: f64,
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

/// Returns the spec of a node that is alone: the same model, data, rounds and epochs.
///
/// # Errors
/// Fails on a model that is unknown, which the spec of a federation is not.
fn alone(spec: &FederationSpec) -> Result<FederationSpec, ConfigError> {
    let mut own = spec.clone();
    own.pool.preset = None::<Preset>;
    own.statistics.enabled = false;
    own.training.ahead_epochs = 0;
    own.round.participation = 1.0;
    own.transfer.precision = Precision::F32;
    let mut with_statistics = own.clone();
    "fedmoe-da".clone_into(&mut with_statistics.algorithm);
    let hyper = [
        ("profile", HyperValue::Text("agreement".to_owned())),
        ("peers_per_expert", HyperValue::Integer(0)),
    ];
    with_statistics.hyper = hyper.map(|(key, value)| (key.to_owned(), value)).into();
    if algorithm::fill_exchange(&mut with_statistics).is_ok() {
        return Ok(with_statistics);
    }
    "local".clone_into(&mut own.algorithm);
    own.hyper.clear();
    algorithm::fill_exchange(&mut own)?;
    Ok(own)
}

/// Trains each node alone, and compares that with what it serves; nothing without any test sample.
///
/// # Errors
/// Fails if a node cannot be trained, or the device cannot be used.
pub(crate) fn compare(
    spec: &FederationSpec,
    nodes: &[Compared],
    device: &Choice,
    threads: usize,
) -> anyhow::Result<Option<Worth>> {
    let device = device.open(threads)?;
    let own = alone(spec).or_fail(ExitCode::Configuration)?;
    let (mut served, mut controls) = (Vec::new(), Vec::new());
    let mut per_node = Vec::new();
    for node in nodes.iter().filter(|node| !node.split.test.is_empty()) {
        let number = node.shard as usize - 1;
        let own = fednode_learn::own_model::by_number(&own, number);
        let mut learner = Learner::new(&own, node.node_seed, Arc::clone(&node.split), &device)
            .map_err(no_learner)?;
        for round in 1..=own.rounds {
            learner
                .local_update(Round(round), &mut |_| ControlFlow::Continue(()))
                .or_fail(ExitCode::Training)?;
        }
        let control = learner.predict(&node.split.test).or_fail(ExitCode::Data)?;
        let labels = &node.split.test.labels;
        let pair = [
            classified(&node.served, labels)?,
            classified(&control, labels)?,
        ];
        let [served_of, alone_of] = pair
            .each_ref()
            .map(|predictions| Measure::Accuracy.of(predictions).unwrap_or_default());
        per_node.push(NodeWorth {
            shard: node.shard,
            test_samples: labels.len() as u32,
            served: served_of,
            alone: alone_of,
        });
        served.push((node.served.as_slice(), labels, pair));
        controls.push(control);
    }
    let Some(worst) = per_node
        .iter()
        .min_by(|a, b| a.gain().total_cmp(&b.gain()))
        .cloned()
    else {
        return Ok(None);
    };
    let all_labels: Vec<u16> = served
        .iter()
        .flat_map(|(_, labels, _)| labels.iter().copied())
        .collect();
    let all_served: Vec<Prediction> = served
        .iter()
        .flat_map(|(predictions, ..)| predictions.iter().cloned())
        .collect();
    let all_controls: Vec<Prediction> = controls.into_iter().flatten().collect();
    let pair = [
        classified(&all_served, &all_labels)?,
        classified(&all_controls, &all_labels)?,
    ];
    let [of_served, of_alone] = pair
        .each_ref()
        .map(|predictions| Measure::Accuracy.of(predictions).unwrap_or_default());
    let gain = Bootstrap::seeded(spec.seed).gain(Measure::Accuracy, &pair[0], &pair[1]);
    let interval = gain
        .or_fail(ExitCode::Internal)?
        .map(|gain| [gain.low, gain.high]);
    Ok(Some(Worth {
        served: of_served,
        alone: of_alone,
        difference: of_served - of_alone,
        interval,
        worst_node: worst,
        measures: measures(served.iter().map(|(_, _, pair)| pair)),
        per_node,
    }))
}

fn classified(predictions: &[Prediction], labels: &[u16]) -> anyhow::Result<Predictions> {
    let rows = predictions
        .iter()
        .map(|prediction| prediction.probabilities.as_slice());
    let rows: Vec<&[f32]> = rows.collect();
    let classified = Classified::from_rows::<f32, _>(&rows, labels).or_fail(ExitCode::Internal)?;
    Ok(Predictions::Classes(classified))
}

/// Returns the mean of every measure over the nodes where both have a value, weighted by test samples.
fn measures<'a>(
    nodes: impl Iterator<Item = &'a [Predictions; 2]> + Clone,
) -> BTreeMap<Measure, [f64; 2]> {
    let mean = |measure: Measure| {
        let mut sums = [0.0; 3];
        for [served, alone] in nodes.clone() {
            let rows = served.rows() as f64;
            if let (Some(served), Some(alone)) = (measure.of(served), measure.of(alone)) {
                let parts = [served * rows, alone * rows, rows];
                sums.iter_mut()
                    .zip(parts)
                    .for_each(|(sum, part)| *sum += part);
            }
        }
        let [served, alone, rows] = sums;
        (rows > 0.0).then(|| (measure, [served / rows, alone / rows]))
    };
    Measure::all_of(Task::Classes).filter_map(mean).collect()
}

impl NodeWorth {
    /// Returns how much joining brought, in accuracy.
    pub(crate) fn gain(&self) -> f64 {
        self.served - self.alone
    }
}

impl Worth {
    /// Says it in one line.
    pub(crate) fn sentence(&self) -> String {
        let points = |share: f64| format!("{:+.1}", 100.0 * share);
        let percent = |share: f64| format!("{:.1} %", 100.0 * share);
        let verdict = match self.interval {
            Some([low, _]) if low > 0.0 => "joining pays",
            Some([_, high]) if high < 0.0 => "joining harms: a node does better alone",
            _ => "no difference that shows",
        };
        let interval = self.interval.map_or_else(String::new, |[low, high]| {
            format!(" (95 % interval {} to {})", points(low), points(high))
        });
        format!(
            "served {}, alone {}, difference {} points{interval}: {verdict}; worst node {}: {}",
            percent(self.served),
            percent(self.alone),
            points(self.difference),
            self.worst_node.shard,
            points(self.worst_node.gain())
        )
    }
}
