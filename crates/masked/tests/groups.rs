//! Members in groups: each group has a sum of its own, out of one roster, one set of survivors and one word of each member.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;

use common::{Federation, Published, sum_of, vectors};
use fednode_core::NodeId;
use fednode_masked::groups::Grouping;
use fednode_masked::opening::Unmasking;
use fednode_masked::secrets::Secrets;
use fednode_masked::survivors::{Survivors, SurvivorsFault};
use x25519_dalek::PublicKey;

const BY_FOUR: Option<Grouping> = Some(Grouping { size: 4, fewest: 3 });

/// The members of each group.
fn groups(published: &Published) -> Vec<Vec<NodeId>> {
    let roster = &published.roster;
    let group = |at| {
        roster
            .members()
            .filter(move |node| roster.group_of(*node) == Some(at))
    };
    (0..roster.n_groups())
        .map(|at| group(at).collect())
        .collect()
}

#[test]
fn each_group_has_the_exact_sum_of_its_members() {
    // More than 96 nodes hold shares of some of the others alone, and share masks with all of their group.
    for n in [4, 7, 8, 21, 100] {
        let federation = Federation::new(n, 1);
        let (nodes, plain) = (federation.nodes.clone(), vectors(&federation.nodes, 30));
        let mut published = federation.publish_in(BY_FOUR, &plain);
        assert_eq!(published.members.len(), n, "nobody refuses its group");
        let groups = groups(&published);
        assert_eq!(groups.len(), n / 4);
        let confirmed = published.confirm(nodes.clone());
        let said = published.unmask(&confirmed, &nodes);
        let sums = published.sums(&confirmed, &said).unwrap();
        for (members, sum) in groups.into_iter().zip(sums) {
            assert!((4..8).contains(&members.len()), "{} of {n}", members.len());
            assert_eq!(sum, sum_of(&plain, members));
        }
    }
}

/// A group of four may lose one. Of one that loses two nothing is learnt, though its members' vectors are there.
#[test]
fn a_group_that_lost_too_many_is_left_out_and_stays_masked() {
    let federation = Federation::new(12, 2);
    let (nodes, plain) = (federation.nodes.clone(), vectors(&federation.nodes, 30));
    let mut published = federation.publish_in(BY_FOUR, &plain);
    let groups = groups(&published);
    let lost = [groups[0][0], groups[1][0], groups[1][1]];
    let here: BTreeSet<NodeId> = nodes
        .iter()
        .copied()
        .filter(|node| !lost.contains(node))
        .collect();
    let counted = published.roster.countable(here.clone());
    assert_eq!(counted.len(), 7);
    let refused = Survivors::new(&published.roster, here).unwrap_err();
    assert_eq!(refused, SurvivorsFault::SmallGroup);
    let confirmed = published.confirm(counted);
    let said = published.unmask(&confirmed, &nodes);
    let sums = published.sums(&confirmed, &said).unwrap();
    assert_eq!(sums[0], sum_of(&plain, groups[0][1..].to_vec()));
    assert_eq!(sums[2], sum_of(&plain, groups[2].clone()));
    // Nobody told a share of a secret of the group that is left out, nor a seed.
    for (author, word) in &said {
        let is_left_out = groups[1].contains(author);
        assert_eq!(
            word.own_mask.is_none(),
            is_left_out || lost.contains(author)
        );
        assert!(word.shares.iter().all(|(of, _)| !groups[1].contains(of)));
    }
    // What was said takes no mask off its vectors.
    let mut unmasking = Unmasking::new(&published.roster, confirmed.survivors());
    for (author, word) in &said {
        unmasking.hear(*author, word).unwrap();
    }
    let mut vector = published.vectors[&groups[1][2]].clone();
    unmasking.open().unwrap().clear(1, &mut vector, 0);
    assert_eq!(vector, published.vectors[&groups[1][2]]);
}

/// Masks of one group do not cancel in another's sum, so vectors cannot be moved between them.
#[test]
fn vectors_of_two_groups_are_no_sum() {
    let federation = Federation::new(8, 3);
    let (nodes, plain) = (federation.nodes.clone(), vectors(&federation.nodes, 30));
    let mut published = federation.publish_in(BY_FOUR, &plain);
    let groups = groups(&published);
    let confirmed = published.confirm(nodes.clone());
    let said = published.unmask(&confirmed, &nodes);
    let mut unmasking = Unmasking::new(&published.roster, confirmed.survivors());
    for (author, word) in &said {
        unmasking.hear(*author, word).unwrap();
    }
    let mixed = [groups[0][..2].to_vec(), groups[1][2..].to_vec()].concat();
    let mut sum = sum_of(&published.vectors, mixed.clone());
    unmasking.open().unwrap().clear(0, &mut sum, 0);
    assert_ne!(sum, sum_of(&plain, mixed));
}

/// Whoever speaks last cannot try offers until it is in the group that it wants.
#[test]
fn groups_are_dealt_by_what_the_sum_is_about_and_not_by_what_members_offer() {
    let dealt = |seed: u64, other: Option<u8>| {
        let mut federation = Federation::new(12, seed);
        let nodes = federation.nodes.clone();
        if let Some(other) = other {
            let (last, context) = (nodes[11], federation.context);
            let public = |node: &NodeId| (*node, PublicKey::from(&federation.keys[node]));
            let holders: Vec<_> = nodes[..11].iter().map(public).collect();
            let secrets = Secrets::of(&[other; 32], &context);
            let offer = secrets.offer(last, &context, &holders).unwrap();
            federation.offers.insert(last, offer);
            federation.secrets.insert(last, secrets);
        }
        let published = federation.publish_in(BY_FOUR, &vectors(&nodes, 3));
        let groups = nodes
            .iter()
            .map(|node| published.roster.group_of(*node).unwrap());
        groups.collect::<Vec<_>>()
    };
    for other in [1, 2, 3] {
        assert_eq!(dealt(5, Some(other)), dealt(5, None));
    }
    assert_ne!(dealt(6, None), dealt(5, None));
}
