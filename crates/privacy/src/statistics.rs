//! The mechanism for class statistics, as numbers: sensitivity, noise in each statistic's own units, and shares of members.
//!
//! A sample (x, y) has a feature vector z with |z| ≤ C. It contributes to the counts n, the class sums S and the scatter G.
//! With shares a + b + c = 1, one vector holds all three:
//!
//! ```text
//! v = ( √a e_y ;  √b e_y ⊗ z/C ;  √c vech(z z')/C² )          |v|² = a + b |z|²/C² + c |z|⁴/C⁴ ≤ 1
//! ```
//!
//! vech is the upper triangle with entries off the diagonal times √2, so its length is |z|². One Gaussian release of the sum
//! of v, with noise σ in every entry, protects all three at once.
//!
//! **Sensitivity.** Adding or removing a sample moves the sum by at most 1. Replacing one moves it by Δ. For another class
//! Δ² ≤ 2. For the same class at the angle t between features Δ² = 2b(1-t) + 2c(1-t²), which is largest at t = -b/(2c) if
//! that is an angle, and at t = -1 otherwise:
//!
//! ```text
//! Δ² = max(2, 2b + 2c + b²/(2c))  if b ≤ 2c          Δ² = max(2, 4b)  otherwise
//! ```
//!
//! Numbers of this file are those of the project's study on class statistics (Fashion-MNIST, sections 2.2 and 2.6).

use crate::units::Noise;

/// How far shares may miss a sum of 1.
const SUM: f64 = 1e-9;
/// Samples of the study's federation, in whose terms it states what noise does.
pub const STUDY_SAMPLES: f64 = 8_100.0;
/// The study's limit: beyond it the statistics expert loses.
const MOST_NOISE: f64 = 8.0;

/// Tells why numbers do not make a mechanism.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum StatisticsError {
    /// The shares are not shares.
    #[error("shares {0}, {1} and {2} are out of range: all must be above 0, and their sum 1")]
    Shares(f64, f64, f64),
    /// The radius is no length.
    #[error("a radius of {0} is out of range: choose a number above 0")]
    Radius(f64),
    /// Nobody is left to add noise.
    #[error("{lost} of {members} members may be lost or collude: at least one must remain")]
    Members {
        /// All members.
        members: u32,
        /// Those who may be lost or collude.
        lost: u32,
    },
}

/// How the length of a sample's vector is shared out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shares {
    counts: f64,
    sums: f64,
    scatter: f64,
}

/// Standard deviations of the noise, each in the units of its statistic.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Deviations {
    /// Of the count of a class.
    pub counts: f64,
    /// Of an entry of a class sum.
    pub sums: f64,
    /// Of an entry of the scatter on the diagonal.
    pub diagonal: f64,
    /// Of any other entry of the scatter.
    pub off_diagonal: f64,
}

/// Who adds the noise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Adding {
    /// Members add shares of it. Only the sum is seen, which has all of it while at most `lost` members are lost or collude.
    Shared {
        /// All members.
        members: u32,
        /// Those who may be lost or collude.
        lost: u32,
    },
    /// Each member adds all of it, and is seen alone.
    Whole {
        /// All members.
        members: u32,
    },
}

impl Shares {
    /// The study's shares: counts .02, class sums .48, scatter .5.
    pub const STUDY: Shares = Shares {
        counts: 0.02,
        sums: 0.48,
        scatter: 0.5,
    };

    /// Returns checked shares of counts, class sums and scatter.
    ///
    /// # Errors
    /// Refuses shares that are not positive or do not sum to 1.
    pub fn new(counts: f64, sums: f64, scatter: f64) -> Result<Self, StatisticsError> {
        let positive = [counts, sums, scatter].iter().all(|share| *share > 0.0);
        if !positive || (counts + sums + scatter - 1.0).abs() > SUM {
            return Err(StatisticsError::Shares(counts, sums, scatter));
        }
        Ok(Self {
            counts,
            sums,
            scatter,
        })
    }

    /// Returns the shares of counts, class sums and scatter.
    pub const fn parts(self) -> (f64, f64, f64) {
        (self.counts, self.sums, self.scatter)
    }

    /// Returns by how much adding or removing a sample moves the sum of vectors: 1, whatever the shares.
    pub fn sensitivity_to_adding(self) -> f64 {
        1.0
    }

