//! Federations of real processes that go on until somebody stops them.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

use fednode_e2e::closed::{
    join, of_organiser, organise, start_again, start_member, start_organiser, ticket,
    two_with_tables, with_tables,
};
use fednode_e2e::{Federation, Process, assert_fails, fednode, json_of, round, run, signal};
use rustix::process::Signal;
use serde_json::Value;

/// A federation that has an end after every third round.
const ENDLESS: [&str; 12] = [
    "--data",
    "digits",
    "--algorithm",
    "fedavg",
    "--rounds",
    "3",
    "--set",
    "endless=true",
    "--set",
    "statistics.enabled=true",
    "--set",
    "training.local_epochs=2",
];

/// Waits until a node has come to this round.
fn reaches(node: &Process, wanted: u64) -> Value {
    let has_come = |status: &Value| round(status) >= wanted;
    node.wait_for(&format!("round {wanted}"), has_come)
}

/// The rounds of a node's records, in order.
fn recorded(node: &Process) -> Vec<u64> {
    node.records().iter().map(round).collect()
}

fn change(folder: &Path, words: &[&str]) -> Command {
    of_organiser(folder, &[&["extend", "--json"], words].concat())
}

/// Two nodes go on over several ends. At each they gather statistics and write a model, and from one on they train by another
/// setting. One is away over an end, and one comes late. Being stopped is the end of all.
#[test]
fn a_federation_without_an_end_goes_on_until_it_is_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    organise(folder, &ENDLESS);
    let a = start_organiser(folder);
    let line = ticket(folder, &["invite", "ward-b", "--json"]);
    let mut b = start_member(join(folder, &line, "b"), folder, "b");
    reaches(&a, 5);
    let changed = json_of(&run(change(folder, &["--set", "training.local_epochs=1"])));
    let from = changed["first"].as_u64().unwrap();
    assert!(from > 4 && (from - 1).is_multiple_of(3), "{changed}");
    reaches(&b, from + 4);
    let card = std::fs::read_to_string(b.state.join("final/card.json")).unwrap();
    let card: Value = serde_json::from_str(&card).unwrap();
    assert!(card["rounds"].as_u64().unwrap() >= from + 2, "{card}");

    b.kill();
    // A federation of two needs both, so nothing is missed yet.
    let mut b = start_again(folder, "b");
    let now = round(&reaches(&b, from + 8));
    let records = b.records();
    assert_eq!(recorded(&b)[..7], [1, 2, 3, 4, 5, 6, 7]);
    let cost = |wanted: u64| {
        let record = records.iter().find(|record| round(record) == wanted);
        record.unwrap()["multiply_adds"].as_u64().unwrap()
    };
    let first = cost(1);
    assert!(cost(3) < first && cost(6) < first, "statistics at each end");
    // Rounds are short here, so it may have heard of the change after that end.
    b.wait_for("rounds of one epoch in place of two", |status| {
        status["last_record"]["multiply_adds"] == first / 2
    });

    let line = ticket(folder, &["invite", "ward-c", "--json"]);
    let c = start_member(join(folder, &line, "c"), folder, "c");
    reaches(&c, now + 4);
    assert!(recorded(&c)[0] >= now, "{:?}", recorded(&c));
    let mut audit = fednode();
    audit.args(["audit", "--json", "--state"]).arg(&a.state);
    let history = json_of(&run(audit));
    let rows = history["rounds"].as_array().unwrap();
    let is_fine = |row: &&Value| row["verdict"]["is"] == "confirmed";
    assert!(rows.len() as u64 >= now, "{history}");
    // The newest may not be confirmed yet.
    let are_fine = rows.iter().filter(is_fine).count();
    assert!(are_fine + 1 >= rows.len(), "{history}");
    let mut stop = fednode();
    stop.args(["stop", "--state"]).arg(&b.state);
    assert!(run(stop).status.success());
    assert_eq!(b.wait().code(), Some(0), "{}", b.log());
    drop((a, c));
}

