//! Which closings a node gives up, and which it does not.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::{averaging, blob, heard, id, trained};
use fednode_core::{
    AdvertId, BlobRef, Body, ExpertOffer, FederationSpec, Global, Local, Member, Role, Round,
    Timestamp,
};
use fednode_engine::{
    AverageOrder, AverageReport, Fetch, Input, MergeReport, Node, Output, Purpose,
};

const BEGIN: Timestamp = Timestamp(1_000);
const ME: u8 = 2;
const HONEST: u8 = 1;
const LIAR: u8 = 3;

/// A node that has trained in the first round, and heard the updates of two others.
struct Play {
    spec: Arc<FederationSpec>,
    node: Node,
    now: Timestamp,
}

fn part(author: u8) -> BlobRef {
    blob(&format!("part of {author}"))
}

fn update_id(author: u8) -> AdvertId {
    AdvertId::of(&[author])
}

impl Play {
    fn new() -> Self {
        let spec = Arc::new(averaging(3));
        let node = Node::new(Arc::clone(&spec), id(ME), Some(blob("initial")));
        let now = BEGIN;
        let mut play = Self { spec, node, now };
        play.handle(Input::Start);
        for n in [HONEST, LIAR] {
            let (node, role) = (id(n), Role::Node);
            play.handle(Input::PeerUp { node, role });
        }
        play.handle(Input::Synced);
        let expert = ExpertOffer {
            blob: blob("expert"),
            samples_routed: 1,
        };
        let report = trained(&play.node, Some(part(ME)), expert);
        play.handle(Input::Trained(report));
        for author in [HONEST, ME, LIAR] {
            let local = Local {
                shared: Some(part(author)),
                ..Local::new(blob("initial").id, 10)
            };
            play.hear(author, update_id(author), Body::Local(local));
        }
        // By then everybody has had its turn to close the round.
        play.now = BEGIN + play.spec.round.grace() * 6;
        play
    }

    fn handle(&mut self, input: Input) -> Vec<Output> {
        self.node.handle(self.now, input)
    }

    fn hear(&mut self, author: u8, name: AdvertId, body: Body) -> Vec<Output> {
        let said = heard(&self.spec, name, (author, 1), (1, self.now), body);
        self.handle(said)
    }

    /// Hears that an author closed the round with these members. Returns which blobs are asked for.
    fn hear_closing(&mut self, author: u8, members: &[u8]) -> Vec<BlobRef> {
        let member = |n: &u8| Member {
            node: id(*n),
            shared: part(*n),
            weight: 1.0,
            advert: update_id(*n),
        };
        let global = Global {
            members: members.iter().map(member).collect(),
            mean: blob("mean"),
            parent: blob("initial").id,
            previous: None,
            unmasked: Vec::new(),
            slices: Vec::new(),
        };
        let name = AdvertId::of(&[author, 99]);
        fetched(&self.hear(author, name, Body::from(global)))
    }

    /// The parts of a closing come, and their mean is what was said.
    fn verify(&mut self, parts: &[BlobRef]) -> Vec<Output> {
        let arrivals = parts.iter().map(|part| Input::Fetched(part.id));
        let outputs: Vec<Output> = arrivals.flat_map(|it| self.handle(it)).collect();
        let order = outputs.iter().find_map(|output| match output {
            Output::Average(order) if order.purpose != Purpose::Close => Some(order),
            _ => None,
        });
        self.handle(Input::Averaged(answer(order.unwrap())))
    }
}

fn answer(order: &AverageOrder) -> AverageReport {
    AverageReport {
        mean: Some(blob("mean")),
        members: order.members.clone(),
        ..AverageReport::of(order)
    }
}

fn fetched(outputs: &[Output]) -> Vec<BlobRef> {
    let blob = |output: &Output| match output {
        Output::Fetch(Fetch { blob, .. }) => Some(*blob),
        _ => None,
    };
    outputs.iter().filter_map(blob).collect()
}

/// A liar names the mean of the others, and counts beside them a part that nobody can get.
#[test]
fn the_mean_of_a_closing_that_was_given_up_is_followed_in_another_one() {
    let mut play = Play::new();
    let wanted = play.hear_closing(LIAR, &[HONEST, ME, LIAR]);
    assert!(wanted.contains(&part(LIAR)), "{wanted:?}");
    play.handle(Input::FetchFailed {
        blob: part(LIAR),
        kind: fednode_engine::FetchKind::Shared,
    });
    let wanted = play.hear_closing(HONEST, &[HONEST, ME]);
    assert_eq!(wanted, [blob("mean"), part(HONEST), part(ME)]);
}

#[test]
fn a_mean_that_the_trainer_takes_over_is_followed_though_its_author_is_shut_out() {
    let mut play = Play::new();
    let wanted = play.hear_closing(HONEST, &[HONEST, ME, LIAR]);
    let outputs = play.verify(&wanted);
    let merges = |output: &Output| matches!(output, Output::Merge(_));
    assert!(outputs.iter().any(merges));
    // It told somebody else another thing, which says nothing of this mean.
    play.handle(Input::Equivocated { node: id(HONEST) });
    let merged = MergeReport {
        round: Round(1),
        ..MergeReport::default()
    };
    play.handle(Input::Merged(merged));
    assert_eq!(play.node.head().mean, Some(blob("mean")));
    assert_eq!(play.node.lineage(), blob("mean").id);
}
