//! Evidence: adverts that closed rounds name and that were not heard, asked for by name.
//!
//! Gossip loses adverts, a newcomer hears only the last ones, and a liar signs two under one number and tells each half of
//! the federation another. A closing names the adverts that it counts, so whoever lacks one can ask for just that one.
//!
//! The room is shared: if there is none left, whoever named most gives way to whoever named less. So a liar whose
//! closings name adverts that nobody signed keeps no one else from being asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fednode_core::{Accepted, AdvertId, MAX_MEMBERS, NodeId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::encoding::{as_list, shared_option};
use crate::event::Lacking;

/// Most adverts that are asked for or held at a time: two closings of which nothing was heard.
const MAX_ADVERTS: usize = 2 * MAX_MEMBERS;

/// An advert that was lacking.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Named {
    /// Whose closing named it first.
    named_by: NodeId,
    /// Since when it is lacking, or when it was asked for last.
    asked: Timestamp,
    /// The advert, if it came.
    #[serde(with = "shared_option")]
    came: Option<Arc<Accepted>>,
}

/// Adverts that are lacking, and those of them that came.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Evidence {
    #[serde(with = "as_list")]
    named: BTreeMap<AdvertId, Named>,
}

impl Evidence {
    /// Returns the advert of this name, if it was lacking and came.
    pub(super) fn get(&self, id: AdvertId) -> Option<&Accepted> {
        self.named.get(&id)?.came.as_deref()
    }

    /// Keeps an advert that was lacking; tells whether it was.
    pub(super) fn take_in(&mut self, advert: &Arc<Accepted>) -> bool {
        let named = self.named.get_mut(&advert.id);
        // A name is a hash of the advert, so a second one of this name is the same.
        let Some(named) = named.filter(|named| named.came.is_none()) else {
            return false;
        };
        named.came = Some(Arc::clone(advert));
        true
    }

    /// Returns those of `lacking` that are to be asked for now: they are lacking since `since`, or were asked for then.
    pub(super) fn take_due(
        &mut self,
        mut lacking: Vec<Lacking>,
        now: Timestamp,
        since: Timestamp,
    ) -> Vec<Lacking> {
        let mut shares: BTreeMap<NodeId, usize> = BTreeMap::new();
        for named in self.named.values() {
            *shares.entry(named.named_by).or_default() += 1;
        }
        lacking.retain(|lacking| match self.named.get_mut(&lacking.advert) {
            Some(named) if named.asked > since => false,
            Some(named) => {
                named.asked = now;
                true
            }
            // Not at once: gossip may be bringing it.
            None => {
                self.begin(lacking, now, &mut shares);
                false
            }
        });
        lacking
    }

    /// Begins to wait for an advert, if there is room for another one of whoever named it.
    fn begin(&mut self, lacking: &Lacking, now: Timestamp, shares: &mut BTreeMap<NodeId, usize>) {
        let named_by = lacking.named_by;
        if self.named.len() >= MAX_ADVERTS {
            let share = shares.get(&named_by).copied().unwrap_or_default();
            let greediest = shares.iter().max_by_key(|(_, share)| **share);
            // Only to whoever still has less afterwards: two with equal shares would drive each other out for ever.
            let Some((greediest, _)) = greediest.filter(|(_, most)| **most > share + 1) else {
                return;
            };
            self.make_room(*greediest, shares);
        }
        *shares.entry(named_by).or_default() += 1;
        let named = Named {
            named_by,
            asked: now,
            came: None,
        };
        self.named.insert(lacking.advert, named);
    }

    /// Forgets the latest advert that a node named, one that did not come if there is one.
    fn make_room(&mut self, of: NodeId, shares: &mut BTreeMap<NodeId, usize>) {
        let its = self.named.iter().filter(|(_, named)| named.named_by == of);
        // What came was really signed. What did not come may be invented.
        let latest = its.max_by_key(|(_, named)| (named.came.is_none(), named.asked));
        let latest = latest.map(|(id, _)| *id);
        if latest.is_some_and(|id| self.named.remove(&id).is_some())
            && let Some(share) = shares.get_mut(&of)
        {
            *share -= 1;
        }
    }

    /// Forgets what no closing names any more.
    pub(super) fn keep(&mut self, named: &BTreeSet<AdvertId>) {
        self.named.retain(|id, _| named.contains(id));
    }

    /// Tells whether so much is held that it is time to look what no closing names any more. That takes a look at all closings, and
    /// liars announce many.
    pub(super) fn is_crowded(&self) -> bool {
        self.named.len() > MAX_MEMBERS
    }

    pub(super) fn is_empty(&self) -> bool {
        self.named.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An advert that a node's closing names, the `n`-th of its.
    fn lacking(named_by: u8, n: u16) -> Lacking {
        let [high, low] = n.to_be_bytes();
        Lacking {
            advert: AdvertId::of(&[named_by, high, low]),
            author: NodeId::from_bytes([100; 32]),
            named_by: NodeId::from_bytes([named_by; 32]),
        }
    }

    /// What is asked for a moment after all of this was found lacking.
    fn asked(evidence: &mut Evidence, lacking: &[Lacking], at: u64) -> usize {
        let mut look =
            |now| evidence.take_due(lacking.to_vec(), Timestamp(now), Timestamp(now - 50));
        look(at);
        look(at + 50).len()
    }

    #[test]
    fn what_one_closer_invents_keeps_nobody_else_from_being_asked_for() {
        let mut evidence = Evidence::default();
        let invented: Vec<Lacking> = (0..MAX_ADVERTS as u16).map(|n| lacking(9, n)).collect();
        assert_eq!(asked(&mut evidence, &invented, 100), MAX_ADVERTS);
        let signed: Vec<Lacking> = (0..40).map(|n| lacking(1, n)).collect();
        assert_eq!(asked(&mut evidence, &signed, 200), 40);
        assert_eq!(evidence.named.len(), MAX_ADVERTS);
        asked(&mut evidence, &invented, 300);
        assert_eq!(asked(&mut evidence, &signed, 400), 40, "named once more");
    }

    #[test]
    fn two_that_name_much_share_the_room() {
        let mut evidence = Evidence::default();
        let all = |by| (0..MAX_ADVERTS as u16).map(move |n| lacking(by, n));
        let both: Vec<Lacking> = all(1).chain(all(2)).collect();
        for at in [100, 200, 300] {
            assert_eq!(asked(&mut evidence, &both, at), MAX_ADVERTS);
            let its = |by| move |named: &&Named| named.named_by == NodeId::from_bytes([by; 32]);
            let named = || evidence.named.values();
            let shares = (
                named().filter(its(1)).count(),
                named().filter(its(2)).count(),
            );
            assert_eq!(shares, (MAX_MEMBERS, MAX_MEMBERS));
        }
    }
}
