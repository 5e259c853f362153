//! Masked sums in the round: who takes part in one, whose words take its masks off, and the orders about it.
//!
//! ```text
//! update of round t-1 ──► closing of t-1 ──► training t ──► update of t ──► proposal ──► agreements ──► words ──► closing of t
//! offer for t             fixes the roster   masks on        masked part    survivors    two thirds     masks off  the mean
//! ```
//!
//! The offers that a closing counts are the roster of the next round, so everybody who follows it has the same one. It is good
//! for that round alone: a round that nobody closed used the masks up. Who is not on the roster publishes the mean that it
//! started from, which tells nothing, and with it an offer. So it is on the next roster. In the first round that is everybody.
//!
//! Some federations have one sum, in the last round that was agreed on at first ([`fednode_core::Total`]), or one of each group. Until
//! then nobody is on a roster, and offers are made in the round before alone. In rounds that are added nobody is on one either, so
//! that sum stays.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use fednode_core::masked::{MaskOffer, Unmask};
use fednode_core::{
    Accepted, AdvertId, BlobId, Body, Ends, FederationId, FederationSpec, Global, Lineage, Member,
    NodeId, Round, Schedule,
};
use fednode_masked::Context;
use fednode_masked::groups::Grouping;
use fednode_masked::opening::{StillMasked, UnmaskFault, Unmasking};
use fednode_masked::roster::Roster;
use fednode_masked::survivors::Survivors;
use fednode_masked::turn;
use serde::{Deserialize, Serialize};

use crate::encoding::as_list;

/// What a node did whose shares are not of its secrets.
pub(crate) const FALSE_SHARES: &str =
    "gave away false shares of its secrets, so a sum cannot be opened";

/// Returns what a round's sum is about.
pub fn context(federation: FederationId, round: Round) -> Context {
    Context::of(&[federation.as_bytes(), &round.0.to_le_bytes()])
}

/// Which rounds of a federation have a masked sum, and what it takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sums {
    federation: FederationId,
    ends: Ends,
    /// Nothing where each round has one.
    once: Option<Once>,
}

/// The only sums of a federation: of statistics that are published in no other round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Once {
    round: Round,
    /// Fewest members of all of them.
    fewest: u32,
    /// Members of a group, and the fewest of one; nothing where there is one sum.
    group: Option<(u32, u32)>,
}

impl Sums {
    /// Takes from a spec what it says of sums; nothing where they are open.
    pub fn of(spec: &FederationSpec, schedule: &Schedule) -> Option<Self> {
        let total = schedule.total_round().zip(spec.exchange.total);
        schedule.masks().then(|| Self {
            federation: spec.id(),
            ends: schedule.ends().clone(),
            once: total.map(|(round, total)| Once {
                round,
                fewest: total.fewest,
                group: total.group.map(|size| (size, total.fewest_of_one())),
            }),
        })
    }

    /// Tells whether parts may be added up in a round.
    pub fn are_in(&self, round: Round) -> bool {
        match self.once {
            Some(once) => once.round == round,
            // Offers are made in the round before. The first round has none before it, and an end forgets all.
            None => round > Round(1) && !self.ends.are_after(Round(round.0 - 1)),
        }
    }

    /// Tells whether who misses the beginning of a round may miss a sum: that of the next round, or the only one.
    pub fn depend_on_the_beginning_of(&self, round: Round) -> bool {
        match self.once {
            Some(once) => once.round >= round,
            None => self.are_in(round.next()),
        }
    }

    /// Returns how members are grouped, if they are.
    fn grouping(&self) -> Option<Grouping> {
        let (size, fewest) = self.once?.group?;
        Some(Grouping {
            size: size as usize,
            fewest: fewest as usize,
        })
    }
}

/// Who takes part in the masked sum of a round: the offers that the closing before it counts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Sum {
    of: Sums,
    round: Round,
    #[serde(with = "as_list")]
    offers: BTreeMap<NodeId, MaskOffer>,
    /// Made of the offers when it is asked for: to look them all through takes a while.
    #[serde(skip)]
    roster: OnceLock<Option<Arc<Roster>>>,
}

impl PartialEq for Sum {
    fn eq(&self, other: &Self) -> bool {
        (&self.of, self.round, &self.offers) == (&other.of, other.round, &other.offers)
    }
}

impl Sum {
    /// A sum of nobody: no closing has counted any offers for this round.
    pub fn of_nobody(of: Sums, round: Round) -> Self {
        Self {
            of,
            round,
            offers: BTreeMap::new(),
            roster: OnceLock::new(),
        }
    }

