//! The numbers of differential privacy as types: ε, δ, noise over sensitivity, and the rate of sampling.
//!
//! A constructor checks each of them once. They are stored as plain numbers, and a stored number is checked again when it
//! is read.

use serde::{Deserialize, Serialize};

/// Tells which number is out of range.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum UnitError {
    /// The bound of a privacy loss is out of range.
    #[error("epsilon {0} is out of range: choose a number of at least 0")]
    Epsilon(f64),
    /// The probability that the bound fails is out of range.
    #[error("delta {0} is out of range: choose a number between 0 and 1, such as 0.00001")]
    Delta(f64),
    /// The noise is out of range.
    #[error("noise of {0} times the sensitivity is out of range: choose 0.000001 to 1000000000000")]
    Noise(f64),
    /// The rate of sampling is out of range.
    #[error("a sampling rate of {0} is out of range: choose a number above 0, at most 1")]
    Rate(f64),
}

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident, $accepts:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize, Deserialize)]
        #[serde(try_from = "f64", into = "f64")]
        pub struct $name(f64);

        impl $name {
            /// Returns the checked number.
            ///
            /// # Errors
            /// Refuses a number out of range.
            pub fn new(value: f64) -> Result<Self, UnitError> {
                let accepts: fn(f64) -> bool = $accepts;
                if accepts(value) { Ok(Self(value)) } else { Err(UnitError::$name(value)) }
            }

            /// Returns the plain number.
            pub fn get(self) -> f64 {
                self.0
            }
        }

        impl TryFrom<f64> for $name {
            type Error = UnitError;

            fn try_from(value: f64) -> Result<Self, UnitError> {
                Self::new(value)
            }
        }

        impl From<$name> for f64 {
            fn from(value: $name) -> f64 {
                value.0
            }
        }
    };
}

unit! {
    /// A bound of the privacy loss: finite, at least 0.
    Epsilon, |value| value.is_finite() && value >= 0.0
}

unit! {
    /// The probability with which the bound may fail: above 0, below 1.
    Delta, |value| value > 0.0 && value < 1.0
}

unit! {
    /// The noise multiplier: the standard deviation of the noise over the sensitivity of what it is added to.
    ///
    /// The range is far beyond what anybody uses, and within it no square overflows or vanishes.
    Noise, |value| (1e-6..=1e12).contains(&value)
}

unit! {
    /// The probability with which each sample takes part in a step: above 0, at most 1.
    Rate, |value| value > 0.0 && value <= 1.0
}

impl Noise {
    /// Returns the noise of releases that were made with the given ones: 1/σ² adds, exactly.
    ///
    /// `None` without a release, or if the sum leaves the range of a noise.
    pub fn of_all(releases: impl IntoIterator<Item = Noise>) -> Option<Noise> {
        let precision: f64 = releases.into_iter().map(|noise| noise.0.powi(-2)).sum();
        Noise::new(precision.sqrt().recip()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_out_of_range_are_refused_in_one_line() {
        for value in [-1.0, f64::INFINITY, f64::NAN] {
            assert!(Epsilon::new(value).is_err(), "{value}");
        }
        for value in [0.0, 1.0, f64::NAN] {
            assert!(Delta::new(value).is_err(), "{value}");
        }
        for value in [0.0, -1.0, 1e-7, f64::INFINITY, f64::NAN] {
            assert!(Noise::new(value).is_err(), "{value}");
        }
        for value in [0.0, 1.1, f64::NAN] {
            assert!(Rate::new(value).is_err(), "{value}");
        }
        let line = Delta::new(2.0).unwrap_err().to_string();
        assert_eq!(
            line,
            "delta 2 is out of range: choose a number between 0 and 1, such as 0.00001"
        );
    }

    #[test]
    fn a_stored_number_is_checked_when_it_is_read() {
        let read = |text| serde_json::from_str::<Delta>(text).map(Delta::get);
        assert_eq!(read("0.25").unwrap(), 0.25);
        assert!(read("1.5").is_err());
        assert_eq!(
            serde_json::to_string(&Rate::new(0.5).unwrap()).unwrap(),
            "0.5"
        );
    }

    /// 1/3² + 1/4² = 25/144, so the noise of both is 12/5.
    #[test]
    fn releases_add_their_inverse_squares() {
        let both = [3.0, 4.0].map(|value| Noise::new(value).unwrap());
        assert!((Noise::of_all(both).unwrap().get() - 2.4).abs() < 1e-12);
        assert_eq!(Noise::of_all([]), None);
    }
}
