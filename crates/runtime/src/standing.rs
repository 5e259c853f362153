//! How this member stands with the others: who is there, who refuses it, who is done.

use std::collections::{BTreeMap, BTreeSet};

use fednode_core::{Advert, Body, NodeId, Refusal, Role, Round, Timestamp};

use crate::error::RunError;

/// Refusals remembered; more configured peers than this refuse nobody silently.
const MAX_REFUSALS: usize = 256;

/// Nodes remembered as done; the largest federation simulated has ten thousand.
const MAX_DONE: usize = 16_384;

/// Nodes remembered as gone, and addresses that do not answer.
const MAX_GONE: usize = 1024;

/// Who is there and who refuses us.
#[derive(Debug)]
pub(crate) struct Standing {
    configured: Vec<String>,
    last_round: Round,
    present: BTreeMap<NodeId, Role>,
    /// Who was here once, and until when.
    gone: BTreeMap<NodeId, Timestamp>,
    /// Whose clock is ahead of ours, and by how many seconds.
    ahead: BTreeMap<NodeId, u64>,
    /// Configured addresses that do not answer, and why.
    silent: BTreeMap<String, String>,
    ever_welcomed: bool,
    refusals: BTreeMap<(Option<NodeId>, String), Refusal>,
    done: BTreeSet<NodeId>,
}

impl Standing {
    pub(crate) fn new(configured: Vec<String>, last_round: Round) -> Self {
        Self {
            configured,
            last_round,
            present: BTreeMap::new(),
            gone: BTreeMap::new(),
            ahead: BTreeMap::new(),
            silent: BTreeMap::new(),
            ever_welcomed: false,
            refusals: BTreeMap::new(),
            done: BTreeSet::new(),
        }
    }

    pub(crate) fn peer_up(&mut self, node: NodeId, role: Role) {
        self.ever_welcomed = true;
        self.present.insert(node, role);
        self.gone.remove(&node);
        // An address without a name may be that of this node; if it is not, it is told again.
        let name = node.to_string();
        self.silent
            .retain(|address, _| address.contains("/p2p/") && !address.ends_with(&name));
        // A peer that was restarted with the right spec may refuse no more.
        self.refusals
            .retain(|(refused, _), _| *refused != Some(node));
    }

    /// A node is about to be met after the end. If it was never here before, it has no rounds to finish.
    pub(crate) fn note_latecomer(&mut self, node: NodeId) {
        let is_known = self.present.contains_key(&node) || self.gone.contains_key(&node);
        if !is_known && self.done.len() < MAX_DONE {
            self.done.insert(node);
        }
    }

    pub(crate) fn peer_down(&mut self, node: NodeId, at: Timestamp) {
        self.present.remove(&node);
        if self.gone.len() < MAX_GONE {
            self.gone.insert(node, at);
        }
    }

    /// Takes note of a clock that is ahead of ours.
    pub(crate) fn clock_ahead(&mut self, node: NodeId, seconds: u64) {
        if self.ahead.len() < MAX_GONE {
            self.ahead.insert(node, seconds);
        }
    }

    /// Returns by how many seconds a node's clock is ahead, if it is said to be.
    pub(crate) fn seconds_ahead(&self, node: &NodeId) -> Option<u64> {
        self.ahead.get(node).copied()
    }

    /// Takes note of a configured address that does not answer.
    pub(crate) fn unreachable(&mut self, address: String, reason: String) {
        if self.silent.len() < MAX_GONE {
            self.silent.insert(address, reason);
        }
    }

    /// Returns the first configured address that does not answer, and why.
    pub(crate) fn silent_address(&self) -> Option<(&str, &str)> {
        let first = self.silent.first_key_value();
        first.map(|(address, reason)| (address.as_str(), reason.as_str()))
    }

    /// Visits the members that are here.
    pub(crate) fn present(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.present.keys().copied()
    }

    /// Tells whether a node is connected.
    pub(crate) fn is_present(&self, node: &NodeId) -> bool {
        self.present.contains_key(node)
    }

    /// Returns why a node is refused, if it is.
    pub(crate) fn refusal_by(&self, node: NodeId) -> Option<&Refusal> {
        let mut refusals = self.refusals.iter();
        let found = refusals.find(|((refused, _), _)| *refused == Some(node));
        found.map(|(_, refusal)| refusal)
    }

    /// Returns since when a node is gone; nothing if it was never here.
    pub(crate) fn gone_since(&self, node: &NodeId) -> Option<Timestamp> {
        self.gone.get(node).copied()
    }

    /// Returns the connected nodes that still train.
    pub(crate) fn still_training(&self) -> Vec<NodeId> {
        let nodes = self.present.iter().filter(|(_, role)| **role == Role::Node);
        let training = nodes.filter(|(node, _)| !self.done.contains(node));
        training.map(|(node, _)| *node).collect()
    }

