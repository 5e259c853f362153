//! The books of a node: the records of its rounds, the evaluations that are due, and what came after the last round.
//!
//! ```text
//!   begin ──► trained ──► experts here ──► merge begins ──► merged ──► evaluated ──► record complete
//!     │          │  └──────── experts ────────┘└─ global ─┘                │
//!     │          └── evaluated after training, in some rounds ─────────────┤   (whichever is later)
//!     └────────────────────────── round_seconds ───────────────────────────┘
//! ```
//!
//! The live driver and the simulator keep the same books, so both evaluate in the same rounds and write the same records.
//! The books are pure: times, bytes and memory are told to them. They are written to the checkpoint, so a restart in the
//! middle of an exchange loses no line.

mod open;
mod record;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fednode_core::work::{Evaluations, LastStage, Splits, Update};
use fednode_core::{
    Component, Composition, MixedIn, NodeId, PoolOutcome, Round, Served, Timestamp,
};
use serde::{Deserialize, Serialize};

pub use open::{Measured, OpenRecord};
pub use record::{Ahead, Bytes, RoundRecord, Traffic, Waited};

/// Rounds whose records may be open at once: the one that is merged and the one that already trains, and two more
/// that nobody has closed yet.
const MAX_OPEN: usize = 4;

/// When evaluations are due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calendar {
    /// Rounds in all. The last one is evaluated fully.
    pub rounds: u32,
    /// Rounds from one full evaluation to the next; 0 counts as 1. A full evaluation looks at the validation split too,
    /// and at the model before the exchange.
    pub evaluate_every: u32,
}

impl Calendar {
    /// Tells whether a round is evaluated before the exchange too, and on the validation split.
    pub fn evaluates_fully(self, round: Round) -> bool {
        round.0 == self.rounds || round.0.is_multiple_of(self.evaluate_every.max(1))
    }

    /// Returns what a round is evaluated on after the exchange.
    pub fn splits(self, round: Round) -> Splits {
        if self.evaluates_fully(round) {
            Splits::ValidationAndTest
        } else {
            Splits::Test
        }
    }
}

/// Where in a round the model is evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Point {
    /// After local training, before the exchange.
    AfterTraining,
    /// After the exchange.
    AfterExchange,
}

/// An evaluation that a record waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Due {
    /// The round.
    pub round: Round,
    /// Where in the round.
    pub point: Point,
}

/// How a round was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closing {
    /// Who closed it; `None` if nobody did.
    pub by: Option<NodeId>,
    /// Members that were counted.
    pub members: u32,
    /// Bytes so far, if those that move from now on belong to the next round. Without it they do from the moment when
    /// that round begins.
    pub traffic: Option<Traffic>,
}

/// The evaluation that will be due after an exchange, which may change the model or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DueAfterExchange {
    /// If the exchange changes the model.
    pub if_changed: Option<Splits>,
    /// If it does not.
    pub if_unchanged: Option<Splits>,
}

/// What the model is in the middle of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Work {
    /// Nothing: the model and the state machine are of one moment.
    #[default]
    Idle,
    /// The local update of a round.
    Training(Round),
    /// The exchange of a round.
    Merging(Round),
    /// What follows the last round: fine-tuning, the private module, the pool. A checkpoint of that time would make a
    /// restart train the last stage on top of itself.
    LastStage,
}

/// Everything in the books that outlives a restart.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Pages {
    /// Records that are not complete.
    pub records: Vec<OpenRecord>,
    /// The newest complete record.
    pub last_record: Option<RoundRecord>,
    /// What came after the last round.
    #[serde(default)]
    pub last_stage: LastStage,
}

/// The books of a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RoundBook {
    me: NodeId,
    calendar: Calendar,
    work: Work,
    open: BTreeMap<Round, OpenRecord>,
    last: Option<RoundRecord>,
    last_stage: LastStage,
}

impl RoundBook {
    /// Opens empty books.
    pub fn new(me: NodeId, calendar: Calendar) -> Self {
        Self::reopen(me, calendar, Pages::default())
    }

