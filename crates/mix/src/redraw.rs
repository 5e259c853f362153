//! What the mean features of a class show of its samples: inputs redrawn by a linear decoder.
//!
//! ```text
//! x ≈ x̄ + Xᵀ (K + λ I)⁻¹ k(f, c)        F, X: features and inputs of other samples, less their means
//! K = F Fᵀ + B · (same class)           k(f, c) = F (f - f̄) + B · (of class c)
//! ```
//!
//! A linear decoder commutes with means, so it redraws the mean of any number of samples from their mean features (the project's
//! privacy study, section 5a). Whoever has samples of the same kind can learn it.
//!
//! - B is large. So the decoder begins with the mean of the class, and features say what is different.
//! - Of some λ that one counts which redraws best: each of the others by a decoder of the rest, in closed form.
//! - Noise in the features adds to λ. A decoder that trusts them less stays nearer to the class mean, which is what is known
//!   without any features.

use nalgebra::{DMatrix, DVector};

/// λ that are tried, as shares of the mean of the others' squared lengths.
const RIDGES: [f64; 10] = [1e-4, 1e-3, 1e-2, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0];
/// Most numbers of an input by which λ is chosen.
const MOST_JUDGED: usize = 1024;
/// How much more a class counts than what features may say, so that its mean is hardly drawn to that of all.
const OF_CLASS: f64 = 1e3;
/// The smallest number that something is divided by.
const TINY: f64 = 1e-12;

/// Samples of which a decoder is learned: row by row features, input and class.
#[derive(Debug, Clone, Copy)]
pub struct Others<'a> {
    /// Features of each.
    pub features: &'a [Vec<f32>],
    /// Inputs of each.
    pub inputs: &'a [Vec<f32>],
    /// The class of each.
    pub classes: &'a [usize],
}

/// Redraws inputs from mean features.
#[derive(Debug)]
pub struct Decoder {
    /// Features and inputs of the others less their means, `[others, numbers]`.
    features: DMatrix<f64>,
    inputs: DMatrix<f64>,
    classes: Vec<usize>,
    /// The products of their features, and their mean square.
    products: DMatrix<f64>,
    size: f64,
    ridge: f64,
    mean_features: DVector<f64>,
    mean_inputs: DVector<f64>,
}

impl Decoder {
    /// Learns of others; nothing without any.
    ///
    /// # Panics
    /// Panics if the rows are not of one width.
    pub fn new(others: Others<'_>) -> Option<Self> {
        if others.classes.is_empty() {
            return None;
        }
        let (mut features, mut inputs) = (matrix(others.features), matrix(others.inputs));
        let mean_features = mean(&features, |_| true);
        let mean_inputs = mean(&inputs, |_| true);
        for at in 0..others.classes.len() {
            let mut row = features.row_mut(at);
            row -= mean_features.transpose();
            let mut row = inputs.row_mut(at);
            row -= mean_inputs.transpose();
        }
        let products = &features * features.transpose();
        let size = (products.trace() / others.classes.len() as f64).max(TINY);
        let mut decoder = Self {
            features,
            inputs,
            classes: others.classes.to_vec(),
            products,
            size,
            ridge: 0.0,
            mean_features,
            mean_inputs,
        };
        let judged = some_columns(&decoder.inputs);
        let error = |share: f64| {
            let ridge = share * size;
            left_out_error(decoder.with_ridge(ridge), &judged).map(|error| (ridge, error))
        };
        let best = RIDGES.into_iter().filter_map(error);
        (decoder.ridge, _) = best.min_by(|a, b| a.1.total_cmp(&b.1))?;
        Some(decoder)
    }

    /// Returns what is known of a class without any features: the mean of the others of that class, and of all others if none
    /// is.
    pub fn known(&self, class: usize) -> Vec<f32> {
        let has_class = self.classes.contains(&class);
        let known = mean(&self.inputs, |at| has_class && self.classes[at] == class);
        floats(&(known + &self.mean_inputs))
    }

    /// Redraws the mean of `samples` samples of a class from their mean features, which carry noise. `noise` is the deviation of
    /// each number of their *sum*.
    pub fn redraw(&self, class: usize, features: &[f64], samples: f64, noise: f64) -> Vec<f32> {
        let others = self.features.nrows();
        let ridge = self.ridge + others as f64 * noise * noise / samples.max(1.0);
        let Some(factor) = self.with_ridge(ridge).cholesky() else {
            return self.known(class);
        };
        let from = DVector::from_column_slice(features) - &self.mean_features;
        let mut products = &self.features * from;
        let of_class = self.of_class(ridge);
        let pairs = products.iter_mut().zip(&self.classes);
        pairs.for_each(|(product, its)| *product += f64::from(u8::from(*its == class)) * of_class);
        let weights = factor.solve(&products);
        floats(&(&self.mean_inputs + self.inputs.tr_mul(&weights)))
    }

    /// Returns K + λ I.
    fn with_ridge(&self, ridge: f64) -> DMatrix<f64> {
        let (mut matrix, of_class) = (self.products.clone(), self.of_class(ridge));
        for (column, one) in self.classes.iter().enumerate() {
            for (row, other) in self.classes.iter().enumerate() {
                matrix[(row, column)] += f64::from(u8::from(one == other)) * of_class;
            }
            matrix[(column, column)] += ridge.max(TINY);
        }
        matrix
    }

    /// Returns B.
    fn of_class(&self, ridge: f64) -> f64 {
        OF_CLASS * self.size.max(ridge)
    }
}

fn matrix(rows: &[Vec<f32>]) -> DMatrix<f64> {
    let width = rows.first().map_or(0, Vec::len);
    DMatrix::from_fn(rows.len(), width, |row, column| {
        f64::from(rows[row][column])
    })
}

