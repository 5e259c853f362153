//! Presence on gossip: this member says that it is here, and hears of members that it is not connected with.
//!
//! ```text
//!   every so often, and soon after news ──► "I am here" ──► gossip ──► peers ──► their peers
//!   gossip ─► welcome peer? ─► wanted? newer? signed? ─► Company ──► Event::Heard, Event::Unheard
//! ```
//!
//! Who is connected needs no such message, and a lost connection counts more than an old one. In a federation of any size a
//! node hears about ten of these messages a second at most: the more members, the rarer each speaks.

use std::time::{Duration, Instant};

use fednode_core::limits::CLOCK_SKEW;
use fednode_core::{Absence, NodeId, Role, Timestamp};
use libp2p::gossipsub::{self, Event as GossipEvent, IdentTopic, MessageAcceptance};
use rand::Rng;

use super::base::Base;
use super::finding::Finding;
use super::gossip::verdict;
use crate::behaviour::Topics;
use crate::event::Event;
use crate::identity::node_id;
use crate::presence::{
    Change, Claim, Company, MAX_PRESENCE_BYTES, Presence as Said, PresenceError,
};

/// How often a member of a small federation says that it is here.
const EVERY: Duration = Duration::from_secs(10);
/// Shortest time between two of its messages.
const SHORTEST_GAP: Duration = Duration::from_secs(1);
/// A federation of so many members speaks as often as that. In larger ones each member speaks less often.
const SMALL: u32 = 100;
/// Messages that may be lost before a member counts as gone.
const MISSES: u32 = 3;

/// Times between two messages for which one counts at most: a bit more than an honest member says.
const LONGEST: u32 = MISSES + 1;

/// What this member says of its presence, and what it hears of that of others.
#[derive(Debug)]
pub(super) struct Presence {
    topic: IdentTopic,
    company: Company,
    every: Duration,
    gap: Duration,
    last: Option<Instant>,
    next: Instant,
    /// The time of the last own message: the next one must be newer.
    issued_at: Timestamp,
}

impl Presence {
    pub(super) fn new(base: &Base, topics: &Topics, now: Instant) -> Self {
        let planned = base.config.spec.nodes;
        let scale = f64::from(planned.max(SMALL)) / f64::from(SMALL);
        let every = EVERY.mul_f64(scale);
        Self {
            topic: topics.presence.clone(),
            company: Company::new(base.config.federation, planned, LONGEST * every),
            every,
            gap: SHORTEST_GAP.mul_f64(scale),
            last: None,
            next: now,
            issued_at: Timestamp::default(),
        }
    }

