//! For whose closing a member averages slices.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::{averaging, blob, heard, id, trained};
use fednode_core::masked::Proposal;
use fednode_core::{
    AdvertId, BlobRef, Body, ExpertOffer, FederationSpec, Local, Member, Role, Round, Timestamp,
};
use fednode_engine::{Input, Node, Output};

const NOW: Timestamp = Timestamp(1_000);
const ME: u8 = 2;

fn part(author: u8) -> BlobRef {
    BlobRef {
        size: 8 << 20,
        ..blob(&format!("part of {author}"))
    }
}

/// What everybody starts from is as large as a part.
fn initial() -> BlobRef {
    BlobRef {
        size: 8 << 20,
        ..blob("initial")
    }
}

fn update_id(author: u8) -> AdvertId {
    AdvertId::of(&[author])
}

fn hear(
    spec: &FederationSpec,
    node: &mut Node,
    (author, counter): (u8, u64),
    body: Body,
) -> Vec<Output> {
    let name = match body {
        Body::Local(_) => update_id(author),
        _ => AdvertId::of(&[author, counter as u8]),
    };
    node.handle(NOW, heard(spec, name, (author, counter), (1, NOW), body))
}

/// A member that has heard everybody's update of the first round.
fn member(spec: &Arc<FederationSpec>, others: &[u8]) -> Node {
    let mut node = Node::new(Arc::clone(spec), id(ME), Some(initial()));
    node.handle(NOW, Input::Start);
    for n in others {
        let (peer, role) = (id(*n), Role::Node);
        node.handle(NOW, Input::PeerUp { node: peer, role });
    }
    node.handle(NOW, Input::Synced);
    let expert = ExpertOffer {
        blob: blob("expert"),
        samples_routed: 1,
    };
    let report = trained(&node, Some(part(ME)), expert);
    node.handle(NOW, Input::Trained(report));
    for author in [ME].iter().chain(others) {
        let local = Local {
            shared: Some(part(*author)),
            ..Local::new(initial().id, 10)
        };
        hear(spec, &mut node, (*author, 1), Body::Local(local));
    }
    node
}

fn proposal(members: &[u8]) -> Proposal {
    let member = |n: &u8| Member {
        node: id(*n),
        shared: part(*n),
        weight: 1.0,
        advert: update_id(*n),
    };
    Proposal {
        members: members.iter().map(member).collect(),
        parent: initial().id,
        previous: None,
    }
}

/// Tells whether slices of a proposal are averaged.
fn averages(outputs: &[Output], proposal: &Proposal) -> bool {
    let is_one = |output: &Output| match output {
        Output::Slice(order) => order.of == proposal.id(Round(1)),
        _ => false,
    };
    outputs.iter().any(is_one)
}

#[test]
fn one_member_takes_up_no_room_for_the_proposals_of_others() {
    let mut spec = averaging(5);
    spec.round.slices = 4;
    let spec = Arc::new(spec);
    let mut node = member(&spec, &[1, 3, 4, 5]);
    let early = [[2, 3, 4], [1, 2, 3], [2, 3, 5]].map(|it| proposal(&it));
    for (counter, early) in (2..).zip(&early) {
        let said = Body::Propose(early.clone());
        let outputs = hear(&spec, &mut node, (3, counter), said);
        assert_eq!(averages(&outputs, early), counter == 2, "its first one");
    }
    let whole = proposal(&[1, 2, 3, 4, 5]);
    let outputs = hear(&spec, &mut node, (1, 2), Body::Propose(whole.clone()));
    assert!(averages(&outputs, &whole));
}
