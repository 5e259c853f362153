//! The address book: the addresses of members, in their own words.
//!
//! Pure; time is an argument. A record is signed by the node whose addresses it holds. It names the federation and lives
//! for minutes. So no one can make the federation dial a stranger's address for long. Loopback addresses travel in a record
//! of their own, which goes only to processes of the same machine: elsewhere they would point at the reader itself.
//! Unsigned hints (mDNS) are kept beside the records. Dialing a hint proves it, since the handshake fails if another node
//! answers.
//!
//! Keys cost nothing, so a peer can pass on records of any number of nodes. When the book is full, the source with the most
//! records loses its newest one. Records that nodes sent of themselves over their own connection stay as long as there are
//! others. So a flood displaces itself.

use std::collections::BTreeMap;
use std::time::Duration;

use fednode_core::limits::CLOCK_SKEW;
use fednode_core::{FederationId, NodeId, Timestamp};
use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use rand::Rng;
use rand::seq::SliceRandom;

use crate::bounded::Bounded;
use crate::codec;
use crate::identity::{self, Identity, RECORD_DOMAIN};
use crate::wire::{MAX_ADDRESSES, MAX_RECORD_BYTES, MAX_RECORDS, Record, Scope, SignedRecord};

/// Life of a record: several exchanges, so that the record of a live node never expires. A longer life is cut to this.
const RECORD_MINUTES: u16 = 30;
/// Records kept: well above the number of peers of a node, so that the node has a choice.
const MAX_KEPT: usize = 1024;
/// Bytes of one address. No transport of this node has longer ones.
const MAX_ADDRESS_BYTES: usize = 128;
/// Life of an unsigned hint.
const HINT_LIFE: Duration = Duration::from_secs(300);

/// Tells why a record was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RecordError {
    #[error("a malformed address record")]
    Malformed,
    #[error("an address record with a wrong signature")]
    Signature,
    #[error("an address record that has expired, is dated ahead, or is of another federation")]
    Stale,
    #[error("an address record of a node that is not wanted")]
    Unwanted,
    #[error("one address record more than there is room for")]
    NoRoom,
}

impl RecordError {
    /// Tells whether an honest node might have passed the record on. Then it must not lower that node's standing.
    pub(crate) fn is_innocent(self) -> bool {
        match self {
            Self::Malformed | Self::Signature => false,
            Self::Stale | Self::Unwanted | Self::NoRoom => true,
        }
    }
}

/// The known addresses of members.
#[derive(Debug, Default)]
pub(crate) struct AddressBook {
    records: BTreeMap<(NodeId, Scope), Entry>,
    hints: BTreeMap<NodeId, Hint>,
    /// Number of records received so far; it orders them.
    arrivals: u64,
}

#[derive(Debug)]
struct Entry {
    signed: SignedRecord,
    addresses: Vec<Multiaddr>,
    issued_at: Timestamp,
    expires_at: Timestamp,
    /// The peer that first sent a record of the node, or the node itself if it ever sent one.
    source: NodeId,
    /// The number of that first record.
    arrival: u64,
}

impl Entry {
    /// Takes another record of the same node and scope, if it is newer.
    ///
    /// The source stays, unless the node now sent the record itself. So no peer takes an entry over by repeating it.
    fn update(&mut self, other: Self, node: NodeId) {
        if other.source == node {
            self.source = node;
        }
        if self.issued_at < other.issued_at {
            *self = Self {
                source: self.source,
                arrival: self.arrival,
                ..other
            };
        }
    }
}

#[derive(Debug)]
struct Hint {
    addresses: Vec<Multiaddr>,
    expires_at: Timestamp,
}

