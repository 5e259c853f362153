//! Audit: recomputing the mean that somebody else signed.
//!
//! A node recomputes with a small probability each round, and always when another node acted as aggregator for a part
//! small enough that everybody can average it (all-gather). The node waits for the result before it adopts. With the same
//! probability it recomputes a mean that it has followed, beside its next round. A wrong mean convicts its signer; the
//! accusation carries what was signed, and whoever receives it recomputes too. [`crate::trials`] keeps the trials; here is
//! what follows from them.

use std::time::Duration;

use fednode_core::{AdvertId, BlobId, BlobRef, Body, Fault, Global, NodeId, Round};

use super::phase::Phase;
use super::shared::Shared;
use crate::event::{Arrival, Note, Output};
use crate::follower::Closed;
use crate::masks::FALSE_SHARES;
use crate::trials::{Ended, Known, Step, What};

/// Accusations of one node that are looked into. A true one ends with the accused banned, so an honest node needs few.
const MOST_ACCUSATIONS: u32 = 8;
/// Nodes whose accusations are counted.
const MOST_ACCUSERS: usize = 1024;

/// A blob is held, or cannot be had: trials that waited for it go on.
pub(super) fn resolve(phase: &mut Phase, shared: &mut Shared, arrival: Arrival) {
    for step in shared.trials.resolve(arrival) {
        match step {
            Step::Average(order) => shared.outbox.push(Output::Average(order)),
            Step::Impossible(number) => on_recomputed(phase, shared, number, None),
        }
    }
}

/// The mean was recomputed, or could not be (`None`), which proves nothing: if it had to be, somebody else closes the
/// round.
pub(super) fn on_recomputed(
    phase: &mut Phase,
    shared: &mut Shared,
    number: u32,
    mean: Option<BlobRef>,
) {
    let Some(ended) = shared.trials.end(number, mean) else {
        return;
    };
    let faults = mean.map_or(Vec::new(), |actual| ended.faults(actual));
    let signed = ended.signed();
    let Ended {
        closed,
        accuser,
        what,
    } = ended;
    match mean {
        Some(_) if !faults.is_empty() => {
            for fault in faults {
                convict(phase, shared, &closed, fault);
            }
        }
        Some(actual) => {
            // A slice is not the mean.
            let mean = (!matches!(what, What::Slice(_))).then_some(actual.id);
            acquit(phase, shared, &closed, mean);
            if let Some((accuser, (accused, _))) = accuser.zip(signed.first().copied()) {
                strike_false_accuser(shared, accuser, accused);
            }
        }
        // Its author counted these parts, so it holds them; that nobody can get them speaks against it.
        None if shared.everybody_verifies(&closed) => {
            shared.view.doubt(closed.author);
            phase.give_up_on_closing(shared, closed.id());
        }
        None => acquit(phase, shared, &closed, None),
    }
}

/// A trial ended without a verdict against the closing, of which another slice may still be tried.
fn acquit(phase: &mut Phase, shared: &Shared, closed: &Closed, mean: Option<BlobId>) {
    let is_open = shared.trials.has_open(closed.author, &closed.global);
    if let Some(exchange) = phase.exchange_mut().filter(|_| !is_open) {
        exchange.acquit(closed, mean);
    }
}

/// The slices of a mean are something else together than whoever closed the round has signed.
pub(super) fn on_false_join(
    phase: &mut Phase,
    shared: &mut Shared,
    closed: Closed,
    actual: BlobRef,
) {
    let fault = Fault {
        accused: closed.author,
        evidence: closed.advert,
        actual: actual.id,
        slice: None,
    };
    convict(phase, shared, &closed, fault);
}

fn convict(phase: &mut Phase, shared: &mut Shared, closed: &Closed, fault: Fault) {
    let (accused, round) = (fault.accused, closed.round);
    shared.outbox.note(Note::CheatFound {
        node: accused,
        round,
    });
    shared.outbox.publish(round, Body::Fault(fault));
    shared.view.refute(closed.global.id(round));
    let reason = format!("signed a false mean for round {round}");
    ban(phase, shared, accused, reason);
    // Whoever closed the round may be another one than who lied about a slice: the mean is not to be had any more.
    if accused != closed.author {
        phase.give_up_on_closing(shared, closed.id());
    }
}

/// A node told some one thing and others another, and both are here.
pub(super) fn on_equivocation(phase: &mut Phase, shared: &mut Shared, node: NodeId) {
    if node != shared.me && !shared.view.is_banned(node) {
        shared.outbox.note(Note::Equivocated(node));
        let reason = "told some one thing and others another".to_owned();
        ban(phase, shared, node, reason);
    }
}

/// A node spoke of a masked sum. What is false in it is signed, and everybody who hears it drops the node.
pub(super) fn on_word(phase: &mut Phase, shared: &mut Shared, node: NodeId, round: Round) {
    let sum = shared.sum(round);
    if let Some(reason) = shared.view.falsehood(sum.as_deref(), node, round) {
        on_lie(phase, shared, (node, round), reason);
    }
}

