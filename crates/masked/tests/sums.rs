//! Sums of members who stay, who are lost at every step, and who lie.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{Federation, bytes, holds, sum_of, vectors};
use fednode_core::NodeId;
use fednode_core::masked::{Bytes32, MaskOffer, Unmask};
use fednode_masked::graph;
use fednode_masked::groups::Grouping;
use fednode_masked::member::{Member, Refusal};
use fednode_masked::opening::{StillMasked, UnmaskFault, Unmasking};
use fednode_masked::roster::Roster;
use fednode_masked::secrets::{self, OfferFault, Secrets};
use fednode_masked::shares::{self, HoldFault};
use fednode_masked::survivors::{Survivors, SurvivorsFault};
use serde_bytes::ByteArray;
use x25519_dalek::PublicKey;

#[test]
fn the_sum_is_exact_when_everybody_stays() {
    let federation = Federation::new(7, 1);
    let (nodes, plain) = (federation.nodes.clone(), vectors(&federation.nodes, 700));
    let mut published = federation.publish(&plain);
    let confirmed = published.confirm(nodes.clone());
    let said = published.unmask(&confirmed, &nodes);
    assert_eq!(
        published.sum(&confirmed, &said).unwrap(),
        sum_of(&plain, nodes)
    );
}

#[test]
fn the_sum_is_exact_when_some_are_lost_before_and_some_after_their_vector() {
    let federation = Federation::new(10, 2);
    let (nodes, plain) = (federation.nodes.clone(), vectors(&federation.nodes, 50));
    let mut published = federation.publish(&plain);
    // Two never publish a vector; of those who did, two more never say what takes their masks off.
    let survivors = nodes[2..].to_vec();
    let confirmed = published.confirm(survivors.clone());
    let said = published.unmask(&confirmed, &nodes[4..]);
    assert_eq!(
        published.sum(&confirmed, &said).unwrap(),
        sum_of(&plain, survivors)
    );
}

#[test]
fn a_member_that_was_lost_still_helps_and_stays_hidden() {
    let federation = Federation::new(5, 3);
    let (nodes, plain) = (federation.nodes.clone(), vectors(&federation.nodes, 20));
    let mut published = federation.publish(&plain);
    let confirmed = published.confirm(nodes[1..].to_vec());
    let said = published.unmask(&confirmed, &nodes);
    assert_eq!(said[&nodes[0]].own_mask, None);
    let sum = published.sum(&confirmed, &said).unwrap();
    assert_eq!(sum, sum_of(&plain, nodes[1..].to_vec()));
    // Its vector came late, and all that was said about its masks with others does not open it.
    let mut unmasking = Unmasking::new(&published.roster, confirmed.survivors());
    for (author, word) in &said {
        unmasking.hear(*author, word).unwrap();
    }
    let mut all = sum_of(&published.vectors, nodes.clone());
    unmasking.open().unwrap().clear(0, &mut all, 0);
    let opened: Vec<u64> = all
        .iter()
        .zip(&sum)
        .map(|(all, sum)| all.wrapping_sub(*sum))
        .collect();
    let matches = opened.iter().zip(&plain[&nodes[0]]).filter(|(a, b)| a == b);
    assert_eq!(matches.count(), 0);
}

#[test]
fn too_few_words_open_nothing_and_more_do() {
    let federation = Federation::new(7, 4);
    let (nodes, plain) = (federation.nodes.clone(), vectors(&federation.nodes, 5));
    let mut published = federation.publish(&plain);
    let confirmed = published.confirm(nodes[1..].to_vec());
    // Four shares make a secret of six holders: with three speakers the lost one's key is not to be had.
    let mut said = published.unmask(&confirmed, &nodes[1..4]);
    let still = published.sum(&confirmed, &said).unwrap_err();
    assert_eq!(still, StillMasked::Missing(nodes[0]));
    said.extend(published.unmask(&confirmed, &nodes[4..5]));
    assert_eq!(
        published.sum(&confirmed, &said).unwrap(),
        sum_of(&plain, nodes[1..].to_vec())
    );
}

/// Says something about a member's honest word.
type Lie = fn(&mut Unmask, NodeId);

