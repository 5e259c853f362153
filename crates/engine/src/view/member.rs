//! What is known of one node: whether it is there, and what it said lately.

use std::collections::BTreeSet;
use std::sync::Arc;

use fednode_core::masked::Bytes32;
use fednode_core::{
    Accepted, Advert, BlobId, Body, Local, PoolOffer, ProxyOffer, ProxySet, Role, Round, Sequence,
};
use serde::{Deserialize, Serialize};

use crate::encoding::{proxies_by_round, shared_list, shared_option};

/// Most words on the way to a mean that are kept of a node: a proposal, an agreement and an unmasking, or a proposal and some
/// slices, in each of some rounds.
const MAX_WORDS: usize = 9;

/// What is known of a node. Small, since a simulation has millions: of most, one update was heard.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct NodeView {
    pub(super) connected: Option<Role>,
    /// Its last connection was lost and nothing was heard of it since.
    pub(super) lost: bool,
    pub(super) left: bool,
    /// Nothing that it says of itself counts.
    pub(super) banned: bool,
    /// What it was when it was met last.
    pub(super) met: Option<Role>,
    pub(super) newest: Round,
    /// Its newest update.
    #[serde(with = "shared_option")]
    pub(super) update: Option<Arc<Accepted>>,
    pub(super) more: Option<Box<More>>,
}

/// What is known of those who were heard more than once.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct More {
    /// Updates before the newest, one a round, by round; a handful.
    #[serde(with = "shared_list")]
    pub(super) earlier: Vec<Arc<Accepted>>,
    /// Proxies by the round that refreshed them.
    #[serde(with = "proxies_by_round")]
    pub(super) proxies: Vec<(Round, Arc<ProxySet>)>,
    /// The newest offer of a private module.
    #[serde(with = "shared_option")]
    pub(super) offer: Option<Arc<Accepted>>,
    /// When it said that it leaves, if it has said so.
    #[serde(default)]
    farewell: Option<Sequence>,
    /// What it said on the way to a mean, of masked sums or of slices; the newest last.
    #[serde(default, with = "shared_list")]
    pub(super) words: Vec<Arc<Accepted>>,
}

impl NodeView {
    /// Visits its updates, the newest first.
    pub(super) fn locals(&self) -> impl Iterator<Item = &Arc<Accepted>> {
        self.update
            .iter()
            .chain(self.more.iter().flat_map(|more| more.earlier.iter().rev()))
    }

    pub(super) fn local(&self, round: Round) -> Option<&Local> {
        self.locals()
            .find(|advert| advert.round == round)
            .map(|advert| local_of(advert))
    }

    /// Keeps an update; of two of one round the one that was said later stays.
    pub(super) fn keep_local(&mut self, advert: &Arc<Accepted>) {
        let newest = match &mut self.update {
            Some(newest) if newest.round == advert.round => {
                if newest.sequence <= advert.sequence {
                    newest.clone_from(advert);
                }
                return;
            }
            None => {
                self.update = Some(Arc::clone(advert));
                return;
            }
            Some(newest) => newest,
        };
        // Most nodes are heard in order, so the newest is kept apart and nothing is moved.
        let earlier = if newest.round < advert.round {
            std::mem::replace(newest, Arc::clone(advert))
        } else {
            Arc::clone(advert)
        };
        let more = self.more.get_or_insert_default();
        // A handful at most, sorted by round: a search costs less than a map.
        let place = more
            .earlier
            .partition_point(|known| known.round < earlier.round);
        match more
            .earlier
            .get_mut(place)
            .filter(|known| known.round == earlier.round)
        {
            Some(known) if known.sequence > earlier.sequence => {}
            Some(known) => *known = earlier,
            None => more.earlier.insert(place, earlier),
        }
    }

    pub(super) fn proxies(&self, round: Round) -> Option<&Arc<ProxySet>> {
        let refreshed = &self.more.as_ref()?.proxies;
        refreshed
            .iter()
            .rev()
            .find(|(known, _)| *known == round)
            .map(|(_, proxies)| proxies)
    }

    /// It says that it leaves. Returns false if it has spoken again since: adverts come in any order.
    pub(super) fn leave(&mut self, at: Sequence) -> bool {
        if self.locals().any(|update| update.sequence > at) {
            return false;
        }
        let farewell = &mut self.more.get_or_insert_default().farewell;
        *farewell = (*farewell).max(Some(at));
        self.left = true;
        true
    }

    /// It has said an update. Returns whether it is back: whoever speaks after its farewell is, and a connection alone does not
    /// say so.
    pub(super) fn come_back(&mut self, at: Sequence) -> bool {
        let farewell = self.more.as_ref().and_then(|more| more.farewell);
        let is_back = self.left && farewell.is_none_or(|farewell| farewell < at);
        self.left &= !is_back;
        is_back
    }

