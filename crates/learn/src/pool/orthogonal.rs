//! Orthogonal matrices to start a gate from (Saxe et al. 2014; the best start in PM-MoE's Fig. 5).
//!
//! The rows of a wide matrix, or the columns of a tall one, are drawn at random and made orthonormal by Gram and
//! Schmidt, twice over, since once is not enough in floating point. Only additions, products, quotients and square roots
//! are used, in a fixed order, so that all machines get the same bits.

use rand_chacha::ChaCha8Rng;

use crate::random::nearly_normal;

/// A vector shorter than this, once what it has in common with the others is gone, is drawn again.
const SHORTEST: f64 = 1e-6;

/// Draws a matrix `[rows, columns]`, row-major.
pub(super) fn matrix(rng: &mut ChaCha8Rng, rows: usize, columns: usize) -> Vec<f32> {
    let (count, length) = (rows.min(columns), rows.max(columns));
    let mut vectors: Vec<Vec<f64>> = Vec::with_capacity(count);
    while vectors.len() < count {
        let mut vector = nearly_normal(rng, length);
        let mut shortest = f64::INFINITY;
        for _ in 0..2 {
            for other in &vectors {
                let common = dot(&vector, other);
                vector
                    .iter_mut()
                    .zip(other)
                    .for_each(|(value, other)| *value -= common * other);
            }
            let norm = dot(&vector, &vector).sqrt();
            shortest = shortest.min(norm);
            vector
                .iter_mut()
                .for_each(|value| *value /= norm.max(SHORTEST));
        }
        if shortest >= SHORTEST {
            vectors.push(vector);
        }
    }
    let is_tall = rows > columns;
    let value = |row: usize, column: usize| {
        if is_tall {
            vectors[column][row]
        } else {
            vectors[row][column]
        }
    };
    (0..rows * columns)
        .map(|at| value(at / columns, at % columns) as f32)
        .collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Purpose, stream};

    #[test]
    fn rows_or_columns_are_orthonormal() {
        for (rows, columns) in [(1, 1), (1, 5), (7, 1), (128, 200), (128, 128), (256, 128)] {
            let matrix = matrix(&mut stream(Purpose::PoolGate, [1, 2, 3]), rows, columns);
            let at = |row: usize, column: usize| f64::from(matrix[row * columns + column]);
            let (count, length) = (rows.min(columns), rows.max(columns));
            let element = |vector, i| {
                if rows > columns {
                    at(i, vector)
                } else {
                    at(vector, i)
                }
            };
            for (a, b) in (0..count).flat_map(|a| (0..=a).map(move |b| (a, b))) {
                let product: f64 = (0..length).map(|i| element(a, i) * element(b, i)).sum();
                let expected = if a == b { 1.0 } else { 0.0 };
                assert!(
                    (product - expected).abs() < 1e-5,
                    "{rows}x{columns}: {a} and {b} give {product}"
                );
            }
        }
    }

    #[test]
    fn seeds_make_the_difference() {
        let draw = |seed| matrix(&mut stream(Purpose::PoolGate, [seed, 0, 0]), 3, 4);
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }
}
