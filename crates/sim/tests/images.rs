//! A machine that is written to a file and read back is the same machine: it answers all later inputs alike.
#![allow(clippy::unwrap_used)]

#[allow(dead_code, reason = "the golden transcripts need more of them")]
mod kept;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use fednode_core::{FederationSpec, NodeId, Timestamp};
use fednode_engine::image::{AggregatorImage, NodeImage};
use fednode_engine::{Aggregator, Input, Node, Output};
use fednode_sim::{self as sim, Observer, Scenario, Toys, Trainers};

#[derive(Debug)]
enum Machine {
    Node(Box<Node>),
    Aggregator(Box<Aggregator>),
}

impl Machine {
    fn of(scenario: &Scenario, spec: &Arc<FederationSpec>, member: usize) -> Self {
        let (me, spec) = (sim::node_id(scenario.seed, member), Arc::clone(spec));
        if member >= scenario.nodes {
            return Self::Aggregator(Box::new(Aggregator::new(spec, me)));
        }
        let initial = Toys::new(scenario.seed, 1).initial_shared();
        let initial = initial.map(|shared| shared.to_blob().0);
        Self::Node(Box::new(Node::new(spec, me, initial)))
    }

    fn handle(&mut self, at: Timestamp, input: Input) -> Vec<Output> {
        match self {
            Self::Node(node) => node.handle(at, input),
            Self::Aggregator(aggregator) => aggregator.handle(at, input),
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let written = match self {
            Self::Node(node) => serde_cbor::to_vec(&node.image()),
            Self::Aggregator(aggregator) => serde_cbor::to_vec(&aggregator.image()),
        };
        written.unwrap()
    }

    fn read(&self, bytes: &[u8], spec: &Arc<FederationSpec>) -> Self {
        let spec = Arc::clone(spec);
        match self {
            Self::Node(_) => {
                let image: NodeImage = serde_cbor::from_slice(bytes).unwrap();
                Self::Node(Box::new(Node::from_image(spec, image).unwrap()))
            }
            Self::Aggregator(_) => {
                let image: AggregatorImage = serde_cbor::from_slice(bytes).unwrap();
                Self::Aggregator(Box::new(Aggregator::from_image(spec, image).unwrap()))
            }
        }
    }

    /// Says all that a machine says of itself.
    fn says(&self, at: Timestamp) -> String {
        match self {
            Self::Node(node) => {
                let (status, state) = (node.status(at), node.checkpoint());
                format!("{status:?} {state:?} {:?}", node.needed_blobs())
            }
            Self::Aggregator(aggregator) => {
                let (status, needed) = (aggregator.status(at), aggregator.needed_blobs());
                format!("{status:?} {needed:?}")
            }
        }
    }
}

/// A member's machine beside that of the simulator.
struct Shadow {
    /// Written and read back before every input.
    reborn: Machine,
    /// Read back once, each at another input.
    branches: Vec<Machine>,
    /// What the original has still to answer.
    answers: VecDeque<String>,
    n_inputs: usize,
}

struct Shadows {
    spec: Arc<FederationSpec>,
    /// Absent once a member has been restarted: what it went on from is not told.
    members: BTreeMap<usize, Option<Shadow>>,
    n_compared: usize,
}

/// Inputs between two branches.
const BRANCH_EVERY: usize = 97;

impl Shadows {
    fn of(scenario: &Scenario, members: &[usize]) -> Self {
        let spec = Arc::new(scenario.spec.clone());
        let shadow = |member| Shadow {
            reborn: Machine::of(scenario, &spec, member),
            branches: Vec::new(),
            answers: VecDeque::new(),
            n_inputs: 0,
        };
        let members = members.iter();
        Self {
            members: members
                .map(|member| (*member, Some(shadow(*member))))
                .collect(),
            spec,
            n_compared: 0,
        }
    }
}

impl Observer for Shadows {
    fn input(&mut self, now: Timestamp, member: usize, input: &Input) {
        let Some(place) = self.members.get_mut(&member) else {
            return;
        };
        if matches!(input, Input::Start) {
            place.take_if(|shadow| shadow.n_inputs > 0);
        }
        let Some(shadow) = place else {
            return;
        };
        assert!(
            shadow.answers.is_empty(),
            "{member} said less: {:?}",
            shadow.answers
        );
        let bytes = shadow.reborn.bytes();
        let again = shadow.reborn.read(&bytes, &self.spec);
        assert_eq!(
            again.bytes(),
            bytes,
            "an image of the same machine is the same"
        );
        assert_eq!(again.says(now), shadow.reborn.says(now));
        if shadow.n_inputs % BRANCH_EVERY == BRANCH_EVERY / 2 {
            let branch = again.read(&bytes, &self.spec);
            shadow.branches.push(branch);
        }
        shadow.reborn = again;
        shadow.n_inputs += 1;
        let outputs = format!("{:?}", shadow.reborn.handle(now, input.clone()));
        for branch in &mut shadow.branches {
            assert_eq!(format!("{:?}", branch.handle(now, input.clone())), outputs);
        }
        // The simulator tells its machine's outputs one by one.
        self.n_compared += 1;
        let again = shadow
            .reborn
            .read(&bytes, &self.spec)
            .handle(now, input.clone());
        shadow.answers = again.iter().map(|output| format!("{output:?}")).collect();
    }

