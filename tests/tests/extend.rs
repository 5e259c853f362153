//! A closed federation of real processes that goes on after its last round.
#![allow(clippy::unwrap_used)]

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;

use fednode_e2e::closed::{
    LISTEN, join, of_organiser, organise, start_again, start_command, start_member,
    start_organiser, table, ticket, two_with_tables, with_tables,
};
use fednode_e2e::{Process, assert_fails, fedboot, fednode, is_finished, json_of, round, run};
use serde_json::Value;

const DIGITS: [&str; 4] = ["--data", "digits", "--algorithm", "fedavg"];

fn extend(folder: &Path, words: &[&str]) -> Command {
    of_organiser(folder, &[&["extend", "--json"], words].concat())
}

/// Waits until all rounds up to this one are done.
fn done(node: &Process, last: u64) {
    node.wait_for("the last round", |status| {
        is_finished(status) && round(status) == last
    });
}

/// Waits until a node's log says something.
fn logged(node: &Process, words: &str) {
    node.wait_for(words, |_| node.log().contains(words));
}

/// The history of a node: its closed rounds, the oldest first.
fn history(node: &Process) -> Vec<Value> {
    let mut audit = fednode();
    audit.args(["audit", "--json", "--state"]).arg(&node.state);
    json_of(&run(audit))["rounds"].as_array().unwrap().clone()
}

/// Starts an aggregator that has a ticket.
fn start_hub(folder: &Path) -> Process {
    let line = ticket(folder, &["invite", "hub", "--role", "aggregator", "--json"]);
    let mut join = fedboot();
    join.args(["join", &line, "--json", "--dir"])
        .arg(folder.join("hub"));
    json_of(&run(join));
    hub_again(folder)
}

fn hub_again(folder: &Path) -> Process {
    let mut start = fedboot();
    start
        .args(["start", "--listen", LISTEN, "--config"])
        .arg(folder.join("hub/fedboot.toml"));
    let state = folder.join("hub/fedboot-state");
    Process::spawn(start, folder, state, "hub")
}

/// Nobody is started again and nothing is copied: processes that were done hear of more rounds, and the aggregator closes them.
/// What comes out is bit for bit that of a federation of so many rounds.
#[test]
fn added_rounds_give_the_mean_of_a_longer_federation() {
    let slower = ["--set", "training.learning_rate=0.001"];
    let runs = [("2", 2, &[][..]), ("4", 0, &[][..]), ("2", 2, &slower[..])];
    let means = runs.map(|(agreed, more, settings)| {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        organise(folder, &[&DIGITS[..], &["--rounds", agreed]].concat());
        let a = start_organiser(folder);
        let hub = start_hub(folder);
        a.wait_for("the aggregator", |status| status["peers"] == 1);
        let line = ticket(folder, &["invite", "ward-b", "--json"]);
        let b = start_member(join(folder, &line, "b"), folder, "b");
        done(&a, 4 - more);
        done(&b, 4 - more);
        if more > 0 {
            let added = json_of(&run(extend(
                folder,
                &[&["--rounds", "2"], settings].concat(),
            )));
            assert_eq!((&added["first"], &added["last"]), (&3.into(), &4.into()));
            done(&a, 4);
            done(&b, 4);
            assert!(b.log().contains("the organiser has added 2 rounds"));
            hub.wait_for("the last round", |status| round(status) == 4);
        }
        let lines: Vec<u64> = b.records().iter().map(round).collect();
        assert_eq!(lines, [1, 2, 3, 4]);
        let history = history(&b);
        assert_eq!(history.len(), 4);
        let is_fine = |row: &Value| row["verdict"]["is"] == "confirmed";
        assert!(history.iter().all(is_fine));
        history[3]["mean"].clone()
    });
    assert!(means[0].is_string() && means[0] == means[1], "{means:?}");
    assert!(means[0] != means[2], "with another setting");
}

