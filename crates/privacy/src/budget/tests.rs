use super::*;

const ROW: Adjacency = Adjacency {
    unit: Unit::Row,
    change: Change::AddRemove,
};

fn budget(epsilon: f64) -> Budget {
    Budget {
        epsilon: Epsilon::new(epsilon).unwrap(),
        delta: Delta::new(1e-5).unwrap(),
        adjacency: ROW,
    }
}

fn release(mechanism: Mechanism) -> Release {
    Release {
        what: "class statistics".to_owned(),
        when: 1_900_000_000,
        mechanism,
    }
}

fn gaussian_of(deviation: f64, sensitivity: f64) -> Release {
    release(Mechanism::Gaussian {
        noise: Calibrated::new(deviation, sensitivity).unwrap(),
        adjacency: ROW,
    })
}

fn training(steps: u32) -> Release {
    release(Mechanism::Training {
        rate: Rate::new(0.01).unwrap(),
        noise: Calibrated::new(1.0, 1.0).unwrap(),
        steps,
        adjacency: ROW,
    })
}

/// 1/3² + 1/4² = 1/2.4², whatever the units of each.
#[test]
fn gaussian_releases_compose_exactly() {
    let spent = budget(1.0).spent(&[gaussian_of(3.0, 1.0), gaussian_of(8.0, 2.0)]);
    let exact = gaussian::epsilon(Noise::new(2.4).unwrap(), Delta::new(1e-5).unwrap());
    assert!(
        (spent.epsilon - exact).abs() < 1e-9,
        "{} {exact}",
        spent.epsilon
    );
}

#[test]
fn training_composes_by_its_curves() {
    let budget = budget(10.0);
    let alone = budget.spent(&[training(1_000)]).epsilon;
    assert!((alone - 2.1017).abs() < 1e-3, "{alone}");
    let halves = budget.spent(&[training(400), training(600)]).epsilon;
    assert!((halves - alone).abs() < 1e-9);
    let with_statistics = budget
        .spent(&[training(1_000), gaussian_of(3.731, 1.0)])
        .epsilon;
    assert!(
        with_statistics > alone && with_statistics < alone + 1.4,
        "{with_statistics}"
    );
}

#[test]
fn nothing_is_free_and_everything_is_infinite() {
    assert_eq!(budget(1.0).spent(&[]).epsilon, 0.0);
    let spent = budget(1.0).spent(&[gaussian_of(3.0, 1.0), release(Mechanism::Unprotected)]);
    assert_eq!(spent.epsilon, f64::INFINITY);
    let almost_none = [gaussian_of(1e-6, 1.0), gaussian_of(1e-6, 1.0)];
    assert_eq!(budget(1.0).spent(&almost_none).epsilon, f64::INFINITY);
}

#[test]
fn a_budget_is_kept() {
    let budget = budget(2.0);
    let once = gaussian_of(2.5, 1.0);
    let first = budget.may_release(&[], &once).unwrap();
    assert!(
        first.epsilon < 2.0 && first.epsilon > 1.0,
        "{}",
        first.epsilon
    );
    let refused = budget
        .may_release(std::slice::from_ref(&once), &once)
        .unwrap_err();
    assert_eq!(
        refused.to_string(),
        "this release is not published: it would bring epsilon from 1.555 to 2.288, above the budget of 2 at delta 1e-5"
    );
}

/// Noise for ε = 4 fits into a budget of 4, to the last bit.
#[test]
fn a_release_that_fills_the_budget_fits() {
    let budget = budget(4.0);
    let noise = gaussian::noise_for(budget.epsilon, budget.delta).unwrap();
    assert!(
        budget
            .may_release(&[], &gaussian_of(noise.get(), 1.0))
            .is_ok()
    );
    assert!(
        budget
            .may_release(&[], &gaussian_of(noise.get() * 0.9999, 1.0))
            .is_err()
    );
}

#[test]
fn what_has_no_bound_is_refused_with_its_reason() {
    let budget = budget(8.0);
    let said = |next: &Release| budget.may_release(&[], next).unwrap_err().to_string();
    assert_eq!(
        said(&release(Mechanism::Unprotected)),
        "this release is not published: nothing protects it"
    );
    let of_node = release(Mechanism::Gaussian {
        noise: Calibrated::new(5.0, 1.0).unwrap(),
        adjacency: Adjacency {
            unit: Unit::Node,
            ..ROW
        },
    });
    assert_eq!(
        said(&of_node),
        "this release is not published: its noise was not calibrated for what the budget protects"
    );
    let before = [release(Mechanism::Unprotected)];
    let refused = budget.may_release(&before, &gaussian_of(5.0, 1.0));
    assert_eq!(refused, Err(Refusal::AlreadyUnbounded));
}

#[test]
fn training_has_no_bound_for_replaced_units() {
    let replaced = Adjacency {
        change: Change::ReplaceOne,
        ..ROW
    };
    let budget = Budget {
        adjacency: replaced,
        ..budget(8.0)
    };
    let Mechanism::Training {
        rate, noise, steps, ..
    } = training(10).mechanism
    else {
        panic!("training is training");
    };
    let next = release(Mechanism::Training {
        rate,
        noise,
        steps,
        adjacency: replaced,
    });
    let refused = budget.may_release(&[], &next);
    assert_eq!(
        refused,
        Err(Refusal::Unbounded(Unbounded::ReplacedInTraining))
    );
}

#[test]
fn everything_that_is_stored_is_read_back() {
    for stored in [
        gaussian_of(8.0, 2.0),
        training(77),
        release(Mechanism::Unprotected),
    ] {
        let text = serde_json::to_string(&stored).unwrap();
        assert_eq!(
            serde_json::from_str::<Release>(&text).unwrap(),
            stored,
            "{text}"
        );
    }
    let text = serde_json::to_string(&budget(4.0)).unwrap();
    assert_eq!(
        text,
        r#"{"epsilon":4.0,"delta":0.00001,"adjacency":{"unit":"row","change":"add-remove"}}"#
    );
    assert_eq!(serde_json::from_str::<Budget>(&text).unwrap(), budget(4.0));
}

#[test]
fn what_is_stored_wrongly_is_refused() {
    let good = serde_json::to_string(&gaussian_of(8.0, 2.0)).unwrap();
    let bad = [
        good.replace("8.0", "-8.0"),
        good.replace("2.0", "0.0"),
        good.replace("\"deviation\"", "\"noise\""),
        good.replace("\"when\"", "\"note\":1,\"when\""),
        good.replace("\"adjacency\"", "\"note\":1,\"adjacency\""),
        good.replace("\"unit\"", "\"note\":1,\"unit\""),
        good.replace("gaussian", "laplace"),
    ];
    for text in bad {
        assert_ne!(text, good);
        assert!(serde_json::from_str::<Release>(&text).is_err(), "{text}");
    }
}

#[test]
fn noise_without_a_deviation_or_a_sensitivity_is_refused() {
    for (deviation, sensitivity) in [
        (0.0, 1.0),
        (1.0, 0.0),
        (-1.0, -1.0),
        (f64::INFINITY, 1.0),
        (1.0, f64::NAN),
    ] {
        assert!(
            Calibrated::new(deviation, sensitivity).is_err(),
            "{deviation} {sensitivity}"
        );
    }
}
