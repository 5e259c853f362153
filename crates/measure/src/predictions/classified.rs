//! Probabilities of classes beside the true classes.

use super::{PredictionsError, Real, SUM_TOLERANCE, check_rows};

/// Probabilities of classes, and the true classes.
#[derive(Debug, Clone, PartialEq)]
pub struct Classified {
    classes: usize,
    probabilities: Vec<f64>,
    labels: Vec<u16>,
    epsilon: f64,
}

impl Classified {
    /// Takes the probabilities of `classes` classes, row by row, and the true class of each row, counted from 0.
    ///
    /// # Errors
    /// Refuses no rows, fewer than two classes, and a number of probabilities that is not rows times classes. Refuses a
    /// probability that is NaN or not from 0 to 1, and a label of no class. A row must add up to 1 within
    /// [`SUM_TOLERANCE`].
    pub fn new<P: Real>(
        classes: usize,
        probabilities: &[P],
        labels: &[u16],
    ) -> Result<Self, PredictionsError> {
        check_rows(labels.len())?;
        if classes < 2 {
            return Err(PredictionsError::TooFewClasses(classes));
        }
        if labels.len().checked_mul(classes) != Some(probabilities.len()) {
            return Err(PredictionsError::Probabilities {
                found: probabilities.len(),
                rows: labels.len(),
                classes,
            });
        }
        let probabilities: Vec<f64> = probabilities.iter().map(|&p| p.into()).collect();
        for (row, (probabilities, &label)) in
            probabilities.chunks_exact(classes).zip(labels).enumerate()
        {
            check_row(row, probabilities)?;
            if usize::from(label) >= classes {
                return Err(PredictionsError::Label {
                    row,
                    label,
                    classes,
                });
            }
        }
        Ok(Self {
            classes,
            probabilities,
            labels: labels.to_vec(),
            epsilon: P::EPSILON,
        })
    }

    /// Takes one list of probabilities per row, and the true class of each row, counted from 0.
    ///
    /// # Errors
    /// Refuses rows of different lengths, and what [`Classified::new`] refuses.
    pub fn from_rows<P: Real, R: AsRef<[P]>>(
        rows: &[R],
        labels: &[u16],
    ) -> Result<Self, PredictionsError> {
        let expected = rows.first().ok_or(PredictionsError::Empty)?.as_ref().len();
        let mut probabilities = Vec::with_capacity(rows.len() * expected);
        for (row, values) in rows.iter().map(AsRef::as_ref).enumerate() {
            if values.len() != expected {
                return Err(PredictionsError::RowLength {
                    row,
                    found: values.len(),
                    expected,
                });
            }
            probabilities.extend_from_slice(values);
        }
        Self::new(expected, &probabilities, labels)
    }

    /// Returns the number of rows, at least 1.
    pub fn rows(&self) -> usize {
        self.labels.len()
    }

    /// Returns the number of classes, at least 2.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// Returns the true class of each row.
    pub fn labels(&self) -> &[u16] {
        &self.labels
    }

    /// Visits the probabilities of each row.
    pub fn probabilities(&self) -> impl ExactSizeIterator<Item = &[f64]> {
        self.probabilities.chunks_exact(self.classes)
    }

    /// Visits the predicted classes: of each row the first class with the highest probability.
    pub fn predicted(&self) -> impl ExactSizeIterator<Item = usize> {
        self.probabilities().map(most_probable)
    }

    /// Returns the precision with which probabilities were given: the distance from 1 to the next number.
    pub(crate) fn epsilon(&self) -> f64 {
        self.epsilon
    }
}

fn check_row(row: usize, probabilities: &[f64]) -> Result<(), PredictionsError> {
    // A weighted sum of rounded probabilities may exceed 1 a little.
    let allowed = 0.0..=1.0 + SUM_TOLERANCE;
    let strange = probabilities.iter().position(|p| !allowed.contains(p));
    if let Some(class) = strange {
        let value = probabilities[class];
        return Err(PredictionsError::Probability { row, class, value });
    }
    let sum: f64 = probabilities.iter().sum();
    if (sum - 1.0).abs() > SUM_TOLERANCE {
        return Err(PredictionsError::Sum { row, sum });
    }
    Ok(())
}

/// Returns the first class with the highest probability.
fn most_probable(probabilities: &[f64]) -> usize {
    let mut best = 0;
    for (class, probability) in probabilities.iter().enumerate() {
        if *probability > probabilities[best] {
            best = class;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(classes: usize, probabilities: &[f64], labels: &[u16]) -> String {
        let error = Classified::new(classes, probabilities, labels).unwrap_err();
        let line = error.to_string();
        assert!(!line.contains('\n'), "{line}");
        line
    }

    #[test]
    fn a_tie_goes_to_the_first_class() {
        let tied = Classified::new(3, &[0.2, 0.4, 0.4, 0.5, 0.0, 0.5], &[2, 2]).unwrap();
        assert_eq!(tied.predicted().collect::<Vec<_>>(), [1, 0]);
    }

    #[test]
    fn refuses_bad_input_in_one_line() {
        let cases = [
            (refused(2, &[], &[]), "there are no rows"),
            (refused(1, &[1.0], &[0]), "1 classes are too few"),
            (refused(0, &[], &[0]), "0 classes are too few"),
            (
                refused(2, &[0.5; 3], &[0, 1]),
                "3 probabilities do not make 2 rows of 2 classes: give 4",
            ),
            (
                refused(2, &[0.5, 0.5, f64::NAN, 0.5], &[0, 1]),
                "row 1 gives class 0 a probability of NaN",
            ),
            (
                refused(2, &[0.5, f64::INFINITY], &[0]),
                "row 0 gives class 1 a probability of inf",
            ),
            (
                refused(2, &[-0.1, 1.1], &[0]),
                "row 0 gives class 0 a probability of -0.1",
            ),
            (
                refused(2, &[0.9, 0.9], &[0]),
                "the probabilities of row 0 add up to 1.8",
            ),
            (
                refused(2, &[0.5; 4], &[0, 2]),
                "row 1 has label 2: with 2 classes labels are 0 to 1",
            ),
        ];
        for (line, expected) in cases {
            assert!(line.starts_with(expected), "{line}");
        }
    }

    #[test]
    fn rows_must_have_one_length() {
        let rows = [vec![0.5f32, 0.5], vec![0.2, 0.3, 0.5]];
        let error = Classified::from_rows(&rows, &[0, 1]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "row 1 has 3 probabilities, and row 0 has 2: give one per class"
        );
        let none: [Vec<f32>; 0] = [];
        let error = Classified::from_rows(&none, &[]).unwrap_err();
        assert_eq!(error, PredictionsError::Empty);
        assert!(Classified::from_rows(&rows[..1], &[0]).is_ok());
        assert!(Classified::from_rows(&rows[..1], &[0, 1]).is_err());
    }

    #[test]
    fn probabilities_rounded_to_16_bits_are_accepted() {
        let rounded = [0.333_984_4f32; 3];
        assert!(Classified::new(3, &rounded, &[0]).is_ok());
    }
}
