//! A closed federation of real processes: invited by a ticket, called by its name, revoked.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Output;

use fednode_e2e::closed::{
    LISTEN, join, of_organiser, organise, start_again, start_member, start_organiser, ticket,
};
use fednode_e2e::{Process, assert_fails, fedboot, fednode, json_of, round, run};

/// Digits for so many rounds.
fn rounds(rounds: &str) -> [&str; 6] {
    [
        "--rounds",
        rounds,
        "--data",
        "digits",
        "--algorithm",
        "fedavg",
    ]
}

/// An organiser and a member, in a federation that goes on for long.
fn two_of_many_rounds(folder: &Path) -> (Process, Process) {
    organise(folder, &rounds("500"));
    let a = start_organiser(folder);
    let line = ticket(folder, &["invite", "ward-b", "--json"]);
    let b = start_member(join(folder, &line, "b"), folder, "b");
    (a, b)
}

/// Gives the member another key.
fn rotate(folder: &Path, ticket: &str) -> Output {
    let mut rotate = fednode();
    rotate
        .args(["rotate-key", ticket, "--json", "--dir"])
        .arg(folder.join("b"));
    run(rotate)
}

#[test]
fn one_line_of_text_makes_a_member_that_all_call_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    organise(folder, &rounds("2"));
    let early = run(of_organiser(folder, &["invite", "ward-b"]));
    assert_fails(&early, 2, &["does not run", "--at"]);
    let a = start_organiser(folder);
    // The ticket alone can be kept in a file; what to do with it is for people.
    let invited = run(of_organiser(folder, &["invite", "ward-b"]));
    let (out, said) = (invited.stdout, invited.stderr);
    let (out, said) = (
        String::from_utf8(out).unwrap(),
        String::from_utf8(said).unwrap(),
    );
    let line = out.trim_end().to_owned();
    assert_eq!(
        (out.lines().count(), line.contains(' ')),
        (1, false),
        "{out}"
    );
    assert!(said.contains("fednode join TICKET --data"), "{said}");
    let twice = run(of_organiser(folder, &["invite", "ward-b"]));
    assert_fails(&twice, 2, &["`ward-b` is the name of"]);

    let b = start_member(join(folder, &line, "b"), folder, "b");
    for node in [&a, &b] {
        node.wait_for("the last round", |status| status["finished"] == true);
    }
    let log = b.log();
    assert_eq!(log.matches("as ward-b").count(), 1, "{log}");
    assert!(
        log.contains("closed by ward-"),
        "rounds name members: {log}"
    );
    let mut peers = fednode();
    peers.args(["peers", "--state"]).arg(&b.state);
    let peers = String::from_utf8(run(peers).stdout).unwrap();
    assert!(peers.contains("ward-a"), "{peers}");

    // What was joined over is closed: requests over a connection that nobody serves would wait until they are given up.
    let mut peers = fednode();
    peers.args(["peers", "--json", "--state"]).arg(&a.state);
    let peers = json_of(&run(peers));
    let connections = peers[0]["addresses"].as_array().unwrap();
    assert_eq!(connections.len(), 1, "{peers}");

    let members = json_of(&run(of_organiser(folder, &["members", "--json"])));
    let rows: Vec<(&str, &str)> = members["members"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            (
                row["name"].as_str().unwrap(),
                row["standing"].as_str().unwrap(),
            )
        })
        .collect();
    assert!(rows.contains(&("ward-a", "member")) && rows.contains(&("ward-b", "member")));

    // The ticket is used, and another folder is another node.
    let again = run(join(folder, &line, "c"));
    assert_fails(&again, 6, &["used already"]);
    // The spec alone lets nobody in.
    let mut copied = fednode();
    copied
        .args([
            "start", "--listen", LISTEN, "--device", "cpu", "--data", "digits",
        ])
        .args(["--shard", "2/2", "--state"])
        .arg(folder.join("d"))
        .arg("--spec")
        .arg(folder.join("b/federation.toml"));
    assert_fails(
        &run(copied),
        6,
        &["has no certificate", "fednode join TICKET"],
    );
}

