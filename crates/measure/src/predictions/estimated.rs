//! Predicted numbers beside the true ones.

use super::{PredictionsError, Real, check_rows};

/// Predicted numbers, and the true ones.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimated {
    predicted: Vec<f64>,
    truth: Vec<f64>,
}

impl Estimated {
    /// Takes predicted numbers, and the true number of each row.
    ///
    /// # Errors
    /// Refuses no rows, lists of different lengths, and numbers that are NaN or infinite.
    pub fn new<P: Real, T: Real>(predicted: &[P], truth: &[T]) -> Result<Self, PredictionsError> {
        if predicted.len() != truth.len() {
            return Err(PredictionsError::Numbers {
                predicted: predicted.len(),
                truth: truth.len(),
            });
        }
        check_rows(truth.len())?;
        let predicted: Vec<f64> = predicted.iter().map(|&number| number.into()).collect();
        let truth: Vec<f64> = truth.iter().map(|&number| number.into()).collect();
        if let Some((row, value)) = first_strange(&predicted) {
            return Err(PredictionsError::Predicted { row, value });
        }
        if let Some((row, value)) = first_strange(&truth) {
            return Err(PredictionsError::Truth { row, value });
        }
        Ok(Self { predicted, truth })
    }

    /// Returns the number of rows, at least 1.
    pub fn rows(&self) -> usize {
        self.truth.len()
    }

    /// Returns the predicted number of each row.
    pub fn predicted(&self) -> &[f64] {
        &self.predicted
    }

    /// Returns the true number of each row.
    pub fn truth(&self) -> &[f64] {
        &self.truth
    }

    /// Visits the errors: of each row the predicted number minus the true one.
    pub(crate) fn errors(&self) -> impl Iterator<Item = f64> {
        let pairs = self.predicted.iter().zip(&self.truth);
        pairs.map(|(predicted, truth)| predicted - truth)
    }
}

fn first_strange(numbers: &[f64]) -> Option<(usize, f64)> {
    let mut rows = numbers.iter().copied().enumerate();
    rows.find(|(_, number)| !number.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_bad_input_in_one_line() {
        let refused = |predicted: &[f32], truth: &[f64]| {
            Estimated::new(predicted, truth).unwrap_err().to_string()
        };
        let cases = [
            (refused(&[], &[]), "there are no rows to measure"),
            (
                refused(&[1.0], &[1.0, 2.0]),
                "1 predicted numbers and 2 true ones",
            ),
            (refused(&[1.0, f32::NAN], &[1.0, 2.0]), "row 1 predicts NaN"),
            (
                refused(&[1.0], &[f64::INFINITY]),
                "row 0 has the true number inf",
            ),
        ];
        for (line, expected) in cases {
            assert!(line.starts_with(expected) && !line.contains('\n'), "{line}");
        }
    }
}
