//! Random adverts of liars, made up from pieces of what was heard.

use std::collections::BTreeMap;
use std::sync::Arc;

use fednode_core::{
    ADVERT_LIFE, Accepted, AdvertId, BlobId, BlobRef, Body, ClosingId, ExpertOffer, Fault, Local,
    Member, NodeId, PoolOffer, ProxyOffer, Round, Timestamp, Withdraw,
};
use rand::Rng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand_chacha::ChaCha8Rng;

use super::blobs::Blobs;
use super::ground::Ground;
use super::lies::{HEARD, Lie, closing, local};

/// Makes up adverts from pieces of what was heard.
pub(super) struct Inventor<'a, 'g> {
    pub(super) rng: &'a mut ChaCha8Rng,
    pub(super) heard: &'a [Arc<Accepted>],
    pub(super) ground: &'a Ground<'g>,
    pub(super) liar: usize,
}

impl Inventor<'_, '_> {
    /// Returns something to say, if what was drawn can be said at all.
    pub(super) fn invent(&mut self, blobs: &mut Blobs) -> Option<Lie> {
        let (round, body) = match self.rng.random_range(0..100) {
            0..50 => self.global(blobs)?,
            50..85 => self.local()?,
            85..92 => (self.round(), self.fault()),
            92..96 => {
                let blobs = (0..4).map(|_| self.blob().id).collect();
                (self.round(), Body::Withdraw(Withdraw { blobs }))
            }
            _ => (self.round(), self.pool()),
        };
        let ground = self.ground;
        let advert = fednode_core::Advert {
            federation: ground.federation,
            author: ground.members[self.liar].id,
            sequence: fednode_core::Sequence {
                incarnation: 0,
                counter: 0,
            },
            round,
            issued_at: Timestamp(0),
            expires_at: Timestamp(0) + ADVERT_LIFE,
            body,
        };
        // What breaks a bound never reaches a machine.
        let is_sayable = advert
            .check(&ground.spec, ground.federation, Timestamp(0))
            .is_ok();
        is_sayable.then_some((self.liar, round, advert.body))
    }

    fn chance(&mut self, share: f64) -> bool {
        self.rng.random_bool(share)
    }

    fn some(&mut self) -> Option<Arc<Accepted>> {
        let newest = self.heard.len().saturating_sub(HEARD);
        self.heard[newest..].choose(self.rng).cloned()
    }

    fn some_update(&mut self) -> Option<(Arc<Accepted>, Local)> {
        (0..8).find_map(|_| {
            let advert = self.some()?;
            let local = local(&advert)?.clone();
            Some((advert, local))
        })
    }

    fn round(&mut self) -> Round {
        let newest = self.some().map_or(0, |advert| advert.round.0);
        let last = self.ground.spec.rounds;
        match self.rng.random_range(0..4) {
            0 => Round(self.rng.random_range(0..=last)),
            1 => Round(newest.saturating_sub(1)),
            2 => Round((newest + 1).min(last)),
            _ => Round(newest),
        }
    }

    /// A blob that was named, or that nobody has, of any size.
    fn blob(&mut self) -> BlobRef {
        let named = self
            .some()
            .map(|advert| advert.body.blobs())
            .unwrap_or_default();
        let named = named.choose(self.rng).copied();
        let invented = BlobRef {
            id: BlobId::of(&self.rng.random::<u64>().to_le_bytes()),
            size: *[0, 1, 100, 1 << 16, 512 << 20]
                .choose(self.rng)
                .unwrap_or(&1),
        };
        match named {
            Some(named) if self.chance(0.8) => named,
            _ => invented,
        }
    }

    fn closing_id(&mut self) -> Option<ClosingId> {
        let advert = self.some()?;
        match &advert.body {
            Body::Global(global) => Some(global.id(advert.round)),
            Body::Local(local) => local.follows,
            _ if self.chance(0.5) => None,
            _ => Some(ClosingId::from_bytes([7; 32])),
        }
    }

    fn advert_id(&mut self) -> AdvertId {
        let heard = self.some().map(|advert| advert.id);
        heard.unwrap_or(AdvertId::of(b"nothing"))
    }