    fn output(&mut self, _now: Timestamp, member: usize, output: &Output) {
        if let Some(Some(shadow)) = self.members.get_mut(&member) {
            let said = format!("{output:?}");
            assert_eq!(shadow.answers.pop_front(), Some(said), "member {member}");
        }
    }
}

/// Returns how many answers were compared.
fn compare(scenario: &Scenario, members: &[usize]) -> usize {
    let mut shadows = Shadows::of(scenario, members);
    let mut toys = Toys::new(scenario.seed, scenario.nodes + 1);
    sim::run_observed(scenario, &mut toys, &mut shadows);
    for shadow in shadows.members.values().flatten() {
        for branch in &shadow.branches {
            assert_eq!(
                branch.bytes(),
                shadow.reborn.bytes(),
                "all branches end alike"
            );
        }
    }
    shadows.n_compared
}

#[test]
fn a_machine_that_was_read_back_before_any_input_answers_alike() {
    let mut n_compared = 0;
    for scenario in [
        kept::good_weather(1),
        kept::nobody_aggregates(1),
        kept::the_aggregator_comes_and_goes(1),
        kept::members_come_and_go(1),
        kept::cut_in_two(1),
        kept::some_rest(1),
        kept::nothing_is_averaged(1),
        kept::experts_weigh_by_use_and_modules_are_pooled(1),
    ] {
        n_compared += compare(&scenario, &[0, 3, scenario.nodes]);
    }
    assert!(n_compared > 3000, "{n_compared}");
}

#[test]
fn liars_do_not_tell_a_machine_from_the_one_that_was_read_back() {
    for scenario in [kept::liars_everywhere(1), kept::liars_act_as_aggregators(1)] {
        let honest = scenario.nodes - 1;
        assert!(compare(&scenario, &[0, honest]) > 200);
    }
}

#[test]
fn nor_does_a_large_federation() {
    let scenario = kept::sketches_and_few_speakers(1);
    assert!(compare(&scenario, &[7]) > 100);
}

#[test]
fn an_image_of_another_federation_is_refused() {
    let spec = Arc::new(FederationSpec::default());
    let node = Node::new(Arc::clone(&spec), NodeId::from_bytes([7; 32]), None);
    let other = FederationSpec {
        rounds: spec.rounds + 1,
        ..FederationSpec::default()
    };
    let error = Node::from_image(Arc::new(other.clone()), node.image()).unwrap_err();
    assert_eq!((error.found, error.expected), (spec.id(), other.id()));
}
