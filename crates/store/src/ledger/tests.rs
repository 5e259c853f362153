//! The ledger: what goes in comes out, bounded, and damage costs history only.

use std::time::Duration;

use fednode_core::{
    Advert, BlobId, BlobRef, Body, FederationId, Local, Removed, Role, Sequence, SignedAdvert,
    Withdraw,
};

use super::*;

fn open(folder: &Path) -> Ledger {
    let (ledger, warning) = Ledger::open(folder, None).unwrap();
    assert_eq!(warning, None);
    ledger
}

fn node_id(byte: u8) -> NodeId {
    NodeId::from_bytes([byte; 32])
}

fn advert(author: NodeId, incarnation: u64, counter: u64) -> (Advert, SignedAdvert) {
    let advert = Advert {
        federation: FederationId::from_bytes([1; 32]),
        author,
        sequence: Sequence {
            incarnation,
            counter,
        },
        round: Round(3),
        issued_at: Timestamp(1000),
        expires_at: Timestamp(2000 + counter % 1000),
        body: Body::Leave,
    };
    (
        advert,
        SignedAdvert {
            payload: format!("{incarnation}/{counter}").into_bytes(),
            signature: vec![7; 64],
        },
    )
}

#[test]
fn rounds_and_metrics_survive_a_restart() {
    let home = tempfile::tempdir().unwrap();
    let ledger = open(home.path());
    ledger.start_round(Round(1), Timestamp(10)).unwrap();
    ledger.start_round(Round(1), Timestamp(99)).unwrap();
    let mut closed = ClosedRound {
        closed_at: Timestamp(20),
        closed_by: node_id(1),
        members: 4,
        mean: BlobRef::of(b"mean"),
    };
    ledger.close_round(Round(1), &closed).unwrap();
    closed.closed_by = node_id(2);
    ledger.close_round(Round(1), &closed).unwrap();
    ledger
        .record_metrics(Round(2), &[("loss", f64::NAN), ("accuracy", 0.5)])
        .unwrap();
    ledger
        .record_metrics(Round(2), &[("accuracy", 0.75)])
        .unwrap();
    ledger
        .record_metrics(Round(1), &[("loss", f64::INFINITY)])
        .unwrap();
    drop(ledger);
    let ledger = open(home.path());
    let first = RoundRecord {
        round: Round(1),
        started: Some(Timestamp(10)),
        closed: Some(closed),
    };
    let second = RoundRecord {
        round: Round(2),
        started: None,
        closed: None,
    };
    assert_eq!(ledger.rounds().unwrap(), [first, second]);
    assert_eq!(ledger.last_round().unwrap(), Some(second));
    let metrics = ledger.metrics(Round(2)).unwrap();
    assert_eq!(
        (metrics[0].name.as_str(), metrics[0].value),
        ("accuracy", 0.75)
    );
    assert!(metrics[1].name == "loss" && metrics[1].value.is_nan());
    assert_eq!(ledger.metrics(Round::ZERO).unwrap()[0].value, f64::INFINITY);
}

#[test]
fn only_the_newest_rounds_stay() {
    let home = tempfile::tempdir().unwrap();
    let ledger = open(home.path());
    for round in [1, 2, 3] {
        ledger.start_round(Round(round), Timestamp(10)).unwrap();
        let numbers = [("loss", 1.0)];
        ledger.record_metrics(Round(round), &numbers).unwrap();
    }
    let newest = Round(MAX_ROUNDS + 2);
    ledger.start_round(newest, Timestamp(20)).unwrap();
    let rounds = ledger.rounds().unwrap().into_iter();
    let left: Vec<Round> = rounds.map(|record| record.round).collect();
    assert_eq!(left, [Round(3), newest]);
    let numbers = ledger.metrics(Round::ZERO).unwrap();
    assert_eq!(numbers.len(), 1, "numbers go with their round");
}

