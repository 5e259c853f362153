//! A page to look at: what a browser gets of a node at work, of a swarm that has ended, and of a fedboot.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use fednode_e2e::{Federation, PATIENCE, assert_fails, fedboot, fednode, json_of, run, signal};
use rustix::process::Signal;
use serde_json::{Value, json};

/// A process that prints JSON lines until Ctrl-C; killed when dropped.
struct Printing {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Printing {
    fn start(mut command: Command) -> Self {
        command.arg("--json").stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    fn line(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("`{line}` is not JSON"))
    }

    /// Ends it as Ctrl-C does, and returns the exit code.
    fn interrupt(&mut self) -> Option<i32> {
        signal(self.child.id(), Signal::INT);
        self.child.wait().unwrap().code()
    }
}

impl Drop for Printing {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A page, and what opens it.
struct Opened {
    page: Printing,
    address: String,
    cookie: String,
}

impl Opened {
    /// Starts a page and goes in by the link that it prints.
    fn start(command: Command) -> Self {
        let mut page = Printing::start(command);
        let line = page.line();
        let link = line["link"].as_str().unwrap();
        let (address, path) = link
            .strip_prefix("http://")
            .unwrap()
            .split_once('/')
            .unwrap();
        let mut opened = Self {
            page,
            address: address.to_owned(),
            cookie: String::new(),
        };
        let mut answer = String::new();
        opened
            .ask(&format!("/{path}"))
            .read_to_string(&mut answer)
            .unwrap();
        let cookie = answer
            .lines()
            .find_map(|line| line.strip_prefix("set-cookie: "));
        opened.cookie = cookie.unwrap().split(';').next().unwrap().to_owned();
        opened
    }