    /// Keeps an offer of its module, unless a newer one is known. Returns whether it was kept.
    pub(super) fn keep_offer(&mut self, advert: &Arc<Accepted>) -> bool {
        let offer = &mut self.more.get_or_insert_default().offer;
        let is_news = offer
            .as_ref()
            .is_none_or(|known| known.sequence <= advert.sequence);
        if is_news {
            *offer = Some(Arc::clone(advert));
        }
        is_news
    }

    /// Forgets its offer, if it takes these blobs back after it has said that.
    pub(super) fn withdraw_offer(&mut self, at: Sequence, blobs: &[BlobId]) {
        let is_withdrawn = |offer: &Accepted| {
            let blob = offer_of(offer).and_then(|offer| offer.blob);
            offer.sequence < at && blob.is_some_and(|blob| blobs.contains(&blob.id))
        };
        if let Some(more) = &mut self.more {
            more.offer.take_if(|offer| is_withdrawn(offer));
        }
    }

    pub(super) fn offer(&self) -> Option<&PoolOffer> {
        offer_of(self.more.as_ref()?.offer.as_ref()?)
    }

    /// Visits the blobs that it offers.
    pub(super) fn blobs(&self) -> impl Iterator<Item = BlobId> + '_ {
        let updates = self.locals().map(|advert| local_of(advert));
        updates.flat_map(blobs_of).chain(
            self.offer()
                .and_then(|offer| offer.blob)
                .map(|blob| blob.id),
        )
    }

    /// Forgets updates and proxies before a round that is no newer than the newest update's.
    pub(super) fn forget_before(&mut self, oldest: Round) {
        if let Some(more) = &mut self.more {
            more.earlier.retain(|advert| advert.round >= oldest);
            more.proxies.retain(|(round, _)| *round >= oldest);
        }
    }

    /// Tells whether it trains: it said so when it was met, or it has spoken of a round.
    pub(super) fn is_node(&self) -> bool {
        self.met == Some(Role::Node) || self.newest > Round::ZERO
    }

    /// Tells whether it closes rounds by its role.
    pub(super) fn is_aggregator(&self) -> bool {
        // Else a member could pass for an aggregator, whose small means not everybody recomputes.
        self.met == Some(Role::Aggregator) && self.newest == Round::ZERO
    }

    /// Keeps what it says on the way to a mean.
    pub(super) fn keep_word(&mut self, advert: &Arc<Accepted>) {
        let words = &mut self.more.get_or_insert_default().words;
        // A word may come by gossip and by its name. The second time it must not push out another one.
        if words.iter().all(|known| known.id != advert.id) {
            words.push(Arc::clone(advert));
            words.drain(..words.len().saturating_sub(MAX_WORDS));
        }
    }

    /// Visits what it said on the way to a mean, the newest first.
    pub(super) fn words(&self) -> impl Iterator<Item = &Accepted> {
        let words = self.more.iter().flat_map(|more| more.words.iter().rev());
        words.map(Arc::as_ref)
    }

    /// Tells whether it agreed to two sets of survivors in a round, or takes masks off for two.
    ///
    /// It may agree to one and take masks off for another: for that which most agree to.
    pub(super) fn contradicts_itself(&self, round: Round) -> bool {
        let said = || self.words().filter(|word| word.round == round);
        let agreed = said().filter_map(|word| match &word.body {
            Body::Agree(agreement) => Some(agreement.survivors),
            _ => None,
        });
        let unmasked = said().filter_map(|word| match &word.body {
            Body::Unmask(word) => Some(word.survivors),
            _ => None,
        });
        let agreed: BTreeSet<Bytes32> = agreed.collect();
        let unmasked: BTreeSet<Bytes32> = unmasked.collect();
        agreed.len() > 1 || unmasked.len() > 1
    }

    pub(super) fn is_present(&self) -> bool {
        !self.banned && !self.left
    }
}

pub(super) fn offer_of(advert: &Advert) -> Option<&PoolOffer> {
    match &advert.body {
        Body::Pool(offer) => Some(offer),
        _ => None,
    }
}

/// Visits the blobs that an update offers.
pub(super) fn blobs_of(local: &Local) -> impl Iterator<Item = BlobId> + '_ {
    let proxies = match &local.proxies {
        Some(ProxyOffer::Blob(blob)) => Some(blob.id),
        Some(ProxyOffer::Inline(_)) | None => None,
    };
    local
        .experts
        .iter()
        .map(|offer| offer.blob.id)
        .chain(local.shared.map(|blob| blob.id))
        .chain(proxies)
}

pub(super) fn local_of(advert: &Advert) -> &Local {
    match &advert.body {
        Body::Local(local) => local,
        _ => unreachable!("only local updates enter the map of local updates"),
    }
}
