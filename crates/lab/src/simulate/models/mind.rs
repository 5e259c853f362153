//! What one simulated node knows and has noted, and how that changes with orders, exchanges and the ends of rounds.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use fednode_core::work::{Order, Outcome, Received, Splits, Update};
use fednode_core::{BlobId, NodeId, ParamSet, Round, Timestamp};
use fednode_engine::book::{Bytes, Closing, Due, Measured, Point, RoundBook, RoundRecord, Traffic};
use fednode_engine::execute::Adoption;
use fednode_learn::ClassCount;
use fednode_sim::{self as sim, ClosedRound};
use serde::{Deserialize, Serialize};

use crate::simulate::job::{Done, Knowledge, Task};

/// Everything about a node that an interrupted run keeps, but for its job. `P` is the parameters, or their place in a
/// file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(in crate::simulate) struct Mind<P = Arc<ParamSet>> {
    pub(super) knowledge: Knowledge<P>,
    saved: Knowledge<P>,
    /// What the next job takes over before it evaluates the newest exchange.
    received: Option<Received<P>>,
    /// What it takes over after that: a node that rested received it in a later round.
    then_received: Option<Received<P>>,
    /// The round that it trained last, unless it had to go back since.
    pub(super) trained: Option<Round>,
    /// The round that its job trains.
    training: Option<Round>,
    /// The evaluations of its job, in order.
    due: Vec<Due>,
    pub(super) book: RoundBook,
    /// The complete records.
    pub(in crate::simulate) done: Vec<RoundRecord>,
    pub(super) traffic: Traffic,
    pub(super) on_everyone: Option<Vec<ClassCount>>,
    started_at: Timestamp,
}

impl Mind {
    pub(super) fn new(initial: Knowledge, book: RoundBook) -> Self {
        Self {
            knowledge: initial.clone(),
            saved: initial,
            received: None,
            then_received: None,
            trained: None,
            training: None,
            due: Vec::new(),
            book,
            done: Vec::new(),
            traffic: Traffic::default(),
            on_everyone: None,
            started_at: Timestamp(0),
        }
    }

    /// Makes the task of a job: puts what is still to be taken over and evaluated before the orders.
    pub(super) fn task(&mut self, orders: Vec<Order>) -> Task {
        self.training = orders.iter().find_map(|order| match order {
            Order::Train(round) => Some(*round),
            _ => None,
        });
        let calendar = self.book.calendar();
        self.due = self.book.due();
        let evaluate = |due: &Due| Order::Evaluate(calendar.splits(due.round));
        let mut due = self.due.iter().map(evaluate);
        // Training ahead starts from the model as it was published, and only of a node that trained the round before.
        let ahead = self
            .training
            .filter(|round| self.trained.map(Round::next) == Some(*round));
        let first = ahead
            .map(Order::TrainAhead)
            .into_iter()
            .chain(self.received.take().map(Order::Adopt))
            .chain(due.next())
            .chain(self.then_received.take().map(Order::Adopt))
            .chain(due);
        let mut all: Vec<Order> = first.chain(orders).collect();
        if let Some(round) = self
            .training
            .filter(|round| calendar.evaluates_fully(*round))
        {
            let point = Point::AfterTraining;
            self.due.push(Due { round, point });
            all.push(Order::Evaluate(Splits::ValidationAndTest));
        }
        Task {
            knowledge: self.knowledge.clone(),
            orders: all,
            is_result: false,
        }
    }

    /// Enters what came of a job into the books, and returns what came of its last order but evaluations.
    pub(super) fn enter(&mut self, done: Done) -> Outcome {
        let mut due = std::mem::take(&mut self.due).into_iter();
        let mut ahead = Duration::ZERO;
        let mut last = Outcome::Adopted;
        for (outcome, took) in done.outcomes {
            match &outcome {
                Outcome::TrainedAhead => ahead = took,
                Outcome::Trained(update) => self.enter_update(update, ahead + took),
                Outcome::Evaluated(evaluations) => match &last {
                    Outcome::Pooled(pool) => self.book.pooled(pool.clone(), evaluations.clone()),
                    _ => {
                        if let Some(due) = due.next() {
                            self.book.evaluated(due, evaluations, took);
                        }
                    }
                },
                Outcome::FineTuned(evaluations) => self.book.fine_tuned(evaluations.clone()),
                Outcome::Module(_) | Outcome::Pooled(_) | Outcome::Adopted | Outcome::WentOn => {}
            }
            if !matches!(outcome, Outcome::Evaluated(_)) {
                last = outcome;
            }
        }
        self.knowledge = done.knowledge;
        if done.on_everyone.is_some() {
            self.on_everyone = done.on_everyone;
        }
        last
    }

