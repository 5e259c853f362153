//! A node of an interrupted simulation: all that [`super::models`] knows of it, as plain data.

use std::collections::HashMap;
use std::sync::Arc;

use fednode_core::{ParamSet, Round, Timestamp};
use fednode_learn::ClassCount;
use fednode_runtime::status::RoundRecord;
use fednode_runtime::trainer::LastStage;
use fednode_sim as sim;
use serde::{Deserialize, Serialize};

use super::job::{Adopted, Knowledge, Work};

/// A node. `P` is the parameters, or their place in a file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Kept<P = Arc<ParamSet>> {
    /// What it knows.
    pub(super) knowledge: Knowledge<P>,
    /// What it would go back to.
    pub(super) saved: Knowledge<P>,
    /// What its next job takes over.
    pub(super) adopted: Option<Adopted<P>>,
    /// What it takes over then, in a round in which the node rested.
    pub(super) then_adopted: Option<Adopted<P>>,
    /// Its job.
    pub(super) work: Option<Work<P>>,
    /// The round that it trained last, unless it had to go back since.
    pub(super) trained: Option<Round>,
    /// The rounds that still lack something.
    pub(super) open: Vec<RoundRecord>,
    /// The round whose exchange is still to be evaluated.
    pub(super) unevaluated: Option<Round>,
    /// Whether the last round, in which it rested, is to be evaluated after that.
    pub(super) rested: bool,
    /// The complete rounds.
    pub(super) done: Vec<RoundRecord>,
    /// Bytes sent and received.
    pub(super) traffic: (sim::Bytes, sim::Bytes),
    /// What came after its last round.
    pub(super) last_stage: LastStage,
    /// How it does on everyone's test samples, by class.
    pub(super) on_everyone: Option<Vec<ClassCount>>,
    /// When its round began.
    pub(super) started_at: Timestamp,
}

impl<P> Kept<P> {
    /// Returns it with other parameters in place of its own.
    pub(super) fn map<Q>(self, to: &mut impl FnMut(&P) -> Q) -> Kept<Q> {
        Kept {
            knowledge: self.knowledge.map(to),
            saved: self.saved.map(to),
            adopted: self.adopted.map(|adopted| adopted.map(to)),
            then_adopted: self.then_adopted.map(|adopted| adopted.map(to)),
            work: self.work.map(|work| work.map(to)),
            trained: self.trained,
            open: self.open,
            unevaluated: self.unevaluated,
            rested: self.rested,
            done: self.done,
            traffic: self.traffic,
            last_stage: self.last_stage,
            on_everyone: self.on_everyone,
            started_at: self.started_at,
        }
    }
}

/// Gives each set of parameters a place. What is one in memory is one in the file.
#[derive(Debug, Default)]
pub(super) struct Places {
    places: HashMap<*const ParamSet, u32>,
    /// The parameters, in the order of their places.
    pub(super) params: Vec<Arc<ParamSet>>,
}

impl Places {
    /// Returns the place of parameters.
    pub(super) fn place(&mut self, params: &Arc<ParamSet>) -> u32 {
        *self.places.entry(Arc::as_ptr(params)).or_insert_with(|| {
            self.params.push(Arc::clone(params));
            u32::try_from(self.params.len() - 1).expect("fewer sets than memory has room for")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_one_in_memory_has_one_place() {
        let (one, other) = (Arc::new(ParamSet::new()), Arc::new(ParamSet::new()));
        let mut places = Places::default();
        let found = [&one, &other, &Arc::clone(&one)].map(|params| places.place(params));
        assert_eq!((found, places.params.len()), ([0, 1, 0], 2));
    }
}
