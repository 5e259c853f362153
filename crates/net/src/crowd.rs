//! Crowds: bounds on the connections that one address, or one subnet, may open.
//!
//! A key costs nothing and a socket little, so one machine could take all places of a node: those of handshakes with a few
//! silent sockets a second, those of peers with many keys. Here each address and each subnet has a share, and some
//! handshakes are kept for whoever was welcome before.
//!
//! ```text
//! a socket ─► handshakes of its address? of its subnet? of all strangers? ─► Noise ─► connections of its address? subnet? ─► hello
//! ```
//!
//! Nothing is counted on loopback: whoever is on this machine can do worse. Dials of this node are not counted either. Nor
//! are members, where an organiser or a list says who that is: a federation may be in one building, behind one address.

use std::collections::{HashMap, HashSet, VecDeque};
use std::convert::Infallible;
use std::net::{IpAddr, Ipv6Addr};
use std::task::{Context, Poll};

use libp2p::PeerId;
use libp2p::core::transport::PortUse;
use libp2p::core::{Endpoint, Multiaddr};
use libp2p::multiaddr::Protocol;
use libp2p::swarm::{
    ConnectionClosed, ConnectionDenied, ConnectionId, FromSwarm, ListenFailure, NetworkBehaviour,
    THandler, THandlerInEvent, THandlerOutEvent, ToSwarm, dummy,
};

/// Handshakes at once of one address that was never welcome.
const PENDING_PER_HOST: usize = 8;
/// The same of an address that was: a hospital whose nodes all come back at once.
const PENDING_PER_KNOWN_HOST: usize = 16;
/// Handshakes at once of one subnet.
const PENDING_PER_SUBNET: usize = 16;
/// Fewest connections that an address may have, however few peers a node keeps: a hospital behind one address.
const FEWEST_PER_HOST: usize = 8;
/// Addresses and peers remembered as welcome before.
const MAX_KNOWN: usize = 1024;

/// Why a connection is denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Crowded {
    #[error("too many handshakes at once from {0}")]
    Pending(IpAddr),
    #[error("too many handshakes at once of strangers")]
    Strangers,
    #[error("too many connections from {0}")]
    Established(IpAddr),
}

/// An address without its port, and the network that it is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Origin {
    /// Of IPv6 the first half: whoever has one address has all of its network.
    host: IpAddr,
    /// `/24` of IPv4, `/48` of IPv6.
    subnet: IpAddr,
}

/// How many connections of each origin there are.
#[derive(Debug, Default)]
struct Count {
    of: HashMap<ConnectionId, Origin>,
}

/// Keeps count, and denies what is too much.
#[derive(Debug)]
pub(crate) struct Crowd {
    pending: Count,
    established: Count,
    /// Handshakes at once of all strangers together.
    most_strangers: usize,
    most_per_host: usize,
    most_per_subnet: usize,
    keys: Keys,
    known_hosts: Recent<IpAddr>,
    known_peers: Recent<PeerId>,
}

/// What it takes to be welcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keys {
    /// Any key will do, so one machine can be many members.
    Free,
    /// Somebody names each member.
    Named,
}

/// The last few of what was seen.
#[derive(Debug)]
struct Recent<T> {
    set: HashSet<T>,
    order: VecDeque<T>,
}

impl Crowd {
    /// Shares out the places for so many peers and so many handshakes.
    pub(crate) fn new(max_peers: usize, max_pending: usize, keys: Keys) -> Self {
        Self {
            pending: Count::default(),
            established: Count::default(),
            // A quarter is for those who come back.
            most_strangers: max_pending - max_pending / 4,
            keys,
            most_per_host: (max_peers / 4).max(FEWEST_PER_HOST),
            most_per_subnet: (max_peers / 2).max(FEWEST_PER_HOST),
            known_hosts: Recent::default(),
            known_peers: Recent::default(),
        }
    }

    /// Remembers a peer that was welcome, and where it came from by a connection.
    pub(crate) fn know(&mut self, peer: PeerId, id: ConnectionId, address: &Multiaddr) {
        self.known_peers.add(peer);
        if self.keys == Keys::Named {
            // A member takes no place from the strangers behind the same address.
            self.established.of.remove(&id);
        }
        if let Some(origin) = Origin::of(address) {
            self.known_hosts.add(origin.host);
        }
    }

    fn check_pending(&self, origin: Origin) -> Result<(), Crowded> {
        let is_known = self.known_hosts.set.contains(&origin.host);
        let of_host = self.pending.of_host(origin);
        let is_crowded = if is_known {
            of_host >= PENDING_PER_KNOWN_HOST
        } else {
            of_host >= PENDING_PER_HOST || self.pending.of_subnet(origin) >= PENDING_PER_SUBNET
        };
        if is_crowded {
            return Err(Crowded::Pending(origin.host));
        }
        if is_known {
            return Ok(());
        }
        let strangers = self.pending.of.values();
        let strangers = strangers.filter(|origin| !self.known_hosts.set.contains(&origin.host));
        if strangers.count() >= self.most_strangers {
            return Err(Crowded::Strangers);
        }
        Ok(())
    }

