//! What one member can do to others with adverts that are well signed and false: nothing that they notice.
//!
//! The machines are fed by hand here; liars among many are in `scenarios.rs`.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::{averaging, blob, heard, id};
use fednode_core::draw::DrawSeed;
use fednode_core::{
    AdvertId, BlobRef, Body, ExpertExchange, ExpertOffer, Fault, FederationSpec, Global,
    InlineProxies, Local, LocalReport, Matching, Member, PeersPerExpert, ProxyOffer, ProxySet,
    Role, Round, Timestamp, Withdraw,
};
use fednode_engine::{
    Aggregator, AverageOrder, AverageReport, Fetch, FetchKind, Head, Input, Node, Output, Purpose,
    Timer,
};

const NOW: Timestamp = Timestamp(1_000);
const LIAR: u8 = 9;

fn spec() -> Arc<FederationSpec> {
    Arc::new(averaging(3))
}

fn advert(spec: &FederationSpec, author: u8, round: u32, body: Body) -> Input {
    let id = match &body {
        Body::Local(_) => update_id(author, round),
        other => AdvertId::of(format!("{author} {round} {other:?}").as_bytes()),
    };
    advert_named(id, spec, author, round, body)
}

/// The name of a node's update of a round.
fn update_id(author: u8, round: u32) -> AdvertId {
    AdvertId::of(format!("update of {author} in round {round}").as_bytes())
}

fn advert_named(id: AdvertId, spec: &FederationSpec, author: u8, round: u32, body: Body) -> Input {
    heard(spec, id, (author, u64::from(round)), (round, NOW), body)
}

/// An update whose shared part is called after its author.
fn update(author: u8) -> Local {
    let offer = ExpertOffer {
        blob: blob(&format!("expert of {author}")),
        samples_routed: 1,
    };
    let shared = Some(blob(&format!("part of {author}")));
    Local {
        shared,
        experts: vec![offer],
        ..Local::new(blob("initial").id, 10)
    }
}

/// A closing of the first round.
fn closing(members: &[u8], mean: &str) -> Global {
    let member = |n: &u8| Member {
        node: id(*n),
        shared: blob(&format!("part of {n}")),
        weight: 1.0,
        advert: update_id(*n, 1),
    };
    Global {
        members: members.iter().map(member).collect(),
        mean: blob(mean),
        parent: blob("initial").id,
        previous: None,
        unmasked: Vec::new(),
        slices: Vec::new(),
    }
}

fn fetched_parts(outputs: &[Output]) -> Vec<BlobRef> {
    let part = |output: &Output| match output {
        Output::Fetch(Fetch {
            blob,
            kind: FetchKind::Shared,
            ..
        }) => Some(*blob),
        _ => None,
    };
    outputs.iter().filter_map(part).collect()
}

/// An aggregator that has heard the updates of these nodes.
fn aggregator(spec: &Arc<FederationSpec>, heard: &[u8]) -> Aggregator {
    let mut aggregator = Aggregator::new(Arc::clone(spec), id(7));
    aggregator.handle(NOW, Input::Start);
    aggregator.handle(NOW, Input::Synced);
    for n in heard {
        aggregator.handle(
            NOW,
            Input::PeerUp {
                node: id(*n),
                role: Role::Node,
            },
        );
        aggregator.handle(NOW, advert(spec, *n, 1, Body::Local(update(*n))));
    }
    aggregator
}

#[test]
fn a_withdrawal_deletes_nothing_that_somebody_else_needs() {
    let spec = spec();
    let wanted = ["expert of 1", "part of 1", "expert of 9", "nobody's"].map(|name| blob(name).id);
    let withdrawal = || {
        advert(
            &spec,
            LIAR,
            2,
            Body::Withdraw(Withdraw {
                blobs: wanted.to_vec(),
            }),
        )
    };
    let mut node = Node::new(Arc::clone(&spec), id(2), Some(blob("initial")));
    node.handle(NOW, Input::Start);
    for n in [1, LIAR] {
        node.handle(NOW, advert(&spec, n, 1, Body::Local(update(n))));
    }
    let mut aggregator = aggregator(&spec, &[1, LIAR]);
    for outputs in [
        node.handle(NOW, withdrawal()),
        aggregator.handle(NOW, withdrawal()),
    ] {
        let forgotten = outputs.iter().find_map(|output| match output {
            Output::Forget(blobs) => Some(blobs.clone()),
            _ => None,
        });
        assert_eq!(
            forgotten.unwrap(),
            wanted[2..],
            "its own, and what nobody knows"
        );
    }
}

