//! Random sums with members who are lost, fall silent, lie or speak twice: never a wrong sum, and a sum where one is owed.
//!
//! ```text
//! PROPTEST_CASES=1000000 cargo test --release -p fednode-masked --test fuzz
//! ```
#![allow(clippy::unwrap_used)]

mod common;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use common::{Exchanged, Federation, Published, secrets_of, vectors};
use fednode_core::NodeId;
use fednode_core::masked::{Bytes32, Unmask};
use fednode_masked::Context;
use fednode_masked::groups::Grouping;
use fednode_masked::opening::Unmasking;
use fednode_masked::survivors::{Confirmed, Survivors};
use proptest::prelude::*;

type Plain = BTreeMap<NodeId, Vec<u64>>;

/// How many federations of each size have keys of their own. Keys and sealed shares cost most of the time of a sum.
const FEDERATIONS: u64 = 64;

/// What a federation is once its offers are opened.
struct Ready {
    context: Context,
    nodes: Vec<NodeId>,
    exchanged: Exchanged,
}

thread_local! {
    /// The federations that were made so far, by size and seed.
    static READY: RefCell<BTreeMap<(usize, u64), Ready>> = const { RefCell::new(BTreeMap::new()) };
}

/// Lets the members of a federation mask their vectors anew.
fn publish(size: usize, seed: u64, grouping: Option<Grouping>) -> (Vec<NodeId>, Plain, Published) {
    READY.with_borrow_mut(|ready| {
        let ready = ready.entry((size, seed)).or_insert_with(|| {
            let federation = Federation::new(size, seed);
            Ready {
                context: federation.context,
                exchanged: federation.exchanged(),
                nodes: federation.nodes,
            }
        });
        let secrets = secrets_of(&ready.nodes, seed, &ready.context);
        let plain = vectors(&ready.nodes, 9);
        let exchanged = ready.exchanged.clone();
        let published = exchanged.publish_in(secrets, grouping, &plain);
        (ready.nodes.clone(), plain, published)
    })
}

/// What a member does once its offer is out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Stays,
    /// It never publishes a vector.
    Lost,
    /// It publishes, and never says what takes its masks off.
    Silent,
    /// It says something else than it knows, in the place that the number says.
    Lies(u8),
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        6 => Just(Fate::Stays),
        1 => Just(Fate::Lost),
        1 => Just(Fate::Silent),
        1 => any::<u8>().prop_map(Fate::Lies),
    ]
}

/// Changes one place of a word.
fn distort(word: &mut Unmask, place: u8) {
    let flip = |bytes: &mut Bytes32| bytes[usize::from(place) % 32] ^= 1 << (place % 8);
    match place % 5 {
        0 => flip(&mut word.survivors),
        1 => {
            word.own_mask = word
                .own_mask
                .take()
                .map_or(Some(Bytes32::new([place; 32])), |_| None)
        }
        2 if word.own_mask.is_some() => flip(word.own_mask.as_mut().unwrap()),
        3 => word
            .shares
            .push((NodeId::from_bytes([place; 32]), Bytes32::new([0; 32]))),
        _ => match word.shares.len() {
            0 => flip(&mut word.survivors),
            n => flip(&mut word.shares[usize::from(place) % n].1),
        },
    }
}

/// Lets members confirm survivors, honest ones as their state allows and liars always.
fn confirm(
    published: &mut Published,
    fates: &BTreeMap<NodeId, Fate>,
    survivors: &Survivors,
) -> Option<Confirmed> {
    let mut by = BTreeSet::new();
    for (node, member) in &mut published.members {
        match fates[node] {
            Fate::Lost => {}
            Fate::Lies(_) => drop(by.insert(*node)),
            Fate::Stays | Fate::Silent => {
                if member.confirm(survivors).is_ok() {
                    by.insert(*node);
                }
            }
        }
    }
    survivors.clone().confirmed(&published.roster, &by).ok()
}

/// Takes some ten seconds, unless `PROPTEST_CASES` says how many sums to try.
fn config() -> ProptestConfig {
    let config = ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    match std::env::var_os("PROPTEST_CASES") {
        Some(_) => config,
        None => ProptestConfig {
            cases: 4096,
            ..config
        },
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn no_sum_is_wrong_and_none_is_owed(
        fates in proptest::collection::vec(fate(), 3..9),
        seed in 0..FEDERATIONS,
        order in any::<u64>(),
        fewest in proptest::option::of(3_usize..5),
    ) {
        // From six members on there are two groups of three or more.
        let grouping = fewest.map(|fewest| Grouping { size: 3, fewest });
        let (nodes, plain, mut published) = publish(fates.len(), seed, grouping);
        let fates: BTreeMap<NodeId, Fate> = nodes.iter().copied().zip(fates).collect();
        let here = |node: &NodeId| fates[node] != Fate::Lost;
        let survivors: BTreeSet<NodeId> = nodes.iter().copied().filter(here).collect();
        let survivors = published.roster.countable(survivors);
        let Ok(survivors) = Survivors::new(&published.roster, survivors) else {
            return Ok(());
        };
        let confirmed = confirm(&mut published, &fates, &survivors);
        // Whoever closes the round tries another set, too. With fewer than a third of liars it never gets through.
        let liars = fates.values().filter(|fate| matches!(fate, Fate::Lies(_))).count();
        let leave_out = nodes[order as usize % nodes.len()];
        let second: BTreeSet<NodeId> = survivors.nodes().filter(|node| *node != leave_out).collect();
        let second = published.roster.countable(second);
        if let Ok(second) = Survivors::new(&published.roster, second)
            && second != survivors
            && confirmed.is_some()
            && 3 * liars < nodes.len()
        {
            prop_assert!(confirm(&mut published, &fates, &second).is_none());
        }
        let Some(confirmed) = confirmed else {
            return Ok(());
        };
        let speakers: Vec<NodeId> = nodes
            .iter()
            .copied()
            .filter(|node| matches!(fates[node], Fate::Stays | Fate::Lies(_)))
            .collect();
        let mut said: Vec<(NodeId, Unmask)> = published.unmask(&confirmed, &speakers).into_iter().collect();
        // Words come in any order, and some of them twice.
        said.rotate_left(order as usize % speakers.len().max(1));
        said.extend(said.first().cloned());
        let mut unmasking = Unmasking::new(&published.roster, confirmed.survivors());
        for (author, word) in &mut said {
            if let Fate::Lies(place) = fates[author] {
                distort(word, place);
                prop_assert!(unmasking.hear(*author, word).is_err());
            } else {
                prop_assert_eq!(unmasking.hear(*author, word), Ok(()));
            }
        }
        let honest = fates.values().filter(|fate| **fate == Fate::Stays).count();
        match unmasking.open() {
            Ok(opening) => {
                let mut sums = published.sums_of(&published.vectors, confirmed.survivors());
                for (group, sum) in sums.iter_mut().enumerate() {
                    opening.clear(group, sum, 0);
                }
                prop_assert_eq!(sums, published.sums_of(&plain, confirmed.survivors()));
            }
            // Of n - 1 holders more than half are enough, and one who speaks is not its own holder.
            Err(still) => prop_assert!(honest <= (nodes.len() - 1) / 2 + 1, "{still}"),
        }
    }
}
