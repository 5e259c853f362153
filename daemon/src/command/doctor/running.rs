//! The node that runs in the state folder: its lock and its ports are no problem.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::Path;

use fednode_runtime::control::Client;
use fednode_runtime::exit::ExitCode;

use super::{Finding, Verdict};

/// The node that runs in the state folder.
#[derive(Debug)]
pub(super) struct Running {
    /// Its process, in words.
    owner: String,
    /// The TCP ports at which it listens; nothing if it takes no commands.
    ports: Option<Vec<u16>>,
}

impl Running {
    pub(super) fn finding(&self) -> Finding {
        let detail = format!(
            "a node runs here ({}): folder and ports that it uses are no problem",
            self.owner
        );
        Finding::new(Verdict::Ok, "node", detail)
    }

    /// Tells whether the node may be who listens at a port.
    fn may_listen_at(&self, port: u16) -> bool {
        self.ports
            .as_ref()
            .is_none_or(|ports| ports.contains(&port))
    }
}

/// Finds the node that runs in a state folder.
pub(super) fn running(state: &Path) -> Option<Running> {
    let owner = fednode_store::holder(state).ok().flatten()?;
    let status = Client::of(state).and_then(|client| client.status()).ok();
    let ports = status.map(|status| {
        // Where others listen for it, it has no port of its own.
        let own = status.listeners.iter();
        let own = own.filter(|address| !address.contains("/p2p-circuit"));
        own.filter_map(|address| socket(address))
            .map(|socket| socket.port())
            .collect()
    });
    Some(Running { owner, ports })
}

/// Tells whether a TCP address can be listened on, or is by the node itself.
pub(super) fn port(address: &str, node: Option<&Running>) -> Finding {
    let Some(socket) = socket(address) else {
        return Finding::new(
            Verdict::Warn,
            "port",
            format!("{address}: cannot tell, it is no /ip4 or /ip6 TCP address"),
        );
    };
    match TcpListener::bind(socket) {
        Ok(_) => Finding::new(Verdict::Ok, "port", format!("{address} is free")),
        Err(error)
            if error.kind() == io::ErrorKind::AddrInUse
                && node.is_some_and(|node| node.may_listen_at(socket.port())) =>
        {
            let detail = format!("{address} is in use, as this node runs");
            Finding::new(Verdict::Ok, "port", detail)
        }
        Err(error) => Finding::failed(
            "port",
            ExitCode::Network,
            format!("{address}: {error}; choose another with --listen"),
        ),
    }
}

/// Reads the host and port of a multiaddress.
fn socket(address: &str) -> Option<SocketAddr> {
    let mut parts = address.split('/').skip(1);
    let (family, host, tcp, port) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_ip = family == "ip4" || family == "ip6";
    (is_ip && tcp == "tcp")
        .then(|| Some((host.parse::<IpAddr>().ok()?, port.parse().ok()?).into()))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use fednode_core::FederationId;
    use fednode_store::StateFolder;

    #[test]
    fn a_port_in_use_is_found() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("/ip4/127.0.0.1/tcp/{}", taken.local_addr().unwrap().port());
        let verdict = |node: Option<&Running>| port(&address, node).verdict;
        assert_eq!(verdict(None), Verdict::Fail);
        let node = |ports| Running {
            owner: "process 1".into(),
            ports,
        };
        let own = socket(&address).unwrap().port();
        assert_eq!(verdict(Some(&node(Some(vec![own])))), Verdict::Ok);
        assert_eq!(verdict(Some(&node(None))), Verdict::Ok, "it does not say");
        let elsewhere = verdict(Some(&node(Some(Vec::new()))));
        assert_eq!(elsewhere, Verdict::Fail, "another process has it");
        drop(taken);
        assert_eq!(verdict(None), Verdict::Ok);
        let named = port("/dns4/example.org/tcp/1", None);
        assert_eq!(named.verdict, Verdict::Warn);
    }

    #[test]
    fn a_node_that_runs_is_found_by_its_lock() {
        let folder = tempfile::tempdir().unwrap();
        assert!(running(folder.path()).is_none());
        let federation = FederationId::from_bytes([1; 32]);
        let held = StateFolder::open(folder.path(), federation).unwrap();
        let found = running(folder.path()).unwrap();
        let process = format!("process {}", std::process::id());
        assert_eq!(
            (found.owner.as_str(), &found.ports),
            (process.as_str(), &None)
        );
        assert_eq!(found.finding().verdict, Verdict::Ok);
        drop(held);
        assert!(running(folder.path()).is_none());
    }
}