#[test]
fn strikes_add_up_and_new_names_do_not_wash_them_off() {
    let home = tempfile::tempdir().unwrap();
    let ledger = open(home.path());
    ledger
        .saw_peer(node_id(1), Role::Aggregator, Timestamp(50))
        .unwrap();
    ledger
        .saw_peer(node_id(1), Role::Aggregator, Timestamp(40))
        .unwrap();
    assert_eq!(ledger.strike_peer(node_id(2), 2, Timestamp(1)).unwrap(), 2);
    assert_eq!(
        ledger
            .strike_peer(node_id(2), u32::MAX, Timestamp(1))
            .unwrap(),
        u32::MAX
    );
    let liar = PeerRecord {
        node: node_id(2),
        first_seen: Timestamp(1),
        last_seen: Timestamp(1),
        role: None,
        strikes: u32::MAX,
    };
    let known = PeerRecord {
        node: node_id(1),
        first_seen: Timestamp(50),
        last_seen: Timestamp(50),
        role: Some(Role::Aggregator),
        strikes: 0,
    };
    assert_eq!(ledger.peers().unwrap(), [known, liar]);
    ledger
        .connection()
        .execute_batch(&format!(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {MAX_PEERS} - 2)
             INSERT INTO peers (node, first_seen, last_seen) SELECT cast(printf('%032d', i) AS BLOB), 60, 60 FROM n"
        ))
        .unwrap();
    assert_eq!(ledger.peers().unwrap().len(), MAX_PEERS as usize);
    ledger
        .saw_peer(node_id(9), Role::Node, Timestamp(0))
        .unwrap();
    let peers = ledger.peers().unwrap();
    assert_eq!(peers.len(), MAX_PEERS as usize);
    assert!(
        peers.contains(&liar)
            && !peers.contains(&known)
            && peers.iter().any(|peer| peer.node == node_id(9))
    );
}

#[test]
fn transfers_are_kept_and_bounded() {
    let home = tempfile::tempdir().unwrap();
    let ledger = open(home.path());
    let mut transfer = Transfer {
        round: Round(2),
        blob: BlobRef {
            id: BlobId::of(b"x"),
            size: 100,
        },
        source: node_id(3),
        duration: Duration::from_millis(1500),
        kind: TransferKind::Expert,
    };
    ledger.record_transfer(&transfer).unwrap();
    ledger.record_transfer(&transfer).unwrap();
    assert_eq!(ledger.transfers(Round(2)).unwrap(), [transfer, transfer]);
    let last = i64::from(MAX_TRANSFERS) + 1;
    ledger
        .connection()
        .execute(
            "UPDATE sqlite_sequence SET seq = ?1 WHERE name = 'transfers'",
            [last],
        )
        .unwrap();
    transfer.kind = TransferKind::Pool;
    ledger.record_transfer(&transfer).unwrap();
    assert_eq!(
        ledger.transfers(Round(2)).unwrap(),
        [transfer],
        "the oldest are gone"
    );
}

/// Returns the newest events, at most `n`, in the order they happened.
fn last_events(ledger: &Ledger, n: u32) -> Vec<Event> {
    let connection = ledger.connection();
    let mut statement = connection
        .prepare("SELECT * FROM events ORDER BY id DESC LIMIT ?1")
        .unwrap();
    let read = |row: &rusqlite::Row<'_>| {
        let word: String = row.get("level")?;
        let level = [EventLevel::Info, EventLevel::Warning, EventLevel::Error]
            .into_iter()
            .find(|level| level.word() == word);
        Ok(Event {
            time: time(row, "time")?,
            level: level.unwrap(),
            text: row.get("text")?,
        })
    };
    let events = statement.query_map([n], read).unwrap();
    let mut events: Vec<Event> = events.map(Result::unwrap).collect();
    events.reverse();
    events
}

#[test]
fn the_last_events_stay() {
    let home = tempfile::tempdir().unwrap();
    let ledger = open(home.path());
    let event = |n: u64| Event {
        time: Timestamp(n),
        level: EventLevel::Warning,
        text: format!("event {n}"),
    };
    for n in 0..5 {
        ledger.record_event(&event(n)).unwrap();
    }
    assert_eq!(last_events(&ledger, 2), [event(3), event(4)]);
    let last = i64::from(MAX_EVENTS) + 3;
    ledger
        .connection()
        .execute(
            "UPDATE sqlite_sequence SET seq = ?1 WHERE name = 'events'",
            [last],
        )
        .unwrap();
    ledger
        .record_event(&Event {
            text: "ü".repeat(2000),
            ..event(9)
        })
        .unwrap();
    let events = last_events(&ledger, 100);
    assert_eq!(events[0], event(4), "as many as the bound, the oldest gone");
    assert_eq!((events.len(), events[1].text.len()), (2, 1024));
}

