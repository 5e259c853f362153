//! What every rule promises, and worked examples of those for parts of any kind.

use fednode_core::HyperValue;

use super::*;

fn rules() -> impl Iterator<Item = Rule> {
    choices().map(|row| Rule::named(row.name))
}

fn params(values: &[f32]) -> Arc<ParamSet> {
    let mut params = ParamSet::new();
    params
        .insert("w", &[values.len()], values.to_vec())
        .unwrap();
    Arc::new(params)
}

fn part(weight: f64, values: &[f32]) -> Part {
    Part {
        weight,
        params: params(values),
    }
}

fn members(values: &[f32]) -> Vec<Part> {
    values.iter().map(|value| part(1.0, &[*value])).collect()
}

fn one(rule: &str, values: &[f32]) -> f32 {
    average(&Rule::named(rule), &members(values))
        .unwrap()
        .get("w")
        .unwrap()
        .values()[0]
}

#[test]
fn weighs_members_as_fedavg_does() {
    let members = [part(1.0, &[1.0, 10.0]), part(3.0, &[5.0, -10.0])];
    assert_eq!(
        average(&Rule::default(), &members).unwrap(),
        *params(&[4.0, -5.0])
    );
}

#[test]
fn every_rule_returns_equal_members_bit_for_bit() {
    let values = [
        0.1,
        -0.0,
        0.0,
        f32::MAX,
        f32::MIN_POSITIVE / 2.0,
        -1.0 / 3.0,
    ];
    let bits = |params: &ParamSet| params.values().map(f32::to_bits).collect::<Vec<_>>();
    for rule in rules() {
        for n in 1..=12 {
            let members: Vec<_> = (1..=n).map(|i| part(0.1 * f64::from(i), &values)).collect();
            assert_eq!(
                bits(&average(&rule, &members).unwrap()),
                bits(&params(&values)),
                "{rule:?} of {n}"
            );
        }
    }
}

#[test]
fn robust_rules_agree_with_hand_computed_values() {
    assert_eq!(one("median", &[5.0, 1.0, 9.0]), 5.0);
    assert_eq!(one("median", &[5.0, 1.0, 9.0, 2.0]), 3.5);
    assert_eq!(
        one(
            "trimmed-mean",
            &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 1000.0]
        ),
        5.5
    );
    assert_eq!(one("trimmed-mean", &[1.0, 3.0]), 2.0);
    assert_eq!(one("trimmed-mean", &[0.0, 1.0, 1000.0]), 1.0);
}

#[test]
fn one_liar_moves_the_mean_and_not_the_robust_rules() {
    for lie in [1e30, -1e30, f32::INFINITY, f32::NAN, -f32::NAN] {
        let values = [1.0, 1.1, 0.9, lie, 1.0];
        let error = |rule| (one(rule, &values) - 1.0).abs();
        assert!(error("mean").partial_cmp(&0.2) != Some(std::cmp::Ordering::Less));
        for row in choices().filter(|row| row.name != "mean") {
            assert!(error(row.name) < 0.2, "{} with {lie}", row.name);
        }
    }
}

#[test]
fn refuses_nobody_other_layouts_and_unusable_weights() {
    for rule in rules() {
        assert_eq!(average(&rule, &[]), Err(AverageError::NoMembers));
        let mixed = [part(1.0, &[1.0]), part(1.0, &[1.0, 2.0])];
        assert!(matches!(
            average(&rule, &mixed),
            Err(AverageError::Layout(_))
        ));
    }
    for weight in [-1.0, f64::NAN, f64::INFINITY] {
        for row in choices().filter(|row| row.uses_weights) {
            assert!(matches!(
                average(
                    &Rule::named(row.name),
                    &[part(1.0, &[1.0]), part(weight, &[1.0])]
                ),
                Err(AverageError::Weight(_))
            ));
        }
    }
    for row in choices().filter(|row| row.uses_weights) {
        assert_eq!(
            average(&Rule::named(row.name), &[part(0.0, &[1.0])]),
            Err(AverageError::NoMembers)
        );
    }
}

#[test]
fn a_member_without_weight_does_not_count() {
    let members = [part(0.0, &[f32::NAN]), part(2.0, &[3.0])];
    for row in choices().filter(|row| row.uses_weights) {
        let mean = average(&Rule::named(row.name), &members).unwrap();
        assert_eq!(mean, *params(&[3.0]), "{}", row.name);
    }
}

/// Five members of three numbers, the last a liar, under numpy:
///
/// ```text
/// w = np.array([[1, 2, -1], [1.5, 1.75, -0.75], [0.75, 2.25, -1.25], [1.25, 2.5, -0.375], [9, -6, 4]])
/// z = np.median(w, axis=0)
/// for _ in range(4):
///     b = 1 / np.maximum(1e-6, np.linalg.norm(w - z, axis=1)); z = b @ w / b.sum()
/// d = ((w[:, None] - w[None]) ** 2).sum(-1)
/// s = [np.sort(np.delete(d[i], i))[:5 - 1 - 2].sum() for i in range(5)]   # f = 1: [0.5625, 1.03125, …]
/// ```
fn numpy_example() -> [Part; 5] {
    [
        [1.0, 2.0, -1.0],
        [1.5, 1.75, -0.75],
        [0.75, 2.25, -1.25],
        [1.25, 2.5, -0.375],
        [9.0, -6.0, 4.0],
    ]
    .map(|values| part(1.0, &values))
}

fn assert_close(rule: Rule, parts: &[Part], expected: &[f32]) {
    let got: Vec<f32> = average(&rule, parts).unwrap().values().collect();
    let pairs = got.iter().zip(expected);
    assert!(
        got.len() == expected.len() && pairs.clone().all(|(a, b)| (a - b).abs() < 2e-6),
        "{rule:?}: {got:?}"
    );
}

