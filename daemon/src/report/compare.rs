//! Runs side by side: which belong together, in what the others differ, and whether the nodes are better off.
//!
//! ```text
//! group       finished runs whose settings differ in nothing but the seed (and what follows from it)
//! pair        the same shard of the same division of the data under the same seed, in two groups: d = group - base
//! base        every group whose algorithm is `local` and with which the group has pairs;
//!             if there is none, the first group before it with which it has pairs;
//!             if there is none either, the first group: the contrast says that there are no pairs;
//!             of a group whose algorithm is itself `local`: the `local` groups before it with which it has pairs
//! pool pair   one node of one run: d = served - own module, served - mixture, served - fine-tuned head
//! ```
//!
//! Nodes of one run learn from each other, so that their differences are not quite independent; every p is to be read
//! with that in mind, and with how many there are.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::effort::{self, Efforts};
use super::figures;
use super::run::{Comparator, Headline, Node, Run};
use super::stats::{self, Moments, Paired};
use super::svg::Plot;

/// Settings that no result depends on, or that follow from the seed.
const IGNORED: [&str; 3] = [
    "federation.seed",
    "federation.fingerprints.partition",
    "federation.data.partition_hash",
];
/// Of a swarm's settings of each node, those that shape the result; the rest is addresses and folders.
const NODE_SETTINGS: [&str; 3] = ["node.data", "node.device", "node.partition_file"];

/// The algorithm that others are compared with: every node learns by itself.
const BASELINE: &str = "local";
/// Most settings that are part of a group's name.
const IN_A_NAME: usize = 3;

/// Runs side by side.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Comparison {
    /// The groups, in the order in which their first runs were named.
    pub(crate) groups: Vec<Group>,
    /// The settings in which groups differ.
    pub(crate) differing: Vec<Setting>,
    /// Each group against its bases, node by node.
    pub(crate) contrasts: Vec<Contrast>,
    /// Within each group with a pool: what is served against the comparators, over the nodes of all its runs.
    pub(crate) pools: Vec<Contrast>,
    /// The accuracy, 0 to 1, whose cost is asked for.
    pub(crate) target: Option<f64>,
    /// Runs that are left out because they have no summary.
    pub(crate) unfinished: Vec<String>,
    /// The groups' accuracies by round.
    #[serde(skip)]
    pub(crate) plot: Option<Plot>,
}

/// Runs that differ in the seed only.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Group {
    /// Its name.
    pub(crate) name: String,
    /// The names of its runs.
    pub(crate) runs: Vec<String>,
    /// Their seeds.
    pub(crate) seeds: Vec<u64>,
    /// Mean and deviation over its runs of each number of the headline.
    pub(crate) moments: BTreeMap<&'static str, Moments>,
    /// What its runs spent until they reached the target, if there is one.
    pub(crate) to_target: Option<Efforts>,
    #[serde(skip)]
    members: Vec<usize>,
}

/// A setting in which groups differ.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Setting {
    /// Its dotted key.
    pub(crate) key: String,
    /// Its value in each group; nothing where there is no such setting.
    pub(crate) values: Vec<Option<String>>,
}

/// One question, answered over pairs.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Contrast {
    /// In which group, or of which two: `group − base`.
    pub(crate) group: String,
    /// What is compared.
    pub(crate) what: String,
    /// The answer; nothing without pairs.
    pub(crate) paired: Option<Paired>,
}

