//! What every connection carries: the composition of libp2p's behaviours and their settings.
//!
//! The behaviours that can deny a connection come first. The order of fields is the order of calls, and a late denial
//! would leave the earlier behaviours with a connection that does not exist.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fednode_core::{Advert, BroadcastSet, FederationId, NodeId};
use libp2p::allow_block_list::{self, AllowedPeers, BlockedPeers};
use libp2p::connection_limits::{self, ConnectionLimits};
use libp2p::gossipsub::{
    self, IdentTopic, MessageAuthenticity, MessageId, TopicHash, TopicSubscriptionFilter,
    ValidationMode,
};
use libp2p::request_response;
use libp2p::swarm::NetworkBehaviour;
use libp2p::swarm::behaviour::toggle::Toggle;
use libp2p::{Multiaddr, PeerId};
use libp2p::{dcutr, identify, mdns, ping, relay, upnp};
use prometheus_client::registry::Registry;

use crate::config::Config;
use crate::crowd::{Crowd, Keys};
use crate::gate::MAX_SIGNED_BYTES;
use crate::identity::{Identity, node_id, peer_id};
use crate::roster::Roster;
use crate::rpc::{self, Rpc};
use crate::traffic::Traffic;
use crate::welcome_only::WelcomeOnly;
use crate::wire::{GreetingCall, HelloCall, MAX_FOLLOWED, PeersCall, SyncCall};

/// The part of its name that only the topic of presence has.
pub(crate) const PRESENCE_TOPIC: &str = "presence";
/// What everybody is told of the program. Its version travels in the hello, which strangers do not get.
pub(crate) const AGENT: &str = "fednode";
/// Topics to which every node subscribes.
const COMMON_TOPICS: usize = 3;
/// Connections to one peer. Two nodes that dial each other at the same moment have two.
pub(crate) const MAX_CONNECTIONS_PER_PEER: u32 = 2;
/// Relayed connections to one peer beside those: also two, for the same reason. They must not keep out the direct ones.
const MAX_RELAYED_PER_PEER: u32 = 2;
/// Handshakes at once, in each direction. Strangers must not fill memory with half-open connections.
const MAX_PENDING: u32 = 32;
/// Connections beyond the peers that are kept, so that a full node can still tell newcomers whom else to ask.
const GUESTS: u32 = 32;
/// A connection without any stream is closed after this time. Gossip keeps those of members open.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// How often each connection is pinged. Three misses in a row close it.
const PING_INTERVAL: Duration = Duration::from_secs(10);
/// A ping may wait behind bulk data on a slow link.
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// How often mDNS asks the local network.
const MDNS_INTERVAL: Duration = Duration::from_secs(20);
/// Messages are remembered this long. A message that returns later meets the replay window of the book. Floods fill this
/// memory, so it is no longer than libp2p's own.
const DUPLICATE_MEMORY: Duration = Duration::from_secs(60);
/// Members that keep a place at this relay: as many as a large aggregator has peers.
const MAX_RESERVATIONS: usize = 1024;
/// A place is renewed well before it ends.
const RESERVATION: Duration = Duration::from_secs(3600);
/// Relayed connections at once, and those of one member. Who gets none is served by store and forward.
const MAX_CIRCUITS: usize = 256;
const MAX_CIRCUITS_PER_PEER: usize = 16;
/// Bounds of one relayed connection: some exchanges of large experts. libp2p's defaults of 128 KiB and two minutes are less
/// than one.
const CIRCUIT_LIFE: Duration = Duration::from_secs(2 * 3600);
const MAX_CIRCUIT_BYTES: u64 = 4 << 30;
/// Adverts queued for one slow peer: at most 8 MiB of the largest.
const GOSSIP_QUEUE: usize = 128;
/// An advert may wait this long for a slow peer before it is left to sync: 64 KiB to twelve peers at 1 Mbit/s.
const GOSSIP_PATIENCE: Duration = Duration::from_secs(10);

/// The topics of a federation: three for all nodes and, in a large federation, one for each author.
#[derive(Debug, Clone)]
pub(crate) struct Topics {
    prefix: String,
    /// Local updates and pool offers.
    pub(crate) advert: IdentTopic,
    /// Closed rounds and other adverts that must not queue behind those.
    pub(crate) control: IdentTopic,
    /// Who is here.
    pub(crate) presence: IdentTopic,
}

impl Topics {
    pub(crate) fn of(federation: FederationId) -> Self {
        // Two federations may have the same short name: every message names its federation in full.
        let prefix = format!("/fednode/{}/", federation.short());
        let topic = |kind: &str| IdentTopic::new(format!("{prefix}{kind}/1"));
        Self {
            advert: topic("advert"),
            control: topic("control"),
            presence: topic(PRESENCE_TOPIC),
            prefix,
        }
    }

    /// Returns the topics to which every node subscribes.
    pub(crate) fn common(&self) -> [&IdentTopic; COMMON_TOPICS] {
        [&self.advert, &self.control, &self.presence]
    }

    /// Returns the topic of an author's adverts for its followers.
    pub(crate) fn of_author(&self, author: &NodeId) -> IdentTopic {
        IdentTopic::new(format!("{}from/{author}/1", self.prefix))
    }

