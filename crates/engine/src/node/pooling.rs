//! Pooling: everybody's private module, once, after the last round (PM-MoE, `pm-moe` §2.6).
//!
//! ```text
//! Making ──own module is a blob: offered──► Gathering ──offers of all who shared the last round──► Fetching
//!                                                                                                      │
//! Serving ◄── screened, gate trained on the node's own samples ── Assembling ◄── whatever could be had ┘
//! ```
//!
//! Whoever is lost, has left or offers nothing by the deadline is not waited for, and neither is who says that it keeps
//! its module; a module that cannot be fetched, belongs to another shared part or is of another size is left out. With
//! nobody else's module the node's own is its pool.

use std::collections::{BTreeMap, BTreeSet};

use fednode_core::draw::draw;
use fednode_core::{BlobId, BlobRef, Body, Lineage, NodeId, PoolOffer, Timestamp};

use super::Node;
use crate::event::{FetchKind, ModuleReport, Note, Output, PoolOrder, PoolReport, Timer};
use crate::state::Phase;
use crate::status::Waiting;

/// How many modules are fetched for each that comes in, where proxies do not tell which fit.
const CANDIDATES: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Making,
    Gathering,
    Fetching,
    Assembling,
}

/// The pool while it is being made.
#[derive(Debug)]
pub(super) struct Pooling {
    stage: Stage,
    since: Timestamp,
    /// Who shared the last round and has not offered its module yet.
    awaited: BTreeSet<NodeId>,
    fetching: BTreeMap<BlobId, (BlobRef, Vec<NodeId>)>,
    members: BTreeMap<NodeId, BlobRef>,
}

impl Pooling {
    /// Visits the foreign blobs that are here or on their way.
    pub(super) fn blobs(&self) -> impl Iterator<Item = BlobId> + '_ {
        self.members
            .values()
            .map(|blob| blob.id)
            .chain(self.fetching.keys().copied())
    }

    /// Records that a blob is held, or cannot be had.
    pub(super) fn resolve(&mut self, blob: BlobId, held: bool) {
        if let Some((blob, owners)) = self.fetching.remove(&blob)
            && held
        {
            self.members
                .extend(owners.into_iter().map(|owner| (owner, blob)));
        }
    }

    /// An owner takes its module back.
    pub(super) fn withdraw(&mut self, owner: NodeId, blobs: &[BlobId]) {
        self.members
            .retain(|member, blob| *member != owner || !blobs.contains(&blob.id));
    }
}

impl Node {
    /// Begins the stage after the last round.
    pub(super) fn enter_pool(&mut self) {
        self.state.phase = Phase::Pooling;
        self.pooling = Some(Pooling {
            stage: Stage::Making,
            since: self.now,
            awaited: BTreeSet::new(),
            fetching: BTreeMap::new(),
            members: BTreeMap::new(),
        });
        self.outputs.push(Output::Save);
        self.outputs.push(Output::Module {
            round: self.state.round,
        });
    }

    /// Offers the own module and waits for those of the others; an algorithm without one has nothing to pool.
    pub(super) fn on_module(&mut self, report: Option<ModuleReport>) {
        let Some(pooling) = self
            .pooling
            .as_mut()
            .filter(|pooling| pooling.stage == Stage::Making)
        else {
            return;
        };
        let Some(ModuleReport { kind, blob, score }) = report else {
            return self.finish();
        };
        (pooling.stage, pooling.since) = (Stage::Gathering, self.now);
        let round = self.state.round;
        let trained = self.view.locals(round).map(|(node, _)| node);
        // Whoever only rested in the last round has a module too.
        let rested = self
            .view
            .known()
            .filter(|_| self.spec.round.participation < 1.0);
        pooling.awaited = trained
            .chain(rested)
            .filter(|node| *node != self.me)
            .collect();
        self.state.module = blob;
        self.publish(
            round,
            Body::Pool(PoolOffer {
                kind,
                lineage: self.state.lineage,
                blob,
                score,
            }),
        );
        let patience = match self.view.neighbours().len() {
            0 => self.spec.round.grace(),
            _ => self.spec.round.deadline(),
        };
        self.set_timer(Timer::Pool(round), self.now + patience);
    }

    /// Goes on wherever everything that was waited for has arrived.
    pub(super) fn advance_pool(&mut self) {
        let view = &self.view;
        let Some(pooling) = &mut self.pooling else {
            return;
        };
        if pooling.stage == Stage::Gathering {
            pooling.awaited.retain(|node| {
                view.offer(*node).is_none() && !view.is_lost(*node) && !view.has_left(*node)
            });
            if pooling.awaited.is_empty() {
                self.fetch_modules();
            }
        }
        if let Some(pooling) = &mut self.pooling
            && pooling.stage == Stage::Fetching
            && pooling.fetching.is_empty()
        {
            pooling.stage = Stage::Assembling;
            let order = PoolOrder {
                members: pooling
                    .members
                    .iter()
                    .map(|(node, blob)| (*node, *blob))
                    .collect(),
            };
            self.outputs.push(Output::Pool(order));
        }
    }

