//! Keeping pace: how long members take, and for whom a node waits where nothing is averaged.
//!
//! Where rounds are closed without an aggregator, [`crate::stragglers`] says how long the others are waited for. In a large
//! federation others speak in every round, so nobody's time is noted.
//!
//! Where experts are exchanged and nothing is averaged (FedMoE-DA with a frozen embedding), no closed round tells who took part
//! in it. There every node looks for itself. The plans of the next rounds need the proxies of refresh rounds. So in those rounds
//! it waits for the updates of all who are there and have not got as far. It waits for its own to come back, too: a plan
//! compares the others' proxies with those. In every round the grace time starts when a quorum of them has. Who has gone while this node was
//! away is known by its adverts alone, and is waited for no longer than the grace time.

use fednode_core::{ClosingId, NodeId};

use super::exchange::{Exchange, acting};
use super::shared::Shared;
use crate::event::Timer;
use crate::quorum::Patience;
use crate::view::Update;

/// Another node's update was heard.
pub(super) fn note_update(shared: &mut Shared, update: Update<'_>) {
    if !shared.broadcast_set.is_partial() {
        let (node, follows) = (update.node, update.local.follows);
        shared.stragglers.on_update(shared.now, node, follows);
    }
}

/// An update was heard some time ago.
pub(super) fn note_late_news(shared: &mut Shared, update: Update<'_>) {
    if !shared.broadcast_set.is_partial() {
        let (node, follows) = (update.node, update.local.follows);
        shared.stragglers.on_late_news(node, follows);
    }
}

/// A closing is followed from now on.
pub(super) fn note_closing(shared: &mut Shared, closing: ClosingId) {
    if !shared.broadcast_set.is_partial() {
        let silent = acting::unheard(shared, shared.chain.head().round.next());
        shared.stragglers.note_silent(silent.into_iter());
    }
    shared.stragglers.begin(Some(closing), shared.now);
}

fn sees_no_closed_rounds(shared: &Shared) -> bool {
    !shared.averages() && shared.spec.exchange.experts.is_some()
}

/// Returns who is there and due to train in the round, as (has got as far, has not).
fn progress_of_others(shared: &Shared, exchange: &Exchange) -> (Vec<NodeId>, Vec<NodeId>) {
    let (view, round) = (&shared.view, exchange.round());
    let counts = |node: &NodeId| shared.cohort.contains(*node) && shared.is_waited_for(*node);
    let due = view.nodes().known();
    let due = due.filter(|node| *node != shared.me && counts(node));
    let has_got_as_far = |node: &NodeId| {
        let newest = view.nodes().newest_local(*node);
        newest.is_some_and(|(newest, _)| newest >= round)
    };
    let (done, mut late): (Vec<NodeId>, Vec<NodeId>) = due.partition(has_got_as_far);
    // Who was only heard of, in what others kept of it, has the grace time to come.
    if exchange.patience(shared) > Patience::Waiting {
        late.retain(|node| view.is_connected(*node));
    }
    (done, late)
}

/// Waits for those who have not got as far.
pub(super) fn wait_for_others(shared: &mut Shared, exchange: &mut Exchange) {
    if !sees_no_closed_rounds(shared) {
        return;
    }
    let round = exchange.round();
    let (_, late) = progress_of_others(shared, exchange);
    if late.iter().any(|node| !shared.view.is_connected(*node)) {
        let over = shared.now + shared.spec.round.grace();
        shared.outbox.set_timer(Timer::Look(round), over);
    }
    if shared.schedule.refreshes_in(round) {
        let own = Some(shared.me).filter(|me| shared.view.nodes().local(*me, round).is_none());
        exchange.await_updates(late.into_iter().chain(own));
    }
    look(shared, exchange);
}

/// Starts the grace time once a quorum has got as far as this node, itself included.
pub(super) fn look(shared: &mut Shared, exchange: &mut Exchange) {
    if !sees_no_closed_rounds(shared) {
        return;
    }
    let (round, times) = (exchange.round(), &shared.spec.round);
    let (done, late) = progress_of_others(shared, exchange);
    if exchange.patience(shared) > Patience::Waiting {
        let view = &shared.view;
        exchange.await_only(|node| node == shared.me || view.is_connected(node));
    }
    // Both counts leave this node out; it is done itself.
    let is_quorum = done.len() + 1 >= times.quorum_of(done.len() + late.len() + 1);
    if is_quorum && exchange.begins_grace() {
        let over = shared.now + times.grace();
        shared.outbox.set_timer(Timer::Grace(round), over);
    }
}
