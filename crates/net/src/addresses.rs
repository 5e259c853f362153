//! The address book: where members can be reached, as they say themselves.
//!
//! Pure; time is an argument. A record is signed by the node whose addresses it holds, names the federation and lives
//! for minutes, so that nobody can send the federation knocking at somebody else's door for long. Loopback addresses
//! travel in a record of their own, which is only handed to processes of the same machine: elsewhere they would point
//! at the reader itself. Unsigned hints (mDNS) are kept beside the records; dialing a hint proves it, since the
//! handshake fails if another node answers.

use std::collections::BTreeMap;
use std::time::Duration;

use fednode_core::{FederationId, NodeId, Timestamp};
use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use rand::Rng;
use rand::seq::SliceRandom;

use crate::bounded::Bounded;
use crate::codec;
use crate::identity::{self, Identity, RECORD_DOMAIN};
use crate::wire::{MAX_ADDRESSES, MAX_RECORD_BYTES, MAX_RECORDS, Record, Scope, SignedRecord};

/// Life of a record: several rounds of the exchange, so that a live node's never runs out.
const RECORD_MINUTES: u16 = 30;
/// Longest life that is believed.
const MAX_RECORD_MINUTES: u16 = 60;
/// Records kept; well above the peers a node connects to, so that it has a choice.
const MAX_KEPT: usize = 1024;
/// Bytes of one address: longer ones are no address of a transport that this node has.
const MAX_ADDRESS_BYTES: usize = 128;
/// Life of a hint that nobody signed.
const HINT_LIFE: Duration = Duration::from_secs(300);

/// Tells why a record was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RecordError {
    #[error("a malformed address record")]
    Malformed,
    #[error("an address record with a wrong signature")]
    Signature,
    #[error("an expired address record or one of another federation")]
    Stale,
}

/// Where members can be reached.
#[derive(Debug, Default)]
pub(crate) struct AddressBook {
    records: BTreeMap<(NodeId, Scope), Entry>,
    hints: BTreeMap<NodeId, Hint>,
}

#[derive(Debug)]
struct Entry {
    signed: SignedRecord,
    addresses: Vec<Multiaddr>,
    issued_at: Timestamp,
    expires_at: Timestamp,
}

#[derive(Debug)]
struct Hint {
    addresses: Vec<Multiaddr>,
    expires_at: Timestamp,
}

impl AddressBook {
    /// Checks a record and enters it if it is newer than what is known; returns whose it is.
    pub(crate) fn enter(
        &mut self,
        signed: SignedRecord,
        federation: FederationId,
        now: Timestamp,
    ) -> Result<NodeId, RecordError> {
        let record: Record = codec::decode(&signed.payload, MAX_RECORD_BYTES).map_err(|_| RecordError::Malformed)?;
        let addresses = checked_addresses(&record)?;
        if !identity::signed_by(&record.node, RECORD_DOMAIN, &signed.payload, &signed.signature) {
            return Err(RecordError::Signature);
        }
        let life = Duration::from_secs(60 * u64::from(record.minutes.min(MAX_RECORD_MINUTES)));
        // A clock that runs ahead must not make a record live longer.
        let expires_at = record.issued_at.min(now) + life;
        if record.federation != federation || expires_at <= now {
            return Err(RecordError::Stale);
        }
        let key = (record.node, record.scope);
        if self.records.get(&key).is_none_or(|known| known.issued_at < record.issued_at) {
            let entry = Entry { signed, addresses, issued_at: record.issued_at, expires_at };
            self.records.insert(key, entry);
            self.enforce_bound();
        }
        Ok(record.node)
    }

    /// Remembers where a node might be reached.
    pub(crate) fn hint(&mut self, node: NodeId, address: Multiaddr, now: Timestamp) {
        if self.hints.len() >= MAX_KEPT && !self.hints.contains_key(&node) {
            return;
        }
        let hint = self.hints.entry(node).or_insert(Hint { addresses: Vec::new(), expires_at: now });
        hint.expires_at = now + HINT_LIFE;
        if !hint.addresses.contains(&address) && hint.addresses.len() < MAX_ADDRESSES {
            hint.addresses.push(address);
        }
    }

    /// Returns where a node can be reached, the same machine first.
    pub(crate) fn addresses(&self, node: &NodeId) -> Vec<Multiaddr> {
        let record = |scope| self.records.get(&(*node, scope)).into_iter().flat_map(|entry| entry.addresses.clone());
        let hints = self.hints.get(node).into_iter().flat_map(|hint| hint.addresses.clone());
        let mut addresses: Vec<Multiaddr> =
            record(Scope::Loopback).chain(record(Scope::Network)).chain(hints).collect();
        addresses.sort();
        addresses.dedup();
        addresses.truncate(MAX_ADDRESSES);
        addresses
    }

