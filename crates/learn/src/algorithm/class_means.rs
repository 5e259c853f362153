//! Means of a vector over each class, at a node and over all nodes: the prototypes of `fedproto` and `fedpac`, the
//! logits of `fd`.
//!
//! What a node shares are two arrays, its means and a 1 for each class that it has samples of (zeros for the others). A
//! plain uniform mean over the nodes turns the first into the sum over those that have the class, divided by all nodes.
//! It turns the second into the share of the nodes that have the class. One divided by the other is the mean over the
//! nodes that have the class. So no aggregator needs to know what the arrays mean, and a node's own arrays read the
//! same way before any mean came in.

use burn::tensor::Tensor;
use fednode_onnx::{Graph, Value};

use super::Setup;
use super::part::{Part, Role};
use crate::model::{Initial, Net, affine};
use crate::weights::{self, Weights};

/// A logit of a class that nothing is known about: low enough for a probability of zero, and finite.
const IMPOSSIBLE: f64 = -1e9;

/// Makes the shared part for means of a width; nothing is known about any class at first.
pub(super) fn part(setup: &Setup<'_>, [means, present]: [&str; 2], width: usize) -> Part {
    let classes = setup.model.classes;
    let zero = Initial::Zeros;
    let net = Net::arrays(&[
        (means, &[classes, width], zero),
        (present, &[classes], zero),
    ]);
    Part::new(Role::Shared, net, setup.seed, 0, setup.device)
}

/// Sums over the samples of a pass.
#[derive(Debug, Default)]
pub(super) struct Gathered(Option<(Tensor<2>, Tensor<2>)>);

impl Gathered {
    /// Adds a batch's vectors to the sums of their classes.
    pub(super) fn add(&mut self, vectors: Tensor<2>, targets: Tensor<2>) {
        let by_class = targets.transpose();
        let (sums, counts) = (affine(by_class.clone(), vectors, None), by_class.sum_dim(1));
        self.0 = Some(match self.0.take() {
            Some((sum, count)) => (sum + sums, count + counts),
            None => (sums, counts),
        });
    }

    /// Returns means and presence as the weights of [`part`], if there was a batch.
    pub(super) fn take(&mut self) -> Option<Weights> {
        let (sums, counts) = self.0.take()?;
        let present = counts.clone().clamp_max(1.0).flatten(0, 1);
        Some(Weights::new(vec![
            (sums / counts.clamp_min(1.0)).flatten(0, 1),
            present,
        ]))
    }

    /// Returns the share of each class in all samples, times its mean and alone, as the weights of [`part`]. Their
    /// means, weighted by the nodes' samples, are the mean over all samples of a class and its share in everybody's.
    pub(super) fn take_shares(&mut self) -> Option<Weights> {
        let (sums, counts) = self.0.take()?;
        let total = f64::from(weights::values(&counts.clone().sum())[0]).max(1.0);
        let share = |tensor: Tensor<2>| tensor.div_scalar(total).flatten(0, 1);
        Some(Weights::new(vec![share(sums), share(counts)]))
    }
}

/// The mean of each class over the nodes that have it.
#[derive(Debug, Clone)]
pub(super) struct Known {
    /// `[classes, width]`; zeros for a class that no node has.
    means: Tensor<2>,
    /// `[classes, 1]`, a 1 for each class that some node has.
    classes: Tensor<2>,
}

impl Known {
    /// Reads the weights of [`part`]; nothing if no class is known yet.
    pub(super) fn of(shared: &Weights) -> Option<Self> {
        let present = shared.tensor(1);
        if weights::values(&present).iter().all(|share| *share <= 0.0) {
            return None;
        }
        let (n_classes, n_values) = (present.dims()[0], shared.tensor(0).dims()[0]);
        let share = present.reshape([n_classes, 1]);
        let classes = share.clone().greater_elem(0.0).float();
        // A class that nobody has is 0 / 1.
        let divisor = share + (classes.clone().mul_scalar(-1.0)).add_scalar(1.0);
        let means = shared.tensor(0).reshape([n_classes, n_values / n_classes]) / divisor;
        Some(Self { means, classes })
    }

    /// Returns the mean square of the difference between vectors and the means of their classes, over all numbers of the
    /// batch; samples of a class that is not known count with 0.
    pub(super) fn distance(&self, vectors: Tensor<2>, targets: Tensor<2>) -> Tensor<1> {
        let is_known = affine(targets.clone(), self.classes.clone(), None);
        let means = affine(targets, self.means.clone(), None);
        super::distances::mean_square((vectors - means) * is_known)
    }

    /// Writes into a graph what [`Self::nearest`] returns.
    pub(super) fn emit_nearest(&self, graph: &mut Graph, vectors: Value) -> Value {
        let [classes, width] = self.means.dims();
        let doubled = self.means.clone().transpose().mul_scalar(2.0);
        let squares = (self.means.clone() * self.means.clone()).sum_dim(1);
        let unknown = self.classes.clone().mul_scalar(-1.0).add_scalar(1.0);
        let offsets = unknown.mul_scalar(IMPOSSIBLE) - squares;
        let doubled = graph.floats("means", weights::values(&doubled), &[width, classes]);
        let offsets = graph.floats("squares", weights::values(&offsets), &[classes]);
        graph.affine(vectors, doubled, Some(offsets))
    }

