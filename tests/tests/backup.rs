//! A node in one file: backed up while it runs, put back after its disk died, and opened by later releases.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use fednode_e2e::{Federation, Process, assert_fails, fednode, json_of, round, run};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

fn command(words: [&str; 2], file: &Path, dir: &Path) -> Command {
    let mut command = fednode();
    command.args(words).arg(file).arg("--dir").arg(dir);
    command
}

fn back_up(file: &Path, dir: &Path) -> Command {
    command(["backup", "--json"], file, dir)
}

fn restore(file: &Path, dir: &Path) -> Command {
    command(["restore", "--json"], file, dir)
}

#[test]
fn a_node_whose_disk_died_goes_on_from_a_backup_that_was_made_while_it_ran() {
    let federation = Federation::new(2, 500, &["--algorithm", "fedavg"]);
    let first = federation.start_node(1, &[], &[]);
    let status = first.wait_for("it to listen", |status| status["listeners"][0].is_string());
    let address = status["listeners"][0].as_str().unwrap().to_owned();
    let mut second = federation.start_node(2, &[&address], &[]);
    let before = second.wait_for("some rounds", |status| round(status) > 3);
    let file = federation.path().join("node-2.tar");
    let written = json_of(&run(back_up(&file, &second.state)));
    assert_eq!(written["is_running"], true);
    assert_eq!(written["node"], before["node_id"]);
    let kept = written["round"].as_u64().unwrap();
    assert!(kept >= 3, "{written}");
    first.wait_for("rounds that the backup has not", |status| {
        round(status) > kept + 3
    });
    second.kill();
    fs::remove_dir_all(&second.state).unwrap();

    let restored = json_of(&run(restore(&file, &second.state)));
    assert_eq!(restored["round"], kept);
    let second = federation.start_node(2, &[&address], &[]);
    let now = round(&first.status().unwrap());
    for node in [&first, &second] {
        node.wait_for("rounds of both", |status| round(status) > now + 3);
    }
    let after = second.status().unwrap();
    assert_eq!(after["node_id"], before["node_id"], "the same node");
    for node in [&first, &second] {
        let log = node.log();
        assert!(
            !log.contains("banned") && !log.contains("superseded"),
            "{log}"
        );
    }
}

/// Makes the folder of an organiser, and adds what is not its own.
fn prepared(dir: &Path) {
    let mut init = fednode();
    init.args(["init", "--json", "--data", "digits", "--network-key"])
        .arg(dir);
    json_of(&run(init));
    fs::write(dir.join("patients.csv"), "age,outcome\n61,1\n").unwrap();
}

#[test]
fn a_backup_holds_the_settings_and_the_organiser_and_no_data() {
    let home = tempfile::tempdir().unwrap();
    let [ward, again, file] = ["ward", "again", "ward.tar"].map(|name| home.path().join(name));
    prepared(&ward);
    let written = json_of(&run(back_up(&file, &ward)));
    assert_eq!(written["round"], serde_json::Value::Null);
    let restored = json_of(&run(restore(&file, &again)));
    let start = restored["start"].as_str().unwrap();
    assert!(start.starts_with("fednode start --config "), "{start}");
    for name in [
        "state/key",
        "node.toml",
        "federation.toml",
        "network.key",
        "organiser/key",
        "organiser/members",
    ] {
        let [before, after] = [&ward, &again].map(|dir| fs::read(dir.join(name)).unwrap());
        assert_eq!(before, after, "{name}");
    }
    assert!(!again.join("patients.csv").exists());
    // The restored folder is a node's folder in every way.
    let mut members = fednode();
    members.args(["members", "--json", "--dir"]).arg(&again);
    assert_eq!(
        json_of(&run(members))["members"].as_array().unwrap().len(),
        1
    );
}

#[test]
fn what_cannot_be_backed_up_or_restored_says_why_and_changes_nothing() {
    let home = tempfile::tempdir().unwrap();
    let [ward, file] = ["ward", "ward.tar"].map(|name| home.path().join(name));
    assert_fails(
        &run(back_up(&file, home.path())),
        7,
        &["is no node's folder", "--dir"],
    );
    prepared(&ward);
    json_of(&run(back_up(&file, &ward)));
    assert_fails(&run(back_up(&file, &ward)), 7, &["ward.tar", "already"]);
    assert_fails(&run(restore(&file, &ward)), 7, &["already", "another"]);
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    let other = home.path().join("other");
    let cut = run(restore(&file, &other));
    assert_fails(&cut, 7, &["nothing was restored", "another copy"]);
    assert!(!other.join("state").exists() && !other.join("node.toml").exists());
    fs::write(&file, "not an archive").unwrap();
    assert_fails(
        &run(restore(&file, &other)),
        7,
        &["is no backup of fednode"],
    );
    let none = home.path().join("none.tar");
    assert_fails(&run(restore(&none, &other)), 7, &["none.tar"]);
}

/// Where the backups of earlier releases are, a folder for each.
fn states() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/states")
}

