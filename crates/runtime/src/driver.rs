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
//! answer comes back. This file selects and dispatches; what the outputs do is in `effects`, what becomes of answers in
//! `answers`, what people see in `reporting`, and how it ends in `ending`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use fednode_core::{
    Advert, BlobId, BlobStore, FederationSpec, NodeId, Role, Round, SignedAdvert, Timestamp,
};
use fednode_engine::book::RoundBook;
use fednode_engine::{Input, Phase};
use fednode_net::{Event, Handle};
use fednode_store::{Blobs, Checkpoints};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use crate::answers::Answer;
use crate::checkpointing::{OwnBlobs, Saving};
use crate::clock::Clock;
use crate::config::MemberConfig;
use crate::control::{Request, Server};
use crate::decoded::Decoded;
use crate::effects::Publishing;
use crate::ending::{Ending, Finished};
use crate::error::RunError;
use crate::fetches::Fetches;
use crate::journal::{Entry, Journal};
use crate::machine::Machine;
use crate::notes::{Notebook, WaitLog};
use crate::standing::Standing;
use crate::timers::Timers;
use crate::trainer::{TrainerCard, TrainerThread};

/// How often the loop looks around even if nothing happens.
const TICK: Duration = Duration::from_secs(1);

/// One member at work.
pub(crate) struct Driver<M> {
    pub(crate) machine: M,
    pub(crate) clock: Clock,
    pub(crate) timers: Timers,
    pub(crate) config: MemberConfig,
    pub(crate) spec: Arc<FederationSpec>,
    pub(crate) me: NodeId,
    pub(crate) role: Role,
    pub(crate) net: Handle,
    pub(crate) events: mpsc::Receiver<Event>,
    pub(crate) net_task: JoinHandle<()>,
    pub(crate) blobs: Arc<Blobs>,
    pub(crate) decoded: Arc<Decoded>,
    pub(crate) checkpoints: Arc<Checkpoints>,
    pub(crate) journal: Journal,
    pub(crate) trainer: Option<TrainerThread>,
    pub(crate) card: TrainerCard,
    pub(crate) tasks: JoinSet<Answer>,
    pub(crate) fetches: Fetches,
    pub(crate) publishing: Publishing,
    pub(crate) saving: Saving,
    pub(crate) own: OwnBlobs,
    pub(crate) book: RoundBook,
    pub(crate) notebook: Notebook,
    pub(crate) wait_log: WaitLog,
    pub(crate) standing: Standing,
    pub(crate) control: Option<Server>,
    pub(crate) stop: CancellationToken,
    /// The round after which training ahead is to begin at the next checkpoint.
    pub(crate) ahead_due: Option<Round>,
    pub(crate) ending: Ending,
    pub(crate) next_tick: Timestamp,
}

/// What is remembered of earlier lives, beside the checkpoint.
#[derive(Debug, Default)]
pub(crate) struct Past {
    /// Adverts that were heard.
    pub(crate) known: Vec<Advert>,
    /// Rounds whose records were written.
    pub(crate) written: BTreeSet<Round>,
}

/// What the loop wakes up for.
enum Happening {
    Stop,
    Time,
    Answer(Result<Answer, JoinError>),
    Request(Request),
    Event(Option<Box<Event>>),
}

impl<M: Machine> Driver<M> {
    /// Runs until all is done, or until it is stopped, or until something fails.
    ///
    /// Goes on from `past`.
    pub(crate) async fn run(mut self, past: Past) -> Result<Finished, RunError> {
        self.resume_records(&past.written);
        self.feed(Input::Start);
        for advert in past.known {
            self.standing.heard(&advert);
            self.feed(Input::Advert(Arc::new(advert)));
        }
        self.announce_own();
        let outcome = loop {
            let step = match self.next().await {
                // Nothing of a finished node's work is interrupted.
                Happening::Stop if self.ending.is_finished() => self.on_stop_request(),
                Happening::Stop => Err(RunError::Interrupted),
                Happening::Time => self.on_time(),
                Happening::Answer(Ok(answer)) => self.on_answer(answer),
                Happening::Answer(Err(error)) => {
                    Err(RunError::Internal(format!("a task ended: {error}")))
                }
                Happening::Request(request) => self.on_request(request),
                Happening::Event(Some(event)) => self.on_event(*event),
                Happening::Event(None) => Err(RunError::Internal("the network task ended".into())),
            };
            match step {
                Ok(()) => {}
                Err(error) => break Err(error),
            }
            if let Some(outcome) = self.ending.outcome() {
                break Ok(outcome);
            }
        };
        self.shut_down(outcome).await
    }

