//! Starting the network: builds the swarm, listens, loads earlier adverts, and starts the tasks.

use std::io;
use std::net::{IpAddr, TcpListener};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use fednode_core::{Advert, BlobStore, BroadcastSet, NodeId, SignedAdvert, Timestamp};
use futures::StreamExt;
use libp2p::core::transport::ListenerId;
use libp2p::multiaddr::Protocol;
use libp2p::swarm::{self, Swarm, SwarmEvent};
use libp2p::{Multiaddr, StreamProtocol, TransportError, relay};
use libp2p_stream::Control;
use prometheus_client::registry::Registry;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::behaviour::{self, Behaviour, IDLE_TIMEOUT, Topics};
use crate::blob::{self, Errands, Fetcher, Wish};
use crate::book::Book;
use crate::catalogue::Catalogue;
use crate::config::Config;
use crate::event::{EVENT_QUEUE, Event, Outbox};
use crate::gate::{self, GATE_QUEUE, Rules};
use crate::handle::{COMMAND_QUEUE, Handle, Shared};
use crate::identity::{self, Identity, peer_id};
use crate::join;
use crate::roster::Roster;
use crate::task::{Beginning, Inlets, Outlets, Task, socket_error};
use crate::traffic::Traffic;
use crate::transport;
use crate::wire::BLOB_PROTOCOL;

/// Requests of the fetcher that may wait. The fetcher repeats a lost one.
const WISH_QUEUE: usize = 64;
/// Time for a listener to get its address.
const LISTEN_PATIENCE: Duration = Duration::from_secs(5);

/// Tells why the network could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The network cannot listen at an address.
    #[error("cannot listen at {address}: {reason}")]
    Listen {
        /// Which address.
        address: Multiaddr,
        /// Why, and what to check.
        reason: String,
    },
    /// The transport or a behaviour could not be set up.
    #[error("cannot set up the network: {0}")]
    Setup(String),
}

/// A running network.
#[derive(Debug)]
pub struct Network {
    /// For requests.
    pub handle: Handle,
    /// The queue of events. It must be read: adverts that find it full are ignored until sync offers them again.
    pub events: mpsc::Receiver<Event>,
    /// Ends when the network has ended.
    pub task: JoinHandle<()>,
}

/// Starts the network. Resolves when it listens.
///
/// # Errors
/// Fails if the network cannot listen at an address (a port in use), or if the transport cannot be set up.
pub async fn start(
    config: Config,
    identity: Identity,
    blobs: Arc<dyn BlobStore>,
) -> Result<Network, StartError> {
    let setup = |error: io::Error| StartError::Setup(error.to_string());
    let topics = Topics::of(config.federation);
    let mut registry = Registry::default();
    let gossip = behaviour::gossip(&topics, BroadcastSet::of(&config.spec), &mut registry)
        .map_err(StartError::Setup)?;
    let (relay, relay_client) = relay::client::new(peer_id(&identity.node_id()));
    let key = config.network_key.as_ref();
    let transport = transport::build(&identity, key, relay, &mut registry).map_err(setup)?;
    let traffic = Arc::new(Traffic::new(registry));
    let roster = Arc::new(Roster::new());
    let behaviour = Behaviour::new(&config, &identity, gossip, relay_client, &traffic, &roster);
    let behaviour = behaviour.map_err(setup)?;
    let swarm_config =
        swarm::Config::with_tokio_executor().with_idle_connection_timeout(IDLE_TIMEOUT);
    let mut swarm = Swarm::new(
        transport,
        behaviour,
        peer_id(&identity.node_id()),
        swarm_config,
    );
    // Listening comes before anything is spawned: a port in use is an error of the caller, not a log line.
    listen(&mut swarm, &config.listen).await?;
    let catalogue = Catalogue::default();
    let book = recall(&config, &catalogue, &roster).await;
    let beginning = Beginning {
        swarm,
        config,
        identity,
        topics,
        book,
    };
    let shared = Arc::new(Shared {
        node: beginning.identity.node_id(),
        listeners: RwLock::default(),
        traffic,
        roster,
        catalogue: Arc::new(catalogue),
    });
    Ok(launch(beginning, blobs, shared))
}

/// Makes the queues, and spawns the task and its helpers.
fn launch(beginning: Beginning, blobs: Arc<dyn BlobStore>, shared: Arc<Shared>) -> Network {
    let cancel = CancellationToken::new();
    let (events, received) = mpsc::channel(EVENT_QUEUE);
    let (command, commands) = mpsc::channel(COMMAND_QUEUE);
    let (wish, wishes) = mpsc::channel(WISH_QUEUE);
    let (candidate, candidates) = mpsc::channel(GATE_QUEUE);
    let (judged, checked) = mpsc::channel(GATE_QUEUE);
    // The task joins its helpers at the end, so that nothing of the network outlives it.
    let mut helpers = JoinSet::new();
    let rules = Arc::new(rules(&beginning.config, shared.node));
    helpers.spawn(gate::run(rules, candidates, judged));
    let mut control = beginning.swarm.behaviour().streams.new_control();
    if let Some(registrar) = beginning.config.registrar.clone() {
        let incoming = control
            .accept(StreamProtocol::new(join::JOIN_PROTOCOL))
            .expect("nobody else accepts invitations");
        helpers.spawn(join::serve(
            incoming,
            registrar,
            shared.node,
            cancel.clone(),
        ));
    }
    let fetcher = exchange_blobs(control, blobs, &shared, wish, &cancel, &mut helpers);
    let inlets = Inlets {
        commands,
        wishes,
        checked,
        cancel: cancel.clone(),
    };
    let compression = beginning.config.compression;
    let handle = Handle::new(
        command,
        fetcher.clone(),
        shared.clone(),
        compression,
        cancel,
    );
    let outlets = Outlets {
        events: Outbox::new(events),
        gate: candidate,
    };
    let task = Task::new(beginning, outlets, shared);
    Network {
        handle,
        events: received,
        task: tokio::spawn(task.run(inlets, helpers, fetcher)),
    }
}

