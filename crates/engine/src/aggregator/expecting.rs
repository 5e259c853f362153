//! Whose updates a round waits for.

use fednode_core::{NodeId, Round, Weighting};
use serde::{Deserialize, Serialize};

use super::Aggregator;
use crate::cohort::Cohort;

/// Whose updates a round waits for. Finding out is a walk through the whole view, so it is kept as long as it holds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Expected {
    /// The view's count of comings and goings.
    company: u64,
    pub(super) round: Round,
    pub(super) nodes: Vec<NodeId>,
}

impl Aggregator {
    /// Returns the nodes whose update is waited for: those connected that have not left, that are drawn to train in this
    /// round and that all receive from. After the first round that is who was counted in the one before, or was only late
    /// for it: whoever connects and stays silent holds nobody up.
    pub(super) fn expected(&self) -> Vec<NodeId> {
        let round = self.open_round();
        let cohort = Cohort::draw(&self.spec, &self.schedule, round, self.view.nodes().known());
        let head = self.head();
        let is_proven = |node| {
            head.counted.is_empty()
                || head.counts(node)
                || self
                    .view
                    .nodes()
                    .newest_local(node)
                    .is_some_and(|(newest, local)| {
                        local.shared.is_some() && newest.next() >= head.round
                    })
        };
        // What weighs nothing is no part of a mean, so nobody has to wait for it.
        let by_samples = self.schedule.weighting(round, &self.spec.exchange) == Weighting::Samples;
        let weighs_nothing = |node| {
            let newest = self.view.nodes().newest_local(node);
            by_samples && newest.is_some_and(|(_, local)| local.n_samples == 0)
        };
        let counts = |node: &NodeId| {
            let is_waited_for = self.view.is_waited_for(*node, &self.spec);
            let speaks = self.broadcast_set.contains(*node, round) && cohort.contains(*node);
            speaks && is_waited_for && is_proven(*node) && !weighs_nothing(*node)
        };
        self.view.company().neighbours().filter(counts).collect()
    }

    /// Returns the nodes whose update is waited for; found anew if somebody came or went since.
    pub(super) fn renew_expected(&mut self) -> Expected {
        let (company, round) = (self.view.company().changes(), self.open_round());
        let known = self.open.expected.take();
        // Asked at every input, so the walk through the view is spared while nobody comes or goes.
        let known = known.filter(|known| (known.company, known.round) == (company, round));
        known.unwrap_or_else(|| Expected {
            company,
            round,
            nodes: self.expected(),
        })
    }

    /// Returns how many updates a round has at least, whoever is connected: the first round waits for the planned number
    /// of nodes, later ones for those that are there. Of a large federation only some are connected with an aggregator;
    /// there the last round says how many speak. Where chance draws the cohort, no more are counted on than surely come.
    pub(super) fn planned(&self) -> usize {
        match self.head().round {
            Round::ZERO => {
                let planned = self.spec.surely_trained();
                planned.saturating_sub(self.view.nodes().n_gone())
            }
            _ if self.broadcast_set.is_partial() => self.n_members.min(self.spec.surely_trained()),
            _ => 0,
        }
    }
}
