//! Whether nodes are better off: which groups are compared, which of their nodes are pairs, and how a pool is judged.

use std::collections::BTreeMap;

use serde::Serialize;

use super::groups::Group;
use crate::report::run::{Comparator, Node, Run};
use crate::report::stats::{self, Paired};
use crate::report::words::known;

/// The algorithm with which others are compared: every node trains alone.
const BASELINE: &str = "local";
/// The comparators of served models.
const AGAINST: [Comparator; 3] = [
    Comparator::Own,
    Comparator::Mixture,
    Comparator::FineTunedHead,
];

/// One comparison over pairs.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Contrast {
    /// In which group, or of which two: `group − base`.
    pub(crate) group: String,
    /// What is compared.
    pub(crate) what: String,
    /// The result; `None` without pairs.
    pub(crate) paired: Option<Paired>,
}

/// A measure of a node: its name, and the function.
type Question = (&'static str, fn(&Node) -> Option<f64>);

/// Compares what the pool serves with the own module, the mixture and the fine-tuned head, over the nodes of some runs. None of
/// them has the statistics expert, which is not the pool's merit.
///
/// If every node serves the mixture itself, all differences to the mixture are 0, and that comparison is left out.
pub(crate) fn pools<'a>(group: &str, runs: impl Iterator<Item = &'a Run>) -> Vec<Contrast> {
    let nodes: Vec<&Node> = runs
        .flat_map(|run| &run.nodes)
        .filter(|node| node.pool.is_some())
        .collect();
    let contrast = |against: &Comparator| {
        let difference = |node: &&Node| {
            let pool = node.pool.as_ref()?;
            let of = |model: Comparator| known(model.score_without_statistics(pool)?.accuracy);
            Some(of(Comparator::Served)? - of(*against)?)
        };
        let differences: Vec<f64> = nodes.iter().filter_map(difference).collect();
        let paired = stats::paired(&differences)?;
        let is_the_same = *against == Comparator::Mixture && paired.equal == paired.pairs;
        let what = format!("the pool’s choice − {}", against.name());
        (!is_the_same).then(|| Contrast {
            group: group.to_owned(),
            what,
            paired: Some(paired),
        })
    };
    AGAINST.iter().filter_map(contrast).collect()
}

/// Compares each group with its bases.
pub(super) fn contrasts(runs: &[Run], groups: &[Group]) -> Vec<Contrast> {
    let mut contrasts = Vec::new();
    for (at, group) in groups.iter().enumerate() {
        for base in bases(runs, groups, at) {
            contrasts.extend(against(runs, base, group));
        }
    }
    contrasts
}

/// Returns the bases of the group at `at` (see `compare.rs`).
fn bases<'a>(runs: &[Run], groups: &'a [Group], at: usize) -> Vec<&'a Group> {
    let (group, before) = (&groups[at], &groups[..at]);
    let is_local = |group: &Group| group.members_of(runs).any(|run| run.algorithm == BASELINE);
    let has_pairs = |base: &Group| !pairs(runs, base, group).is_empty();
    if is_local(group) {
        return before
            .iter()
            .filter(|base| is_local(base) && has_pairs(base))
            .collect();
    }
    let local: Vec<&Group> = groups
        .iter()
        .filter(|base| is_local(base) && has_pairs(base))
        .collect();
    if !local.is_empty() {
        return local;
    }
    before
        .iter()
        .find(|base| has_pairs(base))
        .or(before.first())
        .into_iter()
        .collect()
}

/// Compares a group with a base: in the last round and, if either has a last stage, after that.
fn against(runs: &[Run], base: &Group, group: &Group) -> Vec<Contrast> {
    let both = || base.members_of(runs).chain(group.members_of(runs));
    let has_last_stage = both()
        .flat_map(|run| &run.nodes)
        .any(|node| node.after_last_stage.is_some());
    let mut questions: Vec<Question> = vec![("accuracy in the last round", |node| node.accuracy)];
    if has_last_stage {
        questions.push((
            "accuracy of the model that the node ends with",
            Node::final_accuracy,
        ));
    }
    if both()
        .flat_map(|run| &run.nodes)
        .any(|node| node.on_everyone.is_some())
    {
        questions.push((
            "accuracy on everyone’s test samples (global test)",
            |node| node.on_everyone,
        ));
        questions.push((
            "the same, classes weighted as the node has them (local test)",
            |node| node.on_own_classes,
        ));
    }
    let pairs = pairs(runs, base, group);
    let contrast = |(what, of): Question| {
        let differences: Vec<f64> = pairs
            .iter()
            .filter_map(|(base, node)| Some(of(node)? - of(base)?))
            .collect();
        let (group, what) = (format!("{} − {}", group.name, base.name), what.to_owned());
        Contrast {
            group,
            what,
            paired: stats::paired(&differences),
        }
    };
    questions.into_iter().map(contrast).collect()
}

/// Returns the pairs of two groups, the base's node first.
fn pairs<'a>(runs: &'a [Run], base: &'a Group, group: &'a Group) -> Vec<(&'a Node, &'a Node)> {
    let mut free: Vec<&Run> = base.members_of(runs).collect();
    let mut pairs = Vec::new();
    for run in group.members_of(runs) {
        let is_partner = |partner: &&Run| {
            partner.seed == run.seed && partner.partition_hash == run.partition_hash
        };
        let Some(at) = free.iter().position(is_partner) else {
            continue;
        };
        let partner = free.remove(at);
        let by_shard: BTreeMap<u32, &Node> = partner
            .last_nodes()
            .filter_map(|node| Some((node.shard?, node)))
            .collect();
        pairs.extend(
            run.last_nodes()
                .filter_map(|node| Some((*by_shard.get(&node.shard?)?, node))),
        );
    }
    pairs
}