    /// Opens the books with the pages that a checkpoint brought back.
    pub fn reopen(me: NodeId, calendar: Calendar, pages: Pages) -> Self {
        let mut open: BTreeMap<Round, OpenRecord> = pages
            .records
            .into_iter()
            .map(|open| (open.record.round, open))
            .collect();
        // Byte counters start again with the process.
        for open in open.values_mut() {
            open.traffic_before = Traffic::default();
            open.traffic_after = None;
        }
        Self {
            me,
            calendar,
            work: Work::Idle,
            open,
            last: pages.last_record,
            last_stage: pages.last_stage,
        }
    }

    /// Returns the pages for a checkpoint.
    pub fn pages(&self) -> Pages {
        Pages {
            records: self.open.values().cloned().collect(),
            last_record: self.last.clone(),
            last_stage: self.last_stage.clone(),
        }
    }

    /// Returns when evaluations are due.
    pub fn calendar(&self) -> Calendar {
        self.calendar
    }

    /// Returns what the model is in the middle of.
    pub fn work(&self) -> Work {
        self.work
    }

    /// Says what the model is in the middle of now, beside what the rounds themselves tell.
    pub fn now(&mut self, work: Work) {
        self.work = work;
    }

    /// Returns the newest complete record.
    pub fn last(&self) -> Option<&RoundRecord> {
        self.last.as_ref()
    }

    /// Returns what came after the last round.
    pub fn last_stage(&self) -> &LastStage {
        &self.last_stage
    }

    /// Says what the model that is served lacks of what the spec asks for.
    pub fn lacks(&self) -> Option<&str> {
        let of_record = self.last.as_ref().and_then(|last| last.lacks.as_deref());
        let finished = self.last_stage.evaluations.as_ref();
        finished.map_or(of_record, |finished| finished.lacks.as_deref())
    }

    /// Says why the model that is served is of no use, if it is no better than a constant answer.
    pub fn useless(&self) -> Option<&str> {
        let of_record = self.last.as_ref().and_then(|last| last.useless.as_deref());
        let finished = self.last_stage.evaluations.as_ref();
        finished.map_or(of_record, |finished| finished.useless.as_deref())
    }

    /// Returns what the model that is served is made of, where it is more than the algorithm's.
    pub fn composition(&self) -> Option<&Composition> {
        let of_record = self
            .last
            .as_ref()
            .and_then(|last| last.composition.as_ref());
        let finished = self.last_stage.evaluations.as_ref();
        finished.map_or(of_record, |finished| finished.composition.as_ref())
    }

    /// Tells whether no record is open.
    pub fn all_complete(&self) -> bool {
        self.open.is_empty()
    }

    /// Sorts out what an earlier life left open, and returns the evaluations to catch up on.
    ///
    /// The model is that of the checkpoint: after the exchange of every closed round, after the training of the round that
    /// is being exchanged. A round that was being trained starts anew. The lines of rounds in `written` exist already.
    pub fn resume(&mut self, written: &BTreeSet<Round>) -> Vec<Due> {
        let is_lost = |round: &Round, open: &OpenRecord| {
            open.trained_at.is_none() || (open.closed && written.contains(round))
        };
        self.open.retain(|round, open| !is_lost(round, open));
        let mut due = Vec::new();
        for (round, open) in &mut self.open {
            let at = |point| Due {
                round: *round,
                point,
            };
            if open.closed && !open.evaluated_merged {
                due.push(at(Point::AfterExchange));
            } else if !open.closed && !open.evaluated_locally {
                due.push(at(Point::AfterTraining));
            }
            // The model after training is gone once it was merged.
            open.evaluated_locally |= open.closed;
        }
        due
    }

    /// A round's training starts.
    pub fn begin(&mut self, round: Round, now: Timestamp, traffic: Traffic) {
        self.work = Work::Training(round);
        let fully = self.calendar.evaluates_fully(round);
        // Where no evaluation is due after training, the record waits for none.
        self.open_record(round, now, traffic, !fully);
    }

