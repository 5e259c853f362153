//! What is known of one node: whether it is there, and what it said lately.

use std::sync::Arc;

use fednode_core::{Advert, BlobId, Body, Local, PoolOffer, ProxyOffer, ProxySet, Role, Round};
use serde::{Deserialize, Serialize};

use crate::encoding::{proxies_by_round, shared_list, shared_option};

/// What is known of a node. Small, since a simulation has millions: of most, one update was heard.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct NodeView {
    pub(super) connected: Option<Role>,
    /// Its last connection was lost and nothing was heard of it since.
    pub(super) lost: bool,
    pub(super) left: bool,
    pub(super) banned: bool,
    pub(super) newest: Round,
    /// Its newest update.
    #[serde(with = "shared_option")]
    pub(super) update: Option<Arc<Advert>>,
    pub(super) more: Option<Box<More>>,
}

/// What is known of those who were heard more than once.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct More {
    /// Updates before the newest, one a round, by round; a handful.
    #[serde(with = "shared_list")]
    pub(super) earlier: Vec<Arc<Advert>>,
    /// Proxies by the round that refreshed them.
    #[serde(with = "proxies_by_round")]
    pub(super) proxies: Vec<(Round, Arc<ProxySet>)>,
    /// The newest offer of a private module.
    #[serde(with = "shared_option")]
    pub(super) offer: Option<Arc<Advert>>,
}

impl NodeView {
    /// Visits its updates, the newest first.
    pub(super) fn locals(&self) -> impl Iterator<Item = &Arc<Advert>> {
        self.update
            .iter()
            .chain(self.more.iter().flat_map(|more| more.earlier.iter().rev()))
    }

    pub(super) fn local(&self, round: Round) -> Option<&Local> {
        self.locals()
            .find(|advert| advert.round == round)
            .map(|advert| local_of(advert))
    }

    /// Keeps an update; tells whether it signed another one of that round before.
    pub(super) fn keep_local(&mut self, advert: &Arc<Advert>) -> bool {
        let newest = match &mut self.update {
            Some(newest) if newest.round == advert.round => {
                let differs = differ(newest, advert);
                newest.clone_from(advert);
                return differs;
            }
            None => {
                self.update = Some(Arc::clone(advert));
                return false;
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
            Some(known) => {
                let differs = differ(known, &earlier);
                *known = earlier;
                differs
            }
            None => {
                more.earlier.insert(place, earlier);
                false
            }
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

    pub(super) fn is_present(&self) -> bool {
        !self.banned && !self.left
    }
}

/// Tells whether two updates of one round are counted differently.
fn differ(one: &Advert, other: &Advert) -> bool {
    let counted = |advert| {
        let local: &Local = local_of(advert);
        (local.shared, local.n_samples)
    };
    counted(one) != counted(other)
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
