//! Raw tables: what nodes add up, and the features that they make of it, held to numbers worked out by hand.

use fednode_core::spec::{ColumnKind, Filling, Scaling, TableColumn};
use fednode_data::table::{Summary, Treatment, moments, n_moments};

const GAP: f32 = f32::NAN;

fn number(range: [f64; 2]) -> TableColumn {
    TableColumn {
        name: "x".into(),
        range,
        ..TableColumn::default()
    }
}

fn category(levels: &[&str], gaps: bool) -> TableColumn {
    TableColumn {
        name: "c".into(),
        kind: ColumnKind::Category,
        levels: levels.iter().map(|level| (*level).to_owned()).collect(),
        gaps,
        ..TableColumn::default()
    }
}

fn features(columns: &[TableColumn], learned: &[f32], rows: &[f32]) -> Vec<f32> {
    Treatment::of(columns, &moments(columns, learned)).apply(rows)
}

#[track_caller]
fn assert_close(got: &[f32], expected: &[f32]) {
    let is_close = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-5;
    let are_close = got.len() == expected.len() && got.iter().zip(expected).all(is_close);
    assert!(are_close, "{got:?} is not {expected:?}");
}

/// Of 1, 3 and 5 the mean is 3 and the deviation the root of 8/3.
#[test]
fn numbers_are_standardised_and_gaps_filled_with_the_mean() {
    let columns = [TableColumn {
        gaps: true,
        ..number([0.0, 10.0])
    }];
    let deviation = (8.0_f32 / 3.0).sqrt();
    let got = features(&columns, &[1.0, GAP, 3.0, 5.0], &[5.0, GAP, 3.0]);
    assert_close(&got, &[2.0 / deviation, 0.0, 0.0, 1.0, 0.0, 0.0]);
}

#[test]
fn a_wild_value_is_cut_and_moves_no_median() {
    let robust = [TableColumn {
        scaling: Scaling::Robust,
        filling: Filling::Median,
        ..number([0.0, 32.0])
    }];
    let learned: Vec<f32> = (0..32).map(|value| value as f32 + 0.5).collect();
    let wild: Vec<f32> = learned
        .iter()
        .map(|value| if *value > 31.0 { 1e9 } else { *value })
        .collect();
    let calm = features(&robust, &learned, &[16.0, 24.0, 1e9]);
    assert_close(&features(&robust, &wild, &[16.0, 24.0, 1e9]), &calm);
    // The quartiles are 8 and 24, the median 16: (24 - 16) · 1.349 / 16.
    assert_close(&calm, &[0.0, 8.0 * 1.348_979_5 / 16.0, 10.0]);
}

/// ln(1 + e^2 - 1) = 2 and ln(1 + 0) = 0: mean 1, deviation 1.
#[test]
fn logarithms_are_standardised() {
    let columns = [TableColumn {
        scaling: Scaling::Log,
        ..number([0.0, 100.0])
    }];
    let large = 1.0_f32.exp().powi(2) - 1.0;
    assert_close(
        &features(&columns, &[0.0, large], &[0.0, large]),
        &[-1.0, 1.0],
    );
}

#[test]
fn levels_are_one_hot_and_rare_ones_go_with_the_other_words() {
    let columns = [category(&["a", "b"], true)];
    // b is one of 1,000 rows.
    let mut learned = vec![0.0; 999];
    learned.push(1.0);
    let got = features(&columns, &learned, &[0.0, 1.0, 2.0, GAP]);
    let expected = [
        [1.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 1.0, 0.0],
        [0.0, 0.0, 1.0, 0.0],
        [1.0, 0.0, 0.0, 1.0],
    ];
    assert_close(&got, expected.as_flattened());
}

/// Two nodes of 1 and 3 rows: the mean of their moments, weighted by rows, is what one node with all rows adds up.
#[test]
fn moments_of_nodes_are_those_of_all_their_rows() {
    let columns = [
        number([-5.0, 5.0]),
        category(&["a"], false),
        TableColumn {
            kind: ColumnKind::Boolean,
            ..number([0.0, 1.0])
        },
    ];
    let first = [1.0, 0.0, 1.0];
    let second = [GAP, 1.0, 0.0, 3.0, 0.0, GAP, 4.0, 1.0, 1.0];
    let all = [&first[..], &second].concat();
    let (one, three) = (moments(&columns, &first), moments(&columns, &second));
    let mean: Vec<f64> = one
        .iter()
        .zip(three)
        .map(|(a, b)| (a + 3.0 * b) / 4.0)
        .collect();
    let close = |(a, b): (&f64, f64)| (a - b).abs() < 1e-12;
    assert!(
        mean.iter().zip(moments(&columns, &all)).all(close),
        "{mean:?}"
    );
    assert_eq!(mean.len(), n_moments(&columns));
    let summaries = Summary::all(&columns, &mean);
    assert_eq!(summaries[0].present, 0.75);
}

#[test]
fn moments_that_nobody_can_have_make_finite_features() {
    let plain = TableColumn {
        scaling: Scaling::Plain,
        ..number([0.0, 1.0])
    };
    let columns = [number([0.0, 1.0]), category(&["a"], true), plain];
    for lie in [f64::NAN, -1.0, 1e300, 0.0] {
        let moments = vec![lie; n_moments(&columns)];
        let features = Treatment::of(&columns, &moments)
            .apply(&[0.5, 0.0, GAP, GAP, GAP, GAP, -1e30, 7.0, 1.0]);
        assert!(
            features.iter().all(|value| value.is_finite()),
            "{lie}: {features:?}"
        );
    }
}
