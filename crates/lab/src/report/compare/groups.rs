//! Which runs form a group, how groups are named, and in which settings they differ.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::report::effort::Efforts;
use crate::report::run::{Headline, Run};
use crate::report::stats::{self, Moments};

/// Settings on which no result depends, or that follow from the seed; the last is of runs under specs of version 1.
const IGNORED: [&str; 3] = [
    "federation.seed",
    "federation.fingerprints.partition",
    "federation.data.partition_hash",
];
/// The settings of a swarm's nodes that shape the result. The others are addresses and folders.
const NODE_SETTINGS: [&str; 3] = ["node.data", "node.device", "node.partition_file"];

/// Largest number of settings in a group's name.
const IN_A_NAME: usize = 3;

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
    /// The cost of its runs until they reached the target, if there is one.
    pub(crate) to_target: Option<Efforts>,
    #[serde(skip)]
    members: Vec<usize>,
}

impl Group {
    /// Returns its runs, out of all.
    pub(super) fn members_of<'a>(&'a self, runs: &'a [Run]) -> impl Iterator<Item = &'a Run> {
        self.members.iter().map(|at| &runs[*at])
    }
}

/// A setting in which groups differ.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Setting {
    /// Its dotted key.
    pub(crate) key: String,
    /// Its value in each group; `None` in a group without the setting.
    pub(crate) values: Vec<Option<String>>,
}

/// A number of a headline: its name, and the function.
type Number = (&'static str, fn(&Headline) -> Option<f64>);
/// The numbers of a headline, by name.
pub(crate) const HEADLINES: [Number; 12] = [
    ("served", |headline| headline.served),
    ("alone", |headline| headline.alone),
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

/// Returns the settings that decide the group of a run.
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

/// Groups the finished runs, in the order in which their first ones were named.
pub(super) fn groups(runs: &[Run]) -> Vec<Group> {
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
    let members = by_settings.iter().map(|(_, members)| members.as_slice());
    let names = names(runs, &members.collect::<Vec<_>>());
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
        // Of equally good keys the shortest: people type that one.
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

/// Returns a run's name without its seed.
pub(super) fn without_seed(name: &str) -> &str {
    match name.rsplit_once("-seed") {
        Some((stem, seed)) if !seed.is_empty() && seed.chars().all(|c| c.is_ascii_digit()) => {
            stem.trim_end_matches('/')
        }
        _ => name,
    }
}

/// Returns the settings in which groups differ.
pub(super) fn differing(runs: &[Run], groups: &[Group]) -> Vec<Setting> {
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
