//! A model that answers over HTTP: the same answers as `fednode predict`, one clear line for what is no request, and an
//! end by Ctrl-C.
#![allow(clippy::unwrap_used)]

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use fednode_e2e::{Federation, PATIENCE, fednode, json_of, run, signal};
use flate2::Compression;
use flate2::write::ZlibEncoder;
use rustix::process::Signal;
use serde_json::{Value, json};

/// New patients with their numbers: columns in another order than in training, a gap, a word that nobody knew.
const PATIENTS: &str = "\
pain,id,smokes,age,ward
none,p-1,yes,58,7
typical,p-2,no,41,7
never heard,p-3,,NA,
";

/// A table of a ward: who is older, smokes or has no typical pain is rather sick.
fn ward(folder: &Path, name: &str, age: usize) -> PathBuf {
    let mut text = "age,pain,smokes,grade\n".to_owned();
    for row in 0..120 {
        let (years, kind) = (age + row * 7 % 20, row * 5 % 3);
        let smokes = (row * 11).is_multiple_of(2);
        let sick = usize::from(years > age + 10) + usize::from(kind == 1) + usize::from(smokes);
        let years = if row % 9 == 4 {
            String::new()
        } else {
            years.to_string()
        };
        let kind = ["typical", "none", "other kind"][kind];
        writeln!(text, "{years},{kind},{smokes},{sick}").unwrap();
    }
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// Runs a federation of two wards, and returns the state folder of the first.
fn trained(folder: &Path) -> PathBuf {
    let mut command = fednode();
    let out = folder.join("swarm");
    command.args([
        "swarm",
        "--json",
        "--no-control",
        "--device",
        "cpu",
        "--out",
    ]);
    command.arg(&out);
    for table in [ward(folder, "north.csv", 40), ward(folder, "south.csv", 50)] {
        let source = format!(
            "csv:{},label=grade,classes=0=>healthy|1=>healthy|*=>sick",
            table.display()
        );
        command.args(["--own", &source]);
    }
    json_of(&run(command));
    out.join("nodes/1/state")
}

/// A running `fednode serve`; killed when dropped.
struct Served {
    child: Child,
    address: String,
    token: String,
    access_file: PathBuf,
}

impl Served {
    fn start(arguments: &[&str], model: &Path) -> Self {
        let mut command = fednode();
        command.args(["serve", "--json"]).args(arguments).arg(model);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let said: Value = serde_json::from_str(&line).unwrap();
        let access_file = PathBuf::from(said["access_file"].as_str().unwrap());
        let access = std::fs::read(&access_file).unwrap();
        let access: Value = serde_json::from_slice(&access).unwrap();
        let address = access["address"].as_str().unwrap().to_owned();
        assert_eq!(said["serving"], format!("http://{address}"));
        Self {
            child,
            address,
            token: access["token"].as_str().unwrap().to_owned(),
            access_file,
        }
    }

    fn ask(&self, line: &str, content_type: &str, body: &[u8]) -> (u16, Value) {
        ask((&self.address, &self.token), line, content_type, body)
    }

    #[track_caller]
    fn predict(&self, content_type: &str, body: &[u8]) -> Vec<Value> {
        let (status, said) = self.ask("POST /v1/predict?explain=true", content_type, body);
        assert_eq!(status, 200, "{said}");
        said["predictions"].as_array().unwrap().clone()
    }

    #[track_caller]
    fn refuses(&self, content_type: &str, body: &str, status: u16, words: &str) {
        let (got, said) = self.ask("POST /v1/predict", content_type, body.as_bytes());
        assert_eq!(got, status, "{said}");
        let error = said["error"].as_str().unwrap();
        assert!(error.contains(words) && !error.contains('\n'), "{error}");
    }

    /// Ends it as Ctrl-C does.
    fn end(&mut self) {
        signal(self.child.id(), Signal::INT);
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
        assert!(!self.access_file.exists());
        assert!(TcpStream::connect(&self.address).is_err());
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Asks a server, given its address and its token.
fn ask(
    (address, token): (&str, &str),
    line: &str,
    content_type: &str,
    body: &[u8],
) -> (u16, Value) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let length = body.len();
    let head = format!(
        "{line} HTTP/1.1\r\nHost: h\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: {content_type}\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap())
}

/// Predicts on the command line; `-` is what `stdin` holds.
fn predicted(model: &[&str], path: &Path, file: &str, more: &[&str]) -> Output {
    let mut command: Command = fednode();
    command
        .args(["predict", file])
        .args(model)
        .args(more)
        .stdin(File::open(path).unwrap());
    command.output().unwrap()
}

/// Compares what was said over HTTP with what was printed: the same classes, and probabilities up to the last digits,
/// because samples were predicted in other batches.
#[track_caller]
fn assert_same(served: &[Value], printed: &Value) {
    let printed = printed.as_array().unwrap();
    assert_eq!(served.len(), printed.len());
    for (served, printed) in served.iter().zip(printed) {
        for key in ["sample", "class", "name", "id"] {
            assert_eq!(served.get(key), printed.get(key), "{served} {printed}");
        }
        let shares = served["explanation"]["classes"].as_array().unwrap();
        let shares: Vec<f64> = shares
            .iter()
            .map(|class| class["probability"].as_f64().unwrap())
            .collect();
        let expected = printed["probabilities"].as_array().unwrap();
        assert_eq!(shares.len(), expected.len());
        for (share, expected) in shares.iter().zip(expected) {
            assert!((share - expected.as_f64().unwrap()).abs() < 1e-5);
        }
        assert_eq!(served["explanation"]["expert"], printed["expert"]);
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-5);
    }
}

#[test]
fn a_table_gets_the_same_answers_over_http_as_on_the_command_line() {
    let folder = tempfile::tempdir().unwrap();
    let state = trained(folder.path());
    let table = folder.path().join("new.csv");
    std::fs::write(&table, PATIENTS).unwrap();
    let model = ["--state", state.to_str().unwrap()];
    let file = table.to_str().unwrap();
    let printed = json_of(&predicted(&model, &table, file, &["--json"]));
    assert_eq!(printed[2]["id"], "p-3");

    // Standard input is as good as a file, another column may say whose a row is, and people see it too.
    let by_ward = ["--json", "--id", "ward"];
    let piped = json_of(&predicted(&model, &table, "-", &by_ward));
    assert_eq!(piped[0]["id"], "7");
    assert_eq!(piped[0]["probabilities"], printed[0]["probabilities"]);
    let shown = predicted(&model, &table, "-", &[]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("p-1") && shown.contains("sick"), "{shown}");
    let missing = predicted(&model, &table, "-", &["--id", "key"]);
    let said = String::from_utf8(missing.stderr).unwrap();
    assert_eq!(missing.status.code(), Some(4));
    assert!(
        said.contains("standard input has no column `key`"),
        "{said}"
    );

    let mut served = Served::start(&["--state"], &state);
    let mode = std::fs::metadata(&served.access_file)
        .unwrap()
        .permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    assert_eq!(served.access_file, state.join("serve.json"));
    assert_same(&served.predict("text/csv", PATIENTS.as_bytes()), &printed);
    let rows = json!({"rows": [
        {"pain": "none", "id": "p-1", "smokes": true, "age": 58, "ward": 7},
        {"Pain": "typical", "ID": "p-2", "smokes": "no", "age": "41"},
        {"pain": "never heard", "id": "p-3", "smokes": null, "age": null},
    ]});
    let json = "application/json";
    assert_same(&served.predict(json, rows.to_string().as_bytes()), &printed);

    let (status, facts) = served.ask("GET /v1/model", "", b"");
    assert_eq!(status, 200);
    assert_eq!(facts["classes"], json!(["healthy", "sick"]));
    assert_eq!(facts["is_final"], true);
    let columns = facts["input"]["columns"].as_array().unwrap();
    let names: Vec<&Value> = columns.iter().map(|column| &column["name"]).collect();
    assert_eq!(names, ["age", "pain", "smokes"]);
    assert_eq!(columns[1]["kind"], "category");
    assert!(facts["measures"]["test"]["accuracy"].as_f64().unwrap() > 0.5);
    assert!(
        facts["provenance"]["trainer"]["train_samples"]
            .as_u64()
            .unwrap()
            > 50
    );

    served.refuses(
        json,
        r#"{"rows": [[58, "none", true], ["old", "none", true]]}"#,
        400,
        "rows[1]: holds `old`, which is no number, in column `age`",
    );
    served.refuses(
        "text/csv",
        "age,pain,smokes\n58,none,yes\n59,none,perhaps\n",
        400,
        "the table holds `perhaps`, which is neither yes nor no, in column `smokes` of line 3",
    );
    served.refuses("text/csv", "age,pain\n58,none\n", 400, "no column `smokes`");
    served.refuses("text/csv", "age,pain,smokes\n", 400, "holds no rows");
    served.refuses("image/png", "x", 422, "the model takes rows of a table");

    // A second server would take the first one's file away.
    let mut second = fednode();
    second.args(["serve", "--state"]).arg(&state);
    let second = run(second);
    let said = String::from_utf8(second.stderr).unwrap();
    assert_eq!(second.status.code(), Some(7), "{said}");
    assert!(
        said.contains("serve.json") && said.contains("still runs"),
        "{said}"
    );
    served.end();
}

/// A grey PNG, made by hand: a signature, a head, the rows behind a filter byte each, an end.
fn png(width: u32, pixels: &[u8]) -> Vec<u8> {
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    let mut chunk = |kind: &[u8; 4], content: &[u8]| {
        let mut crc = flate2::Crc::new();
        crc.update(kind);
        crc.update(content);
        file.extend((content.len() as u32).to_be_bytes());
        file.extend(kind);
        file.extend(content);
        file.extend(crc.sum().to_be_bytes());
    };
    let height = pixels.len() as u32 / width;
    let mut head = [width.to_be_bytes(), height.to_be_bytes()].concat();
    // Eight bits of grey, compressed, filtered and interlaced as usual.
    head.extend([8, 0, 0, 0, 0]);
    chunk(b"IHDR", &head);
    let mut packer = ZlibEncoder::new(Vec::new(), Compression::fast());
    for row in pixels.chunks(width as usize) {
        packer.write_all(&[0]).unwrap();
        packer.write_all(row).unwrap();
    }
    chunk(b"IDAT", &packer.finish().unwrap());
    chunk(b"IEND", &[]);
    file
}

#[test]
fn an_exported_model_of_images_answers_too() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = fednode();
    command.args(["swarm", "--json", "--data", "digits", "--nodes", "2"]);
    command.args(["--rounds", "2", "--no-control", "--device", "cpu", "--out"]);
    command.arg(folder.path().join("run"));
    json_of(&run(command));
    let model = folder.path().join("run/models/1.safetensors");
    // A stroke in the middle.
    let pixels: Vec<u8> = (0..64)
        .map(|at| if (3..5).contains(&(at % 8)) { 255 } else { 0 })
        .collect();
    let image = png(8, &pixels);
    let path = folder.path().join("one.png");
    std::fs::write(&path, &image).unwrap();
    let named = ["--model", model.to_str().unwrap()];
    let printed = json_of(&predicted(
        &named,
        &path,
        path.to_str().unwrap(),
        &["--json"],
    ));
    let piped = json_of(&predicted(&named, &path, "-", &["--json"]));
    assert_eq!(piped[0]["probabilities"], printed[0]["probabilities"]);

    let mut served = Served::start(&["--model"], &model);
    assert_eq!(served.access_file, model.with_extension("serve.json"));
    assert_same(&served.predict("image/png", &image), &printed);
    let (_, facts) = served.ask("GET /v1/model", "", b"");
    let input = json!({"kind": "image", "channels": 1, "height": 8, "width": 8});
    assert_eq!(facts["input"], input);
    served.refuses("image/png", "nonsense", 400, "images[0]");
    served.refuses("text/csv", "a\n1\n", 422, "the model takes images");
    let cut = r#"{"images": ["iVBORw0KGgo="]}"#;
    served.refuses("application/json", cut, 400, "images[0]");
    served.end();
}

#[test]
fn a_running_node_answers_with_its_newest_model() {
    let federation = Federation::new(2, 5_000, &[]);
    let (_hub, address) = federation.start_aggregator();
    let serve = ["--set", "serve=127.0.0.1:0"];
    let mut node = federation.start_node(1, &[&address], &serve);
    let _other = federation.start_node(2, &[&address], &[]);
    node.wait_for_records(1);
    let access_file = node.state.join("serve.json");
    let served = || access_file.exists();
    wait("an access file", served);
    let access: Value = serde_json::from_slice(&std::fs::read(&access_file).unwrap()).unwrap();
    let door = (
        access["address"].as_str().unwrap(),
        access["token"].as_str().unwrap(),
    );
    let round = || {
        let (status, facts) = ask(door, "GET /v1/model", "", b"");
        assert_eq!(
            (status, &facts["is_final"]),
            (200, &json!(false)),
            "{facts}"
        );
        facts["round"].as_u64().unwrap()
    };
    let first = round();
    let image = png(8, &[128; 64]);
    let predict = || {
        let (status, said) = ask(door, "POST /v1/predict?explain=true", "image/png", &image);
        assert_eq!(status, 200, "{said}");
        said["predictions"][0]["explanation"]["classes"].clone()
    };
    let before = predict();
    wait("a model of a later round", || round() > first);
    wait("other probabilities", || predict() != before);

    // Its port is taken by itself, so another node cannot have it: that is said before anything begins.
    let taken = ["--set", &format!("serve={}", door.0)];
    let mut third = federation.start_node(2, &[&address], &taken);
    assert_eq!(third.wait().code(), Some(5), "{}", third.log());
    assert!(
        third.log().contains("cannot serve the model at"),
        "{}",
        third.log()
    );

    signal(node.id(), Signal::INT);
    assert_eq!(node.wait().code(), Some(130));
    assert!(!access_file.exists());
}

/// Waits until something is so.
#[track_caller]
/// A final model is not the last one where the federation goes on.
#[test]
fn a_node_whose_federation_goes_on_answers_with_the_model_of_its_newest_end() {
    let endless = ["--set", "endless=true", "--algorithm", "fedavg"];
    let federation = Federation::new(2, 3, &endless);
    let (_hub, address) = federation.start_aggregator();
    let serve = ["--set", "serve=127.0.0.1:0"];
    let node = federation.start_node(1, &[&address], &serve);
    let _other = federation.start_node(2, &[&address], &[]);
    let access_file = node.state.join("serve.json");
    wait("an access file", || access_file.exists());
    let access: Value = serde_json::from_slice(&std::fs::read(&access_file).unwrap()).unwrap();
    let [place, token] = ["address", "token"].map(|key| access[key].as_str().unwrap());
    let end = || {
        let (_, facts) = ask((place, token), "GET /v1/model", "", b"");
        let round = facts["round"].as_u64();
        round.filter(|_| facts["is_final"] == true)
    };
    wait("a final model", || end().is_some());
    let first = end().unwrap();
    wait("that of a later end", || end() > Some(first));
}

fn wait(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what} did not come");
        std::thread::sleep(Duration::from_millis(100));
    }
}