#[test]
fn what_a_closed_round_counts_is_deleted_once_no_closing_in_memory_names_it() {
    let spec = spec();
    let mut node = Node::new(Arc::clone(&spec), id(2), Some(blob("initial")));
    node.handle(NOW, Input::Start);
    for n in [1, 3] {
        node.handle(NOW, advert(&spec, n, 1, Body::Local(update(n))));
    }
    let closed = |round: u32, parts: [u8; 2]| Global {
        mean: blob(&format!("mean of {round}")),
        parent: blob(&format!("mean of {}", round - 1)).id,
        ..closing(&parts, "")
    };
    node.handle(NOW, advert(&spec, 3, 1, Body::from(closed(1, [1, 3]))));
    let blobs = ["part of 1", "expert of 1"].map(|name| blob(name).id);
    let withdrawal = Body::Withdraw(Withdraw {
        blobs: blobs.to_vec(),
    });
    node.handle(NOW, advert(&spec, 1, 2, withdrawal));
    assert_eq!(
        node.taken_back(),
        [blobs[1]],
        "a closed round counts the other"
    );
    // Of each author the newest eight are remembered.
    for round in 2..=9 {
        let others = Body::from(closed(round, [3, 4]));
        node.handle(NOW, advert(&spec, 3, round, others));
    }
    assert_eq!(node.taken_back(), blobs);
}

#[test]
fn who_publishes_again_what_it_took_back_has_published_it() {
    let spec = spec();
    let mut node = Node::new(Arc::clone(&spec), id(2), Some(blob("initial")));
    node.handle(NOW, Input::Start);
    node.handle(NOW, advert(&spec, 1, 1, Body::Local(update(1))));
    let blobs = vec![blob("expert of 1").id];
    let withdrawal = Body::Withdraw(Withdraw {
        blobs: blobs.clone(),
    });
    node.handle(NOW, advert(&spec, 1, 2, withdrawal));
    assert_eq!(node.taken_back(), blobs);
    // It was said before, and came later.
    node.handle(NOW, advert(&spec, 1, 1, Body::Local(update(1))));
    assert_eq!(node.taken_back(), blobs);
    node.handle(NOW, advert(&spec, 1, 3, Body::Local(update(1))));
    assert_eq!(node.taken_back(), []);
}

#[test]
fn what_others_have_published_too_is_not_free_when_one_takes_it_back() {
    let spec = spec();
    let mut aggregator = aggregator(&spec, &[1, LIAR]);
    let blobs = ["expert of 1", "part of 1", "expert of 9"].map(|name| blob(name).id);
    assert_eq!(aggregator.free_of(id(LIAR), &blobs), blobs[2..]);
    let counts = Body::from(closing(&[1, LIAR], "mean"));
    aggregator.handle(NOW, advert(&spec, 1, 1, counts));
    let own = [blob("expert of 9").id, blob("part of 9").id];
    assert_eq!(aggregator.free_of(id(LIAR), &own), own[..1]);
}

#[test]
fn an_aggregator_without_averages_deletes_what_it_passed_on() {
    let mut spec = FederationSpec::clone(&spec());
    spec.exchange.averaging = None;
    let spec = Arc::new(spec);
    let mut aggregator = aggregator(&spec, &[]);
    let blobs = vec![blob("expert of 1").id];
    let withdrawal = Body::Withdraw(Withdraw {
        blobs: blobs.clone(),
    });
    let outputs = aggregator.handle(NOW, advert(&spec, 1, 1, withdrawal));
    assert!(matches!(&outputs[..], [Output::Forget(forgotten)] if *forgotten == blobs));
}