impl AddressBook {
    /// Checks a record from `source`, and enters it if its node is wanted and it is newer than the known one.
    ///
    /// Returns the node of the record.
    pub(crate) fn enter(
        &mut self,
        signed: SignedRecord,
        source: NodeId,
        federation: FederationId,
        now: Timestamp,
        is_wanted: impl Fn(&NodeId) -> bool,
    ) -> Result<NodeId, RecordError> {
        let record: Record =
            codec::decode(&signed.payload, MAX_RECORD_BYTES).map_err(|_| RecordError::Malformed)?;
        // Shape and signature first: both convict the sender, whatever the record says.
        let addresses = checked_addresses(&record)?;
        if !identity::signed_by(
            &record.node,
            RECORD_DOMAIN,
            &signed.payload,
            &signed.signature,
        ) {
            return Err(RecordError::Signature);
        }
        if !is_wanted(&record.node) {
            return Err(RecordError::Unwanted);
        }
        let life = Duration::from_secs(60 * u64::from(record.minutes.min(RECORD_MINUTES)));
        // A clock that runs ahead must not prolong the life of a record.
        let expires_at = record.issued_at.min(now) + life;
        // Nor may one that is dated far ahead live for ever: entered anew, it would begin its life again, and no later record of
        // its node would count beside it.
        let is_ahead = record.issued_at > now + CLOCK_SKEW;
        if record.federation != federation || expires_at <= now || is_ahead {
            return Err(RecordError::Stale);
        }
        self.arrivals += 1;
        let (issued_at, arrival) = (record.issued_at, self.arrivals);
        let entry = Entry {
            signed,
            addresses,
            issued_at,
            expires_at,
            source,
            arrival,
        };
        self.keep((record.node, record.scope), entry)
    }

    /// Enters a checked record. Refuses it if the book is full and this record is the one that gives way.
    fn keep(&mut self, key: (NodeId, Scope), entry: Entry) -> Result<NodeId, RecordError> {
        let (node, _) = key;
        if let Some(known) = self.records.get_mut(&key) {
            known.update(entry, node);
            return Ok(node);
        }
        // Inserted first, so that the new record is ranked like all others.
        self.records.insert(key, entry);
        self.enforce_bound();
        if self.records.contains_key(&key) {
            Ok(node)
        } else {
            Err(RecordError::NoRoom)
        }
    }

    /// Remembers an address at which a node may be reached.
    pub(crate) fn hint(&mut self, node: NodeId, address: Multiaddr, now: Timestamp) {
        // mDNS is unsigned: a machine on the local network can name any number of nodes.
        if self.hints.len() >= MAX_KEPT && !self.hints.contains_key(&node) {
            return;
        }
        let hint = self.hints.entry(node).or_insert(Hint {
            addresses: Vec::new(),
            expires_at: now,
        });
        hint.expires_at = now + HINT_LIFE;
        if !hint.addresses.contains(&address) && hint.addresses.len() < MAX_ADDRESSES {
            hint.addresses.push(address);
        }
    }

    /// Returns the addresses of a node, signed ones and hints.
    pub(crate) fn addresses(&self, node: &NodeId) -> Vec<Multiaddr> {
        let hints = self
            .hints
            .get(node)
            .into_iter()
            .flat_map(|hint| hint.addresses.clone());
        let mut addresses: Vec<Multiaddr> = self.signed(node).into_iter().chain(hints).collect();
        // A node often has one address in several records; each dial would try it again. Relays come last.
        addresses.sort_by(|a, b| (is_circuit(a), a).cmp(&(is_circuit(b), b)));
        addresses.dedup();
        // One bound for records and hints together: each address is one more socket of the same dial.
        addresses.truncate(MAX_ADDRESSES);
        addresses
    }

    /// Returns the addresses of a node in its own words.
    pub(crate) fn signed(&self, node: &NodeId) -> Vec<Multiaddr> {
        let scopes = [Scope::Loopback, Scope::Network].into_iter();
        let entries = scopes.filter_map(|scope| self.records.get(&(*node, scope)));
        entries.flat_map(|entry| entry.addresses.clone()).collect()
    }