#[test]
fn a_false_word_names_what_is_false_in_it() {
    let federation = Federation::new(5, 5);
    let nodes = federation.nodes.clone();
    let mut published = federation.publish(&vectors(&nodes, 5));
    let confirmed = published.confirm(nodes[1..].to_vec());
    let said = published.unmask(&confirmed, &nodes);
    let (lost, liar, other) = (nodes[0], nodes[1], nodes[2]);
    let seed = |unmask: &mut Unmask| unmask.own_mask.as_mut().unwrap()[5] ^= 1;
    let lies: [(NodeId, Lie, UnmaskFault); 6] = [
        (
            liar,
            |said, _| said.survivors[0] ^= 1,
            UnmaskFault::OtherSurvivors,
        ),
        (liar, |said, _| said.own_mask = None, UnmaskFault::OwnMask),
        (
            liar,
            |said, _| said.own_mask.as_mut().unwrap()[5] ^= 1,
            UnmaskFault::OwnMask,
        ),
        (
            lost,
            |said, _| said.own_mask = Some(Bytes32::new([9; 32])),
            UnmaskFault::OwnMask,
        ),
        (
            liar,
            |said, of| {
                said.shares
                    .iter_mut()
                    .find(|(node, _)| *node == of)
                    .unwrap()
                    .1[0] ^= 1
            },
            UnmaskFault::Share(other),
        ),
        (
            liar,
            |said, of| said.shares.push((of, Bytes32::new([1; 32]))),
            UnmaskFault::Share(other),
        ),
    ];
    for (author, lie, fault) in lies {
        let mut word = said[&author].clone();
        lie(&mut word, other);
        let mut unmasking = Unmasking::new(&published.roster, confirmed.survivors());
        assert_eq!(unmasking.hear(author, &word), Err(fault));
    }
    let stranger = NodeId::from_bytes([0xee; 32]);
    let mut unmasking = Unmasking::new(&published.roster, confirmed.survivors());
    assert_eq!(
        unmasking.hear(stranger, &said[&liar]),
        Err(UnmaskFault::Stranger)
    );
    // One member's word is not another's.
    let mut word = said[&liar].clone();
    assert_eq!(unmasking.hear(other, &word), Err(UnmaskFault::OwnMask));
    seed(&mut word);
    assert_eq!(unmasking.hear(liar, &word), Err(UnmaskFault::OwnMask));
}

#[test]
fn a_member_confirms_one_set_of_survivors() {
    let federation = Federation::new(6, 6);
    let nodes = federation.nodes.clone();
    let mut published = federation.publish(&vectors(&nodes, 3));
    let all = Survivors::new(&published.roster, nodes.iter().copied().collect()).unwrap();
    let fewer = Survivors::new(&published.roster, nodes[1..].iter().copied().collect()).unwrap();
    let member = published.members.get_mut(&nodes[2]).unwrap();
    assert_eq!(member.confirm(&all), Ok(all.id()));
    assert_eq!(member.confirm(&fewer), Err(Refusal::Second));
    assert_eq!(member.confirm(&all), Ok(all.id()));
}

#[test]
fn masks_stay_on_for_survivors_that_are_too_few_unknown_or_unconfirmed() {
    let federation = Federation::new(7, 7);
    let nodes = federation.nodes.clone();
    let published = federation.publish(&vectors(&nodes, 3));
    let named =
        |nodes: &[NodeId]| Survivors::new(&published.roster, nodes.iter().copied().collect());
    let few = SurvivorsFault::TooFew {
        survivors: 3,
        members: 7,
    };
    assert_eq!(named(&nodes[..3]), Err(few));
    assert_eq!(
        named(&[NodeId::from_bytes([0xee; 32])]),
        Err(SurvivorsFault::Strangers)
    );
    // Of seven, five are more than two thirds and four are not. A stranger's confirmation does not count.
    let mut by: BTreeSet<NodeId> = nodes[..4].iter().copied().collect();
    by.insert(NodeId::from_bytes([0xee; 32]));
    let survivors = named(&nodes).unwrap();
    let unconfirmed = SurvivorsFault::Unconfirmed(4);
    assert_eq!(
        survivors.clone().confirmed(&published.roster, &by),
        Err(unconfirmed)
    );
    by.insert(nodes[4]);
    assert!(survivors.confirmed(&published.roster, &by).is_ok());
}

