//! Runs side by side: which runs form a group, how groups differ, and whether their nodes are better off.
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
//! The nodes of one run learn from each other, so their differences are not quite independent. Read every p with that in
//! mind, and with the number of tests.

mod contrasts;
mod groups;

use serde::Serialize;

use super::effort;
use super::figures;
use super::run::Run;
use super::svg::Plot;

pub(crate) use contrasts::{Contrast, pools};
pub(crate) use groups::{Group, HEADLINES, Setting};

/// Runs side by side.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Comparison {
    /// The groups, in the order in which their first runs were named.
    pub(crate) groups: Vec<Group>,
    /// The settings in which groups differ.
    pub(crate) differing: Vec<Setting>,
    /// Each group against its bases, node by node.
    pub(crate) contrasts: Vec<Contrast>,
    /// For each group with a pool: the served model against the comparators, over the nodes of all its runs.
    pub(crate) pools: Vec<Contrast>,
    /// The accuracy, 0 to 1, whose cost is reported.
    pub(crate) target: Option<f64>,
    /// Runs that are left out because they have no summary.
    pub(crate) unfinished: Vec<String>,
    /// The groups' accuracies by round.
    #[serde(skip)]
    pub(crate) plot: Option<Plot>,
}

/// Compares runs. `target` is an accuracy, 0 to 1, whose cost is reported.
pub(crate) fn compare(runs: &[Run], target: Option<f64>) -> Comparison {
    let mut groups = groups::groups(runs);
    for group in &mut groups {
        group.to_target = target.map(|target| effort::efforts(group.members_of(runs), target));
    }
    let (finished, unfinished): (Vec<&Run>, Vec<&Run>) =
        runs.iter().partition(|run| run.is_finished());
    debug_assert_eq!(
        finished.len(),
        groups.iter().map(|group| group.runs.len()).sum::<usize>(),
        "each in one group"
    );
    Comparison {
        differing: groups::differing(runs, &groups),
        contrasts: contrasts::contrasts(runs, &groups),
        pools: groups
            .iter()
            .flat_map(|group| pools(&group.name, group.members_of(runs)))
            .collect(),
        target,
        unfinished: unfinished.into_iter().map(|run| run.name.clone()).collect(),
        plot: figures::side_by_side(runs, &groups),
        groups,
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures;
    use super::groups::without_seed;
    use super::*;
    use fednode_core::Served;

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
    fn global_tests_are_compared_too() {
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
    fn group_is_compared_with_local_of_its_division() {
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
    fn local_runs_are_compared_in_order() {
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
                "the pool’s choice − own module",
                "the pool’s choice − fine-tuned head"
            ],
            "the models that the nodes end with are better still, by their statistics expert"
        );
        let means = [0.02, 0.01];
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
    fn the_mixture_is_compared_where_a_node_serves_its_own_module() {
        let mut run = run("a-seed1", 1, |_| ());
        let pool = run.nodes[0].pool.as_mut().unwrap();
        pool.served = Served::Own {
            reason: "the mixture is no better".into(),
        };
        let got = pools("a", std::iter::once(&run));
        let whats: Vec<&str> = got.iter().map(|contrast| contrast.what.as_str()).collect();
        assert_eq!(
            whats,
            [
                "the pool’s choice − own module",
                "the pool’s choice − mixture",
                "the pool’s choice − fine-tuned head"
            ]
        );
        let means = [0.04 / 3.0, -0.02 / 3.0, 0.01 / 3.0];
        for (contrast, mean) in got.iter().zip(means) {
            let paired = contrast.paired.as_ref().unwrap();
            assert!((paired.mean - mean).abs() < 1e-12, "{paired:?}");
        }
    }

    #[test]
    fn unfinished_run_is_named_and_left_out() {
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
