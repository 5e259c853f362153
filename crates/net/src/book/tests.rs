//! Tests of the advert book; in a file of their own because they are longer than it.

use fednode_core::{BlobId, BlobRef, FederationId, Global, Local, Withdraw};
use proptest::prelude::*;

use super::*;

const NOW: Timestamp = Timestamp(1_000_000);
const START: NodeId = NodeId::from_bytes([0; 32]);

fn node(n: u16) -> NodeId {
    let mut bytes = [0; 32];
    bytes[..2].copy_from_slice(&n.to_be_bytes());
    NodeId::from_bytes(bytes)
}

fn at(incarnation: u64, counter: u64) -> Sequence {
    Sequence {
        incarnation,
        counter,
    }
}

fn advert(
    author: NodeId,
    sequence: Sequence,
    round: u32,
    body: Body,
) -> (Arc<SignedAdvert>, Advert) {
    let expires_at = Timestamp(NOW.0 + 1000);
    let federation = FederationId::from_bytes([0; 32]);
    let advert = Advert {
        federation,
        author,
        sequence,
        round: Round(round),
        issued_at: NOW,
        expires_at,
        body,
    };
    let payload = [
        author.as_bytes().as_slice(),
        &sequence.incarnation.to_le_bytes(),
        &sequence.counter.to_le_bytes(),
    ];
    (
        Arc::new(SignedAdvert {
            payload: payload.concat(),
            signature: vec![0; 64],
        }),
        advert,
    )
}

fn local() -> Body {
    Body::Local(Local::new(BlobId::of(b""), 1))
}

/// Judges and, if fresh, enters.
fn hear(book: &mut Book, author: NodeId, sequence: Sequence, round: u32) -> Verdict {
    let verdict = book.judge(&author, sequence, Round(round));
    if verdict == Verdict::Fresh {
        let (signed, advert) = advert(author, sequence, round, local());
        book.insert(signed, &advert, NOW);
    }
    verdict
}

#[test]
fn late_adverts_are_accepted_once_within_the_window() {
    let mut book = Book::default();
    let heard: Vec<Verdict> = [
        (6, 1),
        (5, 1),
        (5, 1),
        (6, 1),
        (70, 2),
        (6, 1),
        (7, 3),
        (7, 3),
        (69, 4),
    ]
    .map(|(counter, round)| hear(&mut book, node(1), at(1, counter), round))
    .to_vec();
    use Verdict::{Duplicate, Fresh, Stale};
    assert_eq!(
        heard,
        [
            Fresh, Fresh, Duplicate, Duplicate, Fresh, Stale, Fresh, Duplicate, Fresh
        ]
    );
    assert_eq!(
        hear(&mut book, node(2), at(1, 6), 1),
        Fresh,
        "authors do not share a window"
    );
}

#[test]
fn a_new_incarnation_makes_the_old_one_stale() {
    let mut book = Book::default();
    assert_eq!(hear(&mut book, node(1), at(1, 900), 1), Verdict::Fresh);
    assert_eq!(hear(&mut book, node(1), at(2, 1), 1), Verdict::Fresh);
    assert_eq!(hear(&mut book, node(1), at(1, 901), 1), Verdict::Stale);
    assert_eq!(hear(&mut book, node(1), at(2, 0), 1), Verdict::Fresh);
    assert_eq!(hear(&mut book, node(1), at(2, 1), 1), Verdict::Duplicate);
}

#[test]
fn a_jump_to_the_last_counter_breaks_nothing() {
    let mut book = Book::default();
    hear(&mut book, node(1), at(0, 0), 1);
    assert_eq!(
        hear(&mut book, node(1), at(u64::MAX, u64::MAX), 1),
        Verdict::Fresh
    );
    assert_eq!(hear(&mut book, node(1), at(u64::MAX, 0), 1), Verdict::Stale);
    assert_eq!(
        hear(&mut book, node(1), at(u64::MAX, u64::MAX - 63), 1),
        Verdict::Fresh
    );
    assert_eq!(
        hear(&mut book, node(1), at(u64::MAX, u64::MAX - 64), 1),
        Verdict::Stale
    );
}

