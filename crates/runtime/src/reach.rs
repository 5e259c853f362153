//! Who can reach a member: a port that strangers reach needs something that tells members from strangers.

use fednode_core::FederationSpec;
use fednode_net::Multiaddr;

use crate::config::MemberConfig;
use crate::error::RunError;

/// Refuses to listen where anybody could come in, unless that is what was asked for.
///
/// # Errors
/// Names the address and the ways out.
pub(crate) fn check(config: &MemberConfig) -> Result<(), RunError> {
    let is_closed = has_organiser(&config.spec)
        || config.allow.is_some()
        || config.network_key.is_some()
        || config.open;
    let outside = config
        .listen
        .iter()
        .find(|address| !is_of_this_machine(address));
    match outside {
        Some(address) if !is_closed => Err(RunError::Configuration(format!(
            "listening at {address} would let in anybody who can reach it: admit members by ticket (`fednode init`), list \
             them (`--allow`), use a network key (`--network-key`), listen at /ip4/127.0.0.1/tcp/0, or say that you want \
             this (`--open`)"
        ))),
        _ => Ok(()),
    }
}

fn has_organiser(spec: &FederationSpec) -> bool {
    spec.organiser.is_some()
}

/// Tells whether only processes of the same machine reach an address. What is no address is refused elsewhere.
fn is_of_this_machine(address: &str) -> bool {
    let Ok(address) = address.parse::<Multiaddr>() else {
        return true;
    };
    fednode_net::is_loopback(&address)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_port_that_strangers_reach_needs_a_fence_or_a_word() {
        let listening = |at: &str| {
            let mut config = MemberConfig::new(Arc::default(), "state");
            config.listen = vec![at.into()];
            config
        };
        for inside in [
            "/ip4/127.0.0.1/tcp/0",
            "/ip6/::1/tcp/4001",
            "/ip4/127.0.0.1/udp/1/quic-v1",
        ] {
            assert!(check(&listening(inside)).is_ok(), "{inside}");
        }
        for outside in [
            "/ip4/0.0.0.0/tcp/0",
            "/ip4/192.0.2.1/tcp/1",
            "/ip6/::/tcp/1",
        ] {
            let error = check(&listening(outside)).unwrap_err().to_string();
            assert!(
                error.contains(outside) && error.contains("--open"),
                "{error}"
            );
        }
        let fenced: [fn(&mut MemberConfig); 4] = [
            |config| config.open = true,
            |config| config.allow = Some([].into()),
            |config| config.network_key = Some(fednode_net::NetworkKey::generate()),
            |config| {
                let spec = FederationSpec {
                    organiser: Some(fednode_core::NodeId::from_bytes([1; 32])),
                    ..FederationSpec::default()
                };
                config.spec = Arc::new(spec);
            },
        ];
        for fence in fenced {
            let mut config = listening("/ip4/0.0.0.0/tcp/0");
            fence(&mut config);
            assert!(check(&config).is_ok());
        }
    }
}
