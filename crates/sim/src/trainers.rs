//! Whoever trains the simulated nodes: [`Toys`] of a few floats or as many as wanted, or real learners handed in from
//! outside.

use std::sync::Arc;

use fednode_core::work::{Modules, Order, Outcome, PrivateModule, WorkError};
use fednode_core::{NodeId, ParamSet, PoolOutcome, Round, Score, Scores, Served, Timestamp};
use serde::{Deserialize, Serialize};

use crate::history::{Answer, Moment};
use crate::toy::{Sizes, Toy};
use fednode_engine::execute::Adoption;

/// Bytes that a member moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Bytes {
    /// Blobs from or to the aggregator.
    pub aggregator: u64,
    /// Blobs from or to other nodes.
    pub peer_to_peer: u64,
    /// Adverts; each counts once, however many neighbours forward it.
    pub gossip: u64,
}

/// How a node's round ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClosedRound {
    /// The round.
    pub round: Round,
    /// Who closed it; `None` if nobody did.
    pub by: Option<NodeId>,
    /// How many members were averaged.
    pub members: u32,
    /// Virtual time.
    pub at: Timestamp,
    /// Bytes sent since the start of the run.
    pub sent: Bytes,
    /// Bytes received since the start of the run.
    pub received: Bytes,
}

/// The models of all simulated nodes. Calls come in the order of virtual time, from one thread; what
/// [`Trainers::begin`] starts may go on beside them until [`Trainers::end`] asks for it.
pub trait Trainers {
    /// Returns the shared part that all nodes start from.
    fn initial_shared(&mut self) -> Option<ParamSet>;

    /// Starts to carry out an order on the model as it is; `ends` is the virtual time at which the outcome is asked for.
    ///
    /// The orders are [`Order::Train`] and, after the last round, [`Order::MakeModule`] and [`Order::AssemblePool`].
    fn begin(&mut self, member: usize, order: Order, ends: Timestamp);

    /// Ends what was begun last.
    ///
    /// # Errors
    /// Says in one line why it failed; the run ends with it.
    fn end(&mut self, member: usize) -> Result<Outcome, WorkError>;

    /// Returns a node's version of the shared part.
    fn shared(&mut self, member: usize) -> Option<Arc<ParamSet>>;

    /// Takes over a shared part and mixed experts.
    fn adopt(&mut self, member: usize, round: Round, adoption: Adoption);

    /// Remembers the model, for [`Trainers::restore`].
    fn save(&mut self, member: usize);

    /// Goes back to the model that was saved last, or to the start.
    fn restore(&mut self, member: usize);

    /// A node's round is over.
    fn closed(&mut self, _member: usize, _closed: ClosedRound) {}

    /// Waits for what was begun last for a member. If there is something else to do, `false`: then comes
    /// [`Trainers::pauses`], and this again.
    fn is_ready(&mut self, _member: usize) -> bool {
        true
    }

    /// Does what is left to do when all nodes are done, once or, after `false`, more often, as [`Trainers::is_ready`].
    fn concludes(&mut self) -> bool {
        true
    }

    /// Hears of everything that was computed, in order, to go on with the run from there when it is interrupted.
    fn remember(&mut self, _answer: &Answer) {}

    /// A moment to look around, for example to save the run; returns whether to stop here.
    fn pauses(&mut self, _moment: &Moment<'_>) -> bool {
        false
    }
}

/// The toy models of a whole federation.
#[derive(Debug, Clone)]
pub struct Toys {
    seed: u64,
    sizes: Sizes,
    models: Vec<Toy>,
    saved: Vec<Option<Toy>>,
    begun: Vec<Option<Order>>,
}

impl Toys {
    /// Makes one model per member.
    pub fn new(seed: u64, members: usize) -> Self {
        Self::of(seed, members, Sizes::SMALLEST)
    }

    /// Makes one model per member, whose shared part and experts have so many floats each.
    pub fn of_floats(seed: u64, members: usize, floats: usize) -> Self {
        Self::of(
            seed,
            members,
            Sizes {
                shared: floats,
                expert: floats,
            },
        )
    }

    fn of(seed: u64, members: usize, sizes: Sizes) -> Self {
        let models = (0..members)
            .map(|member| Toy::new(seed, member, sizes))
            .collect();
        Self {
            seed,
            sizes,
            models,
            saved: vec![None; members],
            begun: vec![None; members],
        }
    }
}

impl Toys {
    /// Screens the modules; a toy has no gate to train.
    fn pool(&self, member: usize, modules: Modules) -> PoolOutcome {
        let own = self.models[member].module();
        let refused = modules.into_iter().filter_map(|(node, params)| {
            let fault = fednode_mix::screen::screen(&params, &own, f64::MAX).err()?;
            Some((node, fault.to_string()))
        });
        let scores = Scores {
            own: Score::default(),
            mixture: None,
        };
        PoolOutcome {
            members: Vec::new(),
            refused: refused.collect(),
            served: Served::Mixture,
            epochs: 0,
            unseen: 0,
            best_epoch: None,
            learning_rate: None,
            validation: scores,
            test: scores,
            controls: None,
        }
    }
}

impl Trainers for Toys {
    fn initial_shared(&mut self) -> Option<ParamSet> {
        Some(Toy::new(self.seed, 0, self.sizes).shared())
    }

    fn begin(&mut self, member: usize, order: Order, _ends: Timestamp) {
        self.begun[member] = Some(order);
    }

    fn end(&mut self, member: usize) -> Result<Outcome, WorkError> {
        match self.begun[member].take() {
            Some(Order::Train(round)) => Ok(Outcome::Trained(self.models[member].train(round))),
            Some(Order::MakeModule) => Ok(Outcome::Module(Some(PrivateModule {
                kind: "expert".into(),
                params: Arc::new(self.models[member].module()),
                score: 0.0,
            }))),
            Some(Order::AssemblePool(modules)) => Ok(Outcome::Pooled(self.pool(member, modules))),
            _ => Err(WorkError::WrongAnswer),
        }
    }

    fn shared(&mut self, member: usize) -> Option<Arc<ParamSet>> {
        Some(Arc::new(self.models[member].shared()))
    }

    fn adopt(&mut self, member: usize, _round: Round, adoption: Adoption) {
        self.models[member].adopt(adoption.shared.as_deref(), &adoption.experts);
    }

    fn save(&mut self, member: usize) {
        self.saved[member] = Some(self.models[member].clone());
    }

    fn restore(&mut self, member: usize) {
        let fresh = || Toy::new(self.seed, member, self.sizes);
        self.models[member] = self.saved[member].clone().unwrap_or_else(fresh);
    }
}