#[test]
fn a_revoked_member_ends_and_is_not_let_in_again() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (a, mut b) = two_of_many_rounds(folder);
    b.wait_for("a round", |status| status["round"].as_u64() > Some(1));
    // The node that answers tickets could get none.
    let own = run(of_organiser(folder, &["revoke", "ward-a"]));
    assert_fails(&own, 2, &["the node of this folder", "--replace"]);
    json_of(&run(of_organiser(folder, &["revoke", "ward-b", "--json"])));
    assert_eq!(b.wait().code(), Some(6), "{}", b.log());
    a.wait_for("word of it", |status| {
        status["notes"].to_string().contains("revoked node ward-b")
    });
    let mut again = fednode();
    again
        .args(["start", "--device", "cpu", "--listen", LISTEN, "--config"])
        .arg(folder.join("b/node.toml"));
    assert_fails(&run(again), 6, &["revoked", "fednode rotate-key TICKET"]);
    // It comes back with another key, and with what it has learned.
    let line = ticket(folder, &["invite", "ward-b", "--json"]);
    json_of(&rotate(folder, &line));
    let mut b = start_again(folder, "b");
    let now = round(&a.status().unwrap());
    b.wait_for("a later round", |status| round(status) > now);
    // Without its key it is nobody, and makes no other one.
    b.kill();
    let key = folder.join("b/state/key");
    std::fs::remove_file(&key).unwrap();
    let mut keyless = fednode();
    keyless
        .args(["start", "--device", "cpu", "--listen", LISTEN, "--config"])
        .arg(folder.join("b/node.toml"));
    assert_fails(&run(keyless), 7, &["b/state/key` is gone", "backup"]);
    assert!(!key.exists());
}

#[test]
fn the_aggregator_joins_by_a_ticket_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    organise(folder, &rounds("500"));
    let a = start_organiser(folder);
    let line = ticket(folder, &["invite", "hub", "--role", "aggregator", "--json"]);
    // The wrong program, which leaves the ticket as it is.
    let wrong = run(join(folder, &line, "b"));
    assert_fails(&wrong, 3, &["`fedboot join TICKET`"]);
    let mut join = fedboot();
    join.args(["join", &line, "--json", "--dir"])
        .arg(folder.join("hub"));
    let joined = json_of(&run(join));
    assert_eq!(joined["joined"], "hub");
    let mut start = fedboot();
    start
        .args(["start", "--listen", LISTEN, "--config"])
        .arg(folder.join("hub/fedboot.toml"));
    let state = folder.join("hub/fedboot-state");
    let _hub = Process::spawn(start, folder, state, "hub");
    a.wait_for("the aggregator", |status| {
        status["peers"].as_u64() == Some(1)
    });
}

#[test]
fn a_ticket_is_not_used_where_joining_could_not_end() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    organise(folder, &rounds("500"));
    let a = start_organiser(folder);
    let line = ticket(folder, &["invite", "ward-b", "--json"]);
    let mut other = fednode();
    other
        .args(["init", "--json", "--data", "digits"])
        .arg(folder.join("other"));
    json_of(&run(other));
    let mut plain = fednode();
    plain
        .args(["join", &line, "--dir"])
        .arg(folder.join("other"));
    assert_fails(&run(plain), 3, &["is of another federation"]);
    let no_file = folder.join("none.csv");
    let source = format!("csv:{},label=class", no_file.display());
    let mut unreadable = fednode();
    unreadable
        .args(["join", &line, "--data", &source, "--dir"])
        .arg(folder.join("b"));
    assert_fails(&run(unreadable), 4, &["none.csv"]);
    let b = start_member(join(folder, &line, "b"), folder, "b");
    b.wait_for("the organiser", |status| status["peers"] == 1);
    let late = run(join(folder, &line, "b"));
    assert_fails(&late, 3, &["node.toml", "is kept as it is"]);
    drop(a);
}

