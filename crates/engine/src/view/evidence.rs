//! Evidence: adverts that closed rounds name and that were not heard, asked for by name.
//!
//! Gossip loses adverts, a newcomer hears only the last ones, and a liar signs two under one number and tells each half of
//! the federation another. A closing names the adverts that it counts, so whoever lacks one can ask for just that one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fednode_core::{Accepted, AdvertId, MAX_MEMBERS, Timestamp};
use serde::{Deserialize, Serialize};

use crate::encoding::{as_list, shared_list};

/// Most adverts that are asked for or held at a time: two closings of which nothing was heard.
const MAX_ADVERTS: usize = 2 * MAX_MEMBERS;

/// Adverts that are lacking, and those of them that came.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Evidence {
    /// Since when each is lacking, or when it was asked for last.
    #[serde(with = "as_list")]
    asked: BTreeMap<AdvertId, Timestamp>,
    #[serde(with = "shared_list")]
    held: Vec<Arc<Accepted>>,
}

impl Evidence {
    /// Returns the advert of this name, if it was lacking and came.
    pub(super) fn get(&self, id: AdvertId) -> Option<&Accepted> {
        let held = self.held.iter().find(|advert| advert.id == id);
        held.map(Arc::as_ref)
    }

    /// Keeps an advert that was lacking; tells whether it was.
    pub(super) fn take_in(&mut self, advert: &Arc<Accepted>) -> bool {
        let was_lacking = self.asked.remove(&advert.id).is_some();
        if was_lacking {
            self.held.push(Arc::clone(advert));
        }
        was_lacking
    }

    /// Tells whether an advert is to be asked for now: it is lacking since `since`, and was not asked for meanwhile.
    pub(super) fn is_due(&mut self, id: AdvertId, now: Timestamp, since: Timestamp) -> bool {
        let is_full = self.asked.len() + self.held.len() >= MAX_ADVERTS;
        match self.asked.get_mut(&id) {
            Some(asked) if *asked > since => false,
            Some(asked) => {
                *asked = now;
                true
            }
            // Not at once: gossip may be bringing it.
            None => {
                if !is_full {
                    self.asked.insert(id, now);
                }
                false
            }
        }
    }

    /// Forgets what no closing names any more.
    pub(super) fn keep(&mut self, named: &BTreeSet<AdvertId>) {
        self.asked.retain(|id, _| named.contains(id));
        self.held.retain(|advert| named.contains(&advert.id));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.asked.is_empty() && self.held.is_empty()
    }
}
