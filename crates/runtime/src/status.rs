//! What the control API says: the words shared by the server here and its clients.
//!
//! Everything is plain data for JSON. Fields are only ever added, so that a newer client reads an older daemon.

use fednode_core::work::{Evaluations, Progress};
use fednode_core::{
    Composition, ExpertId, FederationId, NodeId, PoolOutcome, Role, Round, Slot, Timestamp,
};
pub use fednode_engine::book::{Ahead, Bytes, RoundRecord, Traffic, Waited};
use fednode_engine::{Cause, Phase};
pub use fednode_net::Route;
use serde::{Deserialize, Serialize};

use crate::trainer::TrainerCard;

/// Answer of `GET /v1/status`: what this process is doing, and what it waits for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Who it is.
    pub node_id: NodeId,
    /// What it is to the federation.
    pub role: Role,
    /// The federation's id.
    pub federation: FederationId,
    /// The federation's name.
    pub name: String,
    /// The federated algorithm.
    pub algorithm: String,
    /// What the scores of rounds are called: the measure that `metric` names, else `accuracy`, or `R²` of a number.
    #[serde(default = "accuracy")]
    pub score: String,
    /// Where in a node's life it is.
    pub phase: Phase,
    /// The round that is being worked on.
    pub round: Round,
    /// Rounds in all.
    pub rounds: u32,
    /// The newest closed round.
    pub closed_round: Round,
    /// What it waits for, most important first.
    pub waiting_for: Vec<WaitingFor>,
    /// Where the local update is, while one runs.
    pub training: Option<Progress>,
    /// The newest complete record.
    pub last_record: Option<RoundRecord>,
    /// Peers that said a good hello, or were heard of through others.
    pub peers: usize,
    /// Bytes since the start of the process, or since its last end that more rounds followed.
    pub traffic: Traffic,
    /// Model, data and device; absent for an aggregator.
    pub trainer: Option<TrainerCard>,
    /// Seconds since the start of the process.
    pub uptime_seconds: f64,
    /// Version of the software.
    pub version: String,
    /// Addresses to give to others, each with `/p2p/<node id>`.
    pub listeners: Vec<String>,
    /// The last lines of news, oldest first.
    pub notes: Vec<Remark>,
    /// Whether all rounds are done.
    pub finished: bool,
    /// How good the model is after the stage that follows the last round, if the algorithm has one.
    pub finished_evaluation: Option<Evaluations>,
    /// What became of the pool of private modules, if there was one.
    #[serde(default)]
    pub pool: Option<PoolOutcome>,
    /// Resident bytes.
    pub rss_bytes: Option<u64>,
    /// Most resident bytes so far.
    pub peak_rss_bytes: Option<u64>,
    /// Bytes of blobs held.
    pub blob_bytes: u64,
    /// Free bytes on the state folder's disk.
    pub disk_free_bytes: Option<u64>,
    /// The state folder.
    pub state_folder: String,
}

impl Status {
    /// Returns what the model that is served is made of, where it is more than the algorithm's.
    pub fn composition(&self) -> Option<&Composition> {
        let of_record = || self.last_record.as_ref()?.composition.as_ref();
        let finished = self.finished_evaluation.as_ref();
        finished.map_or_else(of_record, |finished| finished.composition.as_ref())
    }
}

/// Returns what programs that say no name have as scores.
fn accuracy() -> String {
    "accuracy".to_owned()
}

/// One thing that is waited for.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct WaitingFor {
    /// What.
    pub what: String,
    /// From whom; empty if it is not a peer's to give.
    pub whom: Vec<NodeId>,
    /// How long already.
    pub seconds: f64,
    /// Why.
    #[serde(default)]
    pub cause: Option<Cause>,
    /// What is known of those who owe it, as far as it explains the wait.
    #[serde(default)]
    pub known: Vec<KnownOf>,
    /// How long at most from now, where the wait ends by itself.
    #[serde(default)]
    pub ends_in_seconds: Option<f64>,
    /// What somebody can do about it, once it takes long.
    #[serde(default)]
    pub remedy: Option<String>,
}

