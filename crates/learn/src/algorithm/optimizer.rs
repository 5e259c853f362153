//! Optimisers with a memory, for what a node trains after the last round; those of the rounds are in
//! [`super::descent`].
//!
//! ```text
//! both       g = gradient + weight_decay * w
//! momentum   v = momentum * v + g                  w -= rate * v                    v starts as the first g
//! Adam       m = 0.9 m + 0.1 g    s = 0.999 s + 0.001 g^2
//!            w -= rate * m / (1 - 0.9^t) / (sqrt(s / (1 - 0.999^t)) + 1e-8)         t: the step, from 1
//! ```
//!
//! As in PyTorch, where weight decay is part of the gradient in both.

use burn::tensor::Tensor;

use crate::weights::Weights;

const FIRST_DECAY: f64 = 0.9;
const SECOND_DECAY: f64 = 0.999;
const EPSILON: f64 = 1e-8;

/// What the memory is of.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Method {
    /// Gradients, of which each step forgets all but this share.
    Momentum(f64),
    /// Adam, with its usual decays.
    Adam,
}

/// An optimiser of one part.
#[derive(Debug, Clone)]
pub(super) struct Optimizer {
    method: Method,
    rate: f64,
    weight_decay: f64,
    steps: i32,
    /// First and second moments of each parameter.
    moments: Vec<[Option<Tensor<1>>; 2]>,
}

impl Optimizer {
    /// Starts without a memory.
    pub(super) fn new(method: Method, rate: f64, weight_decay: f64) -> Self {
        Self {
            method,
            rate,
            weight_decay,
            steps: 0,
            moments: Vec::new(),
        }
    }

    /// Makes one step; parameters without a gradient stay as they are.
    pub(super) fn step(&mut self, weights: &mut Weights, slopes: Vec<Option<Tensor<1>>>) {
        self.steps += 1;
        self.moments.resize(slopes.len(), [None, None]);
        let (method, steps) = (self.method, self.steps);
        let both = slopes
            .into_iter()
            .zip(weights.tensors())
            .zip(&mut self.moments);
        let directions = both.map(|((slope, now), moments)| {
            let slope = slope? + now.clone().mul_scalar(self.weight_decay);
            Some(direction(method, steps, slope, moments))
        });
        let directions = directions.collect();
        weights.descend(directions, self.rate, 0.0);
    }
}

fn direction(
    method: Method,
    steps: i32,
    slope: Tensor<1>,
    [first, second]: &mut [Option<Tensor<1>>; 2],
) -> Tensor<1> {
    match method {
        Method::Momentum(momentum) => {
            let velocity = match first.take() {
                Some(velocity) => velocity.mul_scalar(momentum) + slope,
                None => slope,
            };
            *first = Some(velocity.clone());
            velocity
        }
        Method::Adam => {
            let square = slope.clone() * slope.clone();
            let mean = decayed(first, slope, FIRST_DECAY).div_scalar(1.0 - FIRST_DECAY.powi(steps));
            let variance =
                decayed(second, square, SECOND_DECAY).div_scalar(1.0 - SECOND_DECAY.powi(steps));
            mean / variance.sqrt().add_scalar(EPSILON)
        }
    }
}

/// Takes a value into a running mean that starts at zero.
fn decayed(mean: &mut Option<Tensor<1>>, value: Tensor<1>, decay: f64) -> Tensor<1> {
    let part = value.mul_scalar(1.0 - decay);
    let renewed = match mean.take() {
        Some(mean) => mean.mul_scalar(decay) + part,
        None => part,
    };
    *mean = Some(renewed.clone());
    renewed
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::algorithm::testing::assert_close;
    use crate::weights::values;

    fn run(method: Method, weight_decay: f64, slopes: &[f32]) -> Vec<f32> {
        let tensor = |value: f32| Tensor::from_floats([value], &Device::flex());
        let mut weights = Weights::new(vec![tensor(1.0), tensor(7.0)]);
        let mut optimizer = Optimizer::new(method, 0.1, weight_decay);
        let steps = slopes.iter().map(|slope| {
            optimizer.step(&mut weights, vec![Some(tensor(*slope)), None]);
            assert_eq!(values(&weights.tensor(1)), [7.0], "no gradient, no step");
            values(&weights.tensor(0))[0]
        });
        steps.collect()
    }

    /// Momentum 1/2, decay 1/5, slopes 1 and 2 from w = 1: v = 1.2, w = 0.88; v = 0.6 + 2.176 = 2.776, w = 0.6024.
    #[test]
    fn momentum_agrees_with_a_worked_example() {
        assert_close(
            &run(Method::Momentum(0.5), 0.2, &[1.0, 2.0]),
            &[0.88, 0.6024],
            1e-6,
        );
    }

    /// Slopes 1 and -2. Step 1: m / 0.1 = 1, s / 0.001 = 1: w = 0.9. Step 2: m = 0.09 - 0.2 = -0.11, over 0.19
    /// -0.578 947; s = 0.000 999 + 0.004 = 0.004 999, over 0.001 999 2.500 750, root 1.581 376: w = 0.9 + 0.036 610.
    #[test]
    fn adam_agrees_with_a_worked_example() {
        assert_close(
            &run(Method::Adam, 0.0, &[1.0, -2.0]),
            &[0.9, 0.936_610],
            1e-5,
        );
    }
}