#[test]
fn survivors_of_another_sum_are_refused_and_nothing_is_revealed() {
    let (first, second) = (Federation::new(5, 8), Federation::new(5, 9));
    let nodes = first.nodes.clone();
    let plain = vectors(&nodes, 3);
    let (mut first, second) = (first.publish(&plain), second.publish(&plain));
    let foreign = second.confirm(nodes.clone());
    let member = first.members.remove(&nodes[0]).unwrap();
    let (mut member, refusal) = member.unmask(&foreign).unwrap_err();
    assert_eq!(refusal, Refusal::OtherSum);
    assert_eq!(member.confirm(foreign.survivors()), Err(Refusal::OtherSum));
    let by: BTreeSet<NodeId> = nodes.iter().copied().collect();
    let elsewhere = foreign.survivors().clone().confirmed(&first.roster, &by);
    assert_eq!(elsewhere, Err(SurvivorsFault::OtherRoster));
    let said = Unmask {
        survivors: foreign.survivors().id(),
        own_mask: None,
        shares: Vec::new(),
    };
    let mut mixed = Unmasking::new(&first.roster, foreign.survivors());
    assert_eq!(
        mixed.hear(nodes[0], &said),
        Err(UnmaskFault::OtherSurvivors)
    );
    // The same nodes in another sum have another name, so that no signature for one counts for the other.
    let own = first.confirm(nodes);
    assert_ne!(own.survivors().id(), foreign.survivors().id());
    assert!(member.unmask(&own).is_ok());
}

#[test]
fn shares_that_are_not_what_their_hashes_say_are_not_held() {
    let mut federation = Federation::new(5, 10);
    let (liar, holder) = (federation.nodes[0], federation.nodes[1]);
    let offer = federation.offers.get_mut(&liar).unwrap();
    offer.holders[0].sealed[40] ^= 1;
    let key = &federation.keys[&holder];
    let offer = &federation.offers[&liar];
    let held = shares::hold(offer, liar, (holder, key), &federation.context);
    assert_eq!(held.unwrap_err(), HoldFault::False);
    let elsewhere = fednode_masked::Context::of(&[b"another round"]);
    let other = federation.nodes[2];
    let held = shares::hold(offer, liar, (other, &federation.keys[&other]), &elsewhere);
    assert_eq!(held.unwrap_err(), HoldFault::False);
}

#[test]
fn whoever_gives_too_few_true_shares_is_not_on_the_roster() {
    let mut federation = Federation::new(6, 11);
    let (liar, clumsy) = (federation.nodes[0], federation.nodes[1]);
    // Three of five holders make a secret. The liar serves two of them, and the clumsy one three.
    for (node, spoilt) in [(liar, 3), (clumsy, 2)] {
        let offer = federation.offers.get_mut(&node).unwrap();
        offer
            .holders
            .iter_mut()
            .take(spoilt)
            .for_each(|holder| holder.sealed = ByteArray::new([0; 64]));
    }
    let held = holds(&federation.hold());
    let roster = Roster::new(federation.context, federation.offers.clone(), &held).unwrap();
    assert!(!roster.contains(liar));
    // One of the three who hold the clumsy one's shares may be the liar, who does not count.
    let holders = federation.offers[&clumsy].holders.iter().skip(2);
    assert_eq!(
        roster.contains(clumsy),
        holders.filter(|holder| holder.node != liar).count() >= 3
    );
    assert_eq!(roster.len(), 5);
}

#[test]
fn whoever_copies_a_key_does_not_take_its_owner_off_the_roster() {
    let mut federation = Federation::new(6, 12);
    let (victim, copier) = (federation.nodes[0], federation.nodes[1]);
    let nodes = federation.nodes.clone();
    let key = federation.offers[&victim].mask_key;
    federation.offers.get_mut(&copier).unwrap().mask_key = key;
    // The copier does not know the secret, so it cannot mask: it is lost, and what it gave away proves the lie.
    let mut published = federation.publish(&vectors(&nodes, 3));
    assert!(published.members.contains_key(&victim));
    assert!(!published.members.contains_key(&copier));
    let others: Vec<NodeId> = nodes.into_iter().filter(|node| *node != copier).collect();
    let confirmed = published.confirm(others.clone());
    let said = published.unmask(&confirmed, &others);
    let still = published.sum(&confirmed, &said).unwrap_err();
    assert_eq!(still, StillMasked::FalseShares(copier));
}