    /// Fetches the modules that fit this node's shared part; with too many, those of the nodes whose proxies are most like
    /// its own. Where there are no proxies a draw of its own names twice as many as come in, so that every module is tried in
    /// about as many pools as any other, and the trainer takes those that fit its samples best.
    fn fetch_modules(&mut self) {
        // Modules that fit are as large as the own one, too.
        let (lineage, size) = (self.state.lineage, self.state.module.map(|own| own.size));
        let fits =
            |of: Lineage, blob: BlobRef| of == lineage && size.is_none_or(|size| size == blob.size);
        let (fitting, others): (Vec<_>, Vec<_>) = self
            .view
            .modules()
            .filter(|(node, ..)| *node != self.me)
            .partition(|(_, of, blob)| fits(*of, *blob));
        let strangers: BTreeSet<NodeId> = others.into_iter().map(|(node, ..)| node).collect();
        let mut chosen: Vec<(NodeId, BlobRef)> = fitting
            .into_iter()
            .map(|(node, _, blob)| (node, blob))
            .collect();
        let purpose = [b"fednode pool 1 ", self.me.as_bytes().as_slice()].concat();
        let ranking = self.ranked_by_similarity();
        let place = |node: &NodeId| {
            ranking
                .iter()
                .position(|known| known == node)
                .unwrap_or(ranking.len())
        };
        chosen.sort_by_cached_key(|(node, _)| {
            (
                place(node),
                draw(&purpose, self.draws, self.state.round, *node),
            )
        });
        let others = self.spec.pool.max_members.saturating_sub(1);
        chosen.truncate(if ranking.is_empty() {
            others * CANDIDATES
        } else {
            others
        });
        let missing = self
            .pooling
            .as_ref()
            .map(|pooling| pooling.awaited.iter().copied().collect());
        let mut wanted = Vec::new();
        if let Some(pooling) = &mut self.pooling {
            (pooling.stage, pooling.since) = (Stage::Fetching, self.now);
            pooling.awaited.clear();
            for (owner, blob) in chosen {
                let (_, owners) = pooling
                    .fetching
                    .entry(blob.id)
                    .or_insert((blob, Vec::new()));
                owners.push(owner);
                if owners.len() == 1 {
                    wanted.push((owner, blob));
                }
            }
        }
        self.set_timer(
            Timer::Pool(self.state.round),
            self.now + self.spec.round.grace(),
        );
        for (owner, blob) in wanted {
            self.fetch(blob, FetchKind::Module, vec![owner]);
        }
        self.note(Note::PoolGathered {
            missing: missing.unwrap_or_default(),
            strangers: strangers.into_iter().collect(),
        });
    }

    /// The deadline of offers: whoever has not offered its module is left out. While modules are fetched, the end of
    /// another grace time: those of lost nodes are given up, since another holder would have delivered them by now.
    pub(super) fn on_pool_timer(&mut self) {
        let (view, again) = (&self.view, self.now + self.spec.round.grace());
        let Some(pooling) = &mut self.pooling else {
            return;
        };
        pooling.awaited.clear();
        match pooling.stage {
            Stage::Gathering => self.fetch_modules(),
            Stage::Fetching => {
                pooling
                    .fetching
                    .retain(|_, (_, owners)| !owners.iter().all(|owner| view.is_lost(*owner)));
                self.set_timer(Timer::Pool(self.state.round), again);
            }
            Stage::Making | Stage::Assembling => {}
        }
    }

    pub(super) fn on_pooled(&mut self, report: &PoolReport) {
        if self
            .pooling
            .take()
            .is_none_or(|pooling| pooling.stage != Stage::Assembling)
        {
            return;
        }
        for (node, reason) in &report.refused {
            self.strike(*node, format!("module refused: {reason}"));
        }
        self.finish();
    }

    pub(super) fn waiting_in_pool(&self, now: Timestamp) -> Vec<Waiting> {
        let Some(pooling) = &self.pooling else {
            return Vec::new();
        };
        let since = now.since(pooling.since);
        match pooling.stage {
            Stage::Making => vec![Waiting::new("the trainer", since)],
            Stage::Gathering => {
                vec![Waiting::from_peers(
                    "private modules",
                    pooling.awaited.iter().copied().collect(),
                    since,
                )]
            }
            Stage::Fetching => {
                let owners: BTreeSet<NodeId> = pooling
                    .fetching
                    .values()
                    .flat_map(|(_, owners)| owners)
                    .copied()
                    .collect();
                vec![Waiting::from_peers(
                    "private modules",
                    owners.into_iter().collect(),
                    since,
                )]
            }
            Stage::Assembling => vec![Waiting::new("the gate of the pool", since)],
        }
    }
}
