//! A closed federation of two real processes in one folder: the organiser in `a`, members in folders beside it.

use std::path::Path;
use std::process::Command;

use crate::{Process, fednode, json_of, run};

/// Any port of this machine.
pub const LISTEN: &str = "/ip4/127.0.0.1/tcp/0";

/// Prepares a federation of two in folder `a`.
pub fn organise(folder: &Path, arguments: &[&str]) {
    let mut init = fednode();
    init.args(["init", "--json", "--name", "ward-a", "--nodes", "2"])
        .args(arguments)
        .arg(folder.join("a"));
    json_of(&run(init));
}

/// Starts the organiser's node, and waits until it can be asked for tickets.
pub fn start_organiser(folder: &Path) -> Process {
    let node = start_again(folder, "a");
    node.wait_for("it to listen", |status| status["listeners"][0].is_string());
    node
}

/// A command of the organiser.
pub fn of_organiser(folder: &Path, words: &[&str]) -> Command {
    let mut command = fednode();
    command.args(words).arg("--dir").arg(folder.join("a"));
    command
}

/// Makes a ticket.
///
/// # Panics
/// If there is none.
pub fn ticket(folder: &Path, words: &[&str]) -> String {
    let invited = json_of(&run(of_organiser(folder, words)));
    invited["ticket"].as_str().expect("a ticket").to_owned()
}

/// The command that joins with the second half of the digits.
pub fn join(folder: &Path, ticket: &str, dir: &str) -> Command {
    join_with(folder, ticket, dir, &["--data", "digits", "--shard", "2/2"])
}

/// The command that joins with these data.
pub fn join_with(folder: &Path, ticket: &str, dir: &str, data: &[&str]) -> Command {
    let mut join = fednode();
    join.args(["join", ticket])
        .args(data)
        .args(["--listen", LISTEN, "--device", "cpu", "--dir"])
        .arg(folder.join(dir));
    join
}

/// Joins, and runs from then on.
pub fn start_member(join: Command, folder: &Path, dir: &str) -> Process {
    Process::spawn(join, folder, folder.join(dir).join("state"), dir)
}

/// Starts a member with the settings in its folder.
pub fn start_again(folder: &Path, dir: &str) -> Process {
    let start = start_command(folder, dir);
    Process::spawn(start, folder, folder.join(dir).join("state"), dir)
}

/// The command that starts a member with the settings in its folder.
pub fn start_command(folder: &Path, dir: &str) -> Command {
    let mut start = fednode();
    start
        .args(["start", "--device", "cpu", "--listen", LISTEN, "--config"])
        .arg(folder.join(dir).join("node.toml"));
    start
}
