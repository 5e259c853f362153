//! The loop: one task owns the pure machine and everything it is told and asks for.
//!
//! ```text
//!            stop ──┐
//!          timers ──┤                 ┌─────────┐
//!  answers of tasks ┼──► Driver ─────►│ machine │ pure
//!   network events ─┤      ▲          └────┬────┘
//! control requests ─┘      │  Input        │ Outputs
//!                          │               ▼
//!                        tasks ◄──── carry_out: one `match`
//!            (network, workers, trainer's thread)
//! ```
//!
//! The loop itself never waits for a disk, a socket or the trainer: whatever takes longer than a look-up is a task whose
//! answer comes back. This file selects and dispatches. The parts of a member own what they work with: [`Desk`] trains and keeps the
//! books, [`Keeper`] saves, [`Fetches`] and [`Publisher`] use the network, and all are lent the [`Base`]. What becomes of
//! answers is in `answers`, what the network tells in `hearing`, what people see in `reporting`, and how it ends in `ending`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use fednode_core::{Accepted, BlobId, BlobStore, Body, Role, Round, Timestamp};
use fednode_engine::book::Closing;
use fednode_engine::masks::MaskOrder;
use fednode_engine::{Input, Note, Output};
use fednode_net::{Event, MemberBook};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle};
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, info};

use crate::answers::Answer;
use crate::base::Base;
use crate::checkpointing::Keeper;
use crate::control::Request;
use crate::desk::Desk;
use crate::ending::{Ending, Finished, Outcome};
use crate::error::RunError;
use crate::extending::MoreRounds;
use crate::fetches::Fetches;
use crate::machine::Machine;
use crate::notes::WaitLog;
use crate::process::Process;
use crate::publisher::Publisher;
use crate::records::Newest;
use crate::standing::Standing;
use crate::timers::Timers;
use crate::watched::Watched;
use crate::withdrawals::Withdrawals;
use crate::work;

/// How often the loop looks around even if nothing happens.
const TICK: Duration = Duration::from_secs(1);

/// One member at work.
pub(crate) struct Driver<'p, M> {
    pub(crate) machine: Watched<M>,
    pub(crate) base: Base,
    pub(crate) desk: Desk,
    pub(crate) keeper: Keeper,
    pub(crate) fetches: Fetches,
    pub(crate) publisher: Publisher,
    pub(crate) timers: Timers,
    pub(crate) next_tick: Timestamp,
    pub(crate) standing: Standing,
    pub(crate) wait_log: WaitLog,
    pub(crate) ending: Ending,
    pub(crate) more: MoreRounds,
    pub(crate) withdrawals: Withdrawals,
    pub(crate) inlets: Inlets,
    pub(crate) process: &'p mut Process,
}

/// What comes from outside, beside the answers of its own tasks.
pub(crate) struct Inlets {
    pub(crate) events: mpsc::Receiver<Event>,
    pub(crate) net_task: JoinHandle<()>,
    /// Keeps what is written of members up to date.
    pub(crate) roll: Option<AbortOnDropHandle<()>>,
    /// Keeps what is written of where members are up to date.
    pub(crate) whereabouts: Option<AbortOnDropHandle<()>>,
    /// What the organiser has said, where there is one.
    pub(crate) book: Option<Arc<MemberBook>>,
}

/// What is remembered of earlier lives, beside the checkpoint.
#[derive(Debug, Default)]
pub(crate) struct Past {
    /// Adverts that were heard.
    pub(crate) known: Vec<Accepted>,
    /// What its records say.
    pub(crate) newest: Newest,
}

/// What the loop wakes up for.
enum Happening {
    Stop,
    Time,
    Answer(Box<Result<Answer, JoinError>>),
    Request(Request),
    Event(Option<Box<Event>>),
}

/// The parts of a member that hold something of its earlier life, or of its machine.
pub(crate) struct Parts<M> {
    pub(crate) machine: Watched<M>,
    pub(crate) base: Base,
    pub(crate) desk: Desk,
    pub(crate) keeper: Keeper,
    pub(crate) inlets: Inlets,
}

impl<'p, M: Machine> Driver<'p, M> {
    /// Makes a driver that has done nothing yet. The service manager hears that the member is ready.
    pub(crate) fn new(parts: Parts<M>, process: &'p mut Process) -> Self {
        process.manager.ready();
        let Parts {
            machine,
            base,
            desk,
            keeper,
            inlets,
        } = parts;
        let more = MoreRounds::of(inlets.book.clone(), &base.spec);
        Self {
            next_tick: base.now(),
            standing: Standing::new(base.config.peers.clone(), Round(base.spec.rounds)),
            machine,
            base,
            desk,
            keeper,
            fetches: Fetches::default(),
            publisher: Publisher::default(),
            timers: Timers::default(),
            wait_log: WaitLog::new(),
            ending: Ending::new(),
            more,
            withdrawals: Withdrawals::default(),
            inlets,
            process,
        }
    }

