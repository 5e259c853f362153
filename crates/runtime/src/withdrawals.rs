//! What members take back, and the word of the others that they have deleted it.
//!
//! ```text
//!  Withdraw heard ─► open ─► deleted ─► count what is left ─► `Removed` said ─► nothing left: done
//!                     ▲                                             │
//!                     └──── next round: what is free by now ◄───────┘ a closed round counts some of it
//! ```
//!
//! Whoever takes something back hears these words before it goes. Everybody keeps them, and `fednode audit` shows them. A
//! member can lie: its word makes it liable, and proves nothing of its disk.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fednode_core::{
    Accepted, AdvertId, BlobId, BlobStore, Body, MAX_REMOVALS, NodeId, Removal, Removed, Round,
    Sequence, Timestamp,
};
use tracing::info;

use crate::answers::Mixed;
use crate::driver::Driver;
use crate::machine::Machine;
use crate::merging::MixedBefore;

/// Withdrawals that are open at once. Beyond it the oldest are answered no more.
const MOST_OPEN: usize = MAX_REMOVALS;
/// Withdrawals of one owner that are answered. Whoever takes back without end must not drive out the answers to others.
const MOST_OF_ONE: usize = 8;
/// Owners that are remembered.
const MOST_OWNERS: usize = 1024;
/// Answers in one round, of the few adverts that an author may publish about it.
const MOST_ANSWERS: u8 = 3;
/// How often is looked for what is free by now while a round lasts.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// The withdrawals of others that are not done with, and what others say of the own ones.
#[derive(Debug, Default)]
pub(crate) struct Withdrawals {
    open: Vec<Open>,
    /// How many blobs were left of a withdrawal when this member last said so.
    said: BTreeMap<AdvertId, u32>,
    /// In which round this member answered last, and how often.
    answered: (Round, u8),
    /// Whether an answer is on its way out.
    is_answering: bool,
    /// How many withdrawals of each owner are answered.
    answered_of: BTreeMap<NodeId, usize>,
    /// When what is free by now was deleted last.
    looked_at: Option<(Round, Timestamp)>,
    /// Deletions under way.
    deleting: usize,
    /// Who took something back and has published nothing since, up to a bound.
    owners: BTreeMap<NodeId, Sequence>,
    /// Whose parts were mixed in last.
    mixed: BTreeSet<NodeId>,
    /// The adverts in which this member took something back.
    own: BTreeSet<AdvertId>,
    /// Who answered them, and how many blobs each has left of it.
    by_others: BTreeMap<NodeId, BTreeMap<AdvertId, u32>>,
}

/// A withdrawal that is not done with.
#[derive(Debug)]
struct Open {
    owner: NodeId,
    withdrawn: AdvertId,
    blobs: Vec<BlobId>,
}

impl Withdrawals {
    /// Takes note of an advert, if it is about withdrawals. If somebody takes something back for the first time, returns the number
    /// of its advert: what it published before is to be looked up.
    pub(crate) fn heard(&mut self, me: NodeId, advert: &Accepted) -> Option<Sequence> {
        let known = self.owners.len();
        self.note(me, advert);
        (self.owners.len() > known).then_some(advert.sequence)
    }

    fn note(&mut self, me: NodeId, advert: &Accepted) {
        match &advert.body {
            Body::Withdraw(_) if advert.author == me => {
                self.own.insert(advert.id);
            }
            Body::Withdraw(withdraw) => {
                if self.owners.len() < MOST_OWNERS {
                    self.owners.insert(advert.author, advert.sequence);
                }
                self.open(Open {
                    owner: advert.author,
                    withdrawn: advert.id,
                    blobs: withdraw.blobs.clone(),
                });
            }
            // Whoever publishes again is a peer like any other.
            Body::Local(_) => {
                let since = self.owners.get(&advert.author);
                if since.is_some_and(|since| advert.sequence > *since) {
                    self.owners.remove(&advert.author);
                }
            }
            Body::Removed(removed) if advert.author == me => {
                self.is_answering = false;
                for removal in &removed.removals {
                    self.note_said(removal);
                }
            }
            Body::Removed(removed) => {
                for removal in &removed.removals {
                    if self.own.contains(&removal.withdrawn) {
                        let known = self.by_others.entry(advert.author).or_default();
                        known.insert(removal.withdrawn, removal.kept);
                    }
                }
            }
            _ => {}
        }
    }

