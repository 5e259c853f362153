//! Joining: a node that is no member yet shows its ticket's secret, and gets the spec and its certificate.
//!
//! ```text
//!   joiner ── JoinAsk(invitation, proof) ──► the organiser's process ──► Registrar (files, key)
//!          ◄── the spec, all statements ────        or why not
//! ```
//!
//! This is all that a stranger may ask for, on a stream of its own and before any hello. A request is a hundred bytes, and
//! few are answered at once.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{fmt, io};

use fednode_core::NodeId;
use fednode_core::membership::SignedStatement;
use futures::{AsyncWriteExt, StreamExt};
use libp2p::multiaddr::Protocol;
use libp2p::swarm::dial_opts::DialOpts;
use libp2p::swarm::{self, NetworkBehaviour, Swarm, SwarmEvent};
use libp2p::{Multiaddr, PeerId, Stream, StreamProtocol, relay};
use prometheus_client::registry::Registry;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::behaviour::IDLE_TIMEOUT;
use crate::codec::{self, CodecError};
use crate::identity::{Identity, node_id, peer_id};
use crate::task::reason_of;
use crate::ticket::Ticket;
use crate::transport;

/// Name of the protocol.
pub(crate) const JOIN_PROTOCOL: &str = "/fednode/join/1";
/// Largest request.
const MAX_ASK: usize = 256;
/// Largest answer: a spec with thousands of columns, and all statements.
const MAX_ANSWER: usize = 8 << 20;
/// Requests that are answered at once. Others wait their turn, as long as their patience lasts.
const MAX_AT_ONCE: usize = 4;
/// Streams that are read at once, one for each joiner. Others are reset, and the joiner tries again.
const MAX_READ: usize = 64;
/// Time for a joiner to say what it wants.
const ASK_PATIENCE: Duration = Duration::from_secs(2);
/// How often a joiner asks again whose stream was reset, and how long it waits before.
const ATTEMPTS: usize = 3;
const PAUSE: Duration = Duration::from_secs(1);
/// Time for one request, from the opening of its stream.
const ANSWER_PATIENCE: Duration = Duration::from_secs(8);
/// Time for a connection to one address of a ticket.
const DIAL_PATIENCE: Duration = Duration::from_secs(8);

/// "I was invited."
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JoinAsk {
    /// The name of the invitation.
    #[serde(with = "serde_bytes")]
    pub invitation: [u8; 16],
    /// Shows that the sender has the invitation's secret ([`crate::InvitationSecret::proof`]).
    #[serde(with = "serde_bytes")]
    pub proof: [u8; 32],
}

/// What a member needs to begin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Admitted {
    /// The federation's spec as TOML.
    pub spec: String,
    /// All that the organiser has said of members, the new one among them.
    pub statements: Vec<SignedStatement>,
}

/// Tells why an invitation does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "kebab-case")]
pub enum JoinRefusal {
    /// There is no such invitation, or the proof is wrong: who does not know the secret does not learn which.
    #[error("the organiser knows no such invitation, or has withdrawn it: ask for a new ticket")]
    Unknown,
    /// Another node has used it.
    #[error("this ticket was used already: each is for one node, so ask for another")]
    Used,
    /// It is too old.
    #[error("this ticket has expired: ask for a new one")]
    Expired,
    /// The organiser has revoked this node's key, or the ticket is there to replace it.
    #[error(
        "this needs another key than the one in this folder: use the ticket with `fednode rotate-key`, which keeps what the node \
         has learned, or join from an empty folder"
    )]
    Revoked,
    /// The organiser's process cannot answer now.
    #[error("the organiser's process has a problem of its own: its log says which")]
    Broken,
}

/// Answers invitations. What it does may block.
pub trait Registrar: Send + Sync + fmt::Debug {
    /// Admits a node that shows an invitation's secret at `responder`.
    ///
    /// # Errors
    /// Tells the joiner why not.
    fn admit(
        &self,
        ask: &JoinAsk,
        joiner: NodeId,
        responder: NodeId,
    ) -> Result<Admitted, JoinRefusal>;
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum JoinAnswer {
    /// "You are a member."
    Admitted(Admitted),
    /// "This ticket does not count."
    Refused(JoinRefusal),
}

/// Tells why a node could not join.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// No address of the ticket led to the organiser's process.
    #[error("the organiser's process cannot be reached: {0}")]
    Unreachable(String),
    /// It does not answer invitations.
    #[error(
        "{0} does not admit members: the organiser's folder must be on the process that the ticket names"
    )]
    NotThere(NodeId),
    /// The invitation does not count.
    #[error(transparent)]
    Refused(#[from] JoinRefusal),
    /// The connection failed in the middle.
    #[error("the organiser's process did not answer: {0}")]
    Failed(String),
}