    /// Returns logits of which the largest is the class with the nearest mean: the negative squared distances, less what
    /// they have in common, `2 <v, m_c> - |m_c|^2`; classes that are not known are impossible.
    pub(super) fn nearest(&self, vectors: Tensor<2>) -> Tensor<2> {
        let products = affine(vectors, self.means.clone().transpose(), None).mul_scalar(2.0);
        let squares = (self.means.clone() * self.means.clone())
            .sum_dim(1)
            .transpose();
        let unknown = self
            .classes
            .clone()
            .mul_scalar(-1.0)
            .add_scalar(1.0)
            .transpose();
        products - squares + unknown.mul_scalar(IMPOSSIBLE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::testing::{assert_close, matrix};
    use crate::weights::values;

    /// Two nodes, three classes. Node 1 has (1, 2) and (3, 4) of class 0, so (2, 3), and (0, 6) of class 1; node 2 has
    /// (4, 5) of class 0. Nobody has class 2. Plain means: (3, 4), (0, 3), 0 and presence 1, 1/2, 0.
    fn known() -> Known {
        let node = |vectors, targets| {
            let mut gathered = Gathered::default();
            gathered.add(vectors, targets);
            gathered.take().unwrap()
        };
        let one = [1.0, 0.0, 0.0];
        let first = node(
            matrix([[1.0, 2.0], [3.0, 4.0], [0.0, 6.0]]),
            matrix([one, one, [0.0, 1.0, 0.0]]),
        );
        let second = node(matrix([[4.0, 5.0]]), matrix([one]));
        assert_close(
            &values(&first.tensor(0)),
            &[2.0, 3.0, 0.0, 6.0, 0.0, 0.0],
            1e-6,
        );
        assert_close(&values(&first.tensor(1)), &[1.0, 1.0, 0.0], 0.0);
        let mean = |at| (first.tensor(at) + second.tensor(at)).mul_scalar(0.5);
        Known::of(&Weights::new(vec![mean(0), mean(1)])).unwrap()
    }

    #[test]
    fn class_mean_counts_only_nodes_that_have_the_class() {
        let known = known();
        assert_close(&values(&known.means), &[3.0, 4.0, 0.0, 6.0, 0.0, 0.0], 1e-6);
        assert_close(&values(&known.classes), &[1.0, 1.0, 0.0], 0.0);
    }

    /// (4, 4) of class 0 is (1, 0) from its mean, (5, 5) of class 2 counts with nothing: (1 + 0 + 0 + 0) / 4. The
    /// gradient is 2 * 1 / 4 for the one number that differs.
    #[test]
    fn distance_leaves_out_classes_that_nobody_has() {
        let vectors = matrix([[4.0, 4.0], [5.0, 5.0]]).autodiff().require_grad();
        let loss = known().distance(vectors.clone(), matrix([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]));
        assert_close(&values(&loss), &[0.25], 1e-6);
        assert_close(
            &values(&vectors.grad(&loss.backward()).unwrap()),
            &[0.5, 0.0, 0.0, 0.0],
            1e-6,
        );
    }

    /// (0, 0) is 5 from (3, 4) and 6 from (0, 6): -25 and -36 less |v|^2 = 0; (0, 5): -10 and -1 less -25.
    #[test]
    fn the_largest_logit_is_the_nearest_known_class() {
        let logits = values(&known().nearest(matrix([[0.0, 0.0], [0.0, 5.0]])));
        assert_close(
            &[logits[0], logits[1], logits[3], logits[4]],
            &[-25.0, -36.0, 15.0, 24.0],
            1e-4,
        );
        assert!(logits[2] < -1e8 && logits[5] < -1e8);
    }

    /// Node 1 has (1, 2) and (3, 4) of class 0, node 2 has (5, 0) of it and three samples of class 1: by samples, class 0
    /// has the mean (3, 2). Shares: 1 and 1/4 of their samples, weighted by 2 and 4 samples.
    #[test]
    fn shares_weighted_by_samples_are_the_mean_over_all_samples() {
        let (zero, one) = ([1.0, 0.0], [0.0, 1.0]);
        let (mut first, mut second) = (Gathered::default(), Gathered::default());
        first.add(matrix([[1.0, 2.0], [3.0, 4.0]]), matrix([zero, zero]));
        second.add(
            matrix([[5.0, 0.0], [1.0, 1.0], [2.0, 2.0], [3.0, 9.0]]),
            matrix([zero, one, one, one]),
        );
        let (first, second) = (first.take_shares().unwrap(), second.take_shares().unwrap());
        assert_close(&values(&second.tensor(0)), &[1.25, 0.0, 1.5, 3.0], 1e-6);
        assert_close(&values(&second.tensor(1)), &[0.25, 0.75], 0.0);
        let mean = |at| {
            (first.tensor(at).mul_scalar(2.0) + second.tensor(at).mul_scalar(4.0)).div_scalar(6.0)
        };
        let known = Known::of(&Weights::new(vec![mean(0), mean(1)])).unwrap();
        assert_close(&values(&known.means), &[3.0, 2.0, 2.0, 4.0], 1e-6);
    }

    #[test]
    fn class_means_are_unknown_before_the_first_pass() {
        let zeros = |count| Tensor::zeros([count], &burn::tensor::Device::flex());
        assert!(Known::of(&Weights::new(vec![zeros(6), zeros(3)])).is_none());
    }
}