    /// Returns the topic on which an advert travels.
    pub(crate) fn of_advert(&self, broadcast_set: &BroadcastSet, advert: &Advert) -> IdentTopic {
        match &advert.body {
            body if body.is_control() => self.control.clone(),
            body if broadcast_set.is_for_everybody(advert.author, advert.round, body) => {
                self.advert.clone()
            }
            _ => self.of_author(&advert.author),
        }
    }
}

/// Lets peers subscribe to the federation's topics and to no others.
#[derive(Debug, Clone)]
pub(crate) struct TopicFilter {
    topics: Topics,
    /// Whether authors have topics of their own.
    by_author: bool,
}

impl TopicSubscriptionFilter for TopicFilter {
    fn can_subscribe(&mut self, topic: &TopicHash) -> bool {
        let mut common = self.topics.common().into_iter();
        let is_common = common.any(|common| *topic == common.hash());
        let of_author = || {
            let author = topic
                .as_str()
                .strip_prefix(&self.topics.prefix)?
                .strip_prefix("from/")?
                .strip_suffix("/1")?;
            author.parse::<NodeId>().ok()
        };
        is_common || (self.by_author && of_author().is_some())
    }
}

/// Gossip on the topics of the federation and no others.
pub(crate) type Gossip = gossipsub::Behaviour<
    gossipsub::IdentityTransform,
    gossipsub::MaxCountSubscriptionFilter<TopicFilter>,
>;

/// All behaviours of a connection.
#[derive(NetworkBehaviour)]
pub(crate) struct Behaviour {
    pub(crate) crowd: Crowd,
    pub(crate) limits: connection_limits::Behaviour,
    pub(crate) banned: allow_block_list::Behaviour<BlockedPeers>,
    pub(crate) allowed: Toggle<allow_block_list::Behaviour<AllowedPeers>>,
    pub(crate) greeting: request_response::Behaviour<Rpc<GreetingCall>>,
    pub(crate) hello: request_response::Behaviour<Rpc<HelloCall>>,
    pub(crate) sync: request_response::Behaviour<Rpc<SyncCall>>,
    pub(crate) peers: request_response::Behaviour<Rpc<PeersCall>>,
    pub(crate) gossip: WelcomeOnly<Gossip>,
    pub(crate) streams: libp2p_stream::Behaviour,
    pub(crate) identify: identify::Behaviour,
    pub(crate) ping: ping::Behaviour,
    pub(crate) mdns: Toggle<mdns::tokio::Behaviour>,
    pub(crate) relay: Toggle<relay::Behaviour>,
    pub(crate) relay_client: relay::client::Behaviour,
    pub(crate) punching: dcutr::Behaviour,
    pub(crate) router: Toggle<upnp::tokio::Behaviour>,
}

impl Behaviour {
    pub(crate) fn new(
        config: &Config,
        identity: &Identity,
        gossip: Gossip,
        relay_client: relay::client::Behaviour,
        traffic: &Arc<Traffic>,
        roster: &Arc<Roster>,
    ) -> io::Result<Self> {
        let mdns_config = mdns::Config {
            query_interval: MDNS_INTERVAL,
            ..mdns::Config::default()
        };
        let local = peer_id(&identity.node_id());
        let mdns = config
            .mdns
            .then(|| mdns::tokio::Behaviour::new(mdns_config, local))
            .transpose()?;
        let are_named = config.members.is_some() || config.allow.is_some();
        let keys = if are_named { Keys::Named } else { Keys::Free };
        Ok(Self {
            crowd: Crowd::new(config.max_peers, MAX_PENDING as usize, keys),
            limits: connection_limits::Behaviour::new(limits(config.max_peers)),
            banned: allow_block_list::Behaviour::default(),
            allowed: Toggle::from(config.allow.as_ref().map(|nodes| {
                let mut allowed = allow_block_list::Behaviour::<AllowedPeers>::default();
                nodes
                    .iter()
                    .for_each(|node| _ = allowed.allow_peer(peer_id(node)));
                allowed
            })),
            greeting: rpc::behaviour(traffic.clone()),
            hello: rpc::behaviour(traffic.clone()),
            sync: rpc::behaviour(traffic.clone()),
            peers: rpc::behaviour(traffic.clone()),
            gossip: WelcomeOnly::new(gossip),
            streams: libp2p_stream::Behaviour::new(),
            identify: identify::Behaviour::new(
                // Addresses travel in signed records with a scope, so identify announces none.
                identify::Config::new("/fednode/1".to_owned(), identity.keypair().public())
                    .with_agent_version(AGENT.to_owned())
                    .with_hide_listen_addrs(true)
                    .with_cache_size(0),
            ),
            ping: ping::Behaviour::new(
                ping::Config::new()
                    .with_interval(PING_INTERVAL)
                    .with_timeout(PING_TIMEOUT),
            ),
            mdns: Toggle::from(mdns),
            relay: Toggle::from(config.relay.then(|| relay_for_members(local, roster))),
            relay_client,
            punching: dcutr::Behaviour::new(local),
            router: Toggle::from(config.upnp.then(upnp::tokio::Behaviour::default)),
        })
    }
}