/// The sum of a round should be open by now, and may be. If somebody gave away false shares, masks stay on for good: those of the sum,
/// or of its group's.
pub(super) fn on_masks_that_stay(phase: &mut Phase, shared: &mut Shared, round: Round) {
    let sum = shared.chain.newest_sum(&shared.view, round);
    if let Some(liar) = sum.and_then(|sum| shared.view.false_holder(&sum)) {
        on_lie(phase, shared, (liar, round), FALSE_SHARES.to_owned());
    }
}

fn on_lie(phase: &mut Phase, shared: &mut Shared, (node, round): (NodeId, Round), reason: String) {
    if node != shared.me && !shared.view.is_banned(node) {
        let note = reason.clone();
        shared.outbox.note(Note::LiedAboutMasks {
            node,
            round,
            reason: note,
        });
        ban(phase, shared, node, reason);
    }
}

/// The organiser has revoked a node: it counts for nothing from now on.
pub(super) fn on_revocation(phase: &mut Phase, shared: &mut Shared, node: NodeId) {
    if node != shared.me && !shared.view.is_banned(node) {
        shared.outbox.note(Note::Revoked(node));
        shared.silence(phase.exchange_mut(), node);
        // What it has published is mixed no more, from this round on.
        shared.memory.forget(node);
        if let Some(exchange) = phase.exchange_mut() {
            exchange.experts.forget(node);
        }
        phase.consider_globals(shared);
    }
}

fn ban(phase: &mut Phase, shared: &mut Shared, node: NodeId, reason: String) {
    shared.ban(phase.exchange_mut(), node, reason);
    // Another closing of the round may have been announced meanwhile, or this one stands a trial.
    phase.consider_globals(shared);
}

fn strike_false_accuser(shared: &mut Shared, accuser: NodeId, accused: NodeId) {
    let reason = format!("accused {} falsely", accused.letters());
    shared.outbox.strike(accuser, reason);
}

/// Returns the closing that an accusation is about, if it was heard and all its members have signed so: others cost nobody a
/// fetch, since an accuser could invent as many as it likes.
fn accused_closing(shared: &Shared, fault: &Fault) -> Option<Closed> {
    let named = (fault.accused, fault.evidence);
    let is_about = |author: NodeId, advert: AdvertId, global: &Global| match fault.slice {
        None => (author, advert) == named,
        Some(slice) => {
            let pair = global.slices.chunks_exact(2).nth(slice as usize);
            pair.is_some_and(|pair| pair.contains(&named))
        }
    };
    let is_it = |closed: &&Closed| is_about(closed.author, closed.advert, &closed.global);
    // What was followed was confirmed then. The adverts that it names may be forgotten by now.
    if let Some(followed) = shared.closings.followed().find(is_it) {
        return Some(followed.clone());
    }
    let mut announced = shared.view.globals();
    let said = announced.find(|said| is_about(said.author, said.advert, said.global))?;
    let judge = shared.judge(Duration::ZERO);
    let is_confirmed = judge.is_confirmed(said);
    is_confirmed.then(|| Closed::from(said))
}

/// Tells whether a node's accusation is looked into, and counts it. Looking costs the parts of all members, and holds the round up.
fn may_accuse(shared: &mut Shared, accuser: NodeId) -> bool {
    let known = &mut shared.accusations;
    if known.len() >= MOST_ACCUSERS && !known.contains_key(&accuser) {
        return false;
    }
    let accusations = known.entry(accuser).or_default();
    *accusations += 1;
    *accusations <= MOST_ACCUSATIONS
}

/// Somebody says that a node signed a false mean: whoever heard that closing recomputes it, if anybody could have followed
/// it.
pub(super) fn on_accusation(
    phase: &mut Phase,
    shared: &mut Shared,
    accuser: NodeId,
    fault: &Fault,
) {
    let accused = fault.accused;
    // Nobody accuses itself, and this node knows what it signed.
    if [accused, shared.me].contains(&accuser) || accused == shared.me {
        return;
    }
    // Who has found the same is no false accuser.
    if shared.view.is_banned(accused) {
        return;
    }
    let Some(closed) = accused_closing(shared, fault) else {
        return;
    };
    let slice = fault.slice;
    let known = if closed.global.slices.is_empty() {
        shared.trials.accuse(accused, &closed.global, accuser)
    } else {
        let (author, global) = (closed.author, &closed.global);
        let by = (slice, accuser);
        shared.trials.accuse_slices(author, global, by)
    };
    match known {
        Known::Recomputed => strike_false_accuser(shared, accuser, accused),
        // An open trial strikes its first accuser by itself, if that is wrong. One that cannot be held proves nothing.
        Known::Open | Known::Impossible => {}
        Known::Nothing if !shared.can_recompute(&closed) => {}
        Known::Nothing if !may_accuse(shared, accuser) => {}
        Known::Nothing => {
            let (author, global) = (closed.author, closed.global.clone());
            let is_tried = match slice {
                Some(_) => shared.begin_trial_of_slice(closed, Some(accuser), slice),
                None if !global.slices.is_empty() => shared.begin_trial_of_slices(closed, accuser),
                None => {
                    shared.begin_trial(closed, Some(accuser));
                    true
                }
            };
            if is_tried {
                phase.put_on_trial(author, &global);
            }
        }
    }
}
