//! `fednode stop`, `fednode leave`, `fedboot stop`: a process ends, whoever asked is told, and a script can go on at once.
#![allow(clippy::unwrap_used)]

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use fednode_e2e::{Federation, Process, assert_fails, fedboot, fednode, json_of, run, signal};
use rustix::process::Signal;
use serde_json::{Value, json};

fn ask(program: Command, verb: &str, state: &Path) -> Output {
    ask_with(program, &[verb], state)
}

fn ask_with(mut program: Command, arguments: &[&str], state: &Path) -> Output {
    program.args(arguments).arg("--state").arg(state);
    run(program)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Asserts that there is nobody to ask, in one line that says what to do.
fn assert_nobody(output: &Output, words: &[&str]) {
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{stderr}");
    for word in ["error: ", "runs with state folder", "--state"]
        .iter()
        .chain(words)
    {
        assert!(stderr.contains(word), "`{word}` is not in: {stderr}");
    }
}

#[test]
fn a_stopped_node_has_ended_and_goes_on_when_it_is_started_again() {
    let federation = Federation::new(2, 500, &[]);
    let mut node = federation.start_node(1, &[], &[]);
    let before = node.wait_for("it to run", |status| status["phase"].is_string());
    let stopped = ask(fednode(), "stop", &node.state);
    assert!(stopped.status.success(), "{}", text(&stopped.stderr));
    let said = text(&stopped.stdout);
    assert!(
        said.contains(&format!("has stopped (process {})", node.id())),
        "{said}"
    );
    // Rounds were left: that is what Ctrl-C ends with, too. It is no error.
    assert_eq!(node.wait().code(), Some(130));
    let last = node.log().lines().last().unwrap().to_owned();
    assert!(last.starts_with("stopped before it was done"), "{last}");
    assert_nobody(&ask(fednode(), "stop", &node.state), &["nothing to stop"]);
    // It met nobody and never trained: what all begin with is no model of its own.
    let mut export = fednode();
    export.args(["export", "--state"]).arg(&node.state);
    export
        .arg("--out")
        .arg(federation.path().join("m.safetensors"));
    assert_fails(&run(export), 7, &["holds no model yet"]);

    let mut again = federation.start_node(1, &[], &[]);
    let after = again.wait_for("it to run again", |status| status["phase"].is_string());
    assert_eq!(
        after["listeners"], before["listeners"],
        "no port was named, so it stays"
    );
    let mut json = fednode();
    json.args(["stop", "--json", "--state"]).arg(&again.state);
    let said = json_of(&run(json));
    assert_eq!(
        (&said["farewell"], &said["process"]),
        (&"stopped".into(), &again.id().into())
    );
    again.wait();
}

#[test]
fn a_node_that_was_killed_has_ended_and_is_to_be_started_again() {
    let federation = Federation::new(2, 500, &[]);
    let mut node = federation.start_node(1, &[], &[]);
    node.wait_for("it to run", |status| status["phase"].is_string());
    node.kill();
    assert!(node.state.join("control.json").is_file(), "it is left over");
    for verb in ["status", "peers", "experts"] {
        let asked = ask(fednode(), verb, &node.state);
        let process = format!("process {} has ended without a stop", node.id());
        assert_fails(&asked, 7, &[&process, "Start it again"]);
    }
    assert_nobody(&ask(fednode(), "stop", &node.state), &["nothing to stop"]);
}

#[test]
fn a_node_that_leaves_says_so_and_ends_well() {
    let federation = Federation::new(2, 500, &[]);
    let mut node = federation.start_node(1, &[], &[]);
    node.wait_for("it to run", |status| status["phase"].is_string());
    let left = ask(fednode(), "leave", &node.state);
    assert!(left.status.success(), "{}", text(&left.stderr));
    let said = text(&left.stdout);
    for word in ["has left the federation", "would join again"] {
        assert!(said.contains(word), "{said}");
    }
    assert_eq!(node.wait().code(), Some(0));
    assert!(
        node.log().contains("leaving the federation"),
        "{}",
        node.log()
    );
    let nobody = ask(fednode(), "leave", &node.state);
    assert_nobody(&nobody, &["cannot say goodbye", "start this one first"]);
}

#[test]
fn who_takes_back_what_it_published_hears_who_deleted_it_and_is_served_no_more() {
    let agreeing = ["--algorithm", "fedmoe-da", "--set", "profile=agreement"];
    let federation = Federation::new(2, 500, &agreeing);
    let (_aggregator, address) = federation.start_aggregator();
    let [stays, mut leaves] = [1, 2].map(|shard| federation.start_node(shard, &[&address], &[]));
    let serves = |status: &Value, component: &str| {
        let composition = status["last_record"]["composition"].to_string();
        composition.contains(component)
    };
    stays.wait_for("statistics of the other", |status| {
        serves(status, "peers-statistics")
    });

    let left = ask_with(fednode(), &["leave", "--withdraw"], &leaves.state);
    assert!(left.status.success(), "{}", text(&left.stderr));
    let said = text(&left.stdout);
    assert!(said.contains("has asked the others to delete"), "{said}");
    let answered = "members that have signed that all of them are deleted: 2";
    assert!(said.contains(answered), "{said}\n{}", leaves.log());
    assert_eq!(leaves.wait().code(), Some(0));

    // The only peer is gone, and so is all that was made of its statistics.
    stays.wait_for("statistics of its own alone", |status| {
        serves(status, "own-statistics") && !serves(status, "peers-statistics")
    });
    let audited = ask_with(fednode(), &["audit", "--json"], &stays.state);
    let taken = &json_of(&audited)["withdrawals"][0];
    assert_eq!(taken["answers"].as_array().unwrap().len(), 2, "{taken}");
    assert_eq!(taken["silent"], json!([]), "{taken}");
    let printed = text(&ask(fednode(), "audit", &stays.state).stdout);
    assert!(printed.contains(answered), "{printed}");
}

#[test]
fn a_killed_node_leaves_nothing_to_stop() {
    let federation = Federation::new(2, 500, &[]);
    let mut node = federation.start_node(1, &[], &[]);
    node.wait_for("it to run", |status| status["phase"].is_string());
    node.kill();
    assert_nobody(&ask(fednode(), "stop", &node.state), &["nothing to stop"]);
}

#[test]
fn the_aggregator_speaks_the_same_dialect() {
    let federation = Federation::new(2, 500, &[]);
    let (mut aggregator, _) = federation.start_aggregator();
    let stopped = ask(fedboot(), "stop", &aggregator.state);
    assert!(
        text(&stopped.stdout).contains("fedboot has stopped"),
        "{}",
        text(&stopped.stderr)
    );
    assert_eq!(aggregator.wait().code(), Some(0));
    assert_nobody(
        &ask(fedboot(), "stop", &aggregator.state),
        &["nothing to stop"],
    );

    let file = federation.path().join("fedboot.toml");
    std::fs::write(
        &file,
        "[network]\nlisten = [\"/ip4/127.0.0.1/tcp/0\"]\nmdsn = true\n",
    )
    .unwrap();
    let mut misspelt = fedboot();
    misspelt.args(["start", "--config"]).arg(&file);
    let refused = run(misspelt);
    assert_eq!(refused.status.code(), Some(3));
    let error = text(&refused.stderr);
    assert!(
        error.starts_with("error: `") && error.contains("line 3: unknown key `mdsn`: did you mean"),
        "{error}"
    );
}

/// The messages of systemd's protocol, one datagram each: a watchdog that is on, and a socket to tell.
#[test]
fn a_service_manager_is_told_that_a_member_is_ready_alive_and_stopping() {
    let federation = Federation::new(2, 500, &[]);
    let path = federation.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let hear = |wanted: &str| {
        let mut buffer = [0; 256];
        loop {
            let length = manager
                .recv(&mut buffer)
                .unwrap_or_else(|_| panic!("no {wanted}"));
            let said = text(&buffer[..length]);
            if said.starts_with(wanted) {
                return said;
            }
        }
    };
    let state = federation.path().join("fedboot");
    let mut command = fedboot();
    command
        .args(["start", "--listen", "/ip4/127.0.0.1/tcp/0", "--spec"])
        .arg(federation.spec())
        .arg("--state")
        .arg(&state)
        .env("NOTIFY_SOCKET", &path)
        .env("WATCHDOG_USEC", "60000000");
    let mut process = Process::spawn(command, federation.path(), state, "fedboot");
    hear("READY=1");
    hear("WATCHDOG=1");
    let status = hear("STATUS=");
    assert!(status.contains("of 500"), "{status}");
    hear("WATCHDOG=1");
    signal(process.id(), Signal::TERM);
    hear("STOPPING=1");
    process.wait();
}