    fn open(&mut self, new: Open) {
        let is_known = |open: &Open| open.withdrawn == new.withdrawn;
        if self.said.get(&new.withdrawn) == Some(&0) || self.open.iter().any(is_known) {
            return;
        }
        let is_new = !self.answered_of.contains_key(&new.owner);
        if is_new && self.answered_of.len() >= MOST_OWNERS {
            return;
        }
        let of_owner = self.answered_of.entry(new.owner).or_default();
        if *of_owner >= MOST_OF_ONE {
            return;
        }
        *of_owner += 1;
        if self.open.len() >= MOST_OPEN {
            let dropped = self.open.remove(0);
            self.said.remove(&dropped.withdrawn);
        }
        // What was deleted in this round was deleted before it was known.
        self.looked_at = None;
        self.open.push(new);
    }

    fn note_said(&mut self, removal: &Removal) {
        self.said.insert(removal.withdrawn, removal.kept);
        if removal.kept == 0 {
            self.open.retain(|open| open.withdrawn != removal.withdrawn);
        }
        // Whose withdrawals are done with need not be remembered for ever.
        while self.said.len() > 2 * MOST_OPEN {
            let is_open = |id: &AdvertId| self.open.iter().any(|open| open.withdrawn == *id);
            let Some(done) = self.said.keys().find(|id| !is_open(id)).copied() else {
                return;
            };
            self.said.remove(&done);
        }
    }

    /// Remembers whose parts are mixed in now.
    pub(crate) fn merged(&mut self, merge: &Mixed) {
        if merge.forgets {
            self.mixed.clear();
        }
        self.mix(merge.mixed.iter().map(|from| from.node));
    }

    /// Remembers whose parts are mixed in; if none came, those from before stay.
    pub(crate) fn mix(&mut self, from: impl Iterator<Item = NodeId>) {
        let from: BTreeSet<NodeId> = from.collect();
        if !from.is_empty() {
            self.mixed = from;
        }
    }

    /// Returns what becomes of the parts that were mixed in before, if no others come. They cannot be told apart any more, so one
    /// that was taken back takes the others along.
    pub(crate) fn mixed_before(&self) -> MixedBefore {
        let is_gone = |node: &NodeId| self.owners.contains_key(node);
        if self.mixed.iter().any(is_gone) {
            MixedBefore::IsTakenBack
        } else {
            MixedBefore::Stays
        }
    }

    /// Deletions begin.
    pub(crate) fn deleting(&mut self) {
        self.deleting += 1;
    }

    /// Deletions have ended.
    pub(crate) fn deleted(&mut self) {
        self.deleting = self.deleting.saturating_sub(1);
    }

    /// Tells whether it is time to delete what is free by now, while something is left.
    fn looks_again(&mut self, round: Round, now: Timestamp) -> bool {
        let is_fresh = |(looked, at): (Round, Timestamp)| looked == round && now < at + LOOK_AGAIN;
        if self.open.is_empty() || self.looked_at.is_some_and(is_fresh) {
            return false;
        }
        self.looked_at = Some((round, now));
        true
    }

    /// An advert of this member was not published.
    pub(crate) fn not_published(&mut self) {
        self.is_answering = false;
    }