#[test]
fn newest_adverts_of_every_author_stay_in_order() {
    let home = tempfile::tempdir().unwrap();
    let ledger = open(home.path());
    // Numbers a liar may choose, and an order in which gossip may bring them.
    let mut sequences: Vec<_> = (0..30).map(|n| (1, n)).collect();
    sequences.extend([(u64::MAX, u64::MAX), (1 << 63, 5), ((1 << 63) - 1, 300)]);
    sequences.reverse();
    for (incarnation, counter) in sequences {
        let (advert, signed) = advert(node_id(5), incarnation, counter);
        ledger.remember_advert(&advert, &signed).unwrap();
    }
    let (other, signed) = advert(node_id(4), 2, 1);
    assert!(ledger.remember_advert(&other, &signed).unwrap());
    let forged = SignedAdvert {
        payload: b"another".to_vec(),
        ..signed
    };
    assert!(
        !ledger.remember_advert(&other, &forged).unwrap(),
        "the first of one number stays"
    );
    drop(ledger);
    let ledger = open(home.path());
    let payloads: Vec<_> = ledger
        .known_adverts()
        .unwrap()
        .into_iter()
        .map(|a| String::from_utf8(a.payload).unwrap())
        .collect();
    let mut expected = vec!["2/1".to_owned()];
    expected.extend((17..30).map(|n| format!("1/{n}")));
    expected.extend([
        format!("{}/300", (1u64 << 63) - 1),
        format!("{}/5", 1u64 << 63),
        format!("{}/{}", u64::MAX, u64::MAX),
    ]);
    assert_eq!(payloads, expected);
    let highest = ledger.highest().unwrap();
    assert_eq!(
        highest[&node_id(5)],
        Sequence {
            incarnation: u64::MAX,
            counter: u64::MAX
        }
    );
    assert_eq!(
        highest[&node_id(4)],
        Sequence {
            incarnation: 2,
            counter: 1
        }
    );
}

#[test]
fn withdrawals_and_their_answers_outlive_newer_adverts() {
    let home = tempfile::tempdir().unwrap();
    let ledger = open(home.path());
    let author = node_id(5);
    let withdraw = || Body::Withdraw(Withdraw { blobs: vec![] });
    let removed = || Body::Removed(Removed { removals: vec![] });
    for counter in 0..200 {
        let (mut advert, signed) = advert(author, 1, counter);
        match counter {
            0..20 => advert.body = withdraw(),
            20..100 => advert.body = removed(),
            _ => {}
        }
        ledger.remember_advert(&advert, &signed).unwrap();
    }
    let counters = |kind: &str| -> Vec<String> {
        let adverts = ledger.adverts_of(kind, None).unwrap().into_iter();
        adverts
            .map(|(_, said)| String::from_utf8(said.payload).unwrap())
            .collect()
    };
    let numbered = |range: std::ops::Range<u32>| -> Vec<String> {
        range.map(|counter| format!("1/{counter}")).collect()
    };
    assert_eq!(counters("leave"), numbered(184..200));
    assert_eq!(counters("removed"), numbered(36..100), "the newest of them");
    assert_eq!(counters("withdraw"), numbered(4..20));
}

#[test]
fn updates_of_an_author_are_found_in_the_history_and_among_the_newest() {
    let home = tempfile::tempdir().unwrap();
    let ledger = open(home.path());
    let [author, other] = [5, 6].map(node_id);
    let said = |author, counter| advert(author, 1, counter).1;
    let kept = KeptRound {
        round: Round(1),
        closing: Some(said(author, 1)),
        updates: vec![(author, said(author, 2)), (other, said(other, 3))],
        words: vec![(author, said(author, 4))],
    };
    ledger.keep_round(&kept).unwrap();
    for (author, counter) in [(author, 2), (author, 5), (author, 6), (other, 7)] {
        let (mut advert, signed) = advert(author, 1, counter);
        if counter != 6 {
            advert.body = Body::Local(Local::new(BlobId::of(b"initial"), 1));
        }
        ledger.remember_advert(&advert, &signed).unwrap();
    }
    let found = ledger.updates_of(author).unwrap();
    assert_eq!(found, [said(author, 2), said(author, 5)]);
}