/// The hardest order: rounds are added twice before the first round, one node is started anew in the middle, and an aggregator
/// is away over the first end. Ends with statistics take place as they were agreed on.
#[test]
fn ends_take_place_where_more_rounds_are_known_already() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let statistics = ["--rounds", "6", "--set", "statistics.enabled=true"];
    organise(folder, &[&DIGITS[..], &statistics].concat());
    for _ in 0..2 {
        json_of(&run(extend(folder, &["--rounds", "4"])));
    }
    let a = start_organiser(folder);
    let mut hub = start_hub(folder);
    a.wait_for("the aggregator", |status| status["peers"] == 1);
    let line = ticket(folder, &["invite", "ward-b", "--json"]);
    let mut b = start_member(join(folder, &line, "b"), folder, "b");
    b.wait_for("a round", |status| round(status) > 1);
    hub.kill();
    b.kill();
    let b = start_again(folder, "b");
    b.wait_for("the first end", |status| round(status) > 6);
    let hub = hub_again(folder);
    for node in [&a, &b] {
        done(node, 14);
        let records = node.records();
        let rounds: Vec<u64> = records.iter().map(round).collect();
        assert_eq!(rounds, (1..=14).collect::<Vec<_>>(), "{}", node.log());
        // Steps cost the same in each round of training, and sums of features less.
        let is_trained = |line: &&Value| line["multiply_adds"] == records[0]["multiply_adds"];
        let others = records.iter().filter(|line| !is_trained(line));
        let not_trained: Vec<u64> = others.map(round).collect();
        assert_eq!(
            not_trained,
            [6, 10, 14],
            "statistics are gathered at each end"
        );
        assert!(!node.log().contains("banned"), "{}", node.log());
    }
    hub.wait_for("the last round", |status| round(status) == 14);
    let history = history(&b);
    let is_fine = |row: &&Value| row["verdict"]["is"] == "confirmed";
    assert_eq!(history.iter().filter(is_fine).count(), 14);
}

/// The modules of an earlier end are of models that were trained further since: nobody takes them for those of this end.
#[test]
fn a_pool_of_each_end_is_made_of_its_own_modules() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let pooled = [
        "--data",
        "digits",
        "--algorithm",
        "fedper",
        "--pool",
        "--rounds",
        "2",
    ];
    organise(folder, &pooled);
    let a = start_organiser(folder);
    let line = ticket(folder, &["invite", "ward-b", "--json"]);
    let b = start_member(join(folder, &line, "b"), folder, "b");
    for last in [2, 4, 6] {
        for node in [&a, &b] {
            done(node, last);
            let card = std::fs::read_to_string(node.state.join("final/card.json")).unwrap();
            let card: Value = serde_json::from_str(&card).unwrap();
            let members = card["pool"]["members"].as_array().unwrap();
            assert_eq!(
                (members.len(), &card["rounds"]),
                (2, &last.into()),
                "{}",
                node.log()
            );
        }
        if last < 6 {
            json_of(&run(extend(folder, &["--rounds", "2"])));
        }
    }
}

/// A service manager would kill a service that says that it stops and then goes on.
#[test]
fn a_service_that_goes_on_does_not_say_that_it_stops() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    organise(folder, &[&DIGITS[..], &["--rounds", "2"]].concat());
    let manager = UnixDatagram::bind(folder.join("notify")).unwrap();
    let (said, heard) = mpsc::sync_channel(1024);
    std::thread::spawn(move || {
        let mut buffer = [0; 256];
        while let Ok(length) = manager.recv(&mut buffer) {
            let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
            if said.send(text).is_err() {
                break;
            }
        }
    });
    let mut start = start_command(folder, "a");
    start.env("NOTIFY_SOCKET", folder.join("notify"));
    let a = Process::spawn(start, folder, folder.join("a/state"), "a");
    a.wait_for("it to listen", |status| status["listeners"][0].is_string());
    let line = ticket(folder, &["invite", "ward-b", "--json"]);
    let b = start_member(join(folder, &line, "b"), folder, "b");
    done(&a, 2);
    json_of(&run(extend(folder, &["--rounds", "2"])));
    done(&a, 4);
    done(&b, 4);
    let heard: Vec<String> = heard.try_iter().collect();
    let count = |word: &str| heard.iter().filter(|text| text.starts_with(word)).count();
    assert_eq!((count("READY=1"), count("STOPPING=1")), (2, 0), "{heard:?}");
}

