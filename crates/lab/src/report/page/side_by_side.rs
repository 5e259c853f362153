//! The part of a page about the comparison of runs: settings that differ, means over seeds, and pairs of nodes.

use super::contrasts;
use crate::report::compare::{Comparison, Group, HEADLINES, Setting};
use crate::report::effort;
use crate::report::html::{self, Column, numbers, words};
use crate::report::stats::Moments;
use crate::report::words::{ABSENT, escape, percent};

/// Writes it.
pub(super) fn section(comparison: &Comparison) -> String {
    let mut text = "<h2 class=\"first\">Side by side</h2>\n".to_owned();
    if !comparison.unfinished.is_empty() {
        let names = escape(&comparison.unfinished.join(", "));
        text += &format!(
            "<p class=\"warn\">Left out for want of a summary (under way, broken off, or the records of one node): {names}</p>\n"
        );
    }
    text += "<h3>Settings that differ</h3>\n";
    text += &differing(&comparison.groups, &comparison.differing);
    text += "<h3>Mean ± standard deviation over runs that differ in the seed only</h3>\n";
    text += &means(&comparison.groups);
    text += &comparison.plot.as_ref().map_or(String::new(), html::figure);
    if let Some(target) = comparison.target {
        let groups = comparison.groups.iter();
        text += &effort::section(
            groups.filter_map(|group| Some((group.name.as_str(), group.to_target.as_ref()?))),
            target,
        );
    }
    if !comparison.contrasts.is_empty() {
        text += NODE_BY_NODE;
        text += &contrasts::table(&comparison.contrasts);
    }
    if !comparison.pools.is_empty() {
        text += "<h3>What the pool is worth, over the nodes of all runs of a group</h3>\n";
        text += &contrasts::table(&comparison.pools);
    }
    text
}

const NODE_BY_NODE: &str = "<h3>Node by node</h3>\n<p>A pair is the same shard of the same division of the data under the \
    same seed, in two groups. Each group is compared with every <code>local</code> group with which it has pairs. Without \
    one, it is compared with the first earlier group with which it has pairs. A <code>local</code> group is compared only \
    with earlier <code>local</code> groups.</p>\n";

fn differing(groups: &[Group], settings: &[Setting]) -> String {
    if settings.is_empty() {
        return "<p>None but the seed.</p>\n".into();
    }
    let names = groups.iter().map(|group| words(&group.name));
    let columns: Vec<Column> = [words("setting")].into_iter().chain(names).collect();
    let row = |setting: &Setting| {
        let key = format!("<code>{}</code>", escape(&setting.key));
        let value = |value: &Option<String>| value.as_deref().map_or(ABSENT.to_owned(), escape);
        [key]
            .into_iter()
            .chain(setting.values.iter().map(value))
            .collect()
    };
    html::table(&columns, &settings.iter().map(row).collect::<Vec<_>>())
}

fn means(groups: &[Group]) -> String {
    let mut columns = vec![words("runs"), numbers("number"), words("seeds")];
    columns.extend(HEADLINES.iter().map(|(name, _)| numbers(name)));
    let row = |group: &Group| {
        let seeds: Vec<String> = group.seeds.iter().map(u64::to_string).collect();
        let mut cells = vec![
            escape(&group.name),
            group.runs.len().to_string(),
            seeds.join(", "),
        ];
        let values = HEADLINES.iter().map(|(name, _)| group.moments.get(name));
        cells.extend(values.map(moments));
        cells
    };
    html::table_of_known(&columns, &groups.iter().map(row).collect::<Vec<_>>())
}

fn moments(moments: Option<&Moments>) -> String {
    match moments {
        None => ABSENT.into(),
        Some(Moments {
            mean,
            deviation: None,
            ..
        }) => percent(*mean),
        Some(Moments {
            mean,
            deviation: Some(deviation),
            ..
        }) => {
            format!("{:.1} ± {:.1} %", 100.0 * mean, 100.0 * deviation)
        }
    }
}
