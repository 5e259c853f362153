//! The events for the application, and their queue.
//!
//! The swarm task must never wait for the application, which may be waiting for the swarm task. So the queue is bounded.
//! An advert that finds it full is not accepted, and sync offers it again. All other events wait in a small overflow, in
//! order.

use std::collections::VecDeque;
use std::time::Duration;

use fednode_core::{Advert, NodeId, Refusal, Role, Round, SignedAdvert};
use libp2p::Multiaddr;
use tokio::sync::mpsc;

/// Events that may wait for the application: the adverts of a hundred nodes for some rounds.
pub(crate) const EVENT_QUEUE: usize = 1024;
/// Events that may wait beyond that: more than two per peer.
const OVERFLOW: usize = 512;

/// What happened on the network.
#[derive(Debug, Clone)]
#[expect(
    clippy::large_enum_variant,
    reason = "the largest, an advert, is the commonest"
)]
pub enum Event {
    /// This node listens at a further address (with its node id).
    Listening(Multiaddr),
    /// The hello of a peer was accepted.
    PeerUp {
        /// Who.
        node: NodeId,
        /// What it is.
        role: Role,
    },
    /// The last connection to a peer is gone.
    PeerDown {
        /// Who.
        node: NodeId,
    },
    /// A member that is not connected is here: others pass on what it says.
    Heard {
        /// Who.
        node: NodeId,
        /// What it is.
        role: Role,
    },
    /// A member of which only others told is here no more.
    Unheard {
        /// Who.
        node: NodeId,
    },
    /// This node and a peer refuse each other.
    Refused {
        /// Who, as far as known.
        node: Option<NodeId>,
        /// Where.
        address: String,
        /// Why.
        refusal: Refusal,
    },
    /// A node is not on the allow-list, so it was turned away or not heard. This comes once in a while for each node.
    TurnedAway {
        /// Who.
        node: NodeId,
        /// Where it called from; nothing if others passed on what it said.
        address: Option<Multiaddr>,
    },
    /// A configured address cannot be reached. This comes once per series of failures; dialing goes on.
    DialFailed {
        /// Which address.
        address: Multiaddr,
        /// Why, and what to check.
        reason: String,
        /// Failures in a row so far.
        attempts: u32,
    },
    /// A new advert that passed every check.
    Advert {
        /// As it travels.
        signed: SignedAdvert,
        /// Decoded.
        advert: Advert,
    },
    /// A node signed two different adverts under one number. Both are kept as the proof, and others hear of it.
    Equivocated {
        /// Who.
        node: NodeId,
    },
    /// Adverts of a node are refused, since its clock is ahead of this one's. This comes once in a while for each node.
    ClockAhead {
        /// Whose clock.
        node: NodeId,
        /// By how much.
        seconds: u64,
    },
    /// A member is in a round after the last that this one knows of: the organiser has added rounds.
    Beyond {
        /// Who.
        node: NodeId,
        /// In which.
        round: Round,
    },
    /// This machine's clock was set.
    ClockStepped {
        /// By how many seconds; negative if it was set back.
        seconds: i64,
        /// Own adverts that were stamped in what is now the future, and are said again.
        said_again: usize,
    },
    /// The first sync with a connected peer is complete: all its adverts were received.
    Synced {
        /// Who.
        node: NodeId,
    },
    /// A peer misbehaved.
    Struck {
        /// Who.
        node: NodeId,
        /// How.
        reason: String,
    },
    /// A peer is banned for a while.
    Banned {
        /// Who.
        node: NodeId,
        /// For how long.
        length: Duration,
        /// Why.
        reason: String,
    },
    /// The organiser has revoked a node's membership.
    Revoked {
        /// Who.
        node: NodeId,
    },
    /// Another process uses this node's key and was started later: this process must stop.
    Superseded,
}

/// The sending side of the event queue.
#[derive(Debug)]
pub(crate) struct Outbox {
    queue: mpsc::Sender<Event>,
    overflow: VecDeque<Event>,
}

impl Outbox {
    pub(crate) fn new(queue: mpsc::Sender<Event>) -> Self {
        Self {
            queue,
            overflow: VecDeque::new(),
        }
    }

    /// Tells whether the queue takes an advert right now.
    pub(crate) fn has_room(&self) -> bool {
        // Behind a backlog an advert would wait in the overflow, which loses its oldest events.
        self.overflow.is_empty() && self.queue.capacity() > 0
    }

    /// Sends an event, or keeps it until there is room. If the overflow is full too, its oldest event is lost.
    pub(crate) fn send(&mut self, event: Event) {
        // Through the overflow in any case, so that no event overtakes an older one.
        self.overflow.push_back(event);
        self.flush();
        if self.overflow.len() > OVERFLOW {
            self.overflow.pop_front();
            tracing::warn!("the application does not take its events: the oldest was dropped");
        }
    }

    /// Sends kept events as far as there is room.
    pub(crate) fn flush(&mut self) {
        while let Some(event) = self.overflow.pop_front() {
            match self.queue.try_send(event) {
                Ok(()) => {}
                Err(mpsc::error::TrySendError::Full(event)) => {
                    return self.overflow.push_front(event);
                }
                // The application is gone: nothing kept will ever be read.
                Err(mpsc::error::TrySendError::Closed(_)) => self.overflow.clear(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn down(n: u16) -> Event {
        let mut bytes = [0; 32];
        bytes[..2].copy_from_slice(&n.to_be_bytes());
        Event::PeerDown {
            node: NodeId::from_bytes(bytes),
        }
    }

    fn number(event: &Event) -> u16 {
        let Event::PeerDown { node } = event else {
            unreachable!()
        };
        u16::from_be_bytes(node.as_bytes()[..2].try_into().unwrap())
    }

    #[test]
    fn outbox_keeps_order_and_bounds_its_backlog() {
        let (queue, mut events) = mpsc::channel(2);
        let mut outbox = Outbox::new(queue);
        assert!(outbox.has_room());
        (0..5).for_each(|n| outbox.send(down(n)));
        assert!(!outbox.has_room());
        let mut seen = Vec::new();
        while let Ok(event) = events.try_recv() {
            seen.push(number(&event));
            outbox.flush();
        }
        assert_eq!(seen, [0, 1, 2, 3, 4]);
        (0..u16::try_from(OVERFLOW + 10).unwrap()).for_each(|n| outbox.send(down(n)));
        assert_eq!(outbox.overflow.len(), OVERFLOW);
    }
}
