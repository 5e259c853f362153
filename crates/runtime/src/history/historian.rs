//! What a running member keeps: each round that is over, as it was signed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use fednode_core::{Advert, AdvertId, Body, ClosingId, Global, NodeId, Round, SignedAdvert};
use fednode_store::ledger::KeptRound;
use fednode_store::{Ledger, LedgerError};

/// Closed rounds of the own chain that are looked at when a round is over.
pub(crate) const KEPT_AT_ONCE: usize = 8;
/// Closings that are known to be kept.
const REMEMBERED: usize = 8 * KEPT_AT_ONCE;

/// Copies rounds that are over into the history.
///
/// A node that closes a round itself follows it before its announcement is signed. So the announcement is waited for. Where no
/// mean is common to all, nobody waits for the updates of others, and they come late.
#[derive(Debug, Default)]
pub(crate) struct Historian {
    /// The followed closings whose announcement is waited for.
    awaited: Vec<ClosingId>,
    /// The newest closings that are kept.
    kept: VecDeque<ClosingId>,
    /// The newest rounds without a closing.
    apart: BTreeSet<Round>,
}

impl Historian {
    /// This node follows these closed rounds, the newest first.
    pub(crate) fn follows(
        &mut self,
        ledger: &Ledger,
        chain: &[ClosingId],
    ) -> Result<(), LedgerError> {
        let chain = chain.iter().copied();
        self.awaited = chain.filter(|id| !self.kept.contains(id)).collect();
        if self.awaited.is_empty() {
            return Ok(());
        }
        for (_, said) in ledger.adverts_of("global", None)? {
            // The disk is believed no more than a peer.
            if let Ok(advert) = fednode_net::verify(&said) {
                self.heard(ledger, &advert, &said)?;
            }
        }
        Ok(())
    }

    /// A round is over without a mean in common.
    pub(crate) fn ended(&mut self, ledger: &Ledger, round: Round) -> Result<(), LedgerError> {
        let kept = ledger.kept_round(round)?;
        if kept.is_some_and(|kept| kept.closing.is_some()) {
            return Ok(());
        }
        // Of two updates of an author the later one stays.
        let updates = ledger.adverts_of("local", Some(round))?;
        let updates: BTreeMap<NodeId, SignedAdvert> = updates.into_iter().collect();
        ledger.keep_round(&KeptRound {
            round,
            closing: None,
            updates: updates.into_iter().collect(),
            words: Vec::new(),
        })?;
        self.apart.insert(round);
        if self.apart.len() > KEPT_AT_ONCE {
            self.apart.pop_first();
        }
        Ok(())
    }

    /// An advert was accepted, or said by this node.
    pub(crate) fn heard(
        &mut self,
        ledger: &Ledger,
        advert: &Advert,
        said: &SignedAdvert,
    ) -> Result<(), LedgerError> {
        match &advert.body {
            Body::Global(global) if !self.awaited.is_empty() => {
                let id = global.id(advert.round);
                if !self.awaited.contains(&id) {
                    return Ok(());
                }
                keep(ledger, advert.round, said, global)?;
                self.awaited.retain(|awaited| *awaited != id);
                self.kept.push_back(id);
                self.kept
                    .drain(..self.kept.len().saturating_sub(REMEMBERED));
                // From now on the updates of this round are those that its closing counts.
                self.apart.remove(&advert.round);
                Ok(())
            }
            Body::Local(_) if self.apart.contains(&advert.round) => {
                ledger.keep_update(advert.round, advert.author, said)
            }
            _ => Ok(()),
        }
    }
}

fn keep(
    ledger: &Ledger,
    round: Round,
    closing: &SignedAdvert,
    global: &Global,
) -> Result<(), LedgerError> {
    let mut updates = Vec::new();
    for member in &global.members {
        if let Some(advert) = ledger.advert(member.node, member.advert)? {
            updates.push((member.node, advert));
        }
    }
    let mut words = Vec::new();
    // Who averaged two slices said so in one word.
    let named: BTreeSet<(NodeId, AdvertId)> = global.words().collect();
    for (author, word) in named {
        if let Some(advert) = ledger.advert(author, word)? {
            words.push((author, advert));
        }
    }
    // After a restart it is looked at again, and older updates may be gone since.
    let has_more = |kept: KeptRound| {
        kept.updates.len() + kept.words.len() >= updates.len() + words.len()
            && kept
                .closing
                .is_some_and(|kept| announces(&kept, round, global))
    };
    if ledger.kept_round(round)?.is_some_and(has_more) {
        return Ok(());
    }
    ledger.keep_round(&KeptRound {
        round,
        closing: Some(closing.clone()),
        updates,
        words,
    })
}

/// Tells whether an advert announces this closing of a round.
fn announces(said: &SignedAdvert, round: Round, closing: &Global) -> bool {
    let advert = fednode_net::verify(said);
    advert.is_ok_and(|advert| match &advert.body {
        Body::Global(global) => global.id(advert.round) == closing.id(round),
        _ => false,
    })
}