#[test]
fn the_ninth_advert_of_a_round_is_too_much() {
    let mut book = Book::default();
    for counter in 0..8 {
        assert_eq!(hear(&mut book, node(1), at(1, counter), 5), Verdict::Fresh);
    }
    assert_eq!(hear(&mut book, node(1), at(1, 8), 5), Verdict::TooFast);
    assert_eq!(
        hear(&mut book, node(1), at(2, 0), 5),
        Verdict::TooFast,
        "restarting does not help"
    );
    assert_eq!(
        hear(&mut book, node(1), at(1, 8), 6),
        Verdict::Fresh,
        "another round does"
    );
    assert_eq!(hear(&mut book, node(2), at(1, 8), 5), Verdict::Fresh);
}

#[test]
fn remembered_advert_is_not_delivered_again() {
    let mut book = Book::default();
    book.remember(node(1), at(3, 10));
    for counter in 0..=10 {
        assert_ne!(
            book.judge(&node(1), at(3, counter), Round(1)),
            Verdict::Fresh
        );
    }
    assert_eq!(book.judge(&node(1), at(3, 11), Round(1)), Verdict::Fresh);
    book.remember(node(1), at(2, 99));
    assert_eq!(
        book.judge(&node(1), at(3, 11), Round(1)),
        Verdict::Fresh,
        "an older memory changes nothing"
    );
    book.remember(node(2), at(0, 0));
    assert_eq!(
        book.judge(&node(2), at(0, 0), Round(1)),
        Verdict::Duplicate,
        "the first of all numbers is one too"
    );
}

#[test]
fn a_gap_before_the_newest_outlives_a_restart() {
    let (mut restarted, mut peer) = (Book::default(), Book::default());
    for counter in 7..=10 {
        hear(&mut peer, node(1), at(3, counter), 1);
        if counter != 9 {
            hear(&mut restarted, node(1), at(3, counter), 1);
        }
    }
    restarted.remember(node(1), at(3, 10));
    let verdicts = [7, 8, 9, 10].map(|counter| restarted.judge(&node(1), at(3, counter), Round(1)));
    use Verdict::{Duplicate, Fresh};
    assert_eq!(verdicts, [Duplicate, Duplicate, Fresh, Duplicate]);
    let (missing, more) = peer.lacking(
        &restarted.digest(START),
        &BTreeSet::new(),
        1 << 20,
        NOW,
        NOW,
    );
    assert_eq!(
        (missing, more),
        (vec![advert(node(1), at(3, 9), 1, local()).0], false)
    );
    restarted.remember(node(1), at(3, 12));
    assert_eq!(
        restarted.judge(&node(1), at(3, 9), Round(1)),
        Duplicate,
        "the newest is damaged: nothing is known"
    );
}

#[test]
fn old_local_updates_give_way_before_what_stays_true() {
    let mut book = Book::default();
    let (withdraw, said) = advert(
        node(1),
        at(1, 0),
        0,
        Body::Withdraw(Withdraw { blobs: vec![] }),
    );
    book.insert(withdraw.clone(), &said, NOW);
    for counter in 1..100 {
        assert_eq!(
            hear(
                &mut book,
                node(1),
                at(1, counter),
                u32::try_from(counter).unwrap()
            ),
            Verdict::Fresh
        );
    }
    let (kept, more) = book.lacking(
        &Book::default().digest(START),
        &BTreeSet::new(),
        1 << 20,
        NOW,
        NOW,
    );
    assert_eq!((kept.len(), more), (16, false));
    assert_eq!(kept[0], withdraw);
    assert_eq!(
        book.kept_bytes,
        kept.iter()
            .map(|signed| advert_bytes(signed))
            .sum::<usize>()
    );
}

/// Who closes many rounds must leave others the updates that the last ones are held against.
#[test]
fn old_closings_give_way_before_the_newest_updates() {
    let mut book = Book::default();
    for round in 1..100 {
        let first = 2 * u64::from(round);
        hear(&mut book, node(1), at(1, first), round);
        let closing = Body::from(Global {
            members: Vec::new(),
            mean: BlobRef::of(b"mean"),
            parent: BlobRef::of(b"parent").id,
            previous: None,
            unmasked: Vec::new(),
            slices: Vec::new(),
        });
        let (closing, said) = advert(node(1), at(1, first + 1), round, closing);
        book.insert(closing, &said, NOW);
    }
    let kept = book.authors[&node(1)].kept.values();
    let (updates, closings): (Vec<&Kept>, Vec<&Kept>) = kept.partition(|kept| kept.fleeting);
    assert_eq!((updates.len(), closings.len()), (4, 12));
    let first = book.authors[&node(1)].kept.keys().next();
    assert_eq!(
        first,
        Some(&at(1, 2 * 88 + 1)),
        "the newest twelve closings"
    );
}

