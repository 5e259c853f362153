//! The transport: TCP, the optional network key, Noise, Yamux; QUIC as a cargo feature; names resolved by DNS.
//!
//! ```text
//!   TCP ─ [network key] ─ Noise ─ Yamux ─┐
//!   QUIC (feature, never with a key) ────┴─ DNS ─ byte counters ─┬─► swarm
//!   a connection with a relay ─ its stream ─ Noise ─ Yamux ───────┘
//! ```

use std::io;
use std::time::Duration;

use futures::future::Either;
use futures::io::BufReader;
use libp2p::core::muxing::StreamMuxerBox;
use libp2p::core::transport::{Boxed, Transport};
use libp2p::core::upgrade::Version;
use libp2p::metrics::BandwidthTransport;
use libp2p::pnet::PnetConfig;
use libp2p::{PeerId, dns, noise, relay, tcp};
use prometheus_client::registry::Registry;

use crate::closing::Closing;
use crate::identity::Identity;
use crate::muxer;
use crate::network_key::NetworkKey;

/// From the first packet to an authenticated connection: some round trips on the worst link that is still of use.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// The same for the side that was dialed. It is shorter than [`DIAL_TIMEOUT`]. If only one side has a network key, each
/// waits for bytes that never come, and so the dialer sees the connection end instead of its own timeout.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes read from the socket at once: the largest encrypted message. Noise alone reads 8 KiB at a time. 256 KiB gain no
/// more and fall out of the processor's cache.
const READ_BYTES: usize = 64 << 10;

type Connection = (PeerId, StreamMuxerBox);

/// Builds the transport and registers its byte counters.
pub(crate) fn build(
    identity: &Identity,
    key: Option<&NetworkKey>,
    relay: relay::client::Transport,
    registry: &mut Registry,
) -> io::Result<Boxed<Connection>> {
    // Names are resolved with the system's settings. Without any (a bare container) numeric addresses must still work.
    let resolving = match dns::tokio::Transport::system(secured(identity, key)?) {
        Ok(resolving) => resolving.boxed(),
        Err(error) => {
            tracing::warn!(%error, "no name resolution: only numeric addresses can be dialed");
            secured(identity, key)?
        }
    };
    let counted = BandwidthTransport::new(resolving, registry);
    // Beside the counters: the bytes of a relayed connection are counted in the connection that carries them.
    let relayed = relay
        .upgrade(Version::V1)
        .authenticate(noise::Config::new(&identity.keypair()).map_err(io::Error::other)?)
        .multiplex(muxer::Upgrade::new())
        .outbound_timeout(DIAL_TIMEOUT)
        .inbound_timeout(ACCEPT_TIMEOUT);
    let either = relayed.or_transport(counted).map(|output, _| {
        let (peer, muxer) = match output {
            Either::Left((peer, muxer)) => (peer, StreamMuxerBox::new(muxer)),
            Either::Right((peer, muxer)) => (peer, StreamMuxerBox::new(muxer)),
        };
        (peer, StreamMuxerBox::new(Closing::new(muxer)))
    });
    Ok(either.boxed())
}

fn secured(identity: &Identity, key: Option<&NetworkKey>) -> io::Result<Boxed<Connection>> {
    let tcp = over_tcp(identity, key)?;
    // The network key wraps TCP only. A node with a key must not be reachable around it, so it has no QUIC.
    #[cfg(feature = "quic")]
    if key.is_none() {
        let quic =
            libp2p::quic::tokio::Transport::new(libp2p::quic::Config::new(&identity.keypair()));
        let either = quic.or_transport(tcp).map(|output, _| match output {
            Either::Left((peer, muxer)) => (peer, StreamMuxerBox::new(muxer)),
            Either::Right(connection) => connection,
        });
        return Ok(either.boxed());
    }
    Ok(tcp)
}

fn over_tcp(identity: &Identity, key: Option<&NetworkKey>) -> io::Result<Boxed<Connection>> {
    // The order matters: the network key below Noise, so that a stranger sees no handshake at all; the buffer between
    // both, so that one read fills many encrypted messages.
    let key = key.map(NetworkKey::to_pre_shared_key);
    let noise = noise::Config::new(&identity.keypair()).map_err(io::Error::other)?;
    let sockets = tcp::tokio::Transport::new(tcp::Config::default().nodelay(true));
    let fenced = sockets.and_then(move |socket, _| async move {
        match key {
            Some(key) => PnetConfig::new(key)
                .handshake(socket)
                .await
                .map(Either::Left)
                .map_err(io::Error::other),
            None => Ok(Either::Right(socket)),
        }
    });
    let buffered = fenced.map(|socket, _| BufReader::with_capacity(READ_BYTES, socket));
    let secured = buffered
        .upgrade(Version::V1)
        .authenticate(noise)
        .multiplex(muxer::Upgrade::new());
    Ok(secured
        .outbound_timeout(DIAL_TIMEOUT)
        .inbound_timeout(ACCEPT_TIMEOUT)
        .boxed())
}
