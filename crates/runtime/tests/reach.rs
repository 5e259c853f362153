//! Members that nobody can dial take part like all others; only the model is a toy.
#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]

#[allow(dead_code, reason = "these tests use their share")]
mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use common::{Running, config, spec};
use fednode_core::{FederationSpec, Round};
use fednode_runtime::records::{path_in, read};
use fednode_runtime::{MemberConfig, Outcome};

const QUICK: Duration = Duration::from_millis(5);

/// Configuration of a member that only dials.
fn outbound(spec: &FederationSpec, state: &Path, peers: &[String]) -> MemberConfig {
    MemberConfig {
        listen: Vec::new(),
        ..config(spec, state, peers)
    }
}

async fn finish(node: Running, rounds: u32) {
    let finished = node.end().await.unwrap();
    let expected = (Outcome::AllRounds, Round(rounds));
    assert_eq!((finished.outcome, finished.round), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_members_that_only_dial_average_through_the_aggregator() {
    let folder = tempfile::tempdir().unwrap();
    let state = |name: &str| folder.path().join(name);
    let mut spec = spec(2, 3);
    spec.exchange.experts = None;
    let (aggregator, address) = Running::aggregator(config(&spec, &state("boot"), &[])).await;
    let peers = [address];
    let started = Instant::now();
    let a = Running::node(1, outbound(&spec, &state("a"), &peers), QUICK);
    let b = Running::node(2, outbound(&spec, &state("b"), &peers), QUICK);
    finish(a, 3).await;
    finish(b, 3).await;
    finish(aggregator, 3).await;
    assert!(started.elapsed() < Duration::from_secs(30), "{started:?}");
    for name in ["a", "b"] {
        let records = read(&path_in(&state(name))).unwrap();
        assert!(
            records.iter().all(|record| record.members == 2),
            "{records:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn members_that_only_dial_exchange_experts_with_all_others() {
    let folder = tempfile::tempdir().unwrap();
    let state = |name: &str| folder.path().join(name);
    let spec = spec(5, 3);
    let (aggregator, address) = Running::aggregator(config(&spec, &state("boot"), &[])).await;
    let peers = [address];
    let started = Instant::now();
    let names = ["public", "a", "b", "c", "d"];
    let start = |(number, name): (usize, &&str)| {
        let config = match *name {
            "public" => config(&spec, &state(name), &peers),
            name => outbound(&spec, &state(name), &peers),
        };
        Running::node(number as u8 + 1, config, QUICK)
    };
    let nodes: Vec<Running> = names.iter().enumerate().map(start).collect();
    for node in nodes {
        finish(node, 3).await;
    }
    finish(aggregator, 3).await;
    assert!(started.elapsed() < Duration::from_secs(60), "{started:?}");
    for name in names {
        let records = read(&path_in(&state(name))).unwrap();
        assert!(
            records.iter().all(|record| record.members == 5),
            "{name}: {records:?}"
        );
        // Two experts of each of the four others, mixed from the second round on.
        assert_eq!(records[1].n_sources_used, 8, "{name}: {records:?}");
    }
}
