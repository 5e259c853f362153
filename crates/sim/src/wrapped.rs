//! Trainers around others: a test or a measurement looks at what goes by, and the inner ones do the work.
//!
//! ```
//! use fednode_sim::{ClosedRound, Scenario, Toys, Trainers, Wrapped};
//!
//! struct Counted(Toys, usize);
//!
//! impl Wrapped for Counted {
//!     fn inner(&mut self) -> &mut dyn Trainers {
//!         &mut self.0
//!     }
//!
//!     fn closed(&mut self, _member: usize, _closed: ClosedRound) {
//!         self.1 += 1;
//!     }
//! }
//!
//! let mut counted = Counted(Toys::new(7, 4), 0);
//! fednode_sim::run_with(&Scenario::new(7, 3, 2), &mut counted);
//! assert!(counted.1 >= 6, "three nodes close two rounds");
//! ```

use std::sync::Arc;

use fednode_core::work::{Order, Outcome, WorkError};
use fednode_core::{ParamSet, Round, Timestamp};
use fednode_engine::execute::Adoption;

use crate::history::{Answer, Moment};
use crate::trainers::{ClosedRound, Trainers};

/// Trainers that pass on to others whatever they do not do themselves. Each method but [`Wrapped::inner`] is one of
/// [`Trainers`]. The inner trainers hear of what is written here only if it calls them.
pub trait Wrapped {
    /// Returns the trainers that do the work.
    fn inner(&mut self) -> &mut dyn Trainers;

    /// See [`Trainers::begin`].
    fn begin(&mut self, member: usize, order: Order, ends: Timestamp) {
        self.inner().begin(member, order, ends);
    }

    /// See [`Trainers::end`].
    ///
    /// # Errors
    /// Says in one line why it failed; the run ends with it.
    fn end(&mut self, member: usize) -> Result<Outcome, WorkError> {
        self.inner().end(member)
    }

    /// See [`Trainers::adopt`].
    fn adopt(&mut self, member: usize, round: Round, adoption: Adoption) {
        self.inner().adopt(member, round, adoption);
    }

    /// See [`Trainers::closed`].
    fn closed(&mut self, member: usize, closed: ClosedRound) {
        self.inner().closed(member, closed);
    }

    /// See [`Trainers::remember`].
    fn remember(&mut self, answer: &Answer) {
        self.inner().remember(answer);
    }

    /// See [`Trainers::pauses`].
    fn pauses(&mut self, moment: &Moment<'_>) -> bool {
        self.inner().pauses(moment)
    }
}

impl<W: Wrapped> Trainers for W {
    fn initial_shared(&mut self) -> Option<ParamSet> {
        self.inner().initial_shared()
    }

    fn begin(&mut self, member: usize, order: Order, ends: Timestamp) {
        Wrapped::begin(self, member, order, ends);
    }

    fn end(&mut self, member: usize) -> Result<Outcome, WorkError> {
        Wrapped::end(self, member)
    }

    fn shared(&mut self, member: usize) -> Option<Arc<ParamSet>> {
        self.inner().shared(member)
    }

    fn adopt(&mut self, member: usize, round: Round, adoption: Adoption) {
        Wrapped::adopt(self, member, round, adoption);
    }

    fn save(&mut self, member: usize) {
        self.inner().save(member);
    }

    fn restore(&mut self, member: usize) {
        self.inner().restore(member);
    }

    fn closed(&mut self, member: usize, closed: ClosedRound) {
        Wrapped::closed(self, member, closed);
    }

    fn is_ready(&mut self, member: usize) -> bool {
        self.inner().is_ready(member)
    }

    fn concludes(&mut self) -> bool {
        self.inner().concludes()
    }

    fn remember(&mut self, answer: &Answer) {
        Wrapped::remember(self, answer);
    }

    fn pauses(&mut self, moment: &Moment<'_>) -> bool {
        Wrapped::pauses(self, moment)
    }
}
