//! Every accountant against Google's dp-accounting and Opacus (`accounting.json`, written by the script beside it).
#![allow(clippy::unwrap_used)]

use fednode_privacy::rdp::{self, Curve, Orders, Sampled};
use fednode_privacy::units::{Delta, Epsilon, Noise, Rate};
use fednode_privacy::{gaussian, pld};

/// How far from the references an ε may lie.
const TOLERANCE: f64 = 0.01;
/// How far rounding may take a Rényi ε below a reference.
const ROUNDING: f64 = 1e-9;

#[derive(serde::Deserialize)]
struct Golden {
    settings: Vec<Setting>,
    gaussians: Vec<Release>,
}

#[derive(serde::Deserialize)]
struct Setting {
    rate: f64,
    noise: f64,
    steps: u32,
    delta: f64,
    google: f64,
    opacus: f64,
    opacus_with_google_orders: f64,
    loss: Option<Loss>,
}

/// Both sides of the truth, by dp-accounting's privacy loss distributions.
#[derive(serde::Deserialize)]
struct Loss {
    upper: f64,
    lower: f64,
}

#[derive(serde::Deserialize)]
struct Release {
    epsilon: f64,
    delta: f64,
    sigma: f64,
}

impl Setting {
    fn run(&self) -> Sampled {
        Sampled {
            rate: Rate::new(self.rate).unwrap(),
            noise: Noise::new(self.noise).unwrap(),
            steps: self.steps,
        }
    }

    fn delta(&self) -> Delta {
        Delta::new(self.delta).unwrap()
    }

    fn name(&self) -> String {
        let Setting {
            rate,
            noise,
            steps,
            delta,
            ..
        } = self;
        format!("rate {rate}, noise {noise}, {steps} steps, delta {delta}")
    }

    fn renyi(&self, orders: Orders) -> f64 {
        let curve = Curve::zero(orders).with_sampled(&self.run());
        curve.epsilon(self.delta()).value
    }
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("accounting.json")).unwrap()
}

/// For large ε dp-accounting leaves out the best orders, since their series are long. Opacus's analysis with the same orders
/// does not, and bounds from below.
#[test]
fn renyi_is_at_most_that_of_dp_accounting() {
    let settings = golden().settings;
    assert!(settings.len() >= 200);
    for setting in settings {
        let found = setting.renyi(Orders::Google);
        assert!(
            found <= setting.google * (1.0 + ROUNDING),
            "{}: {found}",
            setting.name()
        );
        assert_same(&setting, found, setting.opacus_with_google_orders);
    }
}

#[test]
fn renyi_is_that_of_opacus() {
    for setting in golden().settings {
        assert_same(&setting, setting.renyi(Orders::Opacus), setting.opacus);
    }
}

/// The noise that is found for Opacus's ε is the noise of which Opacus computed it.
#[test]
fn noise_for_training_is_that_of_opacus() {
    let mut compared = 0;
    for setting in golden().settings {
        let wanted = setting.opacus_with_google_orders;
        // Beyond these nobody asks, and ε hardly depends on the noise or on the steps.
        if !(0.1..50.0).contains(&wanted) || compared >= 60 {
            continue;
        }
        let (rate, epsilon) = (setting.run().rate, Epsilon::new(wanted).unwrap());
        let found = rdp::noise_for(epsilon, setting.delta(), rate, setting.steps).unwrap();
        let ratio = found.get() / setting.noise;
        assert!(
            (ratio - 1.0).abs() < TOLERANCE,
            "{}: {ratio}",
            setting.name()
        );
        let kept = Sampled {
            noise: found,
            ..setting.run()
        };
        let cost = Curve::zero(Orders::Google).with_sampled(&kept);
        assert!(
            cost.epsilon(setting.delta()).value <= wanted,
            "{}",
            setting.name()
        );
        compared += 1;
    }
    assert!(compared >= 40, "{compared}");
}

#[test]
fn no_noise_is_the_least_for_training_without_steps() {
    let (epsilon, delta) = (Epsilon::new(1.0).unwrap(), Delta::new(1e-5).unwrap());
    assert!(rdp::noise_for(epsilon, delta, Rate::new(0.1).unwrap(), 0).is_none());
}

fn assert_same(setting: &Setting, found: f64, reference: f64) {
    let ratio = found / reference;
    assert!(ratio <= 1.0 + TOLERANCE, "{}: {ratio}", setting.name());
    assert!(ratio >= 1.0 - ROUNDING, "{}: {ratio}", setting.name());
}

#[test]
fn the_loss_distribution_is_that_of_dp_accounting_and_above_the_truth() {
    let mut compared = 0;
    for setting in golden().settings {
        let Some(loss) = &setting.loss else { continue };
        let found = pld::epsilon(&[setting.run()], setting.delta());
        assert!(
            found >= loss.lower,
            "{}: {found} {}",
            setting.name(),
            loss.lower
        );
        let error = (found - loss.upper).abs();
        assert!(
            error <= TOLERANCE * loss.upper,
            "{}: {found} {}",
            setting.name(),
            loss.upper
        );
        assert!(found <= setting.google, "{}", setting.name());
        compared += 1;
    }
    assert!(compared >= 50, "{compared}");
}

#[test]
fn one_release_is_that_of_dp_accounting() {
    for release in golden().gaussians {
        let (epsilon, delta) = (
            Epsilon::new(release.epsilon).unwrap(),
            Delta::new(release.delta).unwrap(),
        );
        let noise = gaussian::noise_for(epsilon, delta).unwrap();
        let ratio = noise.get() / release.sigma;
        assert!(
            (ratio - 1.0).abs() < 1e-9,
            "{} {}: {ratio}",
            release.epsilon,
            release.delta
        );
        let back = gaussian::epsilon(noise, delta);
        assert!((back / release.epsilon - 1.0).abs() < 1e-7, "{back}");
    }
}
