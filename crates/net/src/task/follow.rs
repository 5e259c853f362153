//! Following: receiving the updates of authors outside the broadcast set, in a large federation.
//!
//! Each author has a topic of its own. A follower subscribes to it, connects if there is room, and asks for the author in
//! every sync. So earlier or lost adverts come from any other follower.

use std::collections::BTreeSet;

use fednode_core::NodeId;

use super::Task;
use crate::wire::MAX_FOLLOWED;

impl Task {
    /// Follows these nodes and no others.
    pub(super) fn follow(&mut self, nodes: Vec<NodeId>) {
        let own = self.own;
        let wanted: BTreeSet<NodeId> = nodes
            .into_iter()
            .filter(|node| *node != own)
            .take(MAX_FOLLOWED)
            .collect();
        let before = std::mem::replace(&mut self.follows, wanted.clone());
        // Unsubscribe first: the subscription filter of peers bounds how many topics a node has at once.
        for author in before.difference(&wanted) {
            let topic = self.topics.of_author(author);
            self.swarm.behaviour_mut().gossip.unsubscribe(&topic);
        }
        let new: Vec<NodeId> = wanted.difference(&before).copied().collect();
        for author in &new {
            let topic = self.topics.of_author(author);
            if let Err(error) = self.swarm.behaviour_mut().gossip.subscribe(&topic) {
                tracing::debug!(%author, %error, "not followed on gossip: sync only");
            }
        }
        // The topic brings only what comes from now on; sync brings what the author published before.
        new.iter().for_each(|author| self.start_sync(*author));
        self.hurry(new);
    }
}