    /// Visits the nodes with a known address, some twice.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        let recorded = self.records.keys().map(|(node, _)| *node);
        recorded.chain(self.hints.keys().copied())
    }

    /// Draws records for a peer. Loopback addresses go only to a process of the same machine.
    pub(crate) fn draw<R: Rng>(
        &self,
        to_loopback: Reach,
        except: &NodeId,
        rng: &mut R,
    ) -> Vec<SignedRecord> {
        let fits = |scope: Scope| scope == Scope::Network || to_loopback == Reach::SameMachine;
        let entries = self
            .records
            .iter()
            .filter(|((node, scope), _)| node != except && fits(*scope));
        let mut records: Vec<SignedRecord> =
            entries.map(|(_, entry)| entry.signed.clone()).collect();
        // A draw and not the first ones: every newcomer learns of other nodes, so no node is dialed by all.
        records.shuffle(rng);
        records.truncate(MAX_RECORDS);
        records
    }

    /// Forgets expired records and hints.
    pub(crate) fn prune(&mut self, now: Timestamp) {
        self.records.retain(|_, entry| entry.expires_at > now);
        self.hints.retain(|_, hint| hint.expires_at > now);
    }

    /// Makes room at the cost of the source with the most records, newest first.
    ///
    /// A record that its own node sent goes only if there is no other.
    fn enforce_bound(&mut self) {
        if self.records.len() <= MAX_KEPT {
            return;
        }
        let mut told: BTreeMap<NodeId, usize> = BTreeMap::new();
        for entry in self.records.values() {
            *told.entry(entry.source).or_default() += 1;
        }
        // In this order: records that a node did not send itself, of the source with the most records, the newest one. A
        // flood is all of that: it is told by others, in great number, and late.
        let rank = |node: &NodeId, entry: &Entry| {
            let is_hearsay = entry.source != *node;
            (is_hearsay, told.get(&entry.source).copied(), entry.arrival)
        };
        let surplus = self
            .records
            .iter()
            .max_by_key(|((node, _), entry)| rank(node, entry))
            .map(|(key, _)| *key);
        surplus.and_then(|key| self.records.remove(&key));
    }
}

/// Whether a peer runs on the same machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    SameMachine,
    Elsewhere,
}

impl Reach {
    /// Derives it from the remote address of a connection.
    pub(crate) fn of(remote: &Multiaddr) -> Self {
        if is_loopback(remote) {
            Self::SameMachine
        } else {
            Self::Elsewhere
        }
    }
}

/// Signs this node's addresses: one record for the network and one for the same machine, each only if it has any.
///
/// Addresses that cannot be dialed are left out, because some come from peers.
pub(crate) fn own_records(
    identity: &Identity,
    federation: FederationId,
    addresses: &[Multiaddr],
    now: Timestamp,
) -> Vec<SignedRecord> {
    let (loopback, network): (Vec<&Multiaddr>, Vec<&Multiaddr>) = addresses
        .iter()
        .filter(|address| is_tellable(address))
        .partition(|address| is_loopback(address));
    let sign = |scope, addresses: Vec<&Multiaddr>| {
        let bytes = addresses
            .into_iter()
            .map(|address| serde_bytes::ByteBuf::from(bare(address).to_vec()));
        let addresses = Bounded::first_of(bytes);
        let node = identity.node_id();
        let record = Record {
            federation,
            node,
            scope,
            addresses,
            issued_at: now,
            minutes: RECORD_MINUTES,
        };
        let payload = codec::encode(&record);
        SignedRecord {
            signature: identity.sign(RECORD_DOMAIN, &payload),
            payload,
        }
    };
    let groups = [(Scope::Network, network), (Scope::Loopback, loopback)];
    groups
        .into_iter()
        .filter(|(_, group)| !group.is_empty())
        .map(|(scope, group)| sign(scope, group))
        .collect()
}

/// Tells whether an address may be part of a record.
pub(crate) fn is_tellable(address: &Multiaddr) -> bool {
    let bare = bare(address);
    is_dialable(&bare) && bare.len() <= MAX_ADDRESS_BYTES
}

fn checked_addresses(record: &Record) -> Result<Vec<Multiaddr>, RecordError> {
    let parse = |bytes: &serde_bytes::ByteBuf| {
        let short = bytes.len() <= MAX_ADDRESS_BYTES;
        let address = Multiaddr::try_from(bytes.to_vec()).ok().filter(|_| short)?;
        // A loopback address in a record for the network would make every reader dial itself.
        let in_scope = is_loopback(&address) == (record.scope == Scope::Loopback);
        (in_scope && is_dialable(&address)).then_some(address)
    };
    let addresses: Option<Vec<Multiaddr>> = record.addresses.as_slice().iter().map(parse).collect();
    addresses
        .filter(|addresses| !addresses.is_empty())
        .ok_or(RecordError::Malformed)
}

