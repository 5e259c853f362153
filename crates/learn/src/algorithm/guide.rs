//! The page on all algorithms and models, `docs/algorithms.md`, made of the two tables; a test holds the file to it.

use std::fmt::Write;

use fednode_core::spec::Architecture;
use fednode_core::{HyperValue, Weighting};
use fednode_mix::{matching, rule};

use super::{Hyper, Optimizers, Profile, Row, TABLE};
use crate::model;

const HEAD: &str = "\
# Algorithms and models

What `fednode` can train, made from the tables in the code (`UPDATE_DOCS=1 cargo test -p fednode-learn --test guide` writes
this file anew). `fednode algorithms NAME` prints the same about one algorithm; hyper-parameters are set by `--set KEY=VALUE`
or in table `hyper` of `federation.toml`, profiles by `--set profile=NAME`.

In the table below, *averaged* is what all nodes combine in every round, with the weight of a node in brackets. *Peer to
peer* is what one node fetches from another. Where the source of an algorithm is silent, or where what is here differs from
it, the first lines of its file in `crates/learn/src/algorithm/` say so.
";

const RULES: &str = "
# Aggregation rules

How the shared parts of the nodes become one. An algorithm with the key `aggregation` takes those marked *by choice*
(`--set aggregation=krum --set faulty=2`); the others belong to one algorithm. A rule that *streams* holds one part at a
time in memory, others hold all. Robust rules ignore weights, since a liar would lie about its weight too.

| rule | what it does | by choice | streams | weights count | from |
|---|---|---|---|---|---|
";

const RULE_KEYS: &str = "
| key | of rule | range | default | meaning |
|---|---|---|---|---|
";

const MATCHINGS: &str = "
# Matchings

By what a node chooses and weights the experts that it mixes; the algorithm says which.

| matching | what it does | from |
|---|---|---|
";

const MODELS: &str = "
# Models

The names for `model.name`. *Size* is the number of parameters, and the multiply-adds of convolutions and fully connected
layers for one image, forward; training takes nearly three times those. `metrics.jsonl` counts what was taken.

| model | what it is | size for 28x28, grey, ten classes | size for 32x32, colour |
|---|---|---|---|
";

/// Renders the page.
pub fn guide() -> String {
    let mut page = HEAD.to_owned();
    page.push_str(
        "\n| algorithm | what it is | averaged | peer to peer | stays at home | from |\n|---|---|---|---|---|---|\n",
    );
    for row in TABLE {
        let Row {
            name,
            summary,
            averages,
            peer_to_peer,
            keeps_private,
            reference,
            ..
        } = row;
        let weight = weighting(row).map_or_else(String::new, |weighting| format!(" ({weighting})"));
        line(
            &mut page,
            format_args!(
                "| `{name}` | {summary} | {averages}{weight} | {peer_to_peer} | {keeps_private} | {reference} |"
            ),
        );
    }
    for row in TABLE {
        section(&mut page, row);
    }
    rules(&mut page);
    page.push_str(MATCHINGS);
    for matching::MatchingRow {
        name,
        summary,
        reference,
        ..
    } in matching::TABLE
    {
        line(
            &mut page,
            format_args!("| `{name}` | {summary} | {reference} |"),
        );
    }
    page.push_str(MODELS);
    for row @ model::Row { name, summary, .. } in model::TABLE {
        let [small, large] = [1, 3].map(|channels| size(row, channels));
        line(
            &mut page,
            format_args!("| `{name}` | {summary} | {small} | {large} |"),
        );
    }
    page
}

/// Writes the two tables on aggregation rules: all of them, and the keys of those that a federation may choose.
fn rules(page: &mut String) {
    let yes = |is: bool| if is { "yes" } else { "–" };
    page.push_str(RULES);
    for row in rule::TABLE {
        let by_choice = yes(row.takes == rule::Takes::AnyParts);
        let (streams, weights) = (yes(row.streams), yes(row.uses_weights));
        line(
            page,
            format_args!(
                "| `{}` | {} | {by_choice} | {streams} | {weights} | {} |",
                row.name, row.summary, row.reference
            ),
        );
    }
    page.push_str(RULE_KEYS);
    for row in rule::choices() {
        for Hyper {
            name,
            kind,
            default,
            doc,
        } in row.params.iter().map(Hyper::from)
        {
            line(
                page,
                format_args!(
                    "| `{name}` | `{}` | {} | {default} | {doc} |",
                    row.name,
                    kind.range()
                ),
            );
        }
    }
}

/// Says how large a model is for images of 28x28 in grey or of 32x32 in colour, and ten classes.
fn size(row: &model::Row, channels: usize) -> String {
    let input = if channels == 1 {
        [1, 28, 28]
    } else {
        [3, 32, 32]
    };
    let spec = Architecture {
        input,
        classes: 10,
        ..Architecture::default()
    };
    let Ok(layers) = (row.layers)(&spec) else {
        return "–".into();
    };
    let net = model::Net::new(layers);
    format!(
        "{} · {:.2} M",
        grouped(net.n_learned()),
        net.multiply_adds() as f64 / 1e6
    )
}

/// Writes a number with its thousands apart.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let is_gap = |at: usize| at > 0 && (digits.len() - at).is_multiple_of(3);
    digits
        .chars()
        .enumerate()
        .flat_map(|(at, digit)| is_gap(at).then_some(',').into_iter().chain([digit]))
        .collect()
}

fn section(page: &mut String, row: &Row) {
    let Row {
        name,
        reference,
        hyper,
        profiles,
        trains_ahead,
        optimizers,
        ..
    } = row;
    let ahead = if *trains_ahead {
        " Takes `training.ahead_epochs`."
    } else {
        ""
    };
    let plain = match optimizers {
        Optimizers::Any => String::new(),
        Optimizers::PlainSteps(reason) => {
            format!(
                " Takes plain SGD alone, without momentum, weight decay and clipping: it {reason}."
            )
        }
    };
    line(
        page,
        format_args!("\n## `{name}`\n\nFrom: {reference}.{ahead}{plain}"),
    );
    if hyper.is_empty() {
        page.push_str("\nNo hyper-parameters.\n");
    } else {
        page.push_str("\n| key | range | default | meaning |\n|---|---|---|---|\n");
        for Hyper {
            name,
            kind,
            default,
            doc,
        } in *hyper
        {
            let range = kind.range().replace('|', "\\|");
            line(
                page,
                format_args!("| `{name}` | {range} | {default} | {doc} |"),
            );
        }
    }
    for (at, Profile { name, sets }) in profiles.iter().enumerate() {
        let gap = if at == 0 { "\n" } else { "" };
        let sets: Vec<String> = sets
            .iter()
            .map(|(key, value)| format!("`{key}={value}`"))
            .collect();
        let sets = if sets.is_empty() {
            "the defaults".to_owned()
        } else {
            sets.join(", ")
        };
        line(page, format_args!("{gap}- profile `{name}`: {sets}"));
    }
}

/// Returns what a node counts by in the average, in the defaults: nothing where nothing is averaged by weights.
pub fn weighting(row: &Row) -> Option<&'static str> {
    let none: [(String, HyperValue); 0] = [];
    let values = row.values(&none.into()).expect("the defaults are valid");
    let averaging = (row.exchange)(&values).averaging?;
    let rule = rule::find(averaging.rule.name())?;
    rule.uses_weights.then_some(match averaging.weighting {
        Weighting::Uniform => "uniform",
        Weighting::Samples => "by samples",
    })
}

fn line(page: &mut String, text: std::fmt::Arguments<'_>) {
    page.write_fmt(text).expect("a string takes all");
    page.push('\n');
}