    /// Draws records to hand out; those of loopback addresses only to a process of the same machine.
    pub(crate) fn draw<R: Rng>(&self, to_loopback: Reach, except: &NodeId, rng: &mut R) -> Vec<SignedRecord> {
        let fits = |scope: Scope| scope == Scope::Network || to_loopback == Reach::SameMachine;
        let entries = self.records.iter().filter(|((node, scope), _)| node != except && fits(*scope));
        let mut records: Vec<SignedRecord> = entries.map(|(_, entry)| entry.signed.clone()).collect();
        records.shuffle(rng);
        records.truncate(MAX_RECORDS);
        records
    }

    /// Forgets what has expired.
    pub(crate) fn prune(&mut self, now: Timestamp) {
        self.records.retain(|_, entry| entry.expires_at > now);
        self.hints.retain(|_, hint| hint.expires_at > now);
    }

    fn enforce_bound(&mut self) {
        if self.records.len() > MAX_KEPT {
            let oldest = self.records.iter().min_by_key(|(_, entry)| entry.expires_at).map(|(key, _)| *key);
            oldest.and_then(|key| self.records.remove(&key));
        }
    }
}

/// Whether a peer runs on the same machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    SameMachine,
    Elsewhere,
}

impl Reach {
    /// Tells it from the address at the other end of a connection.
    pub(crate) fn of(remote: &Multiaddr) -> Self {
        if is_loopback(remote) { Self::SameMachine } else { Self::Elsewhere }
    }
}

/// Signs this node's addresses: one record for the network, one for the same machine, each only if it has any. What nobody
/// could dial is left out: some of them are hearsay.
pub(crate) fn own_records(
    identity: &Identity,
    federation: FederationId,
    addresses: &[Multiaddr],
    now: Timestamp,
) -> Vec<SignedRecord> {
    let (loopback, network): (Vec<&Multiaddr>, Vec<&Multiaddr>) =
        addresses.iter().filter(|address| is_tellable(address)).partition(|address| is_loopback(address));
    let sign = |scope, addresses: Vec<&Multiaddr>| {
        let bytes = addresses.into_iter().map(|address| serde_bytes::ByteBuf::from(bare(address).to_vec()));
        let addresses = Bounded::first_of(bytes);
        let node = identity.node_id();
        let record = Record { federation, node, scope, addresses, issued_at: now, minutes: RECORD_MINUTES };
        let payload = codec::encode(&record);
        SignedRecord { signature: identity.sign(RECORD_DOMAIN, &payload), payload }
    };
    let groups = [(Scope::Network, network), (Scope::Loopback, loopback)];
    groups.into_iter().filter(|(_, group)| !group.is_empty()).map(|(scope, group)| sign(scope, group)).collect()
}

/// Tells whether an address may stand in a record.
pub(crate) fn is_tellable(address: &Multiaddr) -> bool {
    let bare = bare(address);
    is_dialable(&bare) && bare.len() <= MAX_ADDRESS_BYTES
}

fn checked_addresses(record: &Record) -> Result<Vec<Multiaddr>, RecordError> {
    let parse = |bytes: &serde_bytes::ByteBuf| {
        let short = bytes.len() <= MAX_ADDRESS_BYTES;
        let address = Multiaddr::try_from(bytes.to_vec()).ok().filter(|_| short)?;
        let in_scope = is_loopback(&address) == (record.scope == Scope::Loopback);
        (in_scope && is_dialable(&address)).then_some(address)
    };
    let addresses: Option<Vec<Multiaddr>> = record.addresses.as_slice().iter().map(parse).collect();
    addresses.filter(|addresses| !addresses.is_empty()).ok_or(RecordError::Malformed)
}

/// Tells whether an address is one of a transport that a member may have: a host and a TCP or QUIC port, nothing else.
fn is_dialable(address: &Multiaddr) -> bool {
    let parts: Vec<Protocol<'_>> = address.iter().collect();
    let host = matches!(
        parts.first(),
        Some(Protocol::Ip4(_) | Protocol::Ip6(_) | Protocol::Dns(_) | Protocol::Dns4(_) | Protocol::Dns6(_))
    );
    let port = matches!(parts.get(1..), Some([Protocol::Tcp(_)] | [Protocol::Udp(_), Protocol::QuicV1]));
    host && port && !is_unspecified(address)
}

fn is_unspecified(address: &Multiaddr) -> bool {
    match address.iter().next() {
        Some(Protocol::Ip4(ip)) => ip.is_unspecified(),
        Some(Protocol::Ip6(ip)) => ip.is_unspecified(),
        _ => false,
    }
}

/// Tells whether an address points at the machine that reads it.
pub(crate) fn is_loopback(address: &Multiaddr) -> bool {
    match address.iter().next() {
        Some(Protocol::Ip4(ip)) => ip.is_loopback(),
        Some(Protocol::Ip6(ip)) => ip.is_loopback(),
        Some(Protocol::Dns(name) | Protocol::Dns4(name) | Protocol::Dns6(name)) => name == "localhost",
        _ => false,
    }
}

