//! The protocol alone: a federation of toys (`fednode_sim::Toys`) instead of learners, for its messages, bytes,
//! seconds and memory with many nodes.
//!
//! ```text
//! messages_per_round       adverts that reached somebody / (N R)
//! plans                    with `--compare-plans`: recall of the best sources, and the similarity lost, by refresh
//! bytes_per_round          mean over nodes and rounds: what one node moves in one round, as in a swarm's summary
//! ```
//!
//! No data set is read. Adverts weigh what they weigh on the wire. Blobs are those of toys, a few floats each unless
//! `--toy-floats` names another number than 0. So their bytes tell how often something travels, not how much a model weighs.

use std::path::Path;
use std::time::Instant;

use fednode_core::{FederationSpec, Round};
use fednode_runtime::exit::ExitCode;
use fednode_sim::{self as sim, ClosedRound, Moment, Outcome, Scenario, Toys, Trainers, Wrapped};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::memory;
use super::play::Play;
use super::progress::{Counts, Progress};
use super::run::{Means, scenario};
use super::table::Row;
use crate::ending;
use crate::swarm::folder::Folder;
use crate::swarm::summary::{BytesPerRound, mean};
use fednode_cli::dotted::Assignment;
use fednode_cli::failure::{OrFail, fail};
use fednode_cli::federation::{self, DataFacts};
use fednode_cli::interrupt::Interrupts;
use fednode_cli::output::Report;
use fednode_cli::table::{bytes, duration};

/// What the spec calls data that are not there.
const NO_DATA: &str = "none";

/// What came of it. Keys are named as in a swarm's summary wherever they are the same.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Summary {
    /// The federated algorithm, which decides what is exchanged.
    pub(crate) algorithm: String,
    /// Seed of everything drawn.
    pub(crate) seed: u64,
    /// Nodes.
    pub(crate) nodes: u32,
    /// Rounds.
    pub(crate) rounds: u32,
    /// Adverts that a node received in one round, mean over nodes and rounds.
    pub(crate) messages_per_round: f64,
    /// Traffic of one node in one round.
    pub(crate) bytes_per_round: BytesPerRound,
    /// Seconds that the simulation took.
    pub(crate) wall_seconds: f64,
    /// Most memory that the process ever held, with everything that it played before.
    pub(crate) peak_rss_bytes: u64,
    /// How near plans are to those of somebody who knows all proxies, by the round of the refresh; empty unless asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) plans: Vec<PlanAgreement>,
    /// Every setting in force.
    pub(crate) effective_config: Value,
}

/// How near the plans of one refresh are to those of somebody who knows all proxies.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct PlanAgreement {
    /// The round of the refresh.
    pub(crate) round: u32,
    /// Share of the best sources that were chosen, 0 to 1.
    pub(crate) recall: f64,
    /// By how much the similarity of the chosen sources falls short of the best ones', on average.
    pub(crate) similarity_lost: f64,
}

/// Nodes whose plans are compared, about: each costs a look at everybody's proxies.
const COMPARED: usize = 200;

/// A federation of toys that is ready to be played.
#[derive(Debug)]
pub(crate) struct Prepared {
    spec: FederationSpec,
    aggregator: bool,
    wanted: Wanted,
}

/// What is asked of a simulation without training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Whether plans are compared with those of somebody who knows all proxies.
    pub(crate) compare_plans: bool,
    /// Floats in each part of a toy; 0 for a few.
    pub(crate) toy_floats: u32,
}

impl Prepared {
    /// Checks the settings.
    ///
    /// # Errors
    /// Names the first that is wrong.
    pub(crate) fn new(
        federation: &federation::Args,
        aggregator: bool,
        wanted: Wanted,
    ) -> anyhow::Result<Self> {
        // The shape of an input that every model takes; nothing is computed from it.
        let facts = DataFacts {
            name: NO_DATA.into(),
            input: [1, 8, 8],
            classes: 10,
            ..DataFacts::default()
        };
        // Toys have no samples to add up: without a word about the algorithm they exchange experts, as in the paper.
        let mut federation = federation.clone();
        let paper = Assignment::new("algorithm", FederationSpec::default().algorithm);
        federation.defaults.insert(0, paper);
        let spec = federation::spec(&federation, &facts).or_fail(ExitCode::Configuration)?;
        ending::check(&spec)?;
        memory::check_toys(spec.nodes as usize, wanted.toy_floats as usize)?;
        Ok(Self {
            spec,
            aggregator,
            wanted,
        })
    }
}

impl Play for Prepared {
    type Summary = Summary;
    type Row = Measured;