/// What is known of a node that something is waited for from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownOf {
    /// Who.
    pub node: NodeId,
    /// What.
    pub text: String,
}

impl WaitingFor {
    /// Waits for something that is no peer's to give.
    pub fn of_nobody(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            ..Self::default()
        }
    }

    /// Says what is waited for and from whom, and names at most `most` nodes.
    pub fn subject(&self, most: usize) -> String {
        let mut names: Vec<String> = self
            .whom
            .iter()
            .take(most)
            .map(|node| self.name_of(*node))
            .collect();
        if self.whom.len() > most {
            names.push(format!("{} more", self.whom.len() - most));
        }
        if names.is_empty() {
            return self.what.clone();
        }
        format!("{} from {}", self.what, names.join(", "))
    }

    fn name_of(&self, node: NodeId) -> String {
        let known = self.known.iter().find(|known| known.node == node);
        let known = known.map(|known| format!(" ({})", known.text));
        node.short() + &known.unwrap_or_default()
    }

    /// Says when it ends by itself and what can be done about it, if there is anything to say.
    pub fn outlook(&self) -> Option<String> {
        let ends = self.ends_in_seconds.filter(|_| self.remedy.is_some());
        let ends = ends.map(|left| format!("it goes on without in {left:.0} s at most"));
        let parts: Vec<String> = ends.into_iter().chain(self.remedy.clone()).collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

/// One line of news.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remark {
    /// When.
    pub at: Timestamp,
    /// What.
    pub text: String,
    /// Whether it is something to see to.
    #[serde(default)]
    pub is_trouble: bool,
}

/// Sorts the network's counters by purpose.
pub(crate) fn traffic(snapshot: &fednode_net::TrafficSnapshot) -> Traffic {
    let sent = Bytes {
        aggregator: snapshot.blob_sent_to_aggregators,
        peer_to_peer: snapshot.blob_sent_to_nodes,
        gossip: snapshot.gossip_sent,
        control: snapshot.control_sent,
        wire: snapshot.wire_sent,
    };
    let received = Bytes {
        aggregator: snapshot.blob_received_from_aggregators,
        peer_to_peer: snapshot.blob_received_from_nodes,
        gossip: snapshot.gossip_received,
        control: snapshot.control_received,
        wire: snapshot.wire_received,
    };
    Traffic { sent, received }
}

/// Answer of `GET /v1/experts`: the plan in force and whose experts are held.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Experts {
    /// The round whose proxies the plan was computed from; absent while every expert stays as it is.
    pub planned_in: Option<Round>,
    /// One row per own expert.
    pub rows: Vec<ExpertRow>,
    /// What the model that is served is made of, where it is more than the algorithm's.
    #[serde(default)]
    pub composition: Option<Composition>,
}

/// What is mixed into one own expert.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExpertRow {
    /// The own expert.
    pub slot: Slot,
    /// Its sources, best first.
    pub sources: Vec<ExpertSource>,
}

/// One source of a row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExpertSource {
    /// The expert.
    pub expert: ExpertId,
    /// Whether it is this node's own.
    pub own: bool,
    /// Similarity of its proxy with the row's.
    pub similarity: f64,
    /// Its share of the mix.
    pub weight: f64,
    /// The round of the version that is held; absent if none is.
    pub held_from: Option<Round>,
}

