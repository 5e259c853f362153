use super::*;
use crate::gaussian;
use crate::rdp::run;
use crate::units::Noise;

/// Releases over all samples compose to one with less noise, whose ε is known exactly.
#[test]
fn plain_releases_are_those_of_the_exact_formula() {
    for (noise, steps) in [
        (1.0, 1),
        (10.0, 100),
        (60.0, 1_000),
        (0.5, 1),
        (400.0, 10_000),
    ] {
        for delta in [1e-3, 1e-5, 1e-10].map(|delta| Delta::new(delta).unwrap()) {
            let whole = Noise::new(noise / f64::from(steps).sqrt()).unwrap();
            let exact = gaussian::epsilon(whole, delta);
            let found = epsilon(&[run(1.0, noise, steps)], delta);
            assert!(found >= exact, "{noise} {steps}: {found} below {exact}");
            assert!(
                found <= exact * 1.001,
                "{noise} {steps} {delta:?}: {found} {exact}"
            );
        }
    }
}

#[test]
fn delta_of_plain_releases_is_that_of_the_exact_formula() {
    for value in [0.0, 0.5, 2.0, 6.0] {
        let epsilon = Epsilon::new(value).unwrap();
        let exact = gaussian::delta(Noise::new(1.0).unwrap(), epsilon);
        let found = delta(&[run(1.0, 10.0, 100)], epsilon);
        assert!(found >= exact, "{value}: {found} below {exact}");
        assert!(found <= exact * 1.01, "{value}: {found} {exact}");
    }
}

/// Different runs: noise 3 and noise 4 make noise 12/5.
#[test]
fn runs_of_different_noise_compose() {
    let delta = Delta::new(1e-6).unwrap();
    let exact = gaussian::epsilon(Noise::new(2.4).unwrap(), delta);
    let found = epsilon(&[run(1.0, 3.0, 1), run(1.0, 4.0, 1)], delta);
    assert!(found >= exact && found <= exact * 1.001, "{found} {exact}");
}

#[test]
fn nothing_costs_nothing() {
    let delta = Delta::new(1e-6).unwrap();
    assert_eq!(epsilon(&[], delta), 0.0);
    assert_eq!(epsilon(&[run(0.1, 1.0, 0)], delta), 0.0);
}

/// A single step of one sample in a million: what is not drawn is not seen.
#[test]
fn a_step_that_draws_less_often_than_delta_costs_nothing() {
    let delta = Delta::new(1e-5).unwrap();
    assert!(epsilon(&[run(1e-6, 0.6, 1)], delta) < 1e-9);
}
