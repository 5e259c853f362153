//! Adverts on their way out, one after the other, so that their order is the machine's.

use std::collections::VecDeque;

use fednode_core::{Advert, Body, Round, SignedAdvert};
use fednode_net::PublishError;

use crate::answers::Answer;
use crate::base::Base;

/// Adverts that may wait; more than any machine publishes in a round.
const WAITING: usize = 256;

/// An advert and its signed form.
pub(crate) type Signed = Box<(Advert, SignedAdvert)>;

/// The advert that is being published, and those that wait.
#[derive(Debug, Default)]
pub(crate) struct Publisher {
    is_busy: bool,
    waiting: VecDeque<(Round, Body)>,
}

impl Publisher {
    /// Publishes when all before it are published.
    pub(crate) fn publish(&mut self, base: &mut Base, round: Round, body: Body) {
        // Only a network task that hangs lets so many wait. Memory must not grow for it.
        if self.waiting.len() >= WAITING {
            return base.warn(format!(
                "an advert about round {round} was dropped: too many wait"
            ));
        }
        self.waiting.push_back((round, body));
        self.publish_next(base);
    }

    /// Takes the result of the advert that was being published; returns it if it went out.
    pub(crate) fn published(
        &mut self,
        base: &mut Base,
        result: Result<Signed, PublishError>,
    ) -> Option<Signed> {
        self.is_busy = false;
        match result {
            Ok(signed) => Some(signed),
            // The network has ended. The loop learns that from its events and says so once.
            Err(PublishError::Closed) => None,
            Err(error) => {
                base.warn(format!("not published to the federation: {error}"));
                None
            }
        }
    }

    /// Publishes the next advert, if none is being published.
    pub(crate) fn publish_next(&mut self, base: &mut Base) {
        if self.is_busy {
            return;
        }
        let Some((round, body)) = self.waiting.pop_front() else {
            return;
        };
        // One at a time: an advert is numbered when it is sent, and two tasks may run in either order.
        self.is_busy = true;
        let net = base.net.clone();
        base.start(async move {
            let published = net.publish(round, body).await;
            Answer::Published(published.map(Box::new))
        });
    }

    /// Tells whether everything was published.
    pub(crate) fn is_idle(&self) -> bool {
        !self.is_busy && self.waiting.is_empty()
    }
}
