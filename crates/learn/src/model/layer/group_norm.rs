//! Group normalisation (Wu and He, ECCV 2018), as PyTorch's `GroupNorm`.
//!
//! ```text
//! y = (x - mean) / sqrt(variance + 1e-5) * weight + bias        weight and bias per channel
//! mean and biased variance over a group of channels of one sample
//! ```
//!
//! Nothing of it depends on the batch, so it has no running statistics: what it learns is averaged like any weight. Hsieh
//! et al. (ICML 2020) therefore recommend it in place of batch normalisation where data are not alike.

use burn::tensor::Tensor;
use fednode_onnx::{Graph, Value};

use super::{Activation, Layer, NORM_EPSILON, Parameter, Run, emit_normed};

/// Group normalisation of maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupNorm {
    /// Its name in parameter files.
    pub name: &'static str,
    /// Channels, height and width of what it takes and makes.
    pub maps: [usize; 3],
    /// Into how many groups the channels are divided, evenly.
    pub groups: usize,
    /// What follows.
    pub activation: Activation,
}

impl Layer for GroupNorm {
    fn parameters(&self) -> Vec<Parameter> {
        Parameter::scale_and_shift(self.name, self.maps[0])
    }

    fn n_inputs(&self) -> usize {
        self.maps.iter().product()
    }

    fn maps(&self) -> Option<[usize; 3]> {
        Some(self.maps)
    }

    fn forward(&self, run: &mut Run<'_>, input: Tensor<2>) -> Tensor<2> {
        let ([channels, height, width], n_samples) = (self.maps, input.dims()[0]);
        debug_assert!(channels % self.groups == 0, "groups are of one size");
        let (scale, shift) = (run.next(), run.next());
        let grouped: Tensor<3> =
            input.reshape([n_samples, self.groups, self.n_inputs() / self.groups]);
        let centred = grouped.clone() - grouped.mean_dim(2);
        let variance = (centred.clone() * centred.clone()).mean_dim(2);
        let normed = centred / variance.add_scalar(NORM_EPSILON).sqrt();
        let maps: Tensor<3> = normed.reshape([n_samples, channels, height * width]);
        let by_channel = |values: Tensor<1>| values.reshape([1, channels, 1]);
        let features = maps * by_channel(scale) + by_channel(shift);
        self.activation
            .apply(features.reshape([n_samples, self.n_outputs()]))
    }

    fn emit(&self, run: &mut Run<'_>, graph: &mut Graph, input: Value) -> Value {
        let [channels, height, width] = self.maps;
        let scale = run.constant(graph, &format!("{}.weight", self.name), &[channels, 1]);
        let shift = run.constant(graph, &format!("{}.bias", self.name), &[channels, 1]);
        let grouped = graph.reshape(input, &[self.groups, self.n_inputs() / self.groups]);
        let normed = emit_normed(graph, grouped, 2);
        let maps = graph.reshape(normed, &[channels, height * width]);
        let scaled = graph.mul(maps, scale);
        let maps = graph.add(scaled, shift);
        let features = graph.flat(maps);
        self.activation.emit(graph, features)
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::model::{Net, leaf};
    use crate::weights::{Weights, values};

    /// Channels (1, 2) and (3, 6), scales 1 and 2, shifts 0 and 1/2. As one group: mean 3, variance 3.5, as in
    /// `layer_norm`. As two: deviations of 1/2 and 3/2 from the means, over the same roots but for epsilon.
    #[test]
    fn normalises_groups_of_channels() {
        let device = Device::flex();
        let tensor = |values: &[f32]| Tensor::<1>::from_floats(values, &device);
        let normed = |groups| {
            let net = Net::new(vec![leaf(GroupNorm {
                name: "norm",
                maps: [2, 1, 2],
                groups,
                activation: Activation::Identity,
            })]);
            let weights = Weights::new(vec![tensor(&[1.0, 2.0]), tensor(&[0.0, 0.5])]);
            let input = Tensor::<2>::from_floats([[1.0, 2.0, 3.0, 6.0]], &device);
            values(&net.forward(&weights, input))
        };
        let close = |got: Vec<f32>, expected: [f32; 4]| {
            let difference = got.iter().zip(expected).map(|(got, one)| (got - one).abs());
            assert!(difference.fold(0.0, f32::max) < 1e-4, "{got:?}");
        };
        close(normed(1), [-1.069_04, -0.534_52, 0.5, 3.707_13]);
        close(normed(2), [-1.0, 1.0, -1.5, 2.5]);
    }
}
