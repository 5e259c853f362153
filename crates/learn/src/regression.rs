//! Ridge regression of the own rows and of peers' sums: what a node serves beside its own model where a number is predicted
//! (`data.target` with FedMoE-DA's profile `agreement`; the maths is [`fednode_mix::ridge`]).
//!
//! ```text
//! published    means and covariances of features and number; as proxy, the number of rows and the slope
//! fetched      those of peers whose number follows the features as it does here, fednode_mix::matching
//! line         ridge regression of own rows and peers' sums; how much peers count is found out on the own rows
//! served       λ · line + (1 - λ) · own model
//! ```
//!
//! The features are the inputs, after the treatment of columns. The number is its place in the range of the spec. λ is 1
//! unless another one is better on the validation samples by two standard errors. Under masks all sums are one ([`total`]).

mod checking;
mod exposing;
mod serving;
mod total;

use std::borrow::Borrow;

use burn::tensor::{Device, Tensor};
use fednode_core::work::PeerExpert;
use fednode_core::{
    BlobId, Component, Composition, ExpertExchange, FederationSpec, ParamSet, Round, Slot,
};
use fednode_data::Samples;
use fednode_mix::matching::Slope;
use fednode_mix::ridge::{self, Found, Joint, Line};
use fednode_mix::statistics::StatisticsError;
use fednode_onnx::{Graph, Value};
use serde::{Deserialize, Serialize};

use crate::agreement::{doubles, key_of, standard_errors};
use crate::algorithm::{Output, Part, Role};
use crate::class_statistics::{for_each_batch, upload};
use crate::error::LearnError;
use crate::memory::Memory;
use crate::metric::LEFT_OUT;
use crate::model::{Initial, Net};
use crate::pool::Predictor;
use crate::total::NOT_ADDED_UP;
use crate::weights::{self, Weights};

pub(crate) use checking::{check, check_privacy};
use serving::Served;
use total::RowsTotal;

/// The matching under which a node has this expert.
pub(crate) const MATCHING: &str = "ridge";
/// What the line may count for beside the own model; the usual is first.
const WEIGHTS: [f64; 5] = [1.0, 0.75, 0.5, 0.25, 0.0];
/// Standard errors by which another weight must be better than the usual one.
const CLEARLY: f64 = 2.0;

/// A node's sums, and the lines that it makes of them and of those of its peers.
pub(crate) struct Regression {
    /// Means and covariances of the own rows.
    own: Part,
    /// The number of rows and the slope, as the matching reads them.
    proxies: Part,
    /// The line of the own rows, and that with peers.
    lines: Part,
    width: usize,
    /// What all nodes add up once, where they do.
    total: Option<RowsTotal>,
    remembered: Remembered,
    served: Option<Served>,
}

/// Whose rows a line is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Own = 0,
    Peers = 1,
}

/// What outlives a round besides numbers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Remembered {
    /// The round of which the own rows were added up.
    gathered: Option<Round>,
    /// How many they were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    n_gathered: Option<u32>,
    /// Which sums were solved last, with which weights.
    solved: Option<BlobId>,
    /// Of a total: with how many own rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    n_solved: Option<u32>,
    /// What the line counts for beside the own model; nothing before there is a line.
    weight: Option<f64>,
    /// What a peer's row counts for in the line, beside an own one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trust: Option<f64>,
    /// Whether peers are left out, because they made the federation's measure worse on the validation samples.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    left_out: bool,
    /// Why the peers' sums that came last make no line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    missing: Option<String>,
    /// Whether the own rows were added up for the total of all sites.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_released: bool,
}

impl Regression {
    /// Tells whether a federation wants this expert.
    pub(crate) fn is_wanted(spec: &FederationSpec) -> bool {
        let has_matching = |experts: &ExpertExchange| experts.matching.name() == MATCHING;
        let has_total = spec.exchange.total.is_some() && spec.data.target.is_some();
        has_total || spec.exchange.experts.as_ref().is_some_and(has_matching)
    }