#[test]
fn members_of_one_run_are_members_of_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    organise(folder, &rounds("1"));
    let mut a = start_organiser(folder);
    let line = ticket(folder, &["invite", "ward-b", "--json"]);
    let mut b = start_member(join(folder, &line, "b"), folder, "b");
    for node in [&a, &b] {
        node.wait_for("the last round", |status| status["finished"] == true);
    }
    let again = |dir: &str| {
        let mut init = fednode();
        init.args(["init", "--again", "--json"])
            .arg(folder.join(dir));
        run(init)
    };
    assert_fails(&again("b"), 7, &["`fednode stop`"]);
    a.kill();
    b.kill();
    let first = json_of(&again("a"));
    // The new spec was forgotten: nothing is set aside, and the next words say so.
    let forgotten = json_of(&again("b"));
    assert_eq!(
        (&forgotten["is_old"], &forgotten["aside"]),
        (&true.into(), &serde_json::Value::Null)
    );
    let spec = "federation.toml";
    std::fs::copy(folder.join("a").join(spec), folder.join("b").join(spec)).unwrap();
    let second = json_of(&again("b"));
    assert_eq!(first["federation"], second["federation"]);
    assert_eq!(
        (&second["needs_ticket"], &second["is_old"]),
        (&false.into(), &false.into())
    );
    let start = |dir: &str, peers: &[String]| {
        let mut start = fednode();
        start.args(["start", "--listen", LISTEN, "--device", "cpu"]);
        for peer in peers {
            start.args(["--peers", peer]);
        }
        start
            .arg("--config")
            .arg(folder.join(dir).join("node.toml"));
        Process::spawn(start, folder, folder.join(dir).join("state"), dir)
    };
    let a = start("a", &[]);
    let status = a.wait_for("it to listen", |status| status["listeners"][0].is_string());
    let address = status["listeners"][0].as_str().unwrap().to_owned();
    let b = start("b", &[address]);
    for node in [&a, &b] {
        node.wait_for("the last round", |status| status["finished"] == true);
    }
    assert_eq!(b.records().len(), 1, "the records of the new run alone");
}

#[test]
fn an_open_port_needs_a_word() {
    let folder = tempfile::tempdir().unwrap();
    let mut init = fednode();
    init.args(["init", "--open", "--json", "--data", "digits"])
        .arg(folder.path());
    json_of(&run(init));
    let mut start = fednode();
    start
        .args(["start", "--listen", "/ip4/0.0.0.0/tcp/0", "--device", "cpu"])
        .args([
            "--data", "digits", "--shard", "1/5", "--state", "s", "--spec",
        ])
        .arg(folder.path().join("federation.toml"))
        // Otherwise than `init --open` wrote into node.toml.
        .args(["--set", "network.open=false"])
        .current_dir(folder.path());
    assert_fails(&run(start), 3, &["would let in anybody", "--open"]);
}

#[test]
fn a_member_with_another_key_goes_on_with_what_it_has_learned() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (a, mut b) = two_of_many_rounds(folder);
    let before = b.wait_for("some rounds", |status| round(status) > 3);
    let line = ticket(folder, &["invite", "ward-b", "--replace", "--json"]);
    let own = run(of_organiser(folder, &["invite", "ward-a", "--replace"]));
    assert_fails(&own, 2, &["answer its own ticket", "--at"]);
    assert_fails(
        &rotate(folder, &line),
        7,
        &["a process runs", "stop it first"],
    );
    b.kill();
    assert_eq!(json_of(&rotate(folder, &line))["name"], "ward-b");
    assert_fails(&rotate(folder, &line), 6, &["used already"]);
    // Another ticket replaces this key. Its answer is lost once: the key that it admits lies beside the one before.
    let [key, next] = ["key", "key.next"].map(|file| folder.join("b/state").join(file));
    let old = std::fs::read(&key).unwrap();
    let lost = ticket(folder, &["invite", "ward-b", "--replace", "--json"]);
    json_of(&rotate(folder, &lost));
    std::fs::rename(&key, &next).unwrap();
    std::fs::write(&key, old).unwrap();
    let line = ticket(folder, &["invite", "ward-b", "--replace", "--json"]);
    assert_eq!(json_of(&rotate(folder, &line))["name"], "ward-b");

    let b = start_again(folder, "b");
    let now = round(&a.status().unwrap());
    for node in [&a, &b] {
        node.wait_for("rounds of both", |status| round(status) > now + 2);
    }
    assert_ne!(b.status().unwrap()["node_id"], before["node_id"]);
    let first = b.records().into_iter().map(|it| round(&it)).min();
    assert_eq!(first, Some(1), "its history is still there");
    let members = json_of(&run(of_organiser(folder, &["members", "--json"])));
    let rows = members["members"].as_array().unwrap();
    let of_b = rows.iter().filter(|row| row["name"] == "ward-b");
    let standings: Vec<&str> = of_b.map(|row| row["standing"].as_str().unwrap()).collect();
    let count = |of: &str| standings.iter().filter(|it| **it == of).count();
    assert_eq!((count("member"), count("revoked")), (1, 3), "{members}");
}
