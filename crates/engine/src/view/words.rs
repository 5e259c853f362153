//! What members said of masked sums: proposals, agreements, and what takes masks off.

use std::collections::BTreeSet;

use fednode_core::masked::{Bytes32, Proposal};
use fednode_core::{Accepted, AdvertId, Body, NodeId, Round};

use super::{NodeView, View};
use crate::masks::Word;

impl View {
    /// Returns what a node said of a masked sum, by its name.
    pub(crate) fn word(&self, node: NodeId, advert: AdvertId) -> Option<&Accepted> {
        let known = self.nodes.get(node);
        let mut words = known.into_iter().flat_map(NodeView::words);
        let heard = words.find(|word| word.id == advert);
        heard.or_else(|| self.closings.evidence(advert))
    }

    /// Visits what was proposed to be added up in a round, and by whom.
    pub(crate) fn proposals(&self, round: Round) -> impl Iterator<Item = (NodeId, &Proposal)> {
        self.words_of(round).filter_map(|word| match &word.body {
            Body::Propose(proposal) => Some((word.author, proposal)),
            _ => None,
        })
    }

    /// Returns who agreed to these survivors of a round.
    pub(crate) fn agreed(&self, round: Round, survivors: Bytes32) -> BTreeSet<NodeId> {
        let agreed = self.words_of(round).filter_map(|word| match &word.body {
            Body::Agree(agreement) if agreement.survivors == survivors => Some(word.author),
            _ => None,
        });
        agreed.collect()
    }

    /// Returns what takes the masks off the sum of these survivors of a round.
    pub(crate) fn unmasking(&self, round: Round, survivors: Bytes32) -> Vec<Word<'_>> {
        let words = self.words_of(round).filter_map(|word| match &word.body {
            Body::Unmask(said) if said.survivors == survivors => Some(Word {
                author: word.author,
                advert: word.id,
                said,
            }),
            _ => None,
        });
        let mut words: Vec<Word<'_>> = words.collect();
        words.sort_unstable_by_key(|word| word.author);
        // Whoever says it twice counts once.
        words.dedup_by_key(|word| word.author);
        words
    }

    /// Tells whether a node agreed to two sets of survivors of a round, or takes masks off for two. Its signed words are the
    /// proof.
    pub(crate) fn contradicts_itself(&self, node: NodeId, round: Round) -> bool {
        let known = self.nodes.get(node);
        known.is_some_and(|view| view.contradicts_itself(round))
    }

    fn words_of(&self, round: Round) -> impl Iterator<Item = &Accepted> {
        let trusted = self.nodes.iter().filter(|(_, view)| !view.banned);
        let words = trusted.flat_map(|(_, view)| view.words());
        words.filter(move |word| word.round == round)
    }
}