#[test]
fn sync_leaves_out_adverts_still_in_gossip() {
    let mut book = Book::default();
    hear(&mut book, node(1), at(1, 1), 1);
    let nothing = Book::default().digest(START);
    assert!(
        book.lacking(
            &nothing,
            &BTreeSet::new(),
            1 << 20,
            NOW,
            Timestamp(NOW.0 - 1)
        )
        .0
        .is_empty()
    );
    assert_eq!(
        book.lacking(&nothing, &BTreeSet::new(), 1 << 20, NOW, NOW)
            .0
            .len(),
        1
    );
}

#[test]
fn expired_adverts_are_neither_told_nor_kept_nor_heard_again() {
    let mut book = Book::default();
    hear(&mut book, node(1), at(1, 1), 1);
    let later = Timestamp(NOW.0 + 1001);
    assert!(
        book.lacking(
            &Book::default().digest(START),
            &BTreeSet::new(),
            1 << 20,
            later,
            later
        )
        .0
        .is_empty()
    );
    book.prune(later);
    assert!(book.kept_bytes > 0, "a closed round may name it");
    book.prune(NOW + KEPT_LATE + Duration::from_millis(1));
    assert_eq!(book.kept_bytes, 0);
    assert_eq!(hear(&mut book, node(1), at(1, 1), 1), Verdict::Duplicate);
}

#[test]
fn a_crowd_of_authors_and_bytes_stays_within_bounds() {
    let mut book = Book::default();
    for n in 0..u16::try_from(MAX_AUTHORS + 100).unwrap() {
        let (mut signed, said) = advert(node(n), at(1, 1), 1, local());
        Arc::get_mut(&mut signed).unwrap().payload.resize(4000, 0);
        book.insert(signed, &said, NOW);
    }
    assert_eq!(book.authors.len(), MAX_AUTHORS);
    assert!(
        !book.authors.contains_key(&node(0)),
        "the quietest was forgotten"
    );
    assert!(book.kept_bytes <= MAX_KEPT_BYTES);
    assert_eq!(
        book.kept_bytes,
        book.authors.values().map(Author::kept_bytes).sum::<usize>()
    );
}

#[test]
fn a_hog_loses_its_own_adverts_and_not_those_of_others() {
    let mut book = Book::default();
    hear(&mut book, node(1), at(1, 1), 1);
    for n in 2..20 {
        for counter in 0..16 {
            let (mut signed, said) = advert(
                node(n),
                at(1, counter),
                u32::try_from(counter).unwrap(),
                local(),
            );
            Arc::get_mut(&mut signed)
                .unwrap()
                .payload
                .resize(64 << 10, 0);
            book.insert(signed, &said, NOW);
        }
    }
    assert!(book.kept_bytes <= MAX_KEPT_BYTES);
    assert_eq!(book.authors[&node(1)].kept.len(), 1);
}

#[test]
fn sync_goes_round_in_ranges_and_repairs_gaps() {
    let (mut rich, mut poor) = (Book::default(), Book::default());
    for n in 0..3000 {
        hear(&mut rich, node(n), at(1, 1), 1);
        hear(&mut rich, node(n), at(1, 2), 1);
        // The later one of every other author arrived, the earlier did not.
        if n % 2 == 0 {
            hear(&mut poor, node(n), at(1, 2), 1);
        }
    }
    let (mut first, mut replies) = (START, 0);
    loop {
        let digest = poor.digest(first);
        let (adverts, more) = rich.lacking(&digest, &BTreeSet::new(), 50_000, NOW, NOW);
        assert!(
            adverts
                .iter()
                .map(|signed| advert_bytes(signed))
                .sum::<usize>()
                <= 50_000
        );
        for signed in adverts {
            let author = NodeId::from_bytes(signed.payload[..32].try_into().unwrap());
            let counter = u64::from_le_bytes(signed.payload[40..48].try_into().unwrap());
            assert_eq!(
                hear(&mut poor, author, at(1, counter), 1),
                Verdict::Fresh,
                "nothing comes twice"
            );
        }
        replies += 1;
        if !more && digest.last == node(u16::MAX).max(NodeId::from_bytes([255; 32])) {
            break;
        }
        if !more {
            first = digest.last;
        }
    }
    assert!(replies < 40, "{replies}");
    for n in 0..3000 {
        assert_eq!(poor.judge(&node(n), at(1, 1), Round(1)), Verdict::Duplicate);
        assert_eq!(poor.judge(&node(n), at(1, 2), Round(1)), Verdict::Duplicate);
    }
}

