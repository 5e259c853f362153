//! What an aggregator counts, and whose words it takes for news.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::{averaging, blob, heard, id};
use fednode_core::{
    AdvertId, Body, FederationSpec, Local, NodeId, Role, Round, Timestamp, Weighting,
};
use fednode_engine::{Aggregator, AverageOrder, Input, Output, Timer};

const NOW: Timestamp = Timestamp(1_000);

/// An aggregator and the members that it hears of.
struct Hub {
    spec: Arc<FederationSpec>,
    machine: Aggregator,
    now: Timestamp,
}

impl Hub {
    fn of(spec: FederationSpec) -> Self {
        let spec = Arc::new(spec);
        let mut machine = Aggregator::new(Arc::clone(&spec), id(7));
        machine.handle(NOW, Input::Start);
        machine.handle(NOW, Input::Synced);
        let now = NOW;
        Self { spec, machine, now }
    }

    fn handle(&mut self, input: Input) -> Vec<Output> {
        self.machine.handle(self.now, input)
    }

    fn meet(&mut self, node: u8) {
        let (node, role) = (id(node), Role::Node);
        self.handle(Input::PeerUp { node, role });
    }

    /// A member says its update of round 1, and its part is there at once.
    fn hear_update(&mut self, node: u8, trained_from: &str) -> Vec<Output> {
        self.hear_update_of(node, (trained_from, 10))
    }

    fn hear_update_of(&mut self, node: u8, (trained_from, n_samples): (&str, u32)) -> Vec<Output> {
        let part = blob(&format!("part of {node}"));
        let local = Local {
            shared: Some(part),
            ..Local::new(blob(trained_from).id, n_samples)
        };
        let name = AdvertId::of(&[node, 1]);
        let said = heard(&self.spec, name, (node, 1), (1, NOW), Body::Local(local));
        let mut outputs = self.handle(said);
        outputs.extend(self.handle(Input::Fetched(part.id)));
        outputs
    }
}

fn ordered(outputs: &[Output]) -> Option<&AverageOrder> {
    outputs.iter().find_map(|output| match output {
        Output::Average(order) => Some(order),
        _ => None,
    })
}

fn members(order: &AverageOrder) -> Vec<NodeId> {
    order.members.iter().map(|member| member.node).collect()
}

/// Members would wait with a closing of two of four until the deadline.
#[test]
fn who_started_from_another_model_is_no_part_of_the_quorum() {
    let mut hub = Hub::of(averaging(4));
    (1..=4).for_each(|node| hub.meet(node));
    hub.hear_update(1, "initial");
    hub.hear_update(2, "initial");
    hub.hear_update(3, "something else");
    hub.now = NOW + 2 * hub.spec.round.grace();
    let outputs = hub.handle(Input::Timer(Timer::Grace(Round(1))));
    assert_eq!(ordered(&outputs), None, "two of four");
    let outputs = hub.hear_update(4, "initial");
    let order = ordered(&outputs).unwrap();
    assert_eq!(members(order), [1, 2, 4].map(id));
}

#[test]
fn who_has_no_samples_is_not_waited_for_where_samples_weigh() {
    let mut spec = averaging(3);
    let averaging = spec.exchange.averaging.as_mut().unwrap();
    averaging.weighting = Weighting::Samples;
    let mut hub = Hub::of(spec);
    (1..=4).for_each(|node| hub.meet(node));
    hub.hear_update_of(4, ("initial", 0));
    for node in [1, 2] {
        let outputs = hub.hear_update(node, "initial");
        assert_eq!(ordered(&outputs), None, "{node}");
    }
    let outputs = hub.hear_update(3, "initial");
    assert_eq!(members(ordered(&outputs).unwrap()), [1, 2, 3].map(id));
}

/// Each is of a later round, so that it takes the place of the one before.
#[test]
fn part_after_part_of_one_member_is_not_fetched_without_end() {
    let mut hub = Hub::of(averaging(3));
    (1..=3).for_each(|node| hub.meet(node));
    let mut announced = 0;
    let mut announce = |hub: &mut Hub| {
        announced += 1;
        let local = Local {
            shared: Some(blob(&format!("part {announced}"))),
            ..Local::new(blob("initial").id, 10)
        };
        let name = AdvertId::of(&[9, announced as u8]);
        let by = (1, u64::from(announced));
        let said = heard(
            &hub.spec,
            name,
            by,
            (announced, hub.now),
            Body::Local(local),
        );
        let outputs = hub.handle(said);
        let fetches = |output: &Output| matches!(output, Output::Fetch(_));
        outputs.iter().any(fetches)
    };
    let fetched = (0..40).filter(|_| announce(&mut hub)).count();
    assert_eq!(fetched, 8);
    hub.now = NOW + hub.spec.round.deadline();
    assert!(
        announce(&mut hub),
        "it goes on alone when nobody closes rounds"
    );
}
