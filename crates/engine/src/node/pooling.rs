//! Pooling: everybody's private module, once, after the last round (PM-MoE: Feng et al., WWW 2025, arXiv 2502.00354).
//!
//! ```text
//! Making ──own module is a blob: offered──► Gathering ──offers of all who shared the last round──► Fetching
//!                                                                                                      │
//! Serving ◄── screened, gate trained on the node's own samples ── Assembling ◄── whatever could be had ┘
//! ```
//!
//! Whoever is lost, has left or offers nothing by the deadline is not waited for, and neither is who says that it keeps
//! its module. A module that cannot be fetched, belongs to another shared part or is of another size is left out. With
//! nobody else's module the node's own is its pool.

use std::collections::{BTreeMap, BTreeSet};

use fednode_core::draw::draw;
use fednode_core::{BlobId, BlobRef, Body, NodeId, PoolOffer, Timestamp};
use serde::{Deserialize, Serialize};

use super::phase::Phase;
use super::planning;
use super::shared::Shared;
use crate::event::{Arrival, FetchKind, ModuleReport, Note, Output, PoolOrder, PoolReport, Timer};
use crate::status::{Cause, Waiting};

/// How many modules are fetched for each that comes in, where proxies do not tell which fit.
const CANDIDATES: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Stage {
    Making,
    Gathering,
    Fetching,
    Assembling,
}

/// The pool while it is being made.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Pooling {
    stage: Stage,
    since: Timestamp,
    /// Who shared the last round and has not offered its module yet.
    awaited: BTreeSet<NodeId>,
    fetching: BTreeMap<BlobId, (BlobRef, Vec<NodeId>)>,
    members: BTreeMap<NodeId, BlobRef>,
}

impl Pooling {
    /// Begins the stage after the last round.
    pub(super) fn begin(shared: &mut Shared) -> Phase {
        // Saved first: a later checkpoint would make a restart train the last stage on top of itself.
        shared.outbox.push(Output::Save);
        let round = shared.memory.round;
        shared.outbox.push(Output::Module { round });
        Phase::Pooling(Self {
            stage: Stage::Making,
            since: shared.now,
            awaited: BTreeSet::new(),
            fetching: BTreeMap::new(),
            members: BTreeMap::new(),
        })
    }

