//! Tests of what a machine knows of the others.

use fednode_core::{Advert, AdvertId, BlobRef, FederationId, Local, Sequence};

use super::*;

const AUTHOR: NodeId = NodeId::from_bytes([1; 32]);

/// A closing of nobody.
fn closing() -> Global {
    let nothing = BlobRef::of(b"");
    Global {
        members: Vec::new(),
        mean: nothing,
        parent: nothing.id,
        previous: None,
        unmasked: Vec::new(),
        slices: Vec::new(),
    }
}

/// An update of a round, with a number to tell two of one round apart.
fn update(round: u32, n_samples: u32) -> Arc<Accepted> {
    let none = Timestamp(0);
    let advert = Advert {
        federation: FederationId::from_bytes([0; 32]),
        author: AUTHOR,
        sequence: Sequence {
            incarnation: 1,
            counter: 0,
        },
        round: Round(round),
        issued_at: none,
        expires_at: none,
        body: Body::Local(Local::new(BlobId::of(b"initial"), n_samples)),
    };
    let id = AdvertId::of(&[round as u8, n_samples as u8]);
    Arc::new(Accepted { id, advert })
}

/// What a view that keeps three rounds knows of rounds 1 to 6 after hearing updates in an order.
fn known(heard: &[(u32, u32)]) -> Vec<(u32, u32)> {
    let mut view = View::new(3);
    for (round, n_samples) in heard {
        assert_eq!(view.record(&update(*round, *n_samples)), Recorded::News);
    }
    let newest = view.nodes().newest_local(AUTHOR).map(|(round, _)| round.0);
    assert_eq!(newest, heard.iter().map(|(round, _)| *round).max());
    (1..=6)
        .filter_map(|round| Some((round, view.nodes().local(AUTHOR, Round(round))?.n_samples)))
        .collect()
}

#[test]
fn one_update_a_round_is_kept_in_whatever_order_they_come() {
    assert_eq!(
        known(&[(1, 10), (2, 20), (3, 30)]),
        [(1, 10), (2, 20), (3, 30)]
    );
    assert_eq!(
        known(&[(3, 30), (1, 10), (2, 20)]),
        [(1, 10), (2, 20), (3, 30)]
    );
    assert_eq!(
        known(&[(2, 20), (3, 30), (1, 10), (4, 40)]),
        [(1, 10), (2, 20), (3, 30), (4, 40)]
    );
}

#[test]
fn the_later_of_two_updates_of_a_round_counts() {
    assert_eq!(known(&[(1, 10), (1, 11)]), [(1, 11)], "the newest round");
    assert_eq!(
        known(&[(1, 10), (2, 20), (3, 30), (2, 21), (1, 11)]),
        [(1, 11), (2, 21), (3, 30)],
        "earlier rounds"
    );
}

#[test]
fn what_was_asked_for_is_kept_also_when_it_is_old() {
    let mut view = View::new(3);
    view.record(&update(9, 90));
    let member = |n_samples: u32| Member {
        node: AUTHOR,
        shared: BlobRef::of(b"part"),
        weight: 1.0,
        advert: update(1, n_samples).id,
    };
    view.record(&update(1, 10));
    assert_eq!(view.signed(&member(10)), None, "nobody asked for it");
    let (advert, author, named_by) = (member(10).advert, AUTHOR, NodeId::from_bytes([2; 32]));
    let lacking = || {
        vec![Lacking {
            advert,
            author,
            named_by,
        }]
    };
    let ask =
        |view: &mut View, now, since| view.take_due(lacking(), Timestamp(now), Timestamp(since));
    assert_eq!(ask(&mut view, 100, 50), [], "gossip may bring it");
    assert_eq!(ask(&mut view, 150, 100), lacking());
    assert_eq!(ask(&mut view, 170, 120), [], "asked for a moment ago");
    assert_eq!(ask(&mut view, 200, 150), lacking(), "once more");
    assert_eq!(view.record(&update(1, 10)), Recorded::News);
    assert_eq!(
        view.signed(&member(10)).map(|advert| advert.id),
        Some(member(10).advert)
    );
    assert_eq!(view.signed(&member(11)), None);
}

#[test]
fn rounds_that_are_too_old_are_forgotten_and_not_taken_in() {
    assert_eq!(known(&[(1, 10), (2, 20), (5, 50)]), [(2, 20), (5, 50)]);
    assert_eq!(
        known(&[(6, 60), (1, 10), (2, 20), (3, 30)]),
        [(3, 30), (6, 60)]
    );
}

#[test]
fn who_leaves_is_missed_only_if_it_trains() {
    let leave = |author| {
        let mut advert = update(1, 1).advert.clone();
        (advert.author, advert.body) = (author, Body::Leave);
        let id = AdvertId::of(author.as_bytes());
        Arc::new(Accepted { id, advert })
    };
    let [node, aggregator, stranger] = [2, 3, 4].map(|byte| NodeId::from_bytes([byte; 32]));
    let mut view = View::new(3);
    view.connect(node, Role::Node);
    view.connect(aggregator, Role::Aggregator);
    for gone in [stranger, aggregator] {
        view.record(&leave(gone));
        assert_eq!(view.nodes().n_gone(), 0);
    }
    view.record(&leave(node));
    view.disconnect(node);
    assert_eq!(
        view.nodes().n_gone(),
        1,
        "it was met, although it never trained"
    );
    view.record(&update(1, 10));
    view.record(&leave(AUTHOR));
    assert_eq!(
        view.nodes().n_gone(),
        2,
        "it was heard, although it was never met"
    );
}

