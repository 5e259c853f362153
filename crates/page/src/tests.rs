//! The page as a browser meets it: over a socket.

use std::sync::mpsc;
use std::time::Duration;

use fednode_core::{NodeId, Round, Timestamp};
use fednode_runtime::records;
use fednode_runtime::status::RoundRecord;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::{Background, Page, Settings, Watched};

/// How long anything may take here.
const PATIENCE: Duration = Duration::from_secs(10);

async fn start(watched: Watched) -> (Page, mpsc::Receiver<String>) {
    let (send, links) = mpsc::sync_channel(8);
    let settings = Settings {
        bind: ([127, 0, 0, 1], 0).into(),
        on_link: Box::new(move |link| send.send(link.to_owned()).unwrap()),
    };
    (Page::start(watched, settings).await.unwrap(), links)
}

/// A folder with the records of a simulated run.
fn run() -> (tempfile::TempDir, Watched) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("summary.json"), "{}").unwrap();
    let record = RoundRecord::new(Round(1), NodeId::from_bytes([1; 32]), Timestamp(0));
    let line = serde_json::to_string(&record).unwrap() + "\n";
    std::fs::write(records::path_in(folder.path()), line).unwrap();
    let watched = Watched::folder(folder.path()).unwrap();
    (folder, watched)
}

async fn ask(page: &Page, path: &str, cookie: &str) -> TcpStream {
    let mut stream = TcpStream::connect(page.address()).await.unwrap();
    let head = format!(
        "GET {path} HTTP/1.1\r\nHost: here\r\nCookie: {cookie}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

async fn get(page: &Page, path: &str, cookie: &str) -> String {
    let mut stream = ask(page, path, cookie).await;
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    tokio::time::timeout(PATIENCE, read).await.unwrap().unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap()
}

fn header<'a>(answer: &'a str, name: &str) -> &'a str {
    let line = answer.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("no {name} in {answer}"))
        .trim()
}

/// Spends the newest link, and returns the cookie.
async fn enter(page: &Page, links: &mpsc::Receiver<String>) -> String {
    let link = links.try_iter().last().unwrap();
    let path = link.split_once(&page.address().to_string()).unwrap().1;
    let answer = get(page, path, "").await;
    assert_eq!(
        (status(&answer), header(&answer, "location:")),
        ("303", "/")
    );
    let cookie = header(&answer, "set-cookie:");
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Lax"));
    cookie.split(';').next().unwrap().to_owned()
}

#[tokio::test]
async fn nobody_gets_in_without_a_link_and_a_link_works_once() {
    let (_folder, watched) = run();
    let (page, links) = start(watched).await;
    for path in [
        "/",
        "/assets/index.html",
        "/events",
        "/nowhere",
        "/?ticket=",
        "/?ticket=0",
    ] {
        assert_eq!(status(&get(&page, path, "").await), "401", "{path}");
    }
    let link = links.recv().unwrap();
    let path = link
        .split_once(&page.address().to_string())
        .unwrap()
        .1
        .to_owned();
    // A ticket opens the page, not a file of it.
    let elsewhere = path.replace("/?", "/assets/index.html?");
    assert_eq!(status(&get(&page, &elsewhere, "").await), "401");
    assert_eq!(status(&get(&page, &path, "").await), "303");
    assert_eq!(status(&get(&page, &path, "").await), "401");
    // The terminal shows another link by now.
    let cookie = enter(&page, &links).await;
    let answer = get(&page, "/", &cookie).await;
    assert_eq!(status(&answer), "200");
    assert!(header(&answer, "content-security-policy:").starts_with("default-src 'none'"));
    assert_eq!(header(&answer, "content-type:"), "text/html; charset=utf-8");
    assert!(answer.ends_with("</html>\n"));
    assert_eq!(
        status(&get(&page, "/assets/../Cargo.toml", &cookie).await),
        "404"
    );
    // Whoever is inside and opens an old link loses nothing.
    assert_eq!(status(&get(&page, &path, &cookie).await), "303");
}

#[tokio::test]
async fn a_browser_is_told_everything_then_what_is_new_then_the_end() {
    let (folder, watched) = run();
    let (page, links) = start(watched).await;
    let cookie = enter(&page, &links).await;
    let mut stream = ask(&page, "/events", &cookie).await;
    let mut told = String::new();
    let mut wait_for = async |text: &str| {
        let until = async {
            let mut piece = [0; 4096];
            while !told.contains(text) {
                let n = stream.read(&mut piece).await.unwrap();
                assert!(n > 0, "no {text} in {told}");
                told.push_str(&String::from_utf8_lossy(&piece[..n]));
            }
        };
        tokio::time::timeout(PATIENCE, until).await.unwrap();
    };
    wait_for("event: federation").await;
    wait_for("\"kind\":\"simulation\"").await;
    wait_for("\"rows\":[[1,").await;
    let record = RoundRecord::new(Round(2), NodeId::from_bytes([1; 32]), Timestamp(0));
    let line = serde_json::to_string(&record).unwrap() + "\n";
    let path = records::path_in(folder.path());
    let old = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, old + &line).unwrap();
    wait_for("\"rows\":[[2,").await;
    let stopping = tokio::spawn(page.stop());
    wait_for("event: goodbye").await;
    stopping.await.unwrap();
}

#[tokio::test]
async fn a_port_in_use_is_said_in_one_line() {
    let (_folder, watched) = run();
    let (page, _links) = start(watched.clone()).await;
    let settings = Settings {
        bind: page.address(),
        on_link: Box::new(|_| ()),
    };
    let error = Page::start(watched, settings)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with(&format!("cannot listen at {}", page.address())),
        "{error}"
    );
    assert!(error.contains("--bind"), "{error}");
}

#[test]
fn a_page_in_the_background_ends_when_it_is_dropped() {
    let (_folder, watched) = run();
    let start = |bind| {
        let on_link = Box::new(|_: &str| ());
        Background::start(watched.clone(), Settings { bind, on_link })
    };
    let page = start(([127, 0, 0, 1], 0).into()).unwrap();
    let address = page.address();
    assert!(std::net::TcpStream::connect(address).is_ok());
    assert!(start(address).is_err());
    drop(page);
    assert!(std::net::TcpStream::connect(address).is_err());
}
