//! Support: which of two chains of closed rounds more nodes stand behind.
//!
//! Two parts of a federation that could not hear each other have closed rounds of their own. Afterwards all must go on from
//! one chain. Each node has one vote, which is its newest update: that says which closed round it follows. The vote is for
//! that round and all before it. Older updates are no votes. So nobody is led back with them, and a small part that was cut
//! off comes back to the large one, however many rounds it closed meanwhile.
//!
//! ```text
//!                ┌── b1 ◄── b2       two nodes follow b1, nobody follows b2 yet: 2 votes
//!   a1 ◄── a2 ◄──┤
//!                └── c1 ◄── c2       five follow c2, one follows c1: 6 votes, all go on from c2
//! ```
//!
//! This is LMD-GHOST, by which blockchains choose among branches (Sompolinsky and Zohar, 2015, section 4, with each voter's
//! latest message only). A chain is left for another one if that has most of all votes. It is also left for one with more
//! votes than the own one once everybody has voted, or has had time to. Until then two halves might change places.

use std::collections::{BTreeMap, BTreeSet};

use fednode_core::{ClosingId, Global};

use crate::chain::Judge;
use crate::follower::Announced;
use crate::quorum::Patience;
use crate::state::Head;
use crate::view::{Update, View};

/// Votes for two chains, beyond what they have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Votes {
    theirs: usize,
    ours: usize,
    /// Of all nodes that could vote.
    all: usize,
    /// For the closing that was compared, or one after it.
    beyond: usize,
}

/// What speaks for the chain of a closing that was announced, and what for the head's. It is put together once for all that is
/// asked of it.
pub(crate) struct Backing {
    fork: Fork,
    votes: Votes,
}

impl Backing {
    /// Tells whether most have gone on from the closing. They have looked, so nobody else must.
    pub(crate) fn is_vouched_for(&self) -> bool {
        2 * self.votes.beyond > self.votes.all
    }

    /// Tells whether at least half have gone on from the closing.
    pub(crate) fn have_half_gone_on(&self) -> bool {
        let Votes { beyond, all, .. } = self.votes;
        beyond > 0 && 2 * beyond >= all
    }
}

impl Judge<'_> {
    /// Counts the votes for the chain of a closing, beyond what it has in common with the head.
    pub(crate) fn support(&self, said: Announced<'_>) -> usize {
        self.backing(said).votes.theirs
    }

    /// Tells whether most have gone on from a closing.
    pub(crate) fn is_vouched_for(&self, said: Announced<'_>) -> bool {
        self.backing(said).is_vouched_for()
    }

    /// Tells whether another chain may yet get more votes: somebody follows it, or it has closed the newest round and not
    /// everybody has said what was trained from.
    pub(crate) fn may_gain(&self, said: Announced<'_>, backing: &Backing) -> bool {
        let Votes {
            theirs, ours, all, ..
        } = backing.votes;
        let is_newest = self.head.closing.is_some() && said.round >= self.head.round;
        theirs > 0 || is_newest && ours < all
    }

    /// Tells whether the head is to be left for a closing of another chain, or of a later round of its own.
    pub(crate) fn is_stronger(&self, said: Announced<'_>, backing: &Backing) -> bool {
        let Backing { fork, votes } = backing;
        // A true closing can be made of old updates, too. Without a vote for it nobody is led away.
        if votes.theirs == 0 {
            return false;
        }
        let most = |number: usize, of: usize| 2 * number > of;
        // Not everything that follows a good chain is good: most of those behind it have gone on from it, or it counts a
        // quorum of the closing before it, and most of all.
        if !most(votes.beyond, votes.theirs) && !self.is_large(said, votes.all) {
            return false;
        }
        let cast = votes.theirs + votes.ours;
        let is_time = self.patience() >= Patience::GraceOver && most(cast, votes.all);
        let everybody_could = cast >= votes.all || is_time;
        // Between equals a name decides that stays as it is while the chains grow, so that all decide alike.
        let is_ahead = (votes.theirs, fork.ours.last()) > (votes.ours, fork.theirs.last());
        most(votes.theirs, votes.all) || everybody_could && is_ahead
    }

    /// Tells whether a closing counts a quorum of the closing before it, and most of all that could vote.
    fn is_large(&self, said: Announced<'_>, all: usize) -> bool {
        let members = said.global.members.iter();
        let counted = members.filter(|member| !self.view.is_banned(member.node));
        let counted = counted.count();
        let before = said.global.previous.and_then(|id| self.view.closing(id));
        // The quorum of a closing that was not heard is not known. Then most of all must do.
        let quorum = before.map_or(0, |before| self.spec.round.quorum_of(before.members.len()));
        2 * counted > all && counted >= quorum
    }

    /// Counts what speaks for the chain of a closing.
    pub(crate) fn backing(&self, said: Announced<'_>) -> Backing {
        let fork = Fork::of(self.view, self.head, said.id, said.global);
        let votes = self.votes(&fork, said);
        Backing { fork, votes }
    }

    fn votes(&self, fork: &Fork, said: Announced<'_>) -> Votes {
        // Before anything was followed, whoever is counted stands behind a closing, too: a newcomer has heard little else.
        let counts_members = self.head.closing.is_none() && said.global.previous.is_some();
        let mut sides = Sides::new(self.view, fork, said.id);
        let mut votes = Votes {
            theirs: 0,
            ours: 0,
            all: 0,
            beyond: 0,
        };
        for update in self.view.nodes().votes() {
            let side = match update.local.follows {
                Some(id) => sides.of(id),
                None => Side::Neither,
            };
            votes.all += 1;
            match side {
                Side::Beyond => (votes.beyond, votes.theirs) = (votes.beyond + 1, votes.theirs + 1),
                Side::Theirs => votes.theirs += 1,
                Side::Ours => votes.ours += 1,
                Side::Neither if counts_members => {
                    votes.theirs += usize::from(counts(said.global, &update));
                }
                Side::Neither => {}
            }
        }
        // Who is here and has said nothing yet could vote as well.
        votes.all = votes.all.max(self.view.company().neighbours().len());
        votes
    }
}