#[test]
fn authors_are_bounded_and_those_that_expire_first_go() {
    let home = tempfile::tempdir().unwrap();
    let ledger = open(home.path());
    let author = |n: u32| {
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&n.to_be_bytes());
        NodeId::from_bytes(bytes)
    };
    for n in 0..=MAX_AUTHORS {
        // Expiry falls with n, up to the newcomer, who is spared though it expires first of all.
        let (advert, signed) = advert(author(n), 1, u64::from(MAX_AUTHORS - n).min(999));
        ledger.remember_advert(&advert, &signed).unwrap();
    }
    let highest = ledger.highest().unwrap();
    assert_eq!(highest.len(), MAX_AUTHORS as usize);
    assert!(
        highest.contains_key(&author(MAX_AUTHORS))
            && !highest.contains_key(&author(MAX_AUTHORS - 1))
    );
}

#[test]
fn a_damaged_ledger_is_moved_aside_and_said_so() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("ledger.sqlite");
    let ledger = open(home.path());
    for n in 0..200 {
        let event = Event {
            time: Timestamp(n),
            level: EventLevel::Info,
            text: "x".repeat(500),
        };
        ledger.record_event(&event).unwrap();
    }
    drop(ledger);
    let intact = std::fs::read(&path).unwrap();
    let garbage = b"this is no database, but long enough to look like one".repeat(100);
    let mut spoilt = intact.clone();
    spoilt[4096..8192].fill(0xa5);
    for damaged in [garbage, spoilt, intact[..intact.len() / 2].to_vec()] {
        std::fs::write(&path, &damaged).unwrap();
        let (ledger, warning) = Ledger::open(home.path(), None).unwrap();
        let warning = warning.expect("it says what was lost");
        assert!(
            warning.contains("ledger.sqlite.corrupt")
                && warning.contains("old ones may be accepted"),
            "{warning}"
        );
        assert_eq!(last_events(&ledger, 10), []);
        ledger.start_round(Round(1), Timestamp(1)).unwrap();
        drop(ledger);
        assert_eq!(
            open(home.path()).rounds().unwrap().len(),
            1,
            "the new one is sound"
        );
    }
}

#[test]
fn a_newer_schema_is_refused_not_destroyed() {
    let home = tempfile::tempdir().unwrap();
    let ledger = open(home.path());
    ledger
        .connection()
        .pragma_update(None, "user_version", 99)
        .unwrap();
    drop(ledger);
    assert!(matches!(
        Ledger::open(home.path(), None),
        Err(LedgerError::Newer { found: 99, .. })
    ));
    assert!(matches!(
        Ledger::open_read_only(home.path()),
        Err(LedgerError::Newer { found: 99, .. })
    ));
}

#[test]
fn somebody_may_look_while_it_is_written() {
    let home = tempfile::tempdir().unwrap();
    let ledger = open(home.path());
    ledger.start_round(Round(1), Timestamp(1)).unwrap();
    let looking = Ledger::open_read_only(home.path()).unwrap();
    ledger.start_round(Round(2), Timestamp(2)).unwrap();
    assert_eq!(looking.rounds().unwrap().len(), 2);
    assert!(looking.start_round(Round(3), Timestamp(3)).is_err());
    drop(ledger);
    assert_eq!(
        looking.rounds().unwrap().len(),
        2,
        "and after the writer is gone"
    );
    assert_eq!(
        Ledger::open_read_only(home.path())
            .unwrap()
            .rounds()
            .unwrap()
            .len(),
        2
    );
}

#[test]
fn the_ledger_of_an_earlier_release_is_looked_at_as_it_is_and_opened_with_all_that_it_has() {
    let home = tempfile::tempdir().unwrap();
    let ledger = open(home.path());
    ledger.start_round(Round(1), Timestamp(1)).unwrap();
    ledger
        .connection()
        .execute_batch("DROP TABLE unmasked; DROP TABLE counted; DROP TABLE closings; DROP INDEX adverts_by_kind; PRAGMA user_version = 2;")
        .unwrap();
    drop(ledger);
    let looking = Ledger::open_read_only(home.path()).unwrap();
    assert_eq!(looking.rounds().unwrap().len(), 1);
    assert!(looking.kept_rounds().unwrap().is_empty());
    drop(looking);
    let ledger = open(home.path());
    ledger.keep_round(&kept(2, 20)).unwrap();
    assert_eq!(ledger.rounds().unwrap().len(), 1);
    assert_eq!(ledger.kept_rounds().unwrap(), [Round(2)]);
}