#[test]
fn whispers_are_told_to_those_who_follow_their_author() {
    let spec = fednode_core::FederationSpec {
        nodes: 10_000,
        ..Default::default()
    };
    let broadcast_set = fednode_core::BroadcastSet::of(&spec);
    let (mut book, quiet) = (Book::of(broadcast_set), node(1));
    let (whispered, spoken) = (1..10_000)
        .map(Round)
        .partition::<Vec<_>, _>(|round| !broadcast_set.contains(quiet, *round));
    for (counter, round) in [(1, whispered[0]), (2, spoken[0])] {
        let (signed, said) = advert(quiet, at(1, counter), round.0, local());
        book.insert(signed, &said, NOW);
    }
    let nothing = Book::default().digest(START);
    let told = |follows: &[NodeId]| {
        book.lacking(
            &nothing,
            &follows.iter().copied().collect(),
            1 << 20,
            NOW,
            NOW,
        )
        .0
        .len()
    };
    assert_eq!((told(&[]), told(&[node(2)]), told(&[quiet])), (1, 1, 2));
}

proptest! {
    /// Against the plain statement of the rule: accepted once, in the newest incarnation, within 64 of the newest.
    #[test]
    fn window_agrees_with_a_set(said in prop::collection::vec((0..3_u64, 0..200_u64), 1..200)) {
        let mut book = Book::default();
        let mut heard = BTreeSet::new();
        for (round, (incarnation, counter)) in said.into_iter().enumerate() {
            let newest = heard.last().copied();
            let expected = newest.is_none_or(|(i, c)| {
                incarnation > i || incarnation == i && counter + 64 > c && !heard.contains(&(incarnation, counter))
            });
            let verdict = hear(&mut book, node(1), at(incarnation, counter), u32::try_from(round).unwrap());
            prop_assert_eq!(verdict == Verdict::Fresh, expected, "{} {}", incarnation, counter);
            if expected {
                heard.insert((incarnation, counter));
            }
        }
    }
}

#[test]
fn two_adverts_under_one_number_are_a_proof_that_is_kept() {
    let mut book = Book::default();
    let (signed, said) = advert(node(7), at(1, 1), 3, local());
    book.insert(Arc::clone(&signed), &said, NOW);
    assert!(
        !book.proves_equivocation(&said, &signed),
        "the same advert again"
    );
    let other = SignedAdvert {
        payload: b"another".to_vec(),
        ..(*signed).clone()
    };
    assert!(book.proves_equivocation(&said, &other));
    assert!(!book.proves_equivocation(&said, &other), "once is enough");
    let proof: Vec<_> = book.proofs().map(|signed| signed.id()).collect();
    assert_eq!(proof, [signed.id(), other.id()]);
    for id in proof {
        assert_eq!(
            book.by_name(&node(7), id).map(|signed| signed.id()),
            Some(id)
        );
    }
    assert_eq!(book.by_name(&node(8), signed.id()), None);
}

/// What proves it is passed on by all, so no author may make proofs without end.
#[test]
fn each_author_is_proven_once_also_beyond_the_proofs_that_are_kept() {
    let mut book = Book::default();
    for n in 0..=MAX_PROOFS as u16 {
        let (signed, said) = advert(node(n), at(1, 1), 3, local());
        book.insert(signed.clone(), &said, NOW);
        let proven = (0..20_u8).filter(|other| {
            let other = SignedAdvert {
                payload: vec![n as u8, *other],
                ..(*signed).clone()
            };
            book.proves_equivocation(&said, &other)
        });
        assert_eq!(proven.count(), 1, "author {n}");
    }
    assert_eq!(book.proofs().count(), 2 * MAX_PROOFS);
}
