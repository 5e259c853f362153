//! The commands of the application.

use std::time::Instant;

use fednode_core::NodeId;

use super::Task;
use super::connections::Hello;
use crate::handle::{Command, Direction, PeerInfo};

impl Task {
    pub(super) fn on_command(&mut self, command: Command) {
        match command {
            Command::Publish(round, body, reply) => {
                let said = self.publish(round, *body);
                // The caller may have stopped waiting. The advert is published all the same.
                _ = reply.send(said);
            }
            Command::Dial(address) => self.add_target(address),
            Command::Peers(reply) => _ = reply.send(self.peer_infos()),
            Command::Follow(nodes) => self.follow(nodes),
            Command::Strike(node, reason) => self.strike(node, reason),
            Command::Ban(node, length, reason) => self.ban(node, length, reason),
            Command::Held(blob) => self.holds.add(blob),
        }
    }

    /// Closes the connections to a peer. The dialer then makes a new one.
    pub(super) fn reconnect(&mut self, node: NodeId) {
        self.disconnect(&node);
        if !self.addresses.addresses(&node).is_empty() {
            self.dialer.hurry(node, Instant::now());
        }
    }

    fn peer_infos(&self) -> Vec<PeerInfo> {
        let now = crate::clock::now();
        let info = |(node, peer): (&NodeId, &super::Peer)| {
            let Hello::Welcome { role, software } = &peer.hello else {
                return None;
            };
            Some(PeerInfo {
                node: *node,
                role: *role,
                addresses: peer
                    .connections
                    .iter()
                    .map(|connection| connection.address.clone())
                    .collect(),
                since: peer.since.elapsed(),
                rtt: peer.rtt,
                direction: peer
                    .connections
                    .first()
                    .map_or(Direction::Inbound, |connection| connection.direction),
                score: self.standing.score(node, now),
                software: software.clone(),
                holds: self.shared.roster.n_holds(node),
            })
        };
        self.peers.iter().filter_map(info).collect()
    }
}
