//! What a spec's algorithm shares: written into the spec when it is made, and checked against it when it is read.

use std::collections::BTreeMap;

use fednode_core::spec::Sums;
use fednode_core::{
    Averaging, ConfigError, Exchange, FederationSpec, HyperValue, Matching, Rule, Weighting,
};
use fednode_mix::rule::{self, Takes};

use super::hyper::PLAIN_MEAN;
use super::{Row, TABLE, Values, fedmoe_da, find, numbers};
use crate::{agreement, metric, noised, private};

/// Returns the exchange of an algorithm whose shared parts are averaged, each node counting by its training samples.
pub(super) fn averaged(values: &Values) -> Exchange {
    Exchange {
        averaging: Some(Averaging {
            weighting: Weighting::Samples,
            rule: values.rule(),
        }),
        experts: None,
        everybody_first: false,
        prepares: false,
        total: None,
    }
}

/// Writes into a spec what its algorithm shares; for whoever makes a new spec.
///
/// # Errors
/// Fails on an unknown algorithm or measure, on unknown or impossible hyper-parameters, and on epochs ahead where there can be none. It
/// fails, too, on what does not go with statistics of peers that agree, with a promise of privacy, or with masked sums.
pub fn fill_exchange(spec: &mut FederationSpec) -> Result<(), ConfigError> {
    metric::of(spec)?;
    let row = find(&spec.algorithm)?;
    if spec.training.ahead_epochs > 0 && !row.trains_ahead {
        let can: Vec<&str> = TABLE
            .iter()
            .filter(|row| row.trains_ahead)
            .map(|row| row.name)
            .collect();
        let text = format!(
            "`training.ahead_epochs` must be 0 with `{}`: only {} train ahead",
            row.name,
            can.join(", ")
        );
        return Err(ConfigError(text));
    }
    spec.exchange = (row.exchange)(&row.values(&hyper_of(spec, row))?);
    prepare(spec)?;
    fedmoe_da::check(spec)?;
    numbers::fill(spec)?;
    private::protect(spec)?;
    noised::mask(spec)?;
    noised::check_groups(spec)?;
    can_be_masked(spec)?;
    can_be_divided(spec)
}

/// A rule that knows tensors by their names cannot look at slices of them.
fn can_be_divided(spec: &FederationSpec) -> Result<(), ConfigError> {
    let averaging = spec.exchange.averaging.as_ref();
    let rule = averaging.and_then(|averaging| rule::find(averaging.rule.name()));
    let is_whole = rule.is_some_and(|rule| rule.takes == Takes::PartsOfItsAlgorithm);
    if spec.round.slices > 1 && is_whole {
        return Err(ConfigError(format!(
            "`round.slices` must be 1 with `{}`, whose parts are averaged by a rule that looks at each as a whole",
            spec.algorithm
        )));
    }
    Ok(())
}

/// Returns the spec's hyper-parameters. Under masks nobody can compare parts, so what averages is the mean unless the spec names a
/// rule, which is refused then.
fn hyper_of(spec: &FederationSpec, row: &Row) -> BTreeMap<String, HyperValue> {
    let mut hyper = spec.hyper.clone();
    let (name, mean) = PLAIN_MEAN;
    let takes_rule = row.hyper.iter().any(|hyper| hyper.name == name);
    if spec.privacy.sums == Sums::Masked && takes_rule {
        let mean = HyperValue::Text(mean.to_owned());
        hyper.entry(name.to_owned()).or_insert(mean);
    }
    hyper
}

/// Refuses masked sums where something else would leave the nodes as it is, or where nothing is added up.
fn can_be_masked(spec: &FederationSpec) -> Result<(), ConfigError> {
    if spec.privacy.sums == Sums::Open {
        return Ok(());
    }
    let exchange = &spec.exchange;
    let adds_up = |averaging: &Averaging| averaging.rule == Rule::default();
    let reason = match () {
        () if exchange.experts.is_some() => {
            "its nodes send each other parts that masks do not cover"
        }
        () if !exchange.averaging.as_ref().is_some_and(adds_up) => {
            "its nodes add nothing up, or not by the rule `mean`"
        }
        () if exchange.everybody_first => {
            "its first round is one of its own, and masks are made in it"
        }
        () if spec.statistics.enabled => {
            "each member's statistics are judged before they are added up, which masks keep anybody from"
        }
        () if spec.pool.is_enabled() => "the modules of a pool leave the nodes as they are",
        () => return Ok(()),
    };
    Err(ConfigError(format!(
        "`privacy.sums` must be `open` with algorithm `{}` and these settings: {reason}; `fedavg` and `fedper` can be masked",
        spec.algorithm
    )))
}