    /// Returns by how much replacing a sample moves the sum of vectors.
    pub fn sensitivity_to_replacing(self) -> f64 {
        let (sums, scatter) = (self.sums, self.scatter);
        let same_class = if sums <= 2.0 * scatter {
            2.0 * sums + 2.0 * scatter + sums * sums / (2.0 * scatter)
        } else {
            4.0 * sums
        };
        same_class.max(2.0).sqrt()
    }

    /// Returns the noise of each statistic for noise of `sigma` in every entry of the vector, and features up to `radius`.
    ///
    /// # Errors
    /// Refuses a radius that is no length.
    pub fn deviations(self, sigma: f64, radius: f64) -> Result<Deviations, StatisticsError> {
        if !(radius > 0.0 && radius.is_finite()) {
            return Err(StatisticsError::Radius(radius));
        }
        let diagonal = sigma * radius * radius / self.scatter.sqrt();
        Ok(Deviations {
            counts: sigma / self.counts.sqrt(),
            sums: sigma * radius / self.sums.sqrt(),
            diagonal,
            off_diagonal: diagonal * std::f64::consts::FRAC_1_SQRT_2,
        })
    }
}

impl Adding {
    /// Returns the noise that each member adds, so that what is seen carries `noise`.
    ///
    /// # Errors
    /// Refuses a federation of which nobody is left.
    pub fn of_each(self, noise: Noise) -> Result<f64, StatisticsError> {
        match self {
            Adding::Shared { .. } => Ok(noise.get() / f64::from(self.remaining()?).sqrt()),
            Adding::Whole { .. } => self.remaining().map(|_| noise.get()),
        }
    }

    /// Returns the noise of the sum over all members if none is lost.
    ///
    /// # Errors
    /// Refuses a federation of which nobody is left.
    pub fn of_sum(self, noise: Noise) -> Result<f64, StatisticsError> {
        let (Adding::Shared { members, .. } | Adding::Whole { members }) = self;
        Ok(self.of_each(noise)? * f64::from(members).sqrt())
    }

    fn remaining(self) -> Result<u32, StatisticsError> {
        let (members, lost) = match self {
            Adding::Shared { members, lost } => (members, lost),
            Adding::Whole { members } => (members, 0),
        };
        members
            .checked_sub(lost)
            .filter(|remaining| *remaining > 0)
            .ok_or(StatisticsError::Members { members, lost })
    }
}

