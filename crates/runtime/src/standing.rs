//! How this member stands with the others: who is there, who refuses it, who is done.

use std::collections::{BTreeMap, BTreeSet};

use fednode_core::{Advert, Body, NodeId, Refusal, Role, Round};

use crate::error::RunError;

/// Refusals remembered; more configured peers than this refuse nobody silently.
const MAX_REFUSALS: usize = 256;

/// Nodes remembered as done; the largest federation simulated has ten thousand.
const MAX_DONE: usize = 16_384;

/// Who is there and who refuses us.
#[derive(Debug)]
pub(crate) struct Standing {
    configured: Vec<String>,
    last_round: Round,
    present: BTreeMap<NodeId, Role>,
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
            ever_welcomed: false,
            refusals: BTreeMap::new(),
            done: BTreeSet::new(),
        }
    }

    pub(crate) fn peer_up(&mut self, node: NodeId, role: Role) {
        self.ever_welcomed = true;
        self.present.insert(node, role);
        // A peer that was restarted with the right spec may refuse no more.
        self.refusals
            .retain(|(refused, _), _| *refused != Some(node));
    }

    pub(crate) fn peer_down(&mut self, node: NodeId) {
        self.present.remove(&node);
    }

    /// Takes note of what a node said about its progress.
    pub(crate) fn heard(&mut self, advert: &Advert) {
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
        let nodes = self.present.iter().filter(|(_, role)| **role == Role::Node);
        nodes
            .map(|(node, _)| node)
            .all(|node| self.done.contains(node))
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
    fn a_clock_can_be_set_and_one_friend_is_enough() {
        let mut standing = Standing::new(vec!["/dns4/x/tcp/2".into()], Round(3));
        standing.refused(None, "/dns4/x/tcp/2", &Refusal::Clock(4000));
        assert!(standing.hopeless().is_none());
        standing.peer_up(ANN, Role::Node);
        standing.refused(None, "/dns4/x/tcp/2", &spec());
        assert!(standing.hopeless().is_none());
    }
}