    /// Visits the foreign blobs that are here or on their way.
    pub(super) fn blobs(&self) -> impl Iterator<Item = BlobId> + '_ {
        let held = self.members.values().map(|blob| blob.id);
        held.chain(self.fetching.keys().copied())
    }

    /// Records that a blob is held, or cannot be had.
    pub(super) fn resolve(&mut self, arrival: Arrival) {
        let ends = |(blob, _): &(BlobRef, _)| arrival.ends_wait_for(blob, FetchKind::Module);
        if self.fetching.get(&arrival.id()).is_some_and(ends)
            && let Some((blob, owners)) = self.fetching.remove(&arrival.id())
            && arrival.is_held()
        {
            self.members
                .extend(owners.into_iter().map(|owner| (owner, blob)));
        }
    }

    /// An owner takes its module back, which may be on its way.
    pub(super) fn withdraw(&mut self, owner: NodeId, blobs: &[BlobId]) {
        self.keep(|member, blob| member != owner || !blobs.contains(&blob));
    }

    /// Keeps those modules that stay in the pool, here or on their way.
    fn keep(&mut self, stays: impl Fn(NodeId, BlobId) -> bool) {
        self.members.retain(|member, blob| stays(*member, blob.id));
        self.fetching.retain(|blob, (_, owners)| {
            owners.retain(|owner| stays(*owner, *blob));
            !owners.is_empty()
        });
    }

    fn enter(&mut self, stage: Stage, now: Timestamp) {
        (self.stage, self.since) = (stage, now);
    }

    /// Offers the own module and waits for those of the others; an algorithm without one has nothing to pool.
    pub(super) fn on_module(mut self, shared: &mut Shared, report: Option<ModuleReport>) -> Phase {
        if self.stage != Stage::Making {
            return Phase::Pooling(self);
        }
        let Some(ModuleReport { kind, blob, score }) = report else {
            return Phase::finish(shared);
        };
        self.enter(Stage::Gathering, shared.now);
        let (round, me) = (shared.memory.round, shared.me);
        let trained = shared.view.nodes().locals(round).map(|(node, _)| node);
        // Whoever only rested in the last round has a module too.
        let some_rest = shared.spec.round.participation < 1.0;
        let rested = shared.view.nodes().known().filter(|_| some_rest);
        self.awaited = trained.chain(rested).filter(|node| *node != me).collect();
        // Kept for good: others may fetch it long after this node serves.
        shared.memory.module = blob;
        let offer = PoolOffer {
            kind,
            lineage: shared.memory.lineage,
            blob,
            score,
        };
        shared.outbox.publish(round, Body::Pool(offer));
        let times = &shared.spec.round;
        // Alone, there is nobody whose offer could still come; a grace time covers a lost connection.
        let patience = match shared.view.company().neighbours().len() {
            0 => times.grace(),
            _ => times.deadline(),
        };
        shared
            .outbox
            .set_timer(Timer::Pool(round), shared.now + patience);
        Phase::Pooling(self)
    }

    /// Goes on wherever everything that was waited for has arrived.
    pub(super) fn advance(&mut self, shared: &mut Shared) {
        let view = &shared.view;
        if self.stage == Stage::Fetching {
            // A liar whose module was used would decide what this node predicts.
            self.keep(|member, _| !view.is_banned(member));
        }
        if self.stage == Stage::Gathering {
            // Whoever is gone, or has said that it keeps its module, is not waited for.
            self.awaited.retain(|node| {
                view.nodes().offer(*node).is_none() && !view.is_lost(*node) && !view.has_left(*node)
            });
            if self.awaited.is_empty() {
                self.fetch_modules(shared);
            }
        }
        // Not else: with nobody to fetch from, the pool is assembled at once.
        if self.stage == Stage::Fetching && self.fetching.is_empty() {
            self.stage = Stage::Assembling;
            let members = self.members.iter();
            let members = members.map(|(node, blob)| (*node, *blob)).collect();
            shared.outbox.push(Output::Pool(PoolOrder { members }));
        }
    }

    /// Fetches the modules that fit this node's shared part, or some of them if there are too many.
    fn fetch_modules(&mut self, shared: &mut Shared) {
        // Modules that fit are as large as the own one, too. Who offers none goes by what others offer.
        let own = shared.memory.module.map(|own| own.size);
        let size = own.or_else(|| usual_size(shared));
        let (mut fitting, mut strangers) = (Vec::new(), Vec::new());
        let offered = shared.view.nodes().modules();
        for (node, lineage, blob) in offered.filter(|(node, ..)| *node != shared.me) {
            // A module of another size is of another model, or no module at all; it is told apart before it is fetched.
            let is_of_size = size.is_none_or(|size| size == blob.size);
            // The offer may come after the word that takes it back.
            if shared.view.was_withdrawn_by(node, blob.id) {
                continue;
            }
            if lineage == shared.memory.lineage && is_of_size {
                fitting.push((node, blob));
            } else {
                strangers.push(node);
            }
        }
        // In the order of names, for people.
        strangers.sort_unstable();
        choose(shared, &mut fitting);
        self.enter(Stage::Fetching, shared.now);
        let missing = std::mem::take(&mut self.awaited).into_iter().collect();
        // Owners that are gone get this long, for another node may hold their module.
        let grace = shared.now + shared.spec.round.grace();
        let timer = Timer::Pool(shared.memory.round);
        shared.outbox.set_timer(timer, grace);
        for (owner, blob) in fitting {
            let (_, owners) = self.fetching.entry(blob.id).or_insert((blob, Vec::new()));
            owners.push(owner);
            // Equal modules are one blob.
            if owners.len() == 1 {
                shared.fetch(blob, FetchKind::Module, vec![owner]);
            }
        }
        shared
            .outbox
            .note(Note::PoolGathered { missing, strangers });
    }

    /// The deadline of offers: whoever has not offered its module is left out. While modules are fetched, the end of
    /// another grace time: those of lost nodes are given up, since another holder would have delivered them by now.
    pub(super) fn on_timer(&mut self, shared: &mut Shared) {
        match self.stage {
            Stage::Gathering => {
                self.awaited.clear();
                self.fetch_modules(shared);
            }
            Stage::Fetching => {
                let is_lost = |owner: &NodeId| shared.view.is_lost(*owner);
                self.fetching
                    .retain(|_, (_, owners)| !owners.iter().all(is_lost));
                let again = shared.now + shared.spec.round.grace();
                let timer = Timer::Pool(shared.memory.round);
                shared.outbox.set_timer(timer, again);
            }
            Stage::Making | Stage::Assembling => {}
        }
    }

    pub(super) fn on_pooled(self, shared: &mut Shared, report: &PoolReport) -> Phase {
        if self.stage != Stage::Assembling {
            return Phase::Pooling(self);
        }
        // A module is made by its owner alone, so nobody else can be to blame for it.
        for (node, reason) in &report.refused {
            let reason = format!("module refused: {reason}");
            shared.outbox.strike(*node, reason);
        }
        Phase::finish(shared)
    }

    pub(super) fn waiting(&self, shared: &Shared, now: Timestamp) -> Vec<Waiting> {
        let since = now.since(self.since);
        let left = shared.spec.round.deadline().saturating_sub(since);
        let own = |what| Waiting::new(Cause::OwnWork, what, since);
        let modules_of = |nodes: BTreeSet<NodeId>| {
            let nodes = nodes.into_iter().collect();
            let wait = Waiting::new(Cause::Modules, "private modules", since);
            wait.from_peers(nodes).for_at_most(left)
        };
        vec![match self.stage {
            Stage::Making => own("the trainer"),
            Stage::Gathering => modules_of(self.awaited.clone()),
            Stage::Fetching => {
                let owners = self.fetching.values().flat_map(|(_, owners)| owners);
                modules_of(owners.copied().collect())
            }
            Stage::Assembling => own("the gate of the pool"),
        }]
    }
}

