//! An aggregator comes back. One of two nodes sees it only after it has closed the round in its place.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{averaging, blob, heard, id};
use fednode_core::{
    AdvertId, BlobRef, Body, ClosingId, FederationSpec, Global, Local, LocalReport, Member, Role,
    Round, Timestamp,
};
use fednode_engine::{Aggregator, AverageReport, Input, Node, Note, Output};

const ME: u8 = 1;
const OTHER: u8 = 2;
const HUB: u8 = 7;

/// A machine whose fetches are there at once, and which finds the mean that was announced.
struct Machine<H> {
    handle: H,
    now: Timestamp,
    timers: Vec<(Timestamp, Input)>,
    closed_by_the_other: bool,
}

impl<H: FnMut(Timestamp, Input) -> Vec<Output>> Machine<H> {
    fn new(handle: H) -> Self {
        Self {
            handle,
            now: Timestamp(1_000),
            timers: Vec::new(),
            closed_by_the_other: false,
        }
    }

    fn input(&mut self, input: Input) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            for output in (self.handle)(self.now, input) {
                match output {
                    Output::Fetch(fetch) => inputs.push(Input::Fetched(fetch.blob.id)),
                    Output::Average(order) => inputs.push(Input::Averaged(AverageReport {
                        mean: Some(mean()),
                        members: order.members.clone(),
                        ..AverageReport::of(&order)
                    })),
                    Output::SetTimer { timer, at } => {
                        let is_same =
                            |set: &Input| matches!(set, Input::Timer(set) if *set == timer);
                        self.timers.retain(|(_, set)| !is_same(set));
                        self.timers.push((at, Input::Timer(timer)));
                    }
                    Output::Note(Note::RoundClosed { by, .. }) => {
                        self.closed_by_the_other |= by == Some(id(OTHER));
                    }
                    // A node merges what it follows.
                    Output::Merge(_) => self.closed_by_the_other = true,
                    _ => {}
                }
            }
        }
    }

    /// Returns how long it takes until the closing is followed.
    fn waits(&mut self) -> Duration {
        let began = self.now;
        while !self.closed_by_the_other && self.now.since(began) < Duration::from_secs(60) {
            self.now = self.now + Duration::from_millis(100);
            while let Some(due) = self.timers.iter().position(|(at, _)| *at <= self.now) {
                let (_, input) = self.timers.swap_remove(due);
                self.input(input);
            }
        }
        self.now.since(began)
    }
}

fn federation() -> Arc<FederationSpec> {
    let mut spec = averaging(2);
    spec.rounds = 10;
    Arc::new(spec)
}

fn mean() -> BlobRef {
    blob("the mean of round 1")
}

fn update(node: u8, round: u32, follows: Option<ClosingId>) -> (AdvertId, Local) {
    let name = format!("update of {node} in {round}");
    let parent = follows.map_or(blob("initial"), |_| mean());
    let local = Local {
        shared: Some(blob(&format!("part of {node} in {round}"))),
        follows,
        ..Local::new(parent.id, 10)
    };
    (AdvertId::of(name.as_bytes()), local)
}

/// The closing by the other node, which counts both.
fn closing() -> Global {
    let member = |n: u8| {
        let (advert, local) = update(n, 1, None);
        Member {
            node: id(n),
            shared: local.shared.unwrap(),
            weight: 1.0,
            advert,
        }
    };
    Global {
        members: [ME, OTHER].map(member).into(),
        mean: mean(),
        parent: blob("initial").id,
        previous: None,
        unmasked: Vec::new(),
        slices: Vec::new(),
    }
}

/// The other's first update, its closing, and its update of the next round.
fn said_by_the_other(spec: &FederationSpec, now: Timestamp) -> [Input; 3] {
    let say = |counter, round, (name, local)| {
        heard(
            spec,
            name,
            (OTHER, counter),
            (round, now),
            Body::Local(local),
        )
    };
    let name = AdvertId::of(b"closing");
    let closes = Body::from(closing());
    [
        say(1, 1, update(OTHER, 1, None)),
        heard(spec, name, (OTHER, 2), (1, now), closes),
        say(3, 2, update(OTHER, 2, Some(closing().id(Round(1))))),
    ]
}

fn own_update(spec: &FederationSpec, now: Timestamp) -> Input {
    let (name, local) = update(ME, 1, None);
    heard(spec, name, (ME, 1), (1, now), Body::Local(local))
}

fn peer(n: u8, role: Role) -> Input {
    Input::PeerUp { node: id(n), role }
}

#[test]
fn a_node_follows_it_after_the_grace_time_though_the_aggregator_is_here() {
    let spec = federation();
    let mut node = Node::new(Arc::clone(&spec), id(ME), Some(blob("initial")));
    let lineage = node.lineage();
    let mut machine = Machine::new(move |now, input| node.handle(now, input));
    let now = machine.now;
    machine.input(Input::Start);
    machine.input(Input::Synced);
    machine.input(peer(OTHER, Role::Node));
    machine.input(peer(HUB, Role::Aggregator));
    machine.input(Input::Trained(LocalReport {
        round: Round(1),
        lineage,
        shared: update(ME, 1, None).1.shared,
        experts: Vec::new(),
        own_experts: Vec::new(),
        proxies: None,
        sketches: None,
        n_samples: 10,
        train_loss: 1.0,
        expert_share: Vec::new(),
        offer: None,
    }));
    machine.input(own_update(&spec, now));
    for input in said_by_the_other(&spec, now) {
        machine.input(input);
    }
    let (took, grace) = (machine.waits(), spec.round.grace());
    assert!(took >= grace && took < grace * 2, "after {took:?}");
}

/// The other's newest update is of the next round, so the aggregator cannot close this one itself.
#[test]
fn the_aggregator_takes_the_chain_up_from_it_after_the_grace_time() {
    let spec = federation();
    let mut hub = Aggregator::new(Arc::clone(&spec), id(HUB));
    let mut machine = Machine::new(move |now, input| hub.handle(now, input));
    let now = machine.now;
    for input in [Input::Start, peer(ME, Role::Node), peer(OTHER, Role::Node)] {
        machine.input(input);
    }
    for input in said_by_the_other(&spec, now) {
        machine.input(input);
    }
    machine.input(own_update(&spec, now));
    machine.input(Input::Synced);
    let (took, grace) = (machine.waits(), spec.round.grace());
    assert!(took >= grace && took < grace * 2, "after {took:?}");
}
