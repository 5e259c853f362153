//! A federation whose organiser has added rounds after the last one.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::{averaging, blob, heard, id, proxies, trained};
use fednode_core::spec::Extension;
use fednode_core::{
    AdvertId, AggregationPlan, Body, ClosingId, ExpertId, ExpertOffer, FederationSpec, Local,
    NodeId, PlanRow, Role, Round, Slot, Source, Timestamp,
};
use fednode_engine::{Aggregator, Head, Input, Node, Note, Output, Phase, State};

const NOW: Timestamp = Timestamp(1_000);
const ME: u8 = 1;

fn agreed() -> FederationSpec {
    let mut spec = averaging(3);
    spec.rounds = 3;
    spec
}

fn extended() -> FederationSpec {
    let extension = Extension {
        federation: agreed().id(),
        after: Round(3),
        rounds: 2,
        settings: BTreeMap::new(),
    };
    agreed().extended(&extension).unwrap()
}

/// A node that was done with round 3, started anew.
fn node(spec: FederationSpec, phase: Phase) -> Node {
    node_of(spec, phase, 3)
}

fn node_of(spec: FederationSpec, phase: Phase, round: u32) -> Node {
    let initial = blob("what everybody starts from");
    let state = State {
        phase,
        round: Round(round),
        head: Head {
            round: Round(3),
            mean: Some(blob("the mean of round 3")),
            ..Head::initial(None)
        },
        lineage: blob("the mean of round 3").id,
        ..State::new(Some(initial), initial.id)
    };
    Node::restore(Arc::new(spec), id(ME), Some(initial), state)
}

fn trained_round(outputs: &[Output]) -> Option<Round> {
    outputs.iter().find_map(|output| match output {
        Output::Train { round, .. } => Some(*round),
        _ => None,
    })
}

fn peer(n: u8) -> Input {
    Input::PeerUp {
        node: id(n),
        role: Role::Node,
    }
}

#[test]
fn a_node_that_was_done_trains_the_round_after_the_last_once_the_others_are_here() {
    // A node that was left behind by the others has nothing to do with the rounds before.
    for (phase, round) in [
        (Phase::Serving, 3),
        (Phase::Pooling, 3),
        (Phase::Exchanging, 3),
        (Phase::Training, 2),
    ] {
        let mut node = node_of(extended(), phase, round);
        assert_eq!(node.phase(), Phase::Joining);
        for input in [Input::Start, Input::Synced, peer(2)] {
            let outputs = node.handle(NOW, input);
            assert_eq!(trained_round(&outputs), None, "two of three are here");
        }
        let waits = node.status(NOW).waiting;
        assert!(waits[0].what.contains("to begin round 4"), "{waits:?}");
        let restarted = node.checkpoint();
        assert_eq!(trained_round(&node.handle(NOW, peer(3))), Some(Round(4)));
        let again = Node::restore(Arc::new(extended()), id(ME), None, restarted);
        assert_eq!((again.phase(), again.round()), (Phase::Joining, Round(3)));
    }
}

/// Who said that it leaves is not waited for after the end, also by a node that was started anew since.
#[test]
fn nobody_waits_for_who_has_left() {
    let mut before = node(agreed(), Phase::Serving);
    let farewell = AdvertId::from_bytes([3; 32]);
    let leaves = heard(&agreed(), farewell, (3, 1), (3, NOW), Body::Leave);
    for input in [Input::Start, Input::Synced, peer(2), peer(3), leaves] {
        before.handle(NOW, input);
    }
    let mut after = Node::restore(Arc::new(extended()), id(ME), None, before.checkpoint());
    for input in [Input::Start, Input::Synced] {
        assert_eq!(trained_round(&after.handle(NOW, input)), None);
    }
    assert_eq!(trained_round(&after.handle(NOW, peer(2))), Some(Round(4)));
}