#[test]
fn a_roster_is_named_after_all_that_its_offers_say() {
    let federation = Federation::new(5, 17);
    let held = holds(&federation.hold());
    let roster = |offers: BTreeMap<NodeId, MaskOffer>| {
        let roster = Roster::new(federation.context, offers, &held);
        roster.unwrap().id()
    };
    let name = roster(federation.offers.clone());
    let changes: [fn(&mut MaskOffer); 3] = [
        |offer| offer.holders[1].sealed[0] ^= 1,
        |offer| offer.holders[1].mask_key[0] ^= 1,
        |offer| offer.own_mask[0] ^= 1,
    ];
    for change in changes {
        let mut offers = federation.offers.clone();
        change(offers.get_mut(&federation.nodes[0]).unwrap());
        assert_ne!(roster(offers), name);
    }
}

#[test]
fn three_members_are_the_fewest() {
    let federation = Federation::new(4, 13);
    let mut held = holds(&federation.hold());
    held.retain(|node, _| *node != federation.nodes[0] && *node != federation.nodes[1]);
    let few = Roster::new(federation.context, federation.offers.clone(), &held).unwrap_err();
    assert!(few.0 < 3);
    let secrets = Secrets::of(&bytes(5, 5), &federation.context);
    let fault = secrets
        .offer(federation.nodes[0], &federation.context, &[])
        .unwrap_err();
    assert_eq!(fault, OfferFault::Holders(0));
}

/// Has a member give away well-formed shares of other secrets than its public key stands for.
fn give_false_shares(federation: &mut Federation, liar: NodeId) {
    let other = Secrets::of(&bytes(6, 6), &federation.context);
    let holders = federation.nodes.iter().filter(|node| **node != liar);
    let holders: Vec<_> = holders
        .map(|node| (*node, (&federation.keys[node]).into()))
        .collect();
    let false_offer = other.offer(liar, &federation.context, &holders).unwrap();
    let offer = federation.offers.get_mut(&liar).unwrap();
    (offer.holders, offer.seal_key) = (false_offer.holders, false_offer.seal_key);
}

#[test]
fn shares_of_another_secret_prove_that_their_author_lied() {
    let mut federation = Federation::new(5, 14);
    let (liar, nodes) = (federation.nodes[0], federation.nodes.clone());
    give_false_shares(&mut federation, liar);
    let mut published = federation.publish(&vectors(&nodes, 3));
    let confirmed = published.confirm(nodes[1..].to_vec());
    let said = published.unmask(&confirmed, &nodes[1..]);
    let still = published.sum(&confirmed, &said).unwrap_err();
    assert_eq!(still, StillMasked::FalseShares(liar));
}

/// In groups no other group's masks depend on them.
#[test]
fn shares_of_another_secret_leave_the_masks_on_the_sum_of_their_authors_group_alone() {
    let mut federation = Federation::new(8, 15);
    let (liar, nodes) = (federation.nodes[0], federation.nodes.clone());
    give_false_shares(&mut federation, liar);
    let plain = vectors(&nodes, 3);
    let grouping = Grouping { size: 4, fewest: 3 };
    let mut published = federation.publish_in(Some(grouping), &plain);
    let confirmed = published.confirm(nodes.clone());
    let said = published.unmask(&confirmed, &nodes);
    let mut unmasking = Unmasking::new(&published.roster, confirmed.survivors());
    // The liar is counted and says nothing.
    for (author, word) in said.iter().filter(|(author, _)| **author != liar) {
        unmasking.hear(*author, word).unwrap();
    }
    let opening = unmasking.open().unwrap();
    assert_eq!((opening.liar(), unmasking.liar()), (Some(liar), Some(liar)));
    let spoilt = published.roster.group_of(liar).unwrap();
    let mut sums = published.sums_of(&published.vectors, confirmed.survivors());
    let due = published.sums_of(&plain, confirmed.survivors());
    for group in 0..2 {
        opening.clear(group, &mut sums[group], 0);
        assert_eq!(opening.opens(group), group != spoilt);
        assert_eq!(sums[group] == due[group], group != spoilt);
    }
    // If it tells its secret after all, nothing stays on, and its shares prove the lie as before.
    unmasking.hear(liar, &said[&liar]).unwrap();
    let opening = unmasking.open().unwrap();
    assert_eq!((opening.liar(), unmasking.liar()), (None, Some(liar)));
}

