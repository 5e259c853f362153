//! Vectors as whole numbers: exact, bounded, and back again.
#![allow(clippy::unwrap_used)]

use fednode_masked::fixed::{self, MOST_WEIGHT, SumFault, VectorFault};

#[test]
fn a_sum_has_the_weighted_mean_of_its_vectors() {
    // Binary fractions have no rounding, so the mean is known exactly: (3·0.5 + 1·(−1.5)) / 4 = 0.
    let mut sum = fixed::encode(&[0.5, 1000.0, -0.25], 3).unwrap();
    fixed::add(&mut sum, &fixed::encode(&[-1.5, 1000.0, 0.75], 1).unwrap());
    let mean = fixed::decode(&sum).unwrap();
    assert_eq!(mean.weight, 4);
    assert_eq!(mean.mean(), [0.0, 1000.0, 0.0]);
    assert_eq!(mean.total(), [0.0, 4000.0, 0.0]);
}

#[test]
fn a_value_loses_at_most_half_a_unit_of_the_grid() {
    for value in [0.1_f32, -0.333_333_34, 1e-9, 7.654_321, -1024.0] {
        let mean = fixed::decode(&fixed::encode(&[value], 17).unwrap()).unwrap();
        let lost = f64::from(mean.mean()[0]) - f64::from(value);
        // Half a unit, and the rounding of a large value to `f32`.
        assert!(lost.abs() <= 0.5 / f64::from(1 << 24) + f64::from(value.abs()) * 6e-8);
    }
}

#[test]
fn the_largest_sum_does_not_overflow() {
    let vector = fixed::encode(&[1024.0, -1024.0], MOST_WEIGHT).unwrap();
    assert_eq!(fixed::decode(&vector).unwrap().mean(), [1024.0, -1024.0]);
}

#[test]
fn what_is_out_of_range_is_the_authors_own_error() {
    for value in [f32::NAN, f32::INFINITY, 1024.1, -2000.0] {
        let fault = fixed::encode(&[0.0, value], 1).unwrap_err();
        assert!(matches!(fault, VectorFault::Value { index: 1, .. }));
        assert!(fault.to_string().contains("scale the data"));
    }
    assert_eq!(fixed::encode(&[0.0], 0), Err(VectorFault::Weight(0)));
    let heavy = MOST_WEIGHT + 1;
    assert_eq!(
        fixed::encode(&[0.0], heavy),
        Err(VectorFault::Weight(heavy))
    );
}

#[test]
fn a_sum_that_no_honest_members_have_is_refused() {
    assert_eq!(fixed::decode(&[]), Err(SumFault::Weight(0)));
    assert_eq!(fixed::decode(&[0, 5]), Err(SumFault::Weight(0)));
    assert_eq!(
        fixed::decode(&[u64::MAX, 5]),
        Err(SumFault::Weight(u64::MAX))
    );
    assert_eq!(fixed::decode(&[1, 0, 1 << 50]), Err(SumFault::Value(1)));
    assert_eq!(
        fixed::decode(&[1, i64::MIN.cast_unsigned()]),
        Err(SumFault::Value(0))
    );
}
