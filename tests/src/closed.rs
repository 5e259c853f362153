//! A closed federation of real processes in one folder: the organiser in `a`, members in folders beside it.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Process, fednode, json_of, run};

/// Any port of this machine.
pub const LISTEN: &str = "/ip4/127.0.0.1/tcp/0";

/// Prepares a federation of two in folder `a`.
pub fn organise(folder: &Path, arguments: &[&str]) {
    organise_many(folder, 2, arguments);
}

/// Prepares a federation of so many in folder `a`.
pub fn organise_many(folder: &Path, nodes: usize, arguments: &[&str]) {
    let mut init = fednode();
    init.args(["init", "--json", "--name", "ward-a", "--nodes"])
        .arg(nodes.to_string())
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

/// A table of two classes, told apart by where their points are.
///
/// # Panics
/// If it cannot be written.
pub fn table(path: &Path, rows: usize) {
    let row = |at: usize| {
        let class = at % 2;
        let place = class as f64 + 0.3 * ((at * 37 % 100) as f64 / 100.0 - 0.5);
        format!("{place:.3},{:.3},{}\n", 1.0 - place, ["no", "yes"][class])
    };
    let rows: String = (0..rows).map(row).collect();
    std::fs::write(path, format!("x,y,class\n{rows}")).expect("a table");
}

/// Starts two nodes with tables of 200 rows each; `arguments` are further flags of `fednode init`. Returns them, and the table of
/// the second one.
pub fn two_with_tables(folder: &Path, arguments: &[&str]) -> ([Process; 2], PathBuf) {
    // Two cannot add up under masks.
    let open = ["--privacy", "open"];
    with_tables(folder, ["a", "b"], &[&open[..], arguments].concat())
}

/// Starts nodes of these names, the organiser `a` first, with tables of 200 rows each; `arguments` are further flags of
/// `fednode init`. Returns them, and the table of the second one.
pub fn with_tables<const N: usize>(
    folder: &Path,
    names: [&str; N],
    arguments: &[&str],
) -> ([Process; N], PathBuf) {
    let path = |name: &str| folder.join(format!("{name}.csv"));
    let nodes = names.map(|name| {
        table(&path(name), 200);
        let data = format!("csv:{},label=class", path(name).display());
        if name == names[0] {
            let own = ["--partition", "own", "--data", &data];
            organise_many(folder, N, &[&own[..], arguments].concat());
            return start_organiser(folder);
        }
        let line = ticket(folder, &["invite", name, "--json"]);
        let joining = join_with(folder, &line, name, &["--data", &data]);
        start_member(joining, folder, name)
    });
    (nodes, path(names[1]))
}