/// It is named also where others' masks stay on because they have told too little.
#[test]
fn a_liar_is_named_while_others_are_missing() {
    let mut federation = Federation::new(5, 16);
    let (liar, nodes) = (federation.nodes[4], federation.nodes.clone());
    give_false_shares(&mut federation, liar);
    let mut published = federation.publish(&vectors(&nodes, 3));
    let confirmed = published.confirm(nodes.clone());
    let said = published.unmask(&confirmed, &nodes);
    let mut unmasking = Unmasking::new(&published.roster, confirmed.survivors());
    let of_first = |(of, _): &(NodeId, Bytes32)| *of == nodes[0];
    for (author, word) in said
        .iter()
        .filter(|(author, _)| nodes[1..4].contains(author))
    {
        let mut word = word.clone();
        word.shares.retain(|share| !of_first(share));
        unmasking.hear(*author, &word).unwrap();
    }
    let still = unmasking.open().unwrap_err();
    assert_eq!(still, StillMasked::Missing(nodes[0]));
    assert_eq!(unmasking.liar(), Some(liar));
}

#[test]
fn a_key_that_makes_the_same_secret_with_everybody_is_not_on_the_roster() {
    // Points of low order: 0, 1 and p - 1 (RFC 7748, section 6.1).
    let mut minus_one = [0xff; 32];
    (minus_one[0], minus_one[31]) = (0xec, 0x7f);
    let mut one = [0; 32];
    one[0] = 1;
    for key in [[0; 32], one, minus_one] {
        let mut federation = Federation::new(5, 15);
        let liar = federation.nodes[0];
        federation.offers.get_mut(&liar).unwrap().mask_key = Bytes32::new(key);
        let fault = secrets::check(&federation.offers[&liar], liar);
        assert_eq!(fault, Err(OfferFault::WeakKey));
        let held = holds(&federation.hold());
        let roster = Roster::new(federation.context, federation.offers, &held).unwrap();
        assert!(!roster.contains(liar) && roster.len() == 4);
    }
}

#[test]
fn a_node_does_not_join_a_roster_with_another_offer_of_its_own() {
    let federation = Federation::new(4, 16);
    let mut held = federation.hold();
    let roster = Roster::new(federation.context, federation.offers.clone(), &holds(&held)).unwrap();
    let me = federation.nodes[0];
    let others = Secrets::of(&bytes(7, 7), &federation.context);
    let member = Member::new(me, others, held.remove(&me).unwrap(), roster);
    assert_eq!(member.unwrap_err(), Refusal::NotOnRoster);
}

#[test]
fn holders_in_a_large_federation_are_mutual_and_about_a_hundred() {
    let context = fednode_masked::Context::of(&[b"graph"]);
    let nodes: Vec<NodeId> = (0..400).map(|i| NodeId::from_bytes(bytes(8, i))).collect();
    let all: BTreeMap<NodeId, Vec<NodeId>> = nodes
        .iter()
        .map(|node| (*node, graph::holders(&nodes, *node, &context)))
        .collect();
    for (node, holders) in &all {
        // 96 are expected, with a standard deviation of 9.
        assert!((55..=140).contains(&holders.len()), "{}", holders.len());
        assert!(holders.iter().all(|holder| all[holder].contains(node)));
    }
    let few = graph::holders(&nodes[..20], nodes[3], &context);
    assert_eq!(few.len(), 19);
}

#[test]
fn a_node_masks_nothing_with_partners_that_could_all_work_together() {
    let joins = |known: usize, grouping: Option<Grouping>| {
        let mut federation = Federation::new(7, 17);
        let me = federation.nodes[0];
        // It knew so few others when it made its offer.
        let holders = federation.nodes[1..=known].iter();
        let holders: Vec<_> = holders
            .map(|node| (*node, PublicKey::from(&federation.keys[node])))
            .collect();
        let secrets = Secrets::of(&bytes(7, 7), &federation.context);
        let offer = secrets.offer(me, &federation.context, &holders).unwrap();
        federation.offers.insert(me, offer);
        let mut held = federation.hold();
        let roster = Roster::new(federation.context, federation.offers, &holds(&held)).unwrap();
        let roster = match grouping {
            Some(grouping) => roster.in_groups(grouping),
            None => roster,
        };
        Member::new(me, secrets, held.remove(&me).unwrap(), roster).map(|_| ())
    };
    let refusal = Refusal::FewPartners {
        partners: 3,
        members: 7,
    };
    // All of a group share masks with it. Who holds its shares could put its secrets together all the same.
    let by_three = Grouping { size: 3, fewest: 3 };
    for grouping in [None, Some(by_three)] {
        assert_eq!(joins(3, grouping), Err(refusal));
        assert_eq!(joins(4, grouping), Ok(()));
    }
}
