//! A behaviour that only peers with an accepted hello meet.
//!
//! A behaviour of libp2p begins to talk as soon as there is a connection. Here it talks to a closed handler until the peer
//! is welcome: what it says waits in its own queue, and what the peer sends waits in the stream, unread.
//!
//! ```text
//!   connection ──► closed ──welcome──► open ──refused──► closed
//!                    │                  │
//!            polls nothing      polls the inner handler
//! ```
//!
//! Streams are still negotiated while a handler is closed. Two peers are never welcome at the same moment, and a stream
//! that one of them denies would be denied for good.

use std::collections::{HashMap, VecDeque};
use std::task::{Context, Poll};

use libp2p::PeerId;
use libp2p::core::transport::PortUse;
use libp2p::core::{Endpoint, Multiaddr};
use libp2p::swarm::handler::{ConnectionEvent, ConnectionHandler, ConnectionHandlerEvent};
use libp2p::swarm::{
    ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, NotifyHandler, SubstreamProtocol,
    THandler, THandlerInEvent, THandlerOutEvent, ToSwarm,
};

/// A behaviour, and the peers that may meet it.
#[derive(Debug)]
pub(crate) struct WelcomeOnly<B> {
    pub(crate) inner: B,
    peers: HashMap<PeerId, Door>,
    /// Handlers that must hear that they are open or closed now.
    turned: VecDeque<(PeerId, ConnectionId, bool)>,
}

/// The connections of a peer, and whether their handlers are open.
#[derive(Debug, Default)]
struct Door {
    connections: Vec<ConnectionId>,
    is_open: bool,
}

/// A handler that does nothing while it is closed.
#[derive(Debug)]
pub(crate) struct Closable<H> {
    inner: H,
    is_open: bool,
}

/// What the behaviour says to a handler.
#[derive(Debug)]
pub(crate) enum Order<E> {
    Open(bool),
    Inner(E),
}

impl<B> WelcomeOnly<B> {
    pub(crate) fn new(inner: B) -> Self {
        Self {
            inner,
            peers: HashMap::new(),
            turned: VecDeque::new(),
        }
    }

    /// Lets a connected peer meet the behaviour, over all connections that it has and will have.
    pub(crate) fn open(&mut self, peer: PeerId) {
        self.turn(peer, true);
    }

    /// Keeps a peer from the behaviour again. What is on its way to it is not sent.
    pub(crate) fn close(&mut self, peer: PeerId) {
        self.turn(peer, false);
    }

    fn turn(&mut self, peer: PeerId, is_open: bool) {
        let door = self.peers.get_mut(&peer);
        let Some(door) = door.filter(|door| door.is_open != is_open) else {
            return;
        };
        door.is_open = is_open;
        let turned = door.connections.iter().map(|id| (peer, *id, is_open));
        self.turned.extend(turned);
    }

    fn wrap<H>(&self, peer: &PeerId, inner: H) -> Closable<H> {
        let is_open = self.peers.get(peer).is_some_and(|door| door.is_open);
        Closable { inner, is_open }
    }

    fn count(&mut self, event: &FromSwarm<'_>) {
        match event {
            FromSwarm::ConnectionEstablished(new) => {
                let door = self.peers.entry(new.peer_id).or_default();
                door.connections.push(new.connection_id);
            }
            FromSwarm::ConnectionClosed(gone) => {
                let Some(door) = self.peers.get_mut(&gone.peer_id) else {
                    return;
                };
                door.connections.retain(|id| *id != gone.connection_id);
                // Whoever comes back says hello again.
                if door.connections.is_empty() {
                    self.peers.remove(&gone.peer_id);
                }
            }
            _ => {}
        }
    }
}

impl<B: NetworkBehaviour> NetworkBehaviour for WelcomeOnly<B> {
    type ConnectionHandler = Closable<THandler<B>>;
    type ToSwarm = B::ToSwarm;

    fn handle_established_inbound_connection(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        local: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        let inner = &mut self.inner;
        let handler = inner.handle_established_inbound_connection(id, peer, local, remote)?;
        Ok(self.wrap(&peer, handler))
    }

    fn handle_established_outbound_connection(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        address: &Multiaddr,
        role: Endpoint,
        port: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        let inner = &mut self.inner;
        let handler =
            inner.handle_established_outbound_connection(id, peer, address, role, port)?;
        Ok(self.wrap(&peer, handler))
    }

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        self.count(&event);
        self.inner.on_swarm_event(event);
    }

    fn on_connection_handler_event(
        &mut self,
        peer: PeerId,
        id: ConnectionId,
        event: THandlerOutEvent<Self>,
    ) {
        self.inner.on_connection_handler_event(peer, id, event);
    }

    fn poll(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        // These first: a handler must learn that it is closed before it gets anything more to send.
        if let Some((peer_id, id, is_open)) = self.turned.pop_front() {
            return Poll::Ready(ToSwarm::NotifyHandler {
                peer_id,
                handler: NotifyHandler::One(id),
                event: Order::Open(is_open),
            });
        }
        let inner = self.inner.poll(context);
        inner.map(|to_swarm| to_swarm.map_in(Order::Inner))
    }
}

impl<H> ConnectionHandler for Closable<H>
where
    H: ConnectionHandler,
{
    type FromBehaviour = Order<H::FromBehaviour>;
    type ToBehaviour = H::ToBehaviour;
    type InboundProtocol = H::InboundProtocol;
    type OutboundProtocol = H::OutboundProtocol;
    type InboundOpenInfo = H::InboundOpenInfo;
    type OutboundOpenInfo = H::OutboundOpenInfo;

    fn listen_protocol(&self) -> SubstreamProtocol<Self::InboundProtocol, Self::InboundOpenInfo> {
        self.inner.listen_protocol()
    }

    fn connection_keep_alive(&self) -> bool {
        self.is_open && self.inner.connection_keep_alive()
    }

    fn poll(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<
        ConnectionHandlerEvent<Self::OutboundProtocol, Self::OutboundOpenInfo, Self::ToBehaviour>,
    > {
        // The order to open wakes the connection, which then polls this again.
        if self.is_open {
            self.inner.poll(context)
        } else {
            Poll::Pending
        }
    }

    fn poll_close(&mut self, context: &mut Context<'_>) -> Poll<Option<Self::ToBehaviour>> {
        if self.is_open {
            self.inner.poll_close(context)
        } else {
            Poll::Ready(None)
        }
    }

    fn on_behaviour_event(&mut self, order: Self::FromBehaviour) {
        match order {
            Order::Open(is_open) => self.is_open = is_open,
            Order::Inner(event) => self.inner.on_behaviour_event(event),
        }
    }

    fn on_connection_event(
        &mut self,
        event: ConnectionEvent<
            '_,
            Self::InboundProtocol,
            Self::OutboundProtocol,
            Self::InboundOpenInfo,
            Self::OutboundOpenInfo,
        >,
    ) {
        self.inner.on_connection_event(event);
    }
}