    /// The node rests in a round. How good every node is in the end is wanted of all, so the last round is evaluated
    /// after the exchange even of a node that rests in it.
    pub fn rest(&mut self, round: Round, now: Timestamp, traffic: Traffic) {
        if round.0 == self.calendar.rounds && !self.open.contains_key(&round) {
            self.open_record(round, now, traffic, true);
        }
    }

    fn open_record(
        &mut self,
        round: Round,
        now: Timestamp,
        traffic: Traffic,
        evaluated_locally: bool,
    ) {
        // The oldest goes: rounds that nobody closed in all that time will hardly be closed now.
        while self.open.len() >= MAX_OPEN {
            self.open.pop_first();
        }
        for open in self.open.values_mut() {
            open.traffic_after.get_or_insert(traffic);
        }
        let open = OpenRecord {
            record: RoundRecord::new(round, self.me, now),
            traffic_before: traffic,
            traffic_after: None,
            trained_at: None,
            experts_at: None,
            merge_at: None,
            evaluated_locally,
            evaluated_merged: false,
            closed: false,
        };
        self.open.insert(round, open);
    }

    /// The local update is done: `took` is the time of its training, `publish` that of writing its blobs.
    pub fn trained<P>(
        &mut self,
        round: Round,
        now: Timestamp,
        update: &Update<P>,
        [took, publish]: [Duration; 2],
    ) {
        self.work = Work::Idle;
        self.with(round, |open| {
            open.trained_at = Some(now);
            let record = &mut open.record;
            record.train_seconds = took.as_secs_f64();
            record.waited_seconds.publish = publish.as_secs_f64();
            record.train_loss = update.train_loss;
            record.n_samples = update.n_samples;
            record.expert_share.clone_from(&update.expert_share);
            record.multiply_adds = Some(update.multiply_adds);
        });
    }

    /// The first epochs of the round after this one are trained.
    pub fn trained_ahead(&mut self, round: Round, now: Timestamp, took: Duration) {
        let started_at = Timestamp(now.0.saturating_sub(took.as_millis() as u64));
        let ahead = Ahead {
            started_at,
            seconds: took.as_secs_f64(),
        };
        self.with(round, |open| open.record.ahead = Some(ahead));
    }

    /// An expert arrived, or will not.
    pub fn expert_settled(&mut self, now: Timestamp) {
        if let Some(mut last) = self.open.last_entry() {
            let open = last.get_mut();
            // Nobody waits for what comes while the node still trains.
            if open.trained_at.is_some() && open.merge_at.is_none() {
                open.experts_at = Some(now);
            }
        }
    }

    /// Everything that the exchange waits for is here.
    pub fn merge_begins(&mut self, round: Round, now: Timestamp) {
        self.work = Work::Merging(round);
        self.with(round, |open| {
            open.merge_at = Some(now);
            let trained_at = open.trained_at.unwrap_or(now);
            let experts_at = open.experts_at.unwrap_or(trained_at);
            let waited = &mut open.record.waited_seconds;
            waited.experts = experts_at.since(trained_at).as_secs_f64();
            waited.global = now.since(experts_at.max(trained_at)).as_secs_f64();
        });
    }

    /// The exchange is done; `mixed` says whose experts were mixed in, of which there are `n_sources_used`.
    pub fn merged(
        &mut self,
        round: Round,
        took: Duration,
        n_sources_used: u32,
        mixed: Vec<MixedIn>,
    ) {
        if self.work == Work::Merging(round) {
            self.work = Work::Idle;
        }
        self.with(round, |open| {
            open.record.waited_seconds.merge = took.as_secs_f64();
            open.record.n_sources_used = n_sources_used;
            open.record.mixed = mixed;
        });
    }

    /// The exchange changed nothing, so the model is as good as it was after training.
    pub fn unchanged(&mut self, round: Round) {
        self.with(round, |open| open.evaluated_merged = true);
    }

    /// The round is closed.
    pub fn closed(&mut self, round: Round, closing: Closing) {
        self.with(round, |open| {
            open.closed = true;
            open.record.closed_by = closing.by;
            open.record.members = closing.members;
            open.traffic_after = open.traffic_after.or(closing.traffic);
        });
    }

