//! A machine that is given its recorded inputs again lives the same life.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use fednode_core::Timestamp;
use fednode_engine::recording::{Record, replay};
use fednode_engine::{Aggregator, Input, Node, Output};
use fednode_sim::{self as sim, Behaviour, Incident, Observer, Scenario, Toys, Trainers};

/// Records what one member is given, as bytes in a file, and what it answers.
struct Recorder {
    member: usize,
    file: Vec<u8>,
    answers: Vec<String>,
}

impl Observer for Recorder {
    fn input(&mut self, now: Timestamp, member: usize, input: &Input) {
        if member == self.member {
            let record = Record {
                at: now,
                input: input.clone(),
            };
            self.file.extend(serde_cbor::to_vec(&record).unwrap());
        }
    }

    fn output(&mut self, _now: Timestamp, member: usize, output: &Output) {
        if member == self.member {
            self.answers.push(format!("{output:?}"));
        }
    }
}

fn record(scenario: &Scenario, member: usize) -> Recorder {
    let mut recorder = Recorder {
        member,
        file: Vec::new(),
        answers: Vec::new(),
    };
    let mut toys = Toys::new(scenario.seed, scenario.nodes + 1);
    sim::run_observed(scenario, &mut toys, &mut recorder);
    recorder
}

fn records(file: &[u8]) -> Vec<Record> {
    let records = serde_cbor::Deserializer::from_slice(file).into_iter();
    records.map(Result::unwrap).collect()
}

/// Rounds with losses, a lost node, an accuser and a pool: inputs of all kinds.
fn eventful() -> Scenario {
    let mut scenario = Scenario::new(1, 7, 5)
        .with(5, Behaviour::FalseAccuser)
        .at(9.0, Incident::Kill(3));
    scenario.link.loss = 0.2;
    scenario.spec.pool.preset = Some(fednode_core::spec::Preset::Fixed);
    scenario
}

#[test]
fn a_node_answers_its_recorded_inputs_as_it_did() {
    let scenario = eventful();
    let recorder = record(&scenario, 0);
    let spec = Arc::new(scenario.spec.clone());
    let initial = Toys::new(scenario.seed, 1).initial_shared();
    let initial = initial.map(|shared| shared.to_blob().0);
    let mut node = Node::new(spec, sim::node_id(scenario.seed, 0), initial);
    let handle = |at, input| node.handle(at, input);
    let moments = replay(handle, records(&recorder.file));
    let answers: Vec<String> = moments
        .flat_map(|moment| moment.outputs)
        .map(|output| format!("{output:?}"))
        .collect();
    assert!(answers.len() > 100, "{} answers", answers.len());
    assert_eq!(answers, recorder.answers);
}

#[test]
fn an_aggregator_answers_its_recorded_inputs_as_it_did() {
    let scenario = eventful();
    let recorder = record(&scenario, scenario.nodes);
    let spec = Arc::new(scenario.spec.clone());
    let me = sim::node_id(scenario.seed, scenario.nodes);
    let mut aggregator = Aggregator::new(spec, me);
    let handle = |at, input| aggregator.handle(at, input);
    let moments = replay(handle, records(&recorder.file));
    let answers: Vec<String> = moments
        .flat_map(|moment| moment.outputs)
        .map(|output| format!("{output:?}"))
        .collect();
    assert!(answers.len() > 20, "{} answers", answers.len());
    assert_eq!(answers, recorder.answers);
}