    /// Returns what is to be said of the withdrawals of others, if anything has changed.
    fn answer(&mut self, round: Round, is_held: impl Fn(&BlobId) -> bool) -> Option<Removed> {
        if self.answered.0 != round {
            // What was to be published in an earlier round was, or never will be.
            (self.answered, self.is_answering) = ((round, 0), false);
        }
        if self.deleting > 0 || self.is_answering || self.answered.1 >= MOST_ANSWERS {
            return None;
        }
        let removal = |open: &Open| Removal {
            owner: open.owner,
            withdrawn: open.withdrawn,
            kept: open.blobs.iter().filter(|blob| is_held(blob)).count() as u32,
        };
        let removals = self.open.iter().map(removal);
        let news = |removal: &Removal| self.said.get(&removal.withdrawn) != Some(&removal.kept);
        let removals: Vec<Removal> = removals.filter(news).collect();
        if removals.is_empty() {
            return None;
        }
        self.answered.1 += 1;
        self.is_answering = true;
        Some(Removed { removals })
    }

    /// Tells whether one of these has not answered a withdrawal of this member.
    pub(crate) fn lacks_an_answer(&self, mut of: impl Iterator<Item = NodeId>) -> bool {
        let has_answered = |node: NodeId| {
            let known = self.by_others.get(&node);
            known.is_some_and(|known| self.own.iter().all(|id| known.contains_key(id)))
        };
        !self.own.is_empty() && of.any(|node| !has_answered(node))
    }

    /// Says how many have answered, and what is left, if this member took something back.
    pub(crate) fn summary(&self) -> Option<String> {
        if self.own.is_empty() {
            return None;
        }
        let is_whole = |known: &&BTreeMap<AdvertId, u32>| known.len() == self.own.len();
        let answers: Vec<_> = self.by_others.values().filter(is_whole).collect();
        let keeps = |known: &&&BTreeMap<AdvertId, u32>| known.values().any(|kept| *kept > 0);
        let (n, keepers) = (answers.len(), answers.iter().filter(keeps).count());
        Some(format!(
            "of what was taken back: members that have answered: {n}, of them with all of it deleted: {}, with parts that a \
             closed round counts or others published, too: {keepers}",
            n - keepers
        ))
    }
}

