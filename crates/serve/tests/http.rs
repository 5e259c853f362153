//! A server on loopback with a small model, asked over plain sockets as any client would.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use fednode_serve::{
    AccessFile, Answer, Batch, ColumnFacts, ColumnKind, Input, InputFacts, ModelFacts, Piece,
    Predictor, Reader, Refused, Server, Settings,
};
use serde_json::{Value, json};

/// Logistic regression by hand: the probability of `sick` is 1 / (1 + exp(50 - age)); a gap counts as 50.
struct Ages(Arc<ModelFacts>);

impl Ages {
    fn new() -> Self {
        let column = ColumnFacts {
            name: "age".into(),
            kind: ColumnKind::Number,
            levels: Vec::new(),
            range: Some([29.0, 77.0]),
            gaps: true,
        };
        Self(Arc::new(ModelFacts {
            federation: "wards".into(),
            rounds: 3,
            round: 3,
            is_final: true,
            classes: vec!["healthy".into(), "sick".into()],
            input: InputFacts::Table {
                width: 1,
                columns: vec![column],
            },
            measures: json!({"accuracy": 0.8}),
            ..ModelFacts::default()
        }))
    }
}

fn age(cell: &str) -> Option<f32> {
    if cell.is_empty() {
        return Some(50.0);
    }
    cell.parse().ok()
}

impl Reader for Ages {
    type Samples = Vec<f32>;

    fn facts(&self) -> Arc<ModelFacts> {
        Arc::clone(&self.0)
    }

    fn read(&self, input: Input<'_>) -> Result<Batch<Vec<f32>>, Refused> {
        let (mut ids, mut samples) = (Vec::new(), Vec::new());
        match input {
            Input::Cells(rows) => {
                for (at, row) in rows.iter().enumerate() {
                    let text = format!("rows[{at}]: column `age` holds `{}`", row[0]);
                    samples.push(age(&row[0]).ok_or(Refused::Malformed(text))?);
                }
            }
            Input::Table { text, id } => {
                let text = str::from_utf8(text).unwrap();
                for line in text.lines().skip(1) {
                    let (name, years) = line.split_once(',').unwrap();
                    samples.push(age(years).unwrap());
                    ids.push((id != Some("none")).then(|| name.to_owned()));
                }
            }
            _ => return Err(Refused::Unfit("no rows".into())),
        }
        let len = samples.len();
        Ok(Batch { samples, len, ids })
    }
}

/// Predicts when the gate says so, or at once without one.
struct Sickness(Option<mpsc::Receiver<()>>);