/// Returns what adverts are judged by.
fn rules(config: &Config, own: NodeId) -> Rules {
    Rules {
        spec: config.spec.clone(),
        federation: config.federation,
        own,
        allow: config.allow.clone(),
        members: config.members.clone(),
    }
}

/// Serves blobs to peers; returns what fetches blobs from peers.
fn exchange_blobs(
    mut control: Control,
    blobs: Arc<dyn BlobStore>,
    shared: &Shared,
    wish: mpsc::Sender<Wish>,
    cancel: &CancellationToken,
    helpers: &mut JoinSet<()>,
) -> Fetcher {
    let incoming = control
        .accept(StreamProtocol::new(BLOB_PROTOCOL))
        .expect("nobody else accepts blob streams");
    let (roster, traffic) = (shared.roster.clone(), shared.traffic.clone());
    let fetcher = Fetcher::new(
        blobs.clone(),
        roster.clone(),
        traffic.clone(),
        control,
        wish,
        cancel.clone(),
    );
    let errands = Errands::new(fetcher.clone(), shared.catalogue.clone(), roster.clone());
    helpers.spawn(blob::serve(
        incoming,
        blobs,
        Arc::new(errands),
        roster,
        traffic,
        cancel.clone(),
    ));
    fetcher
}

/// Listens at every address and waits until each listener has one or has failed.
async fn listen(swarm: &mut Swarm<Behaviour>, addresses: &[Multiaddr]) -> Result<(), StartError> {
    for address in addresses {
        let fail = |reason: String| StartError::Listen {
            address: address.clone(),
            reason,
        };
        port_is_free(address).map_err(|error| fail(explain_listen(&error)))?;
        let listener = swarm
            .listen_on(address.clone())
            .map_err(|error| match error {
                TransportError::MultiaddrNotSupported(_) => fail(
                    "this build has no transport for it (with a network key only TCP is possible)"
                        .to_owned(),
                ),
                TransportError::Other(error) => fail(explain_listen(&error)),
            })?;
        // `listen_on` only begins: whether the address works comes as an event.
        let settled = timeout(LISTEN_PATIENCE, settled(swarm, listener)).await;
        settled
            .unwrap_or_else(|_| {
                Err(io::Error::other(
                    "no interface of this machine has the address",
                ))
            })
            .map_err(|error| fail(explain_listen(&error)))?;
    }
    Ok(())
}

async fn settled(swarm: &mut Swarm<Behaviour>, listener: ListenerId) -> io::Result<()> {
    loop {
        match swarm.select_next_some().await {
            SwarmEvent::NewListenAddr { listener_id, .. } if listener_id == listener => {
                return Ok(());
            }
            SwarmEvent::ListenerClosed {
                listener_id,
                reason,
                ..
            } if listener_id == listener => {
                return reason.and(Err(io::Error::other("the listener closed at once")));
            }
            _ => {}
        }
    }
}

/// Checks that the port is free.
///
/// Listeners of libp2p allow other listeners of the same user at their port. Connections would reach one of them at random.
fn port_is_free(address: &Multiaddr) -> io::Result<()> {
    let mut parts = address.iter();
    let ip: IpAddr = match parts.next() {
        Some(Protocol::Ip4(ip)) => ip.into(),
        Some(Protocol::Ip6(ip)) => ip.into(),
        _ => return Ok(()),
    };
    match parts.next() {
        // The probe is closed before libp2p binds, so it explains the usual mistake and guarantees nothing.
        Some(Protocol::Tcp(port)) if port != 0 => TcpListener::bind((ip, port)).map(|_| ()),
        _ => Ok(()),
    }
}

fn explain_listen(error: &io::Error) -> String {
    match socket_error(error) {
        Some(io::ErrorKind::AddrInUse) => "the port is in use: is another node running?".to_owned(),
        Some(io::ErrorKind::AddrNotAvailable) => {
            "no interface of this machine has the address".to_owned()
        }
        Some(io::ErrorKind::PermissionDenied) => {
            "permission denied: ports below 1024 need privileges".to_owned()
        }
        _ => error.to_string(),
    }
}

/// Makes a book of the adverts that earlier processes of this node received. Adverts that do not verify are left out.
async fn recall(config: &Config, catalogue: &Catalogue, roster: &Roster) -> Book {
    let (known, heard) = (config.known.clone(), config.heard.clone());
    let verified = tokio::task::spawn_blocking(move || {
        let verified = known.into_iter().filter_map(|signed| {
            let advert = identity::verify(&signed)
                .inspect_err(|error| tracing::warn!(%error, "a kept advert is damaged"));
            Some((signed, advert.ok()?))
        });
        let mut verified: Vec<(SignedAdvert, Advert)> = verified.collect();
        // In order: the window of an author forgets what comes more than 64 counters late.
        verified.sort_by_key(|(_, advert)| (advert.author, advert.sequence));
        verified
    });
    let mut book = Book::of(BroadcastSet::of(&config.spec));
    // Entered at time 0, so that they count as settled and sync offers them at once.
    for (signed, advert) in verified.await.unwrap_or_default() {
        catalogue.note(&advert, roster);
        book.insert(Arc::new(signed), &advert, Timestamp::default());
    }
    // After the adverts: where the book has the advert itself, its window is exact (see `Book::remember`).
    heard
        .into_iter()
        .for_each(|(author, sequence)| book.remember(author, sequence));
    book
}