/// Returns the mean of some rows.
fn mean(rows: &DMatrix<f64>, is_in: impl Fn(usize) -> bool) -> DVector<f64> {
    let mut sum = DVector::zeros(rows.ncols());
    let mut count = 0.0;
    for (_, row) in rows.row_iter().enumerate().filter(|(at, _)| is_in(*at)) {
        sum += row.transpose();
        count += 1.0;
    }
    sum / f64::max(count, 1.0)
}

/// Returns at most [`MOST_JUDGED`] columns, as far apart as they can be.
fn some_columns(inputs: &DMatrix<f64>) -> DMatrix<f64> {
    let width = inputs.ncols();
    let kept = width.min(MOST_JUDGED);
    let columns: Vec<usize> = (0..kept).map(|at| at * width / kept.max(1)).collect();
    inputs.select_columns(&columns)
}

/// Returns the squared error of redrawing each sample by a decoder of the rest: the rows of (K + λ)⁻¹ X by the diagonal of
/// (K + λ)⁻¹.
fn left_out_error(with_ridge: DMatrix<f64>, inputs: &DMatrix<f64>) -> Option<f64> {
    let inverse = with_ridge.cholesky()?.inverse();
    let errors = &inverse * inputs;
    let error = |at: usize| errors.row(at).norm_squared() / inverse[(at, at)].powi(2);
    Some((0..errors.nrows()).map(error).sum())
}

fn floats(values: &DVector<f64>) -> Vec<f32> {
    values.iter().map(|value| *value as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Inputs of three numbers along one direction, of which one feature is known: two times how far along.
    fn others() -> ([Vec<Vec<f32>>; 2], Vec<usize>) {
        let along = [-2.0_f32, -1.0, 0.0, 1.0, 2.0, 3.0];
        let features = along.map(|t| vec![2.0 * t, 1.0]);
        let inputs = along.map(|t| vec![t, -t, 5.0]);
        ([features.into(), inputs.into()], vec![0; 6])
    }

    fn near(found: &[f32], wanted: &[f32]) {
        let far = found.iter().zip(wanted).map(|(a, b)| (a - b).abs());
        assert!(
            far.into_iter().all(|far| far < 0.02),
            "{found:?} {wanted:?}"
        );
    }

    #[test]
    fn what_features_determine_is_redrawn_and_noise_hides_it() {
        let ([features, inputs], classes) = others();
        let others = Others {
            features: &features,
            inputs: &inputs,
            classes: &classes,
        };
        let decoder = Decoder::new(others).unwrap();
        near(&decoder.known(0), &[0.5, -0.5, 5.0]);
        // Nobody has class 1: the mean of all is known of it.
        assert_eq!(decoder.known(1), decoder.known(0));
        near(&decoder.redraw(0, &[8.0, 1.0], 1.0, 0.0), &[4.0, -4.0, 5.0]);
        // The mean of samples is redrawn as one sample is.
        near(&decoder.redraw(0, &[3.0, 1.0], 7.0, 0.0), &[1.5, -1.5, 5.0]);
        near(&decoder.redraw(0, &[8.0, 1.0], 1.0, 1e3), &[0.5, -0.5, 5.0]);
    }

    /// Features that have nothing to do with the inputs: whoever believed them would draw noise. Classes have few samples, so a
    /// class mean holds much of each.
    #[test]
    fn features_that_say_nothing_are_not_believed() {
        let mut state = 1_u32;
        let mut draw = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        let mut rows = |width| {
            (0..40)
                .map(|_| (0..width).map(|_| draw()).collect())
                .collect()
        };
        let [features, inputs]: [Vec<Vec<f32>>; 2] = [rows(60), rows(5)];
        let classes: Vec<usize> = (0..40).map(|at| at / 4).collect();
        let others = Others {
            features: &features,
            inputs: &inputs,
            classes: &classes,
        };
        let decoder = Decoder::new(others).unwrap();
        assert_eq!(decoder.ridge, RIDGES[RIDGES.len() - 1] * decoder.size);
    }

    /// The closed form of leaving one out, against decoders of the rest.
    #[test]
    fn leaving_one_out_in_closed_form_is_leaving_one_out() {
        let products = matrix(&[
            vec![2.0, 0.5, 0.1, -0.3],
            vec![0.5, 1.0, 0.2, 0.0],
            vec![0.1, 0.2, 3.0, 0.4],
            vec![-0.3, 0.0, 0.4, 1.5],
        ]);
        let inputs = matrix(&[1.0, 0.5, -2.0, 0.7].map(|x| vec![x]));
        let found = left_out_error(products.clone(), &inputs).unwrap();
        let mut by_hand = 0.0;
        for out in 0..4 {
            let rest = products.clone().remove_row(out).remove_column(out);
            let to_rest = products.row(out).remove_column(out);
            let inverse = rest.try_inverse().unwrap();
            let predicted = to_rest * inverse * inputs.clone().remove_row(out);
            by_hand += (predicted[0] - inputs[out]).powi(2);
        }
        assert!((found - by_hand).abs() < 1e-9, "{found} {by_hand}");
    }

    #[test]
    fn others_that_differ_in_nothing_teach_nothing_wrong() {
        let same = vec![vec![1.0_f32, 2.0]; 3];
        let others = Others {
            features: &same,
            inputs: &same,
            classes: &[0, 0, 0],
        };
        let decoder = Decoder::new(others).unwrap();
        near(&decoder.redraw(0, &[9.0, 9.0], 1.0, 0.0), &[1.0, 2.0]);
        let nobody = Others {
            features: &[],
            inputs: &[],
            classes: &[],
        };
        assert!(Decoder::new(nobody).is_none());
    }
}
