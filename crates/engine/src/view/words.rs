//! What members said on the way to a mean: proposals, agreements, what takes masks off, and slices that they have averaged.

use std::collections::{BTreeMap, BTreeSet};

use fednode_core::masked::{Bytes32, Proposal};
use fednode_core::{Accepted, AdvertId, Body, NodeId, Round, Slices};

use super::{NodeView, View};
use crate::masks::{Sum, Word};
use crate::slices::SaidSlice;

impl View {
    /// Returns what a node said on the way to a mean, by its name.
    pub(crate) fn word(&self, node: NodeId, advert: AdvertId) -> Option<&Accepted> {
        let known = self.nodes.get(node);
        let mut words = known.into_iter().flat_map(NodeView::words);
        let heard = words.find(|word| word.id == advert);
        // Words that a closing names are asked for one by one, and kept as evidence.
        heard.or_else(|| self.closings.evidence(advert))
    }

    /// Visits what was proposed to be added up or averaged in a round, and by whom.
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

    /// Returns the slices of a proposal of a round that have been averaged, by number and author. Of each author its newest
    /// word counts, which names all of its slices.
    pub(crate) fn slices(&self, round: Round, of: Bytes32) -> Vec<SaidSlice> {
        let mut newest: BTreeMap<NodeId, (&Accepted, &Slices)> = BTreeMap::new();
        for word in self.words_of(round) {
            let Body::Slices(said) = &word.body else {
                continue;
            };
            let known = newest.get(&word.author);
            let is_newer = known.is_none_or(|(known, _)| known.sequence < word.sequence);
            if said.of == of && is_newer {
                newest.insert(word.author, (word, said));
            }
        }
        let slices = newest.values().flat_map(|(word, said)| {
            said.means.iter().map(|mean| SaidSlice {
                author: word.author,
                advert: word.id,
                slice: mean.slice,
                mean: mean.mean,
            })
        });
        let mut slices: Vec<SaidSlice> = slices.collect();
        slices.sort_unstable_by_key(|said| (said.slice, said.author));
        slices
    }

    /// Tells whether a node agreed to two sets of survivors of a round, or takes masks off for two. Its signed words are the
    /// proof.
    fn contradicts_itself(&self, node: NodeId, round: Round) -> bool {
        let known = self.nodes.get(node);
        known.is_some_and(|view| view.contradicts_itself(round))
    }

    /// Says what is false in what a node said of a masked sum: it contradicts itself, or its word takes no masks off. `sum` is
    /// that of the round, if it is known.
    pub(crate) fn falsehood(
        &self,
        sum: Option<&Sum>,
        node: NodeId,
        round: Round,
    ) -> Option<String> {
        if self.contradicts_itself(node, round) {
            return Some("told some one thing and others another".to_owned());
        }
        let sum = sum.filter(|sum| sum.round() == round)?;
        let words = self.words_of(round).filter(|word| word.author == node);
        let mut words = words.filter_map(|word| match &word.body {
            Body::Unmask(said) => Some(said),
            _ => None,
        });
        words.find_map(|word| {
            // Without the proposal nobody knows whose masks the word should take off.
            let mut sets = self.proposals(round).filter_map(|(_, proposal)| {
                let survivors = sum.survivors(&proposal.members)?.ok()?;
                (survivors.id() == word.survivors).then_some(survivors)
            });
            sum.falsehood(&sets.next()?, node, word)
        })
    }

    /// Returns who gave away shares that are not of its secret, by what was said to open a sum of the round.
    pub(crate) fn false_holder(&self, sum: &Sum) -> Option<NodeId> {
        let round = sum.round();
        self.proposals(round).find_map(|(_, proposal)| {
            let survivors = sum.survivors(&proposal.members)?.ok()?;
            let words = self.unmasking(round, survivors.id());
            let words = words.iter().map(|word| (word.author, word.said)).collect();
            let words = sum.true_words(&survivors, words);
            sum.liar(&survivors, &words)
        })
    }

    fn words_of(&self, round: Round) -> impl Iterator<Item = &Accepted> {
        // What a banned node said before it was banned does not count either.
        let trusted = self.nodes.iter().filter(|(_, view)| !view.banned);
        let words = trusted.flat_map(|(_, view)| view.words());
        words.filter(move |word| word.round == round)
    }
}
