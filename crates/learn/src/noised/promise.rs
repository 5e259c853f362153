//! What a spec promises of statistics: how much noise that takes, and what nodes exchange then.

use fednode_core::spec::Sums;
use fednode_core::{
    Averaging, ConfigError, Exchange, ExpertExchange, FederationSpec, Matching, Rule, Total,
    Weighting,
};
use fednode_privacy::statistics::Shares;
use fednode_privacy::units::{Delta, Epsilon, Noise};

use super::MATCHING;
use crate::{agreement, regression};

/// Noise is rounded up to a multiple of the inverse: what machines compute differs in the last digits.
const DIGITS: f64 = 1e6;

/// Returns the noise that each node adds; nothing without a promise.
///
/// # Errors
/// Refuses a promise that no noise keeps.
pub(crate) fn noise_of_node(spec: &FederationSpec) -> Result<Option<Noise>, ConfigError> {
    match (noise_of(spec)?, spec.exchange.total) {
        (Some(noise), Some(total)) => share_of(noise, total, spec.nodes).map(Some),
        (noise, _) => Ok(noise),
    }
}

fn rounded_up(noise: f64) -> Option<Noise> {
    Noise::new((noise * DIGITS).ceil() / DIGITS).ok()
}

/// Returns the noise that keeps the promise of a spec; nothing without one.
///
/// # Errors
/// Refuses a promise that no noise keeps.
fn noise_of(spec: &FederationSpec) -> Result<Option<Noise>, ConfigError> {
    let Some(epsilon) = spec.privacy.epsilon else {
        return Ok(None);
    };
    let noise = Epsilon::new(epsilon)
        .ok()
        .zip(Delta::new(spec.privacy.delta).ok())
        .and_then(|(epsilon, delta)| fednode_privacy::gaussian::noise_for(epsilon, delta))
        .and_then(|noise| rounded_up(noise.get()));
    noise.map(Some).ok_or_else(|| {
        ConfigError(
            "no noise keeps `privacy.epsilon` with `privacy.delta`: choose larger ones".into(),
        )
    })
}

/// Lets a spec without a promise, whose nodes would exchange statistics of peers, add them up under masks.
///
/// # Errors
/// Names the key to change where something else would be shared.
pub(crate) fn mask(spec: &mut FederationSpec) -> Result<(), ConfigError> {
    let experts = spec.exchange.experts.as_ref();
    let is_agreement = experts.is_some_and(is_agreement);
    if spec.privacy.sums == Sums::Open || spec.privacy.epsilon.is_some() || !is_agreement {
        return Ok(());
    }
    add_up_once(spec, None)
}

/// Tells whether nodes exchange statistics of peers that agree.
fn is_agreement(experts: &ExpertExchange) -> bool {
    [agreement::MATCHING, regression::MATCHING, MATCHING].contains(&experts.matching.name())
}

/// Refuses a spec by which something else leaves the nodes than statistics. `key` is what protects those.
fn shares_statistics_alone(spec: &FederationSpec, key: &str) -> Result<(), ConfigError> {
    let refuse = |text: &str| Err(ConfigError(format!("`{key}` {text}")));
    if spec.pool.is_enabled() {
        return refuse("with profile `agreement` protects no private modules: leave `pool` out");
    }
    if spec.exchange.averaging.is_some() {
        return refuse(
            "protects the statistics of profile `agreement` with `hyper.base=local` alone",
        );
    }
    Ok(())
}

/// Lets nodes add up their statistics once, under masks. `noise` is what each of them adds.
fn add_up_once(spec: &mut FederationSpec, noise: Option<Noise>) -> Result<(), ConfigError> {
    shares_statistics_alone(spec, "privacy.sums=masked")?;
    let total = sums_of(spec);
    spec.exchange = Exchange {
        averaging: Some(Averaging {
            weighting: Weighting::Uniform,
            rule: Rule::default(),
        }),
        total: Some(Total {
            noise: noise.map(|noise| noise.get() / Shares::STUDY.parts().1.sqrt()),
            ..total
        }),
        ..Exchange::default()
    };
    Ok(())
}

/// Returns what the nodes of a spec add up.
fn sums_of(spec: &FederationSpec) -> Total {
    match spec.privacy.group {
        Some(group) => Total::of_groups(spec.nodes, group),
        None => Total::of(spec.nodes),
    }
}

/// Refuses groups where it is not statistics that are added up.
///
/// # Errors
/// Names the key to leave out.
pub(crate) fn check_groups(spec: &FederationSpec) -> Result<(), ConfigError> {
    if spec.privacy.group.is_none() || spec.exchange.total.is_some() {
        return Ok(());
    }
    let text = "`privacy.group` is for statistics that are added up once, with `fedmoe-da` as it is by default: leave it out";
    Err(ConfigError(text.into()))
}

/// Returns the share of a noise that each node adds to a total.
fn share_of(noise: Noise, total: Total, nodes: u32) -> Result<Noise, ConfigError> {
    rounded_up(noise.get() / f64::from(total.hiding(nodes)).sqrt())
        .ok_or_else(|| ConfigError("`privacy.epsilon` is too large".into()))
}

/// Lets a spec with a promise exchange noised statistics, if statistics of peers are all that it exchanges. Tells whether they
/// are.
///
/// # Errors
/// Names the key to change where something would be published that the promise does not cover.
pub(crate) fn protect(spec: &mut FederationSpec) -> Result<bool, ConfigError> {
    if !spec.exchange.experts.as_ref().is_some_and(is_agreement) {
        return Ok(false);
    }
    let Some(noise) = noise_of(spec)? else {
        return Ok(false);
    };
    shares_statistics_alone(spec, "privacy.epsilon")?;
    if spec.privacy.sums == Sums::Masked {
        let share = share_of(noise, sums_of(spec), spec.nodes)?;
        add_up_once(spec, Some(share))?;
    } else if let Some(experts) = &mut spec.exchange.experts {
        experts.matching = Matching::named(MATCHING);
        experts.noise = Some(noise.get() / Shares::STUDY.parts().1.sqrt());
    }
    Ok(true)
}
