//! What came of a run, and what an omniscient observer would have computed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fednode_core::{
    AggregationPlan, BlobId, BlobRef, ClosingId, ExpertExchange, ExpertId, Lineage, NodeId,
    PlanRow, ProxySet, Round,
};

use crate::failure::Failure;
use fednode_engine::Note;
use fednode_engine::Phase;

/// A plan that a node used.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanRecord {
    /// Whose.
    pub member: usize,
    /// The plan.
    pub plan: AggregationPlan,
}

/// How near plans are to those of somebody who knows all proxies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Agreement {
    /// Share of the best sources that were chosen, 0 to 1.
    pub recall: f64,
    /// By how much the similarity of the chosen sources falls short of the best ones', on average.
    pub similarity_lost: f64,
}

impl Agreement {
    fn of(best: &PlanRow, chosen: &PlanRow) -> Self {
        let names: BTreeSet<ExpertId> = chosen.sources.iter().map(|source| source.expert).collect();
        let n_best = (best.sources.len() - 1).max(1) as f64;
        let found = best
            .sources
            .iter()
            .skip(1)
            .filter(|source| names.contains(&source.expert))
            .count() as f64;
        let similarity = |row: &PlanRow| {
            row.sources
                .iter()
                .skip(1)
                .map(|source| source.similarity)
                .sum::<f64>()
        };
        Self {
            recall: found / n_best,
            similarity_lost: (similarity(best) - similarity(chosen)) / n_best,
        }
    }

    fn mean(rows: &[Self]) -> Self {
        let mean =
            |of: fn(&Self) -> f64| rows.iter().map(of).sum::<f64>() / rows.len().max(1) as f64;
        Self {
            recall: mean(|row| row.recall),
            similarity_lost: mean(|row| row.similarity_lost),
        }
    }
}

/// What an omniscient observer saw; plans, proxies and what was mixed only if the scenario asks for it.
#[derive(Debug, Default)]
pub struct Observed {
    /// Every plan, once per node and refresh.
    pub plans: Vec<PlanRecord>,
    /// All proxies that were ever published, by round, lineage and node: what an omniscient observer knows.
    pub proxies: BTreeMap<(Round, Lineage), BTreeMap<NodeId, Arc<ProxySet>>>,
    /// The experts that honest nodes really mixed in, with their blobs: (member, round, source, blob).
    pub used: Vec<(usize, Round, ExpertId, BlobId)>,
    /// Blobs that no honest node may count.
    pub invalid: BTreeSet<BlobId>,
    /// The means that nodes adopted: (member, round they merged, mean).
    pub adopted: Vec<(usize, Round, BlobId)>,
    /// Means that are not what their members' parts say.
    pub false_means: BTreeSet<BlobId>,
    /// What each member took into its pool beside its own module.
    pub pools: Vec<(usize, Vec<(NodeId, BlobRef)>)>,
}

/// Fetches of blobs.
#[derive(Debug, Default)]
pub struct Fetches {
    /// Bytes of blobs transferred.
    pub bytes: u64,
    /// Experts that members began to fetch while they still trained.
    pub in_training: u64,
    /// Blobs that came from somebody who held the version before, as the fetching member did.
    pub after_another: u64,
    /// Fetches by member and blob, to see that nothing is fetched twice.
    pub by_member: BTreeMap<(usize, BlobId), u32>,
}

/// Everything worth asserting on.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The seed, to replay the run.
    pub seed: u64,
    /// Virtual time of the last thing that a node told its user.
    pub elapsed: Duration,
    /// Every member's phase, round and lineage at the end; the aggregator is not among them.
    pub members: Vec<(Phase, Round, Lineage)>,
    /// The closed round that each followed at the end.
    pub closings: Vec<Option<ClosingId>>,
    /// Members that were up at the end.
    pub up: Vec<bool>,
    /// The node ids by member number.
    pub ids: Vec<NodeId>,
    /// What the nodes told their users: (member, note).
    pub notes: Vec<(usize, Note)>,
    /// Who was banned by whom.
    pub bans: Vec<(usize, NodeId)>,
    /// Who was struck by whom.
    pub strikes: Vec<(usize, NodeId, String)>,
    /// Why training failed, if it did: (member, reason).
    pub failed: Option<(usize, Failure)>,
    /// Whether the run was told to stop before its end.
    pub stopped: bool,
    /// Adverts delivered.
    pub deliveries: u64,
    /// Adverts that liars said beside those of their machines.
    pub lies: u64,
    /// Fetches of blobs.
    pub fetches: Fetches,
    /// What an omniscient observer saw.
    pub observed: Observed,
}

