//! A member's part in the masked sum of its round, once its vector is out.
//!
//! It agrees to one set of survivors. It takes its masks off for the set that more than two thirds of all members agree to.

use std::time::Duration;

use fednode_core::masked::{Agreement, Proposal};
use fednode_core::{Body, NodeId, Round};

use crate::chain::{self, Rank, Verdict};
use crate::event::{Output, Timer};
use crate::masks::{Sum, UnmaskOrder};
use crate::node::shared::Shared;

/// Looks whether there is something to agree to, and whether enough others agree. `waited` is how long the round has been
/// waited for.
pub(super) fn advance(shared: &mut Shared, round: Round, waited: Duration) {
    if round <= shared.done.unmasked {
        return;
    }
    let Some(sum) = shared.sum(round).filter(|sum| sum.has(shared.me)) else {
        return;
    };
    if round > shared.done.agreed {
        agree(shared, &sum, waited);
    }
    // It may have agreed to another set. It speaks for the one that most agree to.
    if let Some(confirmed) = confirmed(shared, &sum) {
        shared.done.unmasked = round;
        // By then all have spoken, and a sum that is not open never will be.
        let late = shared.now + shared.spec.round.grace();
        shared.outbox.set_timer(Timer::Opened(round), late);
        shared.outbox.push(Output::Unmask(Box::new(confirmed)));
    }
}

fn agree(shared: &mut Shared, sum: &Sum, waited: Duration) {
    let round = sum.round();
    let judge = shared.judge(waited);
    let mut best: Option<(Rank, Proposal)> = None;
    let (mut lacking, mut may_be_good_later) = (Vec::new(), false);
    for (author, proposal) in shared.view.proposals(round) {
        match judge.judge_proposal(sum, author, proposal) {
            Verdict::Next => {
                let rank = shared.rank(round, author);
                if best.as_ref().is_none_or(|(known, _)| rank < *known) {
                    best = Some((rank, proposal.clone()));
                }
            }
            Verdict::Unconfirmed(adverts) => {
                may_be_good_later = true;
                lacking.extend(adverts);
            }
            // Nobody has to agree to it, so it needs no verdict.
            Verdict::False(_) | Verdict::Old | Verdict::Switch | Verdict::Outvoted(_) => {}
        }
    }
    let grace = shared.spec.round.grace();
    if let Some((_, proposal)) = best {
        if let Some(Ok(survivors)) = sum.survivors(&proposal.members) {
            let survivors = survivors.id();
            let agreement = Body::Agree(Agreement { survivors });
            shared.outbox.publish(round, agreement);
            shared.done.agreed = round;
        }
    } else if may_be_good_later {
        let soon = shared.now + grace / 4;
        shared.outbox.set_timer(Timer::Unmask(round), soon);
        let when = (shared.now, shared.spec.as_ref(), round);
        chain::ask_for(lacking, &mut shared.view, &mut shared.outbox, when);
    }
}

/// Returns the word to be said, if more than two thirds agree to a proposal.
fn confirmed(shared: &Shared, sum: &Sum) -> Option<UnmaskOrder> {
    let mut proposals = shared.view.proposals(sum.round());
    proposals.find_map(|(_, proposal): (NodeId, &Proposal)| order(shared, sum, proposal))
}

fn order(shared: &Shared, sum: &Sum, proposal: &Proposal) -> Option<UnmaskOrder> {
    let survivors = sum.survivors(&proposal.members)?.ok()?;
    let agreed = shared.view.agreed(sum.round(), survivors.id());
    let nodes = survivors.nodes().collect();
    survivors.confirmed(sum.roster()?, &agreed).ok()?;
    Some(UnmaskOrder {
        sum: sum.clone(),
        survivors: nodes,
        agreed,
    })
}
