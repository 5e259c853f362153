//! Clocks that are wrong, this node's and others'.
//!
//! An advert whose stamp lies in the future is refused and told from no other that is lost. So whoever stamped it says it
//! again once its clock is right, and whoever refused it names the clock.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fednode_core::{Advert, AdvertError, NodeId, Round, Timestamp};

use super::parts::Parts;
use crate::clock::StepWatch;
use crate::codec;
use crate::event::Event;
use crate::gate::Objection;

/// How often the wrong clock of one node is worth a word.
const TELL_AGAIN: Duration = Duration::from_secs(600);
/// Nodes whose clock was told of. A name costs nothing, so a crowd of them must not fill the memory.
const MAX_TOLD: usize = 256;
/// Adverts that are said again: the last ones. Older ones decide nothing any more.
const SAID_AGAIN: usize = 8;

/// What is known of clocks.
#[derive(Debug)]
pub(super) struct Clocks {
    steps: StepWatch,
    /// Whose clock was told of, and when.
    told: BTreeMap<NodeId, Instant>,
    /// The newest round after the last that was told of each member, and when.
    beyond: BTreeMap<NodeId, (Round, Instant)>,
}

impl Clocks {
    pub(super) fn new(wall: Timestamp, now: Instant) -> Self {
        Self {
            steps: StepWatch::new(wall, now),
            told: BTreeMap::new(),
            beyond: BTreeMap::new(),
        }
    }

    /// Returns what to tell of an advert that was refused, if its stamp or its round is the reason and that is news.
    pub(super) fn refused(&mut self, objection: &Objection, now: Instant) -> Option<Event> {
        let (node, ahead) = match objection {
            Objection::Stamped(node, AdvertError::ClockSkew(ahead)) => (node, ahead),
            Objection::Stamped(node, AdvertError::Beyond(round)) => {
                return self.beyond(*node, *round, now);
            }
            _ => return None,
        };
        self.told
            .retain(|_, at| now.saturating_duration_since(*at) < TELL_AGAIN);
        // The first word counts: sync brings what is refused again and again, and would put the next word off for ever.
        let is_news = self.told.len() < MAX_TOLD && !self.told.contains_key(node);
        if is_news {
            self.told.insert(*node, now);
        }
        let (node, seconds) = (*node, ahead.as_secs());
        is_news.then_some(Event::ClockAhead { node, seconds })
    }

    fn beyond(&mut self, node: NodeId, round: Round, now: Instant) -> Option<Event> {
        if self.beyond.len() >= MAX_TOLD {
            // Otherwise so many names would mute all later ones.
            self.beyond
                .retain(|_, (_, at)| now.saturating_duration_since(*at) < TELL_AGAIN);
        }
        let has_room = self.beyond.len() < MAX_TOLD || self.beyond.contains_key(&node);
        let known = self.beyond.get(&node);
        let is_news = has_room && known.is_none_or(|(known, _)| round > *known);
        is_news.then(|| {
            self.beyond.insert(node, (round, now));
            Event::Beyond { node, round }
        })
    }
}

impl Parts {
    /// Looks whether the own clock was set. What was stamped in what is now the future is said again.
    pub(super) fn look_at_the_clock(&mut self, now: Instant) {
        let wall = self.base.config.clock.now();
        let Some(seconds) = self.base.clocks.steps.look(wall, now) else {
            return;
        };
        // After a step forward the earlier stamps lie in the past, where nobody takes them for a wrong clock.
        let said_again = if seconds < 0 { self.say_again(wall) } else { 0 };
        self.base.tell(Event::ClockStepped {
            seconds,
            said_again,
        });
    }

    fn say_again(&mut self, wall: Timestamp) -> usize {
        let said = self.adverts.book.all_of(&self.base.own);
        // Without a limit: only adverts that this node signed itself are in the book under its own name.
        let adverts = said.filter_map(|signed| codec::decode(&signed.payload, usize::MAX).ok());
        let ahead: Vec<Advert> = adverts
            .filter(|advert: &Advert| advert.issued_at > wall)
            .collect();
        let mut said_again = 0;
        for old in ahead.iter().skip(ahead.len().saturating_sub(SAID_AGAIN)) {
            let body = old.body.clone();
            let said = self
                .gossip
                .publish(&mut self.base, &mut self.adverts, old.round, body);
            match said {
                // The application keeps what it has said, so it hears of this like of anybody's.
                Ok((advert, signed)) => {
                    said_again += 1;
                    self.base.tell(Event::Advert { signed, advert });
                }
                Err(error) => tracing::debug!(%error, "an advert was not said again"),
            }
        }
        said_again
    }
}