#[test]
fn what_was_taken_back_on_its_way_is_deleted_when_it_comes() {
    let spec = spec();
    let mut aggregator = aggregator(&spec, &[1, LIAR]);
    let blobs = vec![blob("expert of 9").id, blob("part of 1").id];
    let withdrawal = Body::Withdraw(Withdraw { blobs });
    aggregator.handle(NOW, advert(&spec, LIAR, 2, withdrawal));
    let forgotten = |outputs: &[Output]| {
        let mut outputs = outputs.iter();
        outputs.any(|output| matches!(output, Output::Forget(_)))
    };
    let arrives = |name: &str| Input::Fetched(blob(name).id);
    assert!(!forgotten(&aggregator.handle(NOW, arrives("part of 1"))));
    assert!(forgotten(&aggregator.handle(NOW, arrives("expert of 9"))));
}

#[test]
fn members_that_nobody_heard_of_close_no_round() {
    let spec = spec();
    let mut aggregator = aggregator(&spec, &[1]);
    let outputs = aggregator.handle(
        NOW,
        advert(&spec, LIAR, 1, Body::from(closing(&[3, 4], "mean"))),
    );
    assert_eq!(fetched_parts(&outputs), []);
    let outputs = aggregator.handle(
        NOW,
        advert(&spec, LIAR, 10, Body::from(closing(&[1, LIAR], "mean"))),
    );
    assert_eq!(
        (fetched_parts(&outputs), aggregator.head().round),
        (vec![], Round::ZERO),
        "nor all rounds"
    );
}

#[test]
fn an_aggregator_recomputes_what_others_averaged_before_it_follows() {
    let spec = spec();
    for (mean, follows) in [("mean", true), ("false mean", false)] {
        let mut aggregator = aggregator(&spec, &[1, 2]);
        let said = advert(&spec, LIAR, 1, Body::from(closing(&[1, 2], mean)));
        assert_eq!(
            fetched_parts(&aggregator.handle(NOW, said)),
            [],
            "it is not its turn"
        );
        let late = NOW + spec.round.deadline();
        let parts = fetched_parts(&aggregator.handle(late, Input::Timer(Timer::Look(Round(1)))));
        assert_eq!(parts, [blob("part of 1"), blob("part of 2")]);
        assert_eq!(aggregator.head().round, Round::ZERO);
        let outputs: Vec<Output> = parts
            .iter()
            .flat_map(|part| aggregator.handle(NOW, Input::Fetched(part.id)))
            .collect();
        let order = outputs.iter().find_map(|output| match output {
            Output::Average(order) if order.purpose != Purpose::Close => Some(order.clone()),
            _ => None,
        });
        let order = order.unwrap();
        let report = AverageReport {
            mean: Some(blob("mean")),
            members: order.members.clone(),
            ..AverageReport::of(&order)
        };
        let outputs = aggregator.handle(NOW, Input::Averaged(report));
        let banned = outputs
            .iter()
            .any(|output| matches!(output, Output::Ban { node, .. } if *node == id(LIAR)));
        assert_eq!(
            (aggregator.head().round == Round(1), banned),
            (follows, !follows),
            "{mean}"
        );
    }
}

#[test]
fn a_node_that_stops_while_it_joins_again_goes_on_where_it_was() {
    let spec = spec();
    let mut node = Node::new(Arc::clone(&spec), id(2), Some(blob("initial")));
    node.handle(NOW, Input::Start);
    node.handle(NOW, Input::Synced);
    for n in [1, 3] {
        node.handle(
            NOW,
            Input::PeerUp {
                node: id(n),
                role: Role::Node,
            },
        );
    }
    let before = node.checkpoint();
    assert_eq!((before.phase.name(), before.round), ("training", Round(1)));
    let mut again = Node::restore(
        Arc::clone(&spec),
        id(2),
        Some(blob("initial")),
        before.clone(),
    );
    again.handle(NOW, Input::Start);
    assert_eq!(
        (again.phase().name(), again.checkpoint()),
        ("joining", before)
    );
}