    /// The sum of the round after a closed one. `signed` returns the advert that a member is counted with; `None` if one of
    /// them is not known.
    pub fn after<'a>(
        of: &Sums,
        (round, global): (Round, &Global),
        signed: impl Fn(&Member) -> Option<&'a Accepted>,
    ) -> Option<Self> {
        let mut sum = Self::of_nobody(of.clone(), round.next());
        if !of.are_in(sum.round) {
            return Some(sum);
        }
        for member in &global.members {
            let advert = signed(member)?;
            // Closings name updates alone. Anything else is a fault that the follower finds by itself.
            let Body::Local(local) = &advert.body else {
                continue;
            };
            // Under masks all updates that a closing counts are of its round, so all offers are for the same sum.
            if let Some(offer) = &local.offer {
                sum.offers.insert(member.node, MaskOffer::clone(offer));
            }
        }
        Some(sum)
    }

    /// Returns the round.
    pub fn round(&self) -> Round {
        self.round
    }

    /// Returns what it is about.
    pub fn context(&self) -> Context {
        context(self.of.federation, self.round)
    }

    /// Tells whether parts are added up, and not averaged.
    pub fn is_total(&self) -> bool {
        self.of.once.is_some()
    }

    /// Returns the roster, if there are enough members for one.
    pub fn roster(&self) -> Option<&Arc<Roster>> {
        let made = || turn::roster(self.context(), self.offers.clone(), self.of.grouping());
        // Having none is remembered, too: offers that a closing counted do not change.
        let roster = self.roster.get_or_init(|| {
            let roster = made().ok()?;
            (roster.len() >= self.fewest()).then(|| Arc::new(roster))
        });
        roster.as_ref()
    }

    /// Returns how many members the sum must have, if it has any.
    fn fewest(&self) -> usize {
        self.of.once.map_or(0, |once| once.fewest as usize)
    }

    /// Tells whether there is a sum of each group, stacked in the mean of the round.
    pub fn is_grouped(&self) -> bool {
        self.of.grouping().is_some()
    }

    /// Tells whether a node takes part.
    pub fn has(&self, node: NodeId) -> bool {
        self.roster().is_some_and(|roster| roster.contains(node))
    }

    /// Tells whether a part may be counted: a masked one of whoever is on the roster, and of others the mean that they started
    /// from.
    pub fn admits(&self, node: NodeId, part: BlobId, parent: Lineage) -> bool {
        self.has(node) != (part == parent)
    }

    /// Returns those of these members whose parts are added up. Groups of which too few are there are left out.
    pub fn summed(&self, members: &[Member]) -> BTreeSet<NodeId> {
        match self.roster() {
            Some(roster) => roster.countable(self.present(members)),
            None => BTreeSet::new(),
        }
    }

    /// Returns those of these members that are on the roster.
    fn present(&self, members: &[Member]) -> BTreeSet<NodeId> {
        let nodes = members.iter().map(|member| member.node);
        nodes.filter(|node| self.has(*node)).collect()
    }

    /// Returns those of these members whose masked parts are in no sum, since too few of their group are there. Nobody needs them.
    pub fn left_out(&self, members: &[Member]) -> BTreeSet<NodeId> {
        let mut left_out = self.present(members);
        let summed = self.summed(members);
        left_out.retain(|node| !summed.contains(node));
        left_out
    }

    /// Returns the survivors among these members. `None` if nobody is on the roster: then nothing is added up.
    ///
    /// # Errors
    /// Says why they are too few.
    pub fn survivors(&self, members: &[Member]) -> Option<Result<Survivors, String>> {
        let roster = self.roster()?;
        let present = self.present(members);
        if present.is_empty() {
            return None;
        }
        let summed = roster.countable(present);
        if summed.len() < self.fewest() {
            let (left, fewest) = (summed.len(), self.fewest());
            return Some(Err(format!(
                "a sum of {left} members, where {fewest} must be in it"
            )));
        }
        let survivors = Survivors::new(roster, summed);
        Some(survivors.map_err(|fault| fault.to_string()))
    }

    /// Says what is false in a word about these survivors. It is signed, so it is a proof.
    pub fn falsehood(
        &self,
        survivors: &Survivors,
        author: NodeId,
        word: &Unmask,
    ) -> Option<String> {
        let roster = self.roster()?;
        match Unmasking::new(roster, survivors).hear(author, word) {
            // Who is not on the roster has no masks to take off, and others' words may be about other survivors.
            Ok(()) | Err(UnmaskFault::Stranger | UnmaskFault::OtherSurvivors) => None,
            Err(fault) => Some(fault.to_string()),
        }
    }

    /// Leaves out words that are false. They name their authors as liars, and the others may do without them.
    pub fn true_words<'a>(
        &self,
        survivors: &Survivors,
        mut words: Vec<(NodeId, &'a Unmask)>,
    ) -> Vec<(NodeId, &'a Unmask)> {
        if let Some(roster) = self.roster() {
            let mut unmasking = Unmasking::new(roster, survivors);
            words.retain(|(author, word)| unmasking.hear(*author, word).is_ok());
        }
        words
    }

    /// Returns a member that lied about its secret, by these true words.
    pub fn liar(&self, survivors: &Survivors, words: &[(NodeId, &Unmask)]) -> Option<NodeId> {
        let mut unmasking = Unmasking::new(self.roster()?, survivors);
        for (author, word) in words {
            unmasking.hear(*author, word).ok()?;
        }
        unmasking.liar()
    }

    /// Tries to take the masks off the survivors' sum by these words, or off that of a group at least.
    ///
    /// # Errors
    /// Names a member whose masks would stay, or whose word is false.
    pub fn opens(
        &self,
        survivors: &Survivors,
        words: &[(NodeId, &Unmask)],
    ) -> Result<(), NotOpened> {
        let roster = self.roster().ok_or(NotOpened::Nobody)?;
        let mut unmasking = Unmasking::new(roster, survivors);
        for (author, word) in words {
            let heard = unmasking.hear(*author, word);
            heard.map_err(|fault| NotOpened::Word {
                node: *author,
                fault,
            })?;
        }
        unmasking.open().map(|_| ()).map_err(NotOpened::Still)
    }
}

