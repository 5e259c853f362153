//! Layer normalisation (Ba et al., arXiv 1607.06450).
//!
//! ```text
//! y = (x - mean) / sqrt(variance + 1e-5) * weight + bias        mean and biased variance over the features of a sample
//! ```

use burn::tensor::Tensor;
use fednode_onnx::{Graph, Value};

use super::{Activation, Layer, NORM_EPSILON, Parameter, Run, emit_normed};

/// Layer normalisation with a learned scale and shift: every sample's features get mean 0 and variance 1 first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerNorm {
    /// Its name in parameter files.
    pub name: &'static str,
    /// Features it takes and makes.
    pub width: usize,
    /// What follows.
    pub activation: Activation,
}

impl Layer for LayerNorm {
    fn parameters(&self) -> Vec<Parameter> {
        Parameter::scale_and_shift(self.name, self.width)
    }

    fn n_inputs(&self) -> usize {
        self.width
    }

    fn n_outputs(&self) -> usize {
        self.width
    }

    fn forward(&self, run: &mut Run<'_>, input: Tensor<2>) -> Tensor<2> {
        let scale = run.next().reshape([1, self.width]);
        let shift = run.next().reshape([1, self.width]);
        let centred = input.clone() - input.mean_dim(1);
        let variance = (centred.clone() * centred.clone()).mean_dim(1);
        let normed = centred / variance.add_scalar(NORM_EPSILON).sqrt();
        self.activation.apply(normed * scale + shift)
    }

    fn emit(&self, run: &mut Run<'_>, graph: &mut Graph, input: Value) -> Value {
        let scale = run.constant(graph, &format!("{}.weight", self.name), &[self.width]);
        let shift = run.constant(graph, &format!("{}.bias", self.name), &[self.width]);
        let normed = emit_normed(graph, input, 1);
        let scaled = graph.mul(normed, scale);
        let features = graph.add(scaled, shift);
        self.activation.emit(graph, features)
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::model::{Net, leaf};
    use crate::weights::Weights;

    #[test]
    fn normalises_every_sample() {
        let norm = leaf(LayerNorm {
            name: "norm",
            width: 4,
            activation: Activation::Relu,
        });
        let (net, device) = (Net::new(vec![norm]), Device::flex());
        let mut params = crate::weights::initial(&net, 1, 0);
        params
            .iter_mut()
            .last()
            .unwrap()
            .1
            .values_mut()
            .copy_from_slice(&[2.0; 4]);
        params
            .iter_mut()
            .next()
            .unwrap()
            .1
            .values_mut()
            .copy_from_slice(&[0.0, 0.0, 0.5, 0.0]);
        let weights = Weights::load(&net, &params, &device).unwrap();
        let input = Tensor::<2>::from_floats([[1.0, 2.0, 3.0, 6.0], [5.0, 5.0, 5.0, 5.0]], &device);
        let got = crate::weights::values(&net.forward(&weights, input));
        // Mean 3, variance 14/4: deviations over sqrt(3.50001) are -1.069043, -0.534521, 0, 1.603565; the scale (names
        // are ordered, the bias is first) is 2, the shift 0.5 for the third feature.
        let expected = [0.0, 0.0, 0.5, 3.207_13, 0.0, 0.0, 0.5, 0.0];
        assert!(
            got.iter()
                .zip(expected)
                .all(|(got, expected)| (got - expected).abs() < 1e-5),
            "{got:?}"
        );
    }
}