    /// Visits the members that are here as far as others have passed on.
    pub(super) fn heard(&self) -> impl Iterator<Item = (NodeId, Role)> + '_ {
        self.company.here()
    }

    /// Says that this member is here when that is due, and tells who is here no more.
    pub(super) fn tick(&mut self, base: &mut Base, now: Instant) {
        if self.next <= now && base.peers.welcome().next().is_some() {
            let life = self.every * MISSES + self.every / 2;
            self.say(base, u32::try_from(life.as_secs()).unwrap_or(u32::MAX));
            (self.last, self.next) = (Some(now), now + self.every);
        }
        for node in self.company.expire(base.config.clock.now(), now) {
            tell_gone(base, node);
        }
    }

    /// Says that this member goes.
    pub(super) fn say_goodbye(&mut self, base: &mut Base) {
        self.say(base, 0);
    }

    fn say(&mut self, base: &mut Base, seconds: u32) {
        let issued_at = stamp(self.issued_at, base.config.clock.now());
        self.issued_at = issued_at;
        let said = Said {
            federation: base.config.federation,
            node: base.own,
            role: base.config.role,
            issued_at,
            seconds,
            certificate: base
                .config
                .members
                .as_ref()
                .and_then(|book| book.proof_of(&base.own)),
        };
        let message = said.seal(&base.identity);
        let gossip = &mut base.swarm.behaviour_mut().gossip.inner;
        // Without a subscriber nobody is there to hear it; the first one makes this member speak again.
        if let Err(error) = gossip.publish(self.topic.hash(), message) {
            tracing::trace!(%error, "presence not gossiped");
        }
    }

    /// Speaks again soon: somebody is new here.
    fn hasten(&mut self, base: &mut Base) {
        // With jitter: all members hear the news at about the same moment.
        let now = Instant::now();
        let soon = now + self.gap.mul_f64(base.rng.random_range(0.1..0.6));
        let earliest = self.last.map_or(now, |last| last + self.gap);
        self.next = self.next.min(soon.max(earliest));
    }

    /// Takes an event of gossip if it is about presence, and hands it back if it is not.
    pub(super) fn take(
        &mut self,
        base: &mut Base,
        event: GossipEvent,
    ) -> Result<Option<Finding>, Box<GossipEvent>> {
        match event {
            GossipEvent::Subscribed { ref topic, .. } if *topic == self.topic.hash() => {
                self.hasten(base);
                Ok(None)
            }
            GossipEvent::Message {
                propagation_source,
                message_id,
                message,
            } if message.topic == self.topic.hash() => {
                let outcome = self.judge(base, &propagation_source, &message);
                let (acceptance, finding) = match outcome {
                    Ok(finding) => (MessageAcceptance::Accept, finding),
                    Err(PresenceError::Flood) => {
                        let flood = node_id(&propagation_source).map(Finding::Flood);
                        (MessageAcceptance::Ignore, flood)
                    }
                    Err(error) if error.is_innocent() => (MessageAcceptance::Ignore, None),
                    Err(error) => {
                        let fault = |node| Finding::Fault(node, format!("passed on {error}"));
                        let finding = node_id(&propagation_source).map(fault);
                        (MessageAcceptance::Reject, finding)
                    }
                };
                verdict(base, &message_id, &propagation_source, acceptance);
                Ok(finding)
            }
            other => Err(Box::new(other)),
        }
    }

    fn judge(
        &mut self,
        base: &mut Base,
        source: &libp2p::PeerId,
        message: &gossipsub::Message,
    ) -> Result<Option<Finding>, PresenceError> {
        let now = Instant::now();
        let source = node_id(source).ok_or(PresenceError::Unwanted)?;
        let peer = base.peers.welcome_mut(&source);
        let peer = peer.ok_or(PresenceError::Unwanted)?;
        peer.sync.gossip_is_alive();
        if peer.floods(now) {
            return Err(PresenceError::Flood);
        }
        // A peer that passes on more than a whole federation says is not listened to for a while.
        if !peer.presence.has_any(now) {
            return Err(PresenceError::NoRoom);
        }
        // Taken whatever comes of it: a stale message is no fault, and costs work all the same.
        peer.presence.take(1.0);
        if message.data.len() > MAX_PRESENCE_BYTES {
            return Err(PresenceError::Malformed);
        }
        let claim = Claim::decode(&message.data)?;
        if !base.is_wanted(&claim.node()) || !is_certified(base, &claim) {
            return Err(PresenceError::Unwanted);
        }
        let wall = base.config.clock.now();
        let outcome = self.company.enter(&claim, source, wall, now)?;
        if let Some(node) = outcome.displaced {
            tell_gone(base, node);
        }
        match outcome.change {
            // Who is connected said so itself, and better.
            Change::Came(node, _) if base.peers.is_welcome(&node) => self.company.leave(&node),
            Change::Came(node, role) => {
                tracing::debug!(%node, ?role, "heard of through others");
                base.tell(Event::Heard { node, role });
                self.hasten(base);
                return Ok(Some(Finding::Newcomer));
            }
            Change::Went(node) => tell_gone(base, node),
            Change::None => {}
        }
        Ok(None)
    }

    /// A connection counts from now on, and what others say of its peer no more.
    pub(super) fn on_arrival(&mut self, base: &mut Base, node: &NodeId) {
        self.company.leave(node);
        self.hasten(base);
    }

    /// A member is banned or a member no more, so it is not here any more either.
    pub(super) fn turn_out(&mut self, base: &mut Base) {
        let here = self.company.here().map(|(node, _)| node);
        let gone: Vec<NodeId> = here.filter(|node| !base.is_wanted(node)).collect();
        self.forget(base, gone);
    }

    /// Without any connection nobody can be heard, so nobody is here.
    pub(super) fn on_departure(&mut self, base: &mut Base) {
        if base.peers.welcome().next().is_some() {
            return;
        }
        let here: Vec<NodeId> = self.company.here().map(|(node, _)| node).collect();
        self.forget(base, here);
    }

    fn forget(&mut self, base: &mut Base, nodes: Vec<NodeId>) {
        for node in nodes {
            self.company.leave(&node);
            tell_gone(base, node);
        }
    }
}

/// Returns the stamp of the next message: later than the last one, unless the clock was wrong when that was stamped.
fn stamp(last: Timestamp, now: Timestamp) -> Timestamp {
    let next = last + Duration::from_millis(1);
    // Others have refused what lies so far ahead. A message from there would be refused too.
    if next.distance(now) > CLOCK_SKEW {
        now
    } else {
        now.max(next)
    }
}

/// Tells whether the member is what it says, where an organiser decides that.
fn is_certified(base: &Base, claim: &Claim) -> bool {
    let Some(book) = &base.config.members else {
        return true;
    };
    let now = base.config.clock.now();
    let known = book.role(&claim.node(), now);
    // Its signature is checked only if it may be news.
    if known == Err(Absence::Unknown)
        && let Some(Err(error)) = claim.certificate().map(|signed| book.take(signed))
    {
        tracing::debug!(node = %claim.node(), %error, "a certificate was refused");
    }
    book.role(&claim.node(), now) == Ok(claim.role())
}

fn tell_gone(base: &mut Base, node: NodeId) {
    if !base.peers.is_welcome(&node) {
        base.tell(Event::Unheard { node });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_grow_and_follow_a_clock_that_is_set_back() {
        let (now, moment) = (Timestamp(100_000_000), Duration::from_millis(1));
        let second = Duration::from_secs(1);
        assert_eq!(stamp(Timestamp::default(), now), now);
        assert_eq!(stamp(now, now), now + moment);
        assert_eq!(
            stamp(now + second, now),
            now + second + moment,
            "a small step back"
        );
        assert_eq!(stamp(now + 2 * CLOCK_SKEW, now), now, "it was wrong before");
    }
}