/// A number of a headline: its name, and itself.
type Number = (&'static str, fn(&Headline) -> Option<f64>);
/// What nodes are compared by: its name, and itself.
type Question = (&'static str, fn(&Node) -> Option<f64>);

/// The numbers of a headline, by name.
pub(crate) const HEADLINES: [Number; 10] = [
    ("mean, last round", |headline| headline.mean_accuracy),
    ("before exchange", |headline| {
        headline.mean_accuracy_before_exchange
    }),
    ("after the last stage", |headline| {
        headline.mean_accuracy_after_last_stage
    }),
    ("unweighted mean", |headline| {
        headline.unweighted_mean_accuracy
    }),
    ("worst tenth", |headline| headline.worst_tenth_accuracy),
    ("unweighted mean, end", |headline| {
        headline.unweighted_mean_after_last_stage
    }),
    ("worst tenth, end", |headline| {
        headline.worst_tenth_after_last_stage
    }),
    ("global test", |headline| headline.accuracy_on_everyone),
    ("local test", |headline| headline.accuracy_on_own_classes),
    ("majority-class floor", |headline| {
        headline.majority_class_accuracy
    }),
];

/// What served models are compared with.
const AGAINST: [Comparator; 3] = [
    Comparator::Own,
    Comparator::Mixture,
    Comparator::FineTunedHead,
];

/// Puts runs side by side; `target` is an accuracy, 0 to 1, whose cost is asked for.
pub(crate) fn compare(runs: &[Run], target: Option<f64>) -> Comparison {
    let mut groups = groups(runs);
    for group in &mut groups {
        group.to_target = target.map(|target| effort::efforts(members(runs, group), target));
    }
    let (finished, unfinished): (Vec<&Run>, Vec<&Run>) =
        runs.iter().partition(|run| run.is_finished());
    debug_assert_eq!(
        finished.len(),
        groups
            .iter()
            .map(|group| group.members.len())
            .sum::<usize>(),
        "each in one group"
    );
    Comparison {
        differing: differing(runs, &groups),
        contrasts: contrasts(runs, &groups),
        pools: groups
            .iter()
            .flat_map(|group| pools(&group.name, members(runs, group)))
            .collect(),
        target,
        unfinished: unfinished.into_iter().map(|run| run.name.clone()).collect(),
        plot: figures::side_by_side(runs, &groups),
        groups,
    }
}

/// Compares, over the nodes of some runs, what is served with the own module, the mixture and the fine-tuned head. With
/// the mixture only if the differences are not all 0, as they are by construction where every node serves it as it is.
pub(crate) fn pools<'a>(group: &str, runs: impl Iterator<Item = &'a Run>) -> Vec<Contrast> {
    let nodes: Vec<&Node> = runs
        .flat_map(|run| &run.nodes)
        .filter(|node| node.pool.is_some())
        .collect();
    let contrast = |against: &Comparator| {
        let difference = |node: &&Node| {
            Some(node.pool_accuracy(Comparator::Served)? - node.pool_accuracy(*against)?)
        };
        let differences: Vec<f64> = nodes.iter().filter_map(difference).collect();
        let paired = stats::paired(&differences)?;
        let is_the_same = *against == Comparator::Mixture && paired.equal == paired.pairs;
        let what = format!("served − {}", against.name());
        (!is_the_same).then(|| Contrast {
            group: group.to_owned(),
            what,
            paired: Some(paired),
        })
    };
    AGAINST.iter().filter_map(contrast).collect()
}

fn members<'a>(runs: &'a [Run], group: &'a Group) -> impl Iterator<Item = &'a Run> {
    group.members.iter().map(|at| &runs[*at])
}

/// Returns the settings of a run by which it is put into a group.
fn identity(run: &Run) -> BTreeMap<&str, &str> {
    let shapes = |key: &str| {
        !IGNORED.contains(&key) && (!key.starts_with("node.") || NODE_SETTINGS.contains(&key))
    };
    run.settings
        .iter()
        .filter(|(key, _)| shapes(key))
        .map(|(key, value)| (key.as_str(), value.as_str()))
        .collect()
}

fn groups(runs: &[Run]) -> Vec<Group> {
    let mut by_settings: Vec<(BTreeMap<&str, &str>, Vec<usize>)> = Vec::new();
    for (at, run) in runs.iter().enumerate().filter(|(_, run)| run.is_finished()) {
        let identity = identity(run);
        match by_settings
            .iter_mut()
            .find(|(settings, _)| *settings == identity)
        {
            Some((_, members)) => members.push(at),
            None => by_settings.push((identity, vec![at])),
        }
    }
    let names = names(
        runs,
        &by_settings
            .iter()
            .map(|(_, members)| members.as_slice())
            .collect::<Vec<_>>(),
    );
    let group = |((_, members), name): ((_, Vec<usize>), String)| Group {
        name,
        runs: members.iter().map(|at| runs[*at].name.clone()).collect(),
        seeds: members.iter().filter_map(|at| runs[*at].seed).collect(),
        moments: HEADLINES
            .into_iter()
            .filter_map(|(name, of)| {
                let values = members.iter().filter_map(|at| of(&runs[*at].headline()));
                Some((name, stats::moments(values)?))
            })
            .collect(),
        to_target: None,
        members,
    };
    by_settings.into_iter().zip(names).map(group).collect()
}

/// Names each group as its folders are named but for the seed, or else by its algorithm; where that names several, with
/// the settings that tell them apart, or with a number.
fn names(runs: &[Run], groups: &[&[usize]]) -> Vec<String> {
    let name = |members: &&[usize]| {
        let stems: BTreeSet<&str> = members
            .iter()
            .map(|at| without_seed(&runs[*at].name))
            .collect();
        match stems.first() {
            Some(stem) if stems.len() == 1 && !stem.is_empty() => (*stem).to_owned(),
            _ => members
                .first()
                .map_or(String::new(), |at| runs[*at].algorithm.clone()),
        }
    };
    let names: Vec<String> = groups.iter().map(name).collect();
    let identities: Vec<_> = groups
        .iter()
        .map(|members| {
            members
                .first()
                .map(|at| identity(&runs[*at]))
                .unwrap_or_default()
        })
        .collect();
    let distinct = |at: usize| {
        let alike: Vec<usize> = (0..names.len())
            .filter(|other| names[*other] == names[at])
            .collect();
        let settings = telling_apart(
            &alike
                .iter()
                .map(|other| &identities[*other])
                .collect::<Vec<_>>(),
        );
        let value = |key: &&str| {
            let value = identities[at].get(key).copied().unwrap_or("–");
            format!("{} = {value}", key.rsplit('.').next().unwrap_or(key))
        };
        match settings {
            Some(keys) => [vec![names[at].clone()], keys.iter().map(value).collect()]
                .concat()
                .join(", "),
            None => format!("{} [{}]", names[at], at + 1),
        }
    };
    (0..names.len()).map(distinct).collect()
}

/// Returns the fewest settings, found one by one, by which no two are the same; nothing if that takes more than
/// [`IN_A_NAME`].
fn telling_apart<'a>(identities: &[&BTreeMap<&'a str, &'a str>]) -> Option<Vec<&'a str>> {
    let kinds = |keys: &[&'a str]| {
        let values = |identity: &&BTreeMap<&'a str, &'a str>| {
            keys.iter().map(|key| identity.get(key).copied()).collect()
        };
        identities
            .iter()
            .map(values)
            .collect::<BTreeSet<Vec<Option<&str>>>>()
            .len()
    };
    let all: BTreeSet<&'a str> = identities
        .iter()
        .flat_map(|identity| identity.keys())
        .copied()
        .collect();
    let mut chosen: Vec<&'a str> = Vec::new();
    while kinds(&chosen) < identities.len() {
        let with = |key: &&'a str| kinds(&[chosen.as_slice(), &[*key]].concat());
        // Of equally good keys the shortest is the one that people type.
        let best = all
            .iter()
            .copied()
            .max_by_key(|key| (with(key), std::cmp::Reverse(key.len())))?;
        if with(&best) == kinds(&chosen) || chosen.len() == IN_A_NAME {
            return None;
        }
        chosen.push(best);
    }
    Some(chosen)
}

fn without_seed(name: &str) -> &str {
    match name.rsplit_once("-seed") {
        Some((stem, seed)) if !seed.is_empty() && seed.chars().all(|c| c.is_ascii_digit()) => {
            stem.trim_end_matches('/')
        }
        _ => name,
    }
}

fn differing(runs: &[Run], groups: &[Group]) -> Vec<Setting> {
    let settings: Vec<BTreeMap<&str, &str>> = groups
        .iter()
        .filter_map(|group| Some(identity(&runs[*group.members.first()?])))
        .collect();
    let keys: BTreeSet<&str> = settings.iter().flat_map(BTreeMap::keys).copied().collect();
    let setting = |key: &str| Setting {
        key: key.to_owned(),
        values: settings
            .iter()
            .map(|settings| settings.get(key).map(|value| (*value).to_owned()))
            .collect(),
    };
    let differs = |setting: &Setting| {
        setting
            .values
            .iter()
            .any(|value| *value != setting.values[0])
    };
    keys.into_iter().map(setting).filter(differs).collect()
}

/// Compares each group with its bases.
fn contrasts(runs: &[Run], groups: &[Group]) -> Vec<Contrast> {
    let mut contrasts = Vec::new();
    for (at, group) in groups.iter().enumerate() {
        for base in bases(runs, groups, at) {
            contrasts.extend(against(runs, base, group));
        }
    }
    contrasts
}

/// Returns what the group at `at` is compared with (see the top of this file).
fn bases<'a>(runs: &[Run], groups: &'a [Group], at: usize) -> Vec<&'a Group> {
    let (group, before) = (&groups[at], &groups[..at]);
    let is_local = |group: &Group| members(runs, group).any(|run| run.algorithm == BASELINE);
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

