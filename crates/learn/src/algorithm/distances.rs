//! Distances between rows of features and between predictions, of which several algorithms make their second loss.

use burn::tensor::Tensor;
use burn::tensor::activation::{log_softmax, softmax};

/// Keeps the gradient of a square root finite at zero.
const EPSILON: f64 = 1e-12;

/// Returns the cosine between every row of one matrix and the same row of another, `[rows, 1]`.
pub(super) fn cosines(a: Tensor<2>, b: Tensor<2>) -> Tensor<2> {
    (unit_rows(a) * unit_rows(b)).sum_dim(1)
}

fn unit_rows(rows: Tensor<2>) -> Tensor<2> {
    let lengths = (rows.clone() * rows.clone())
        .sum_dim(1)
        .add_scalar(EPSILON)
        .sqrt();
    rows / lengths
}

/// Returns the mean square of all numbers.
pub(super) fn mean_square(difference: Tensor<2>) -> Tensor<1> {
    (difference.clone() * difference).mean()
}

/// Returns the Kullback-Leibler divergence of one side's predictions from another's, `sum_c p_c (log p_c - log q_c)`
/// with p the teacher's and q the student's, as a mean over the samples.
pub(super) fn divergence(student: Tensor<2>, teacher: Tensor<2>) -> Tensor<1> {
    let n_samples = student.dims()[0] as f64;
    let surprise = log_softmax(teacher.clone(), 1) - log_softmax(student, 1);
    (softmax(teacher, 1) * surprise).sum().div_scalar(n_samples)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::testing::{assert_close, matrix};
    use crate::weights::values;

    /// (3, 4) and (4, 3): 24 / 25; (1, 0) and (0, 2): 0.
    #[test]
    fn cosines_are_those_of_rows() {
        let got = cosines(
            matrix([[3.0, 4.0], [1.0, 0.0]]),
            matrix([[4.0, 3.0], [0.0, 2.0]]),
        );
        assert_close(&values(&got), &[0.96, 0.0], 1e-6);
        let dead = matrix([[0.0, 0.0]]).autodiff().require_grad();
        let gradients = cosines(dead.clone(), matrix([[1.0, 1.0]])).sum().backward();
        assert!(
            values(&dead.grad(&gradients).unwrap())
                .iter()
                .all(|gradient| gradient.is_finite())
        );
    }

    /// Teacher (3/4, 1/4) from logits (ln 3, 0), student (1/2, 1/2): 3/4 ln(3/2) + 1/4 ln(1/2) = 0.130 812; the gradient in
    /// the student's logits is q - p. The other row is alike on both sides, so the mean halves both.
    #[test]
    fn divergence_agrees_with_a_worked_example() {
        let student = matrix([[0.0, 0.0], [1.0, 2.0]]).autodiff().require_grad();
        let loss = divergence(student.clone(), matrix([[3f32.ln(), 0.0], [1.0, 2.0]]));
        assert_close(&values(&loss), &[0.065_406], 1e-6);
        let gradients = values(&student.grad(&loss.backward()).unwrap());
        assert_close(&gradients, &[-0.125, 0.125, 0.0, 0.0], 1e-6);
    }
}
