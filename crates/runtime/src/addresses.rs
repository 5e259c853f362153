//! Addresses as people type them.

use std::fmt::Display;
use std::str::FromStr;

use fednode_net::Multiaddr;

use crate::error::RunError;

/// What an address looks like.
const EXAMPLE: &str = "expected a multiaddress like /ip4/192.0.2.1/tcp/4001";

/// Reads the addresses of a setting.
///
/// # Errors
/// Names the setting, what is no address, and an example.
pub(crate) fn read<A: FromStr<Err: Display>>(
    key: &str,
    texts: &[String],
) -> Result<Vec<A>, RunError> {
    let parse = |text: &String| {
        text.parse().map_err(|error| {
            RunError::Network(format!(
                "{key}: `{text}` is no address ({error}): {EXAMPLE}"
            ))
        })
    };
    texts.iter().map(parse).collect()
}

/// Checks the addresses of a setting before anything is made of them.
///
/// # Errors
/// Refuses what a start would refuse, in the same words.
pub fn check(key: &str, texts: &[String]) -> Result<(), RunError> {
    read::<Multiaddr>(key, texts).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::ExitCode;

    #[test]
    fn what_is_no_address_is_named_with_an_example() {
        let good = ["/ip4/192.0.2.7/tcp/4001", "/dns4/hub.example/tcp/4001"];
        assert!(check("peers", &good.map(String::from)).is_ok());
        let bad = ["/ip4/192.0.2.7/tcp/4001", "192.0.2.7:4001"].map(String::from);
        let error = check("peers", &bad).unwrap_err();
        let line = error.to_string();
        assert!(
            line.starts_with("peers: `192.0.2.7:4001` is no address (") && line.ends_with(EXAMPLE),
            "{line}"
        );
        assert_eq!(error.exit_code(), ExitCode::Network);
    }
}
