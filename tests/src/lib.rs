//! What the end-to-end tests have in common: a federation of real processes in a temporary folder.
//!
//! Every wait has a deadline and says on failure what the processes wrote. Processes are killed when a test ends,
//! however it ends.
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot set up its scene should stop at once"
)]

pub mod closed;
pub mod help;
pub mod words;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long anything may take before the test fails; generous, because machines are shared.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Returns the path of one of the two binaries, built in the profile of the tests.
///
/// # Panics
/// If it is not built.
pub fn binary(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let path = tests.parent().unwrap().parent().unwrap().join(name);
    assert!(
        path.is_file(),
        "{} is missing: run `cargo build --workspace --bins` first",
        path.display()
    );
    path
}

/// Returns a command for `fednode` without any setting from the outside.
pub fn fednode() -> Command {
    clean(Command::new(binary("fednode")))
}

/// Returns a command for `fedboot` without any setting from the outside.
pub fn fedboot() -> Command {
    clean(Command::new(binary("fedboot")))
}

fn clean(mut command: Command) -> Command {
    let ours = |name: &str| name.starts_with("FEDNODE_") || name.starts_with("FEDBOOT_");
    for (name, _) in std::env::vars_os().filter(|(name, _)| ours(&name.to_string_lossy())) {
        command.env_remove(name);
    }
    command
}

/// Runs a command to its end.
///
/// # Panics
/// If it takes longer than [`PATIENCE`].
pub fn run(mut command: Command) -> Output {
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let id = child.id();
    let (done, ended) = std::sync::mpsc::sync_channel(1);
    let waiter = std::thread::spawn(move || {
        let output = child.wait_with_output().unwrap();
        let _ = done.send(());
        output
    });
    if ended.recv_timeout(PATIENCE).is_err() {
        signal(id, rustix::process::Signal::KILL);
        let output = waiter.join().unwrap();
        panic!(
            "took longer than {PATIENCE:?}\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    waiter.join().unwrap()
}

/// Returns what a process printed, as JSON.
///
/// # Panics
/// If it failed or printed something else.
pub fn json_of(output: &Output) -> Value {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{stderr}", output.status);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!(
            "{error}: {}\n{stderr}",
            String::from_utf8_lossy(&output.stdout)
        )
    })
}

/// Checks the exit code of a command that fails, and that the last line on standard error holds these words.
///
/// # Panics
/// Panics if it ended otherwise.
#[track_caller]
pub fn assert_fails(output: &Output, code: i32, words: &[&str]) {
    let message = String::from_utf8_lossy(&output.stderr);
    let last = message.lines().last().unwrap_or_default();
    assert_eq!(output.status.code(), Some(code), "{message}");
    let missing: Vec<&&str> = words.iter().filter(|word| !last.contains(**word)).collect();
    assert!(missing.is_empty(), "`{last}` lacks {missing:?}");
}

/// Rounds of a second or two: long enough to be interrupted and short enough to wait for.
pub const SLOW_ROUNDS: [&str; 6] = [
    "--samples-per-node",
    "120",
    "--local-epochs",
    "12",
    "--set",
    "round.grace_seconds=1",
];

/// Sends a signal.
pub fn signal(pid: u32, signal: rustix::process::Signal) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid.cast_signed()) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// A process under test; killed when dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// Its state folder.
    pub state: PathBuf,
    log: PathBuf,
}