    /// Takes note of what a node said about its progress.
    pub(crate) fn heard(&mut self, advert: &Advert) {
        // What is heard of it was stamped by a clock that is right.
        self.ahead.remove(&advert.author);
        let last = matches!(advert.body, Body::Local(_)) && advert.round >= self.last_round;
        // Beyond the bound a node passes for one that still trains. This member then lingers
        // longer, which harms nobody.
        if self.done.len() < MAX_DONE && (last || matches!(advert.body, Body::Leave)) {
            self.done.insert(advert.author);
        }
    }

    pub(crate) fn n_present(&self) -> usize {
        self.present.len()
    }

    /// Tells whether no node is here that still trains.
    pub(crate) fn nobody_trains(&self) -> bool {
        self.still_training().is_empty()
    }

    /// Takes note of a refusal and returns whether it is news.
    pub(crate) fn refused(
        &mut self,
        node: Option<NodeId>,
        address: &str,
        refusal: &Refusal,
    ) -> bool {
        if self.refusals.len() >= MAX_REFUSALS {
            self.refusals.pop_first();
        }
        self.refusals
            .insert((node, address.to_owned()), refusal.clone())
            .as_ref()
            != Some(refusal)
    }

    /// Returns the error to end with when every configured peer refuses us for good and nobody else has welcomed us.
    pub(crate) fn hopeless(&self) -> Option<RunError> {
        // One peer that accepts this node proves that its spec is right for somebody.
        if self.ever_welcomed || self.configured.is_empty() {
            return None;
        }
        let refusals: Option<Vec<_>> = self
            .configured
            .iter()
            .map(|peer| self.refusal_of(peer))
            .collect();
        let (peer, refusal) = refusals?.into_iter().next()?;
        Some(RunError::Refused {
            peer,
            refusal: refusal.clone(),
        })
    }

    fn refusal_of(&self, configured: &str) -> Option<(String, &Refusal)> {
        // A wrong clock can be set and a full peer may have room later: neither is a reason to give
        // up.
        let lasting = |refusal: &Refusal| {
            matches!(
                refusal,
                Refusal::Spec { .. }
                    | Refusal::Protocol { .. }
                    | Refusal::Stranger
                    | Refusal::Closed
                    | Refusal::Unwelcome(_)
            )
        };
        let leads_to = |node: &Option<NodeId>, address: &str| {
            let by_name = node.is_some_and(|node| configured.ends_with(&node.to_string()));
            let anonymous = configured.split("/p2p/").next().unwrap_or_default();
            by_name || (!address.is_empty() && address.split("/p2p/").next() == Some(anonymous))
        };
        let found = self
            .refusals
            .iter()
            .find(|((node, at), refusal)| lasting(refusal) && leads_to(node, at));
        found.map(|(_, refusal)| (configured.to_owned(), refusal))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ExitCode;

    fn spec() -> Refusal {
        Refusal::Spec {
            key: "rounds".into(),
            ours: "3".into(),
            theirs: "4".into(),
        }
    }

    const ANN: NodeId = NodeId::from_bytes([1; 32]);
    const BOB: NodeId = NodeId::from_bytes([2; 32]);

    #[test]
    fn ends_only_when_all_configured_peers_refuse() {
        let named = format!("/ip4/127.0.0.1/tcp/1/p2p/{ANN}");
        let mut standing = Standing::new(vec![named, "/dns4/x/tcp/2".into()], Round(3));
        assert!(standing.refused(Some(ANN), "/ip4/127.0.0.1/tcp/1", &spec()));
        assert!(
            !standing.refused(Some(ANN), "/ip4/127.0.0.1/tcp/1", &spec()),
            "said once"
        );
        assert!(
            standing.hopeless().is_none(),
            "the other may still welcome us"
        );
        standing.refused(None, "/dns4/x/tcp/2", &spec());
        let error = standing.hopeless().unwrap();
        assert_eq!(error.exit_code(), ExitCode::Refused);
        assert!(error.to_string().contains("`rounds`"), "{error}");
    }

    #[test]
    fn who_comes_first_after_the_end_is_not_waited_for() {
        let mut standing = Standing::new(Vec::new(), Round(3));
        standing.peer_up(ANN, Role::Node);
        standing.peer_down(ANN, Timestamp(1));
        for node in [ANN, BOB] {
            standing.note_latecomer(node);
            standing.peer_up(node, Role::Node);
        }
        assert_eq!(standing.still_training(), [ANN], "it was lost and is back");
    }

    #[test]
    fn a_clock_can_be_set_and_one_friend_is_enough() {
        let mut standing = Standing::new(vec!["/dns4/x/tcp/2".into()], Round(3));
        standing.refused(None, "/dns4/x/tcp/2", &Refusal::Clock(4000));
        assert!(standing.hopeless().is_none());
        standing.peer_up(ANN, Role::Node);
        standing.refused(None, "/dns4/x/tcp/2", &spec());
        assert!(standing.hopeless().is_none());
    }
}