impl Predictor<Vec<f32>> for Sickness {
    fn predict(&mut self, pieces: &[Piece<'_, Vec<f32>>]) -> Result<Vec<Answer>, String> {
        if let Some(gate) = &self.0 {
            gate.recv().map_err(|error| error.to_string())?;
        }
        let ages = pieces
            .iter()
            .flat_map(|piece| &piece.samples[piece.range.clone()]);
        let answer = |age: &f32| {
            let sick = 1.0 / (1.0 + (50.0 - age).exp());
            Answer {
                class: u16::from(sick > 0.5),
                probabilities: vec![1.0 - sick, sick],
                number: None,
                expert: Some(1),
            }
        };
        Ok(ages.map(answer).collect())
    }
}

/// A running server, and what is needed to ask it.
struct Asking {
    server: Option<Server>,
    runtime: tokio::runtime::Runtime,
    address: SocketAddr,
    token: String,
    file: PathBuf,
    _folder: tempfile::TempDir,
}

impl Asking {
    fn start(gate: Option<mpsc::Receiver<()>>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("serve.json");
        let settings = Settings {
            bind: ([127, 0, 0, 1], 0).into(),
            access_file: file.clone(),
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let server = Server::start(Ages::new(), Sickness(gate), &settings);
        let server = runtime.block_on(server).unwrap();
        let access = AccessFile::read(&file).unwrap();
        assert_eq!(access.address, server.address());
        Self {
            address: server.address(),
            server: Some(server),
            runtime,
            token: access.token,
            file,
            _folder: folder,
        }
    }

    /// Sends a request and leaves its answer to be read.
    fn send(&self, line: &str, headers: &str, body: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let (token, length) = (&self.token, body.len());
        let length = if headers.contains("Content-Length") {
            String::new()
        } else {
            format!("Content-Length: {length}\r\n")
        };
        let head = format!(
            "{line} HTTP/1.1\r\nHost: h\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n{length}{headers}\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        stream
    }

    fn ask(&self, line: &str, headers: &str, body: &[u8]) -> (u16, String, Value) {
        answer(self.send(line, headers, body))
    }

    fn predict(&self, query: &str, form: &str, body: &str) -> (u16, Value) {
        let line = format!("POST /v1/predict{query}");
        let (status, _, said) =
            self.ask(&line, &format!("Content-Type: {form}\r\n"), body.as_bytes());
        (status, said)
    }
}

/// Reads an answer: status, head, and the body as JSON.
fn answer(mut stream: TcpStream) -> (u16, String, Value) {
    let mut answer = Vec::new();
    // A connection whose request was not read to its end may be reset behind its answer.
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let body = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"));
    (status, head.to_owned(), body)
}

/// By hand: 1 / (1 + exp(-1)) = 0.731059.
#[test]
fn rows_get_classes_probabilities_and_their_ids() {
    let asking = Asking::start(None);
    let body = r#"{"rows": [{"age": 51, "id": "p-1"}, [30], [null]], "explain": true}"#;
    let (status, said) = asking.predict("", "application/json", body);
    assert_eq!(status, 200, "{said}");
    let first = &said["predictions"][0];
    assert_eq!(
        [
            &first["sample"],
            &first["id"],
            &first["class"],
            &first["name"]
        ],
        [&json!(0), &json!("p-1"), &json!(1), &json!("sick")]
    );
    let probability = first["probability"].as_f64().unwrap();
    assert!((probability - 0.731_059).abs() < 1e-6, "{probability}");
    let healthy = &first["explanation"]["classes"][0];
    assert_eq!(healthy["name"], "healthy");
    assert!((healthy["probability"].as_f64().unwrap() - 0.268_941).abs() < 1e-6);
    assert_eq!(first["explanation"]["expert"], 1);
    let second = &said["predictions"][1];
    assert_eq!(
        (second["name"].as_str(), second.get("id")),
        (Some("healthy"), None)
    );
    assert_eq!(said["predictions"].as_array().unwrap().len(), 3);

    let (_, said) = asking.predict("", "text/csv", "who,age\na,51\nb,20\n");
    let ids = |said: &Value| {
        [
            said["predictions"][0]["id"].clone(),
            said["predictions"][1]["id"].clone(),
        ]
    };
    assert_eq!(ids(&said), [json!("a"), json!("b")]);
    assert_eq!(said["predictions"][0].get("explanation"), None);
    let (_, said) = asking.predict("?id=none", "text/csv", "who,age\na,51\nb,20\n");
    assert_eq!(ids(&said), [Value::Null, Value::Null]);

    // More samples than a turn has, and more bytes than are read at once, still come back in their order.
    let rows: Vec<String> = (0..5000).map(|row| format!("[{}.5]", row % 100)).collect();
    let body = format!(r#"{{"rows": [{}]}}"#, rows.join(", "));
    let (status, said) = asking.predict("", "application/json", &body);
    assert_eq!(status, 200);
    let classes = said["predictions"].as_array().unwrap().iter();
    let sick: Vec<u64> = classes.map(|row| row["class"].as_u64().unwrap()).collect();
    let expected: Vec<u64> = (0..5000).map(|row| u64::from(row % 100 >= 50)).collect();
    assert_eq!(sick, expected);
}

#[test]
fn the_model_says_what_it_is() {
    let asking = Asking::start(None);
    let (status, _, said) = asking.ask("GET /v1/model", "", b"");
    assert_eq!(status, 200);
    assert_eq!(said["classes"], json!(["healthy", "sick"]));
    assert_eq!(said["measures"]["accuracy"], 0.8);
    let column = json!({"name": "age", "kind": "number", "range": [29.0, 77.0], "gaps": true});
    assert_eq!(
        said["input"],
        json!({"kind": "table", "width": 1, "columns": [column]})
    );
    let (status, _, said) = asking.ask("GET /v1/openapi.json", "", b"");
    assert_eq!(status, 200);
    // Every field of the answer is described, and every described one is there.
    let described = &said["components"]["schemas"]["Model"]["properties"];
    let names =
        |value: &Value| -> Vec<String> { value.as_object().unwrap().keys().cloned().collect() };
    let (_, _, model) = asking.ask("GET /v1/model", "", b"");
    assert_eq!(names(described), names(&model));
}

#[test]
fn nothing_but_health_is_told_without_the_token() {
    let mut asking = Asking::start(None);
    let mode = fs::metadata(&asking.file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    asking.token.replace_range(0..1, "x");
    for line in [
        "GET /v1/model",
        "GET /v1/openapi.json",
        "GET /nothing",
        "POST /v1/predict",
    ] {
        let (status, head, said) = asking.ask(line, "", b"");
        assert_eq!(status, 401, "{line}");
        assert!(
            head.to_ascii_lowercase()
                .contains("www-authenticate: bearer"),
            "{head}"
        );
        assert!(said["error"].as_str().unwrap().contains("token"));
    }
    let (status, _, said) = asking.ask("GET /healthz", "", b"");
    assert_eq!((status, said), (200, json!({"status": "ok"})));
}

#[test]
fn every_error_is_one_line_of_json_with_its_status() {
    let asking = Asking::start(None);
    let json = "Content-Type: application/json\r\n";
    let many = format!(r#"{{"rows": [{}[1]]}}"#, "[1],".repeat(10_000));
    for (line, headers, body, expected, words) in [
        ("GET /v1/nothing", "", "", 404, "no such page"),
        ("GET /v1/predict", "", "", 405, "no such method"),
        ("POST /v1/model", "", "", 405, "no such method"),
        ("POST /v1/predict", "", "x", 415, "send application/json"),
        (
            "POST /v1/predict",
            "Content-Type: text/html\r\n",
            "x",
            415,
            "`text/html`",
        ),
        (
            "POST /v1/predict",
            json,
            "{\n\"rows\": [[1]\n",
            400,
            "line 3",
        ),
        (
            "POST /v1/predict",
            json,
            r#"{"rows": [[1], ["old"]]}"#,
            400,
            "rows[1]: column `age` holds `old`",
        ),
        (
            "POST /v1/predict",
            json,
            r#"{"rows": [{"years": 1}]}"#,
            400,
            "rows[0] has no column `age`",
        ),
        (
            "POST /v1/predict",
            json,
            r#"{"rows": []}"#,
            400,
            "no samples",
        ),
        ("POST /v1/predict", json, &many, 413, "at most 10000"),
        (
            "POST /v1/predict",
            "Content-Type: image/png\r\n",
            "x",
            422,
            "takes rows",
        ),
        (
            "POST /v1/predict?what=1",
            json,
            "{}",
            400,
            "no option `what`",
        ),
    ] {
        let (status, head, said) = asking.ask(line, headers, body.as_bytes());
        assert_eq!(status, expected, "{line}: {said}");
        assert!(
            head.to_ascii_lowercase()
                .contains("content-type: application/json")
        );
        let error = said["error"].as_str().unwrap();
        assert!(error.contains(words) && !error.contains('\n'), "{error}");
        assert_eq!(said.as_object().unwrap().len(), 1);
    }
    // Who says that the body will be too large is told before it is sent; who does not is told as soon as it is.
    let large = format!("{json}Content-Length: 9000000\r\n");
    let (status, _, said) = asking.ask("POST /v1/predict", &large, b"");
    assert_eq!(status, 413, "{said}");
    let chunks = format!("{json}Transfer-Encoding: chunked\r\nContent-Length-is: unknown\r\n");
    let body = format!("{:x}\r\n{}", (8 << 20) + 1, " ".repeat((8 << 20) + 1));
    let (status, _, said) = asking.ask("POST /v1/predict", &chunks, body.as_bytes());
    assert_eq!(status, 413, "{said}");
}

#[test]
fn who_comes_when_all_places_are_taken_is_refused_and_nobody_else_is() {
    let (open, gate) = mpsc::sync_channel(100);
    let asking = Asking::start(Some(gate));
    let form = "Content-Type: application/json\r\n";
    let send = || asking.send("POST /v1/predict", form, br#"{"rows": [[60]]}"#);
    // 32 have places; which of 40 they are is decided on the way. The others hear at once that there are none.
    let (told, refused) = mpsc::sync_channel(40);
    let clients: Vec<_> = (0..40)
        .map(|_| {
            let (stream, told) = (send(), told.clone());
            std::thread::spawn(move || {
                let (status, head, said) = answer(stream);
                told.send((status, head)).unwrap();
                (status, said)
            })
        })
        .collect();
    for _ in 0..8 {
        let (status, head) = refused.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(status, 503);
        assert!(
            head.to_ascii_lowercase().contains("retry-after: 1"),
            "{head}"
        );
    }
    for _ in 0..33 {
        open.send(()).unwrap();
    }
    let answers: Vec<(u16, Value)> = clients.into_iter().map(|one| one.join().unwrap()).collect();
    let served = answers.iter().filter(|(status, _)| *status == 200);
    assert!(
        served
            .clone()
            .all(|(_, said)| said["predictions"][0]["name"] == "sick")
    );
    assert_eq!(served.count(), 32);
    let refused = answers.iter().find(|(status, _)| *status == 503).unwrap();
    assert!(refused.1["error"].as_str().unwrap().contains("try again"));
}

#[test]
fn who_is_under_way_when_the_server_stops_still_gets_an_answer() {
    let (open, gate) = mpsc::sync_channel(100);
    let mut asking = Asking::start(Some(gate));
    let form = "Content-Type: application/json\r\nExpect: 100-continue\r\n";
    let mut stream = asking.send("POST /v1/predict", form, br#"{"rows": [[60]]}"#);
    // The server asks for the body when it has taken the request up.
    let mut go_on = [0; 25];
    stream.read_exact(&mut go_on).unwrap();
    assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");
    let idle = TcpStream::connect(asking.address).unwrap();
    let server = asking.server.take().unwrap();
    let stopping = asking.runtime.spawn(server.stop());
    open.send(()).unwrap();
    let (status, _, said) = answer(stream);
    assert_eq!(
        (status, said["predictions"][0]["class"].as_u64()),
        (200, Some(1))
    );
    asking.runtime.block_on(stopping).unwrap();
    assert!(!asking.file.exists());
    drop(idle);
    assert!(TcpStream::connect(asking.address).is_err());
}