    /// Lets a peer in or not, and counts its connection.
    fn admit(&mut self, id: ConnectionId, origin: Origin, peer: &PeerId) -> Result<(), Crowded> {
        let is_known = self.known_peers.set.contains(peer);
        if is_known && self.keys == Keys::Named {
            return Ok(());
        }
        let is_crowded = self.established.of_host(origin) >= self.most_per_host
            || self.established.of_subnet(origin) >= self.most_per_subnet;
        if is_crowded && !is_known {
            return Err(Crowded::Established(origin.host));
        }
        // A known key is counted, too: where keys are free, it may be one of many of the same machine.
        self.established.of.insert(id, origin);
        Ok(())
    }
}

impl Origin {
    /// Returns where a connection comes from; nothing for loopback, relays, and whatever has no address of its own.
    fn of(address: &Multiaddr) -> Option<Self> {
        let mut host = None;
        for part in address {
            match part {
                Protocol::Ip4(ip) => host = Some(IpAddr::V4(ip)),
                Protocol::Ip6(ip) => host = Some(IpAddr::V6(ip).to_canonical()),
                // The address is that of the relay.
                Protocol::P2pCircuit => return None,
                _ => {}
            }
        }
        match host.filter(|host| !host.is_loopback())? {
            IpAddr::V4(ip) => {
                let [a, b, c, _] = ip.octets();
                let (host, subnet) = (IpAddr::V4(ip), IpAddr::from([a, b, c, 0]));
                Some(Self { host, subnet })
            }
            IpAddr::V6(ip) => {
                let masked =
                    |bits: u32| Ipv6Addr::from(u128::from(ip) & (u128::MAX << (128 - bits)));
                let (host, subnet) = (IpAddr::V6(masked(64)), IpAddr::V6(masked(48)));
                Some(Self { host, subnet })
            }
        }
    }
}

impl Count {
    fn of_host(&self, origin: Origin) -> usize {
        let of = self.of.values();
        of.filter(|other| other.host == origin.host).count()
    }

    fn of_subnet(&self, origin: Origin) -> usize {
        let of = self.of.values();
        of.filter(|other| other.subnet == origin.subnet).count()
    }
}

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self {
            set: HashSet::new(),
            order: VecDeque::new(),
        }
    }
}

impl<T: Copy + Eq + std::hash::Hash> Recent<T> {
    /// Adds an item, or makes it the latest one.
    fn add(&mut self, item: T) {
        if !self.set.insert(item) {
            self.order.retain(|other| *other != item);
        }
        self.order.push_back(item);
        if self.order.len() > MAX_KNOWN
            && let Some(oldest) = self.order.pop_front()
        {
            self.set.remove(&oldest);
        }
    }
}

impl NetworkBehaviour for Crowd {
    type ConnectionHandler = dummy::ConnectionHandler;
    type ToSwarm = Infallible;

    fn handle_pending_inbound_connection(
        &mut self,
        id: ConnectionId,
        _local: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<(), ConnectionDenied> {
        if let Some(origin) = Origin::of(remote) {
            self.check_pending(origin).map_err(ConnectionDenied::new)?;
            self.pending.of.insert(id, origin);
        }
        Ok(())
    }

    fn handle_established_inbound_connection(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        _local: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        self.pending.of.remove(&id);
        if let Some(origin) = Origin::of(remote) {
            let admitted = self.admit(id, origin, &peer);
            admitted.map_err(ConnectionDenied::new)?;
        }
        Ok(dummy::ConnectionHandler)
    }

    fn handle_established_outbound_connection(
        &mut self,
        _id: ConnectionId,
        _peer: PeerId,
        _address: &Multiaddr,
        _role: Endpoint,
        _port: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(dummy::ConnectionHandler)
    }

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        // A failure is also what comes when another behaviour denies what was counted here.
        let (FromSwarm::ConnectionClosed(ConnectionClosed {
            connection_id: gone,
            ..
        })
        | FromSwarm::ListenFailure(ListenFailure {
            connection_id: gone,
            ..
        })) = event
        else {
            return;
        };
        self.pending.of.remove(&gone);
        self.established.of.remove(&gone);
    }

    fn on_connection_handler_event(
        &mut self,
        _peer: PeerId,
        _id: ConnectionId,
        event: THandlerOutEvent<Self>,
    ) {
        match event {}
    }