/// Returns the address without the node id at its end.
pub(crate) fn bare(address: &Multiaddr) -> Multiaddr {
    address.iter().filter(|part| !matches!(part, Protocol::P2p(_))).collect()
}

/// Returns the node that an address names at its end.
pub(crate) fn node_of(address: &Multiaddr) -> Option<NodeId> {
    address.iter().find_map(|part| match part {
        Protocol::P2p(peer) => identity::node_id(&peer),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    const HOME: FederationId = FederationId::from_bytes([7; 32]);
    const NOW: Timestamp = Timestamp(10_000_000);

    fn addresses(texts: &[&str]) -> Vec<Multiaddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn loopback_addresses_stay_on_the_machine() {
        let ann = Identity::generate();
        let all = addresses(&["/ip4/127.0.0.1/tcp/1", "/ip4/10.0.0.1/tcp/1", "/ip6/::1/tcp/1"]);
        let mut book = AddressBook::default();
        for record in own_records(&ann, HOME, &all, NOW) {
            assert_eq!(book.enter(record, HOME, NOW), Ok(ann.node_id()));
        }
        let other = Identity::generate().node_id();
        let mut rng = StdRng::seed_from_u64(1);
        assert_eq!(book.draw(Reach::SameMachine, &other, &mut rng).len(), 2);
        let public = book.draw(Reach::Elsewhere, &other, &mut rng);
        let mut elsewhere = AddressBook::default();
        public.into_iter().for_each(|record| _ = elsewhere.enter(record, HOME, NOW).unwrap());
        assert_eq!(elsewhere.addresses(&ann.node_id()), addresses(&["/ip4/10.0.0.1/tcp/1"]));
        assert!(book.draw(Reach::SameMachine, &ann.node_id(), &mut rng).is_empty(), "nobody is told its own");
    }

    #[test]
    fn a_record_is_its_nodes_own_word_and_of_this_federation() {
        let (ann, bob) = (Identity::generate(), Identity::generate());
        let good = own_records(&ann, HOME, &addresses(&["/ip4/10.0.0.1/tcp/1"]), NOW).remove(0);
        let mut book = AddressBook::default();
        let forged = SignedRecord { signature: bob.sign(RECORD_DOMAIN, &good.payload), ..good.clone() };
        assert_eq!(book.enter(forged, HOME, NOW), Err(RecordError::Signature));
        let elsewhere = FederationId::from_bytes([8; 32]);
        assert_eq!(book.enter(good.clone(), elsewhere, NOW), Err(RecordError::Stale));
        assert_eq!(book.enter(good.clone(), HOME, NOW + Duration::from_secs(1801)), Err(RecordError::Stale));
        assert_eq!(book.enter(good, HOME, NOW + Duration::from_secs(1799)), Ok(ann.node_id()));
    }

    #[test]
    fn a_misplaced_or_odd_address_is_malformed() {
        let ann = Identity::generate();
        let texts =
            ["/ip4/127.0.0.1/tcp/1", "/memory/5", "/ip4/10.0.0.1/tcp/1/ws", "/ip4/0.0.0.0/tcp/1", "/ip4/1.1.1.1"];
        for text in texts {
            let bytes = text.parse::<Multiaddr>().unwrap().to_vec();
            let addresses = Bounded::first_of([serde_bytes::ByteBuf::from(bytes)]);
            let (federation, node, minutes) = (HOME, ann.node_id(), 5);
            let record = Record { federation, node, scope: Scope::Network, addresses, issued_at: NOW, minutes };
            let payload = codec::encode(&record);
            let signed = SignedRecord { signature: ann.sign(RECORD_DOMAIN, &payload), payload };
            assert_eq!(AddressBook::default().enter(signed, HOME, NOW), Err(RecordError::Malformed), "{text}");
        }
    }

    #[test]
    fn the_newer_record_wins_and_expires() {
        let ann = Identity::generate();
        let at = |text, now| own_records(&ann, HOME, &addresses(&[text]), now).remove(0);
        let later = NOW + Duration::from_secs(60);
        let mut book = AddressBook::default();
        book.enter(at("/ip4/10.0.0.2/tcp/1", later), HOME, later).unwrap();
        book.enter(at("/ip4/10.0.0.1/tcp/1", NOW), HOME, later).unwrap();
        assert_eq!(book.addresses(&ann.node_id()), addresses(&["/ip4/10.0.0.2/tcp/1"]));
        book.prune(later + Duration::from_secs(1800));
        assert!(book.addresses(&ann.node_id()).is_empty());
    }

    #[test]
    fn the_node_is_found_at_the_end_of_an_address() {
        let ann = Identity::generate().node_id();
        let address: Multiaddr = format!("/ip4/10.0.0.1/tcp/1/p2p/{ann}").parse().unwrap();
        assert_eq!(node_of(&address), Some(ann));
        assert_eq!(bare(&address), addresses(&["/ip4/10.0.0.1/tcp/1"])[0]);
        assert_eq!(node_of(&bare(&address)), None);
    }
}