    /// The model was copied for a checkpoint.
    pub fn saved(&mut self, round: Round, took: Duration) {
        self.with(round, |open| {
            open.record.waited_seconds.save += took.as_secs_f64();
        });
    }

    /// Returns the evaluation that will be due after a round's exchange. There is none without an open record.
    pub fn due_after_exchange(&self, round: Round) -> DueAfterExchange {
        if !self.open.contains_key(&round) {
            return DueAfterExchange::default();
        }
        // A model that was evaluated after training and has not changed since is as good as it was.
        let is_known = self.calendar.evaluates_fully(round);
        DueAfterExchange {
            if_changed: Some(self.calendar.splits(round)),
            if_unchanged: (!is_known).then_some(Splits::Test),
        }
    }

    /// Returns the evaluations after an exchange that are due now, oldest first.
    pub fn due(&self) -> Vec<Due> {
        let is_due = |open: &&OpenRecord| open.closed && !open.evaluated_merged;
        let rounds = self.open.values().filter(is_due);
        rounds
            .map(|open| Due {
                round: open.record.round,
                point: Point::AfterExchange,
            })
            .collect()
    }

    /// The model was evaluated.
    pub fn evaluated(&mut self, due: Due, evaluations: &Evaluations, took: Duration) {
        self.with(due.round, |open| {
            open.record.waited_seconds.evaluate += took.as_secs_f64();
            open.enter(due.point, evaluations);
        });
    }

    /// The model was fine-tuned after the last round, if `evaluations` say so.
    pub fn fine_tuned(&mut self, evaluations: Option<Evaluations>) {
        if evaluations.is_some() {
            self.last_stage.evaluations = evaluations;
        }
    }

    /// The pool is assembled, and its mixture is served or left out.
    pub fn pooled(&mut self, outcome: PoolOutcome, mut evaluations: Evaluations) {
        self.work = Work::Idle;
        let has_others = outcome.members.iter().any(|member| member.node.is_some());
        if has_others && outcome.served != Served::Mixture {
            let made_of = evaluations.composition.take();
            let made_of = made_of.unwrap_or_else(|| Composition::of(Component::OwnModel));
            evaluations.composition = Some(made_of.without(Component::Pool));
        }
        self.last_stage = LastStage {
            evaluations: Some(evaluations),
            pool: Some(outcome),
        };
    }

    /// The model is what it will be, in this life or since an earlier one.
    pub fn concluded(&mut self, last_stage: LastStage) {
        self.work = Work::Idle;
        self.last_stage = last_stage;
    }

    /// Takes the last record of an earlier life.
    pub fn remember(&mut self, record: Option<RoundRecord>) {
        let round = |record: &RoundRecord| record.round;
        if record.as_ref().map(round) > self.last.as_ref().map(round) {
            self.last = record;
        }
    }

    /// All rounds are done: what is not closed now never will be.
    pub fn give_up_unclosed(&mut self) {
        self.open.retain(|_, open| open.closed);
    }

    /// Takes the records that have become complete, oldest first. `measure` is asked once for each.
    pub fn take_complete(
        &mut self,
        mut measure: impl FnMut(&RoundRecord) -> Measured,
    ) -> Vec<RoundRecord> {
        let is_complete =
            |open: &OpenRecord| open.closed && open.evaluated_locally && open.evaluated_merged;
        let complete = self.open.extract_if(.., |_, open| is_complete(open));
        let records: Vec<RoundRecord> = complete
            .map(|(_, open)| {
                let measured = measure(&open.record);
                open.finish(measured)
            })
            .collect();
        if let Some(last) = records.last() {
            self.last = Some(last.clone());
        }
        records
    }

    fn with(&mut self, round: Round, change: impl FnOnce(&mut OpenRecord)) {
        if let Some(open) = self.open.get_mut(&round) {
            change(open);
        }
    }
}

#[cfg(test)]
mod tests;