fn kept(round: u32, bytes: usize) -> KeptRound {
    let signed = |content: u8, size: usize| SignedAdvert {
        payload: vec![content; size],
        signature: vec![7; 64],
    };
    KeptRound {
        round: Round(round),
        closing: Some(signed(0, 10)),
        updates: vec![
            (node_id(1), signed(1, bytes)),
            (node_id(2), signed(2, bytes)),
        ],
        words: Vec::new(),
    }
}

#[test]
fn closed_rounds_are_kept_with_what_they_count_and_replaced_by_later_ones() {
    let home = tempfile::tempdir().unwrap();
    let ledger = open(home.path());
    ledger.keep_round(&kept(2, 20)).unwrap();
    ledger.keep_round(&kept(1, 30)).unwrap();
    let mut other = kept(2, 5);
    other.updates.pop();
    ledger.keep_round(&other).unwrap();
    drop(ledger);
    let ledger = open(home.path());
    assert_eq!(ledger.kept_rounds().unwrap(), [Round(1), Round(2)]);
    assert_eq!(ledger.kept_round(Round(1)).unwrap(), Some(kept(1, 30)));
    assert_eq!(ledger.kept_round(Round(2)).unwrap(), Some(other));
    assert_eq!(ledger.kept_round(Round(3)).unwrap(), None);
}

#[test]
fn a_round_without_a_closing_takes_in_updates_that_come_late() {
    let home = tempfile::tempdir().unwrap();
    let ledger = open(home.path());
    let (_, late) = advert(node_id(1), 1, 1);
    let mut apart = KeptRound {
        closing: None,
        ..kept(1, 20)
    };
    ledger.keep_round(&apart).unwrap();
    for (round, author) in [
        (Round(1), node_id(3)),
        (Round(1), node_id(1)),
        (Round(2), node_id(1)),
    ] {
        ledger.keep_update(round, author, &late).unwrap();
    }
    apart.updates[0].1 = late.clone();
    apart.updates.push((node_id(3), late));
    assert_eq!(ledger.kept_round(Round(1)).unwrap(), Some(apart));
    assert_eq!(ledger.kept_rounds().unwrap(), [Round(1)]);
}

#[test]
fn the_oldest_closed_rounds_give_way_and_the_newest_stays() {
    let home = tempfile::tempdir().unwrap();
    let ledger = open(home.path());
    // Two updates of a quarter each: a closing takes a little more than half, and two take more than all.
    let quarter = (MAX_HISTORY_BYTES / 4) as usize;
    for round in 1..=3 {
        ledger.keep_round(&kept(round, quarter)).unwrap();
    }
    assert_eq!(ledger.kept_rounds().unwrap(), [Round(3)]);
    ledger.keep_round(&kept(4, 10)).unwrap();
    assert_eq!(ledger.kept_rounds().unwrap(), [Round(3), Round(4)]);
}

#[test]
fn an_advert_is_found_by_its_author_and_name() {
    let home = tempfile::tempdir().unwrap();
    let ledger = open(home.path());
    let said: Vec<(Advert, SignedAdvert)> = (0..3).map(|n| advert(node_id(1), 1, n)).collect();
    for (advert, signed) in &said {
        ledger.remember_advert(advert, signed).unwrap();
    }
    let (_, wanted) = &said[1];
    assert_eq!(
        ledger.advert(node_id(1), wanted.id()).unwrap().as_ref(),
        Some(wanted)
    );
    assert_eq!(ledger.advert(node_id(2), wanted.id()).unwrap(), None);
    let of = |kind, round| ledger.adverts_of(kind, round).unwrap().len();
    assert_eq!(of("leave", None), 3);
    assert_eq!(of("leave", Some(Round(3))), 3);
    assert_eq!(of("leave", Some(Round(4))), 0);
    assert_eq!(of("global", Some(Round(3))), 0);
}
