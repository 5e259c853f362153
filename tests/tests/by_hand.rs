//! Federations started by hand, one process at a time: deaths, restarts, refusals.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use fednode_core::{BlobId, Round};
use fednode_e2e::{Federation, Process, SLOW_ROUNDS, is_finished, round};
use fednode_store::Store;
use serde_json::Value;

fn start_all(federation: &Federation, nodes: u32, peer: &str) -> Vec<Process> {
    (1..=nodes)
        .map(|shard| federation.start_node(shard, &[peer], &[]))
        .collect()
}

fn wait_for_all(nodes: &[Process]) {
    for node in nodes {
        node.wait_for("the last round", is_finished);
    }
}

fn closed_by(records: &[Value]) -> Vec<String> {
    records
        .iter()
        .map(|record| record["closed_by"].as_str().unwrap_or("nobody").to_owned())
        .collect()
}

#[test]
fn the_federation_survives_its_aggregator_and_takes_it_back() {
    let federation = Federation::new(3, 9, &SLOW_ROUNDS);
    let (mut fedboot, address) = federation.start_aggregator();
    let id = fedboot.status().unwrap()["node_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let nodes = start_all(&federation, 3, &address);

    nodes[0].wait_for_records(2);
    let listening = nodes[0].status().unwrap()["listeners"][0]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        nodes[0]
            .log()
            .contains(&format!("listening at {listening}\n")),
        "it says where others can join"
    );
    fedboot.kill();
    nodes[0].wait_for_records(5);
    let (listen, _) = address.split_once("/p2p/").unwrap();
    let (_fedboot, _) = federation.start_aggregator_at(listen);
    wait_for_all(&nodes);

    let closed = closed_by(&nodes[0].records());
    assert_eq!(closed.len(), 9, "{closed:?}");
    assert_eq!(closed[0], id);
    assert!(
        closed[2..5]
            .iter()
            .any(|author| *author != id && author != "nobody"),
        "nobody acted in its place: {closed:?}"
    );
    assert_eq!(
        closed.last(),
        Some(&id),
        "it was not used again: {closed:?}"
    );
}

#[test]
fn a_killed_node_resumes_and_fetches_only_what_it_lacks() {
    let federation = Federation::new(3, 8, &SLOW_ROUNDS);
    let (_fedboot, address) = federation.start_aggregator();
    let mut nodes = start_all(&federation, 3, &address);
    nodes[1].wait_for_records(2);
    nodes[1].kill();
    assert!(
        !transfers(&nodes[1]).is_empty(),
        "nothing was fetched before the crash"
    );

    nodes[1] = federation.start_node(2, &[&address], &[]);
    wait_for_all(&nodes);
    let rounds: Vec<u64> = nodes[1].records().iter().map(round).collect();
    assert!(
        rounds.starts_with(&[1, 2]) && rounds.ends_with(&[8]),
        "history is kept and goes on: {rounds:?}"
    );
    let all = transfers(&nodes[1]);
    let distinct: BTreeSet<&BlobId> = all.iter().collect();
    assert_eq!(distinct.len(), all.len(), "a blob was fetched twice");
    assert!(nodes[1].log().contains("checkpoint"), "{}", nodes[1].log());
}

/// The blobs that a node fetched from others, from its run ledger.
fn transfers(node: &Process) -> Vec<BlobId> {
    let store = Store::open_read_only(&node.state).unwrap();
    (1..=8)
        .flat_map(|round| store.ledger.transfers(Round(round)).unwrap())
        .map(|transfer| transfer.blob.id)
        .collect()
}

#[test]
fn a_latecomer_joins_through_any_member() {
    let three_of_four = ["--set", "round.quorum=0.7"];
    let federation = Federation::new(4, 8, &[&SLOW_ROUNDS[..], &three_of_four].concat());
    let (_fedboot, address) = federation.start_aggregator();
    let mut nodes = start_all(&federation, 3, &address);
    nodes[0].wait_for_records(2);
    let member = nodes[0].status().unwrap()["listeners"][0]
        .as_str()
        .unwrap()
        .to_owned();
    nodes.push(federation.start_node(4, &[&member], &[]));
    wait_for_all(&nodes);
    let late = nodes[3].records();
    assert!(
        round(&late[0]) > 1,
        "the latecomer began with round {}",
        late[0]["round"]
    );
    // A node that is late in one round on a busy machine is in time for another.
    assert!(late.iter().any(|record| record["members"] == 4), "{late:?}");
}

#[test]
fn another_spec_is_refused_and_the_key_is_named() {
    let federation = Federation::new(2, 3, &[]);
    let (_fedboot, address) = federation.start_aggregator();
    let other = Federation::new(2, 3, &["--lr", "0.123"]);
    let mut node = other.start_node(1, &[&address], &[]);
    let status = node.wait();
    assert_eq!(status.code(), Some(6), "{}", node.log());
    let line = node
        .log()
        .lines()
        .find(|line| line.starts_with("error"))
        .unwrap_or_default()
        .to_owned();
    assert!(
        line.contains("training.learning_rate") && line.contains("0.123"),
        "{}",
        node.log()
    );
}

#[test]
fn a_second_daemon_on_the_same_folder_is_refused() {
    let federation = Federation::new(2, 3, &[]);
    let (_fedboot, address) = federation.start_aggregator();
    let first = federation.start_node(1, &[&address], &[]);
    first.wait_for("it to be up", |_| true);
    let mut second = federation.start_node(1, &[&address], &[]);
    assert_eq!(second.wait().code(), Some(7), "{}", second.log());
    assert!(
        second.log().contains(&first.id().to_string()),
        "the line names the process: {}",
        second.log()
    );
}

#[test]
fn ctrl_c_ends_a_node_cleanly_and_it_goes_on_later() {
    let federation = Federation::new(2, 6, &SLOW_ROUNDS);
    let (_fedboot, address) = federation.start_aggregator();
    let mut nodes = start_all(&federation, 2, &address);
    nodes[0].wait_for_records(1);
    let pressed = std::time::Instant::now();
    fednode_e2e::signal(nodes[0].id(), rustix::process::Signal::INT);
    let status = nodes[0].wait();
    assert!(pressed.elapsed().as_secs() < 10, "{:?}", pressed.elapsed());
    assert_eq!(status.code(), Some(130), "{}", nodes[0].log());
    nodes[0] = federation.start_node(1, &[&address], &[]);
    wait_for_all(&nodes);
    fednode_e2e::signal(nodes[0].id(), rustix::process::Signal::INT);
    assert_eq!(
        nodes[0].wait().code(),
        Some(0),
        "nothing of a finished node's work is interrupted"
    );
}