    /// Runs until all is done, or until it is stopped, or until something fails.
    ///
    /// Goes on from `past`.
    pub(crate) async fn run(mut self, past: Past) -> Result<Finished, RunError> {
        self.machine.span().in_scope(|| self.begin(past));
        let outcome = loop {
            let happening = self.next().await;
            // Never held while the loop waits: what happens next may belong to another round.
            let step = self.machine.span().in_scope(|| self.react(happening));
            match step {
                Ok(()) => {}
                Err(error) => break Err(error),
            }
            if let Some(outcome) = self.ending.outcome() {
                break Ok(outcome);
            }
        };
        // A member that is started again in this process does not stop.
        if !matches!(outcome, Ok(Outcome::Extended { .. })) {
            self.process.manager.stopping();
        }
        self.shut_down(outcome).await
    }

    /// Takes up what was under way, and tells the machine what is remembered.
    fn begin(&mut self, past: Past) {
        // First of all: the first order of the machine may change the model that is still to be
        // evaluated.
        self.desk.resume(&mut self.base, &past.newest.rounds);
        self.feed(Input::Start);
        // What this member has answered it does not answer again.
        let me = self.base.me;
        let is_answer =
            |said: &&Accepted| said.author == me && matches!(said.body, Body::Removed(_));
        for advert in past.known.iter().filter(is_answer) {
            self.hear_of_withdrawals(advert);
        }
        for advert in past.known {
            self.standing.heard(&advert);
            if advert.author != me {
                self.hear_of_withdrawals(&advert);
            }
            self.feed(Input::Advert(Arc::new(advert)));
        }
        // What was mixed in stays in the model in rounds in which nothing is. The checkpoint may be newer than the records.
        self.withdrawals.mix(past.newest.mixed.into_iter());
        let last = self.desk.book.last().into_iter();
        let mixed = last.flat_map(|record| record.mixed.iter().map(|from| from.node));
        self.withdrawals.mix(mixed);
        // Own blobs of earlier rounds can be had here again.
        let report = self.machine.training_state().and_then(|state| state.report);
        let known = work::known_to_others(self.kept_blobs(), report.as_ref());
        let mut own: Vec<BlobId> = known.into_iter().collect();
        // A blob may be lost since. Peers that are told of it would ask for it in vain.
        own.retain(|blob| self.base.blobs.held(blob).is_some());
        self.base.announce(own);
    }

    fn react(&mut self, happening: Happening) -> Result<(), RunError> {
        match happening {
            // Nothing of a finished node's work is interrupted, and an endless federation has no other end.
            Happening::Stop if self.ending.is_finished() || self.base.spec.endless => {
                self.on_stop_request()
            }
            Happening::Stop => Err(RunError::Interrupted),
            Happening::Time => self.on_time(),
            Happening::Answer(answer) => match *answer {
                Ok(answer) => self.on_answer(answer),
                Err(error) => Err(RunError::Internal(format!("a task ended: {error}"))),
            },
            Happening::Request(request) => self.on_request(request),
            Happening::Event(Some(event)) => self.on_event(*event),
            Happening::Event(None) => Err(RunError::Internal("the network task ended".into())),
        }
    }

    /// Waits for whatever happens next.
    async fn next(&mut self) -> Happening {
        let wake = self
            .timers
            .next()
            .map_or(self.next_tick, |timer| timer.min(self.next_tick));
        let wake = tokio::time::sleep_until(self.base.clock.instant_of(wake));
        let stop = self.process.stop().clone();
        tokio::select! {
            // In this order: a flood of events must keep neither a stop nor a timer nor people waiting.
            biased;
            () = stop.cancelled() => Happening::Stop,
            () = wake => Happening::Time,
            Some(answer) = self.base.tasks.join_next() => Happening::Answer(Box::new(answer)),
            request = self.process.next() => Happening::Request(request),
            event = self.inlets.events.recv() => Happening::Event(event.map(Box::new)),
        }
    }

    /// Tells the machine what happened and does what it says.
    pub(crate) fn feed(&mut self, input: Input) {
        let now = self.base.now();
        // Each output runs in the span of its own round: one input may end a round and begin the
        // next.
        for (span, output) in self.machine.feed(now, input) {
            span.in_scope(|| self.carry_out(output));
        }
    }