impl Outcome {
    /// Returns the members that are up and not done.
    pub fn unfinished(&self) -> Vec<usize> {
        let done = |member: &usize| self.members[*member].0 == Phase::Serving;
        (0..self.members.len())
            .filter(|member| self.up[*member] && !done(member))
            .collect()
    }

    /// Returns the plans that differ from what somebody who knows all proxies would have computed.
    ///
    /// A member of `late` may be missing from a plan: whether its proxies are there in time is a matter of luck.
    pub fn imperfect_plans(&self, exchange: &ExpertExchange, late: &[usize]) -> Vec<&PlanRecord> {
        let subsets = 0..1usize << late.len();
        let differs = |record: &&PlanRecord| {
            let known = self
                .observed
                .proxies
                .get(&(record.plan.round, record.plan.lineage));
            known.is_none_or(|known| {
                subsets.clone().all(|subset| {
                    self.omniscient(record, known, late, subset, exchange) != record.plan
                })
            })
        };
        self.observed.plans.iter().filter(differs).collect()
    }

    /// Returns the plan of somebody who knows all proxies but those of a subset (a bit mask) of the late members.
    fn omniscient(
        &self,
        record: &PlanRecord,
        known: &BTreeMap<NodeId, Arc<ProxySet>>,
        late: &[usize],
        subset: usize,
        exchange: &ExpertExchange,
    ) -> AggregationPlan {
        let mut known = known.clone();
        let own = self.ids[record.member];
        for (_, member) in late
            .iter()
            .enumerate()
            .filter(|(bit, _)| subset >> bit & 1 == 1)
        {
            if self.ids[*member] != own {
                known.remove(&self.ids[*member]);
            }
        }
        fednode_mix::plan::plan(
            own,
            record.plan.round,
            record.plan.lineage,
            &known,
            exchange,
        )
    }

    /// Compares the plans with those of somebody who knows all proxies, by the round of the refresh; every so-manieth
    /// member's, since each costs a look at all proxies.
    pub fn agreement(&self, exchange: &ExpertExchange, every: usize) -> BTreeMap<Round, Agreement> {
        let mut by_round: BTreeMap<Round, Vec<Agreement>> = BTreeMap::new();
        for record in self
            .observed
            .plans
            .iter()
            .filter(|record| record.member.is_multiple_of(every.max(1)))
        {
            let plan = &record.plan;
            let Some(known) = self.observed.proxies.get(&(plan.round, plan.lineage)) else {
                continue;
            };
            let best = fednode_mix::plan::plan(
                self.ids[record.member],
                plan.round,
                plan.lineage,
                known,
                exchange,
            );
            let rows = best
                .rows
                .iter()
                .zip(&plan.rows)
                .filter(|(best, _)| best.sources.len() > 1);
            by_round
                .entry(plan.round)
                .or_default()
                .extend(rows.map(|(best, chosen)| Agreement::of(best, chosen)));
        }
        by_round
            .into_iter()
            .map(|(round, rows)| (round, Agreement::mean(&rows)))
            .collect()
    }

    /// Returns the blobs that were counted although nobody may.
    pub fn invalid_used(&self) -> Vec<BlobId> {
        let pooled = self
            .observed
            .pools
            .iter()
            .flat_map(|(_, members)| members)
            .map(|(_, blob)| blob.id);
        self.observed
            .used
            .iter()
            .map(|used| used.3)
            .chain(pooled)
            .filter(|blob| self.observed.invalid.contains(blob))
            .collect()
    }

    /// Returns the distinct lineages at the end of the members that are up.
    pub fn lineages(&self) -> BTreeSet<Lineage> {
        (0..self.members.len())
            .filter(|member| self.up[*member])
            .map(|member| self.members[member].2)
            .collect()
    }

    /// Counts the notes of a kind.
    pub fn count(&self, is: impl Fn(&Note) -> bool) -> usize {
        self.notes.iter().filter(|(_, note)| is(note)).count()
    }
}
