//! Batch normalisation (Ioffe and Szegedy, ICML 2015), as PyTorch's `BatchNorm2d`.
//!
//! ```text
//! y = (x - mean) / sqrt(variance + 1e-5) * weight + bias        all per channel
//! training    mean and biased variance of the batch, over samples and places
//!             running = 0.9 running + 0.1 batch                 the variance of the batch unbiased here
//! inference   the running mean and variance
//! ```
//!
//! Recorded weights train, plain ones infer: a layer that is frozen uses its running statistics and leaves them alone.
//! The new statistics take effect with the step. They are parameters of their part, so an exchange averages them with the
//! rest of the part. A channel of one number in the whole batch has no variance: it is normalised by the running
//! statistics, also in training, where PyTorch fails. PyTorch's counter of batches is left out, nothing reads it.

use burn::tensor::Tensor;
use fednode_onnx::{Graph, Value};

use super::{Activation, Initial, Layer, NORM_EPSILON, Parameter, ParameterKind, Run};
use crate::weights::{self, Mode};

/// Share of a batch in the running statistics.
const BATCH_SHARE: f64 = 0.1;

/// Batch normalisation of maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchNorm {
    /// Its name in parameter files.
    pub name: &'static str,
    /// Channels, height and width of what it takes and makes.
    pub maps: [usize; 3],
    /// What follows.
    pub activation: Activation,
}

impl BatchNorm {
    /// Turns one number per channel into what fits maps of `[batch, channels, places]`.
    fn by_channel(&self, values: Tensor<1>) -> Tensor<3> {
        values.reshape([1, self.maps[0], 1])
    }
}

impl Layer for BatchNorm {
    fn parameters(&self) -> Vec<Parameter> {
        let statistic = |name: &str, initial| Parameter {
            kind: ParameterKind::Statistic,
            ..Parameter::new(format!("{}.{name}", self.name), &[self.maps[0]], initial)
        };
        let mut parameters = Parameter::scale_and_shift(self.name, self.maps[0]);
        parameters.push(statistic("running_mean", Initial::Zeros));
        parameters.push(statistic("running_var", Initial::Ones));
        parameters
    }

    fn n_inputs(&self) -> usize {
        self.maps.iter().product()
    }

    fn maps(&self) -> Option<[usize; 3]> {
        Some(self.maps)
    }

    fn forward(&self, run: &mut Run<'_>, input: Tensor<2>) -> Tensor<2> {
        let ([channels, height, width], n_samples) = (self.maps, input.dims()[0]);
        let (scale, shift) = (run.next(), run.next());
        let (mean_at, running_mean) = run.next_statistic();
        let (variance_at, running_variance) = run.next_statistic();
        let maps = input.reshape([n_samples, channels, height * width]);
        let count = n_samples * height * width;
        let (mean, variance) = if run.mode() == Mode::Training && count > 1 {
            let mean = maps.clone().mean_dim(2).mean_dim(0);
            let centred = maps.clone() - mean.clone();
            let variance = (centred.clone() * centred).mean_dim(2).mean_dim(0);
            let renew = |at: usize, running: Tensor<1>, batch: &Tensor<3>, factor: f64| {
                let batch = batch.clone().without_autodiff().reshape([channels]);
                let share = batch.mul_scalar(BATCH_SHARE * factor);
                run.renew(at, running.mul_scalar(1.0 - BATCH_SHARE) + share);
            };
            renew(mean_at, running_mean, &mean, 1.0);
            let unbiased = count as f64 / (count - 1) as f64;
            renew(variance_at, running_variance, &variance, unbiased);
            (mean, variance)
        } else {
            // A mean of variances is never negative; what was trained ahead and added to a mean may be.
            let variance = running_variance.clamp_min(0.0);
            (self.by_channel(running_mean), self.by_channel(variance))
        };
        let factor = self.by_channel(scale) / variance.add_scalar(NORM_EPSILON).sqrt();
        let normed = (maps - mean) * factor + self.by_channel(shift);
        let features = normed.reshape([n_samples, self.n_outputs()]);
        self.activation.apply(features)
    }

    fn emit(&self, run: &mut Run<'_>, graph: &mut Graph, input: Value) -> Value {
        let channels = [self.maps[0]];
        let [scale, shift, mean] = ["weight", "bias", "running_mean"]
            .map(|name| run.constant(graph, &format!("{}.{name}", self.name), &channels));
        let variance = weights::values(&run.next().clamp_min(0.0));
        let variance = graph.floats(&format!("{}.running_var", self.name), variance, &channels);
        let maps = graph.reshape(input, &self.maps);
        let normed = graph.batch_norm(maps, [scale, shift, mean, variance], NORM_EPSILON);
        let features = graph.flat(normed);
        self.activation.emit(graph, features)
    }
}