/// All have ended, rows were appended to a table, and a setting is changed. With the same command as before they go on.
#[test]
fn a_federation_that_has_ended_goes_on_with_more_rows_and_another_setting() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let ([mut a, mut b], table_of_b) = two_with_tables(folder, &["--rounds", "2"]);
    for node in [&mut a, &mut b] {
        done(node, 2);
        node.kill();
    }
    let samples = |node: &Process| -> Vec<u64> {
        let records = node.records();
        let samples = records.iter().map(|line| line["n_samples"].as_u64());
        samples.map(Option::unwrap).collect()
    };
    let before = samples(&b);
    table(&table_of_b, 240);
    let words = ["--rounds", "2", "--set", "training.learning_rate=0.02"];
    json_of(&run(extend(folder, &words)));
    let a = start_again(folder, "a");
    let b = start_again(folder, "b");
    done(&a, 4);
    done(&b, 4);
    assert_eq!((before.len(), samples(&a).len()), (2, 4));
    let after = samples(&b);
    assert_eq!(
        after[2..],
        [before[0] + 40; 2],
        "all appended rows are trained on"
    );
    let tested = |at: usize| b.records()[at]["test_samples"].clone();
    assert_eq!(tested(0), tested(3), "what it is tested on stays the same");
    let card = std::fs::read_to_string(b.state.join("final/card.json")).unwrap();
    let card: Value = serde_json::from_str(&card).unwrap();
    assert_eq!((&card["rounds"], &card["round"]), (&4.into(), &4.into()));
}

/// Three nodes add up sums with noise at the first end. That sum is there after the second one, too, and there is no other. Rows that
/// have come in between are trained on.
#[test]
fn what_was_added_up_once_is_kept_in_added_rounds() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    // All three must be in the sum, however busy this machine is.
    let all = ["--set", "round.quorum=1", "--set", "round.grace_seconds=10"];
    let words = [&all[..], &["--rounds", "3", "--privacy", "masked+dp:40"]].concat();
    let ([a, mut b, mut c], table_of_b) = with_tables(folder, ["a", "b", "c"], &words);
    // Whether it is served is for the validation rows to say.
    let has_sum = |node: &Process, last: u64| {
        done(node, last);
        let record = node.records().last().unwrap().clone();
        let made_of = record["composition"].to_string();
        let has_sum = made_of.contains("noised-statistics");
        assert!(has_sum && record["lacks"].is_null(), "{record}");
        record["n_samples"].as_u64().unwrap()
    };
    let before = [&a, &b, &c].map(|node| has_sum(node, 3));
    b.kill();
    c.kill();
    table(&table_of_b, 240);
    json_of(&run(extend(folder, &["--rounds", "3"])));
    let [b, c] = ["b", "c"].map(|name| start_again(folder, name));
    let [of_a, of_b, of_c] = before;
    let after = [&a, &b, &c].map(|node| has_sum(node, 6));
    assert_eq!(after, [of_a, of_b + 40, of_c]);
    for node in [&a, &b, &c] {
        let releases = std::fs::read_to_string(node.state.join("privacy.json")).unwrap();
        let releases: Vec<Value> = serde_json::from_str(&releases).unwrap();
        assert_eq!(releases.len(), 1, "nothing is released again");
        let history = history(node);
        let is_fine = |row: &Value| row["verdict"]["is"] == "confirmed";
        assert!(history.iter().all(is_fine), "{history:?}");
        let changes = (1..6).filter(|at| history[*at]["mean"] != history[at - 1]["mean"]);
        assert_eq!(changes.collect::<Vec<_>>(), [2], "{history:?}");
    }
}

