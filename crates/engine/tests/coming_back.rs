//! A node that could not hear the others for a while, and rounds that are shorter than the grace time.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{averaging, blob, heard, id};
use fednode_core::{
    AdvertId, BlobId, Body, ClosingId, ExpertExchange, FederationSpec, Global, Local, LocalReport,
    Matching, Member, PeersPerExpert, Role, Round, Timestamp,
};
use fednode_engine::{Input, Node, Output};

const ME: u8 = 1;
const HUB: u8 = 7;
const OTHERS: [u8; 3] = [2, 3, 4];

/// The others, who close one round after the other.
struct Others {
    spec: Arc<FederationSpec>,
    /// The newest closing, and its mean.
    closing: ClosingId,
    mean: BlobId,
}

impl Others {
    fn update_of(node: u8, round: u32) -> AdvertId {
        AdvertId::of(format!("update of {node} in {round}").as_bytes())
    }

    /// Returns what is heard of a round.
    fn round(&mut self, round: u32, now: Timestamp) -> Vec<Input> {
        let part = |node: u8| blob(&format!("part of {node} in {round}"));
        let mut said = Vec::new();
        for node in OTHERS {
            let local = Local {
                shared: Some(part(node)),
                follows: Some(self.closing),
                ..Local::new(self.mean, 10)
            };
            let (by, about) = ((node, u64::from(round)), (round, now));
            let id = Self::update_of(node, round);
            said.push(heard(&self.spec, id, by, about, Body::Local(local)));
        }
        let member = |node: u8| Member {
            node: id(node),
            shared: part(node),
            weight: 1.0,
            advert: Self::update_of(node, round),
        };
        let global = Global {
            members: OTHERS.map(member).into(),
            mean: blob(&format!("mean of {round}")),
            parent: self.mean,
            previous: Some(self.closing),
        };
        (self.closing, self.mean) = (global.id(Round(round)), global.mean.id);
        let (by, about) = ((HUB, u64::from(round)), (round, now));
        let id = AdvertId::of(format!("closing of {round}").as_bytes());
        said.push(heard(&self.spec, id, by, about, Body::Global(global)));
        said
    }
}

/// The node, whose fetches are there at once.
struct Machine {
    node: Node,
    timers: Vec<(Timestamp, Input)>,
    merges_at: Option<Timestamp>,
}

impl Machine {
    fn input(&mut self, now: Timestamp, input: Input) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            for output in self.node.handle(now, input) {
                match output {
                    Output::Fetch(fetch) => inputs.push(Input::Fetched(fetch.blob.id)),
                    Output::SetTimer { timer, at } => {
                        self.timers.retain(|(_, set)| !is_same(set, timer));
                        self.timers.push((at, Input::Timer(timer)));
                    }
                    Output::Merge(_) => self.merges_at = self.merges_at.or(Some(now)),
                    _ => {}
                }
            }
        }
    }

    /// Lets the timers go off that are due.
    fn tick(&mut self, now: Timestamp) {
        while let Some(due) = self.timers.iter().position(|(at, _)| *at <= now) {
            let (_, input) = self.timers.swap_remove(due);
            self.input(now, input);
        }
    }
}

/// A timer that is set again replaces the one before.
fn is_same(set: &Input, timer: fednode_engine::Timer) -> bool {
    matches!(set, Input::Timer(set) if *set == timer)
}

#[test]
fn a_node_that_comes_back_joins_though_others_close_a_round_in_less_than_the_grace_time() {
    let mut spec = averaging(4);
    spec.exchange.experts = Some(ExpertExchange::by(
        Matching::named("similarity"),
        PeersPerExpert::Count(5),
    ));
    spec.rounds = 1000;
    let spec = Arc::new(spec);
    let mut now = Timestamp(1_000);
    let mut machine = Machine {
        node: Node::new(Arc::clone(&spec), id(ME), Some(blob("initial"))),
        timers: Vec::new(),
        merges_at: None,
    };
    machine.input(now, Input::Start);
    machine.input(now, Input::Synced);
    for (n, role) in OTHERS
        .map(|n| (n, Role::Node))
        .into_iter()
        .chain([(HUB, Role::Aggregator)])
    {
        machine.input(now, Input::PeerUp { node: id(n), role });
    }
    assert_eq!(machine.node.round(), Round(1));
    let report = LocalReport {
        round: Round(1),
        lineage: machine.node.lineage(),
        shared: Some(blob("own part")),
        experts: Vec::new(),
        own_experts: Vec::new(),
        proxies: None,
        sketches: None,
        n_samples: 10,
        train_loss: 1.0,
        expert_share: vec![1.0],
    };
    machine.input(now, Input::Trained(report));
    // For a while it hears nothing, and then of rounds 100, 101, … as they pass, five in a second.
    let mut others = Others {
        spec: Arc::clone(&spec),
        closing: Global {
            members: Vec::new(),
            mean: blob("mean of 99"),
            parent: blob("mean of 98").id,
            previous: None,
        }
        .id(Round(99)),
        mean: blob("mean of 99").id,
    };
    now = now + Duration::from_secs(45);
    let back = now;
    for round in 100..150 {
        for input in others.round(round, now) {
            machine.input(now, input);
        }
        now = now + Duration::from_millis(200);
        machine.tick(now);
    }
    let merges = machine.merges_at.expect("it goes on");
    let took = merges.since(back);
    assert!(took <= spec.round.grace() * 2, "after {took:?}");
}