    fn spec(&self) -> &FederationSpec {
        &self.spec
    }

    fn describe(&self) -> String {
        let FederationSpec {
            nodes,
            rounds,
            algorithm,
            ..
        } = &self.spec;
        format!("{nodes} nodes, {rounds} rounds of {algorithm} without training")
    }

    fn effective(&self) -> Value {
        let Wanted {
            compare_plans,
            toy_floats,
        } = self.wanted;
        let run = serde_json::json!({
            "aggregator": self.aggregator, "training": false, "compare_plans": compare_plans, "toy_floats": toy_floats,
        });
        serde_json::json!({ "federation": self.spec, "simulation": run })
    }

    fn play(&self, folder: &Path, means: &Means<'_>) -> anyhow::Result<Summary> {
        let folder = Folder::of_simulation(folder, &[])?;
        let (spec, nodes) = (&self.spec, self.spec.nodes as usize);
        let mut counted = Counted {
            toys: match self.wanted.toy_floats {
                0 => Toys::new(spec.seed, nodes + 1),
                floats => Toys::of_floats(spec.seed, nodes + 1, floats as usize),
            },
            traffic: vec![<(sim::Bytes, sim::Bytes)>::default(); nodes],
            progress: Progress::new(nodes, spec.rounds, Counts::Closings, means.quiet),
            interrupts: means.interrupts.clone(),
        };
        let started = Instant::now();
        let scenario = Scenario {
            observe: self.wanted.compare_plans,
            ..scenario(spec, self.aggregator)
        };
        let outcome = sim::run_with(&scenario, &mut counted);
        counted.progress.finish();
        let wall_seconds = started.elapsed().as_secs_f64();
        if outcome.stopped {
            return Err(fail(
                ExitCode::Interrupted,
                "interrupted: the finished runs are kept, this one starts anew",
            ));
        }
        if !outcome.unfinished().is_empty() {
            return Err(fail(
                ExitCode::Training,
                "the simulated federation came to a standstill",
            ));
        }
        let summary = self.summarise(&outcome, &counted.traffic, wall_seconds);
        folder.write_spec(spec)?;
        folder.write_summary(&summary)?;
        Ok(summary)
    }
}

impl Prepared {
    fn summarise(
        &self,
        outcome: &Outcome,
        traffic: &[(sim::Bytes, sim::Bytes)],
        wall_seconds: f64,
    ) -> Summary {
        let spec = &self.spec;
        let rounds = f64::from(spec.rounds);
        Summary {
            algorithm: spec.algorithm.clone(),
            seed: spec.seed,
            nodes: spec.nodes,
            rounds: spec.rounds,
            messages_per_round: outcome.deliveries as f64 / (f64::from(spec.nodes) * rounds),
            bytes_per_round: bytes_per_round(traffic, rounds),
            wall_seconds,
            peak_rss_bytes: fednode_runtime::memory().peak_rss_bytes.unwrap_or(0),
            plans: self.agreement(outcome),
            effective_config: self.effective(),
        }
    }

    fn agreement(&self, outcome: &Outcome) -> Vec<PlanAgreement> {
        let Some(experts) = self
            .spec
            .exchange
            .experts
            .as_ref()
            .filter(|_| self.wanted.compare_plans)
        else {
            return Vec::new();
        };
        let by_round = outcome.agreement(experts, (self.spec.nodes as usize).div_ceil(COMPARED));
        let agreement = |(round, agreement): (Round, sim::Agreement)| {
            let sim::Agreement {
                recall,
                similarity_lost,
            } = agreement;
            PlanAgreement {
                round: round.0,
                recall,
                similarity_lost,
            }
        };
        by_round.into_iter().map(agreement).collect()
    }
}

/// Counts as a swarm's summary does: both ways with the aggregator, else what was received.
fn bytes_per_round(traffic: &[(sim::Bytes, sim::Bytes)], rounds: f64) -> BytesPerRound {
    let mean_of = |of: fn(&(sim::Bytes, sim::Bytes)) -> u64| {
        mean(
            &traffic
                .iter()
                .map(|traffic| of(traffic) as f64 / rounds)
                .collect::<Vec<_>>(),
        )
    };
    BytesPerRound {
        aggregator: mean_of(|(sent, received)| sent.aggregator + received.aggregator),
        peer_to_peer: mean_of(|(_, received)| received.peer_to_peer),
        gossip: mean_of(|(_, received)| received.gossip),
    }
}

/// Toys whose rounds are counted.
struct Counted {
    toys: Toys,
    /// Bytes sent and received up to the end of a node's newest round.
    traffic: Vec<(sim::Bytes, sim::Bytes)>,
    progress: Progress,
    interrupts: Interrupts,
}

