//! The hello. The side that opened a connection sends its hello, the other answers with its own, and both check.
//!
//! There is no message for a refusal. Each side has the hello of the other and finds the first difference itself. So both
//! know the reason, and neither has to believe the other.

use fednode_core::{Hello, NodeId, PROTOCOL_VERSION, Refusal, Timestamp};
use libp2p::PeerId;
use libp2p::request_response::{Event, Message, OutboundFailure};

use super::Task;
use crate::identity::node_id;

/// Largest number of letters of a peer's text that is shown to people.
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
            // The peer has our hello and finds the reason itself.
            self.disconnect(&node);
            return;
        }
        // At once and not at the next tick: a newcomer knows nothing and nobody yet.
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
        // A peer that answers and does not know the protocol is another program, or another version of this one.
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

/// Shortens a peer's texts and removes control characters, because they end up in logs and refusals.
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
