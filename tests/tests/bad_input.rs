//! What bad input gets: one line that says what happened and what to do, an exit code by cause, no backtrace.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::path::Path;
use std::process::Command;

use fednode_e2e::{Federation, fednode, run};

/// Runs a command that must fail with a code and one line that contains certain words.
fn assert_fails(mut command: Command, code: i32, words: &[&str]) {
    command.env("RUST_BACKTRACE", "1");
    let output = run(command);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    let line = stderr
        .lines()
        .find(|line| line.starts_with("error"))
        .unwrap_or_else(|| panic!("no error line: {stderr}"));
    for word in words {
        assert!(line.contains(word), "`{word}` is not in: {line}");
    }
    assert!(
        !stderr.contains("panicked") && !stderr.contains("stack backtrace"),
        "{stderr}"
    );
}

fn swarm(arguments: &[&str]) -> Command {
    let mut command = fednode();
    command
        .current_dir(std::env::temp_dir())
        .args(["swarm", "--nodes", "2", "--rounds", "1"])
        .args(arguments);
    command
}

fn start(federation: &Federation, arguments: &[&str]) -> Command {
    let mut command = fednode();
    command.current_dir(federation.path()).args([
        "start",
        "--device",
        "cpu",
        "--state",
        "s",
        "--listen",
        "/ip4/127.0.0.1/tcp/0",
    ]);
    command.arg("--spec").arg(federation.spec()).args(arguments);
    command
}

#[test]
fn a_flag_that_was_dropped_says_what_to_write_instead() {
    for (line, instead) in [
        ("start --mdns", "--set network.mdns=VALUE"),
        ("start --quota-mib 5", "--set storage.quota_mib=VALUE"),
        ("start --share-module=false", "--set share_module=VALUE"),
        ("init --participation 0.5", "--set round.participation=C"),
        ("simulate --no-training", "--toy-floats 0"),
    ] {
        let mut command = fednode();
        command.args(line.split(' '));
        let output = run(command);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {stderr}");
        assert!(
            stderr.starts_with("error: unexpected argument")
                && stderr.contains(&format!("tip: write {instead}\n")),
            "{line}: {stderr}"
        );
    }
}

#[test]
fn unknown_names_offer_the_nearest() {
    assert_fails(
        swarm(&["--algorithm", "fedmoe-ad"]),
        3,
        &["fedmoe-ad", "fedmoe-da"],
    );
    assert_fails(
        swarm(&["--set", "training.learning_rat=1"]),
        3,
        &["learning_rat", "learning_rate"],
    );
    assert_fails(
        swarm(&["--data", "fashion-mnits"]),
        4,
        &["fashion-mnits", "fashion-mnist"],
    );
    assert_fails(swarm(&["--partition", "dirichlet:-1"]), 3, &["dirichlet"]);
}

/// The library that reads Parquet files panics at this byte. The program must say what is wrong with the file, and not that it has a
/// defect itself.
#[test]
fn a_damaged_parquet_file_is_no_defect_of_the_program() {
    let whole = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../crates/data/tests/data/clinic-snappy.parquet"
    );
    let mut bytes = std::fs::read(whole).unwrap();
    bytes[2160] ^= 0x80;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("clinic.parquet");
    for bytes in [&bytes[..], &bytes[..2000]] {
        std::fs::write(&path, bytes).unwrap();
        let mut data = fednode();
        data.args(["data", &format!("csv:{}", path.display())]);
        let words = ["clinic.parquet", "is no Parquet file that can be read"];
        assert_fails(data, 4, &words);
    }
    let mut data = fednode();
    data.args(["data", &format!("csv:{whole}")]);
    let output = run(data);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("pressure"),
        "{text}"
    );
}

#[test]
fn missing_and_damaged_data_are_named() {
    assert_fails(
        swarm(&["--data", "idx:/nowhere/at/all"]),
        4,
        &["/nowhere/at/all"],
    );
    for missing in [
        "no-such-table.csv",
        "file:no-such-table.csv",
        "no/such/folder",
    ] {
        let path = missing.trim_start_matches("file:");
        let words = format!(
            "there is no {}`{path}` here",
            if path.ends_with("csv") { "file " } else { "" }
        );
        assert_fails(swarm(&["--data", missing]), 4, &[&words]);
    }
    let folder = tempfile::tempdir().unwrap();
    write_idx(folder.path(), 7, 20);
    assert_fails(
        swarm(&["--data", &format!("idx:{}", folder.path().display())]),
        4,
        &["images"],
    );
}

/// Writes a training set whose image file promises more images than it holds.
fn write_idx(folder: &Path, held: u32, promised: u32) {
    let header = |magic: u32, sizes: &[u32]| {
        [magic]
            .iter()
            .chain(sizes)
            .flat_map(|word| word.to_be_bytes())
            .collect::<Vec<u8>>()
    };
    for (name, n) in [("train", promised), ("t10k", held)] {
        let mut images = header(0x803, &[n, 8, 8]);
        images.extend(vec![9u8; held as usize * 64]);
        let mut labels = header(0x801, &[n]);
        labels.extend((0..n).map(|label| (label % 3) as u8));
        std::fs::File::create(folder.join(format!("{name}-images-idx3-ubyte")))
            .unwrap()
            .write_all(&images)
            .unwrap();
        std::fs::File::create(folder.join(format!("{name}-labels-idx1-ubyte")))
            .unwrap()
            .write_all(&labels)
            .unwrap();
    }
}