impl Wrapped for Counted {
    fn inner(&mut self) -> &mut dyn Trainers {
        &mut self.toys
    }

    fn closed(&mut self, member: usize, closed: ClosedRound) {
        self.traffic[member] = (closed.sent, closed.received);
        self.progress.close(closed.round);
    }

    fn pauses(&mut self, _moment: &Moment<'_>) -> bool {
        self.interrupts.count() > 0
    }
}

impl Report for Summary {
    fn human(&self) -> String {
        let Self {
            nodes,
            rounds,
            bytes_per_round: traffic,
            ..
        } = self;
        let whole = |count: f64| bytes(count.round() as u64);
        let plans: String = self.plans.iter().map(PlanAgreement::human).collect();
        format!(
            "\n{nodes} nodes × {rounds} rounds of {} without training: {}, {} of memory\nper node and round {:.1} messages \
             and {}: aggregator {}, peer-to-peer {}, gossip {}\n{plans}",
            self.algorithm,
            duration(self.wall_seconds),
            bytes(self.peak_rss_bytes),
            self.messages_per_round,
            whole(traffic.total()),
            whole(traffic.aggregator),
            whole(traffic.peer_to_peer),
            whole(traffic.gossip),
        )
    }
}

impl PlanAgreement {
    fn human(&self) -> String {
        let Self {
            round,
            recall,
            similarity_lost,
        } = self;
        format!(
            "plans of round {round}: {:.1} % of the best sources, {similarity_lost:.4} of similarity lost\n",
            100.0 * recall
        )
    }
}

/// What one setting costs, mean over its seeds.
#[derive(Debug, Serialize)]
pub(crate) struct Measured {
    name: String,
    seeds: Vec<u64>,
    nodes: u32,
    rounds: u32,
    messages_per_round: f64,
    bytes_per_round: BytesPerRound,
    wall_seconds: f64,
    peak_rss_bytes: u64,
}

impl Row for Measured {
    type Of = Summary;
    const HEAD: &'static [&'static str] = &[
        "setting",
        "messages",
        "bytes",
        "aggregator",
        "peer-to-peer",
        "gossip",
        "time",
        "memory",
    ];
    const LEGEND: &'static str =
        "messages and bytes per node and round, time of one run, most memory so far: means";

    fn new(name: String, summaries: &[Summary]) -> Self {
        let mean_of = |of: fn(&Summary) -> f64| mean(&summaries.iter().map(of).collect::<Vec<_>>());
        Self {
            name,
            seeds: summaries.iter().map(|summary| summary.seed).collect(),
            nodes: summaries.first().map_or(0, |summary| summary.nodes),
            rounds: summaries.first().map_or(0, |summary| summary.rounds),
            messages_per_round: mean_of(|summary| summary.messages_per_round),
            bytes_per_round: BytesPerRound {
                aggregator: mean_of(|summary| summary.bytes_per_round.aggregator),
                peer_to_peer: mean_of(|summary| summary.bytes_per_round.peer_to_peer),
                gossip: mean_of(|summary| summary.bytes_per_round.gossip),
            },
            wall_seconds: mean_of(|summary| summary.wall_seconds),
            peak_rss_bytes: summaries
                .iter()
                .map(|summary| summary.peak_rss_bytes)
                .max()
                .unwrap_or(0),
        }
    }

    fn cells(&self) -> Vec<String> {
        let traffic = self.bytes_per_round;
        let by_kind = [
            traffic.total(),
            traffic.aggregator,
            traffic.peer_to_peer,
            traffic.gossip,
        ];
        let mut cells = vec![self.name.clone(), format!("{:.1}", self.messages_per_round)];
        cells.extend(by_kind.map(|count| bytes(count.round() as u64)));
        cells.extend([duration(self.wall_seconds), bytes(self.peak_rss_bytes)]);
        cells
    }

    fn seeds(&self) -> &[u64] {
        &self.seeds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_by_hand() {
        let bytes = |aggregator, peer_to_peer, gossip| sim::Bytes {
            aggregator,
            peer_to_peer,
            gossip,
        };
        let traffic = [
            (bytes(10, 5, 1), bytes(30, 7, 9)),
            (bytes(0, 7, 1), bytes(0, 5, 11)),
        ];
        let want = BytesPerRound {
            aggregator: 10.0,
            peer_to_peer: 3.0,
            gossip: 5.0,
        };
        assert_eq!(bytes_per_round(&traffic, 2.0), want);
        assert!((want.total() - 18.0).abs() < 1e-12);
    }
}
