//! A federation in one process: every member with keys, secrets and shares of its own.
#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::{BTreeMap, BTreeSet};

use fednode_core::NodeId;
use fednode_core::masked::{MaskOffer, Unmask};
use fednode_masked::groups::Grouping;
use fednode_masked::member::{Masked, Member};
use fednode_masked::opening::{StillMasked, Unmasking};
use fednode_masked::roster::Roster;
use fednode_masked::secrets::Secrets;
use fednode_masked::shares::{self, HeldShares};
use fednode_masked::survivors::{Confirmed, Survivors};
use fednode_masked::{Context, fixed, graph};
use x25519_dalek::{PublicKey, StaticSecret};

/// A federation that has exchanged offers.
pub(crate) struct Federation {
    pub(crate) context: Context,
    pub(crate) nodes: Vec<NodeId>,
    pub(crate) keys: BTreeMap<NodeId, StaticSecret>,
    pub(crate) secrets: BTreeMap<NodeId, Secrets>,
    pub(crate) offers: BTreeMap<NodeId, MaskOffer>,
}

/// What members know of each other once their offers are opened. Members with the same secrets can begin from it again.
#[derive(Clone)]
pub(crate) struct Exchanged {
    held: Held,
    roster: Roster,
}

/// Shares that nodes hold of others.
pub(crate) type Held = BTreeMap<NodeId, BTreeMap<NodeId, HeldShares>>;

/// Everybody's masked vectors, and the members that made them.
pub(crate) struct Published {
    pub(crate) roster: Roster,
    pub(crate) members: BTreeMap<NodeId, Masked>,
    pub(crate) vectors: BTreeMap<NodeId, Vec<u64>>,
}