    fn node(&mut self) -> NodeId {
        let numbers = 0..self.ground.members.len();
        let member = self.rng.random_range(numbers);
        if self.chance(0.8) {
            self.ground.members[member].id
        } else {
            NodeId::from_bytes([self.rng.random(); 32])
        }
    }

    /// An update like another one, with some of it changed.
    fn local(&mut self) -> Option<(Round, Body)> {
        let (advert, mut local) = self.some_update()?;
        let mut round = advert.round;
        if self.chance(0.3) {
            round = self.round();
        }
        if self.chance(0.3) {
            local.lineage = self.blob().id;
        }
        if self.chance(0.3) {
            local.parent = self.blob().id;
        }
        if self.chance(0.3) {
            local.follows = self.closing_id();
        }
        if self.chance(0.4) {
            local.shared = Some(self.blob());
        }
        if self.chance(0.3) {
            let routed = self.rng.random();
            let offer = |blob| ExpertOffer {
                blob,
                samples_routed: routed,
            };
            local.experts = (0..self.rng.random_range(0..6))
                .map(|_| offer(self.blob()))
                .collect();
        }
        if self.chance(0.3) {
            local.proxies = Some(ProxyOffer::Blob(self.blob()));
        }
        if self.chance(0.3) {
            local.n_samples = *[0, 1, 100, u32::MAX].choose(self.rng)?;
        }
        Some((round, Body::Local(local)))
    }

    /// A closing of what some have signed, with some of it changed.
    fn global(&mut self, blobs: &mut Blobs) -> Option<(Round, Body)> {
        let (advert, said) = self.some_update()?;
        let mut round = advert.round;
        let mut updates: BTreeMap<NodeId, Arc<Accepted>> = BTreeMap::new();
        for heard in self.heard {
            if local(heard).is_some_and(|local| local.follows == said.follows) {
                updates.insert(heard.author, Arc::clone(heard));
            }
        }
        let mut updates: Vec<Arc<Accepted>> = updates.into_values().collect();
        updates.shuffle(self.rng);
        // Too few convict their author at once, which would end the lies soon.
        let fewest = self.ground.spec.fewest_members() as usize;
        let kept = self.rng.random_range(fewest..=updates.len().max(fewest));
        updates.truncate(kept);
        let mut global = closing(self.ground, blobs, self.liar, round, &updates)?;
        if self.chance(0.6) {
            return Some((round, Body::from(global)));
        }
        if self.chance(0.25) {
            let (node, shared, advert) = (self.node(), self.blob(), self.advert_id());
            global.members.push(Member {
                node,
                shared,
                weight: 1.0,
                advert,
            });
        }
        if self.chance(0.25) {
            let (place, change) = (
                self.rng.random_range(0..global.members.len()),
                self.rng.random(),
            );
            let (shared, advert) = (self.blob(), self.advert_id());
            let member = &mut global.members[place];
            match change {
                0..90_u8 => member.shared = shared,
                90..170 => member.advert = advert,
                _ => member.weight = *[1.0, 2.0, 1e300, f64::MIN_POSITIVE].choose(self.rng)?,
            }
        }
        if self.chance(0.2) {
            global.mean = self.blob();
        }
        if self.chance(0.15) {
            global.parent = self.blob().id;
        }
        if self.chance(0.15) {
            global.previous = self.closing_id();
        }
        if self.chance(0.2) {
            round = self.round();
        }
        global.members.sort_by_key(|member| member.node);
        global.members.dedup_by_key(|member| member.node);
        Some((round, Body::from(global)))
    }

    fn fault(&mut self) -> Body {
        Body::Fault(Fault {
            accused: self.node(),
            evidence: self.advert_id(),
            actual: self.blob().id,
            slice: None,
        })
    }

    fn pool(&mut self) -> Body {
        Body::Pool(PoolOffer {
            kind: "head".to_owned(),
            lineage: self.blob().id,
            blob: Some(self.blob()),
            score: self.rng.random(),
        })
    }
}