    /// Makes the expert of a node that has added up nothing yet.
    ///
    /// # Errors
    /// Refuses a promise that no noise keeps.
    pub(crate) fn new(spec: &FederationSpec, device: &Device) -> Result<Self, LearnError> {
        let width: usize = spec.fingerprints.input.iter().product();
        let zero = Initial::Zeros;
        let own = Net::arrays(&[
            ("ridge.means", &[width + 1], zero),
            ("ridge.covariances", &[(width + 1) * (width + 2) / 2], zero),
        ]);
        let proxies = Net::arrays(&[("ridge.slope", &[1, width + 1], zero)]);
        let lines = Net::arrays(&[
            ("ridge.weights", &[2, width], zero),
            ("ridge.offsets", &[2], zero),
        ]);
        let total = RowsTotal::of(spec, width, device)?;
        // What is added up with all others' leaves the node in no other way.
        let part = |role, net| {
            let role = if total.is_some() { Role::Private } else { role };
            Part::new(role, net, 0, 0, device)
        };
        Ok(Self {
            own: part(Role::Expert(Slot(0)), own),
            proxies: part(Role::Gate, proxies),
            lines: part(Role::Private, lines),
            width,
            total,
            remembered: Remembered::default(),
            served: None,
        })
    }

    /// Returns its parts in order.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &Part> {
        let own = [&self.own, &self.proxies, &self.lines];
        own.into_iter()
            .chain(self.total.iter().map(|total| &total.part))
    }

    /// Returns its parts in order, for changing them.
    pub(crate) fn parts_mut(&mut self) -> impl Iterator<Item = &mut Part> {
        let own = [&mut self.own, &mut self.proxies, &mut self.lines];
        let total = self.total.iter_mut().map(|total| &mut total.part);
        own.into_iter().chain(total)
    }

    /// Returns how many numbers a row's features are.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// Tells of which round the rows are that were added up.
    pub(crate) fn gathered_in(&self) -> Option<Round> {
        self.remembered.gathered
    }

    /// Returns how many rows were added up, if that is known.
    pub(crate) fn n_gathered(&self) -> Option<u32> {
        self.remembered.n_gathered
    }

    /// Takes it that so many were added up, where that is not known.
    pub(crate) fn count_from(&mut self, n: u32) {
        if self.remembered.gathered.is_some() {
            self.remembered.n_gathered.get_or_insert(n);
        }
    }

    /// Says that peers' sums make no line and why, once some have come.
    pub(crate) fn lacks(&self) -> Option<String> {
        if self.remembered.left_out {
            return Some(LEFT_OUT.to_owned());
        }
        if self.remembered.trust == Some(0.0) {
            return Some(
                "peers count nothing: the own rows alone foretell own rows better".to_owned(),
            );
        }
        if let Some(missing) = &self.remembered.missing {
            return Some(format!("no line of peers' sums: {missing}"));
        }
        let waits = self.remembered.is_released && self.remembered.solved.is_none();
        waits.then(|| NOT_ADDED_UP.to_owned())
    }

    /// Returns what is remembered besides numbers.
    pub(crate) fn memory(&self) -> Option<Memory> {
        let gathered = self.remembered.gathered;
        gathered.map(|_| Memory::of(&self.remembered))
    }

    /// Remembers what a state says, and serves its line again.
    ///
    /// # Errors
    /// Refuses a memory that is none of this expert.
    pub(crate) fn recall(
        &mut self,
        memory: Option<&Memory>,
        device: &Device,
    ) -> Result<(), LearnError> {
        self.remembered = Memory::recalled(memory)?;
        self.serve(device);
        Ok(())
    }

    /// Adds up the training samples of a round, and solves for the line of the node alone.
    pub(crate) fn gather(&mut self, round: Round, samples: &Samples, device: &Device) {
        let (features, numbers) = rows_of(samples);
        let joint = Joint::of(&features, numbers);
        let slope = Slope {
            rows: samples.len() as f64,
            slope: joint
                .slope()
                .into_iter()
                .map(|number| number as f32)
                .collect(),
        };
        let proxy: Vec<f64> = slope.to_proxy().into_iter().map(f64::from).collect();
        let upload = |values: &[f64]| upload(values, device);
        self.proxies.weights = Weights::new(vec![upload(&proxy)]);
        self.own.weights = Weights::new(vec![upload(&joint.means), upload(&joint.covariances)]);
        self.remembered.gathered = Some(round);
        self.remembered.n_gathered = Some(samples.len() as u32);
        (self.remembered.solved, self.remembered.trust) = (None, None);
        // Of a single row nothing can be left out, and there is no slope.
        let mean = || Line {
            weights: vec![0.0; self.width],
            offset: *joint.means.last().expect("the number has a mean"),
        };
        let line = match ridge::solve(&features, numbers, &[]) {
            Ok(found) => found.line,
            Err(error) => {
                tracing::warn!("the own rows have no line, so their mean is served: {error}");
                mean()
            }
        };
        self.write(Source::Own, &line, device);
    }

    /// Solves for the line of the own rows and of peers' sums; the same ones are solved once.
    pub(crate) fn adopt<P: Borrow<ParamSet>>(
        &mut self,
        peers: &[PeerExpert<P>],
        samples: &Samples,
        device: &Device,
    ) {
        let key = key_of(&self.own.params(), peers);
        if self.remembered.solved == Some(key) {
            return;
        }
        let solved = with_peers(peers, samples);
        match solved {
            Ok(found) => {
                self.write(Source::Peers, &found.line, device);
                self.remembered.trust = Some(found.setting.trust);
                (self.remembered.solved, self.remembered.missing) = (Some(key), None);
            }
            Err(error) => {
                self.remembered.missing = Some(error.to_string());
                tracing::warn!("no line of peers' sums: {error}");
            }
        }
    }

    /// Deletes what was made of peers' sums, as if none had ever come.
    pub(crate) fn forget_peers(&mut self, device: &Device) {
        let nothing = Line {
            weights: vec![0.0; self.width],
            offset: 0.0,
        };
        self.write(Source::Peers, &nothing, device);
        (self.remembered.solved, self.remembered.trust) = (None, None);
        self.remembered.missing = None;
    }

    /// Chooses what the line counts for beside the own model, because one of them is another one now.
    pub(crate) fn choose(&mut self, own: &Predictor<'_>, validation: &Samples, device: &Device) {
        self.remembered.left_out = false;
        self.choose_weight(own, validation, device);
    }

    fn choose_weight(&mut self, own: &Predictor<'_>, validation: &Samples, device: &Device) {
        self.remembered.weight = self.line().map(|line| {
            let errors = errors_of(&line, own, validation, device);
            let squares = |weight: f64| -> Vec<f64> {
                let of = |[line, own]: &[f64; 2]| (weight * line + (1.0 - weight) * own).powi(2);
                errors.iter().map(of).collect()
            };
            let usual = squares(WEIGHTS[0]);
            let total = |squares: &[f64]| squares.iter().sum::<f64>();
            let all = WEIGHTS.map(|weight| (weight, squares(weight)));
            let best = all
                .into_iter()
                .min_by(|a, b| total(&a.1).total_cmp(&total(&b.1)));
            let is_better = |(_, best): &(f64, Vec<f64>)| {
                let pairs = usual.iter().zip(best);
                standard_errors(pairs.map(|(usual, best)| usual - best))
                    .is_some_and(|errors| errors > CLEARLY)
            };
            best.filter(is_better)
                .map_or(WEIGHTS[0], |(weight, _)| weight)
        });
        self.serve(device);
    }

    /// Tells whether peers' rows are in what is served.
    pub(crate) fn serves_peers(&self) -> bool {
        self.remembered.solved.is_some() && !self.remembered.left_out
    }

    /// Says what the line counts for beside `own`, and what a row of a peer counts in it.
    pub(crate) fn joined_with(&self, own: Composition) -> Composition {
        let Some(weight) = self.remembered.weight else {
            return own;
        };
        let trust = self.remembered.trust;
        if self.serves_peers() && trust != Some(0.0) {
            let joined = own.joined(self.of_peers(), weight);
            return Composition {
                trust: trust.filter(|_| weight > 0.0),
                ..joined
            };
        }
        let joined = own.joined(Component::OwnStatistics, weight);
        if self.remembered.solved.is_some() {
            joined.without(self.of_peers())
        } else {
            joined
        }
    }

    /// Returns what the rows of others are called in what is served.
    fn of_peers(&self) -> Component {
        match self.total.as_ref().map(|total| &total.promised) {
            Some(Some(_)) => Component::NoisedStatistics,
            Some(None) => Component::CommonStatistics,
            None => Component::PeersStatistics,
        }
    }

    /// Serves the line of the own rows in place of that with peers; returns what was remembered before.
    pub(crate) fn leave_peers_out(
        &mut self,
        own: &Predictor<'_>,
        validation: &Samples,
        device: &Device,
    ) -> Remembered {
        let before = self.remembered.clone();
        self.remembered.left_out = true;
        self.choose_weight(own, validation, device);
        before
    }

    /// Serves again what was left out.
    pub(crate) fn put_peers_back(&mut self, before: Remembered, device: &Device) {
        self.remembered = before;
        self.serve(device);
    }

    /// Runs the mixture of line and own model; the own model alone while there is no line.
    pub(crate) fn forward(&self, own: &Predictor<'_>, inputs: Tensor<2>) -> Output {
        let alone = own.forward(inputs.clone());
        match &self.served {
            Some(served) => served.mixed(alone, inputs),
            None => alone,
        }
    }

    /// Writes into a graph what [`Self::forward`] computes.
    pub(crate) fn emit(&self, own: &Predictor<'_>, graph: &mut Graph, inputs: Value) -> Value {
        let alone = own.emit(graph, inputs);
        match &self.served {
            Some(served) => served.emit(graph, alone, inputs),
            None => alone,
        }
    }

    /// Returns the line with peers, else that of the own rows; nothing before there is any.
    fn line(&self) -> Option<Line> {
        let source = match (self.remembered.solved, self.remembered.gathered) {
            (Some(_), _) if !self.remembered.left_out => Source::Peers,
            (_, Some(_)) => Source::Own,
            _ => return None,
        };
        let [weights, offsets] = [0, 1].map(|array| doubles(&self.lines.weights.tensor(array)));
        let at = source as usize;
        Some(Line {
            weights: weights[at * self.width..][..self.width].to_vec(),
            offset: offsets[at],
        })
    }

    fn write(&mut self, source: Source, line: &Line, device: &Device) {
        let [mut weights, mut offsets] =
            [0, 1].map(|array| doubles(&self.lines.weights.tensor(array)));
        let at = source as usize;
        weights[at * self.width..][..self.width].copy_from_slice(&line.weights);
        offsets[at] = line.offset;
        self.lines.weights = Weights::new(vec![upload(&weights, device), upload(&offsets, device)]);
    }

    /// Puts the line on the device.
    fn serve(&mut self, device: &Device) {
        let served = self.remembered.weight.zip(self.line());
        self.served = served.map(|(weight, line)| Served::new(&line, weight, device));
    }
}

