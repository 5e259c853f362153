//! What happens where standard error or standard output cannot be written: the disk is full, or nobody reads any more.
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use fednode_e2e::closed::{of_organiser, organise};
use fednode_e2e::{Federation, PATIENCE, assert_fails, fedboot, fednode, json_of, run};

/// Refuses every byte, as a full disk does.
fn full_disk() -> Stdio {
    File::options()
        .write(true)
        .open("/dev/full")
        .unwrap()
        .into()
}

/// A pipe whose reader has gone.
fn closed_pipe() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

/// Runs a command to its end.
fn end_of(mut command: Command) -> ExitStatus {
    let mut child = command.stdin(Stdio::null()).spawn().unwrap();
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if started.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("took longer than {PATIENCE:?}");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The only node of a federation, which ends after its round.
fn lonely(federation: &Federation) -> Command {
    let mut command = fednode();
    command
        .current_dir(federation.path())
        .args(["start", "--device", "cpu", "--threads", "1", "--state", "s"])
        .args(["--listen", "/ip4/127.0.0.1/tcp/0"])
        .args(["--data", "digits", "--shard", "1/1"])
        .args(["--exit-when-finished", "--set", "linger_seconds=0"])
        .arg("--spec")
        .arg(federation.spec());
    command
}

#[test]
fn a_node_whose_log_cannot_be_written_goes_on() {
    for unwritable in [full_disk, closed_pipe] {
        let federation = Federation::new(1, 1, &["--samples-per-node", "30"]);
        let mut node = lonely(&federation);
        node.stdout(unwritable()).stderr(unwritable());
        assert_eq!(end_of(node).code(), Some(0));
        let records = federation.path().join("s/metrics.jsonl");
        assert!(records.is_file(), "it has trained");
    }
}

#[test]
fn an_error_that_cannot_be_said_keeps_its_exit_code() {
    for unwritable in [full_disk, closed_pipe] {
        let mut command = fednode();
        command.args(["status", "--state", "/nowhere/at/all"]);
        command.stdout(Stdio::null()).stderr(unwritable());
        assert_eq!(end_of(command).code(), Some(7));
    }
}

#[test]
fn a_ticket_that_cannot_be_printed_is_withdrawn() {
    let folder = tempfile::tempdir().unwrap();
    organise(folder.path(), &["--data", "digits"]);
    let mut id = fedboot();
    id.args(["id", "--json", "--state"])
        .arg(folder.path().join("boot"));
    let id = json_of(&run(id));
    let id = id["node_id"].as_str().unwrap();
    let at = format!("/ip4/127.0.0.1/tcp/4001/p2p/{id}");
    let invite = || of_organiser(folder.path(), &["invite", "ward-b", "--at", &at]);
    let lost = invite().stdout(full_disk()).output().unwrap();
    let words = ["cannot write to standard output", "is withdrawn"];
    assert_fails(&lost, 11, &words);
    let unread = invite().stdout(closed_pipe()).output().unwrap();
    assert_eq!(unread.status.code(), Some(0), "nobody reads: no failure");
}

#[test]
fn an_answer_that_cannot_be_written_is_no_defect() {
    for (mut program, words) in [
        (fednode(), ["algorithms", "--json"]),
        (fedboot(), ["completions", "bash"]),
    ] {
        program.args(words);
        let full = program.stdout(full_disk()).output().unwrap();
        assert_fails(&full, 11, &["cannot write to standard output"]);
        let unread = program.stdout(closed_pipe()).output().unwrap();
        assert_eq!(unread.status.code(), Some(0), "{words:?}");
    }
}
