//! What liars say, and what they make of what others say.
//!
//! A liar trains and publishes as everybody does: its machine is an honest one. What it does beyond that is here. All of it
//! is well signed and within the bounds of an advert, since the network refuses anything else before a machine sees it.
//! What liars make of the numbers themselves is in [`super::spoiling`].
//!
//! | behaviour | what it tries |
//! |---|---|
//! | [`Behaviour::FalseAccuser`] | to have whoever closes a round banned |
//! | [`Behaviour::EarlyCloser`] | to close every round with itself and the first other one |
//! | [`Behaviour::Ghost`] | to count somebody of enormous weight who is not there |
//! | [`Behaviour::Rollback`] | to close a round once more that is over |
//! | [`Behaviour::Inflated`] | to weigh as much as four billion samples |
//! | [`Behaviour::Repeated`] | to weigh as much as twenty like it |
//! | [`Behaviour::Copied`] | to have its experts mixed in by whoever is like another node |
//! | [`Behaviour::Equivocator`] | to have closers banned for what it told others |
//! | [`Behaviour::Restless`] | to keep whoever closes a round from closing it |
//! | [`Behaviour::Random`] | anything: adverts of random content at random times |

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fednode_core::{
    Accepted, AdvertId, BlobId, BlobRef, Body, ClosingId, ExpertOffer, Fault, Global, Local,
    Member, NodeId, PoolOffer, ProxyOffer, Round, Timestamp, Weighting, Withdraw,
};
use fednode_engine::{AverageOrder, Purpose, execute};
use rand::Rng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand_chacha::ChaCha8Rng;

use super::blobs::Blobs;
use super::ground::Ground;
use crate::scenario::Behaviour;

/// Pause between two random adverts of a liar, at most.
const PAUSE: Duration = Duration::from_millis(400);
/// Adverts of others that a random lie is made of: the last ones.
const HEARD: usize = 80;

/// What the liars have done, and heard.
#[derive(Debug, Default)]
pub(super) struct Lies {
    /// Who has lied about which round.
    done: BTreeSet<(usize, Round)>,
    heard: Vec<Arc<Accepted>>,
}

/// A lie, to be published by a liar.
pub(super) type Lie = (usize, Round, Body);

/// What an equivocator tells half of the others under the same number.
pub(super) fn twin(body: &Body) -> Option<Body> {
    let Body::Local(local) = body else {
        return None;
    };
    Some(Body::Local(Local {
        n_samples: local.n_samples.saturating_add(1),
        ..local.clone()
    }))
}

/// Returns how long a liar is silent between two random adverts.
pub(super) fn pause(rng: &mut ChaCha8Rng) -> Duration {
    PAUSE.mul_f64(rng.random_range(0.05..1.0))
}

/// How often somebody counts its samples that has each of them once.
const TIMES: u32 = 20;

impl Lies {
    /// Changes what a liar's machine says.
    pub(super) fn rewrite(&self, ground: &Ground<'_>, member: usize, body: Body) -> Body {
        let (Some(behaviour), Body::Local(local)) = (ground.behaviour(member), &body) else {
            return body;
        };
        let local = local.clone();
        Body::Local(match behaviour {
            Behaviour::Inflated => Local {
                n_samples: u32::MAX,
                ..local
            },
            Behaviour::Repeated => Local {
                n_samples: local.n_samples.saturating_mul(TIMES),
                ..local
            },
            Behaviour::Copied => self.copied(ground.members[member].id, local),
            _ => return body,
        })
    }

    /// Returns an update with the newest proxies that another node has said.
    fn copied(&self, me: NodeId, said: Local) -> Local {
        let others = self.heard.iter().rev();
        let others = others.filter(|heard| heard.author != me);
        let mut others = others.filter_map(|heard| local(heard));
        match others.find(|other| other.proxies.is_some()) {
            Some(other) if said.proxies.is_some() => Local {
                proxies: other.proxies.clone(),
                sketches: other.sketches.clone(),
                ..said
            },
            _ => said,
        }
    }

    /// Somebody said something: returns what liars say to it.
    pub(super) fn about(
        &mut self,
        ground: &mut Ground<'_>,
        blobs: &mut Blobs,
        advert: &Arc<Accepted>,
    ) -> Vec<Lie> {
        let behaviours = ground.scenario.behaviours.clone();
        let mut lies = Vec::new();
        if behaviours.is_empty() {
            return lies;
        }
        self.heard.push(Arc::clone(advert));
        if self.heard.len() > 2 * HEARD {
            self.heard.drain(..HEARD);
        }
        for (liar, behaviour) in behaviours {
            let me = ground.members[liar].id;
            let is_up = ground.network.is_up(liar);
            if !is_up || advert.author == me && behaviour != Behaviour::Ghost {
                continue;
            }
            lies.extend(self.answer(ground, blobs, liar, behaviour, advert));
        }
        lies
    }

