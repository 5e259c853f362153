//! What members do for masked sums. Their keys and random bytes are drawn from the seed: nobody keeps a secret here.

use std::borrow::Cow;
use std::sync::Arc;

use fednode_core::masked::{Bytes32, MaskOffer, Unmask};
use fednode_core::work::WorkError;
use fednode_core::{BlobRef, NodeId, ParamSet, Round, Weighting};
use fednode_engine::masks::{self, MaskOrder, UnmaskOrder};
use fednode_masked::{parts, turn};
use x25519_dalek::{PublicKey, StaticSecret};

use super::ground::Ground;
use super::lies::TIMES;
use crate::scenario::Behaviour;

/// What a member publishes as its shared part.
pub(super) enum Part {
    /// Its own part, with masks on it where sums are masked.
    Own(Arc<ParamSet>),
    /// The mean that it started from.
    Mean(BlobRef),
}

/// A member's shared part, and its offer for the next sum.
pub(super) struct Published {
    pub(super) part: Option<Part>,
    pub(super) offer: Option<Box<MaskOffer>>,
}

/// Puts masks on a member's part, where sums are masked.
///
/// # Errors
/// Fails if a value of the part is out of range.
pub(super) fn mask(
    ground: &Ground<'_>,
    member: usize,
    round: Round,
    part: Option<Arc<ParamSet>>,
    n_samples: u32,
) -> Result<Published, WorkError> {
    let Some(order) = ground.members[member].masks.as_deref() else {
        let part = part.map(Part::Own);
        return Ok(Published { part, offer: None });
    };
    let offer = order
        .holders
        .as_deref()
        .and_then(|holders| offer(ground, member, round, holders));
    let masked = match part {
        Some(part) => masked(ground, member, order, &part, n_samples)?,
        None => None,
    };
    let part = masked.map(|part| Part::Own(Arc::new(part)));
    let part = part.or_else(|| order.parent.map(Part::Mean));
    Ok(Published { part, offer })
}

/// Returns a member's offer for the sum of the round after this one.
fn offer(
    ground: &Ground<'_>,
    member: usize,
    round: Round,
    holders: &[NodeId],
) -> Option<Box<MaskOffer>> {
    let me = ground.members[member].id;
    let next = masks::context(ground.federation, round.next());
    let entropy = entropy(ground, member, round.next());
    let public = |node| Some(PublicKey::from(&key(node)));
    let mut offer = turn::offer(me, &entropy, &next, holders, public);
    if ground.behaviour(member) == Some(Behaviour::FalseShares)
        && let Ok(offer) = &mut offer
        && let Ok(other) = turn::offer(me, &[7; 32], &next, holders, public)
    {
        (offer.seal_key, offer.holders) = (other.seal_key, other.holders);
    }
    offer.ok().map(Box::new)
}

/// Returns the masked part; nothing for a member that does not take part.
fn masked(
    ground: &Ground<'_>,
    member: usize,
    order: &MaskOrder,
    part: &ParamSet,
    n_samples: u32,
) -> Result<Option<ParamSet>, WorkError> {
    let round = order.sum.round();
    let Some(roster) = order.sum.roster() else {
        return Ok(None);
    };
    let weighting = ground.schedule.own_weighting(round, &ground.spec.exchange);
    let weight = match weighting {
        Weighting::Uniform => 1,
        Weighting::Samples => n_samples,
    };
    let behaviour = ground.behaviour(member);
    let is_heavy = behaviour == Some(Behaviour::HeavyPart);
    let weight = weight * if is_heavy { TIMES } else { 1 };
    let refuse = |error: &dyn std::fmt::Display| WorkError::Training(error.to_string());
    // A total asks nobody for its samples: whoever has each of them twenty times puts in twenty times as much.
    let is_repeated = behaviour == Some(Behaviour::Repeated) && order.sum.is_total();
    let mut part = Cow::Borrowed(part);
    if is_repeated {
        let tensors = part.to_mut().iter_mut();
        let all = tensors.flat_map(|(_, tensor)| tensor.values_mut());
        all.for_each(|value| *value *= TIMES as f32);
    }
    let mut vector = parts::vector(&part, weight).map_err(|error| refuse(&error))?;
    let node = ground.members[member].id;
    let (entropy, key) = (entropy(ground, member, round), key(node));
    let me = turn::Me { node, key: &key };
    if turn::mask(me, &entropy, roster, &mut vector).is_err() {
        return Ok(None);
    }
    let wrapped = parts::wrap(&part.layout(), &vector);
    wrapped.map(Some).map_err(|error| refuse(&error))
}

/// Returns a member's word that takes masks off.
pub(super) fn unmask(ground: &Ground<'_>, member: usize, order: UnmaskOrder) -> Option<Unmask> {
    let node = ground.members[member].id;
    let (entropy, key) = (entropy(ground, member, order.sum.round()), key(node));
    let me = turn::Me { node, key: &key };
    let roster = order.sum.roster()?;
    let mut word = turn::unmask(me, entropy, roster, order.survivors, &order.agreed).ok();
    match (ground.behaviour(member), &mut word) {
        (Some(Behaviour::FalseShares), _) => None,
        (Some(Behaviour::FalseSeed), Some(said)) => {
            said.own_mask = said.own_mask.map(|_| Bytes32::new([1; 32]));
            word
        }
        _ => word,
    }
}

fn key(node: NodeId) -> StaticSecret {
    StaticSecret::from(blake3::derive_key(
        "fednode simulated key 1",
        node.as_bytes(),
    ))
}

/// A life of a member has its own, as if they were lost in a crash.
fn entropy(ground: &Ground<'_>, member: usize, round: Round) -> [u8; 32] {
    let mut drawn = blake3::Hasher::new_derive_key("fednode simulated secrets 1");
    drawn.update(&ground.scenario.seed.to_le_bytes());
    drawn.update(&(member as u64).to_le_bytes());
    drawn.update(&ground.members[member].life.to_le_bytes());
    drawn.update(&round.0.to_le_bytes());
    *drawn.finalize().as_bytes()
}