    fn poll(
        &mut self,
        _context: &mut Context<'_>,
    ) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: &str) -> Multiaddr {
        format!("{address}/tcp/4001").parse().unwrap()
    }

    /// Opens sockets from these addresses and returns how many handshakes may begin.
    fn begun(crowd: &mut Crowd, first: usize, addresses: impl Iterator<Item = String>) -> usize {
        let local = at("/ip4/192.0.2.1");
        let opened = addresses.enumerate().filter(|(n, address)| {
            let id = ConnectionId::new_unchecked(first + n);
            crowd
                .handle_pending_inbound_connection(id, &local, &at(address))
                .is_ok()
        });
        opened.count()
    }

    fn repeated(address: &str, times: usize) -> impl Iterator<Item = String> {
        std::iter::repeat_n(address.to_owned(), times)
    }

    #[test]
    fn silent_sockets_of_one_machine_leave_handshakes_for_others() {
        let mut crowd = Crowd::new(128, 32, Keys::Free);
        assert_eq!(begun(&mut crowd, 0, repeated("/ip4/198.51.100.7", 100)), 8);
        let neighbours = (1..100).map(|n| format!("/ip4/198.51.100.{n}"));
        assert_eq!(
            begun(&mut crowd, 1000, neighbours),
            8,
            "one subnet has sixteen"
        );
        let others = (1..100).map(|n| format!("/ip4/203.0.{n}.1"));
        assert_eq!(begun(&mut crowd, 2000, others), 8, "a quarter is kept");
        let old_friend = at("/ip4/192.0.2.99");
        let id = ConnectionId::new_unchecked(9999);
        crowd.know(PeerId::random(), id, &old_friend);
        assert_eq!(begun(&mut crowd, 3000, repeated("/ip4/192.0.2.99", 99)), 16);
        assert_eq!(begun(&mut crowd, 4000, repeated("/ip4/127.0.0.1", 99)), 99);
    }

    #[test]
    fn a_handshake_that_ends_makes_room() {
        let mut crowd = Crowd::new(128, 32, Keys::Free);
        let network = |n: u32| format!("/ip6/2001:db8:1:1::{n:x}");
        assert_eq!(
            begun(&mut crowd, 0, (1..100).map(network)),
            8,
            "one network"
        );
        let (local, remote) = (at("/ip4/192.0.2.1"), at(&network(1)));
        for n in 0..8 {
            let id = ConnectionId::new_unchecked(n);
            let (peer, stranger) = (PeerId::random(), remote.clone());
            let open = crowd.handle_established_inbound_connection(id, peer, &local, &stranger);
            assert!(open.is_ok());
        }
        assert_eq!(begun(&mut crowd, 100, (1..100).map(network)), 8);
    }

    /// Opens connections with new keys from an address. Returns those that may be.
    fn opened(crowd: &mut Crowd, ids: std::ops::Range<usize>, address: &str) -> Vec<usize> {
        let open = |n: &usize| open(crowd, *n, PeerId::random(), address);
        ids.filter(open).collect()
    }

    fn open(crowd: &mut Crowd, n: usize, peer: PeerId, address: &str) -> bool {
        let (local, id) = (at("/ip4/192.0.2.1"), ConnectionId::new_unchecked(n));
        let opened = crowd.handle_established_inbound_connection(id, peer, &local, &at(address));
        opened.is_ok()
    }

    #[test]
    fn many_keys_of_one_machine_take_a_quarter_of_the_places() {
        let mut crowd = Crowd::new(128, 32, Keys::Free);
        let (address, friend) = ("/ip4/198.51.100.7", PeerId::random());
        crowd.know(friend, ConnectionId::new_unchecked(9999), &at(address));
        assert_eq!(opened(&mut crowd, 0..200, address).len(), 32);
        let neighbour = opened(&mut crowd, 200..400, "/ip4/198.51.100.8");
        assert_eq!(neighbour.len(), 32);
        let third = opened(&mut crowd, 400..600, "/ip4/198.51.100.9");
        assert_eq!(third.len(), 0, "its subnet has half");
        let others = opened(&mut crowd, 600..800, "/ip4/203.0.113.1");
        assert_eq!(others.len(), 32);
        assert!(open(&mut crowd, 1000, friend, address), "it comes back");
    }

    #[test]
    fn a_federation_behind_one_address_fills_all_places_if_its_members_are_named() {
        let address = "/ip4/198.51.100.7";
        for (keys, members, others) in [(Keys::Free, 16, 0), (Keys::Named, 128, 32)] {
            let mut crowd = Crowd::new(128, 32, keys);
            let mut welcome = 0;
            for (n, peer) in (0..128).map(|n| (n, PeerId::random())) {
                if open(&mut crowd, n, peer, address) {
                    crowd.know(peer, ConnectionId::new_unchecked(n), &at(address));
                    welcome += 1;
                    assert!(open(&mut crowd, 500 + n, peer, address), "once more");
                }
            }
            assert_eq!(welcome, members, "{keys:?}");
            // Strangers behind it get what they would get without the members.
            let strangers = opened(&mut crowd, 1000..1200, address);
            assert_eq!(strangers.len(), others, "{keys:?}");
        }
    }

    #[test]
    fn who_comes_again_and_again_is_remembered() {
        let mut recent = Recent::default();
        (0..MAX_KNOWN).for_each(|n| recent.add(n));
        recent.add(0);
        recent.add(MAX_KNOWN);
        assert!(recent.set.contains(&0) && !recent.set.contains(&1));
        assert_eq!(
            (recent.set.len(), recent.order.len()),
            (MAX_KNOWN, MAX_KNOWN)
        );
    }
}