/// Compares a group with a base: in the last round and, if either has a last stage, as the nodes end.
fn against(runs: &[Run], base: &Group, group: &Group) -> Vec<Contrast> {
    let both = || members(runs, base).chain(members(runs, group));
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
    let mut free: Vec<&Run> = members(runs, base).collect();
    let mut pairs = Vec::new();
    for run in members(runs, group) {
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

#[cfg(test)]
mod tests {
    use super::super::fixtures;
    use super::*;

    fn run(name: &str, seed: u64, change: impl FnOnce(&mut Run)) -> Run {
        let summary = fixtures::summary(seed);
        let mut run = Run::finished(
            std::path::Path::new(name),
            name.into(),
            summary,
            fixtures::records(seed),
        );
        change(&mut run);
        run
    }

    fn rate(rate: &str) -> impl Fn(&mut Run) {
        move |run| {
            run.settings
                .insert("federation.training.learning_rate".into(), rate.into());
            run.settings.insert("node.state".into(), run.name.clone());
            let shift = if rate == "0.1" { 0.0 } else { 0.125 };
            run.nodes
                .iter_mut()
                .for_each(|node| node.accuracy = node.accuracy.map(|accuracy| accuracy + shift));
        }
    }

    fn runs() -> Vec<Run> {
        vec![
            run("a-seed1", 1, rate("0.1")),
            run("a-seed2", 2, rate("0.1")),
            run("b-seed2", 2, rate("0.5")),
            run("b-seed3", 3, rate("0.5")),
        ]
    }

    #[test]
    fn runs_that_differ_in_the_seed_are_one_group() {
        let got = compare(&runs(), None);
        let names: Vec<(&str, &[u64])> = got
            .groups
            .iter()
            .map(|group| (group.name.as_str(), group.seeds.as_slice()))
            .collect();
        assert_eq!(names, [("a", &[1, 2][..]), ("b", &[2, 3][..])]);
        let values = vec![Some("0.1".to_owned()), Some("0.5".to_owned())];
        assert_eq!(
            got.differing,
            [Setting {
                key: "federation.training.learning_rate".into(),
                values
            }]
        );
        let moments = got.groups[0].moments["unweighted mean"];
        let want = (0.5 + 0.75 + 0.9) / 3.0 + 0.0015;
        assert!(
            (moments.mean - want).abs() < 1e-12 && moments.n == 2,
            "{moments:?}"
        );
        assert!(
            (moments.deviation.unwrap() - 0.001 / 2_f64.sqrt()).abs() < 1e-12,
            "{moments:?}"
        );
    }

    #[test]
    fn only_the_same_shard_under_the_same_seed_is_a_pair() {
        let got = compare(&runs(), None);
        let contrast = &got.contrasts[0];
        assert_eq!(
            (contrast.group.as_str(), contrast.what.as_str()),
            ("b − a", "accuracy in the last round")
        );
        let paired = contrast.paired.as_ref().unwrap();
        assert_eq!((paired.pairs, paired.better), (3, 3));
        assert!((paired.mean - 0.125).abs() < 1e-12);
        let mut other = runs();
        other[2].partition_hash = "another division".into();
        assert_eq!(compare(&other, None).contrasts[0].paired, None);
    }

    #[test]
    fn what_was_tested_on_everyones_samples_is_compared_there_too() {
        let mut runs = runs();
        assert!(
            compare(&runs, None)
                .contrasts
                .iter()
                .all(|contrast| !contrast.what.contains("test)"))
        );
        for (at, run) in runs.iter_mut().enumerate() {
            run.nodes
                .iter_mut()
                .for_each(|node| node.on_everyone = Some(0.5 + 0.1 * at as f64));
        }
        let got = compare(&runs, None);
        assert!((got.groups[1].moments["global test"].mean - 0.75).abs() < 1e-12);
        let contrast = got
            .contrasts
            .iter()
            .find(|contrast| contrast.what.contains("global test"))
            .unwrap();
        assert!(
            (contrast.paired.as_ref().unwrap().mean - 0.1).abs() < 1e-12,
            "{contrast:?}"
        );
    }

    /// Makes the run of an algorithm on a division of the data.
    fn divided((algorithm, partition): (&str, &str)) -> Run {
        run(&format!("{algorithm}-{partition}-seed1"), 1, |run| {
            run.algorithm = algorithm.into();
            run.partition_hash = format!("hash of {partition}");
            run.settings
                .insert("federation.algorithm".into(), algorithm.into());
            run.settings
                .insert("federation.data.partition".into(), partition.into());
        })
    }

    /// Returns which groups are compared, in order, and over how many pairs.
    fn compared(runs: &[Run]) -> Vec<(String, usize)> {
        let contrasts = compare(runs, None).contrasts.into_iter();
        contrasts
            .filter(|contrast| contrast.what == "accuracy in the last round")
            .map(|contrast| {
                (
                    contrast.group,
                    contrast.paired.map_or(0, |paired| paired.pairs),
                )
            })
            .collect()
    }

    fn want(contrasts: &[(&str, usize)]) -> Vec<(String, usize)> {
        contrasts
            .iter()
            .map(|(group, pairs)| ((*group).to_owned(), *pairs))
            .collect()
    }

    #[test]
    fn each_group_is_compared_with_local_on_its_own_division_whatever_the_order() {
        let mut runs = [
            ("local", "0.5"),
            ("local", "0.1"),
            ("x", "0.5"),
            ("x", "0.1"),
        ]
        .map(divided);
        for turn in 0..2 * runs.len() {
            if turn == runs.len() {
                runs.reverse();
            }
            runs.rotate_left(1);
            let mut got = compared(&runs);
            got.sort();
            assert_eq!(
                got,
                want(&[("x-0.1 − local-0.1", 3), ("x-0.5 − local-0.5", 3)]),
                "turn {turn}"
            );
        }
    }

    #[test]
    fn without_local_the_first_group_before_with_pairs_is_the_base() {
        let runs = [
            ("a", "0.1"),
            ("b", "0.5"),
            ("c", "0.5"),
            ("d", "0.5"),
            ("local", "0.9"),
        ]
        .map(divided);
        assert_eq!(
            compared(&runs),
            want(&[
                ("b-0.5 − a-0.1", 0),
                ("c-0.5 − b-0.5", 3),
                ("d-0.5 − b-0.5", 3)
            ])
        );
    }

    #[test]
    fn local_is_compared_with_local_before_it_and_others_with_every_local() {
        let mut runs = [
            ("a", "0.5"),
            ("local", "0.5"),
            ("local", "0.5"),
            ("local", "0.1"),
        ]
        .map(divided);
        runs[2].name = "local-long-0.5-seed1".into();
        runs[2]
            .settings
            .insert("federation.rounds".into(), "70".into());
        let got = [
            ("a-0.5 − local-0.5", 3),
            ("a-0.5 − local-long-0.5", 3),
            ("local-long-0.5 − local-0.5", 3),
        ];
        assert_eq!(compared(&runs), want(&got));
    }

    #[test]
    fn a_pool_is_judged_within_runs_and_over_seeds() {
        let runs = runs();
        let one = pools("a-seed1", runs[..1].iter());
        assert_eq!(
            one.iter()
                .map(|contrast| contrast.what.as_str())
                .collect::<Vec<_>>(),
            [
                "served − own module",
                "served − mixture",
                "served − fine-tuned head"
            ]
        );
        let means = [
            0.05 * 2.0 / 3.0,
            0.05 * 2.0 / 3.0 - 0.02,
            0.05 * 2.0 / 3.0 - 0.01,
        ];
        for (contrast, mean) in one.iter().zip(means) {
            let paired = contrast.paired.as_ref().unwrap();
            assert!(
                paired.pairs == 3 && (paired.mean - mean).abs() < 1e-12,
                "{paired:?}"
            );
        }
        assert_eq!(
            compare(&runs, None).pools[0].paired.as_ref().unwrap().pairs,
            6
        );
    }

    #[test]
    fn nothing_is_compared_with_a_mixture_that_is_served_as_it_is() {
        let mut run = run("a-seed1", 1, |_| ());
        for node in &mut run.nodes {
            node.after_last_stage = node.pool_accuracy(Comparator::Mixture);
        }
        let got = pools("a", std::iter::once(&run));
        assert_eq!(
            got.iter()
                .map(|contrast| contrast.what.as_str())
                .collect::<Vec<_>>(),
            ["served − own module", "served − fine-tuned head"]
        );
        run.nodes[0].after_last_stage = run.nodes[0].pool_accuracy(Comparator::Own);
        let got = pools("a", std::iter::once(&run));
        assert_eq!(
            got[1].what, "served − mixture",
            "one node serves its own module"
        );
    }

    #[test]
    fn what_is_under_way_is_named_and_left_out() {
        let mut runs = runs();
        runs[3] = Run {
            summary: None,
            ..runs[3].clone()
        };
        let got = compare(&runs, None);
        assert_eq!(got.unfinished, ["b-seed3"]);
        assert_eq!(got.groups[1].runs, ["b-seed2"]);
    }

    #[test]
    fn names_without_a_common_stem_are_algorithms() {
        assert_eq!(
            [
                without_seed("x-seed12"),
                without_seed("-seed1"),
                without_seed("e/-seed1")
            ],
            ["x", "", "e"]
        );
        let runs = vec![
            run("p", 1, rate("0.1")),
            run("q", 2, rate("0.1")),
            run("r", 1, rate("0.5")),
            run("s", 2, rate("0.5")),
        ];
        assert_eq!(
            compare(&runs, None)
                .groups
                .iter()
                .map(|group| group.name.as_str())
                .collect::<Vec<_>>(),
            ["fedper, learning_rate = 0.1", "fedper, learning_rate = 0.5"]
        );
    }
}