    fn ask(&self, path: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let (address, cookie) = (&self.address, &self.cookie);
        let head = format!(
            "GET {path} HTTP/1.1\r\nHost: {address}\r\nCookie: {cookie}\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream
    }

    /// Reads events until all texts were in one, and returns everything.
    fn events(&self, texts: &[&str]) -> String {
        let mut lines = BufReader::new(self.ask("/events")).lines();
        let mut told = String::new();
        while !texts.iter().all(|text| told.contains(text)) {
            let line = lines
                .next()
                .unwrap_or_else(|| panic!("no {texts:?} in {told}"));
            told += &line.unwrap_or_else(|error| panic!("{error}: no {texts:?} in {told}"));
            told.push('\n');
        }
        told
    }
}

fn dashboard(arguments: &[&str], folder: &Path) -> Command {
    let mut command = fednode();
    command.arg("dashboard").args(arguments).arg(folder);
    command
}

fn token(file: &Path) -> String {
    std::fs::read_to_string(file).unwrap()
}

#[test]
fn the_page_of_a_node_says_what_it_waits_for_and_keeps_its_secrets() {
    let federation = Federation::new(3, 2, &[]);
    let node = federation.start_node(1, &[], &[]);
    node.wait_for("a wait", |status| {
        !status["waiting_for"].as_array().unwrap().is_empty()
    });
    let mut opened = Opened::start(dashboard(&["--state"], &node.state));
    let told = opened.events(&[
        "event: federation",
        "\"state\":\"running\"",
        "\"waiting_for\":[{",
    ]);
    let control: Value = serde_json::from_str(&token(&node.state.join("control.json"))).unwrap();
    let secrets = [
        control["token"].as_str().unwrap().to_owned(),
        token(&node.state.join("metrics.token")),
    ];
    let mut page = String::new();
    opened.ask("/").read_to_string(&mut page).unwrap();
    for secret in secrets {
        assert!(!told.contains(&secret) && !page.contains(&secret));
    }
    assert!(page.starts_with("HTTP/1.1 200"), "{page}");
    // A node that has gone is said to be gone; a new browser hears it at once.
    drop(node);
    opened.events(&["\"state\":\"stopped\""]);
    assert_eq!(opened.page.interrupt(), Some(0));
}

#[test]
fn the_page_of_a_swarm_that_has_ended_shows_its_rounds_and_its_result() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("swarm");
    let mut swarm = fednode();
    swarm.args([
        "swarm", "--json", "--nodes", "2", "--rounds", "2", "--device", "cpu", "--out",
    ]);
    let summary = json_of(&run({
        swarm.arg(&out);
        swarm
    }));
    let opened = Opened::start(dashboard(&[], &out));
    let served = format!("\"served\":{}", summary["served"]);
    let told = opened.events(&[
        "\"kind\":\"swarm\"",
        "event: summary",
        &served,
        "event: log",
    ]);
    let rounds = opened.events(&[
        "{\"index\":0,\"reset\":false,\"rows\":[[1,",
        "{\"index\":1,\"reset\":false,\"rows\":[[1,",
    ]);
    assert_eq!(told.matches("\"role\":\"aggregator\"").count(), 1, "{told}");
    for node in ["node 1", "node 2", "fedboot"] {
        assert!(rounds.contains(&format!("\"name\":\"{node}\"")), "{rounds}");
    }
    let mut of_fedboot = fedboot();
    of_fedboot
        .args(["dashboard", "--state"])
        .arg(out.join("fedboot/state"));
    let mut opened = Opened::start(of_fedboot);
    opened.events(&["\"kind\":\"aggregator\"", "\"state\":\"stopped\""]);
    assert_eq!(opened.page.interrupt(), Some(0));
}

#[test]
fn what_cannot_be_looked_at_is_said_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |arguments: &[&str], folder: &Path| run(dashboard(arguments, folder));
    let other = "is neither a state folder nor the folder of a swarm";
    assert_fails(&refused(&[], folder.path()), 7, &[other]);
    assert_fails(
        &refused(&["--state"], &folder.path().join("none")),
        7,
        &["start a node first"],
    );
    let nobodys = &["no node has run with it yet"];
    assert_fails(&refused(&["--state"], folder.path()), 7, nobodys);
    let mut of_fedboot = fedboot();
    of_fedboot.args(["dashboard", "--state"]).arg(folder.path());
    let nobodys = &["no fedboot has run with it yet"];
    assert_fails(&run(of_fedboot), 7, nobodys);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    std::fs::write(folder.path().join("summary.json"), "{}").unwrap();
    let output = refused(&["--bind", &address], folder.path());
    assert_fails(&output, 5, &["cannot listen at", "--bind"]);
}

#[test]
fn watch_prints_what_a_node_does_and_waits_for_one_that_is_gone() {
    let federation = Federation::new(3, 2, &[]);
    let node = federation.start_node(1, &[], &[]);
    node.wait_for("an answer", |_| true);
    let mut command = fednode();
    command
        .args(["watch", "--every", "0.1", "--state"])
        .arg(&node.state);
    let mut watch = Printing::start(command);
    let first = watch.line();
    assert_eq!(
        (&first["rounds"], &first["privacy"]["count"]),
        (&json!(2), &json!(0))
    );
    drop(node);
    let mut said = watch.line();
    while said["error"].is_null() {
        said = watch.line();
    }
    assert_eq!(watch.interrupt(), Some(0));
    let mut command = fednode();
    command.args(["watch", "--every", "0"]);
    assert_fails(&run(command), 2, &["--every 0 is out of range"]);
}

#[test]
fn the_token_for_figures_stays_and_opens_nothing_else() {
    let federation = Federation::new(3, 2, &[]);
    let ask = |state: &Path, path: &str| {
        let control: Value = serde_json::from_str(&token(&state.join("control.json"))).unwrap();
        let address = control["address"].as_str().unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        let token = token(&state.join("metrics.token"));
        let head = format!("GET {path} HTTP/1.0\r\nAuthorization: Bearer {token}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let node = federation.start_node(1, &[], &[]);
    node.wait_for("an answer", |_| true);
    let state = node.state.clone();
    let first = token(&state.join("metrics.token"));
    assert!(ask(&state, "/metrics").contains("fednode_round"));
    assert!(ask(&state, "/v1/status").contains("401"));
    drop(node);
    let node = federation.start_node(1, &[], &[]);
    node.wait_for("an answer", |_| true);
    assert_eq!(token(&state.join("metrics.token")), first);
    assert!(ask(&state, "/metrics").contains("fednode_round"));
}