/// Puts a round before the first one in which nodes agree on the columns of their raw tables. What they agree on is part of
/// what is averaged from then on, so a latecomer gets it with the mean.
fn prepare(spec: &mut FederationSpec) -> Result<(), ConfigError> {
    let is_raw = !spec.data.columns.is_empty();
    let exchange = &mut spec.exchange;
    // Who exchanges nothing treats its columns by itself, and who hides what it has by what the spec says of them.
    let exchanges = exchange.averaging.is_some() || exchange.experts.is_some();
    if !is_raw || !exchanges || spec.privacy.hides_rows() {
        return Ok(());
    }
    if exchange.everybody_first {
        let text = format!(
            "algorithm `{}` cannot have raw tables (`data.columns`): its first round is one of its own",
            spec.algorithm
        );
        return Err(ConfigError(text));
    }
    exchange.prepares = true;
    if let Some(experts) = &mut exchange.experts
        && experts.matching == Matching::named(agreement::MATCHING)
    {
        experts.matching = Matching::named(agreement::OF_SITES);
    }
    exchange.averaging.get_or_insert_with(|| Averaging {
        weighting: Weighting::Uniform,
        rule: Rule::default(),
    });
    Ok(())
}

/// Checks that a spec's exchange is what its algorithm shares.
///
/// # Errors
/// Names the first key that differs, besides the causes of [`fill_exchange`].
pub fn check_exchange(spec: &FederationSpec) -> Result<(), ConfigError> {
    let mut filled = spec.clone();
    fill_exchange(&mut filled)?;
    if filled.exchange == spec.exchange {
        return Ok(());
    }
    let entries = |spec: &FederationSpec| {
        spec.entries()
            .into_iter()
            .map(|entry| (entry.key, entry.value))
    };
    let (ours, needed): (Vec<_>, Vec<_>) = (entries(spec).collect(), entries(&filled).collect());
    let differing = needed
        .iter()
        .find(|entry| !ours.contains(entry))
        .or(ours.iter().find(|e| !needed.contains(e)));
    let (key, _) = differing.expect("exchanges that differ have entries that differ");
    let value = |entries: &[(String, String)]| {
        entries
            .iter()
            .find(|entry| &entry.0 == key)
            .map_or_else(|| "absent".to_owned(), |entry| entry.1.clone())
    };
    Err(ConfigError(format!(
        "`{key}` is {}, but algorithm `{}` with these hyper-parameters needs {}",
        value(&ours),
        spec.algorithm,
        value(&needed)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_valid_defaults_in_every_profile() {
        for row in TABLE {
            let names: Vec<Option<&str>> = row
                .profiles
                .iter()
                .map(|profile| Some(profile.name))
                .collect();
            for profile in if names.is_empty() { vec![None] } else { names } {
                let mut spec = FederationSpec {
                    algorithm: row.name.into(),
                    ..FederationSpec::default()
                };
                if let Some(profile) = profile {
                    spec.hyper
                        .insert("profile".into(), HyperValue::Text(profile.into()));
                }
                fill_exchange(&mut spec).unwrap();
                spec.validate().unwrap();
                check_exchange(&spec).unwrap();
            }
        }
    }

    #[test]
    fn epochs_ahead_are_refused_where_epochs_differ() {
        let mut spec = FederationSpec::default();
        spec.training.ahead_epochs = 1;
        fill_exchange(&mut spec).unwrap();
        spec.algorithm = "moon".into();
        let error = fill_exchange(&mut spec).unwrap_err().0;
        assert!(
            error.starts_with(
                "`training.ahead_epochs` must be 0 with `moon`: only fedmoe-da, fedavg"
            ),
            "{error}"
        );
    }

    #[test]
    fn names_the_key_in_which_an_exchange_differs() {
        let mut spec = FederationSpec::default();
        fill_exchange(&mut spec).unwrap();
        spec.exchange.experts.as_mut().unwrap().temperature = 0.5;
        let error = check_exchange(&spec).unwrap_err().0;
        let expected = "`exchange.experts.temperature` is 0.5, but algorithm `fedmoe-da` with these hyper-parameters \
                        needs 1.0";
        assert_eq!(error, expected);
        spec.exchange.experts = None;
        let error = check_exchange(&spec).unwrap_err().0;
        assert!(
            error.starts_with("`exchange.experts.peers_per_expert` is absent"),
            "{error}"
        );
    }
}
