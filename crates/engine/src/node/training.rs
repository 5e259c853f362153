//! Training: the trainer works, and the experts of those who are done with the round are fetched meanwhile.

use fednode_core::{LocalReport, Round, Timestamp};
use serde::{Deserialize, Serialize};

use super::exchange::Exchange;
use super::exchanging::Exchanging;
use super::phase::Phase;
use super::shared::Shared;
use crate::event::{Note, Output};

/// A node whose trainer works.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Training {
    pub(super) since: Timestamp,
    pub(super) exchange: Box<Exchange>,
}

impl Training {
    /// Starts a round of training from the model as it is; a node that is not drawn for it rests instead.
    pub(super) fn begin(shared: &mut Shared, round: Round) -> Phase {
        shared.memory.round = round;
        shared.cohort = shared.cohort_of(round);
        if !shared.trains() {
            return Exchanging::rest(shared);
        }
        // Opened before the trainer begins, so that experts come while it works.
        let exchange = Exchange::open(shared);
        shared.outbox.note(Note::RoundStarted(round));
        // Saved first: a node that dies while it trains begins this round again.
        shared.outbox.push(Output::Save);
        let masks = shared.masks(round);
        shared.outbox.push(Output::Train { round, masks });
        Phase::Training(Self {
            since: shared.now,
            exchange,
        })
    }

    /// Publishes the update, remembers it and waits for the others.
    pub(super) fn on_trained(self, shared: &mut Shared, mut report: LocalReport) -> Phase {
        // The trainer does not know which closed rounds were followed.
        report.lineage = shared.memory.lineage;
        shared.publish_update(&report);
        shared.memory.report = Some(report);
        Exchanging::begin(shared, self.exchange)
    }
}