#[test]
fn an_aggregator_that_closes_nothing_is_not_waited_for_again() {
    let aggregator = NodeId::from_bytes([4; 32]);
    let mut view = View::new(3);
    view.connect(aggregator, Role::Aggregator);
    assert!(view.company().has_aggregator());
    view.note_idle_aggregators();
    view.disconnect(aggregator);
    view.connect(aggregator, Role::Aggregator);
    assert!(!view.company().has_aggregator(), "nor where it comes again");
    view.on_followed(aggregator, &closing());
    assert!(view.company().has_aggregator(), "it has closed a round");
}

#[test]
fn doubts_of_a_closer_end_when_a_closing_is_followed() {
    let [first, second, aggregator] = [2, 3, 4].map(|byte| NodeId::from_bytes([byte; 32]));
    let mut view = View::new(3);
    view.connect(aggregator, Role::Aggregator);
    for node in [first, second, aggregator] {
        view.doubt(node);
    }
    view.on_followed(first, &closing());
    assert!(!view.is_doubtful(first), "its own closing");
    assert!(
        !view.is_doubtful(aggregator),
        "it sends no part that could clear it"
    );
    assert!(view.is_doubtful(second), "its part did not come");
}

/// What an author says, by the number that it has given it.
fn said(author: NodeId, counter: u64, body: Body) -> Arc<Accepted> {
    let mut advert = update(1, 1).advert.clone();
    (advert.author, advert.body) = (author, body);
    advert.sequence.counter = counter;
    let name = [author.as_bytes().as_slice(), &counter.to_be_bytes()].concat();
    let id = AdvertId::of(&name);
    Arc::new(Accepted { id, advert })
}

/// A node that was away hears what others kept of somebody's words, in any order.
#[test]
fn a_farewell_counts_until_something_is_said_after_it() {
    let trained = || Body::Local(Local::new(BlobId::of(b"initial"), 10));
    let mut view = View::new(3);
    view.connect(AUTHOR, Role::Node);
    view.record(&said(AUTHOR, 5, trained()));
    let before = said(AUTHOR, 4, Body::Leave);
    assert_eq!(view.record(&before), Recorded::Nothing);
    assert!(!view.has_left(AUTHOR), "it is back since");
    view.record(&said(AUTHOR, 7, Body::Leave));
    view.record(&said(AUTHOR, 6, trained()));
    assert!(view.has_left(AUTHOR), "the update came late");
    assert!(!view.company().has_neighbour(AUTHOR));
    view.record(&said(AUTHOR, 8, trained()));
    assert!(!view.has_left(AUTHOR) && view.company().has_neighbour(AUTHOR));
}

#[test]
fn the_newest_offer_of_a_module_counts() {
    let blob = |name: &str| BlobRef::of(name.as_bytes());
    let offer = |name: &str| {
        Body::Pool(fednode_core::PoolOffer {
            kind: "head".to_owned(),
            lineage: BlobId::of(b"mean"),
            blob: Some(blob(name)),
            score: 0.5,
        })
    };
    let withdrawal = |name: &str| {
        Body::Withdraw(fednode_core::Withdraw {
            blobs: vec![blob(name).id],
        })
    };
    let mut view = View::new(3);
    let offered = |view: &View| view.nodes().offer(AUTHOR).and_then(|offer| offer.blob);
    view.record(&said(AUTHOR, 5, offer("new")));
    assert_eq!(
        view.record(&said(AUTHOR, 3, offer("old"))),
        Recorded::Nothing
    );
    assert_eq!(offered(&view), Some(blob("new")));
    view.record(&said(AUTHOR, 4, withdrawal("new")));
    assert_eq!(offered(&view), Some(blob("new")), "it was offered again");
    view.record(&said(AUTHOR, 6, withdrawal("new")));
    assert_eq!(offered(&view), None);
}

/// In an open federation names cost nothing.
#[test]
fn a_crowd_of_strangers_lifts_no_ban() {
    let trained = || Body::Local(Local::new(BlobId::of(b"initial"), 10));
    let mut view = View::new(3);
    view.record(&said(AUTHOR, 1, trained()));
    view.ban(AUTHOR);
    for n in 0..nodes::MAX_NODES as u32 + 10 {
        let mut name = [9; 32];
        name[..4].copy_from_slice(&n.to_be_bytes());
        view.record(&said(NodeId::from_bytes(name), 1, trained()));
    }
    assert!(view.is_banned(AUTHOR));
}

#[test]
fn aggregators_that_do_nothing_are_not_waited_for_however_many_there_were() {
    let mut view = View::new(3);
    for byte in 1..=80 {
        let aggregator = NodeId::from_bytes([byte; 32]);
        view.connect(aggregator, Role::Aggregator);
        view.note_idle_aggregators();
        assert!(!view.company().has_aggregator(), "{byte}");
        view.disconnect(aggregator);
    }
}