/// The joiners whose request is being read or answered.
type Readers = Arc<Mutex<BTreeSet<NodeId>>>;

/// A joiner's one place among them. It is given back when dropped.
struct Reading {
    readers: Readers,
    joiner: NodeId,
}

impl Reading {
    fn begin(readers: &Readers, joiner: NodeId) -> Option<Self> {
        let mut all = readers.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MAX_READ || !all.insert(joiner) {
            return None;
        }
        Some(Self {
            readers: readers.clone(),
            joiner,
        })
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let mut all = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(&self.joiner);
    }
}

/// Answers invitations until cancelled.
pub(crate) async fn serve(
    mut incoming: libp2p_stream::IncomingStreams,
    registrar: Arc<dyn Registrar>,
    own: NodeId,
    cancel: CancellationToken,
) {
    let places = Arc::new(Semaphore::new(MAX_AT_ONCE));
    let readers = Readers::default();
    let tasks = TaskTracker::new();
    loop {
        let (peer, stream) = tokio::select! {
            () = cancel.cancelled() => break,
            next = incoming.next() => match next {
                Some(next) => next,
                None => break,
            },
        };
        // Dropping the stream resets it, and the joiner tries again. Silent strangers take no place from others.
        let Some(joiner) = node_id(&peer) else {
            continue;
        };
        let Some(reading) = Reading::begin(&readers, joiner) else {
            continue;
        };
        let (registrar, cancel, places) = (registrar.clone(), cancel.clone(), places.clone());
        tasks.spawn(async move {
            let answered = answer(stream, registrar, &places, joiner, own);
            // It ends before the connection does: one without a hello is closed soon, and a joiner sends none.
            let answered = timeout(ANSWER_PATIENCE, answered);
            tokio::select! {
                () = cancel.cancelled() => {}
                answered = answered => match answered {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::debug!(%joiner, %error, "no invitation"),
                    Err(_) => tracing::debug!(%joiner, "an invitation took too long"),
                },
            }
            drop(reading);
        });
    }
    tasks.close();
    tasks.wait().await;
}

async fn answer(
    mut stream: Stream,
    registrar: Arc<dyn Registrar>,
    places: &Semaphore,
    joiner: NodeId,
    own: NodeId,
) -> Result<(), CodecError> {
    let late = || CodecError::Io(io::ErrorKind::TimedOut.into());
    let asked = timeout(ASK_PATIENCE, codec::read(&mut stream, MAX_ASK)).await;
    let (ask, _): (JoinAsk, u64) = asked.map_err(|_| late())??;
    let _place = places.acquire().await;
    // The registrar reads and writes files.
    let admitted = tokio::task::spawn_blocking(move || registrar.admit(&ask, joiner, own)).await;
    let answer = match admitted.unwrap_or(Err(JoinRefusal::Broken)) {
        Ok(admitted) => JoinAnswer::Admitted(admitted),
        Err(refusal) => JoinAnswer::Refused(refusal),
    };
    codec::write(&mut stream, &answer, MAX_ANSWER).await?;
    Ok(stream.close().await?)
}

/// Uses a ticket: asks the organiser's process, at each address of the ticket in turn, to admit this identity.
///
/// # Errors
/// Tells why not. An unreachable address does not use the ticket up, and the same node may ask again.
pub async fn join(ticket: &Ticket, identity: &Identity) -> Result<Admitted, JoinError> {
    let mut failures = Vec::new();
    for address in &ticket.addresses {
        match join_at(ticket, identity, address).await {
            Err(JoinError::Unreachable(why) | JoinError::Failed(why)) => {
                failures.push(format!("{address}: {why}"));
            }
            Err(JoinError::NotThere(node)) => {
                failures.push(format!("{address}: {}", JoinError::NotThere(node)));
            }
            // A refusal is final: every address of the ticket leads to the same invitations.
            answer => return answer,
        }
    }
    if failures.is_empty() {
        failures.push("the ticket names no address".into());
    }
    Err(JoinError::Unreachable(failures.join("; ")))
}