/// Leaves as many modules as are fetched: those of the nodes whose proxies are most like the own ones. Where there are
/// no proxies a draw of this node's own names twice as many as come in. So every module is tried in about as many pools
/// as any other. The trainer takes those that fit its samples best.
fn choose(shared: &Shared, modules: &mut Vec<(NodeId, BlobRef)>) {
    let purpose = [b"fednode pool 1 ", shared.me.as_bytes().as_slice()].concat();
    let ranking = planning::ranked_by_similarity(shared);
    let place = |node: &NodeId| {
        let found = ranking.iter().position(|known| known == node);
        found.unwrap_or(ranking.len())
    };
    // Cached, since every comparison would hash anew.
    modules.sort_by_cached_key(|(node, _)| {
        let lot = draw(&purpose, shared.draws, shared.memory.round, *node);
        (place(node), lot)
    });
    let others = shared.spec.pool.max_members.saturating_sub(1);
    modules.truncate(if ranking.is_empty() {
        others * CANDIDATES
    } else {
        others
    });
}

/// Returns the median size of the modules that others offer, so that no minority can make it large.
fn usual_size(shared: &Shared) -> Option<u64> {
    let modules = shared.view.nodes().modules();
    let fitting = modules.filter(|(_, lineage, _)| *lineage == shared.memory.lineage);
    let mut sizes: Vec<u64> = fitting.map(|(.., blob)| blob.size).collect();
    sizes.sort_unstable();
    sizes.get(sizes.len() / 2).copied()
}