/// Nodes begin anew after each end, and make new masks in the first round. In the others parts are added up.
#[test]
fn sums_under_masks_go_on_after_each_end() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let words = [
        "--rounds",
        "3",
        "--algorithm",
        "fedavg",
        "--privacy",
        "masked",
        "--set",
        "endless=true",
    ];
    let ([a, b, c], _) = with_tables(folder, ["a", "b", "c"], &words);
    reaches(&a, 9);
    let mut audit = fednode();
    audit.args(["audit", "--json", "--state"]).arg(&a.state);
    let history = json_of(&run(audit));
    let rows = &history["rounds"].as_array().unwrap()[..8];
    let is_fine = |row: &Value| row["verdict"]["is"] == "confirmed";
    assert!(rows.iter().all(is_fine), "{history}");
    let has_sum = |round: usize| rows[round - 1]["mean"] != rows[round - 2]["mean"];
    assert!(![4, 7].map(has_sum).contains(&true), "masks: {history}");
    // A node that is slow to begin anew may miss one of them.
    for rounds in [[2, 3], [5, 6]] {
        assert!(rounds.map(has_sum).contains(&true), "{history}");
    }
    drop((b, c));
}

/// A table is away when an end comes, and is put back.
#[test]
fn a_node_that_cannot_read_its_table_at_an_end_goes_on_once_it_can() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (nodes, table_of_b) = two_with_tables(folder, &["--rounds", "20", "--set", "endless=true"]);
    let [a, b] = nodes;
    reaches(&b, 2);
    let elsewhere = folder.join("elsewhere");
    std::fs::rename(&table_of_b, &elsewhere).unwrap();
    let waits = b.wait_for("a table that is away", |status| {
        let waits = &status["waiting_for"][0];
        let remedy = waits["remedy"].as_str().unwrap_or_default();
        waits["what"]
            .as_str()
            .unwrap_or_default()
            .contains("its samples")
            && remedy.contains("tries again by itself")
    });
    assert_eq!(waits["finished"], true);
    std::fs::rename(&elsewhere, &table_of_b).unwrap();
    let now = round(&reaches(&a, 20));
    reaches(&b, now + 2);
    std::fs::rename(&table_of_b, &elsewhere).unwrap();
    b.wait_for("a table that is away again", |status| {
        status["waiting_for"][0]["remedy"].is_string()
    });
    let mut stop = fednode();
    stop.args(["stop", "--state"]).arg(&b.state);
    let stopped = run(stop);
    assert!(stopped.status.success(), "{stopped:?}");
    let mut b = b;
    assert_eq!(b.wait().code(), Some(0), "{}", b.log());
    assert!(!b.state.join("control.json").exists());
}

/// Without an organiser nobody has to say that it goes on. An aggregator that comes back later begins where the others are.
#[test]
fn an_open_federation_without_an_end_takes_an_aggregator_back() {
    let endless = ["--set", "endless=true", "--algorithm", "fedavg"];
    let federation = Federation::new(2, 3, &endless);
    let (mut hub, address) = federation.start_aggregator();
    let peers = [address.as_str()];
    let [mut x, y] = [1, 2].map(|shard| federation.start_node(shard, &peers, &[]));
    reaches(&x, 5);
    hub.kill();
    let away = round(&reaches(&x, 6));
    reaches(&y, away + 12);
    let of_first = hub.log().len();
    let (hub, _) = federation.start_aggregator();
    let now = round(&reaches(&y, away + 13));
    reaches(&hub, now + 1);
    let log = hub.log()[of_first..].to_owned();
    // Before it closes or follows anything it has begun three times at most: with the first rounds, with those that it had closed,
    // and with those of the others.
    let before = log.split(" closed by ").next().unwrap();
    let begun = before.matches("INFO work: listening address").count();
    assert!((1..=3).contains(&begun), "{begun} times: {log}");
    signal(x.id(), Signal::TERM);
    assert_eq!(x.wait().code(), Some(0), "{}", x.log());
}

#[test]
fn what_an_endless_federation_cannot_do_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    organise(folder, &ENDLESS);
    assert_fails(
        &run(change(folder, &["--rounds", "2"])),
        2,
        &["endless and goes on by itself", "leave --rounds out"],
    );
    assert_fails(
        &run(change(folder, &[])),
        3,
        &["name a setting that changes"],
    );
    let changed = json_of(&run(change(folder, &["--set", "round.audit=1"])));
    assert_eq!(changed["first"], 4);
    let later = json_of(&run(change(folder, &["--set", "round.audit=0.5"])));
    assert_eq!(later["first"], 7, "each end changes once");
    let mut swarm = fednode();
    swarm
        .arg("swarm")
        .args(ENDLESS)
        .arg("--out")
        .arg(folder.join("run"));
    assert_fails(&run(swarm), 3, &["`endless` is for nodes that live on"]);
    let mut init = fednode();
    init.args(["init", "--privacy", "dp:4"])
        .args(&ENDLESS[..8])
        .arg(folder.join("noised"));
    assert_fails(&run(init), 3, &["cannot be `endless`", "trains with noise"]);
}