impl<M: Machine> Driver<'_, M> {
    /// Takes note of an advert, if it is about withdrawals.
    pub(crate) fn hear_of_withdrawals(&mut self, advert: &Accepted) {
        if let Some(before) = self.withdrawals.heard(self.base.me, advert) {
            self.withdrawals.deleting();
            self.base.look_up_published(advert.author, before);
        }
    }

    /// Deletes what was taken back and is free by now, or says what is left of it.
    pub(crate) fn attend_withdrawals(&mut self) {
        let (now, round) = (self.base.now(), self.machine.round());
        if self.withdrawals.looks_again(round, now) {
            let free = self.machine.taken_back();
            self.delete_held(free);
        }
        self.answer_withdrawals();
    }

    /// Deletes blobs that their owners took back.
    pub(crate) fn delete_withdrawn(&mut self, blobs: Vec<BlobId>) {
        self.withdrawals.deleting();
        self.base.forget(blobs);
    }

    /// Deletes what is still here of all that an owner published before its withdrawal, unless somebody needs it.
    pub(crate) fn on_published_before(&mut self, owner: NodeId, blobs: &[BlobId]) {
        self.withdrawals.deleted();
        let free = self.machine.free_of(owner, blobs);
        self.delete_held(free);
    }

    /// Deletes those of these blobs that are held and that others do not want of this member.
    fn delete_held(&mut self, mut blobs: Vec<BlobId>) {
        let keep = self.kept_blobs();
        blobs.retain(|blob| !keep.contains(blob) && self.base.blobs.held(blob).is_some());
        if !blobs.is_empty() {
            self.delete_withdrawn(blobs);
        }
    }

    /// Says what is left of the withdrawals of others. Those of one second are answered at once.
    fn answer_withdrawals(&mut self) {
        let round = self.machine.status(self.base.now()).round;
        let blobs = &self.base.blobs;
        let removed = self
            .withdrawals
            .answer(round, |blob| blobs.held(blob).is_some());
        if let Some(removed) = removed {
            for Removal { owner, kept, .. } in &removed.removals {
                info!(owner = %owner.short(), kept, "what was taken back is deleted");
            }
            let body = Body::Removed(removed);
            self.publisher.publish(&mut self.base, round, body);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fednode_core::{Advert, FederationId, Local, Withdraw};

    const ME: NodeId = NodeId::from_bytes([1; 32]);
    const OWNER: NodeId = NodeId::from_bytes([2; 32]);

    fn said(author: NodeId, number: u64, body: Body) -> Accepted {
        let text = format!("{author} {number}");
        let advert = Advert {
            federation: FederationId::from_bytes([0; 32]),
            author,
            sequence: Sequence {
                incarnation: 1,
                counter: number,
            },
            round: Round(1),
            issued_at: Timestamp(1),
            expires_at: Timestamp(2),
            body,
        };
        let id = AdvertId::of(text.as_bytes());
        Accepted { id, advert }
    }

    fn blob(n: u32) -> BlobId {
        BlobId::of(&n.to_be_bytes())
    }

    fn withdrawal(author: NodeId, number: u64, blobs: &[u32]) -> Accepted {
        let blobs = blobs.iter().copied().map(blob).collect();
        said(author, number, Body::Withdraw(Withdraw { blobs }))
    }

    fn removed(author: NodeId, of: &Accepted, kept: u32) -> Accepted {
        let removals = vec![Removal {
            owner: of.author,
            withdrawn: of.id,
            kept,
        }];
        said(author, 9, Body::Removed(Removed { removals }))
    }

    /// What is left of each withdrawal, as it is said in a round in which these blobs are held.
    fn answer(withdrawals: &mut Withdrawals, round: u32, held: &[u32]) -> Option<Vec<u32>> {
        let held: Vec<BlobId> = held.iter().copied().map(blob).collect();
        let answer = withdrawals.answer(Round(round), |blob| held.contains(blob))?;
        // It is published, and comes back to whoever said it.
        withdrawals.heard(ME, &said(ME, 0, Body::Removed(answer.clone())));
        Some(answer.removals.iter().map(|one| one.kept).collect())
    }

    #[test]
    fn what_is_left_is_said_when_it_changes_and_not_while_it_is_deleted() {
        let mut withdrawals = Withdrawals::default();
        withdrawals.heard(ME, &withdrawal(OWNER, 1, &[1, 2, 3]));
        withdrawals.deleting();
        assert_eq!(answer(&mut withdrawals, 1, &[1, 2, 3]), None);
        withdrawals.deleted();
        assert_eq!(answer(&mut withdrawals, 1, &[1]), Some(vec![1]));
        assert_eq!(answer(&mut withdrawals, 2, &[1]), None, "it is said");
        assert_eq!(answer(&mut withdrawals, 3, &[]), Some(vec![0]));
        withdrawals.heard(ME, &withdrawal(OWNER, 1, &[1, 2, 3]));
        assert_eq!(answer(&mut withdrawals, 4, &[1]), None, "it is done with");
    }

    #[test]
    fn an_answer_that_was_not_published_is_said_again() {
        let mut withdrawals = Withdrawals::default();
        withdrawals.heard(ME, &withdrawal(OWNER, 1, &[1]));
        let nothing = |_: &BlobId| false;
        assert!(withdrawals.answer(Round(1), nothing).is_some());
        assert_eq!(
            withdrawals.answer(Round(1), nothing),
            None,
            "it is on its way"
        );
        withdrawals.not_published();
        assert!(withdrawals.answer(Round(1), nothing).is_some());
        assert!(
            withdrawals.answer(Round(2), nothing).is_some(),
            "it was lost"
        );
    }

    #[test]
    fn what_is_free_by_now_is_looked_for_in_each_round_and_now_and_then_in_a_long_one() {
        let mut withdrawals = Withdrawals::default();
        let now = Timestamp(1_000_000);
        assert!(!withdrawals.looks_again(Round(1), now), "nothing is open");
        withdrawals.heard(ME, &withdrawal(OWNER, 1, &[1]));
        assert!(withdrawals.looks_again(Round(1), now));
        assert!(!withdrawals.looks_again(Round(1), now));
        assert!(withdrawals.looks_again(Round(2), now));
        assert!(withdrawals.looks_again(Round(2), now + LOOK_AGAIN));
    }

    #[test]
    fn a_round_has_few_answers_and_what_comes_later_waits_for_the_next() {
        let mut withdrawals = Withdrawals::default();
        for number in 0..u64::from(MOST_ANSWERS) + 2 {
            withdrawals.heard(ME, &withdrawal(OWNER, number, &[1]));
            let answered = answer(&mut withdrawals, 1, &[]).is_some();
            assert_eq!(answered, number < u64::from(MOST_ANSWERS));
        }
        assert_eq!(answer(&mut withdrawals, 2, &[]), Some(vec![0, 0]));
    }

    #[test]
    fn a_node_that_comes_back_says_nothing_again() {
        let mut withdrawals = Withdrawals::default();
        let taken = withdrawal(OWNER, 1, &[1]);
        withdrawals.heard(ME, &removed(ME, &taken, 0));
        withdrawals.heard(ME, &taken);
        assert_eq!(answer(&mut withdrawals, 1, &[]), None);
    }

    #[test]
    fn who_takes_back_without_end_is_answered_a_few_times_only() {
        let mut withdrawals = Withdrawals::default();
        withdrawals.heard(ME, &withdrawal(OWNER, 0, &[1]));
        let other = NodeId::from_bytes([3; 32]);
        for number in 0..1000 {
            withdrawals.heard(ME, &withdrawal(other, number, &[2]));
        }
        let left = answer(&mut withdrawals, 1, &[1]).unwrap();
        assert_eq!(left.len(), 1 + MOST_OF_ONE);
        assert_eq!(left[0], 1, "the honest owner's is still the first");
    }

    #[test]
    fn what_was_mixed_in_is_forgotten_once_an_owner_took_its_part_back() {
        let [first, second] = [OWNER, NodeId::from_bytes([3; 32])];
        let update = |number| {
            let local = Local::new(blob(0), 1);
            said(first, number, Body::Local(local))
        };
        let mut withdrawals = Withdrawals::default();
        assert_eq!(withdrawals.mixed_before(), MixedBefore::Stays);
        withdrawals.mix([first, second].into_iter());
        withdrawals.heard(ME, &withdrawal(NodeId::from_bytes([7; 32]), 2, &[1]));
        assert_eq!(withdrawals.mixed_before(), MixedBefore::Stays);
        withdrawals.heard(ME, &withdrawal(first, 2, &[1]));
        // A round without parts of others: the classifier is as it was.
        withdrawals.mix(std::iter::empty());
        // It was said before the withdrawal, and came later.
        withdrawals.heard(ME, &update(1));
        assert_eq!(withdrawals.mixed_before(), MixedBefore::IsTakenBack);
        withdrawals.heard(ME, &update(3));
        assert_eq!(withdrawals.mixed_before(), MixedBefore::Stays, "it is back");
    }

    #[test]
    fn an_owner_waits_for_everybody_who_is_there() {
        let [first, second] = [4, 5].map(|byte| NodeId::from_bytes([byte; 32]));
        let mut withdrawals = Withdrawals::default();
        let lacks = |withdrawals: &Withdrawals, of: &[NodeId]| {
            withdrawals.lacks_an_answer(of.iter().copied())
        };
        assert!(!lacks(&withdrawals, &[first]), "nothing was taken back");
        assert_eq!(withdrawals.summary(), None);
        let taken = withdrawal(ME, 1, &[1]);
        withdrawals.heard(ME, &taken);
        assert!(lacks(&withdrawals, &[first, second]));
        withdrawals.heard(ME, &removed(first, &taken, 0));
        withdrawals.heard(ME, &removed(second, &withdrawal(OWNER, 1, &[1]), 0));
        assert!(lacks(&withdrawals, &[first, second]), "it answers another");
        withdrawals.heard(ME, &removed(second, &taken, 2));
        assert!(!lacks(&withdrawals, &[first, second]));
        let summary = withdrawals.summary().unwrap();
        for words in ["answered: 2,", "deleted: 1,", "too: 1"] {
            assert!(summary.contains(words), "{summary}");
        }
    }
}
