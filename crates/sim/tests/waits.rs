//! Nothing waits without a word: whatever phase a machine is in, it names why it waits and for whom.
#![allow(clippy::unwrap_used)]

#[allow(dead_code, reason = "the golden transcripts need more of them")]
mod kept;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fednode_core::{FederationSpec, NodeId, Timestamp};
use fednode_engine::{Aggregator, Cause, Input, Node, Phase, Status};
use fednode_sim::{self as sim, Incident, Observer, Scenario, Toys, Trainers};

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

    fn handle(&mut self, at: Timestamp, input: Input) {
        match self {
            Self::Node(node) => drop(node.handle(at, input)),
            Self::Aggregator(aggregator) => drop(aggregator.handle(at, input)),
        }
    }

    fn status(&self, at: Timestamp) -> Status {
        match self {
            Self::Node(node) => node.status(at),
            Self::Aggregator(aggregator) => aggregator.status(at),
        }
    }
}

/// Machines beside those of the simulator, asked what they wait for after every input.
struct Asked {
    spec: Arc<FederationSpec>,
    ids: Vec<NodeId>,
    machines: BTreeMap<usize, Machine>,
    started: BTreeSet<usize>,
    named: BTreeSet<(Phase, Cause)>,
    /// Whom anybody waited for, and why.
    blamed: BTreeSet<(NodeId, Cause)>,
}

impl Observer for Asked {
    fn input(&mut self, now: Timestamp, member: usize, input: &Input) {
        if matches!(input, Input::Start) && !self.started.insert(member) {
            // What it goes on from is not told.
            self.machines.remove(&member);
        }
        let Some(machine) = self.machines.get_mut(&member) else {
            return;
        };
        machine.handle(now, input.clone());
        let later = now + Duration::from_secs(11);
        let status = machine.status(later);
        self.look(member, &status);
    }
}

impl Asked {
    fn look(&mut self, member: usize, status: &Status) {
        let phase = status.phase;
        if phase == Phase::Serving {
            return assert_eq!(status.waiting, [], "who is done waits for nothing");
        }
        assert!(!status.waiting.is_empty(), "{member} in {phase:?}: no word");
        for wait in &status.waiting {
            let is_somebodys = !matches!(
                wait.cause,
                Cause::OwnWork | Cause::FirstPeer | Cause::Members
            );
            let names = !wait.whom.is_empty();
            assert!(names || !is_somebodys, "{member} in {phase:?}: {wait:?}");
            assert!(!wait.whom.contains(&self.ids[member]), "{wait:?}");
            self.named.insert((phase, wait.cause));
            let whom = wait.whom.iter().map(|node| (*node, wait.cause));
            self.blamed.extend(whom);
        }
    }
}

fn ask(scenario: &Scenario) -> Asked {
    let spec = Arc::new(scenario.spec.clone());
    let members = 0..=scenario.nodes;
    let mut asked = Asked {
        ids: members
            .clone()
            .map(|member| sim::node_id(scenario.seed, member))
            .collect(),
        machines: members
            .map(|member| (member, Machine::of(scenario, &spec, member)))
            .collect(),
        spec,
        started: BTreeSet::new(),
        named: BTreeSet::new(),
        blamed: BTreeSet::new(),
    };
    let mut toys = Toys::new(scenario.seed, scenario.nodes + 1);
    sim::run_observed(scenario, &mut toys, &mut asked);
    assert!(asked.spec.rounds > 0 && !asked.named.is_empty());
    asked
}

/// Every phase of nodes and aggregators, in good and in bad weather, with liars and without means.
#[test]
fn every_phase_names_a_cause_and_whom() {
    let mut named = BTreeSet::new();
    for scenario in [
        kept::good_weather(1),
        kept::nobody_aggregates(1),
        kept::the_aggregator_comes_and_goes(1),
        kept::members_come_and_go(1),
        kept::cut_in_two(1),
        kept::some_rest(1),
        kept::nothing_is_averaged(1),
        kept::experts_weigh_by_use_and_modules_are_pooled(1),
        kept::liars_everywhere(1),
        kept::liars_act_as_aggregators(1),
    ] {
        named.extend(ask(&scenario).named);
    }
    let phases: BTreeSet<Phase> = named.iter().map(|(phase, _)| *phase).collect();
    let all = [
        Phase::Joining,
        Phase::Training,
        Phase::Exchanging,
        Phase::Merging,
        Phase::Pooling,
    ];
    assert_eq!(phases.into_iter().collect::<Vec<_>>(), all);
    let causes: BTreeSet<Cause> = named.iter().map(|(_, cause)| *cause).collect();
    for cause in [
        Cause::Members,
        Cause::FirstPeer,
        Cause::Closing,
        Cause::Quorum,
    ] {
        assert!(causes.contains(&cause), "{cause:?} in {causes:?}");
    }
    for cause in [Cause::Mean, Cause::Parts, Cause::Updates, Cause::Experts] {
        assert!(causes.contains(&cause), "{cause:?} in {causes:?}");
    }
    for cause in [Cause::Proxies, Cause::Modules, Cause::OwnWork] {
        assert!(causes.contains(&cause), "{cause:?} in {causes:?}");
    }
}

/// A node that dies in a round is the one whose update the others name.
#[test]
fn who_is_gone_is_named() {
    let mut scenario = Scenario::new(3, 4, 3).at(1.0, Incident::Kill(2));
    scenario.spec.round.grace_seconds = 20.0;
    scenario.time_limit = Duration::from_secs(200);
    let gone = sim::node_id(scenario.seed, 2);
    let asked = ask(&scenario);
    let by_updates = [Cause::Updates, Cause::Quorum];
    let is_named = by_updates
        .iter()
        .any(|cause| asked.blamed.contains(&(gone, *cause)));
    assert!(is_named, "{:?}", asked.blamed);
}