#[test]
fn accusation_starts_no_trial_beyond_its_evidence() {
    let spec = spec();
    let evidence = |global: &Global| AdvertId::of(global.mean.id.as_bytes());
    let accuse = |accuser: u8, global: &Global| {
        let fault = Fault {
            accused: id(LIAR),
            evidence: evidence(global),
            actual: blob("other").id,
            slice: None,
        };
        advert(&spec, accuser, 1, Body::Fault(fault))
    };
    let mut node = Node::new(Arc::clone(&spec), id(2), Some(blob("initial")));
    node.handle(NOW, Input::Start);
    for n in [1, 3, LIAR] {
        node.handle(NOW, advert(&spec, n, 1, Body::Local(update(n))));
    }
    // Members that nobody heard of: every fetch would wait for its deadline.
    let invented = closing(&[LIAR, 101, 102, 103, 104], "invented mean");
    // What its members signed, and the same again with another mean.
    let (real, other) = (closing(&[1, 3], "mean"), closing(&[1, 3], "second mean"));
    for said in [&invented, &real, &other] {
        let body = Body::from(said.clone());
        node.handle(NOW, advert_named(evidence(said), &spec, LIAR, 1, body));
    }
    assert_eq!(fetched_parts(&node.handle(NOW, accuse(1, &invented))), []);
    assert_eq!(
        fetched_parts(&node.handle(NOW, accuse(LIAR, &real))),
        [],
        "nobody accuses itself"
    );
    let parts = [blob("part of 1"), blob("part of 3")];
    assert_eq!(fetched_parts(&node.handle(NOW, accuse(1, &real))), parts);
    assert_eq!(
        fetched_parts(&node.handle(NOW, accuse(3, &real))),
        [],
        "once is enough"
    );
    assert_eq!(
        fetched_parts(&node.handle(NOW, accuse(1, &other))),
        parts,
        "another closing is another trial"
    );
    // Both are averaged at once; the first answer is to the first order, and acquits.
    let outputs: Vec<Output> = parts
        .iter()
        .flat_map(|part| node.handle(NOW, Input::Fetched(part.id)))
        .collect();
    let orders: Vec<&AverageOrder> = outputs
        .iter()
        .filter_map(|output| match output {
            Output::Average(order) => Some(order),
            _ => None,
        })
        .collect();
    assert_eq!(orders.len(), 2);
    let answer = |order: &AverageOrder| {
        Input::Averaged(AverageReport {
            mean: Some(blob("mean")),
            members: order.members.clone(),
            ..AverageReport::of(order)
        })
    };
    let bans = |outputs: &[Output]| {
        outputs
            .iter()
            .filter(|output| matches!(output, Output::Ban { .. }))
            .count()
    };
    assert_eq!(bans(&node.handle(NOW, answer(orders[0]))), 0);
    assert_eq!(
        bans(&node.handle(NOW, answer(orders[1]))),
        1,
        "the second mean is false"
    );
}

#[test]
fn blob_announced_far_too_large_is_not_fetched() {
    let spec = spec();
    let head = Head {
        round: Round(1),
        mean: Some(blob("mean")),
        parent: Some(blob("initial").id),
        ..Head::initial(None)
    };
    let mut aggregator = Aggregator::restore(Arc::clone(&spec), id(7), head);
    aggregator.handle(NOW, Input::Start);
    let part = |size| Local {
        shared: Some(BlobRef {
            size,
            ..blob("part")
        }),
        ..Local::new(blob("mean").id, 10)
    };
    let outputs = aggregator.handle(NOW, advert(&spec, LIAR, 2, Body::Local(part(512 << 20))));
    assert_eq!(fetched_parts(&outputs), []);
    assert!(
        outputs
            .iter()
            .any(|output| matches!(output, Output::Strike { node, .. } if *node == id(LIAR)))
    );
    assert_eq!(
        fetched_parts(&aggregator.handle(NOW, advert(&spec, 1, 2, Body::Local(part(100))))).len(),
        1
    );
}

/// Before the first mean nothing but what others announce says how large a part is.
#[test]
fn a_large_first_part_is_fetched_once_others_have_announced_as_much() {
    let spec = Arc::new(averaging(7));
    let mut aggregator = Aggregator::new(Arc::clone(&spec), id(7));
    aggregator.handle(NOW, Input::Start);
    let part = |author: u8, size| Local {
        shared: Some(BlobRef {
            size,
            ..blob(&format!("part of {author}"))
        }),
        ..Local::new(blob("initial").id, 10)
    };
    let mut fetched = |author: u8, size| {
        let said = advert(&spec, author, 1, Body::Local(part(author, size)));
        let outputs = aggregator.handle(NOW, said);
        let blames = |output: &Output| matches!(output, Output::Strike { .. });
        assert!(!outputs.iter().any(blames), "it may be an honest one");
        fetched_parts(&outputs).len()
    };
    assert_eq!(fetched(LIAR, 512 << 20), 0);
    assert_eq!(fetched(1, 512 << 20), 0);
    assert_eq!(fetched(2, 1 << 20), 1, "a small one waits for nobody");
    assert_eq!(
        fetched(3, 200 << 20),
        3,
        "more than a third have a quarter of it"
    );
}