/// Tells whether an address belongs to a transport of a member: a host and a TCP or QUIC port, perhaps of a relay.
fn is_dialable(address: &Multiaddr) -> bool {
    let parts: Vec<Protocol<'_>> = address.iter().collect();
    let parts = match parts.as_slice() {
        [host @ .., Protocol::P2p(_), Protocol::P2pCircuit] => host,
        parts => parts,
    };
    // Anything longer (web sockets, a second host) would dial something that the record does not say.
    let host = matches!(
        parts.first(),
        Some(
            Protocol::Ip4(_)
                | Protocol::Ip6(_)
                | Protocol::Dns(_)
                | Protocol::Dns4(_)
                | Protocol::Dns6(_)
        )
    );
    let port = matches!(
        parts.get(1..),
        Some([Protocol::Tcp(_)] | [Protocol::Udp(_), Protocol::QuicV1])
    );
    // An unspecified host leads the reader to itself, as loopback does.
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
pub fn is_loopback(address: &Multiaddr) -> bool {
    match address.iter().next() {
        Some(Protocol::Ip4(ip)) => ip.is_loopback(),
        Some(Protocol::Ip6(ip)) => ip.is_loopback(),
        Some(Protocol::Dns(name) | Protocol::Dns4(name) | Protocol::Dns6(name)) => {
            name == "localhost"
        }
        _ => false,
    }
}

/// Tells whether an address leads through a relay.
pub fn is_circuit(address: &Multiaddr) -> bool {
    address.iter().any(|part| part == Protocol::P2pCircuit)
}

/// Returns the relay that an address leads through.
pub(crate) fn relay_of(address: &Multiaddr) -> Option<NodeId> {
    let parts: Vec<Protocol<'_>> = address.iter().collect();
    parts.windows(2).find_map(|pair| match pair {
        [Protocol::P2p(relay), Protocol::P2pCircuit] => identity::node_id(relay),
        _ => None,
    })
}

/// Tells whether an address has a host that the whole internet can reach, as far as its number says.
pub(crate) fn is_global(address: &Multiaddr) -> bool {
    match address.iter().next() {
        Some(Protocol::Ip4(ip)) => {
            // 100.64.0.0/10 lies between a provider's routers and its customers.
            let is_shared = ip.octets()[0] == 100 && ip.octets()[1] & 0xc0 == 64;
            !(ip.is_private() || ip.is_loopback() || ip.is_link_local() || is_shared)
        }
        Some(Protocol::Ip6(ip)) => {
            !(ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local())
        }
        _ => false,
    }
}

/// Returns the address without the node id at its end. That of a relay in its middle stays.
pub(crate) fn bare(address: &Multiaddr) -> Multiaddr {
    let mut address = address.clone();
    if matches!(address.iter().last(), Some(Protocol::P2p(_))) {
        address.pop();
    }
    address
}

/// Returns the node that an address names at its end.
pub fn node_of(address: &Multiaddr) -> Option<NodeId> {
    match address.iter().last() {
        Some(Protocol::P2p(peer)) => identity::node_id(&peer),
        _ => None,
    }
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

    fn record(of: &Identity, address: &str, minutes: u16) -> SignedRecord {
        let bytes = address.parse::<Multiaddr>().unwrap().to_vec();
        let addresses = Bounded::first_of([serde_bytes::ByteBuf::from(bytes)]);
        let (federation, node) = (HOME, of.node_id());
        let record = Record {
            federation,
            node,
            scope: Scope::Network,
            addresses,
            issued_at: NOW,
            minutes,
        };
        let payload = codec::encode(&record);
        SignedRecord {
            signature: of.sign(RECORD_DOMAIN, &payload),
            payload,
        }
    }

    fn anybody(_: &NodeId) -> bool {
        true
    }

    /// Enters a record that `source` sent, now.
    fn tell(
        book: &mut AddressBook,
        signed: SignedRecord,
        source: NodeId,
    ) -> Result<NodeId, RecordError> {
        book.enter(signed, source, HOME, NOW, anybody)
    }

    #[test]
    fn a_record_that_is_dated_ahead_takes_no_place_of_a_true_one() {
        let ann = Identity::generate();
        let dated = |at: Timestamp| {
            let own = addresses(&["/ip4/10.0.0.1/tcp/1"]);
            own_records(&ann, HOME, &own, at).remove(0)
        };
        let mut book = AddressBook::default();
        let far = dated(NOW + Duration::from_secs(3600));
        assert_eq!(tell(&mut book, far, ann.node_id()), Err(RecordError::Stale));
        let fast = dated(NOW + Duration::from_secs(200));
        assert_eq!(tell(&mut book, fast, ann.node_id()), Ok(ann.node_id()));
    }

    #[test]
    fn loopback_addresses_stay_on_the_machine() {
        let ann = Identity::generate();
        let all = addresses(&[
            "/ip4/127.0.0.1/tcp/1",
            "/ip4/10.0.0.1/tcp/1",
            "/ip6/::1/tcp/1",
        ]);
        let mut book = AddressBook::default();
        for record in own_records(&ann, HOME, &all, NOW) {
            assert_eq!(tell(&mut book, record, ann.node_id()), Ok(ann.node_id()));
        }
        let other = Identity::generate().node_id();
        let mut rng = StdRng::seed_from_u64(1);
        assert_eq!(book.draw(Reach::SameMachine, &other, &mut rng).len(), 2);
        let public = book.draw(Reach::Elsewhere, &other, &mut rng);
        let mut elsewhere = AddressBook::default();
        public
            .into_iter()
            .for_each(|record| _ = tell(&mut elsewhere, record, other).unwrap());
        assert_eq!(
            elsewhere.addresses(&ann.node_id()),
            addresses(&["/ip4/10.0.0.1/tcp/1"])
        );
        assert!(
            book.draw(Reach::SameMachine, &ann.node_id(), &mut rng)
                .is_empty(),
            "nobody is told its own"
        );
    }

    #[test]
    fn a_record_is_its_nodes_own_word_and_of_this_federation() {
        let (ann, bob) = (Identity::generate(), Identity::generate());
        let good = own_records(&ann, HOME, &addresses(&["/ip4/10.0.0.1/tcp/1"]), NOW).remove(0);
        let mut book = AddressBook::default();
        let forged = SignedRecord {
            signature: bob.sign(RECORD_DOMAIN, &good.payload),
            ..good.clone()
        };
        let mut enter = |signed: SignedRecord, federation, after| {
            book.enter(
                signed,
                bob.node_id(),
                federation,
                NOW + Duration::from_secs(after),
                anybody,
            )
        };
        assert_eq!(enter(forged, HOME, 0), Err(RecordError::Signature));
        assert_eq!(
            enter(good.clone(), FederationId::from_bytes([8; 32]), 0),
            Err(RecordError::Stale)
        );
        assert_eq!(enter(good.clone(), HOME, 1801), Err(RecordError::Stale));
        assert_eq!(enter(good, HOME, 1799), Ok(ann.node_id()));
    }

    #[test]
    fn a_misplaced_or_odd_address_is_malformed() {
        let ann = Identity::generate();
        let texts = [
            "/ip4/127.0.0.1/tcp/1",
            "/memory/5",
            "/ip4/10.0.0.1/tcp/1/ws",
            "/ip4/0.0.0.0/tcp/1",
            "/ip4/1.1.1.1",
        ];
        for text in texts {
            let told = tell(
                &mut AddressBook::default(),
                record(&ann, text, 5),
                ann.node_id(),
            );
            assert_eq!(told, Err(RecordError::Malformed), "{text}");
        }
    }

    #[test]
    fn the_newer_record_wins_and_expires() {
        let ann = Identity::generate();
        let at = |text, now| own_records(&ann, HOME, &addresses(&[text]), now).remove(0);
        let later = NOW + Duration::from_secs(60);
        let mut book = AddressBook::default();
        for signed in [
            at("/ip4/10.0.0.2/tcp/1", later),
            at("/ip4/10.0.0.1/tcp/1", NOW),
        ] {
            book.enter(signed, ann.node_id(), HOME, later, anybody)
                .unwrap();
        }
        assert_eq!(
            book.addresses(&ann.node_id()),
            addresses(&["/ip4/10.0.0.2/tcp/1"])
        );
        book.prune(later + Duration::from_secs(1800));
        assert!(book.addresses(&ann.node_id()).is_empty());
    }

    #[test]
    fn a_life_longer_than_an_honest_one_is_cut() {
        let ann = Identity::generate();
        for minutes in [30, 60, u16::MAX] {
            let mut book = AddressBook::default();
            tell(
                &mut book,
                record(&ann, "/ip4/10.0.0.1/tcp/1", minutes),
                ann.node_id(),
            )
            .unwrap();
            book.prune(NOW + Duration::from_secs(1799));
            assert_eq!(book.records.len(), 1, "{minutes}");
            book.prune(NOW + Duration::from_secs(1800));
            assert!(book.records.is_empty(), "{minutes}");
        }
    }

    #[test]
    fn an_unwanted_node_is_not_entered() {
        let (ann, bob) = (Identity::generate(), Identity::generate());
        let is_wanted = |node: &NodeId| *node == ann.node_id();
        let mut book = AddressBook::default();
        for (node, told) in [
            (&ann, Ok(ann.node_id())),
            (&bob, Err(RecordError::Unwanted)),
        ] {
            let signed = record(node, "/ip4/10.0.0.1/tcp/1", 30);
            assert_eq!(
                book.enter(signed, ann.node_id(), HOME, NOW, is_wanted),
                told
            );
        }
        assert_eq!(book.records.len(), 1);
        assert!(book.addresses(&bob.node_id()).is_empty());
    }

    #[test]
    fn a_flood_displaces_only_what_its_sender_told() {
        let mut book = AddressBook::default();
        let (bob, eve) = (
            Identity::generate().node_id(),
            Identity::generate().node_id(),
        );
        // A new node's record, from whoever is named or else from itself.
        let mut tell_of_another = |source: Option<NodeId>| {
            let node = Identity::generate();
            tell(
                &mut book,
                record(&node, "/ip4/10.0.0.1/tcp/1", 30),
                source.unwrap_or(node.node_id()),
            )
        };
        let honest: Vec<NodeId> = (0..200)
            .map(|n| tell_of_another((n % 2 == 0).then_some(bob)).unwrap())
            .collect();
        let refused = (0..3000)
            .filter(|_| tell_of_another(Some(eve)) == Err(RecordError::NoRoom))
            .count();
        assert_eq!(refused, 3000 + honest.len() - MAX_KEPT);
        let late = [
            tell_of_another(None).unwrap(),
            tell_of_another(Some(bob)).unwrap(),
        ];
        assert_eq!(book.records.len(), MAX_KEPT);
        assert!(
            honest
                .iter()
                .chain(&late)
                .all(|node| !book.addresses(node).is_empty())
        );
    }

    #[test]
    fn repeated_address_keeps_its_first_owner() {
        let (ann, eve) = (Identity::generate(), Identity::generate().node_id());
        let at = |text, now| own_records(&ann, HOME, &addresses(&[text]), now).remove(0);
        let source = |book: &AddressBook| book.records[&(ann.node_id(), Scope::Network)].source;
        let (old, later) = (at("/ip4/10.0.0.1/tcp/1", NOW), NOW + Duration::from_secs(1));
        let mut book = AddressBook::default();
        tell(&mut book, old.clone(), eve).unwrap();
        assert_eq!(source(&book), eve);
        tell(&mut book, old, ann.node_id()).unwrap();
        assert_eq!(source(&book), ann.node_id());
        book.enter(at("/ip4/10.0.0.2/tcp/1", later), eve, HOME, later, anybody)
            .unwrap();
        assert_eq!(source(&book), ann.node_id());
        assert_eq!(
            book.addresses(&ann.node_id()),
            addresses(&["/ip4/10.0.0.2/tcp/1"])
        );
    }

    #[test]
    fn an_address_through_a_relay_names_the_relay_and_the_node() {
        let (ann, relay) = (
            Identity::generate().node_id(),
            Identity::generate().node_id(),
        );
        let through = format!("/ip4/192.0.2.1/tcp/1/p2p/{relay}/p2p-circuit");
        let address: Multiaddr = format!("{through}/p2p/{ann}").parse().unwrap();
        assert_eq!(
            (node_of(&address), relay_of(&address)),
            (Some(ann), Some(relay))
        );
        assert_eq!(bare(&address), addresses(&[&through])[0]);
        assert_eq!(node_of(&bare(&address)), None);
        assert!(is_circuit(&address) && is_tellable(&address));
        let twice = format!("{through}/p2p/{relay}/p2p-circuit")
            .parse()
            .unwrap();
        assert!(!is_tellable(&twice), "a relay through a relay");
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