/// Tells why words do not take the masks off a sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotOpened {
    /// There is no roster.
    #[error("a sum of nobody")]
    Nobody,
    /// A word is false.
    #[error("{}: {fault}", node.letters())]
    Word {
        /// Whose.
        node: NodeId,
        /// What is false.
        fault: UnmaskFault,
    },
    /// A member's masks stay on.
    #[error(transparent)]
    Still(StillMasked),
}

/// What a node is to do for the masked sums of this round and of the next one, beside its training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MaskOrder {
    /// Who takes part in this round's sum. Who is not among them publishes the mean that it started from.
    pub sum: Sum,
    /// That mean; nothing where it is not known: then a node that is not on the roster publishes no part.
    pub parent: Option<fednode_core::BlobRef>,
    /// Who may take part in the next round's sum: they are to hold shares of this node's secrets. Nothing if it has none.
    pub holders: Option<Vec<NodeId>>,
}

/// A word that takes masks off, to be said once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UnmaskOrder {
    /// Who took part in the sum.
    pub sum: Sum,
    /// Whose vectors are added up.
    pub survivors: BTreeSet<NodeId>,
    /// Who agrees to that.
    pub agreed: BTreeSet<NodeId>,
}

/// How masked parts are averaged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Masked {
    /// They are only looked at: which of them can be added up.
    Look(Sum),
    /// They are added up, and these words take the masks off.
    Open {
        /// Who took part.
        sum: Sum,
        /// What members said, and who.
        words: Vec<(NodeId, Unmask)>,
    },
}

impl Masked {
    /// Returns who took part.
    pub fn sum(&self) -> &Sum {
        match self {
            Self::Look(sum) | Self::Open { sum, .. } => sum,
        }
    }
}

/// A word that takes masks off, as it was said.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Word<'a> {
    pub(crate) author: NodeId,
    pub(crate) advert: AdvertId,
    pub(crate) said: &'a Unmask,
}

#[cfg(test)]
mod tests {
    use fednode_core::{Advert, BlobRef, ClosingId, Local, Sequence, Timestamp, Total};
    use x25519_dalek::{PublicKey, StaticSecret};

    use super::*;
    use crate::follower::Follower;
    use crate::state::Head;
    use crate::view::View;

    fn node(n: u8) -> NodeId {
        NodeId::from_bytes([n; 32])
    }

    fn blob(n: u8) -> BlobRef {
        let id = BlobId::from_bytes([n; 32]);
        BlobRef { id, size: 1 }
    }

    fn member(n: u8) -> Member {
        Member {
            node: node(n),
            shared: blob(n),
            weight: 1.0,
            advert: AdvertId::of(&[n]),
        }
    }

