//! The port of a node that is told none: that of its last start, if it is free.
//!
//! Tickets and other members' files name a node's address. If each start took another port, a restart would make them wrong.
//! The port lies in the state folder beside the key. Where another process has it by now, the system gives a new one.

use std::io;
use std::net::{IpAddr, TcpListener};
use std::path::Path;

use fednode_files::whole_file;

/// The file in the state folder.
const FILE: &str = "port";

/// Puts the port of the last start in the place of an open one.
pub(crate) fn take_up(listen: &mut [String], state: &Path) {
    let Some((address, ip)) = open_one(listen) else {
        return;
    };
    let text = std::fs::read_to_string(state.join(FILE)).ok();
    let port = text.and_then(|text| text.trim().parse::<u16>().ok());
    let is_free = |port: &u16| *port != 0 && TcpListener::bind((ip, *port)).is_ok();
    if let Some(port) = port.filter(is_free) {
        // It ends with the open port.
        address.pop();
        address.push_str(&port.to_string());
    }
}

/// Writes down the port at which the node listens, whether it was told one or not.
///
/// # Errors
/// Passes on why the file cannot be written.
pub(crate) fn keep(asked: &[String], got: &[String], state: &Path) -> io::Result<()> {
    // Of several nobody could tell whose port is whose.
    if asked.len() != 1 {
        return Ok(());
    }
    let ports = got.iter().filter_map(|address| {
        // `/ip4/…/tcp/PORT/p2p/…`: what goes on in another way is reached through a relay.
        let mut words = address.split('/').skip(3);
        let port = (words.next() == Some("tcp")).then(|| words.next())??;
        (!address.contains("/p2p-circuit")).then_some(port)
    });
    let Some(text) = ports.map(|port| format!("{port}\n")).next() else {
        return Ok(());
    };
    let file = state.join(FILE);
    if std::fs::read_to_string(&file).is_ok_and(|known| known == text) {
        return Ok(());
    }
    whole_file::write(&file, text.as_bytes())
}

/// Returns the address with an open TCP port, if there is just one address: of several, nobody could tell whose port is whose.
fn open_one(listen: &mut [String]) -> Option<(&mut String, IpAddr)> {
    let [address] = listen else {
        return None;
    };
    let words: Vec<&str> = address.split('/').collect();
    let ["", "ip4" | "ip6", ip, "tcp", "0"] = words[..] else {
        return None;
    };
    let ip = ip.parse().ok()?;
    Some((address, ip))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_was_told_no_port_keeps_the_one_it_got() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path();
        let open = [String::from("/ip4/127.0.0.1/tcp/0")];
        let after = |asked: &[String]| {
            let mut listen = asked.to_vec();
            take_up(&mut listen, state);
            listen
        };
        assert_eq!(after(&open), open, "the first start");
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = other.local_addr().unwrap().port();
        let got = [format!("/ip4/127.0.0.1/tcp/{port}")];
        keep(&open, &got, state).unwrap();
        assert_eq!(after(&open), open, "another process has it");
        drop(other);
        assert_eq!(after(&open), got);
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let told = [format!("/ip4/{}", other.local_addr().unwrap()).replace(':', "/tcp/")];
        drop(other);
        assert_eq!(after(&told), told, "it was told one");
        keep(&told, &told, state).unwrap();
        assert_eq!(after(&open), told, "others know it by that one now");
        std::fs::write(state.join(FILE), "what").unwrap();
        assert_eq!(after(&open), open);
        let two = [open[0].clone(), String::from("/ip6/::1/tcp/0")];
        keep(&two, &got, state).unwrap();
        assert_eq!(after(&two), two);
    }
}