/// Asks at one address, again if the stream is reset.
async fn join_at(
    ticket: &Ticket,
    identity: &Identity,
    address: &Multiaddr,
) -> Result<Admitted, JoinError> {
    let unreachable = |why: &str| JoinError::Unreachable(why.to_owned());
    let responder = last_node(address).ok_or_else(|| unreachable("it names no node"))?;
    let (mut swarm, mut control) = joiner(ticket, identity)?;
    let connecting = connect(&mut swarm, address, responder, ticket.network_key.is_some());
    timeout(DIAL_PATIENCE, connecting)
        .await
        .map_err(|_| unreachable("no answer"))?
        .map_err(JoinError::Unreachable)?;
    // A swarm moves bytes only while it is polled, and the request below waits for them.
    let polling = AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            swarm.select_next_some().await;
        }
    }));
    let ask = JoinAsk {
        invitation: ticket.secret.name(),
        proof: ticket.secret.proof(identity.node_id(), responder),
    };
    let mut answer = Err(JoinError::Failed("it was not asked".into()));
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            tokio::time::sleep(PAUSE).await;
        }
        let asked = timeout(ANSWER_PATIENCE, ask_at(&mut control, responder, &ask)).await;
        answer = asked.unwrap_or_else(|_| Err(JoinError::Failed("it took too long".into())));
        if !matches!(answer, Err(JoinError::Failed(_))) {
            break;
        }
    }
    drop(polling);
    answer
}

/// What a joiner's connection carries: one stream. A relay takes members only, so it is not asked; the transport has one.
#[derive(NetworkBehaviour)]
struct Joining {
    streams: libp2p_stream::Behaviour,
    relay: relay::client::Behaviour,
}

/// Makes a swarm that can do nothing but join.
fn joiner(
    ticket: &Ticket,
    identity: &Identity,
) -> Result<(Swarm<Joining>, libp2p_stream::Control), JoinError> {
    let failed = |error: std::io::Error| JoinError::Failed(error.to_string());
    let key = ticket.network_key.as_ref();
    let own = peer_id(&identity.node_id());
    let (through, relay) = relay::client::new(own);
    let transport = transport::build(identity, key, through, &mut Registry::default());
    let streams = libp2p_stream::Behaviour::new();
    let control = streams.new_control();
    let config = swarm::Config::with_tokio_executor().with_idle_connection_timeout(IDLE_TIMEOUT);
    let behaviour = Joining { streams, relay };
    let swarm = Swarm::new(transport.map_err(failed)?, behaviour, own, config);
    Ok((swarm, control))
}

async fn connect(
    swarm: &mut Swarm<Joining>,
    address: &Multiaddr,
    responder: NodeId,
    has_network_key: bool,
) -> Result<(), String> {
    let options = DialOpts::unknown_peer_id().address(address.clone()).build();
    swarm.dial(options).map_err(|error| error.to_string())?;
    loop {
        match swarm.select_next_some().await {
            SwarmEvent::ConnectionEstablished { peer_id, .. }
                if node_id(&peer_id) == Some(responder) =>
            {
                return Ok(());
            }
            SwarmEvent::OutgoingConnectionError { error, .. } => {
                return Err(reason_of(&error, has_network_key));
            }
            _ => {}
        }
    }
}

async fn ask_at(
    control: &mut libp2p_stream::Control,
    responder: NodeId,
    ask: &JoinAsk,
) -> Result<Admitted, JoinError> {
    let failed = |error: CodecError| JoinError::Failed(error.to_string());
    let protocol = StreamProtocol::new(JOIN_PROTOCOL);
    let opened = control.open_stream(peer_id(&responder), protocol).await;
    let mut stream = opened.map_err(|error| match error {
        libp2p_stream::OpenStreamError::UnsupportedProtocol(_) => JoinError::NotThere(responder),
        other => JoinError::Failed(other.to_string()),
    })?;
    codec::write(&mut stream, ask, MAX_ASK)
        .await
        .map_err(failed)?;
    stream
        .flush()
        .await
        .map_err(|error| JoinError::Failed(error.to_string()))?;
    let (answer, _) = codec::read(&mut stream, MAX_ANSWER).await.map_err(failed)?;
    match answer {
        JoinAnswer::Admitted(admitted) => Ok(admitted),
        JoinAnswer::Refused(refusal) => Err(refusal.into()),
    }
}

/// Returns the node that an address ends with.
fn last_node(address: &Multiaddr) -> Option<NodeId> {
    let parts = address.iter();
    let peer: Option<PeerId> = parts.last().and_then(|part| match part {
        Protocol::P2p(peer) => Some(peer),
        _ => None,
    });
    node_id(&peer?)
}
