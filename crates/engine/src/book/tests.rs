//! The books of live rounds; the simulator's are held to its golden results.

use fednode_core::{Judged, PoolMember, Score, Scores};

use super::*;

const ME: NodeId = NodeId::from_bytes([1; 32]);
/// Every round is evaluated fully.
const ALWAYS: Calendar = Calendar {
    rounds: 9,
    evaluate_every: 1,
};
/// No round but the last is evaluated fully.
const SELDOM: Calendar = Calendar {
    rounds: 9,
    evaluate_every: 100,
};

fn evaluations(accuracy: f64) -> Evaluations {
    let score = Score {
        accuracy,
        loss: 1.0 - accuracy,
        n_samples: 40,
    };
    Evaluations {
        validation: Some(score),
        test: Some(score),
        judged: None,
        expert_share: vec![1.0],
        domain_information: None,
        lacks: None,
        useless: None,
        composition: None,
    }
}

fn traffic(peer_to_peer: u64) -> Traffic {
    Traffic {
        sent: Bytes {
            peer_to_peer,
            ..Bytes::default()
        },
        received: Bytes::default(),
    }
}

fn update() -> Update<()> {
    Update {
        shared: None,
        experts: Vec::new(),
        proxies: None,
        n_samples: 90,
        train_loss: 0.5,
        expert_share: Vec::new(),
        steps: 9,
        multiply_adds: 7,
    }
}

/// Returns a closure that measures at a moment.
fn at(now: u64, peer_to_peer: u64) -> impl FnMut(&RoundRecord) -> Measured {
    move |record| Measured {
        traffic: traffic(peer_to_peer),
        round_seconds: Timestamp(now).since(record.started_at).as_secs_f64(),
        ..Measured::default()
    }
}

const fn closing(by: Option<NodeId>, members: u32) -> Closing {
    Closing {
        by,
        members,
        traffic: None,
    }
}

const fn due(round: u32, point: Point) -> Due {
    Due {
        round: Round(round),
        point,
    }
}

#[test]
fn a_record_tells_where_the_round_went() {
    let mut book = RoundBook::new(ME, ALWAYS);
    let evaluating = Duration::from_millis(100);
    book.begin(Round(1), Timestamp(0), traffic(100));
    assert_eq!(book.work(), Work::Training(Round(1)));
    let took = [Duration::from_secs(4), Duration::ZERO];
    book.trained(Round(1), Timestamp(4_000), &update(), took);
    book.expert_settled(Timestamp(5_000));
    book.merge_begins(Round(1), Timestamp(7_500));
    assert_eq!(book.work(), Work::Merging(Round(1)));
    book.merged(Round(1), Duration::from_millis(250), 3, vec![]);
    assert_eq!(book.work(), Work::Idle);
    book.evaluated(due(1, Point::AfterTraining), &evaluations(0.5), evaluating);
    book.evaluated(due(1, Point::AfterExchange), &evaluations(0.75), evaluating);
    assert!(
        book.take_complete(at(9_000, 150)).is_empty(),
        "not closed yet"
    );
    book.closed(Round(1), closing(Some(ME), 5));
    let done = book.take_complete(at(9_000, 150));
    let record = &done[0];
    let waited = Waited {
        experts: 1.0,
        global: 2.5,
        merge: 0.25,
        evaluate: 0.2,
        save: 0.0,
        publish: 0.0,
    };
    assert_eq!(record.waited_seconds, waited);
    assert_eq!((record.train_seconds, record.round_seconds), (4.0, 9.0));
    assert_eq!(record.accuracy, Some(0.75));
    assert_eq!(record.accuracy_after_local_training, Some(0.5));
    assert_eq!(record.bytes_sent.peer_to_peer, 50);
    assert_eq!((record.members, record.n_sources_used), (5, 3));
    assert!(book.all_complete());
}

#[test]
fn bytes_that_move_after_the_next_round_began_count_for_that_round() {
    let mut book = RoundBook::new(ME, SELDOM);
    let spent = |book: &mut RoundBook, round: u32, now: u64| {
        book.evaluated(
            due(round, Point::AfterExchange),
            &evaluations(0.5),
            Duration::ZERO,
        );
        book.closed(Round(round), closing(Some(ME), 2));
        book.take_complete(at(20, now))[0].bytes_sent.peer_to_peer
    };
    book.begin(Round(1), Timestamp(0), traffic(100));
    book.begin(Round(2), Timestamp(10), traffic(130));
    assert_eq!(spent(&mut book, 1, 170), 30);
    assert_eq!(spent(&mut book, 2, 180), 50);
}

#[test]
fn an_exchange_that_changed_nothing_is_not_evaluated_again() {
    let mut book = RoundBook::new(ME, ALWAYS);
    book.begin(Round(1), Timestamp(0), Traffic::default());
    book.unchanged(Round(1));
    book.closed(Round(1), closing(None, 0));
    book.evaluated(
        due(1, Point::AfterTraining),
        &evaluations(0.5),
        Duration::ZERO,
    );
    let done = book.take_complete(at(1, 0));
    assert_eq!(done[0].accuracy, Some(0.5));
}

