//! Masks: what a node keeps to itself for masked sums, and what it makes of it.
//!
//! The random bytes of a sum are in memory alone. A restart loses them, and with them the node's place in the sum of that round.
//! A backup that was restored cannot use them a second time.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fednode_core::masked::{Bytes32, MaskOffer, Unmask};
use fednode_core::work::{Update, WorkError};
use fednode_core::{
    BlobRef, FederationId, FederationSpec, NodeId, ParamSet, Round, Schedule, Weighting,
};
use fednode_engine::masks::{self, MaskOrder, UnmaskOrder};
use fednode_masked::roster::Roster;
use fednode_masked::{parts, turn};
use fednode_net::Identity;
use tracing::warn;
use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::Zeroizing;

/// Sums of which the secrets are kept: of this round and of the next one, and of two more for a node that falls behind.
const KEPT: usize = 4;

/// A node's secrets.
pub(crate) struct MaskKeeper {
    me: NodeId,
    federation: FederationId,
    key: StaticSecret,
    secrets: Mutex<BTreeMap<Round, Secret>>,
}

/// The secret of one sum, and the roster that it was used with.
struct Secret {
    entropy: Zeroizing<[u8; 32]>,
    used_with: Option<Bytes32>,
}

/// What a node publishes as its shared part.
pub(crate) enum SharedPart {
    /// Its own part as it is, or none.
    Open,
    /// Its own part with masks on it.
    Masked(ParamSet),
    /// The mean that it started from, if it is known.
    StandIn(Option<BlobRef>),
}

/// A node's shared part, and its offer for the next sum.
pub(crate) struct Published {
    pub(crate) part: SharedPart,
    pub(crate) offer: Option<Box<MaskOffer>>,
}

impl Published {
    /// What is published where sums are open.
    pub(crate) const OPEN: Self = Self {
        part: SharedPart::Open,
        offer: None,
    };
}

impl MaskKeeper {
    /// Keeps nothing yet.
    pub(crate) fn new(identity: &Identity, federation: FederationId) -> Self {
        Self {
            me: identity.node_id(),
            federation,
            key: StaticSecret::from(identity.sealing_secret()),
            secrets: Mutex::default(),
        }
    }

    /// Puts masks on the shared part of an update, and makes the offer for the next sum.
    ///
    /// # Errors
    /// Fails if the part has numbers that no masked sum takes.
    pub(crate) fn publish(
        &self,
        order: &MaskOrder,
        update: &Update,
        spec: &FederationSpec,
    ) -> Result<Published, WorkError> {
        let round = order.sum.round();
        let part = update.shared.as_deref();
        let masked = match (part, order.sum.roster()) {
            (Some(part), Some(roster)) if roster.contains(self.me) => {
                let weighting = Schedule::of(spec).own_weighting(round, &spec.exchange);
                let weight = match weighting {
                    Weighting::Uniform => 1,
                    Weighting::Samples => update.n_samples,
                };
                self.mask(round, roster, part, weight)?
            }
            // Whoever is not on the roster shares no masks, so its own part would be bare.
            _ => None,
        };
        let part = masked.map_or(SharedPart::StandIn(order.parent), SharedPart::Masked);
        let holders = order.holders.as_deref();
        let offer = holders.and_then(|holders| self.offer(round.next(), holders));
        let offer = offer.map(Box::new);
        Ok(Published { part, offer })
    }

    /// Says what takes this node's masks off a sum. The secret of that round is gone afterwards.
    pub(crate) fn unmask(&self, order: UnmaskOrder) -> Option<Unmask> {
        let round = order.sum.round();
        let roster = order.sum.roster()?;
        // Taken out, not looked at: a second word for other survivors would show what they differ in.
        let secret = self.secrets().remove(&round)?;
        // A secret that was used with another roster says nothing about this one.
        if secret.used_with.is_some_and(|used| used != roster.id()) {
            return None;
        }
        let word = turn::unmask(
            self.myself(),
            *secret.entropy,
            roster,
            order.survivors,
            &order.agreed,
        );
        word.inspect_err(|fault| warn!(%round, %fault, "masks stay on"))
            .ok()
    }

    fn mask(
        &self,
        round: Round,
        roster: &Roster,
        part: &ParamSet,
        weight: u32,
    ) -> Result<Option<ParamSet>, WorkError> {
        let refuse = |error: &dyn std::fmt::Display| {
            WorkError::Training(format!("the shared part cannot be masked: {error}"))
        };
        let mut vector = parts::vector(part, weight).map_err(|error| refuse(&error))?;
        let mut secrets = self.secrets();
        let Some(secret) = secrets.get_mut(&round) else {
            warn!(%round, "not in the sum of this round: its secrets went with a restart, or the round was over already");
            return Ok(None);
        };
        // Two vectors under the same masks would show what they differ in.
        if *secret.used_with.get_or_insert(roster.id()) != roster.id() {
            warn!(%round, "not in the sum of this round: its masks were used with other members");
            return Ok(None);
        }
        let masked = turn::mask(self.myself(), &secret.entropy, roster, &mut vector);
        if let Err(fault) = masked {
            warn!(%round, %fault, "not in the sum of this round");
            return Ok(None);
        }
        let wrapped = parts::wrap(&part.layout(), &vector);
        wrapped.map(Some).map_err(|error| refuse(&error))
    }

    #[expect(clippy::disallowed_methods, reason = "nobody may foresee a mask")]
    fn offer(&self, round: Round, nodes: &[NodeId]) -> Option<MaskOffer> {
        // From the operating system, and new whenever an offer is made: a former one of this round is of no use any more.
        let entropy = Zeroizing::new(rand::random::<[u8; 32]>());
        let context = masks::context(self.federation, round);
        let public = |node: NodeId| fednode_net::sealing_key(&node).map(PublicKey::from);
        let offer = turn::offer(self.me, &entropy, &context, nodes, public);
        let offer = offer
            .inspect_err(|fault| warn!(%round, %fault, "no offer for the next sum"))
            .ok()?;
        let mut secrets = self.secrets();
        let used_with = None;
        secrets.insert(round, Secret { entropy, used_with });
        while secrets.len() > KEPT {
            secrets.pop_first();
        }
        Some(offer)
    }

    fn myself(&self) -> turn::Me<'_> {
        turn::Me {
            node: self.me,
            key: &self.key,
        }
    }

    fn secrets(&self) -> MutexGuard<'_, BTreeMap<Round, Secret>> {
        // A panic leaves nothing unsafe: a secret counts as used before it is used.
        self.secrets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
