//! Two closings of one round, and an aggregator that must end with the nodes on one of them.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{averaging, blob, heard, id};
use fednode_core::{
    AdvertId, Body, ClosingId, FederationSpec, Global, Lineage, Local, Member, Role, Round,
    Timestamp,
};
use fednode_engine::{Aggregator, AverageReport, Input, Output};

const ME: u8 = 7;
const NODES: [u8; 4] = [1, 2, 3, 4];

/// What a node trained in a round, from a mean that a closing named.
#[derive(Clone, Copy)]
struct Trained {
    node: u8,
    round: u32,
    from: Option<ClosingId>,
    parent: Lineage,
}

impl Trained {
    fn named(self, what: &str) -> String {
        let Self {
            node, round, from, ..
        } = self;
        format!("{what} of {node} in {round} after {from:?}")
    }

    fn id(self) -> AdvertId {
        AdvertId::of(self.named("update").as_bytes())
    }

    fn body(self) -> Body {
        let local = Local {
            shared: Some(blob(&self.named("part"))),
            follows: self.from,
            ..Local::new(self.parent, 10)
        };
        Body::Local(local)
    }

    fn member(self) -> Member {
        Member {
            node: id(self.node),
            shared: blob(&self.named("part")),
            weight: 1.0,
            advert: self.id(),
        }
    }
}

/// An aggregator whose fetches and means are there at once.
struct Play {
    spec: Arc<FederationSpec>,
    machine: Aggregator,
    now: Timestamp,
    said: u64,
    /// Closings that it published.
    closed: Vec<(Round, Arc<Global>)>,
    /// What its timers are set to.
    timers: Vec<(Timestamp, Input)>,
}

impl Play {
    fn new() -> Self {
        let spec = Arc::new(averaging(4));
        let mut play = Self {
            machine: Aggregator::new(Arc::clone(&spec), id(ME)),
            spec,
            now: Timestamp(1_000),
            said: 0,
            closed: Vec::new(),
            timers: Vec::new(),
        };
        play.input(Input::Start);
        play.input(Input::Synced);
        for n in NODES {
            let (node, role) = (id(n), Role::Node);
            play.input(Input::PeerUp { node, role });
        }
        play
    }

    fn input(&mut self, input: Input) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            for output in self.machine.handle(self.now, input) {
                match output {
                    Output::Fetch(fetch) => inputs.push(Input::Fetched(fetch.blob.id)),
                    Output::Average(order) => {
                        let names = order.members.iter().map(|member| member.shared.id);
                        let mean = names.fold(String::new(), |text, name| format!("{text}{name}"));
                        inputs.push(Input::Averaged(AverageReport {
                            mean: Some(blob(&mean)),
                            members: order.members.clone(),
                            ..AverageReport::of(&order)
                        }));
                    }
                    Output::Publish { round, body } => {
                        if let Body::Global(global) = &body {
                            self.closed.push((round, global.clone()));
                        }
                        inputs.push(self.advert(ME, round.0, &body));
                    }
                    Output::SetTimer { timer, at } => self.timers.push((at, Input::Timer(timer))),
                    Output::Ban { node, reason } => panic!("bans {node}: {reason}"),
                    _ => {}
                }
            }
        }
    }

    fn advert(&mut self, author: u8, round: u32, body: &Body) -> Input {
        self.said += 1;
        let name = format!("{author} says {} of {round}", self.said);
        self.named(AdvertId::of(name.as_bytes()), author, round, body)
    }

    fn named(&self, id: AdvertId, author: u8, round: u32, body: &Body) -> Input {
        let (by, about) = ((author, self.said), (round, self.now));
        heard(&self.spec, id, by, about, body.clone())
    }

    fn hear(&mut self, trained: Trained) {
        self.said += 1;
        let Trained { node, round, .. } = trained;
        let input = self.named(trained.id(), node, round, &trained.body());
        self.input(input);
    }

    /// Lets time pass; timers go off.
    fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(next) = (0..self.timers.len())
            .filter(|place| self.timers[*place].0 <= end)
            .min_by_key(|place| self.timers[*place].0)
        {
            let (at, input) = self.timers.swap_remove(next);
            self.now = at.max(self.now);
            self.input(input);
        }
        self.now = end;
    }
}

/// A fedboot comes back while nodes close a round without it. It closes that round, too, and nodes are on both chains. It
/// goes over to theirs in the moment in which they come over to its own.
#[test]
fn an_aggregator_comes_back_to_its_own_closing_when_all_nodes_are_there() {
    let mut play = Play::new();
    let initial = blob("initial").id;
    let first = NODES.map(|node| Trained {
        node,
        round: 1,
        from: None,
        parent: initial,
    });
    first.into_iter().for_each(|trained| play.hear(trained));
    let [(round, own)] = play.closed.clone().try_into().expect("it closes round 1");
    assert_eq!((round, own.members.len()), (Round(1), 4));
    // Node 1 closed it at the same moment with the first three.
    let members: Vec<Member> = first[..3].iter().map(|trained| trained.member()).collect();
    let names = members.iter().map(|member| member.shared.id);
    let mean = blob(&names.fold(String::new(), |text, name| format!("{text}{name}")));
    let theirs = Global {
        members,
        mean,
        parent: initial,
        previous: None,
        unmasked: Vec::new(),
        slices: Vec::new(),
    };
    let announced = play.advert(1, 1, &Body::from(theirs.clone()));
    play.input(announced);
    let after = |closing: &Global| {
        let (from, parent) = (Some(closing.id(Round(1))), closing.mean.id);
        move |node| Trained {
            node,
            round: 2,
            from,
            parent,
        }
    };
    let (on_theirs, on_own) = (after(&theirs), after(&own));
    // Two stand behind node 1's closing and one behind the other: after the grace time that is time enough.
    play.hear(on_theirs(1));
    play.hear(on_theirs(2));
    play.wait(play.spec.round.grace() * 2);
    play.hear(on_own(3));
    assert_eq!(
        play.machine.head().closing,
        Some(theirs.id(Round(1))),
        "two votes against one"
    );
    // The last vote makes it two against two. The name decides, for the nodes as well: they come over.
    for node in [4, 1, 2] {
        play.hear(on_own(node));
    }
    play.wait(play.spec.round.grace());
    assert_eq!(play.closed.len(), 2, "round 2 is closed");
    let (round, second) = &play.closed[1];
    assert_eq!(*round, Round(2));
    assert_eq!(second.previous, Some(own.id(Round(1))));
    assert_eq!(second.members.len(), 4);
}