/// Writes the table of a node: two columns, and a class that they tell with some errors.
fn table(file: &Path, node: usize) {
    let row = |n: usize| {
        let (a, b) = ((n * 37 + node * 11) % 50, (n * 53 + node * 7) % 40);
        let class = if a + b > 45 { "high" } else { "low" };
        format!("{a},{b},{class}\n")
    };
    let rows: String = (0..90).map(row).collect();
    fs::write(file, format!("age,rate,risk\n{rows}")).unwrap();
}

/// A federation of two tables, in a folder.
struct Tables {
    folder: tempfile::TempDir,
}

impl Tables {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for node in [1, 2] {
            table(&folder.path().join(format!("{node}.csv")), node);
        }
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn source(&self, node: usize) -> String {
        let file = self.path(&format!("{node}.csv"));
        format!("csv:{},label=risk", file.display())
    }

    fn start(&self, spec: &Path, node: usize, peers: &[&str]) -> Process {
        let state = self.path(&format!("node-{node}"));
        let mut start = fednode();
        start
            .args(["start", "--device", "cpu", "--threads", "1"])
            .args(["--listen", "/ip4/127.0.0.1/tcp/0", "--data"])
            .arg(self.source(node))
            .arg("--spec")
            .arg(spec)
            .arg("--state")
            .arg(&state);
        if !peers.is_empty() {
            start.arg("--peers").args(peers);
        }
        Process::spawn(start, self.folder.path(), state, &format!("node-{node}"))
    }

    /// Starts both, and returns them when they have begun a round after this one.
    fn play(&self, spec: &Path, after: u64) -> [Process; 2] {
        let first = self.start(spec, 1, &[]);
        let status = first.wait_for("it to listen", |status| status["listeners"][0].is_string());
        let address = status["listeners"][0].as_str().unwrap().to_owned();
        let both = [first, self.start(spec, 2, &[&address])];
        for node in &both {
            node.wait_for("rounds", |status| round(status) > after + 2);
        }
        both
    }

    fn accuracy(&self, node: usize) -> f64 {
        let mut evaluate = fednode();
        evaluate
            .args(["evaluate", "--json", "--data", &self.source(node)])
            .arg("--state")
            .arg(self.path(&format!("node-{node}")));
        json_of(&run(evaluate))["score"]["accuracy"]
            .as_f64()
            .unwrap()
    }
}

/// A release adds its own folder by `FEDNODE_GOLDEN=write cargo test -p fednode-e2e --test backup`.
#[test]
fn the_state_folders_of_earlier_releases_open_and_go_on() {
    if std::env::var_os("FEDNODE_GOLDEN").is_some() {
        record();
    }
    let releases: Vec<PathBuf> = fs::read_dir(states())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert!(!releases.is_empty());
    for release in releases {
        let tables = Tables::new();
        let known = fs::read(release.join("known.json")).unwrap();
        let known: Value = serde_json::from_slice(&known).unwrap();
        for node in [1, 2] {
            let name = format!("node-{node}");
            let mut archive = Vec::new();
            let packed = fs::File::open(release.join(format!("{name}.tar.gz"))).unwrap();
            GzDecoder::new(packed).read_to_end(&mut archive).unwrap();
            let file = tables.path(&format!("{name}.tar"));
            fs::write(&file, archive).unwrap();
            json_of(&run(restore(&file, &tables.path(&name))));
            let accuracy = tables.accuracy(node);
            let before = known["accuracies"][node - 1].as_f64().unwrap();
            assert!((accuracy - before).abs() < 0.02, "{accuracy} for {before}");
        }
        let kept = known["round"].as_u64().unwrap();
        let spec = tables.path("node-1/federation.toml");
        for node in tables.play(&spec, kept) {
            let first = node.records().first().map(round);
            assert_eq!(first, Some(1), "its history: {}", node.log());
        }
    }
}

/// Writes what the next releases are held to.
fn record() {
    let tables = Tables::new();
    let mut init = fednode();
    init.args([
        "init", "--json", "--open", "--nodes", "2", "--rounds", "1000",
    ])
    .args(["--data", &tables.source(1)])
    .arg(tables.path("ward"));
    json_of(&run(init));
    let nodes = tables.play(&tables.path("ward/federation.toml"), 1);
    let release = states().join(env!("CARGO_PKG_VERSION"));
    fs::create_dir_all(&release).unwrap();
    let stopped = nodes.map(|mut node| {
        let mut stop = fednode();
        stop.args(["stop", "--json", "--state"]).arg(&node.state);
        json_of(&run(stop));
        node.wait();
        let name = node.state.file_name().unwrap().to_str().unwrap();
        let file = tables.path(&format!("{name}.tar"));
        let written = json_of(&run(back_up(&file, &node.state)));
        let packed = fs::File::create(release.join(format!("{name}.tar.gz"))).unwrap();
        let mut packed = GzEncoder::new(packed, Compression::best());
        packed.write_all(&fs::read(&file).unwrap()).unwrap();
        packed.finish().unwrap();
        written["round"].as_u64().unwrap()
    });
    let known = json!({
        "round": stopped.into_iter().max(),
        "accuracies": [tables.accuracy(1), tables.accuracy(2)],
    });
    fs::write(
        release.join("known.json"),
        serde_json::to_vec_pretty(&known).unwrap(),
    )
    .unwrap();
}