/// Tells whether the statistics expert is to be switched off: where m' = m · 8100 / N > 8.
///
/// m is the noise of the sum and N the number of samples in it. The study read the rule off its tables afterwards: in all of
/// 5, 20 and 100 nodes the gain is positive for m' ≤ 8, and about 0 or negative above 9.
pub fn is_too_noisy(noise_of_sum: f64, samples: u64) -> bool {
    noise_of_sum * STUDY_SAMPLES > MOST_NOISE * samples as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gaussian;
    use crate::units::{Delta, Epsilon};

    fn noise_at(epsilon: f64) -> Noise {
        let delta = Delta::new(1e-5).unwrap();
        gaussian::noise_for(Epsilon::new(epsilon).unwrap(), delta).unwrap()
    }

    #[test]
    fn replacing_a_sample_is_as_the_study_says() {
        assert!((Shares::STUDY.sensitivity_to_replacing() - 1.480).abs() < 5e-4);
        assert_eq!(Shares::STUDY.sensitivity_to_adding(), 1.0);
    }

    /// The largest of 10,001 angles, for shares on both sides of b = 2c, and where another class counts.
    #[test]
    fn replacing_a_sample_is_the_largest_over_all_angles() {
        for (counts, sums, scatter) in [(0.02, 0.48, 0.5), (0.1, 0.7, 0.2), (0.9, 0.05, 0.05)] {
            let shares = Shares::new(counts, sums, scatter).unwrap();
            let mut largest = 2.0_f64;
            for step in 0..=10_000 {
                let angle = f64::from(step) / 5_000.0 - 1.0;
                let square = 2.0 * sums * (1.0 - angle) + 2.0 * scatter * (1.0 - angle * angle);
                largest = largest.max(square);
            }
            let found = shares.sensitivity_to_replacing();
            assert!(
                (found - largest.sqrt()).abs() < 1e-6,
                "{sums} {scatter}: {found}"
            );
            assert!(found >= largest.sqrt() - 1e-12);
        }
    }

    /// The study's second row: ε for a replaced sample at the noise for an added one.
    #[test]
    fn epsilon_of_a_replaced_sample_is_that_of_the_study() {
        let table = [
            (0.25, 0.38),
            (0.5, 0.77),
            (1.0, 1.54),
            (2.0, 3.11),
            (4.0, 6.32),
            (8.0, 12.98),
        ];
        for (epsilon, expected) in table {
            let noise = noise_at(epsilon).get() / Shares::STUDY.sensitivity_to_replacing();
            let found = gaussian::epsilon(Noise::new(noise).unwrap(), Delta::new(1e-5).unwrap());
            assert!((found - expected).abs() < 6e-3, "{epsilon}: {found}");
        }
    }

    /// The study, section 3: at ε = 1 a count of the secure sum carries 26.
    #[test]
    fn deviations_are_in_the_units_of_their_statistics() {
        let of = Shares::STUDY.deviations(noise_at(1.0).get(), 2.0).unwrap();
        assert!((of.counts - 26.4).abs() < 0.05, "{}", of.counts);
        let of = Shares::new(0.25, 0.25, 0.5)
            .unwrap()
            .deviations(3.0, 2.0)
            .unwrap();
        assert_eq!((of.counts, of.sums), (6.0, 12.0));
        assert!((of.diagonal - 12.0 * std::f64::consts::SQRT_2).abs() < 1e-12);
        assert!((of.off_diagonal - 12.0).abs() < 1e-12);
    }

    /// 5 of 20 members lost: each adds 15 % more.
    #[test]
    fn members_share_the_noise() {
        let noise = Noise::new(2.0).unwrap();
        let all = Adding::Shared {
            members: 20,
            lost: 0,
        };
        let fewer = Adding::Shared {
            members: 20,
            lost: 5,
        };
        assert!((all.of_each(noise).unwrap() - 2.0 / 20.0_f64.sqrt()).abs() < 1e-12);
        let more = fewer.of_each(noise).unwrap() / all.of_each(noise).unwrap();
        assert!((more - 1.1547).abs() < 1e-4, "{more}");
        assert!((all.of_sum(noise).unwrap() - 2.0).abs() < 1e-12);
        let whole = Adding::Whole { members: 20 };
        assert_eq!(whole.of_each(noise).unwrap(), 2.0);
        assert!((whole.of_sum(noise).unwrap() - 2.0 * 20.0_f64.sqrt()).abs() < 1e-12);
    }

    /// 20 nodes of 405 samples that add all the noise at ε = 1 have m' = 3.731 √20 = 16.7; sharing it they have 3.7.
    #[test]
    fn the_expert_is_off_where_the_study_says() {
        let noise = noise_at(1.0);
        let whole = Adding::Whole { members: 20 }.of_sum(noise).unwrap();
        let shared = Adding::Shared {
            members: 20,
            lost: 0,
        }
        .of_sum(noise)
        .unwrap();
        assert!(is_too_noisy(whole, 8_100));
        assert!(!is_too_noisy(shared, 8_100));
        assert!(!is_too_noisy(8.0, 8_100));
        assert!(is_too_noisy(8.01, 8_100));
        assert!(is_too_noisy(0.1, 0));
    }

    #[test]
    fn numbers_that_make_no_mechanism_are_refused() {
        assert!(Shares::new(0.0, 0.5, 0.5).is_err());
        assert!(Shares::new(0.1, 0.5, 0.5).is_err());
        assert!(Shares::new(f64::NAN, 0.5, 0.5).is_err());
        assert!(Shares::STUDY.deviations(1.0, 0.0).is_err());
        let nobody = Adding::Shared {
            members: 3,
            lost: 3,
        }
        .of_each(Noise::new(1.0).unwrap());
        assert_eq!(
            nobody.unwrap_err().to_string(),
            "3 of 3 members may be lost or collude: at least one must remain"
        );
        assert!(
            Adding::Whole { members: 0 }
                .of_sum(Noise::new(1.0).unwrap())
                .is_err()
        );
    }
}