/// Plays the first added round of nodes 1 and 2, where node 3 is not back yet. Returns how long after it began `me` closes it.
fn closes_after(me: u8, has_left: bool) -> Option<u64> {
    let closing = ClosingId::from_bytes([7; 32]);
    let mean = blob("the mean of round 3");
    let head = Head {
        round: Round(3),
        mean: Some(mean),
        closing: Some(closing),
        counted: [1, 2, 3].map(id).into(),
        ..Head::initial(None)
    };
    let state = State {
        phase: Phase::Serving,
        round: Round(3),
        head,
        lineage: mean.id,
        ..State::new(Some(mean), mean.id)
    };
    let spec = extended();
    let mut node = Node::restore(Arc::new(spec.clone()), id(me), Some(mean), state);
    let (other, lost) = (3 - me, Input::PeerDown { node: id(3) });
    let farewell = AdvertId::from_bytes([3; 32]);
    let leaves = heard(&spec, farewell, (3, 1), (3, NOW), Body::Leave);
    let met = [Input::Start, Input::Synced, peer(other), peer(3)];
    let gone = if has_left { leaves } else { lost };
    let begun = met.into_iter().chain([gone]);
    assert!(begun.fold(false, |begun, input| {
        begun | trained_round(&node.handle(NOW, input)).is_some()
    }));
    let expert = |by: u8| ExpertOffer {
        samples_routed: 10,
        blob: blob(&format!("expert of {by}")),
    };
    let update = |by: u8| {
        let local = Local {
            shared: Some(blob(&format!("part of {by}"))),
            experts: vec![expert(by)],
            proxies: proxies(),
            follows: Some(closing),
            ..Local::new(mean.id, 10)
        };
        let name = AdvertId::from_bytes([10 + by; 32]);
        heard(&spec, name, (by, 2), (4, NOW), Body::Local(local))
    };
    let own = Input::Trained(trained(
        &node,
        Some(blob(&format!("part of {me}"))),
        expert(me),
    ));
    let mut timers = Vec::new();
    let mut acts = |at: Timestamp, input: Input, node: &mut Node| {
        let outputs = node.handle(at, input);
        for output in &outputs {
            if let Output::SetTimer { timer, at } = output {
                timers.push((*at, *timer));
            }
        }
        let acts = |output: &Output| matches!(output, Output::Note(Note::Acting(Round(4))));
        (outputs.iter().any(acts), std::mem::take(&mut timers))
    };
    let mut due = Vec::new();
    for input in [own, update(me), update(other)] {
        let (is_acting, more) = acts(NOW, input, &mut node);
        due.extend(more);
        if is_acting {
            return Some(0);
        }
    }
    for _ in 0..50 {
        due.sort();
        let (at, timer) = (!due.is_empty()).then(|| due.remove(0))?;
        let (is_acting, more) = acts(at, Input::Timer(timer), &mut node);
        due.extend(more);
        if is_acting {
            return Some(at.0 - NOW.0);
        }
    }
    None
}

/// A member may hear of added rounds a moment later than the others, and its connections are made anew.
#[test]
fn the_first_added_round_waits_for_whom_the_last_closing_counts() {
    let grace = agreed().round.grace().as_millis() as u64;
    let waits = [1, 2].map(|me| closes_after(me, false).unwrap());
    assert!(waits.iter().all(|wait| *wait >= grace), "{waits:?}");
    assert!(waits.iter().any(|wait| *wait <= 2 * grace), "{waits:?}");
    let waits = [1, 2].map(|me| closes_after(me, true));
    assert!(waits.contains(&Some(0)), "{waits:?}");
}

/// A plan in which node 1 mixes its own expert with those of 2 and 3.
fn planned() -> State {
    let source = |owner: u8| Source {
        expert: ExpertId {
            owner: id(owner),
            slot: Slot(0),
        },
        similarity: 1.0,
        weight: 0.25,
    };
    let mean = blob("the mean of round 3");
    let rows = vec![PlanRow {
        slot: Slot(0),
        sources: [1, 2, 3].map(source).into(),
    }];
    State {
        plan: Some(AggregationPlan {
            round: Round(1),
            lineage: mean.id,
            rows,
        }),
        ..State::new(Some(mean), mean.id)
    }
}

fn owners(node: &Node) -> Vec<NodeId> {
    let sources = &node.plan().unwrap().rows[0].sources;
    sources.iter().map(|source| source.expert.owner).collect()
}

#[test]
fn a_node_with_another_key_is_the_one_that_its_plan_means() {
    let spec = Arc::new(agreed());
    let before = Node::restore(spec.clone(), id(1), None, planned());
    let again = Node::restore(spec, id(9), None, before.checkpoint());
    assert_eq!(owners(&again), [9, 2, 3].map(id));
}

#[test]
fn what_a_revoked_node_has_sent_is_mixed_no_more() {
    let mut node = Node::restore(Arc::new(agreed()), id(1), None, planned());
    for input in [Input::Start, Input::Revoked { node: id(2) }] {
        node.handle(NOW, input);
    }
    assert_eq!(owners(&node), [1, 3].map(id));
}

#[test]
fn without_more_rounds_it_stays_done() {
    let mut node = node(agreed(), Phase::Serving);
    for input in [Input::Start, Input::Synced, peer(2), peer(3)] {
        assert_eq!(trained_round(&node.handle(NOW, input)), None);
    }
    assert_eq!(node.phase(), Phase::Serving);
}

#[test]
fn an_aggregator_closes_the_rounds_that_were_added() {
    let head = Head {
        round: Round(3),
        ..Head::initial(None)
    };
    let phase = |spec| Aggregator::restore(Arc::new(spec), id(9), head.clone()).phase();
    assert_eq!(phase(agreed()), Phase::Serving);
    assert_eq!(phase(extended()), Phase::Exchanging);
}
