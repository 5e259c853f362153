//! Dropout (Srivastava et al., JMLR 2014): in training each feature is zero with a probability, the others grow so that
//! the mean stays. Draws are seeded, see [`Weights::recorded_with`](crate::weights::Weights::recorded_with).

use burn::tensor::{Tensor, TensorData};
use fednode_onnx::{Graph, Value};

use super::{Layer, Run};

/// Drops features in training.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dropout {
    /// Features it takes and makes.
    pub width: usize,
    /// The probability of a feature to be dropped.
    pub share: f64,
}

impl Layer for Dropout {
    fn n_inputs(&self) -> usize {
        self.width
    }

    fn n_outputs(&self) -> usize {
        self.width
    }

    fn forward(&self, run: &mut Run<'_>, input: Tensor<2>) -> Tensor<2> {
        let shape = input.dims();
        let Some(factors) = run.dropout(self.share, shape[0] * shape[1]) else {
            return input;
        };
        let device = input.device().without_autodiff();
        input * Tensor::<2>::from_data(TensorData::new(factors, shape), &device)
    }

    fn emit(&self, _run: &mut Run<'_>, _graph: &mut Graph, input: Value) -> Value {
        input
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use burn::tensor::Device;

    use super::*;
    use crate::model::{Net, leaf};
    use crate::random::{Purpose, stream};
    use crate::weights::{Weights, values};

    #[test]
    fn drops_in_training_only_and_keeps_the_mean() {
        let net = Net::new(vec![leaf(Dropout {
            width: 1000,
            share: 0.25,
        })]);
        let run = |weights: &Weights| {
            values(&net.forward(weights, Tensor::ones([4, 1000], &Device::flex())))
        };
        let plain = Weights::new(Vec::new());
        assert_eq!(run(&plain), [1.0; 4000]);
        let draws = || Arc::new(Mutex::new(stream(Purpose::Dropout, [1, 2, 3])));
        let dropped = run(&plain.recorded_with(Some(draws())));
        assert_eq!(dropped, run(&plain.recorded_with(Some(draws()))), "seeded");
        let zeros = dropped.iter().filter(|value| **value == 0.0).count();
        assert!((900..1100).contains(&zeros), "{zeros} of 4000");
        assert!((dropped.iter().sum::<f32>() / 4000.0 - 1.0).abs() < 0.03);
    }
}