#[test]
fn the_geometric_median_agrees_with_numpy() {
    let four_steps = Rule::named("geometric-median").with("median_steps", HyperValue::Integer(4));
    assert_close(
        four_steps,
        &numpy_example(),
        &[1.232_052_4, 1.966_251_6, -0.814_735_96],
    );
}

/// The geometric median of the corners of a convex quadrilateral is where its diagonals meet.
#[test]
fn the_geometric_median_of_four_corners_is_where_the_diagonals_meet() {
    let corners = [[0.0, 0.0], [3.0, 0.0], [4.0, 4.0], [0.0, 3.0]].map(|corner| part(1.0, &corner));
    let many_steps = Rule::named("geometric-median").with("median_steps", HyperValue::Integer(200));
    assert_close(many_steps, &corners, &[1.5, 1.5]);
}

#[test]
fn krum_and_multi_krum_agree_with_numpy() {
    let parts = numpy_example();
    assert_close(Rule::named("krum"), &parts, &[1.0, 2.0, -1.0]);
    let two = Rule::named("multi-krum").with("kept", HyperValue::Integer(2));
    assert_close(two, &parts, &[1.25, 1.875, -0.875]);
    assert_close(Rule::named("multi-krum"), &parts, &[1.125, 2.125, -0.84375]);
}

/// Two liars that agree beat Krum with `faulty = 3`, where one neighbour counts, but not with `faulty = 2`.
#[test]
fn krum_counts_fewer_neighbours_the_more_liars_it_expects() {
    let parts = members(&[1.0, 1.5, 2.1, 2.8, 50.0, 50.0]);
    let krum = |faulty| {
        let rule = Rule::named("krum").with("faulty", HyperValue::Integer(faulty));
        average(&rule, &parts).unwrap().values().next()
    };
    assert_eq!([krum(2), krum(3)], [Some(1.5), Some(50.0)]);
}

/// A weight of 50 counts as the median weight, 1, and the liar's part is drawn to twice the median distance.
#[test]
fn the_clipped_mean_agrees_with_numpy() {
    let mut parts = numpy_example();
    let clipped = Rule::named("clipped");
    assert_close(
        clipped.clone(),
        &parts,
        &[1.310_006_5, 1.934_832, -0.726_931_5],
    );
    for (part, weight) in parts.iter_mut().zip([1.0, 0.5, 2.0, 1.0, 50.0]) {
        part.weight = weight;
    }
    assert_close(
        clipped.clone(),
        &parts,
        &[1.288_896_1, 1.955_368_9, -0.724_368_3],
    );
    let near = clipped.with("reach", HyperValue::Integer(1));
    assert_close(near, &parts, &[1.218_522_1, 2.037_869_6, -0.760_332_3]);
}

/// Honest members that differ from each other by about as much get what the weighted mean gives.
#[test]
fn the_clipped_mean_of_honest_members_is_their_weighted_mean() {
    let mut parts = numpy_example()[..4].to_vec();
    parts[2].weight = 0.25;
    let clipped = average(&Rule::named("clipped"), &parts);
    assert_eq!(clipped, average(&Rule::default(), &parts));
}

#[test]
fn a_rule_that_streams_holds_one_part_at_a_time() {
    for row in choices() {
        let (mut most, mut alive) = (0, Vec::new());
        let mut parts = (0..20).map(|_| {
            let part = part(1.0, &[1.0]);
            alive.push(Arc::downgrade(&part.params));
            most = most.max(alive.iter().filter(|part| part.strong_count() > 0).count());
            part
        });
        combine(&Rule::named(row.name), &mut parts).unwrap();
        assert_eq!(most <= 2, row.streams, "{} holds {most}", row.name);
    }
}

#[test]
fn weights_count_where_the_table_says_so() {
    let equal = members(&[1.0, 2.0, 4.0, 8.0]);
    let with = |weight| {
        let mut parts = equal.clone();
        parts[3].weight = weight;
        parts
    };
    for row in choices() {
        let rule = Rule::named(row.name);
        let is_moved = |weight| average(&rule, &equal) != average(&rule, &with(weight));
        assert_eq!(is_moved(0.5), row.uses_weights, "{}", row.name);
        assert_eq!(is_moved(100.0), row.name == "mean", "{}", row.name);
    }
}

#[test]
fn unknown_rules_and_parameters_out_of_range_are_refused() {
    let error = |rule: Rule| average(&rule, &members(&[1.0])).unwrap_err().to_string();
    assert_eq!(
        error(Rule::named("crum")),
        "unknown aggregation rule `crum`: did you mean `krum`?"
    );
    let faulty = |value| Rule::named("krum").with("faulty", value);
    for wrong in [
        HyperValue::Integer(-1),
        HyperValue::Real(1.5),
        HyperValue::Text("x".into()),
    ] {
        assert_eq!(
            error(faulty(wrong)),
            "`faulty` of rule `krum` must be 0 to 1000"
        );
    }
    assert_eq!(
        error(Rule::named("krum").with("kept", HyperValue::Integer(1))),
        "unknown parameter of rule `krum` `kept`: expected one of `faulty`"
    );
    let endless =
        |iterations| Rule::named("generator").with("iterations", HyperValue::Integer(iterations));
    assert!(error(endless(4_000_000_000)).contains("0 to 65536"));
}

#[test]
fn every_default_is_in_its_range_and_no_name_occurs_twice() {
    for (at, row) in TABLE.iter().enumerate() {
        assert!(Params::of(&Rule::named(row.name)).is_ok(), "{}", row.name);
        assert!(TABLE[..at].iter().all(|other| other.name != row.name));
    }
}
