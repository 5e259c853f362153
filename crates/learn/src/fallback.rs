//! A GPU that fails in the middle of a round: the node goes on on the CPU.
//!
//! ```text
//!            ┌──────────────► worker on the GPU ──► outcome ──► its state is kept in memory
//! order ─────┤                      │
//!            │        panics, or training fails there
//!            │                      ▼
//!            └──────────────► worker on the CPU, from the state that was kept ──► outcome
//! ```
//!
//! A driver that loses its device makes the tensor library panic; so does memory that is used up. A device that computes
//! wrongly shows by a loss that is no number. In each case the order is carried out again on the CPU. If the CPU fails in
//! the same way, the GPU is not to blame: the error is the CPU's, and the GPU stays. Otherwise the node stays on the CPU
//! until it is started again.
//!
//! A driver that never answers is not noticed here. Drivers reset a device that hangs, after some seconds, and that is
//! seen as a lost one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fednode_core::ParamSet;
use fednode_core::guarded::{self, guarded};
use fednode_core::work::{NoisySteps, Order, Outcome, Watch, WorkError, Worker};

/// Makes a worker that computes elsewhere, as it is before the first round.
pub type MakeSpare = Box<dyn Fn() -> Result<Box<dyn Worker>, WorkError> + Send>;

/// A worker on a device that may fail, and how to make the one that replaces it.
pub struct Fallback {
    worker: Box<dyn Worker>,
    /// Nothing once it was used.
    spare: Option<MakeSpare>,
    kept: Kept,
    secret: Option<[u8; 32]>,
    /// Set once the device has failed: nothing is to be opened on it any more.
    has_failed: Arc<AtomicBool>,
}

/// What the worker knew after the last order that was carried out, in the memory of the host.
struct Kept {
    state: ParamSet,
    shared: Option<ParamSet>,
}

impl Kept {
    fn of(worker: &dyn Worker) -> Self {
        Self {
            state: worker.state(),
            shared: worker.shared(),
        }
    }
}

impl std::fmt::Debug for Fallback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fallback")
            .field("is_replaced", &self.spare.is_none())
            .finish_non_exhaustive()
    }
}

impl Fallback {
    /// Joins a worker and what makes its replacement.
    pub fn new(worker: Box<dyn Worker>, spare: MakeSpare) -> Self {
        Self {
            kept: Kept::of(worker.as_ref()),
            worker,
            spare: Some(spare),
            secret: None,
            has_failed: Arc::default(),
        }
    }

    /// Tells others, too, once the device has failed.
    #[must_use]
    pub fn telling(self, has_failed: Arc<AtomicBool>) -> Self {
        Self { has_failed, ..self }
    }

    /// Makes the other worker, in the state that was kept; nothing if it is in use already.
    fn spare(&self) -> Option<Result<Box<dyn Worker>, WorkError>> {
        let make = self.spare.as_ref()?;
        Some(make().and_then(|mut spare| {
            spare.restore(&self.kept.state)?;
            if let Some(secret) = &self.secret {
                spare.take_secret(secret);
            }
            Ok(spare)
        }))
    }

    /// Stays with the other worker from now on.
    fn replace(&mut self, spare: Box<dyn Worker>, trouble: &str) {
        tracing::warn!("the GPU failed ({trouble}): this node goes on on the CPU");
        self.has_failed.store(true, Ordering::Relaxed);
        let failed = std::mem::replace(&mut self.worker, spare);
        // To free tensors of a lost device can panic or block.
        std::mem::forget(failed);
        self.spare = None;
    }

    /// Carries an order out again on the other device, because of this trouble.
    fn perform_elsewhere(
        &mut self,
        order: Order,
        watch: &mut Watch<'_>,
        trouble: &Trouble,
    ) -> Result<Outcome, WorkError> {
        let mut spare = self.spare().unwrap_or(Err(WorkError::Died))?;
        let outcome = spare.perform(order, watch);
        let is_lost = matches!(trouble, Trouble::Panic(_));
        if is_lost {
            guarded::give_helpers_up();
        }
        if is_lost || outcome.is_ok() {
            self.replace(spare, trouble.text());
        }
        outcome
    }
}

/// What went wrong on the first device.
enum Trouble {
    /// The device, the driver or the tensor library gave up: nothing there can be used any more.
    Panic(String),
    /// Training failed, by an error.
    Training(String),
}

impl Trouble {
    fn text(&self) -> &str {
        let (Self::Panic(text) | Self::Training(text)) = self;
        text
    }
}

impl Worker for Fallback {
    fn perform(&mut self, order: Order, watch: &mut Watch<'_>) -> Result<Outcome, WorkError> {
        if self.spare.is_none() {
            return self.worker.perform(order, watch);
        }
        let changes_state = !matches!(order, Order::TrainAhead(_) | Order::Evaluate(_));
        let worker = &mut self.worker;
        let done = guarded(|| {
            let outcome = worker.perform(order.clone(), watch);
            let kept = changes_state.then(|| Kept::of(worker.as_ref()));
            (outcome, kept)
        });
        let trouble = match done {
            Ok((Err(WorkError::Training(text)), _)) => Trouble::Training(text),
            Ok((outcome, kept)) => {
                if let Some(kept) = kept {
                    self.kept = kept;
                }
                return outcome;
            }
            Err(panic) => Trouble::Panic(panic),
        };
        self.perform_elsewhere(order, watch, &trouble)
    }

    fn initial_shared(&self) -> Option<ParamSet> {
        self.worker.initial_shared()
    }

    fn shared(&self) -> Option<ParamSet> {
        if self.spare.is_none() {
            return self.worker.shared();
        }
        self.kept.shared.clone()
    }

    fn state(&self) -> ParamSet {
        if self.spare.is_none() {
            return self.worker.state();
        }
        self.kept.state.clone()
    }

    fn restore(&mut self, state: &ParamSet) -> Result<(), WorkError> {
        let worker = &mut self.worker;
        let restored = guarded(|| {
            worker.restore(state)?;
            Ok::<_, WorkError>(Kept::of(worker.as_ref()))
        });
        let panic = match restored {
            Ok(restored) => {
                self.kept = restored?;
                return Ok(());
            }
            Err(panic) => panic,
        };
        let mut spare = self.spare().unwrap_or(Err(WorkError::Died))?;
        spare.restore(state)?;
        self.replace(spare, &panic);
        Ok(())
    }

    fn noisy_steps(&self) -> Option<NoisySteps> {
        self.worker.noisy_steps()
    }

    fn take_secret(&mut self, secret: &[u8; 32]) {
        self.secret = Some(*secret);
        self.worker.take_secret(secret);
    }
}
