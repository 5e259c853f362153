//! Whole members in one process, over real sockets, files and threads; only the model is a toy.
#![allow(
    clippy::unwrap_used,
    missing_docs,
    unreachable_pub,
    missing_debug_implementations
)]

mod common;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::{Counters, FINISHING, Running, config, lonely_spec, spec, until, within};
use fednode_core::{BlobId, BlobStore, Body, FederationSpec, ParamSet, Round};
use fednode_net::Compression;
use fednode_runtime::control::{Client, ClientError};
use fednode_runtime::history;
use fednode_runtime::records::{path_in as records_path, read as read_records};
use fednode_runtime::{ExitCode, MemberConfig, Outcome, final_model, stored_model};

const QUICK: Duration = Duration::from_millis(5);

fn model_of(state: &Path) -> ParamSet {
    ParamSet::decode(
        &std::fs::read(state.join(final_model::FOLDER).join("model.safetensors")).unwrap(),
    )
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn three_nodes_and_an_aggregator_finish_with_one_shared_part() {
    let folder = tempfile::tempdir().unwrap();
    let state = |name: &str| folder.path().join(name);
    let spec = spec(3, 3);
    let (aggregator, address) = Running::aggregator(config(&spec, &state("boot"), &[])).await;
    let names = ["a", "b", "c"];
    let start = |(number, name): (usize, &&str)| {
        let config = config(&spec, &state(name), std::slice::from_ref(&address));
        Running::node(number as u8 + 1, config, QUICK)
    };
    let nodes: Vec<Running> = names.iter().enumerate().map(start).collect();
    for node in nodes {
        let finished = node.end().await.unwrap();
        assert_eq!(
            (finished.outcome, finished.round),
            (Outcome::AllRounds, Round(3))
        );
    }
    assert_eq!(aggregator.end().await.unwrap().outcome, Outcome::AllRounds);
    let shared = model_of(&state("a")).get("shared").unwrap().clone();
    for name in names {
        assert_eq!(
            model_of(&state(name)).get("shared"),
            Some(&shared),
            "{name} follows another mean"
        );
        let records = read_records(&records_path(&state(name))).unwrap();
        assert_eq!(
            records.iter().map(|r| r.round.0).collect::<Vec<_>>(),
            [1, 2, 3]
        );
        assert!(
            records
                .iter()
                .all(|r| r.members == 3 && r.closed_by.is_some()),
            "{records:?}"
        );
        assert!(
            records[1].n_sources_used == 4,
            "everybody's experts are mixed from round 2 on: {records:?}"
        );
        assert!(records.iter().all(|r| r.accuracy.is_some()));
        let before_exchange: Vec<bool> = records
            .iter()
            .map(|r| r.accuracy_after_local_training.is_some())
            .collect();
        assert_eq!(
            before_exchange,
            [false, false, true],
            "the last round is always evaluated fully"
        );
        assert!(records[1].bytes_received.peer_to_peer > 0 && records[1].bytes_sent.wire > 0);
        assert!(records.iter().all(|r| r.peak_rss_bytes > Some(0)));
        assert!(
            !state(name).join("control.json").exists(),
            "the control file goes with its server"
        );
    }
    // Each node adds its number in hundredths and the mean of 1, 2 and 3 is 2: three rounds add 0.06.
    assert!((shared.values()[0] - 1.06).abs() < 1e-5, "{shared:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn packed_transfer_moves_fewer_bytes_and_the_same_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let state = |name: &str| folder.path().join(name);
    let mut spec = spec(2, 5);
    // Whom an audit falls on fetches more.
    spec.round.audit = 0.0;
    let (aggregator, address) = Running::aggregator(config(&spec, &state("boot"), &[])).await;
    let member = |name| config(&spec, &state(name), std::slice::from_ref(&address));
    let packed = MemberConfig {
        compression: Compression::Zstd,
        ..member("packed")
    };
    let nodes = [
        Running::node(1, packed, QUICK),
        Running::node(2, member("plain"), QUICK),
    ];
    for node in nodes {
        assert_eq!(node.end().await.unwrap().round, Round(5));
    }
    aggregator.end().await.unwrap();
    let received = |name: &str| {
        let records = read_records(&records_path(&state(name))).unwrap();
        records
            .iter()
            .map(|r| r.bytes_received.peer_to_peer + r.bytes_received.aggregator)
            .sum::<u64>()
    };
    let (packed, plain) = (received("packed"), received("plain"));
    assert!(packed < plain * 9 / 10, "{packed} and {plain} bytes");
    let shared = |name: &str| model_of(&state(name)).get("shared").unwrap().clone();
    assert_eq!(shared("packed"), shared("plain"));
}

#[tokio::test(flavor = "multi_thread")]
async fn private_modules_are_exchanged_after_the_last_round() {
    let folder = tempfile::tempdir().unwrap();
    let state = |name: &str| folder.path().join(name);
    let mut spec = spec(3, 1);
    spec.pool.preset = Some(fednode_core::spec::Preset::Fixed);
    let (aggregator, address) = Running::aggregator(config(&spec, &state("boot"), &[])).await;
    let start = |(number, name): (usize, &&str)| {
        let config = config(&spec, &state(name), std::slice::from_ref(&address));
        Running::node(
            number as u8 + 1,
            MemberConfig {
                shares_module: *name != "c",
                ..config
            },
            QUICK,
        )
    };
    let names = ["a", "b", "c"];
    let nodes: Vec<Running> = names.iter().enumerate().map(start).collect();
    let mut ids = std::collections::BTreeSet::new();
    for (node, name) in nodes.into_iter().zip(names) {
        let id = node.end().await.unwrap().node_id;
        ids.extend((name != "c").then_some(id));
    }
    assert_eq!(aggregator.end().await.unwrap().outcome, Outcome::AllRounds);
    for name in names {
        let card = std::fs::read(state(name).join(final_model::FOLDER).join("card.json")).unwrap();
        let card: final_model::ModelCard = serde_json::from_slice(&card).unwrap();
        let pooled = card
            .pool
            .unwrap()
            .members
            .into_iter()
            .filter_map(|member| member.node);
        let others = ids.iter().copied().filter(|id| *id != card.node_id);
        assert!(pooled.eq(others), "{name} pooled others than the others");
        assert!(card.finished.is_some(), "the pool is evaluated");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_stage_of_a_stopped_node_begins_anew() {
    let folder = tempfile::tempdir().unwrap();
    let state = |name: &str| folder.path().join(name);
    let mut spec = spec(2, 1);
    spec.pool.preset = Some(fednode_core::spec::Preset::Fixed);
    let (aggregator, address) = Running::aggregator(config(&spec, &state("boot"), &[])).await;
    let start = |number: u8, batch| {
        let config = config(
            &spec,
            &state(&number.to_string()),
            std::slice::from_ref(&address),
        );
        Running::node(number, config, batch)
    };
    // The first has its module while the second still makes one.
    let (first, second) = (start(1, QUICK), start(2, QUICK));
    second.counters.held.store(true, Ordering::Relaxed);
    until(|| first.counters.finished.load(Ordering::Relaxed) == 1).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    first.stop.cancel();
    assert_eq!(
        first.end().await.unwrap_err().exit_code(),
        ExitCode::Interrupted
    );
    second.counters.held.store(false, Ordering::Relaxed);
    let again = start(1, QUICK);
    let finished = again.counters.clone();
    for node in [again, second] {
        assert_eq!(node.end().await.unwrap().outcome, Outcome::AllRounds);
    }
    aggregator.end().await.unwrap();
    assert_eq!(
        finished.finished.load(Ordering::Relaxed),
        1,
        "it is done again"
    );
    let model = model_of(&state("1"));
    let value = model.get("experts.0.e").unwrap().values()[0];
    assert!(
        (0.5 * FINISHING..1.5 * FINISHING).contains(&value),
        "and once in all: {value}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_node_goes_on_from_its_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let state = |name: &str| folder.path().join(name);
    let spec = spec(3, 6);
    let (aggregator, address) = Running::aggregator(config(&spec, &state("boot"), &[])).await;
    let start = |number: u8| {
        let config = config(
            &spec,
            &state(&number.to_string()),
            std::slice::from_ref(&address),
        );
        Running::node(number, config, Duration::from_millis(40))
    };
    let (first, second, third) = (start(1), start(2), start(3));
    until(|| third.counters.trained.load(Ordering::Relaxed) >= 2).await;
    let stopped = Instant::now();
    third.stop.cancel();
    let error = third.end().await.unwrap_err();
    assert_eq!(error.exit_code(), ExitCode::Interrupted, "{error}");
    assert!(
        stopped.elapsed() < Duration::from_secs(5),
        "Ctrl-C takes at most five seconds"
    );
    let stored = stored_model(&state("3"), &spec).unwrap().unwrap();
    // Its own update is in the model, the mean of the round before beside it.
    let (own, common) = (stored.params.get("shared").unwrap(), stored.common.unwrap());
    assert!(
        own.values()[0] >= common.get("w").unwrap().values()[0],
        "{own:?} {common:?}"
    );
    let again = start(3);
    let counters = again.counters.clone();
    for node in [first, second, again] {
        assert_eq!(node.end().await.unwrap().round, Round(6));
    }
    aggregator.end().await.unwrap();
    assert_eq!(counters.restored.load(Ordering::Relaxed), 1);
    assert!(
        counters.trained.load(Ordering::Relaxed) <= 5,
        "finished rounds are not trained again"
    );
    let records = read_records(&records_path(&state("3"))).unwrap();
    assert_eq!(records.last().unwrap().round, Round(6));
    let shared = |name: &str| model_of(&state(name)).get("shared").unwrap().clone();
    assert_eq!(shared("3"), shared("1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_leaves_ends_well_and_the_others_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let state = |name: &str| folder.path().join(name);
    let spec = spec(3, 5);
    let (aggregator, address) = Running::aggregator(config(&spec, &state("boot"), &[])).await;
    let start = |number: u8| {
        let config = config(
            &spec,
            &state(&number.to_string()),
            std::slice::from_ref(&address),
        );
        Running::node(number, config, Duration::from_millis(40))
    };
    let (first, second, leaver) = (start(1), start(2), start(3));
    until(|| leaver.counters.trained.load(Ordering::Relaxed) >= 2).await;
    let client = Client::of(&state("3")).unwrap();
    tokio::task::spawn_blocking(move || client.leave().unwrap())
        .await
        .unwrap();
    assert_eq!(leaver.end().await.unwrap().outcome, Outcome::Left);
    for node in [first, second] {
        assert_eq!(node.end().await.unwrap().round, Round(5));
    }
    aggregator.end().await.unwrap();
    let last = read_records(&records_path(&state("1")))
        .unwrap()
        .pop()
        .unwrap();
    assert_eq!((last.round, last.members), (Round(5), 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_node_takes_back_its_peers_delete() {
    let folder = tempfile::tempdir().unwrap();
    let state = |name: &str| folder.path().join(name);
    let mut spec = spec(3, 5);
    spec.round.audit = 0.0;
    let (aggregator, address) = Running::aggregator(config(&spec, &state("boot"), &[])).await;
    let start = |number: u8| {
        let state = state(&number.to_string());
        let config = config(&spec, &state, std::slice::from_ref(&address));
        Running::node(number, config, Duration::from_millis(40))
    };
    let (first, second, leaver) = (start(1), start(2), start(3));
    until(|| leaver.counters.trained.load(Ordering::Relaxed) >= 3).await;
    let client = Client::of(&state("3")).unwrap();
    tokio::task::spawn_blocking(move || client.withdraw().unwrap())
        .await
        .unwrap();
    assert_eq!(leaver.end().await.unwrap().outcome, Outcome::Left);
    for member in [first, second, aggregator] {
        member.end().await.unwrap();
    }
    for name in ["1", "2", "boot"] {
        let options = fednode_store::Options::default();
        let store = fednode_store::Store::open(&state(name), spec.id(), &options).unwrap();
        let known = store.ledger.known_adverts().unwrap();
        let known = known.iter();
        let adverts: Vec<_> = known.map(|it| fednode_net::verify(it).unwrap()).collect();
        let taken = adverts.iter().find_map(|advert| match &advert.body {
            Body::Withdraw(withdraw) => Some((advert.author, &withdraw.blobs)),
            _ => None,
        });
        let (leaver, taken) = taken.unwrap();
        // Toys of two nodes may be alike, and shared parts stay where a closed round counts them.
        let (mut own, mut others) = (BTreeSet::new(), BTreeSet::new());
        for advert in &adverts {
            if let Body::Local(local) = &advert.body {
                let experts = local.experts.iter().map(|offer| offer.blob.id);
                match advert.author == leaver {
                    true => own.extend(experts),
                    false => others.extend(experts),
                }
            }
        }
        assert!(own.len() >= 4, "{name} heard of {taken:?}");
        let is_held = |id: &&BlobId| store.blobs.held(id).is_some();
        let kept: Vec<&BlobId> = own.difference(&others).filter(is_held).collect();
        assert_eq!(kept, [] as [&BlobId; 0], "{name} keeps what was taken back");
        let rest = others.iter().filter(is_held).count();
        assert!(name == "boot" || rest > 0, "{name} has deleted everything");
        drop(store);
        let said = history::audit(&state(name)).unwrap().withdrawals;
        assert_eq!(said.len(), 1, "{name}");
        assert_eq!(said[0].answers.len(), 3, "{name}: {:?}", said[0]);
        assert_eq!(said[0].silent, [], "{name}");
    }
    // Who left has waited for the word of everybody who was there.
    let said = history::audit(&state("3")).unwrap().withdrawals;
    assert_eq!(said[0].answers.len(), 3, "{:?}", said[0]);
}

/// Runs a node on its own until `reached` says so.
async fn lonely_node(
    spec: &FederationSpec,
    state: &Path,
    reached: impl Fn(&Counters) -> bool,
) -> Running {
    let node = Running::node(1, config(spec, state, &[]), Duration::from_millis(200));
    until(|| reached(&node.counters)).await;
    node
}

async fn leave_once(spec: &FederationSpec, state: PathBuf, reached: impl Fn(&Counters) -> bool) {
    let node = lonely_node(spec, &state, reached).await;
    let client = Client::of(&state).unwrap();
    tokio::task::spawn_blocking(move || client.leave().unwrap())
        .await
        .unwrap();
    let left = node.end().await;
    assert!(
        matches!(&left, Ok(finished) if finished.outcome == Outcome::Left),
        "{}: {left:?}",
        state.display()
    );
    let card = state.join(final_model::FOLDER).join("card.json");
    assert!(
        !card.exists(),
        "{}: it was done before it left",
        state.display()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_leaves_in_its_last_stage_ends_well() {
    let folder = tempfile::tempdir().unwrap();
    let state = |name: &str| folder.path().join(name);
    let plain = lonely_spec(1);
    let mut pooled = plain.clone();
    pooled.pool.preset = Some(fednode_core::spec::Preset::Fixed);
    let finishing = |counters: &Counters| counters.finishing.load(Ordering::Relaxed) > 0;
    let pooling = |counters: &Counters| counters.pooling.load(Ordering::Relaxed) > 0;
    tokio::join!(
        leave_once(&plain, state("while it finalises"), finishing),
        leave_once(&pooled, state("while it makes its module"), finishing),
        leave_once(&pooled, state("while it makes its pool"), pooling),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_stopped_in_its_last_stage_is_interrupted() {
    let folder = tempfile::tempdir().unwrap();
    let finishing = |counters: &Counters| counters.finishing.load(Ordering::Relaxed) > 0;
    let state = folder.path().join("node");
    let node = lonely_node(&lonely_spec(1), &state, finishing).await;
    node.stop.cancel();
    assert_eq!(
        node.end().await.unwrap_err().exit_code(),
        ExitCode::Interrupted
    );
    assert!(
        !state.join(final_model::FOLDER).exists(),
        "its last stage begins anew"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn control_api_answers_its_owner_only() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("node");
    let spec = lonely_spec(2);
    let mut config = config(&spec, &state, &[]);
    config.exit_when_finished = false;
    config.facts = vec![("fact.txt", "first".into())];
    let node = Running::node(1, config.clone(), QUICK);
    until(|| state.join("control.json").exists()).await;
    let client = Client::of(&state).unwrap();
    let asked = client.clone();
    let finished = move || asked.status().unwrap().finished;
    within(
        60,
        tokio::task::spawn_blocking(move || {
            while !finished() {
                std::thread::sleep(Duration::from_millis(20));
            }
        }),
    )
    .await
    .unwrap();

    config.facts = vec![("fact.txt", "second".into())];
    let error = Running::node(1, config, QUICK).end().await.unwrap_err();
    assert_eq!(error.exit_code(), ExitCode::State);
    assert_eq!(
        std::fs::read_to_string(state.join("fact.txt")).unwrap(),
        "first",
        "what is refused changes nothing"
    );
    assert!(
        error.to_string().contains("is in use by process"),
        "{error}"
    );

    let mut stranger = fednode_runtime::control::read(&state).unwrap().unwrap();
    stranger.token = "0".repeat(stranger.token.len());
    tokio::task::spawn_blocking(move || {
        let status = client.status().unwrap();
        assert_eq!(
            (status.round, status.rounds, status.finished),
            (Round(2), 2, true)
        );
        assert!(
            status.listeners[0].contains("/p2p/"),
            "{:?}",
            status.listeners
        );
        assert!(
            status
                .notes
                .iter()
                .any(|note| note.text == "all rounds are done"),
            "{:?}",
            status.notes
        );
        assert_eq!(client.rounds().unwrap().len(), 2);
        assert!(client.peers().unwrap().is_empty() && client.experts().unwrap().rows.is_empty());
        let metrics = client.metrics().unwrap();
        assert!(
            metrics.contains("fednode_score{measure=\"auroc\"} 0.75"),
            "{metrics}"
        );
        assert!(
            metrics.contains("fednode_round 2") && metrics.ends_with("# EOF\n"),
            "{metrics}"
        );
        let refused = Client::new(stranger).status().unwrap_err();
        assert!(
            matches!(&refused, ClientError::Refused(text) if text.contains("token")),
            "{refused}"
        );
        client.stop().unwrap();
    })
    .await
    .unwrap();
    assert_eq!(
        node.end().await.unwrap().outcome,
        Outcome::AllRounds,
        "it had finished, so a stop is a good end"
    );
    assert!(matches!(
        Client::of(&state),
        Err(ClientError::NotRunning(_))
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_another_spec_ends_and_names_the_key() {
    let folder = tempfile::tempdir().unwrap();
    let ours = spec(3, 3);
    let (aggregator, address) =
        Running::aggregator(config(&ours, &folder.path().join("boot"), &[])).await;
    let mut theirs = ours.clone();
    theirs.training.learning_rate = 0.5;
    let node = Running::node(
        1,
        config(&theirs, &folder.path().join("node"), &[address]),
        QUICK,
    );
    let error = node.end().await.unwrap_err();
    assert_eq!(error.exit_code(), ExitCode::Refused, "{error}");
    assert!(
        error.to_string().contains("`training.learning_rate`"),
        "{error}"
    );
    aggregator.stop.cancel();
    assert_eq!(
        aggregator.end().await.unwrap_err().exit_code(),
        ExitCode::Interrupted
    );
}

/// The disk of an aggregator holds what the last rounds need, however many there were.
#[tokio::test(flavor = "multi_thread")]
async fn an_aggregator_keeps_what_recent_rounds_need() {
    /// What a part or a mean of the toys takes at most.
    const PART: u64 = 256;
    let folder = tempfile::tempdir().unwrap();
    let state = |name: &str| folder.path().join(name);
    let (spec, quota) = (spec(2, 40), 40 * PART);
    let boot = MemberConfig {
        quota_bytes: quota,
        ..config(&spec, &state("boot"), &[])
    };
    let (aggregator, address) = Running::aggregator(boot).await;
    let member = |name| config(&spec, &state(name), std::slice::from_ref(&address));
    let nodes = [("a", 1), ("b", 2)].map(|(name, n)| Running::node(n, member(name), QUICK));
    for node in nodes {
        node.end().await.unwrap();
    }
    aggregator.end().await.unwrap();
    let options = fednode_store::Options::default();
    let store = fednode_store::Store::open(&state("boot"), spec.id(), &options).unwrap();
    let (used, blobs) = (store.blobs.used_bytes(), store.blobs.list().unwrap());
    assert!(blobs.iter().all(|blob| blob.size <= PART), "{blobs:?}");
    // Half of the quota, and what came since the last round was closed.
    let most = quota / 2 + 4 * PART;
    assert!(used <= most, "{used} bytes in {} blobs", blobs.len());
    assert!(blobs.len() >= 3, "the newest mean and its parts stay");
}
