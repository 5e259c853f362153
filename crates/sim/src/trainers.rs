//! Whoever trains the simulated nodes: [`Toys`] of a few floats or as many as wanted, or real learners handed in from
//! outside.

use std::sync::Arc;

use fednode_core::{NodeId, ParamSet, ProxySet, Round, Timestamp};
use serde::{Deserialize, Serialize};

use crate::history::{Answer, Moment};
use crate::toy::{Sizes, Toy};
use fednode_engine::PoolReport;
use fednode_engine::execute::Adoption;

/// What a simulated local update yields.
#[derive(Debug, Clone)]
pub struct LocalUpdate {
    /// The node's version of the shared part.
    pub shared: Option<Arc<ParamSet>>,
    /// Its experts in slot order, each with the training samples that were routed to it.
    pub experts: Vec<(Arc<ParamSet>, u32)>,
    /// Its gating proxies.
    pub proxies: Option<ProxySet>,
    /// Training samples.
    pub n_samples: u32,
    /// Mean loss over the last local epoch.
    pub train_loss: f64,
    /// Share of the training samples routed to each expert.
    pub expert_share: Vec<f64>,
}

/// A simulated node's private module.
#[derive(Debug, Clone)]
pub struct PrivateModule {
    /// What it is: `head`, `extractor`, `vector`, `expert`.
    pub kind: String,
    /// Its parameters.
    pub params: Arc<ParamSet>,
    /// Accuracy on the owner's validation samples; 0 without any.
    pub score: f64,
}

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
/// [`Trainers::begin`] starts may go on beside them until [`Trainers::finish`] asks for it.
pub trait Trainers {
    /// Returns the shared part that all nodes start from.
    fn initial_shared(&mut self) -> Option<ParamSet>;

    /// Starts a local update from the model as it is; `ends` is the virtual time at which it is asked for.
    fn begin(&mut self, member: usize, round: Round, ends: Timestamp);

    /// Ends the local update that was begun last.
    ///
    /// # Errors
    /// Says in one line why training failed; the run ends with it.
    fn finish(&mut self, member: usize, round: Round) -> Result<LocalUpdate, String>;

    /// Returns a node's version of the shared part.
    fn shared(&mut self, member: usize) -> Option<Arc<ParamSet>>;

    /// Takes over a shared part and mixed experts.
    fn adopt(&mut self, member: usize, round: Round, adoption: Adoption);

    /// Starts making the private module, after the last round.
    fn begin_module(&mut self, _member: usize, _round: Round) {}

    /// Returns the private module; `None` if the algorithm has none.
    ///
    /// # Errors
    /// As [`Self::finish`].
    fn finish_module(&mut self, member: usize) -> Result<Option<PrivateModule>, String>;

    /// Starts making a pool of the own module and these, in node order.
    fn begin_pool(&mut self, member: usize, modules: Vec<(NodeId, Arc<ParamSet>)>);

    /// Ends what was begun: the node serves its pool from now on. Returns what was screened out.
    ///
    /// # Errors
    /// As [`Self::finish`].
    fn finish_pool(&mut self, member: usize) -> Result<PoolReport, String>;

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
    offered: Vec<Vec<(NodeId, Arc<ParamSet>)>>,
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
            offered: vec![Vec::new(); members],
        }
    }
}

impl Trainers for Toys {
    fn initial_shared(&mut self) -> Option<ParamSet> {
        Some(Toy::new(self.seed, 0, self.sizes).shared())
    }

    fn begin(&mut self, _member: usize, _round: Round, _ends: Timestamp) {}

    fn finish(&mut self, member: usize, round: Round) -> Result<LocalUpdate, String> {
        Ok(self.models[member].train(round))
    }

    fn shared(&mut self, member: usize) -> Option<Arc<ParamSet>> {
        Some(Arc::new(self.models[member].shared()))
    }

    fn adopt(&mut self, member: usize, _round: Round, adoption: Adoption) {
        self.models[member].adopt(adoption.shared.as_deref(), &adoption.experts);
    }

    fn finish_module(&mut self, member: usize) -> Result<Option<PrivateModule>, String> {
        let params = Arc::new(self.models[member].module());
        Ok(Some(PrivateModule {
            kind: "expert".into(),
            params,
            score: 0.0,
        }))
    }

    fn begin_pool(&mut self, member: usize, modules: Vec<(NodeId, Arc<ParamSet>)>) {
        self.offered[member] = modules;
    }

    fn finish_pool(&mut self, member: usize) -> Result<PoolReport, String> {
        let own = self.models[member].module();
        let offered = std::mem::take(&mut self.offered[member]);
        let refuse = |(node, params): (NodeId, Arc<ParamSet>)| {
            let fault = fednode_mix::screen::screen(&params, &own, f64::MAX).err()?;
            Some((node, fault.to_string()))
        };
        Ok(PoolReport {
            refused: offered.into_iter().filter_map(refuse).collect(),
        })
    }

    fn save(&mut self, member: usize) {
        self.saved[member] = Some(self.models[member].clone());
    }

    fn restore(&mut self, member: usize) {
        let fresh = || Toy::new(self.seed, member, self.sizes);
        self.models[member] = self.saved[member].clone().unwrap_or_else(fresh);
    }
}