/// One member, in the answer of `GET /v1/peers`: a peer that is connected, or somebody known who is not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Peer {
    /// Who.
    pub node_id: NodeId,
    /// What it is; nothing until it was connected, or others have told.
    #[serde(default)]
    pub role: Option<Role>,
    /// How it is reached.
    #[serde(default)]
    pub route: Route,
    /// Through which member, if only through a relay.
    #[serde(default)]
    pub relay: Option<NodeId>,
    /// Why there is no connection, if there is none.
    #[serde(default)]
    pub why: Option<String>,
    /// Addresses of its connections.
    pub addresses: Vec<String>,
    /// How long it has been connected; 0 without a connection.
    pub connected_seconds: f64,
    /// Round trip of the latest ping.
    pub rtt_milliseconds: Option<f64>,
    /// Name and version of its software.
    pub software: String,
    /// Blobs that it said it holds.
    pub holds: usize,
    /// Strikes against it, faded; 0 is a clean record.
    pub score: f64,
}

impl Peer {
    /// Returns how long it has been connected, if there is a connection.
    pub fn connected(&self) -> Option<f64> {
        let is_connected = !matches!(self.route, Route::Others | Route::None);
        is_connected.then_some(self.connected_seconds)
    }

    /// Says in words how it is reached.
    pub fn reached(&self) -> String {
        let why = self.why.as_deref().unwrap_or("no connection");
        match (self.route, self.relay) {
            (Route::Tcp, _) => "directly, by tcp".to_owned(),
            (Route::Quic, _) => "directly, by quic".to_owned(),
            (Route::Relay, Some(relay)) => format!("relayed by {}", relay.short()),
            (Route::Relay, None) => "relayed".to_owned(),
            (Route::Others, _) => format!("through others: {why}"),
            (Route::None, _) => format!("not at all: {why}"),
        }
    }
}

/// Says in words how many members are reached in which way.
pub fn ways(members: &[Peer]) -> String {
    let count = |routes: &[Route]| {
        let those = members.iter().filter(|peer| routes.contains(&peer.route));
        those.count()
    };
    let ways = [
        (count(&[Route::Tcp, Route::Quic]), "directly"),
        (count(&[Route::Relay]), "relayed"),
        (count(&[Route::Others]), "through others"),
        (count(&[Route::None]), "not at all"),
    ];
    let ways = ways.iter().filter(|(n, _)| *n > 0);
    let ways: Vec<String> = ways.map(|(n, way)| format!("{n} {way}")).collect();
    match ways.is_empty() {
        true => "nobody".to_owned(),
        false => ways.join(", "),
    }
}

/// Contents of `control.json`: where the control API is and how to get in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlFile {
    /// Address of the server.
    pub address: std::net::SocketAddr,
    /// The bearer token.
    pub token: String,
    /// The process.
    pub pid: u32,
}

/// An error of the control API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// What is wrong.
    pub error: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(route: Route, relay: Option<NodeId>, why: Option<&str>) -> Peer {
        Peer {
            node_id: NodeId::from_bytes([1; 32]),
            role: Some(Role::Node),
            route,
            relay,
            why: why.map(str::to_owned),
            addresses: Vec::new(),
            connected_seconds: 0.0,
            rtt_milliseconds: None,
            software: String::new(),
            holds: 0,
            score: 0.0,
        }
    }

    #[test]
    fn every_way_to_a_member_has_its_words() {
        let relay = NodeId::from_bytes([2; 32]);
        let why = Some("no answer in time");
        let members = [
            peer(Route::Tcp, None, None),
            peer(Route::Quic, None, None),
            peer(Route::Relay, Some(relay), None),
            peer(Route::Others, None, why),
            peer(Route::None, None, why),
        ];
        let words: Vec<String> = members.iter().map(Peer::reached).collect();
        assert_eq!(words[0], "directly, by tcp");
        assert_eq!(words[1], "directly, by quic");
        assert_eq!(words[2], format!("relayed by {}", relay.short()));
        assert_eq!(words[3], "through others: no answer in time");
        assert_eq!(words[4], "not at all: no answer in time");
        let connected = members.iter().filter(|one| one.connected().is_some());
        assert_eq!(connected.count(), 3);
        let all = "2 directly, 1 relayed, 1 through others, 1 not at all";
        assert_eq!(ways(&members), all);
        assert_eq!(ways(&[]), "nobody");
    }
}