#[test]
fn a_restart_loses_no_line_and_writes_none_twice() {
    let mut before = RoundBook::new(ME, ALWAYS);
    for round in 1..=4 {
        before.begin(Round(round), Timestamp(0), traffic(100));
    }
    for round in 1..=3 {
        before.trained(Round(round), Timestamp(1), &update(), [Duration::ZERO; 2]);
    }
    before.closed(Round(1), closing(Some(ME), 2));
    before.closed(Round(2), closing(Some(ME), 2));
    let mut after = RoundBook::reopen(ME, ALWAYS, before.pages());
    let lacking = after.resume(&BTreeSet::from([Round(1)]));
    assert_eq!(
        lacking,
        [due(2, Point::AfterExchange), due(3, Point::AfterTraining)]
    );
    assert!(!after.open.contains_key(&Round(1)), "its line was written");
    assert!(!after.open.contains_key(&Round(4)), "it is trained anew");
    after.evaluated(
        due(2, Point::AfterExchange),
        &evaluations(0.5),
        Duration::ZERO,
    );
    let done = after.take_complete(at(9, 3));
    assert_eq!(done.len(), 1);
    assert_eq!(done[0].accuracy, Some(0.5));
    assert_eq!(done[0].bytes_sent.peer_to_peer, 3);
    after.give_up_unclosed();
    assert!(after.all_complete());
}

#[test]
fn a_node_that_rests_is_evaluated_after_the_last_round_only() {
    let mut book = RoundBook::new(ME, SELDOM);
    book.rest(Round(8), Timestamp(0), Traffic::default());
    assert!(!book.open.contains_key(&Round(8)));
    book.rest(Round(9), Timestamp(0), Traffic::default());
    assert_eq!(book.due(), [], "the round is not closed yet");
    book.closed(Round(9), closing(Some(ME), 2));
    assert_eq!(book.due(), [due(9, Point::AfterExchange)]);
}

#[test]
fn the_last_round_and_every_tenth_are_evaluated_fully() {
    let calendar = Calendar {
        rounds: 25,
        evaluate_every: 10,
    };
    let fully: Vec<u32> = (1..=25)
        .filter(|round| calendar.evaluates_fully(Round(*round)))
        .collect();
    assert_eq!(fully, [10, 20, 25]);
    assert_eq!(calendar.splits(Round(20)), Splits::ValidationAndTest);
    assert_eq!(calendar.splits(Round(21)), Splits::Test);
}

#[test]
fn a_pool_that_is_not_served_is_said_to_be_left_out() {
    let score = Score::default();
    let scores = Scores {
        own: score,
        mixture: Some(score),
    };
    let member = |node| PoolMember {
        node,
        score: None,
        kept: true,
        gate_mass: 0.5,
    };
    let outcome = |served| PoolOutcome {
        members: vec![member(None), member(Some(NodeId::from_bytes([2; 32])))],
        refused: Vec::new(),
        served,
        epochs: 1,
        unseen: 0,
        best_epoch: Some(1),
        learning_rate: Some(0.1),
        validation: scores,
        test: scores,
        controls: None,
    };
    let said = |served| {
        let mut book = RoundBook::new(ME, ALWAYS);
        book.pooled(outcome(served), Evaluations::default());
        book.composition().map(ToString::to_string)
    };
    let own = Served::Own {
        reason: "it is worse".into(),
    };
    let text = "100 % own model; left out: pool of private modules";
    assert_eq!(said(own).as_deref(), Some(text));
    assert_eq!(said(Served::Mixture), None, "that is what the learner says");
}

/// A measure that has no value in a round is missing there. Accuracy in its place would be another curve.
#[test]
fn a_round_is_scored_by_the_measure_that_the_spec_names() {
    let judged = |value| Judged {
        measure: "auroc".to_owned(),
        value,
    };
    let scored = |value: Option<Option<f64>>| {
        let mut book = RoundBook::new(ME, ALWAYS);
        book.begin(Round(1), Timestamp(0), Traffic::default());
        book.trained(Round(1), Timestamp(1), &update(), [Duration::ZERO; 2]);
        book.closed(Round(1), closing(None, 0));
        for (point, accuracy) in [(Point::AfterTraining, 0.5), (Point::AfterExchange, 0.75)] {
            let evaluations = Evaluations {
                judged: value.map(|value| judged(value.map(|value| value + accuracy))),
                ..evaluations(accuracy)
            };
            book.evaluated(due(1, point), &evaluations, Duration::ZERO);
        }
        let [record] = book.take_complete(at(2, 0)).try_into().unwrap();
        [record.score_after_local_training(), record.score()]
    };
    assert_eq!(scored(None), [Some(0.5), Some(0.75)], "the accuracy");
    assert_eq!(scored(Some(Some(0.125))), [Some(0.625), Some(0.875)]);
    assert_eq!(scored(Some(None)), [None, None]);
}