impl Process {
    /// Returns its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills it without a warning, as a power cut would.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// If it does not end in time.
    pub fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until(&self.log, "the process to end", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    /// Returns everything it wrote.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Returns what its control API says, `None` while it does not answer.
    pub fn status(&self) -> Option<Value> {
        let output = run_quietly(
            fednode()
                .args(["status", "--json", "--state"])
                .arg(&self.state),
        );
        serde_json::from_slice(&output.stdout).ok()
    }

    /// Waits until its status fulfils a condition.
    ///
    /// # Panics
    /// If that does not happen in time, with its log.
    pub fn wait_for(&self, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
        let mut last = None;
        wait_until(&self.log, what, || {
            last = self.status();
            last.as_ref().is_some_and(&condition)
        });
        last.unwrap()
    }

    /// Waits until a number of rounds is recorded.
    pub fn wait_for_records(&self, n: usize) {
        wait_until(&self.log, &format!("{n} rounds"), || {
            self.records().len() >= n
        });
    }

    /// Returns its round records in order; of a round that was trained again after a crash the last one.
    pub fn records(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.state.join("metrics.jsonl")).unwrap_or_default();
        let records = text
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        records
            .map(|record| (round(&record), record))
            .collect::<BTreeMap<_, _>>()
            .into_values()
            .collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn run_quietly(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap()
}

/// Waits for a condition; looks often, because that is cheap, and fails with the log.
fn wait_until(log: &Path, what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        let log = || fs::read_to_string(log).unwrap_or_default();
        assert!(
            started.elapsed() < PATIENCE,
            "waited {PATIENCE:?} for {what}\n{}",
            log()
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A federation on loopback: a spec, and a folder for everybody's state.
#[derive(Debug)]
pub struct Federation {
    folder: tempfile::TempDir,
    nodes: u32,
}

impl Federation {
    /// Writes the spec with `fednode init`; `arguments` are its flags. Unless they name an algorithm, it is FedMoE-DA as in
    /// its paper, which shares most: means of a common part and experts.
    pub fn new(nodes: u32, rounds: u32, arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = fednode();
        let paper = ["--algorithm", "fedmoe-da"];
        let is_named = arguments.contains(&paper[0]);
        let algorithm = if is_named { &[][..] } else { &paper };
        command
            .args(["init", "--json", "--open", "--data", "digits"])
            .arg(folder.path());
        command
            .args([
                "--nodes",
                &nodes.to_string(),
                "--rounds",
                &rounds.to_string(),
            ])
            .args(algorithm)
            .args(arguments);
        json_of(&run(command));
        Self { folder, nodes }
    }

    /// Returns the folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the spec's file.
    pub fn spec(&self) -> PathBuf {
        self.path().join("federation.toml")
    }

    /// Starts the aggregator on a port of the system's choice and returns it with its address.
    pub fn start_aggregator(&self) -> (Process, String) {
        self.start_aggregator_at("/ip4/127.0.0.1/tcp/0")
    }

    /// Starts the aggregator at an address, with the state that it had before.
    pub fn start_aggregator_at(&self, listen: &str) -> (Process, String) {
        let state = self.path().join("fedboot");
        let mut command = fedboot();
        command
            .args(["start", "--listen", listen, "--spec"])
            .arg(self.spec())
            .arg("--state")
            .arg(&state);
        let process = self.spawn(command, state, "fedboot");
        let status = process.wait_for("fedboot to listen", |status| {
            status["listeners"][0].is_string()
        });
        let address = status["listeners"][0].as_str().unwrap().to_owned();
        (process, address)
    }

    /// Starts a node with its shard, counting from 1.
    pub fn start_node(&self, shard: u32, peers: &[&str], arguments: &[&str]) -> Process {
        let state = self.path().join(format!("node-{shard}"));
        let mut command = fednode();
        command.args([
            "start",
            "--listen",
            "/ip4/127.0.0.1/tcp/0",
            "--device",
            "cpu",
            "--threads",
            "1",
        ]);
        command
            .args([
                "--data",
                "digits",
                "--shard",
                &format!("{shard}/{}", self.nodes),
                "--spec",
            ])
            .arg(self.spec());
        command.arg("--state").arg(&state);
        if !peers.is_empty() {
            command.arg("--peers").args(peers);
        }
        command.args(arguments);
        self.spawn(command, state, &format!("node-{shard}"))
    }

    fn spawn(&self, command: Command, state: PathBuf, name: &str) -> Process {
        Process::spawn(command, self.path(), state, name)
    }
}

impl Process {
    /// Starts a command in a folder, which also takes its log.
    pub fn spawn(mut command: Command, folder: &Path, state: PathBuf, name: &str) -> Self {
        let log = folder.join(format!("{name}.log"));
        // A process that is started again goes on writing where the first one stopped.
        let file = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .unwrap();
        let child = command
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        Self { child, state, log }
    }
}

/// Tells whether a status says that all rounds are done.
pub fn is_finished(status: &Value) -> bool {
    status["finished"] == true
}

/// Returns the round that a status says is worked on.
pub fn round(status: &Value) -> u64 {
    status["round"].as_u64().unwrap_or(0)
}

/// Returns the names of all algorithms, as `fednode algorithms` lists them.
///
/// # Panics
/// If it lists hardly any.
pub fn algorithms() -> Vec<String> {
    let mut list = fednode();
    list.args(["algorithms", "--json"]);
    let listed = json_of(&run(list));
    let names: Vec<String> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["name"].as_str().unwrap().to_owned())
        .collect();
    assert!(names.len() >= 12, "{names:?}");
    names
}