    fn enter_update(&mut self, update: &Update, took: Duration) {
        if let Some(round) = self.training.take() {
            self.book.begin(round, self.started_at, self.traffic);
            self.book
                .trained(round, self.started_at, update, [took, Duration::ZERO]);
            self.trained = Some(round);
        }
    }

    /// Takes the complete records out of the book and keeps them; returns them.
    pub(super) fn take_records(&mut self) -> &[RoundRecord] {
        let (traffic, known) = (self.traffic, self.done.len());
        self.done.extend(self.book.take_complete(|record| Measured {
            traffic,
            round_seconds: record.train_seconds + record.waited_seconds.evaluate,
            ..Measured::default()
        }));
        &self.done[known..]
    }

    /// Enters what an exchange brought to the node of this name. The next job takes it over.
    pub(super) fn adopt(&mut self, me: NodeId, round: Round, adoption: Adoption) {
        let used = adoption.used.iter().flat_map(|(_, sources)| sources);
        let foreign: BTreeSet<_> = used
            .map(|(expert, _)| *expert)
            .filter(|expert| expert.owner != me)
            .collect();
        let n_sources = u32::try_from(foreign.len()).unwrap_or(u32::MAX);
        self.book
            .merged(round, Duration::ZERO, n_sources, adoption.mixed);
        let received = Received {
            shared: adoption.shared,
            experts: adoption.experts,
            peers: adoption.peers,
            statistics: adoption.statistics,
        };
        if received.is_empty() {
            return;
        }
        // A node that rested in this round may still have an earlier one to evaluate.
        if self.book.due().is_empty() {
            self.received = Some(received);
        } else {
            self.then_received = Some(received);
        }
    }

    /// Enters how a round ended.
    pub(super) fn close(&mut self, closed: ClosedRound) {
        self.book.rest(closed.round, self.started_at, self.traffic);
        self.traffic = Traffic {
            sent: bytes(closed.sent),
            received: bytes(closed.received),
        };
        let closing = Closing {
            by: closed.by,
            members: closed.members,
            traffic: Some(self.traffic),
        };
        self.book.closed(closed.round, closing);
        self.started_at = closed.at;
    }

    /// Remembers what the node knows, for [`Mind::restore`].
    pub(super) fn save(&mut self) {
        self.saved = self.knowledge.clone();
    }

    /// Goes back to what was saved last.
    pub(super) fn restore(&mut self) {
        self.knowledge = self.saved.clone();
        (self.received, self.trained) = (None, None);
    }

    /// Names everything that the node has learned: one hash of its private part, its shared part and its experts.
    pub(super) fn parameters_hash(&self) -> BlobId {
        let Knowledge {
            private,
            shared,
            experts,
        } = &self.knowledge;
        let parts = std::iter::once(private).chain(shared).chain(experts);
        let names: Vec<u8> = parts
            .flat_map(|part| *part.to_blob().0.id.as_bytes())
            .collect();
        BlobId::of(&names)
    }
}

impl<P> Mind<P> {
    /// Returns it with other parameters in place of its own.
    pub(super) fn map<Q>(self, to: &mut impl FnMut(P) -> Q) -> Mind<Q> {
        Mind {
            knowledge: self.knowledge.map(to),
            saved: self.saved.map(to),
            received: self.received.map(|received| received.map(to)),
            then_received: self.then_received.map(|received| received.map(to)),
            trained: self.trained,
            training: self.training,
            due: self.due,
            book: self.book,
            done: self.done,
            traffic: self.traffic,
            on_everyone: self.on_everyone,
            started_at: self.started_at,
        }
    }
}

/// Sorts the simulator's bytes as a live node's: there is no control traffic, and nothing is encrypted.
const fn bytes(moved: sim::Bytes) -> Bytes {
    Bytes {
        aggregator: moved.aggregator,
        peer_to_peer: moved.peer_to_peer,
        gossip: moved.gossip,
        control: 0,
        wire: moved.aggregator + moved.peer_to_peer + moved.gossip,
    }
}
