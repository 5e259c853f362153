//! Whom the allow-list keeps out: a word for people, who may have forgotten somebody.
//!
//! A name costs a stranger nothing. So words are few: one for each node in a while, and not many for all of them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fednode_core::NodeId;
use libp2p::allow_block_list::NotAllowed;
use libp2p::swarm::ListenError;
use libp2p::{Multiaddr, PeerId};

use super::base::Base;
use crate::event::Event;
use crate::identity::node_id;

/// How often one node is worth a word.
const TELL_AGAIN: Duration = Duration::from_secs(60);
/// Nodes told of in that time. A crowd of strangers must fill neither the memory nor the log.
const MAX_TOLD: usize = 32;

/// Of whom was told, and when.
#[derive(Debug, Default)]
pub(super) struct TurnedAway {
    told: BTreeMap<NodeId, Instant>,
}

impl TurnedAway {
    /// Notes a node that is not on the list. Tells whether it is worth a word.
    pub(super) fn is_news(&mut self, node: NodeId, now: Instant) -> bool {
        self.told
            .retain(|_, at| now.saturating_duration_since(*at) < TELL_AGAIN);
        let is_news = self.told.len() < MAX_TOLD && !self.told.contains_key(&node);
        if is_news {
            self.told.insert(node, now);
        }
        is_news
    }
}

impl Base {
    /// A connection that somebody opened has failed: says so if the allow-list is the reason.
    pub(super) fn on_caller_failed(
        &mut self,
        peer: Option<PeerId>,
        address: Multiaddr,
        error: &ListenError,
    ) {
        tracing::debug!(%address, %error, "an incoming connection failed");
        let ListenError::Denied { cause } = error else {
            return;
        };
        if cause.downcast_ref::<NotAllowed>().is_none() {
            return;
        }
        if let Some(node) = peer.as_ref().and_then(node_id)
            && self.turned_away.is_news(node, Instant::now())
        {
            self.tell(Event::TurnedAway {
                node,
                address: Some(address),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_is_told_of_once_a_minute_and_a_crowd_is_not() {
        let (mut turned_away, start) = (TurnedAway::default(), Instant::now());
        let mut is_news = |n: u8, seconds: u64| {
            let now = start + Duration::from_secs(seconds);
            turned_away.is_news(NodeId::from_bytes([n; 32]), now)
        };
        assert!(is_news(1, 0));
        assert!(!is_news(1, 59));
        assert!(is_news(1, 60), "it still tries");
        let crowd = 2..=u8::try_from(MAX_TOLD).unwrap();
        assert!(crowd.into_iter().all(|n| is_news(n, 61)));
        assert!(!is_news(255, 61), "one more of the crowd");
        assert!(is_news(255, 121));
    }
}
