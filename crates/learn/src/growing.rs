//! Samples that come while a node trains: it goes on with all of them from the next round on.
//!
//! ```text
//!          before a round begins: are there more samples than this worker has?
//! order ──────────┬──no──► worker ─────────────────────────────────────────────► outcome
//!                 └──yes─► new worker, from the state of the one before ──┘
//! ```
//!
//! The new worker is what the node would have after a restart. Within a round nothing changes: if the round has begun ahead of its
//! time, the next one is waited for. If the new worker cannot take the state over, the old one stays.

use fednode_core::guarded::guarded;
use fednode_core::work::{NoisySteps, Order, Outcome, Watch, WorkError, Worker};
use fednode_core::{ParamSet, Round};

/// Looks for samples that a worker does not have; nothing unless there are some.
pub type Renew = Box<dyn FnMut() -> Option<Renewed> + Send>;

/// Makes a worker that goes on from a state.
pub type GoOn = Box<dyn FnOnce(&ParamSet) -> Result<Box<dyn Worker>, WorkError> + Send>;

/// How to make a worker that has more samples, and what is to be done once it is in use.
pub struct Renewed {
    /// Makes it.
    pub go_on: GoOn,
    /// Says so.
    pub announce: Box<dyn FnOnce() + Send>,
}

impl std::fmt::Debug for Renewed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Renewed").finish_non_exhaustive()
    }
}

/// A worker, and how to make the one that has more samples.
pub struct Growing {
    worker: Box<dyn Worker>,
    renew: Renew,
    secret: Option<[u8; 32]>,
    /// The round that was begun ahead last.
    ahead: Option<Round>,
}

impl std::fmt::Debug for Growing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Growing")
            .field("ahead", &self.ahead)
            .finish_non_exhaustive()
    }
}

impl Growing {
    /// Joins a worker and what looks for more samples.
    pub fn new(worker: Box<dyn Worker>, renew: Renew) -> Self {
        Self {
            worker,
            renew,
            secret: None,
            ahead: None,
        }
    }

    /// Goes on with all samples that there are now.
    fn grow(&mut self) {
        let Some(Renewed { go_on, announce }) = (self.renew)() else {
            return;
        };
        let before = &self.worker;
        let trouble = match guarded(|| go_on(&before.state())) {
            Ok(Ok(mut worker)) => {
                if let Some(secret) = &self.secret {
                    worker.take_secret(secret);
                }
                self.worker = worker;
                return announce();
            }
            Ok(Err(error)) => error.to_string(),
            Err(panic) => panic,
        };
        tracing::warn!(
            "there are other samples now, but this node cannot go on with them ({trouble}): it trains on those that it had"
        );
    }
}

impl Worker for Growing {
    fn perform(&mut self, order: Order, watch: &mut Watch<'_>) -> Result<Outcome, WorkError> {
        match &order {
            Order::TrainAhead(round) => {
                self.grow();
                self.ahead = Some(*round);
            }
            Order::Train(round) if self.ahead != Some(*round) => self.grow(),
            _ => {}
        }
        self.worker.perform(order, watch)
    }

    fn initial_shared(&self) -> Option<ParamSet> {
        self.worker.initial_shared()
    }

    fn shared(&self) -> Option<ParamSet> {
        self.worker.shared()
    }

    fn state(&self) -> ParamSet {
        self.worker.state()
    }

    fn restore(&mut self, state: &ParamSet) -> Result<(), WorkError> {
        self.worker.restore(state)
    }

    fn noisy_steps(&self) -> Option<NoisySteps> {
        self.worker.noisy_steps()
    }

    fn take_secret(&mut self, secret: &[u8; 32]) {
        self.secret = Some(*secret);
        self.worker.take_secret(secret);
    }
}