    /// An update of a node with an offer for the next round.
    fn update(n: u8, nodes: u8, (federation, round): (FederationId, Round)) -> Accepted {
        let context = context(federation, round.next());
        let all: Vec<NodeId> = (1..=nodes).map(node).collect();
        let public = |holder: NodeId| {
            let secret = StaticSecret::from(*holder.as_bytes());
            Some(PublicKey::from(&secret))
        };
        let offer = turn::offer(node(n), &[n; 32], &context, &all, public).unwrap();
        let local = Local {
            shared: Some(blob(n)),
            offer: Some(Box::new(offer)),
            ..Local::new(blob(0).id, 0)
        };
        let advert = Advert {
            federation,
            author: node(n),
            sequence: Sequence {
                incarnation: 1,
                counter: 1,
            },
            round,
            issued_at: Timestamp(0),
            expires_at: Timestamp(0),
            body: Body::Local(local),
        };
        let id = AdvertId::of(&[n]);
        Accepted { id, advert }
    }

    /// The sum after a round that so many nodes have offers in.
    fn sum_after(spec: &FederationSpec, round: u32, nodes: u8) -> Sum {
        let sums = Sums::of(spec, &Schedule::of(spec)).unwrap();
        let round = Round(round);
        let updates = (1..=nodes).map(|n| update(n, nodes, (spec.id(), round)));
        let updates: Vec<Accepted> = updates.collect();
        let global = Global {
            members: (1..=nodes).map(member).collect(),
            mean: blob(0),
            parent: blob(0).id,
            previous: None,
            unmasked: Vec::new(),
            slices: Vec::new(),
        };
        let signed = |member: &Member| updates.iter().find(|update| update.id == member.advert);
        Sum::after(&sums, (round, &global), signed).unwrap()
    }

    fn masked(nodes: u32) -> FederationSpec {
        let mut spec = FederationSpec {
            rounds: 5,
            nodes,
            ..FederationSpec::default()
        };
        spec.privacy.sums = fednode_core::spec::Sums::Masked;
        spec
    }

    /// Liars may make offers when they like. If three of them could have a sum of their own, it would be what all adopt.
    #[test]
    fn offers_count_in_the_round_before_the_only_sum_and_in_no_other() {
        let mut spec = masked(8);
        let has_roster = |spec: &FederationSpec| {
            [1, 2, 3, 4].map(|round| sum_after(spec, round, 8).has(node(1)))
        };
        assert_eq!(has_roster(&spec), [true; 4], "each round has a sum");
        spec.exchange.total = Some(Total::of(8));
        assert_eq!(has_roster(&spec), [false, false, false, true]);
    }

    /// Over an end secrets are lost, so who makes an offer before it would be in a sum of its own.
    #[test]
    fn offers_before_an_end_count_nothing() {
        let mut spec = FederationSpec {
            endless: true,
            ..masked(8)
        };
        spec.rounds = 2;
        let later = spec.extended_by([], Round(3)).spec;
        let has_roster = [1, 2, 3, 4, 5].map(|round| sum_after(&later, round, 8).has(node(1)));
        assert_eq!(has_roster, [true, false, true, false, true]);
        spec.exchange.total = Some(Total::of(8));
        let later = spec.extended_by([], Round(3)).spec;
        let has_roster = [1, 2, 3, 4].map(|round| sum_after(&later, round, 8).has(node(1)));
        assert_eq!(has_roster, [true, false, false, false], "no second sum");
    }

    /// Six of eight must be in a sum whose noise they share, whoever proposes fewer, and whoever agrees.
    #[test]
    fn the_only_sum_has_as_many_members_as_its_noise_takes() {
        let mut spec = masked(8);
        let opens = |spec: &FederationSpec, n: u8| {
            let sum = sum_after(spec, 4, 8);
            let members: Vec<Member> = (1..=n).map(member).collect();
            sum.survivors(&members).unwrap().is_ok()
        };
        assert!(opens(&spec, 5), "more than half of the roster");
        spec.exchange.total = Some(Total::of(8));
        assert!(!opens(&spec, 5));
        assert!(opens(&spec, 6));
        assert!(sum_after(&spec, 4, 5).roster().is_none(), "too few offers");
        assert!(sum_after(&spec, 4, 6).roster().is_some());
    }

    /// After a restart the closing before is not known. In rounds that have no sum nothing is believed all the same.
    #[test]
    fn a_restarted_node_knows_that_nothing_is_added_up_before_the_last_round() {
        let mut spec = masked(8);
        spec.exchange.total = Some(Total::of(8));
        let sums = Sums::of(&spec, &Schedule::of(&spec));
        let follower = Follower::new(Head::initial(None), sums);
        let unknown = Some(ClosingId::from_bytes([9; 32]));
        let sum_of = |round| follower.sum_for(&View::new(1), unknown, Round(round));
        assert!(sum_of(4).unwrap().roster().is_none());
        assert!(sum_of(5).is_none(), "whose offers count is not known");
    }
}