    fn answer(
        &mut self,
        ground: &Ground<'_>,
        blobs: &mut Blobs,
        liar: usize,
        behaviour: Behaviour,
        advert: &Accepted,
    ) -> Option<Lie> {
        let me = ground.members[liar].id;
        let round = advert.round;
        if behaviour == Behaviour::FalseAccuser && matches!(advert.body, Body::Global(_)) {
            let fault = Fault {
                accused: advert.author,
                evidence: advert.id,
                actual: BlobId::of(b"a lie"),
            };
            return Some((liar, round, Body::Fault(fault)));
        }
        let Body::Local(said) = &advert.body else {
            return None;
        };
        let enough = ground.scenario.nodes / 2 + 1;
        let (closed, counted) = match behaviour {
            Behaviour::EarlyCloser => (
                round,
                self.of_round(round, said.follows, &[me, advert.author]),
            ),
            Behaviour::Ghost => (round, self.of_round(round, said.follows, &[])),
            Behaviour::Rollback => {
                let before = Round(round.0.checked_sub(1)?);
                let of_author = self.heard.iter().find(|heard| {
                    heard.author == advert.author && heard.round == before && local(heard).is_some()
                });
                let follows = local(of_author?)?.follows;
                (before, self.of_round(before, follows, &[me, advert.author]))
            }
            _ => return None,
        };
        let fewest = if behaviour == Behaviour::Ghost {
            enough
        } else {
            2
        };
        if counted.len() < fewest || !self.done.insert((liar, round)) {
            return None;
        }
        let mut global = closing(ground, blobs, liar, closed, &counted)?;
        if behaviour == Behaviour::Ghost {
            global.members.push(ghost(global.members.first()?.shared));
            global.members.sort_by_key(|member| member.node);
        }
        Some((liar, closed, Body::Global(global)))
    }

    /// Returns the updates of a round that follow the same closed round, of these nodes or of all.
    fn of_round(
        &self,
        round: Round,
        follows: Option<ClosingId>,
        nodes: &[NodeId],
    ) -> Vec<Arc<Accepted>> {
        let mut found = BTreeMap::new();
        for heard in &self.heard {
            let is_one = nodes.is_empty() || nodes.contains(&heard.author);
            let fits = local(heard).is_some_and(|local| local.follows == follows);
            if is_one && fits && heard.round == round {
                found.insert(heard.author, Arc::clone(heard));
            }
        }
        found.into_values().collect()
    }

    /// Returns a random advert of a liar, if what was drawn can be said at all.
    pub(super) fn random(
        &self,
        ground: &mut Ground<'_>,
        blobs: &mut Blobs,
        liar: usize,
    ) -> Option<Lie> {
        if ground.behaviour(liar) == Some(Behaviour::Restless) {
            return self.said_again(ground, liar);
        }
        let mut rng = ground.rng.clone();
        let lie = Inventor {
            rng: &mut rng,
            heard: &self.heard,
            ground,
            liar,
        }
        .invent(blobs);
        ground.rng = rng;
        lie
    }
}

impl Lies {
    /// Returns a liar's newest update with a part that nobody has.
    fn said_again(&self, ground: &mut Ground<'_>, liar: usize) -> Option<Lie> {
        let me = ground.members[liar].id;
        let mut own = self.heard.iter().rev().filter(|heard| heard.author == me);
        let (round, said) = own.find_map(|heard| Some((heard.round, local(heard)?)))?;
        let id = BlobId::of(&ground.rng.random::<u64>().to_le_bytes());
        let part = said.shared.map(|part| BlobRef { id, ..part });
        let said = Local {
            shared: part,
            ..said.clone()
        };
        Some((liar, round, Body::Local(said)))
    }
}

fn local(advert: &Accepted) -> Option<&Local> {
    match &advert.body {
        Body::Local(local) => Some(local),
        _ => None,
    }
}

fn ghost(shared: BlobRef) -> Member {
    Member {
        node: NodeId::from_bytes([254; 32]),
        shared,
        weight: 1e300,
        advert: AdvertId::of(b"said by nobody"),
    }
}

/// Closes a round with these updates, as they were signed; the mean is the true one.
fn closing(
    ground: &Ground<'_>,
    blobs: &mut Blobs,
    liar: usize,
    round: Round,
    updates: &[Arc<Accepted>],
) -> Option<Global> {
    let spec = &ground.spec;
    let weighting = ground.schedule.weighting(round, &spec.exchange);
    let member = |advert: &Arc<Accepted>| {
        let local = local(advert)?;
        let weight = match weighting {
            Weighting::Uniform => 1.0,
            Weighting::Samples => f64::from(local.n_samples),
        };
        Some(Member {
            node: advert.author,
            shared: local.shared?,
            weight,
            advert: advert.id,
        })
    };
    let mut members: Vec<Member> = updates.iter().filter_map(member).collect();
    members.sort_by_key(|member| member.node);
    let order = AverageOrder {
        round,
        purpose: Purpose::Close,
        members,
    };
    let mut load = |blob: &BlobId| blobs.content(blob).cloned();
    let (mean, _) = execute::average(&order, spec, &mut load);
    let first = local(updates.first()?)?;
    Some(Global {
        mean: blobs.put(liar, round, Arc::new(mean?)),
        members: order.members,
        parent: first.parent,
        previous: first.follows,
    })
}

/// Makes up adverts from pieces of what was heard.
struct Inventor<'a, 'g> {
    rng: &'a mut ChaCha8Rng,
    heard: &'a [Arc<Accepted>],
    ground: &'a Ground<'g>,
    liar: usize,
}

impl Inventor<'_, '_> {
    fn invent(&mut self, blobs: &mut Blobs) -> Option<Lie> {
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
            expires_at: Timestamp(1),
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
            return Some((round, Body::Global(global)));
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
        Some((round, Body::Global(global)))
    }

    fn fault(&mut self) -> Body {
        Body::Fault(Fault {
            accused: self.node(),
            evidence: self.advert_id(),
            actual: self.blob().id,
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