/// Makes a relay that serves peers whose hello was accepted, and no others.
fn relay_for_members(local: PeerId, roster: &Arc<Roster>) -> relay::Behaviour {
    // A limiter by name: who is not on the roster has a rate of zero.
    let members_only = || {
        let roster = Arc::clone(roster);
        let is_member = move |peer: PeerId, _: &Multiaddr, _: Instant| {
            node_id(&peer).is_some_and(|node| roster.role(&node).is_some())
        };
        Box::new(is_member) as Box<dyn relay::RateLimiter>
    };
    let mut relay = relay::Behaviour::new(
        local,
        relay::Config {
            max_reservations: MAX_RESERVATIONS,
            max_reservations_per_peer: MAX_CONNECTIONS_PER_PEER as usize,
            reservation_duration: RESERVATION,
            reservation_rate_limiters: vec![members_only()],
            max_circuits: MAX_CIRCUITS,
            max_circuits_per_peer: MAX_CIRCUITS_PER_PEER,
            max_circuit_duration: CIRCUIT_LIFE,
            max_circuit_bytes: MAX_CIRCUIT_BYTES,
            circuit_src_rate_limiters: vec![members_only()],
        },
    );
    // A relay is offered because a person says so, not because libp2p believes an address.
    relay.set_status(Some(relay::Status::Enable));
    relay
}

fn limits(max_peers: usize) -> ConnectionLimits {
    // A quarter of the range, so that two connections per peer and the guests cannot overflow.
    let peers = u32::try_from(max_peers)
        .unwrap_or(u32::MAX / 4)
        .min(u32::MAX / 4);
    ConnectionLimits::default()
        .with_max_pending_incoming(Some(MAX_PENDING))
        .with_max_pending_outgoing(Some(MAX_PENDING))
        .with_max_established_incoming(Some(MAX_CONNECTIONS_PER_PEER * peers + GUESTS))
        .with_max_established_outgoing(Some(MAX_CONNECTIONS_PER_PEER * peers + GUESTS))
        .with_max_established_per_peer(Some(MAX_CONNECTIONS_PER_PEER + MAX_RELAYED_PER_PEER))
}

/// Makes the gossip behaviour and subscribes to the federation's topics.
///
/// Messages carry no signature of gossipsub. Every advert has that of its author, which is checked before forwarding.
pub(crate) fn gossip(
    topics: &Topics,
    broadcast_set: BroadcastSet,
    registry: &mut Registry,
) -> Result<Gossip, String> {
    let filter = gossipsub::MaxCountSubscriptionFilter {
        filter: TopicFilter {
            topics: topics.clone(),
            by_author: broadcast_set.is_partial(),
        },
        // A node that changes all authors that it follows names the old and the new ones in one request.
        max_subscribed_topics: MAX_FOLLOWED + COMMON_TOPICS,
        max_subscriptions_per_request: 2 * MAX_FOLLOWED + COMMON_TOPICS,
    };
    let config = gossip_config().map_err(|error| error.to_string())?;
    let gossip =
        Gossip::new_with_subscription_filter(MessageAuthenticity::Anonymous, config, filter)?;
    let mut gossip = gossip.with_metrics(
        registry.sub_registry_with_prefix("gossipsub"),
        gossipsub::MetricsConfig::default(),
    );
    for topic in topics.common() {
        gossip.subscribe(topic).map_err(|error| error.to_string())?;
    }
    Ok(gossip)
}

fn gossip_config() -> Result<gossipsub::Config, gossipsub::ConfigBuilderError> {
    gossipsub::ConfigBuilder::default()
        .validation_mode(ValidationMode::Anonymous)
        .validate_messages()
        .message_id_fn(|message| {
            let mut hasher = blake3::Hasher::new();
            hasher
                .update(message.topic.as_str().as_bytes())
                .update(b"\n")
                .update(&message.data);
            MessageId::new(&hasher.finalize().as_bytes()[..20])
        })
        // The receiver compares this limit with all that it has buffered, including up to 8 KiB of the next message. So a
        // limit near the largest message kills the stream when two come back to back. `publish` has the real limit.
        .max_transmit_size(2 * MAX_SIGNED_BYTES)
        .heartbeat_initial_delay(Duration::from_millis(500))
        .history_length(12)
        .history_gossip(3)
        .mesh_n(6)
        .mesh_n_low(4)
        .mesh_n_high(12)
        .mesh_outbound_min(2)
        // In a small federation the mesh is all nodes. In a large one flooding would multiply the uplink.
        .flood_publish(false)
        // A node that has an advert announces that to its mesh. From half a KiB on that saves more than it costs.
        .idontwant_message_size_threshold(512)
        .idontwant_on_publish(false)
        .duplicate_cache_time(DUPLICATE_MEMORY)
        .connection_handler_queue_len(GOSSIP_QUEUE)
        .publish_queue_duration(GOSSIP_PATIENCE)
        .forward_queue_duration(GOSSIP_PATIENCE)
        .build()
}
