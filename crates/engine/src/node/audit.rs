//! Audit: recomputing the mean that somebody else signed.
//!
//! A node recomputes with a small probability each round, and always when another node acted as aggregator for a part
//! small enough that everybody can average it (all-gather). The node waits for the result before
//! it adopts. A wrong mean convicts its signer; the accusation carries what was signed, and whoever receives it
//! recomputes too. [`crate::trials`] keeps the trials; here is what follows from them.

use fednode_core::{BlobId, BlobRef, Body, Fault, NodeId, Round};

use super::phase::Phase;
use super::shared::Shared;
use crate::event::{Arrival, Note, Output};
use crate::follower::{Announced, Closed};
use crate::trials::{Known, Step};

/// A blob is held, or cannot be had: trials that waited for it go on.
pub(super) fn resolve(phase: &mut Phase, shared: &mut Shared, blob: BlobId, arrival: Arrival) {
    for step in shared.trials.resolve(blob, arrival) {
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
    let Some((closed, accuser)) = shared.trials.end(number, mean) else {
        return;
    };
    match mean {
        Some(actual) if actual.id != closed.global.mean.id => {
            convict(phase, shared, closed, actual.id);
        }
        Some(actual) => {
            if let Some(exchange) = phase.exchange_mut() {
                exchange.acquit(&closed, Some(actual.id));
            }
            if let Some(accuser) = accuser {
                strike_false_accuser(shared, accuser, closed.author);
            }
        }
        // Its author counted these parts, so it holds them; that nobody can get them speaks against it.
        None if shared.everybody_verifies(&closed) => {
            phase.give_up_on_mean(shared, closed.global.mean.id);
        }
        None => {
            if let Some(exchange) = phase.exchange_mut() {
                exchange.acquit(&closed, None);
            }
        }
    }
}

fn convict(phase: &mut Phase, shared: &mut Shared, closed: Closed, actual: BlobId) {
    let (accused, round) = (closed.author, closed.round);
    shared.outbox.note(Note::CheatFound {
        node: accused,
        round,
    });
    let fault = Fault {
        accused,
        evidence: closed.global,
        actual,
    };
    shared.outbox.publish(round, Body::Fault(fault));
    let reason = format!("signed a false mean for round {round}");
    shared.ban(phase.exchange_mut(), accused, reason);
}

fn strike_false_accuser(shared: &mut Shared, accuser: NodeId, accused: NodeId) {
    let reason = format!("accused {} falsely", accused.short());
    shared.outbox.strike(accuser, reason);
}

/// Somebody says that a node signed a false mean: whoever has received that mean from it recomputes, if anybody could have
/// followed it.
pub(super) fn on_accusation(
    phase: &mut Phase,
    shared: &mut Shared,
    accuser: NodeId,
    round: Round,
    fault: &Fault,
) {
    let (accused, evidence) = (fault.accused, &fault.evidence);
    // Nobody accuses itself, and this node knows what it signed.
    if [accused, shared.me].contains(&accuser) || accused == shared.me {
        return;
    }
    match shared.trials.accuse(accused, evidence, accuser) {
        Known::Recomputed => return strike_false_accuser(shared, accuser, accused),
        Known::Tried => return,
        Known::Nothing => {}
    }
    let is_it = |(author, announced_in, global): Announced<'_>| {
        author == accused && announced_in == round && *global == *evidence
    };
    let was_announced = shared.view.globals().any(is_it);
    // Members that nobody has confirmed cost nobody a fetch: an accuser could invent as many as it likes.
    let is_confirmed = 2 * shared.view.confirmed(round, evidence) > evidence.members.len();
    if was_announced && is_confirmed {
        phase.put_on_trial(accused, evidence);
        let closed = Closed {
            author: accused,
            round,
            global: evidence.clone(),
        };
        shared.begin_trial(closed, Some(accuser));
    }
}
