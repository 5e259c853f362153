//! The reason of a failed dial, as a text that says what to check.

use std::io;

use libp2p::TransportError;
use libp2p::swarm::DialError;

use crate::dialer::Failure;
use crate::identity::node_id;

/// The consequence of a failed dial.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Consequence {
    /// Count the failure, and report it when it persists.
    Count(Failure, String),
    /// No address was tried; try later.
    Postpone,
    /// The address is that of this node; never try again.
    Forget,
}

/// Says in one line why a dial failed.
pub(crate) fn reason_of(error: &DialError, has_network_key: bool) -> String {
    match explain(error, has_network_key) {
        Consequence::Count(_, reason) => reason,
        Consequence::Postpone | Consequence::Forget => error.to_string(),
    }
}

/// Turns an error of libp2p into a consequence and a reason.
pub(super) fn explain(error: &DialError, has_network_key: bool) -> Consequence {
    match error {
        DialError::LocalPeerId { .. } => Consequence::Forget,
        // The peer is connected or being dialed already, or the dial was given up here. Neither speaks against the address.
        DialError::DialPeerConditionFalse(_) | DialError::Aborted => Consequence::Postpone,
        DialError::NoAddresses => {
            Consequence::Count(Failure::Passing, "no address is known".to_owned())
        }
        DialError::WrongPeerId { obtained, .. } => {
            let other =
                node_id(obtained).map_or_else(|| obtained.to_string(), |node| node.to_string());
            Consequence::Count(
                Failure::Lasting,
                format!(
                    "another node answers there ({other}): correct the node id at the end of the address"
                ),
            )
        }
        DialError::Denied { cause } => {
            let unwelcome = cause
                .downcast_ref::<libp2p::allow_block_list::NotAllowed>()
                .is_some();
            // A ban or a limit on connections passes by itself; an allow-list stays until a person edits it.
            if unwelcome {
                Consequence::Count(
                    Failure::Lasting,
                    "it is not on this node's own allow-list".to_owned(),
                )
            } else {
                Consequence::Postpone
            }
        }
        DialError::Transport(errors) => {
            let (failure, reason) = match errors.as_slice() {
                [] => (Failure::Passing, "no address could be tried".to_owned()),
                [(_, only)] => explain_transport(only, has_network_key),
                [(_, first), ..] => {
                    // Passing, even if the first cause lasts: those of the other addresses are not looked at.
                    let (_, reason) = explain_transport(first, has_network_key);
                    (
                        Failure::Passing,
                        format!("{reason} (and {} other addresses failed)", errors.len() - 1),
                    )
                }
            };
            Consequence::Count(failure, reason)
        }
    }
}

fn explain_transport(
    error: &TransportError<io::Error>,
    has_network_key: bool,
) -> (Failure, String) {
    let error = match error {
        TransportError::MultiaddrNotSupported(_) => {
            let reason = "this build has no transport for such an address (with a network key only TCP is possible)";
            return (Failure::Lasting, reason.to_owned());
        }
        TransportError::Other(error) => error,
    };
    use io::ErrorKind as Kind;
    let passing = |reason: &str| (Failure::Passing, reason.to_owned());
    match socket_error(error) {
        Some(Kind::ConnectionRefused) => {
            passing("connection refused: is the peer running, and is the port right?")
        }
        Some(Kind::HostUnreachable | Kind::NetworkUnreachable | Kind::AddrNotAvailable) => {
            passing("no route to that address: check the address and this machine's network")
        }
        Some(Kind::TimedOut) => {
            passing("no answer in time: check the address and the firewalls between")
        }
        _ => explain_by_words(&error.to_string(), has_network_key),
    }
}

/// Explains an error that does not come from a socket; libp2p gives only its text.
fn explain_by_words(words: &str, has_network_key: bool) -> (Failure, String) {
    let lower = words.to_lowercase();
    let has = |word: &str| lower.contains(word);
    if has("timeout") || has("timed out") {
        let reason = "no answer in time: check the address and the firewalls between";
        (Failure::Passing, reason.to_owned())
    } else if has("resolve") || has("dns") || has("no records found") {
        (
            Failure::Passing,
            format!(
                "the name could not be resolved: {}",
                words.replace('\n', " ")
            ),
        )
    } else if has_network_key {
        let reason = "something answers, but no encryption can be agreed on: the network keys probably differ";
        (Failure::Lasting, reason.to_owned())
    } else {
        let reason = "something answers, but no encryption can be agreed on: probably the peer uses a network key and \
                      this node has none, or it is no fednode";
        (Failure::Lasting, reason.to_owned())
    }
}

/// Returns the kind of the socket error inside an error, if there is one.
///
/// The kind is read from the text, because some wrappers of libp2p are missing from the chain of sources.
pub(crate) fn socket_error(error: &io::Error) -> Option<io::ErrorKind> {
    let words = error.to_string();
    let (_, number) = words.rsplit_once("(os error ")?;
    let number = number.split(')').next()?.parse().ok()?;
    Some(io::Error::from_raw_os_error(number).kind())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transport(error: io::Error) -> DialError {
        DialError::Transport(vec![(
            "/ip4/10.0.0.1/tcp/1".parse().unwrap(),
            TransportError::Other(error),
        )])
    }

    fn reason(error: &DialError, has_network_key: bool) -> (Failure, String) {
        let Consequence::Count(failure, reason) = explain(error, has_network_key) else {
            panic!("not counted")
        };
        (failure, reason)
    }

    #[test]
    fn socket_errors_are_found_however_deep() {
        let wrapped = format!(
            "Multiple dial errors occurred:\n - {}",
            io::Error::from_raw_os_error(111)
        );
        let refused = io::Error::other(io::Error::other(wrapped));
        let (failure, words) = reason(&transport(refused), false);
        assert_eq!(failure, Failure::Passing);
        assert!(words.starts_with("connection refused"), "{words}");
        let unreachable = io::Error::other(io::Error::from_raw_os_error(113));
        assert!(
            reason(&transport(unreachable), false)
                .1
                .starts_with("no route")
        );
    }

    #[test]
    fn a_failed_handshake_points_at_the_network_key() {
        let failed = || transport(io::Error::other("handshake failed: input error"));
        let (failure, words) = reason(&failed(), true);
        assert_eq!(failure, Failure::Lasting);
        assert!(
            words.contains("the network keys probably differ"),
            "{words}"
        );
        assert!(reason(&failed(), false).1.contains("this node has none"));
    }

    #[test]
    fn our_own_address_is_forgotten() {
        let own = DialError::LocalPeerId {
            address: "/ip4/10.0.0.1/tcp/1".parse().unwrap(),
        };
        assert_eq!(explain(&own, false), Consequence::Forget);
    }
}