    /// Waits for whatever happens next.
    async fn next(&mut self) -> Happening {
        let wake = self
            .timers
            .next()
            .map_or(self.next_tick, |timer| timer.min(self.next_tick));
        let wake = tokio::time::sleep_until(self.clock.instant_of(wake));
        let control = async {
            match &mut self.control {
                Some(server) => server.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.stop.cancelled() => Happening::Stop,
            () = wake => Happening::Time,
            Some(answer) = self.tasks.join_next() => Happening::Answer(answer),
            request = control => Happening::Request(request),
            event = self.events.recv() => Happening::Event(event.map(Box::new)),
        }
    }

    /// Tells the machine what happened and does what it says.
    pub(crate) fn feed(&mut self, input: Input) {
        let outputs = self.machine.handle(self.clock.now(), input);
        for output in outputs {
            self.carry_out(output);
        }
    }

    fn on_time(&mut self) -> Result<(), RunError> {
        let now = self.clock.now();
        while let Some(timer) = self.timers.pop_due(now) {
            self.feed(Input::Timer(timer));
        }
        if now < self.next_tick {
            return Ok(());
        }
        self.next_tick = now + TICK;
        for fetch in self.fetches.take_expired(now) {
            debug!(blob = %fetch.blob.id, "not fetched: its time was up before its turn");
            self.feed(Input::FetchFailed(fetch.blob.id));
        }
        if let Some(line) = self.wait_log.check(&self.machine.status(now)) {
            info!("{line}");
            self.notebook.remark(now, line);
        }
        self.advance_ending();
        Ok(())
    }

    fn on_event(&mut self, event: Event) -> Result<(), RunError> {
        let now = self.clock.now();
        match event {
            Event::Listening(address) => self.on_listening(address.to_string()),
            Event::PeerUp { node, role } => {
                info!(peer = %node, ?role, "peer is up");
                self.standing.peer_up(node, role);
                self.journal.add(Entry::Peer {
                    node,
                    role,
                    at: now,
                });
                self.feed(Input::PeerUp { node, role });
            }
            Event::PeerDown { node } => {
                info!(peer = %node, "peer is down");
                self.standing.peer_down(node);
                self.feed(Input::PeerDown { node });
            }
            Event::Advert { signed, advert } => {
                self.standing.heard(&advert);
                self.hear(Box::new((advert, signed)));
            }
            Event::Synced { .. } => self.feed(Input::Synced),
            Event::Refused {
                node,
                address,
                refusal,
            } => {
                if self.standing.refused(node, &address, &refusal) {
                    self.notebook
                        .warn(now, format!("no exchange with {address}: {refusal}"));
                }
                return self.standing.hopeless().map_or(Ok(()), Err);
            }
            Event::DialFailed {
                address, reason, ..
            } => {
                self.notebook.warn(
                    now,
                    format!("cannot reach {address}: {reason}; trying again until it answers"),
                );
            }
            Event::Struck { node, reason } => {
                debug!(peer = %node, reason, "peer struck");
                self.journal.add(Entry::Strike { node, at: now });
            }
            Event::Banned {
                node,
                length,
                reason,
            } => {
                let (node, seconds) = (node.short(), length.as_secs());
                self.notebook.warn(
                    now,
                    format!("peer {node} is banned for {seconds} s: {reason}"),
                );
            }
            Event::Superseded => return Err(RunError::Superseded),
        }
        Ok(())
    }

    /// Remembers an advert, a peer's or our own, and tells the machine.
    pub(crate) fn hear(&mut self, said: Box<(Advert, SignedAdvert)>) {
        let advert = Arc::new(said.0.clone());
        self.journal.add(Entry::Advert(said));
        self.feed(Input::Advert(advert));
    }

    fn on_listening(&mut self, address: String) {
        info!(address, "listening");
        if let Some(told) = &self.config.on_listening {
            // Whoever does not take the addresses reads them in the log and in `status`.
            let _ = told.try_send(address);
        }
    }

    /// Own blobs of earlier rounds can be had here again.
    fn announce_own(&mut self) {
        let mut own: Vec<BlobId> = self.own.ids().into_iter().collect();
        own.extend(self.machine.needed_blobs());
        own.retain(|blob| self.blobs.held(blob).is_some());
        self.announce(own);
    }

    /// Tells whether all rounds are done.
    pub(crate) fn is_serving(&self) -> bool {
        self.machine.status(self.clock.now()).phase == Phase::Serving
    }
}
