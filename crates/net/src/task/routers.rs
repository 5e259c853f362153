//! What the router says that was asked to forward a port (UPnP).
//!
//! The swarm takes the outer address by itself, as a confirmed one. Peers hear of it as of any other address.

use libp2p::upnp::Event;

/// Says it in the log.
pub(super) fn tell(event: &Event) {
    match event {
        Event::NewExternalAddr { external_addr, .. } => {
            tracing::info!(address = %external_addr, "the router forwards a port");
        }
        Event::ExpiredExternalAddr { external_addr, .. } => {
            tracing::warn!(address = %external_addr, "the router forwards the port no longer");
        }
        Event::GatewayNotFound => tracing::warn!(
            "no router answers that forwards ports by UPnP: others reach this node through a relay, or forward the port by hand"
        ),
        Event::NonRoutableGateway => tracing::warn!(
            "the router has no public address itself, so a forwarded port helps nobody: others reach this node through a relay"
        ),
    }
}