/// Where a chain leaves that of the head. All lists begin with the newest.
pub(crate) struct Fork {
    /// What only the other chain has.
    theirs: Vec<ClosingId>,
    /// What only the head's chain has.
    ours: Vec<ClosingId>,
    /// What both have.
    common: Vec<ClosingId>,
}

impl Fork {
    /// Compares the chain of a closing with the head's, as far as both are known.
    pub(crate) fn of(view: &View, head: &Head, id: ClosingId, global: &Global) -> Self {
        let mut ours: Vec<ClosingId> = head.chain().collect();
        let (mut theirs, mut common) = (vec![id], Vec::new());
        // Each names the one before it by its hash, so they go in no circle.
        let before = std::iter::successors(global.previous, |id| view.closing(*id)?.previous);
        for id in before {
            if let Some(place) = ours.iter().position(|own| *own == id) {
                common = ours.split_off(place);
                break;
            }
            theirs.push(id);
        }
        Self {
            theirs,
            ours,
            common,
        }
    }

    /// Returns the closings before the one that was compared.
    pub(crate) fn ancestors(self) -> Vec<ClosingId> {
        let before = self.theirs.into_iter().skip(1);
        before.chain(self.common).collect()
    }
}

/// Whose chain a closed round is part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    /// The other one's, at the closing that is compared or after it.
    Beyond,
    Theirs,
    Ours,
    /// It is common to both, or of a third chain, or not known.
    Neither,
}

/// Looks up the sides of closed rounds; most votes name the same few.
struct Sides<'a> {
    view: &'a View,
    common: &'a [ClosingId],
    known: BTreeMap<ClosingId, Side>,
    /// The one that was asked for before: votes of one round name one closing mostly.
    last: (ClosingId, Side),
}

impl<'a> Sides<'a> {
    fn new(view: &'a View, fork: &'a Fork, compared: ClosingId) -> Self {
        let theirs = fork.theirs.iter().map(|id| (*id, Side::Theirs));
        let ours = fork.ours.iter().map(|id| (*id, Side::Ours));
        let mut known: BTreeMap<ClosingId, Side> = theirs.chain(ours).collect();
        known.insert(compared, Side::Beyond);
        Self {
            view,
            common: &fork.common,
            known,
            last: (compared, Side::Beyond),
        }
    }

    /// Returns the side of a closing: that of the first one before it whose side is known.
    fn of(&mut self, id: ClosingId) -> Side {
        if self.last.0 != id {
            self.last = (id, self.found(id));
        }
        self.last.1
    }

    fn found(&mut self, id: ClosingId) -> Side {
        let (mut passed, mut at) = (BTreeSet::new(), Some(id));
        let side = loop {
            let Some(id) = at else {
                break Side::Neither;
            };
            if let Some(side) = self.known.get(&id) {
                break *side;
            }
            passed.insert(id);
            if self.common.contains(&id) {
                break Side::Neither;
            }
            at = self.view.closing(id).and_then(|global| global.previous);
        };
        self.known.extend(passed.into_iter().map(|id| (id, side)));
        side
    }
}

/// Tells whether a closing counts a node with this update.
fn counts(global: &Global, update: &Update<'_>) -> bool {
    let place = global
        .members
        .binary_search_by_key(&update.node, |member| member.node);
    place.is_ok_and(|place| global.members[place].advert == update.id)
}
