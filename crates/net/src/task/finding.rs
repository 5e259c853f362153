//! What one part of the swarm task finds out and others must act on.
//!
//! Parts return findings and do not call each other. What follows from one is decided in one place, `Parts::act_on`.

use fednode_core::NodeId;
use libp2p::PeerId;
use libp2p::request_response::OutboundFailure;

use crate::identity::node_id;

/// A fact about a peer.
#[derive(Debug)]
pub(super) enum Finding {
    /// The peer did what no honest peer does.
    Fault(NodeId, String),
    /// The peer is up and was not before.
    Arrival(NodeId),
    /// The peer answered this node's hello, and the answer is good.
    Answer(NodeId),
    /// A member is here that is not connected.
    Newcomer,
    /// The peer's adverts no longer come by gossip, although it is connected.
    Silence(NodeId),
    /// The peer passes on more messages than any federation has.
    Flood(NodeId),
}

impl Finding {
    /// Returns what a request that got no reply says of the peer.
    ///
    /// A reply that breaks the protocol is evidence. A request that does is refused before it is read, but libp2p does not
    /// say who sent it.
    pub(super) fn of_failed_request(peer: &PeerId, error: &OutboundFailure) -> Option<Self> {
        tracing::debug!(%peer, %error, "a request failed");
        match error {
            OutboundFailure::Io(cause) if cause.kind() == std::io::ErrorKind::InvalidData => {
                let reason = format!("sent a malformed reply: {cause}");
                Some(Self::Fault(node_id(peer)?, reason))
            }
            _ => None,
        }
    }
}