    /// Does what the machine says. Nothing here decides anything about the federation.
    fn carry_out(&mut self, output: Output) {
        let base = &mut self.base;
        match output {
            // A new update would take the goodbye back.
            Output::Publish { .. } | Output::Train { .. } if self.ending.is_leaving() => {}
            Output::Publish { round, body } => self.publisher.publish(base, round, body),
            Output::Fetch(fetch) => self.fetches.queue(base, fetch),
            Output::Train { round, masks } => self.train(round, masks),
            Output::Unmask(order) => base.unmask(*order),
            Output::Follow(nodes) => base.follow(nodes),
            Output::Ask(lacking) => base.ask(&lacking),
            Output::Merge(order) => self
                .desk
                .merge(base, order, self.withdrawals.mixed_before()),
            Output::Average(order) => base.average(order),
            Output::Module { round } => self.desk.make_module(base, round),
            Output::Pool(order) => self.desk.assemble_pool(base, order),
            Output::Save => {
                self.save();
                self.train_ahead();
            }
            Output::SetTimer { timer, at } => self.timers.set(timer, at),
            Output::Strike { node, reason } => base.strike(node, reason),
            Output::Ban { node, reason } => base.ban(node, reason),
            Output::Forget(blobs) => self.delete_withdrawn(blobs),
            Output::Note(note) => self.note(&note),
            Output::Slice(order) => base.average_slice(*order),
            Output::Join(order) => base.join_slices(*order),
        }
    }

    fn train(&mut self, round: Round, masks: Option<Box<MaskOrder>>) {
        if let Some(state) = self.machine.training_state() {
            self.desk
                .train(&mut self.base, (round, state.lineage), masks);
            self.collect_garbage();
        }
    }

    /// Removes blobs that nobody needs: once a round, whether this member trains in it or not.
    fn collect_garbage(&mut self) {
        let keep = self.kept_blobs();
        self.base.collect_garbage(keep);
    }

    /// Lets the worker begin with the next round, if that is due and this member stays.
    pub(crate) fn train_ahead(&mut self) {
        if !self.ending.is_leaving() {
            self.desk.train_ahead(&mut self.base);
        }
    }

    /// Orders a checkpoint of this moment. What was tuned for this node alone is for no later round: the one from before it stands.
    pub(crate) fn save(&mut self) {
        self.ending.look_again();
        let is_pooled = self.base.spec.pool.is_enabled();
        if !is_pooled && self.desk.book.last_stage().evaluations.is_some() {
            return;
        }
        let round = self.machine.status(self.base.now()).round;
        let machine = || self.machine.snapshot();
        self.keeper.save(&mut self.base, &self.desk, machine, round);
    }

    fn note(&mut self, note: &Note) {
        self.base.note(note);
        match note {
            Note::SitsOut(round) => {
                let (now, traffic) = (self.base.now(), self.base.traffic());
                self.desk.book.rest(*round, now, traffic);
                self.collect_garbage();
            }
            Note::RoundClosed { round, by, members } => {
                let closing = Closing {
                    by: *by,
                    members: *members,
                    traffic: None,
                };
                self.desk.book.closed(*round, closing);
                let head = self.machine.status(self.base.now()).head;
                self.base.enter_closed(*round, head, *by, *members);
                // An aggregator neither trains nor rests, so its garbage goes when a round is closed.
                if self.base.role == Role::Aggregator {
                    self.collect_garbage();
                }
            }
            _ => {}
        }
        self.ending.look_again();
    }

    /// Returns the blobs that must stay: what the machine needs and what others may still want of this node.
    pub(crate) fn kept_blobs(&self) -> BTreeSet<BlobId> {
        let mut keep = self.machine.needed_blobs();
        keep.extend(self.keeper.own.ids());
        keep
    }

    fn on_time(&mut self) -> Result<(), RunError> {
        let now = self.base.now();
        // One after the other, since what a timer causes may move or remove the next.
        while let Some(timer) = self.timers.pop_due(now) {
            self.feed(Input::Timer(timer));
        }
        // A timer wakes the loop too, and a busy machine has many.
        if now < self.next_tick {
            return Ok(());
        }
        self.next_tick = now + TICK;
        for fetch in self.fetches.take_expired(now) {
            debug!(blob = %fetch.blob.id, "not fetched: its time was up before its turn");
            self.feed(Input::FetchFailed {
                blob: fetch.blob,
                kind: fetch.kind,
            });
        }
        let machine = self.machine.status(now);
        let rounds = self.base.spec.rounds;
        self.process
            .manager
            .alive(machine.phase.name(), machine.round, rounds);
        let waits = self.waits();
        if let Some(line) = self.wait_log.check(machine.phase, machine.round, &waits) {
            info!("{line}");
            self.base.remark(line);
        }
        self.desk.tell_of_samples(&mut self.base);
        self.attend_withdrawals();
        self.look_for_more_rounds();
        self.advance_ending();
        Ok(())
    }
}