/// Each node adds the whole noise to what it releases in the first round. Other rows would be another release, so they are left out.
#[test]
fn what_was_released_with_noise_is_kept_in_added_rounds_and_new_rows_are_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let words = ["--rounds", "2", "--privacy", "dp:40"];
    let ([a, b], table_of_b) = with_tables(folder, ["a", "b"], &words);
    let trained_on = |node: &Process, last: u64| {
        done(node, last);
        node.status().unwrap()["trainer"]["train_samples"].clone()
    };
    let before = [&a, &b].map(|node| trained_on(node, 2));
    table(&table_of_b, 240);
    json_of(&run(extend(folder, &["--rounds", "2"])));
    assert_eq!([&a, &b].map(|node| trained_on(node, 4)), before);
    for node in [&a, &b] {
        let releases = std::fs::read_to_string(node.state.join("privacy.json")).unwrap();
        let releases: Vec<Value> = serde_json::from_str(&releases).unwrap();
        assert_eq!(releases.len(), 1, "nothing is released again");
    }
}

/// Rows are appended to the table of a node that runs, and later the first rows are changed.
#[test]
fn rows_that_are_appended_while_a_node_runs_are_trained_on_from_the_next_round_on() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let ([a, b], table_of_b) = two_with_tables(folder, &["--rounds", "100000"]);
    let begun = b.wait_for("two rounds", |status| round(status) > 2);
    let samples = |status: &Value, of: &str| status["trainer"][of].as_u64().unwrap();
    let before = samples(&begun, "train_samples");
    table(&table_of_b, 240);
    let grown = b.wait_for("the new rows", |status| {
        samples(status, "train_samples") == before + 40
    });
    for held_out in ["validation_samples", "test_samples"] {
        assert_eq!(samples(&grown, held_out), samples(&begun, held_out));
    }
    let told = b.wait_for("a line that says so", |status| {
        status["last_record"]["n_samples"] == before + 40
    });
    let line = format!("it trains on {} samples from now on", before + 40);
    logged(&b, &line);
    // Rows that were there are gone: nothing tells any more which are held out.
    table(&table_of_b, 150);
    let now = round(&told);
    logged(&b, "rows that were there are gone");
    let later = b.wait_for("later rounds", |status| round(status) > now + 5);
    assert_eq!(samples(&later, "train_samples"), before + 40);
    drop(a);
}

#[test]
fn what_cannot_be_added_is_refused_before_it_is_signed() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    organise(folder, &[&DIGITS[..], &["--rounds", "2"]].concat());
    let refused = |words: &[&str], code: i32, said: &[&str]| {
        assert_fails(&run(extend(folder, words)), code, said);
    };
    refused(
        &["--rounds", "1", "--set", "model.name=cnn"],
        3,
        &["`model.name` cannot change", "training.learning_rate"],
    );
    refused(
        &["--rounds", "1", "--set", "training.batch_size=0"],
        3,
        &["`training.batch_size` is out of range"],
    );
    refused(&["--rounds", "0"], 2, &[]);
    let added = json_of(&run(extend(folder, &["--rounds", "1"])));
    assert_eq!(added["first"], 3, "nothing was signed before");
    let open = folder.join("open");
    let mut init = fednode();
    init.args(["init", "--open", "--json", "--data", "digits"])
        .arg(&open);
    json_of(&run(init));
    let mut extend = fednode();
    extend.args(["extend", "--rounds", "1", "--dir"]).arg(&open);
    assert_fails(&run(extend), 7, &["there is no", "organiser"]);
    let promised = folder.join("promised");
    std::fs::create_dir(&promised).unwrap();
    organise(&promised, &[&DIGITS[..], &["--privacy", "dp:4"]].concat());
    let refusal = run(of_organiser(&promised, &["extend", "--rounds", "1"]));
    assert_fails(&refusal, 3, &["`privacy.epsilon`", "trains with noise"]);
}