#[test]
fn proxies_far_larger_than_the_own_ones_are_not_fetched() {
    let mut spec = FederationSpec {
        nodes: 2,
        ..FederationSpec::default()
    };
    let experts = ExpertExchange::by(Matching::named("similarity"), PeersPerExpert::Count(5));
    spec.exchange.experts = Some(experts);
    let spec = Arc::new(spec);
    let mut node = Node::new(Arc::clone(&spec), id(1), None);
    let peer = Input::PeerUp {
        node: id(LIAR),
        role: Role::Node,
    };
    for input in [Input::Start, Input::Synced, peer] {
        node.handle(NOW, input);
    }
    let own = ProxySet::new(2, vec![1.0, 0.5]).unwrap();
    let own = ProxyOffer::Inline(InlineProxies::new(own.to_params().to_bytes()));
    let report = LocalReport {
        round: Round(1),
        lineage: node.lineage(),
        shared: None,
        experts: update(1).experts,
        own_experts: Vec::new(),
        proxies: Some(own),
        sketches: None,
        n_samples: 10,
        train_loss: 1.0,
        expert_share: vec![1.0],
        offer: None,
    };
    node.handle(NOW, Input::Trained(report));
    let lineage = node.lineage();
    let mut offered = |name: &str, size| {
        let blob = BlobRef { size, ..blob(name) };
        let said = Local {
            lineage,
            proxies: Some(ProxyOffer::Blob(blob)),
            ..update(LIAR)
        };
        let outputs = node.handle(NOW, advert(&spec, LIAR, 1, Body::Local(said)));
        let is_fetched = outputs.iter().any(
            |output| matches!(output, Output::Fetch(fetch) if fetch.kind == FetchKind::Proxies),
        );
        let is_struck = |output: &Output| matches!(output, Output::Strike { .. });
        (is_fetched, outputs.iter().any(is_struck))
    };
    assert_eq!(offered("a bomb", 512 << 20), (false, true));
    assert_eq!(offered("proxies", 500), (true, false));
}

/// Nobody can wait for a round in which this node does not look.
#[test]
fn which_means_a_node_recomputes_is_its_secret() {
    let mut spec = FederationSpec::clone(&spec());
    spec.round.audit = 0.5;
    let spec = Arc::new(spec);
    let looks = |secret: u64| {
        let node = Node::new(Arc::clone(&spec), id(2), Some(blob("initial")));
        let mut node = node.auditing_by(DrawSeed::of(secret));
        let aggregator = Input::PeerUp {
            node: id(7),
            role: Role::Aggregator,
        };
        for input in [Input::Start, aggregator, Input::Synced] {
            node.handle(NOW, input);
        }
        let own = update(2);
        node.handle(
            NOW,
            Input::Trained(LocalReport {
                round: Round(1),
                lineage: own.lineage,
                shared: own.shared,
                experts: own.experts.clone(),
                own_experts: Vec::new(),
                proxies: None,
                sketches: None,
                n_samples: own.n_samples,
                train_loss: 1.0,
                expert_share: vec![1.0],
                offer: None,
            }),
        );
        for n in [1, 2, 3] {
            node.handle(NOW, advert(&spec, n, 1, Body::Local(update(n))));
        }
        let said = Body::from(closing(&[1, 2, 3], "mean"));
        let outputs = node.handle(NOW, advert(&spec, 7, 1, said));
        fetched_parts(&outputs).contains(&blob("part of 1"))
    };
    let looked = (0..40).filter(|secret| looks(*secret)).count();
    assert!((10..=30).contains(&looked), "{looked} of 40 secrets");
}
