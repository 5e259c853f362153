//! `fednode peers`: whom a running node knows, and how it reaches each.

use fednode_core::{Role, names};
use fednode_runtime::exit::ExitCode;
use fednode_runtime::status::Peer;
use serde::Serialize;

use fednode_cli::failure::OrFail;
use fednode_cli::output::{self, Form, Report};
use fednode_cli::state::StateArgs;
use fednode_cli::table::{duration, number, render, text};

/// What is typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    state: StateArgs,
}

/// Asks the node and prints its answer.
pub(crate) fn run(args: &Args, form: Form) -> anyhow::Result<()> {
    let peers = args.state.client()?.peers().or_fail(ExitCode::State)?;
    output::print(&Answer(peers), form)
}

#[derive(Debug, Serialize)]
struct Answer(Vec<Peer>);

impl Report for Answer {
    fn human(&self) -> String {
        if self.0.is_empty() {
            return "no peers: check --peers, the network key and that another member runs\n"
                .into();
        }
        let columns = [
            text("name"),
            text("peer"),
            text("role"),
            text("reached"),
            number("connected"),
            number("rtt"),
            number("strikes"),
            text("address"),
        ];
        render(&columns, &self.0.iter().map(row).collect::<Vec<_>>())
    }
}

fn row(peer: &Peer) -> Vec<String> {
    let role = match peer.role {
        Some(Role::Node) => "node",
        Some(Role::Aggregator) => "aggregator",
        // It was never connected, and nobody has told.
        None => "-",
    };
    vec![
        names::of(&peer.node_id).unwrap_or_else(|| "-".into()),
        peer.node_id.to_string(),
        role.to_owned(),
        peer.reached(),
        peer.connected().map_or("-".into(), duration),
        peer.rtt_milliseconds
            .map_or("-".into(), |rtt| format!("{rtt:.1} ms")),
        format!("{:.1}", peer.score),
        peer.addresses.first().cloned().unwrap_or_default(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_whom_was_never_connected_nothing_is_made_up() {
        let text = serde_json::json!({
            "node_id": fednode_core::NodeId::from_bytes([1; 32]),
            "role": null,
            "route": "none",
            "addresses": [],
            "connected_seconds": 0.0,
            "rtt_milliseconds": null,
            "software": "",
            "holds": 0,
            "score": 0.0,
        });
        let mut peer: Peer = serde_json::from_value(text).unwrap();
        let cells = row(&peer);
        assert_eq!((cells[2].as_str(), cells[4].as_str()), ("-", "-"));
        peer.role = Some(Role::Aggregator);
        peer.route = fednode_runtime::status::Route::Tcp;
        let cells = row(&peer);
        assert_eq!(
            (cells[2].as_str(), cells[4].as_str()),
            ("aggregator", "0.0 s")
        );
    }
}