/// Returns 32 bytes that are different for each pair of numbers.
pub(crate) fn bytes(purpose: u8, number: u64) -> [u8; 32] {
    let mut bytes = [purpose; 32];
    bytes[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    bytes
}

impl Federation {
    /// Makes `n` members who have all offered.
    pub(crate) fn new(n: usize, seed: u64) -> Self {
        let context = Context::of(&[b"test", &seed.to_le_bytes()]);
        let mut nodes: Vec<NodeId> = (0..n as u64)
            .map(|i| NodeId::from_bytes(bytes(1, i)))
            .collect();
        nodes.sort_unstable();
        let number = |place: usize| seed.wrapping_mul(1000) + place as u64;
        let keys: BTreeMap<_, _> = nodes
            .iter()
            .enumerate()
            .map(|(place, node)| (*node, StaticSecret::from(bytes(2, number(place)))))
            .collect();
        let secrets = secrets_of(&nodes, seed, &context);
        let offer = |node: &NodeId| {
            let holders = graph::holders(&nodes, *node, &context);
            let holders: Vec<_> = holders
                .into_iter()
                .map(|holder| (holder, PublicKey::from(&keys[&holder])))
                .collect();
            (
                *node,
                secrets[node].offer(*node, &context, &holders).unwrap(),
            )
        };
        let offers = nodes.iter().map(offer).collect();
        Self {
            context,
            nodes,
            keys,
            secrets,
            offers,
        }
    }

    /// Lets everybody open the shares that are for it.
    pub(crate) fn hold(&self) -> Held {
        let mut held = Held::new();
        for (author, offer) in &self.offers {
            for holder in offer.holders.iter().map(|holder| holder.node) {
                let me = (holder, &self.keys[&holder]);
                if let Ok(shares) = shares::hold(offer, *author, me, &self.context) {
                    held.entry(holder).or_default().insert(*author, shares);
                }
            }
        }
        held
    }

    /// Lets everybody mask its vector, once all have said whose shares they hold.
    pub(crate) fn publish(self, vectors: &BTreeMap<NodeId, Vec<u64>>) -> Published {
        self.publish_in(None, vectors)
    }

    /// Lets everybody mask its vector for the sum of its group.
    pub(crate) fn publish_in(
        self,
        grouping: Option<Grouping>,
        vectors: &BTreeMap<NodeId, Vec<u64>>,
    ) -> Published {
        let exchanged = self.exchanged();
        exchanged.publish_in(self.secrets, grouping, vectors)
    }

    /// Returns what everybody knows once the offers are opened.
    pub(crate) fn exchanged(&self) -> Exchanged {
        let held = self.hold();
        let said = holds(&held);
        Exchanged {
            roster: Roster::new(self.context, self.offers.clone(), &said).unwrap(),
            held,
        }
    }
}

impl Exchanged {
    /// Lets everybody mask its vector for the sum of its group, with the secrets that were offered.
    pub(crate) fn publish_in(
        mut self,
        secrets: BTreeMap<NodeId, Secrets>,
        grouping: Option<Grouping>,
        vectors: &BTreeMap<NodeId, Vec<u64>>,
    ) -> Published {
        let roster = match grouping {
            Some(grouping) => self.roster.in_groups(grouping),
            None => self.roster,
        };
        let (mut members, mut masked) = (BTreeMap::new(), BTreeMap::new());
        for (node, secrets) in secrets {
            let held = self.held.remove(&node).unwrap_or_default();
            let Ok(member) = Member::new(node, secrets, held, roster.clone()) else {
                continue;
            };
            let mut vector = vectors[&node].clone();
            members.insert(node, member.mask(&mut vector));
            masked.insert(node, vector);
        }
        Published {
            roster,
            members,
            vectors: masked,
        }
    }
}

/// Returns the secrets of a federation's members. The same seed makes the same ones.
pub(crate) fn secrets_of(
    nodes: &[NodeId],
    seed: u64,
    context: &Context,
) -> BTreeMap<NodeId, Secrets> {
    let of = |place: usize| Secrets::of(&bytes(3, seed.wrapping_mul(1000) + place as u64), context);
    let places = nodes.iter().enumerate();
    places.map(|(place, node)| (*node, of(place))).collect()
}

/// Returns whose shares each has opened.
pub(crate) fn holds(held: &Held) -> BTreeMap<NodeId, BTreeSet<NodeId>> {
    held.iter()
        .map(|(node, of)| (*node, of.keys().copied().collect()))
        .collect()
}

/// Returns a vector of its own for each node.
pub(crate) fn vectors(nodes: &[NodeId], length: usize) -> BTreeMap<NodeId, Vec<u64>> {
    let vector = |place: usize| {
        let values: Vec<f32> = (0..length)
            .map(|value| ((value * 7 + place * 13) % 101) as f32 / 50.0 - 1.0)
            .collect();
        fixed::encode(&values, place as u32 + 1).unwrap()
    };
    nodes
        .iter()
        .enumerate()
        .map(|(place, node)| (*node, vector(place)))
        .collect()
}

/// Adds up the vectors of some nodes.
pub(crate) fn sum_of(
    vectors: &BTreeMap<NodeId, Vec<u64>>,
    of: impl IntoIterator<Item = NodeId>,
) -> Vec<u64> {
    let mut of = of.into_iter();
    let mut sum = vectors[&of.next().unwrap()].clone();
    of.for_each(|node| fixed::add(&mut sum, &vectors[&node]));
    sum
}

impl Published {
    /// Confirms survivors by all that are on the roster.
    pub(crate) fn confirm(&self, survivors: impl IntoIterator<Item = NodeId>) -> Confirmed {
        let survivors = Survivors::new(&self.roster, survivors.into_iter().collect()).unwrap();
        survivors
            .confirmed(&self.roster, &self.roster.members().collect())
            .unwrap()
    }

    /// Lets these members take the masks off.
    pub(crate) fn unmask(
        &mut self,
        confirmed: &Confirmed,
        speakers: &[NodeId],
    ) -> BTreeMap<NodeId, Unmask> {
        let say = |node: &NodeId| {
            let member = self.members.remove(node).unwrap();
            (*node, member.unmask(confirmed).unwrap())
        };
        speakers.iter().map(say).collect()
    }

    /// Works out the sum of the survivors from what was said.
    pub(crate) fn sum(
        &self,
        confirmed: &Confirmed,
        said: &BTreeMap<NodeId, Unmask>,
    ) -> Result<Vec<u64>, StillMasked> {
        Ok(self.sums(confirmed, said)?.remove(0))
    }

    /// Works out the sums of all groups; zeros where nobody is left.
    pub(crate) fn sums(
        &self,
        confirmed: &Confirmed,
        said: &BTreeMap<NodeId, Unmask>,
    ) -> Result<Vec<Vec<u64>>, StillMasked> {
        let survivors = confirmed.survivors();
        let mut unmasking = Unmasking::new(&self.roster, survivors);
        for (author, word) in said {
            unmasking.hear(*author, word).unwrap();
        }
        let opening = unmasking.open()?;
        let mut sums = self.sums_of(&self.vectors, survivors);
        for (group, sum) in sums.iter_mut().enumerate() {
            opening.clear(group, sum, 0);
        }
        Ok(sums)
    }

    /// Adds up the survivors' vectors of each group.
    pub(crate) fn sums_of(
        &self,
        vectors: &BTreeMap<NodeId, Vec<u64>>,
        survivors: &Survivors,
    ) -> Vec<Vec<u64>> {
        let length = vectors.values().next().unwrap().len();
        let mut sums = vec![vec![0; length]; self.roster.n_groups()];
        for node in survivors.nodes() {
            fixed::add(
                &mut sums[self.roster.group_of(node).unwrap()],
                &vectors[&node],
            );
        }
        sums
    }
}
