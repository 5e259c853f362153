//! Meet: the hello. The side that opened a connection says it first, the other answers with its own, both check.
//!
//! A refusal is not said in words of its own: each side has the other's hello and finds the first difference itself, so
//! both know it, and neither has to believe the other.

use fednode_core::{Hello, NodeId, PROTOCOL_VERSION, Refusal, Timestamp};
use libp2p::PeerId;
use libp2p::request_response::{Event, Message, OutboundFailure};

use super::Task;
use crate::identity::node_id;

/// Longest text of a peer that is shown to people.
const MAX_SHOWN: usize = 256;

impl Task {
    pub(super) fn say_hello(&mut self, peer: &PeerId) {
        let hello = self.own_hello();
        self.swarm.behaviour_mut().hello.send_request(peer, hello);
    }

    pub(super) fn on_hello_event(&mut self, event: Event<Hello, Hello>) {
        match event {
            Event::Message { peer, message, .. } => {
                let Some(node) = node_id(&peer) else { return };
                match message {
                    Message::Request {
                        request, channel, ..
                    } => {
                        let own = self.own_hello();
                        // An error says that the peer is gone, which comes as an event of its own.
                        _ = self.swarm.behaviour_mut().hello.send_response(channel, own);
                        self.on_hello(node, request);
                    }
                    Message::Response { response, .. } => self.on_hello_answer(node, response),
                }
            }
            Event::OutboundFailure { peer, error, .. } => self.on_hello_failure(&peer, &error),
            Event::InboundFailure { .. } | Event::ResponseSent { .. } => {}
        }
    }

    fn on_hello_answer(&mut self, node: NodeId, hello: Hello) {
        if !self.on_hello(node, hello) {
            // It has had our hello and knows why.
            self.disconnect(&node);
            return;
        }
        self.start_sync(node);
        self.exchange_with(node);
    }

    /// Checks a hello; returns whether the peer is welcome.
    fn on_hello(&mut self, node: NodeId, hello: Hello) -> bool {
        let hello = tidy(hello);
        let max_skew = self.config.spec.limits.clock_skew();
        match self
            .own_hello()
            .check(&hello, max_skew, crate::clock::now())
        {
            Ok(()) => {
                self.welcome(node, hello.role, hello.software);
                true
            }
            Err(refusal) => {
                tracing::debug!(%node, %refusal, "refused");
                self.refuse(node, refusal);
                false
            }
        }
    }

    fn on_hello_failure(&mut self, peer: &PeerId, error: &OutboundFailure) {
        let Some(node) = node_id(peer) else { return };
        if self
            .peers
            .get(&node)
            .is_none_or(super::connections::Peer::is_welcome)
        {
            return;
        }
        tracing::debug!(%node, %error, "no hello");
        if matches!(error, OutboundFailure::UnsupportedProtocols) {
            let refusal = Refusal::Protocol {
                ours: PROTOCOL_VERSION,
                theirs: 0,
            };
            self.refuse(node, refusal);
        }
        self.disconnect(&node);
    }

    fn own_hello(&self) -> Hello {
        Hello {
            protocol: PROTOCOL_VERSION,
            software: self.config.software.clone(),
            role: self.config.role,
            federation: self.config.federation,
            spec: self.config.spec.entries(),
            clock: now(),
        }
    }
}

fn now() -> Timestamp {
    crate::clock::now()
}

/// Cuts a peer's texts and takes out what could confuse a terminal, since they end up in logs and refusals.
fn tidy(mut hello: Hello) -> Hello {
    hello.software = shown(&hello.software);
    for entry in &mut hello.spec {
        entry.key = shown(&entry.key);
        entry.value = shown(&entry.value);
    }
    hello
}

fn shown(text: &str) -> String {
    text.chars()
        .filter(|letter| !letter.is_control())
        .take(MAX_SHOWN)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peers_words_cannot_steer_a_terminal() {
        assert_eq!(shown("a\u{1b}[31mb\nc"), "a[31mbc");
        assert_eq!(shown(&"x".repeat(9999)).len(), MAX_SHOWN);
    }
}
