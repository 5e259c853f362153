//! The confusion matrix: how many rows of each class were predicted to be of which class.

use crate::Classified;

/// Rows by true and predicted class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confusion {
    classes: usize,
    counts: Vec<u64>,
}

impl Confusion {
    /// Counts the rows. A tie of probabilities goes to the first class.
    pub fn of(classified: &Classified) -> Self {
        let classes = classified.classes();
        let mut counts = vec![0; classes * classes];
        for (&truth, predicted) in classified.labels().iter().zip(classified.predicted()) {
            counts[usize::from(truth) * classes + predicted] += 1;
        }
        Self { classes, counts }
    }

    /// Returns the number of classes.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// Visits the rows of the matrix: of each true class, how many were predicted to be of each class.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[u64]> {
        self.counts.chunks_exact(self.classes)
    }

    /// Returns how many rows of class `truth` were predicted to be of class `predicted`.
    ///
    /// # Panics
    /// If there is no such class.
    pub fn count(&self, truth: usize, predicted: usize) -> u64 {
        assert!(predicted < self.classes, "there is no class {predicted}");
        self.counts[truth * self.classes + predicted]
    }

    /// Returns the share of the class's rows that were predicted to be of it; `None` if it has no row.
    pub fn recall(&self, class: usize) -> Option<f64> {
        share(self.count(class, class), self.of_class(class))
    }

    /// Returns the share of the rows predicted to be of the class that are; `None` if there is none.
    pub fn precision(&self, class: usize) -> Option<f64> {
        share(self.count(class, class), self.predicted(class))
    }

    /// Returns the harmonic mean of precision and recall; `None` if no row is, or was predicted to be, of the class.
    pub fn f1(&self, class: usize) -> Option<f64> {
        let either = self.of_class(class) + self.predicted(class);
        share(2 * self.count(class, class), either)
    }

    /// Returns how many rows are of the class.
    pub fn of_class(&self, class: usize) -> u64 {
        let predicted = 0..self.classes;
        predicted.map(|other| self.count(class, other)).sum()
    }

    /// Returns how many rows were predicted to be of the class.
    pub fn predicted(&self, class: usize) -> u64 {
        let truth = 0..self.classes;
        truth.map(|other| self.count(other, class)).sum()
    }
}

fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three rows of class 0, of which two are recognised, and one of class 1, which is taken for class 0.
    #[test]
    fn shares_are_those_of_the_rows() {
        let probabilities = [0.8, 0.2, 0.0, 0.5, 0.5, 0.0, 0.1, 0.9, 0.0, 1.0, 0.0, 0.0];
        let classified = Classified::new(3, &probabilities, &[0, 0, 0, 1]).unwrap();
        let confusion = Confusion::of(&classified);
        let rows: Vec<&[u64]> = confusion.rows().collect();
        assert_eq!(rows, [[2, 1, 0], [1, 0, 0], [0, 0, 0]]);
        assert_eq!(confusion.recall(0), Some(2.0 / 3.0));
        assert_eq!(confusion.precision(0), Some(2.0 / 3.0));
        assert_eq!(
            (confusion.recall(1), confusion.precision(1)),
            (Some(0.0), Some(0.0))
        );
        assert_eq!((confusion.recall(2), confusion.f1(2)), (None, None));
    }
}