/// Returns the features of all samples, one after the other, and their numbers.
fn rows_of(samples: &Samples) -> (Vec<f32>, &[f32]) {
    let all: Vec<u32> = (0..samples.len() as u32).collect();
    let mut features = Vec::new();
    samples.write_batch(&all, &mut features);
    (features, samples.targets.as_deref().unwrap_or_default())
}

/// Finds the line of own rows and peers' sums, each counting as the row of the plan says.
fn with_peers<P: Borrow<ParamSet>>(
    peers: &[PeerExpert<P>],
    samples: &Samples,
) -> Result<Found, StatisticsError> {
    // Weights are of rows: what the own ones weigh says what all do.
    let own_weight = 1.0 - peers.iter().map(|peer| peer.weight).sum::<f64>();
    let total = samples.len() as f64 / own_weight;
    if !total.is_finite() || total <= 0.0 {
        return Err(StatisticsError::Empty);
    }
    let mut joints = Vec::with_capacity(peers.len());
    for peer in peers {
        match Joint::read(peer.params.borrow()) {
            Ok(joint) => joints.push((peer.weight * total, joint)),
            Err(fault) => {
                let owner = peer.expert.owner.short();
                tracing::warn!(%owner, "sums of a peer are left out: {fault}");
            }
        }
    }
    let (features, numbers) = rows_of(samples);
    let peers: Vec<(f64, &Joint)> = joints.iter().map(|(rows, joint)| (*rows, joint)).collect();
    let found = ridge::solve(&features, numbers, &peers)?;
    let setting = found.setting;
    tracing::info!(trust = setting.trust, ridge = setting.ridge, intercept = ?setting.intercept, "peers' sums are solved");
    Ok(found)
}

/// Returns how far line and own model are off for each sample.
fn errors_of(
    line: &Line,
    own: &Predictor<'_>,
    samples: &Samples,
    device: &Device,
) -> Vec<[f64; 2]> {
    let mut errors = Vec::with_capacity(samples.len());
    let numbers = samples.targets.as_deref().unwrap_or_default();
    for_each_batch(samples, device, |positions, inputs| {
        let alone = weights::values(&own.forward(inputs.clone()).logits);
        let width = inputs.dims()[1];
        let features = weights::values(&inputs);
        let rows = alone.iter().zip(features.chunks_exact(width));
        for (at, (alone, features)) in positions.iter().zip(rows) {
            let number = f64::from(numbers[*at as usize]);
            errors.push([line.at(features) - number, f64::from(*alone) - number]);
        }
    });
    errors
}
