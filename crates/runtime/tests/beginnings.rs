//! What a start may change in a state folder, and what it says of a folder that somebody took files out of.
#![allow(
    clippy::unwrap_used,
    missing_docs,
    unreachable_pub,
    missing_debug_implementations
)]

#[allow(dead_code, reason = "other tests need more of it")]
mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use common::{Running, Toy, config, lonely_spec, trainer, until, within};
use fednode_core::FederationSpec;
use fednode_runtime::control::Client;
use fednode_runtime::{ExitCode, MemberConfig, Process, RunError, Trainer, TrainerCard, run_node};
use tokio_util::sync::CancellationToken;

const QUICK: Duration = Duration::from_millis(2);

/// Reads all files of a folder but those that say who started when.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.display().to_string();
            let is_of_the_start = ["/lock", "/incarnation", "-shm", "-wal"]
                .iter()
                .any(|end| name.ends_with(end));
            if path.is_dir() {
                folders.push(path);
            } else if !is_of_the_start {
                found.insert(name, std::fs::read(&path).unwrap());
            }
        }
    }
    found
}

fn with_fact(spec: &FederationSpec, state: &Path, fact: &str) -> MemberConfig {
    MemberConfig {
        facts: vec![("data.toml", fact.to_owned())],
        ..config(spec, state, &[])
    }
}

/// Starts a node with other samples than those it was trained with.
async fn start_refused(config: MemberConfig, partition: &str) -> RunError {
    let trainer = trainer(Toy::new(1, QUICK).0);
    let card = TrainerCard {
        partition_hash: partition.to_owned(),
        ..trainer.card.borrow().clone()
    };
    let trainer = Trainer::of(trainer.worker, card);
    let mut process = Process::new(&CancellationToken::new());
    let run = run_node(config, trainer, &mut process);
    within(30, run).await.unwrap_err()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_start_changes_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let (state, spec) = (folder.path().join("node"), lonely_spec(2));
    let node = Running::node(1, with_fact(&spec, &state, "first"), QUICK);
    node.end().await.unwrap();
    let before = files(&state);
    assert!(before.keys().any(|name| name.ends_with("data.toml")));
    let error = start_refused(with_fact(&spec, &state, "second"), "other samples").await;
    assert_eq!(error.exit_code(), ExitCode::State);
    let taken = MemberConfig {
        listen: vec!["/ip4/192.0.2.1/tcp/1".into()],
        open: true,
        ..with_fact(&spec, &state, "second")
    };
    let partition = Toy::new(1, QUICK).0;
    let partition = trainer(partition).card.borrow().partition_hash.clone();
    let error = start_refused(taken, &partition).await;
    assert_eq!(error.exit_code(), ExitCode::Network, "{error}");
    let after = files(&state);
    for (name, bytes) in &before {
        assert_eq!(after.get(name), Some(bytes), "{name} was changed");
    }
    assert_eq!(before.len(), after.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_without_its_key_and_checkpoints_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let (state, spec) = (folder.path().join("node"), lonely_spec(2));
    Running::node(1, config(&spec, &state, &[]), QUICK)
        .end()
        .await
        .unwrap();
    for entry in std::fs::read_dir(state.join("checkpoints")).unwrap() {
        std::fs::write(entry.unwrap().path(), b"spoilt").unwrap();
    }
    let error = start_refused(config(&spec, &state, &[]), "").await;
    assert!(error.to_string().contains("begins anew"), "{error}");
    std::fs::remove_dir_all(state.join("checkpoints")).unwrap();
    std::fs::remove_file(state.join("key")).unwrap();
    let slow = Duration::from_millis(200);
    let node = Running::node(1, config(&spec, &state, &[]), slow);
    until(|| Client::of(&state).is_ok()).await;
    let client = Client::of(&state).unwrap();
    let status = tokio::task::spawn_blocking(move || client.status().unwrap());
    let notes = status.await.unwrap().notes;
    let says = |word: &str| {
        let mut notes = notes.iter().filter(|note| note.is_trouble);
        notes.any(|note| note.text.contains(word))
    };
    assert!(
        says("put the old key back") && says("no checkpoint is left"),
        "{notes:?}"
    );
    node.end().await.unwrap();
}
