//! Whose private module is in the pool.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::{blob, heard, id, trained};
use fednode_core::spec::Preset;
use fednode_core::{
    AdvertId, Body, ExpertOffer, FederationSpec, Local, NodeId, PoolOffer, Role, Round, Timestamp,
    Withdraw,
};
use fednode_engine::{Input, MergeReport, ModuleReport, Node, Output};

const NOW: Timestamp = Timestamp(1_000);
const ME: u8 = 1;

/// A node after the only round of a federation in which nothing else is exchanged.
struct Play {
    spec: Arc<FederationSpec>,
    node: Node,
    said: u64,
}

impl Play {
    fn new(others: &[u8]) -> Self {
        let mut spec = FederationSpec {
            nodes: 1 + others.len() as u32,
            rounds: 1,
            ..FederationSpec::default()
        };
        spec.pool.preset = Some(Preset::Fixed);
        let spec = Arc::new(spec);
        let node = Node::new(Arc::clone(&spec), id(ME), None);
        let mut play = Self {
            spec,
            node,
            said: 0,
        };
        play.handle(Input::Start);
        for n in others {
            let (node, role) = (id(*n), Role::Node);
            play.handle(Input::PeerUp { node, role });
        }
        play.handle(Input::Synced);
        let expert = ExpertOffer {
            blob: blob("expert"),
            samples_routed: 1,
        };
        let report = trained(&play.node, None, expert);
        play.handle(Input::Trained(report));
        let lineage = play.node.lineage();
        for author in [ME].iter().chain(others) {
            play.hear(*author, Body::Local(Local::new(lineage, 10)));
        }
        play.handle(Input::Merged(MergeReport {
            round: Round(1),
            ..MergeReport::default()
        }));
        play.handle(Input::Module(Some(ModuleReport {
            kind: "head".to_owned(),
            blob: Some(blob("own module")),
            score: 0.5,
        })));
        play
    }

    fn handle(&mut self, input: Input) -> Vec<Output> {
        self.node.handle(NOW, input)
    }

    fn hear(&mut self, author: u8, body: Body) -> Vec<Output> {
        self.said += 1;
        let name = AdvertId::of(&self.said.to_be_bytes());
        let said = heard(&self.spec, name, (author, self.said), (1, NOW), body);
        self.handle(said)
    }

    fn offer(&mut self, author: u8) -> Vec<Output> {
        let offer = PoolOffer {
            kind: "head".to_owned(),
            lineage: self.node.lineage(),
            blob: Some(blob(&module(author))),
            score: 0.5,
        };
        self.hear(author, Body::Pool(offer))
    }

    /// All modules come that were asked for. Returns whose are in the pool.
    fn fetch(&mut self, authors: &[u8]) -> Vec<NodeId> {
        let mut outputs = Vec::new();
        for author in authors {
            outputs.extend(self.handle(Input::Fetched(blob(&module(*author)).id)));
        }
        let pool = outputs.iter().find_map(|output| match output {
            Output::Pool(order) => Some(order),
            _ => None,
        });
        pool.unwrap()
            .members
            .iter()
            .map(|(node, _)| *node)
            .collect()
    }
}

fn module(author: u8) -> String {
    format!("module of {author}")
}

#[test]
fn a_module_that_is_taken_back_on_its_way_is_not_in_the_pool() {
    let mut play = Play::new(&[2, 3]);
    for author in [2, 3] {
        play.offer(author);
    }
    let blobs = vec![blob(&module(3)).id];
    play.hear(3, Body::Withdraw(Withdraw { blobs }));
    assert_eq!(play.fetch(&[3, 2]), [id(2)]);
}

#[test]
fn the_module_of_a_node_that_is_shut_out_is_not_in_the_pool() {
    let mut play = Play::new(&[2, 3, 4]);
    for author in [2, 3, 4] {
        play.offer(author);
    }
    play.handle(Input::Fetched(blob(&module(3)).id));
    play.handle(Input::Equivocated { node: id(3) });
    play.handle(Input::Equivocated { node: id(4) });
    assert_eq!(play.fetch(&[2]), [id(2)]);
}
