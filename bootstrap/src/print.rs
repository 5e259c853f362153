//! What goes to standard output: for people, or as JSON.

use std::path::Path;

use fednode_core::{NodeId, plain};
use fednode_runtime::ExitCode as Cause;
use fednode_runtime::status::Status;
use fednode_runtime::streams;
use serde::Serialize;

use crate::Failure;

/// Prints one address at which this process listens, to be copied into `--peers`.
pub(crate) fn listening(address: &str, json: bool) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Line<'a> {
        listening: &'a str,
    }
    if json {
        print_json(&Line { listening: address })
    } else {
        print(&format!("listening at {address}"))
    }
}

/// Prints the link of a page.
pub(crate) fn link(link: &str, json: bool) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Line<'a> {
        link: &'a str,
    }
    if json {
        print_json(&Line { link })
    } else {
        print(&fednode_page::sentence(link))
    }
}

/// Prints a text as it is.
pub(crate) fn text(text: &str) -> Result<(), Failure> {
    print(text.trim_end())
}

pub(crate) fn id(node_id: NodeId, json: bool) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Line {
        node_id: NodeId,
    }
    if json {
        print_json(&Line { node_id })
    } else {
        print(&node_id.to_string())
    }
}

/// Says that this member was admitted, and what comes next.
pub(crate) fn joined(name: &str, config: &Path, json: bool) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Line<'a> {
        joined: &'a str,
        config: String,
    }
    let config = config.display().to_string();
    if json {
        print_json(&Line {
            joined: name,
            config,
        })
    } else {
        print(&format!(
            "joined as {name}; start with `fedboot start --config {config}`"
        ))
    }
}

/// Says that a process has ended.
pub(crate) fn stopped(pid: u32, json: bool) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Line {
        stopped: u32,
    }
    if json {
        print_json(&Line { stopped: pid })
    } else {
        print(&format!("fedboot has stopped (process {pid})"))
    }
}

pub(crate) fn status(status: &Status, json: bool) -> Result<(), Failure> {
    if json {
        print_json(status)
    } else {
        print(&describe(status))
    }
}

fn describe(status: &Status) -> String {
    let mut lines = vec![
        format!(
            "{} of federation `{}` ({})",
            status.node_id,
            status.name,
            status.federation.short()
        ),
        format!(
            "round {} of {}, {}; {} peers; up {:.0} s",
            status.round,
            status.rounds,
            status.phase.name(),
            status.peers,
            status.uptime_seconds
        ),
    ];
    for waiting in &status.waiting_for {
        let subject = waiting.subject(usize::MAX);
        lines.push(format!(
            "waiting since {:.0} s for {subject}",
            waiting.seconds
        ));
        lines.extend(waiting.outlook().map(|text| format!("  {text}")));
    }
    let (sent, received) = (status.traffic.sent.wire, status.traffic.received.wire);
    lines.push(format!(
        "sent {sent} bytes, received {received} bytes, holds {} bytes of blobs",
        status.blob_bytes
    ));
    lines.extend(
        status
            .listeners
            .iter()
            .map(|address| format!("listening at {address}")),
    );
    lines.extend(status.notes.iter().map(|note| format!("  {}", note.text)));
    lines.join("\n")
}

fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text =
        serde_json::to_string(value).map_err(|error| Failure::new(Cause::Internal, error))?;
    print(&text)
}

fn print(text: &str) -> Result<(), Failure> {
    // Names of peers and reasons are in it.
    let written = streams::write(&format!("{}\n", plain(text)));
    written
        .map(drop)
        .map_err(|error| Failure::new(Cause::Output, error))
}
