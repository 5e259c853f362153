//! A node that could not hear the others for a while, and rounds that are shorter than the grace time.
#![allow(clippy::unwrap_used)]

mod common;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use common::{averaging, blob, heard, id, proxies, trained};
use fednode_core::{
    AdvertId, BlobId, BlobRef, Body, ClosingId, ExpertExchange, ExpertOffer, FederationSpec,
    Global, Local, Matching, Member, PeersPerExpert, Role, Round, Timestamp,
};
use fednode_engine::{FetchKind, Input, MergeReport, Node, Output};

const ME: u8 = 1;
const HUB: u8 = 7;
const OTHERS: [u8; 4] = [2, 3, 4, 5];

/// A megabyte, which may take a second on a slow link.
const EXPERT_SIZE: u64 = 1 << 20;

fn federation() -> Arc<FederationSpec> {
    let mut spec = averaging(5);
    spec.exchange.experts = Some(ExpertExchange::by(
        Matching::named("similarity"),
        PeersPerExpert::Count(5),
    ));
    spec.rounds = 1000;
    Arc::new(spec)
}

fn expert(node: u8, round: u32) -> ExpertOffer {
    let name = format!("expert of {node} in {round}");
    ExpertOffer {
        blob: BlobRef {
            id: BlobId::of(name.as_bytes()),
            size: EXPERT_SIZE,
        },
        samples_routed: 1,
    }
}

/// The others, who close one round after the other.
struct Others {
    spec: Arc<FederationSpec>,
    /// The newest closing, if there is one, and its mean.
    closing: Option<ClosingId>,
    mean: BlobId,
}

impl Others {
    /// They follow a closing of this round, and begin the one after it.
    fn after(spec: &Arc<FederationSpec>, round: u32, mean: BlobId) -> Self {
        let closing = Global {
            members: Vec::new(),
            mean: BlobRef {
                id: mean,
                size: 100,
            },
            parent: blob("the mean before").id,
            previous: None,
            unmasked: Vec::new(),
            slices: Vec::new(),
        };
        Self {
            spec: Arc::clone(spec),
            closing: (round > 0).then(|| closing.id(Round(round))),
            mean,
        }
    }

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
                experts: vec![expert(node, round)],
                proxies: proxies(),
                follows: self.closing,
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
            previous: self.closing,
            unmasked: Vec::new(),
            slices: Vec::new(),
        };
        (self.closing, self.mean) = (Some(global.id(Round(round))), global.mean.id);
        let (by, about) = ((HUB, u64::from(round)), (round, now));
        let id = AdvertId::of(format!("closing of {round}").as_bytes());
        said.push(heard(&self.spec, id, by, about, Body::from(global)));
        said
    }
}

/// The node. Its fetches are there at once, but for experts, which are on their way for ever.
struct Machine {
    node: Node,
    timers: Vec<(Timestamp, Input)>,
    merges_at: Option<Timestamp>,
    planned_experts_asked: usize,
}

impl Machine {
    fn new(spec: &Arc<FederationSpec>, now: Timestamp) -> Self {
        let mut machine = Self {
            node: Node::new(Arc::clone(spec), id(ME), Some(blob("initial"))),
            timers: Vec::new(),
            merges_at: None,
            planned_experts_asked: 0,
        };
        machine.input(now, Input::Start);
        machine.input(now, Input::Synced);
        let nodes = OTHERS.map(|n| (n, Role::Node));
        for (n, role) in nodes.into_iter().chain([(HUB, Role::Aggregator)]) {
            machine.input(now, Input::PeerUp { node: id(n), role });
        }
        machine
    }

    fn input(&mut self, now: Timestamp, input: Input) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            for output in self.node.handle(now, input) {
                match output {
                    Output::Fetch(fetch) if fetch.kind == FetchKind::Expert => {
                        self.planned_experts_asked += 1;
                    }
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

    fn train(&mut self, now: Timestamp) {
        let round = self.node.round();
        let part = blob(&format!("own part in {round}"));
        let report = trained(&self.node, Some(part), expert(ME, round.0));
        self.input(now, Input::Trained(report));
    }

    /// Lets the timers go off that are due.
    fn tick(&mut self, now: Timestamp) {
        while let Some(due) = self.timers.iter().position(|(at, _)| *at <= now) {
            let (_, input) = self.timers.swap_remove(due);
            self.input(now, input);
        }
    }

    /// Hears of round after round, five in a second. Returns how long it waits before it merges.
    fn hears(&mut self, rounds: Range<u32>, others: &mut Others, mut now: Timestamp) -> Duration {
        let back = now;
        for round in rounds {
            for input in others.round(round, now) {
                self.input(now, input);
            }
            now = now + Duration::from_millis(200);
            self.tick(now);
        }
        self.merges_at.expect("it goes on").since(back)
    }
}

/// A timer that is set again replaces the one before.
fn is_same(set: &Input, timer: fednode_engine::Timer) -> bool {
    matches!(set, Input::Timer(set) if *set == timer)
}

#[test]
fn a_node_that_comes_back_joins_though_others_close_a_round_in_less_than_the_grace_time() {
    let spec = federation();
    let now = Timestamp(1_000);
    let mut machine = Machine::new(&spec, now);
    assert_eq!(machine.node.round(), Round(1));
    machine.train(now);
    // For a while it hears nothing, and then of rounds 100, 101, … as they pass.
    let mut others = Others::after(&spec, 99, blob("mean of 99").id);
    let back = now + Duration::from_secs(45);
    let took = machine.hears(100..150, &mut others, back);
    assert!(took <= spec.round.grace() * 2, "after {took:?}");
}

#[test]
fn experts_on_their_way_end_with_their_time_though_others_close_a_round_in_less_than_the_grace_time()
 {
    let spec = federation();
    let now = Timestamp(1_000);
    let mut machine = Machine::new(&spec, now);
    let mut others = Others::after(&spec, 0, machine.node.lineage());
    let first = others.round(1, now);
    machine.train(now);
    let own = Local {
        shared: Some(blob("own part in 1")),
        experts: vec![expert(ME, 1)],
        proxies: proxies(),
        ..Local::new(machine.node.lineage(), 10)
    };
    let own_id = AdvertId::of(b"own update");
    let own = heard(&spec, own_id, (ME, 1), (1, now), Body::Local(own));
    for input in [own].into_iter().chain(first) {
        machine.input(now, input);
    }
    assert!(
        machine.merges_at.take().is_some(),
        "round 1 has all it needs"
    );
    let merged = MergeReport {
        round: Round(1),
        ..MergeReport::default()
    };
    machine.input(now, Input::Merged(merged));
    assert_eq!(machine.node.round(), Round(2));
    machine.train(now);
    let took = machine.hears(2..52, &mut others, now);
    assert_eq!(machine.planned_experts_asked, OTHERS.len());
    // The grace time, a second for the megabyte, and what lies between two closings.
    let most = spec.round.grace() + Duration::from_millis(1_500);
    assert!(took >= spec.round.grace() && took <= most, "after {took:?}");
}
