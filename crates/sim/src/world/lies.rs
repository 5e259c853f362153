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
//! | [`Behaviour::Uncountable`] | to have every round wait for it until the deadline |
//! | [`Behaviour::Random`] | anything: adverts of random content at random times |

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fednode_core::masked::{Agreement, Bytes32};
use fednode_core::{
    Accepted, AdvertId, BlobId, BlobRef, Body, ClosingId, Fault, Global, Local, Member, NodeId,
    Round, Weighting,
};
use fednode_engine::{AverageOrder, Purpose, execute};
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::blobs::Blobs;
use super::ground::Ground;
use super::inventor::Inventor;
use crate::scenario::Behaviour;

/// Pause between two random adverts of a liar, at most.
const PAUSE: Duration = Duration::from_millis(400);
/// Adverts of others that a random lie is made of: the last ones.
pub(super) const HEARD: usize = 80;

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
pub(super) const TIMES: u32 = 20;

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
            Behaviour::Uncountable => Local {
                follows: Some(ClosingId::from_bytes([member as u8; 32])),
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
        if behaviour == Behaviour::AgreesTwice && matches!(advert.body, Body::Propose(_)) {
            let survivors = Bytes32::new(*advert.id.as_bytes());
            return Some((liar, round, Body::Agree(Agreement { survivors })));
        }
        if behaviour == Behaviour::FalseAccuser && matches!(advert.body, Body::Global(_)) {
            let fault = Fault {
                accused: advert.author,
                evidence: advert.id,
                actual: BlobId::of(b"a lie"),
                slice: None,
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
        Some((liar, closed, Body::from(global)))
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

pub(super) fn local(advert: &Accepted) -> Option<&Local> {
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
pub(super) fn closing(
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
        masked: None,
    };
    let mut load = |blob: &BlobId| blobs.content(blob).cloned();
    let (mean, _) = execute::average(&order, spec, &mut load);
    let first = local(updates.first()?)?;
    Some(Global {
        mean: blobs.put(liar, round, Arc::new(mean?)),
        members: order.members,
        parent: first.parent,
        previous: first.follows,
        unmasked: Vec::new(),
        slices: Vec::new(),
    })
}
