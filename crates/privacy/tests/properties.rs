//! What holds for any numbers: bounds order, promises are kept, nothing is no number.
#![allow(clippy::unwrap_used)]

use fednode_privacy::discrete::Variance;
use fednode_privacy::rdp::{Curve, Orders, Sampled};
use fednode_privacy::units::{Delta, Epsilon, Noise, Rate};
use fednode_privacy::{gaussian, pld};
use proptest::prelude::*;

/// A number between two powers of ten, each power equally likely.
fn between(low: i32, high: i32) -> impl Strategy<Value = f64> {
    (f64::from(low)..f64::from(high)).prop_map(|power| 10_f64.powf(power))
}

fn deltas() -> impl Strategy<Value = Delta> {
    between(-12, 0).prop_map(|value| Delta::new(value.min(0.5)).unwrap())
}

fn noises() -> impl Strategy<Value = Noise> {
    between(-1, 3).prop_map(|value| Noise::new(value).unwrap())
}

fn runs() -> impl Strategy<Value = Sampled> {
    (between(-5, 0), noises(), between(0, 6)).prop_map(|(rate, noise, steps)| Sampled {
        rate: Rate::new(rate).unwrap(),
        noise,
        steps: steps as u32,
    })
}

fn usual_runs() -> impl Strategy<Value = Sampled> {
    (between(-3, 0), 0.5..30.0, between(0, 5)).prop_map(|(rate, noise, steps)| Sampled {
        rate: Rate::new(rate).unwrap(),
        noise: Noise::new(noise).unwrap(),
        steps: steps as u32,
    })
}

fn renyi(runs: &[Sampled], delta: Delta) -> f64 {
    let curve = runs
        .iter()
        .fold(Curve::zero(Orders::Google), Curve::with_sampled);
    curve.epsilon(delta).value
}

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(cases(12))]

    /// The loss distribution never says more than Rényi curves.
    #[test]
    fn accountants_are_ordered(first in runs(), second in runs(), delta in deltas()) {
        let both = [first, second];
        let (tight, simple) = (pld::epsilon(&both, delta), renyi(&both, delta));
        prop_assert!(tight >= 0.0 && tight <= simple, "{} {}", tight, simple);
    }

    /// Where people train, the loss distribution is accurate enough to say no less of two runs than of one.
    #[test]
    fn more_training_costs_more(first in usual_runs(), second in usual_runs(), delta in between(-9, -2)) {
        let delta = Delta::new(delta).unwrap();
        let (one, both) = (pld::epsilon(&[first], delta), pld::epsilon(&[first, second], delta));
        prop_assert!(both >= one * 0.998 - 1e-4, "{} {}", one, both);
    }

    /// A run over everything is one Gaussian release, of which the truth is known.
    #[test]
    fn the_loss_distribution_is_above_the_truth(noise in between(-1, 2), steps in between(0, 5), delta in deltas()) {
        let steps = steps as u32;
        let whole = Noise::new(noise).unwrap();
        let each = Noise::new(noise * f64::from(steps).sqrt()).unwrap();
        let run = Sampled { rate: Rate::new(1.0).unwrap(), noise: each, steps };
        let (found, truth) = (pld::epsilon(&[run], delta), gaussian::epsilon(whole, delta));
        prop_assert!(found >= truth, "{} {}", found, truth);
        prop_assert!(found <= truth * 1.002 + 1e-6, "{} {}", found, truth);
    }
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn more_noise_costs_less(noise in noises(), delta in deltas()) {
        let more = Noise::new(noise.get() * 1.01).unwrap();
        let (costs, less) = (gaussian::epsilon(noise, delta), gaussian::epsilon(more, delta));
        prop_assert!(less <= costs && costs.is_finite());
        prop_assert!(costs == 0.0 || less < costs);
    }

    #[test]
    fn noise_keeps_its_promise(epsilon in between(-2, 2), delta in deltas()) {
        let epsilon = Epsilon::new(epsilon).unwrap();
        let noise = gaussian::noise_for(epsilon, delta).unwrap();
        let kept = gaussian::delta(noise, epsilon);
        prop_assert!(kept <= delta.get() && kept >= delta.get() * (1.0 - 1e-6), "{}", kept);
    }

    #[test]
    fn a_variance_is_at_least_what_was_asked(value in between(-16, 16)) {
        let found = Variance::at_least(value).unwrap().to_f64();
        prop_assert!(found >= value);
        prop_assert!(value < 1.0 || found == value);
    }
}