#[test]
fn a_port_in_use_is_named() {
    let federation = Federation::new(2, 1, &[]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let address = format!("/ip4/127.0.0.1/tcp/{port}");
    let mut command = fednode();
    command.current_dir(federation.path()).args([
        "start", "--device", "cpu", "--state", "s", "--listen", &address,
    ]);
    command
        .args(["--data", "digits", "--shard", "1/2", "--spec"])
        .arg(federation.spec());
    assert_fails(command, 5, &[&port.to_string(), "in use", "--listen"]);
    for setting in ["network.control", "serve"] {
        let clash = format!("{setting}=127.0.0.1:{port}");
        let data = ["--data", "digits", "--shard", "1/2", "--set", &clash];
        let another = format!("Choose another `{setting}`");
        assert_fails(start(&federation, &data), 5, &[&another]);
    }
}

#[test]
fn configuration_mistakes_are_named() {
    let federation = Federation::new(2, 1, &[]);
    assert_fails(
        start(&federation, &["--data", "digits", "--shard", "3/2"]),
        3,
        &["3/2"],
    );
    assert_fails(
        start(&federation, &["--data", "digits", "--shard", "1/5"]),
        3,
        &["1/5", "2"],
    );
    let mut unknown = start(&federation, &["--data", "digits", "--shard", "1/2"]);
    unknown.env("FEDNODE_THREDS", "2");
    assert_fails(unknown, 3, &["FEDNODE_THREDS", "FEDNODE_THREADS"]);
    for (with_table, meant) in [
        ("FEDNODE_NETWORK_MDNS", "FEDNODE_MDNS"),
        ("FEDNODE_NETWORK_LISTEN", "FEDNODE_LISTEN"),
        ("FEDNODE_NETWORK_MAX_PEERS", "FEDNODE_MAX_PEERS"),
        ("FEDNODE_STORAGE_STATE", "FEDNODE_STATE"),
    ] {
        let mut unknown = start(&federation, &["--data", "digits", "--shard", "1/2"]);
        unknown.env(with_table, "true");
        let words = format!("unknown variable `{with_table}`: did you mean `{meant}`?");
        assert_fails(unknown, 3, &[&words]);
    }
    let node = federation.path().join("broken.toml");
    std::fs::write(&node, "devise = \"cpu\"\n").unwrap();
    let mut broken = start(&federation, &[]);
    broken.arg("--config").arg(&node);
    assert_fails(broken, 3, &["line 1", "devise", "device"]);
    std::fs::write(
        &node,
        "\n[data]\nkind = \"csv\"\nfile = \"x\"\nlable = \"y\"\n",
    )
    .unwrap();
    let mut broken = start(&federation, &[]);
    broken.arg("--config").arg(&node);
    assert_fails(broken, 3, &["line 2", "lable", "label"]);
    std::fs::write(&node, "[network]\ncompression = \"zst\"\n").unwrap();
    let mut broken = start(&federation, &[]);
    broken.arg("--config").arg(&node);
    assert_fails(broken, 3, &["line 2", "zst", "zstd"]);
    let whole = std::fs::read_to_string(federation.spec()).unwrap();
    let half = &whole[..whole.rfind("[model]").unwrap()];
    for (text, what) in [("", "the file is empty"), (half, "the file ends early")] {
        std::fs::write(federation.spec(), text).unwrap();
        let words = ["federation.toml`", what, "fednode join TICKET"];
        assert_fails(start(&federation, &["--data", "digits"]), 3, &words);
    }
    std::fs::write(federation.spec(), "rounds = 0\n").unwrap();
    assert_fails(
        start(&federation, &["--data", "digits", "--shard", "1/2"]),
        3,
        &["rounds"],
    );
}

#[test]
fn a_missing_gpu_is_said_and_the_alternative_named() {
    let mut command = swarm(&["--device", "vulkan:7"]);
    command.env("VK_DRIVER_FILES", "/nowhere/icd.json");
    assert_fails(command, 8, &["Vulkan", "cpu"]);
}

#[test]
fn a_node_that_was_never_started_is_to_be_started_first() {
    let folder = tempfile::tempdir().unwrap();
    let node = folder.path().join("ward");
    let mut init = fednode();
    init.arg("init")
        .arg(&node)
        .args(["--data", "digits", "--privacy", "open"]);
    assert!(run(init).status.success());
    for (command, of) in [
        (&["predict", "x.csv"][..], &node),
        (&["export", "--out", "m.onnx"], &node.join("state")),
        (&["members"], &node),
    ] {
        let mut command_line = fednode();
        command_line.args(command).arg("--state").arg(of);
        let file = node.join("node.toml");
        let start = format!("fednode start --config {}", file.display());
        assert_fails(command_line, 7, &["no node has run with", &start]);
    }
}

#[test]
fn an_unreachable_peer_is_said_once_and_retried() {
    let federation = Federation::new(2, 1, &[]);
    let closed = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let address = format!("/ip4/127.0.0.1/tcp/{closed}");
    let node = federation.start_node(1, &[&address], &[]);
    let status = node.wait_for("it to say what it waits for", |status| {
        status["waiting_for"]
            .as_array()
            .is_some_and(|waiting| !waiting.is_empty())
    });
    assert_eq!(status["phase"], "joining");
    let started = std::time::Instant::now();
    while !node.log().contains(&closed.to_string()) {
        assert!(started.elapsed().as_secs() < 30, "{}", node.log());
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    std::thread::sleep(std::time::Duration::from_secs(3));
    let lines = node
        .log()
        .lines()
        .filter(|line| line.contains("refused") && line.contains(&closed.to_string()))
        .count();
    assert_eq!(lines, 1, "{}", node.log());
}
