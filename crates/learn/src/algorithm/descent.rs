//! The steps of the rounds: plain stochastic gradient descent, or what `training` adds to it.
//!
//! ```text
//! g = gradient, scaled so that the gradients of all parts together are no longer than clip_norm
//! g = g + weight_decay * w
//! v = momentum * v + g        w -= learning_rate * v        v starts as the first g, anew in every local update
//! ```
//!
//! As in PyTorch (`clip_grad_norm_`, then `SGD`).

use burn::tensor::Tensor;
use fednode_core::spec::TrainingSpec;

use super::part::{Part, Slopes};
use crate::weights::{self, Weights};

/// How the steps of one part are made, and what they remember.
#[derive(Debug, Clone, Default)]
pub(crate) struct Descent {
    momentum: f64,
    weight_decay: f64,
    clip_norm: f64,
    velocity: Vec<Option<Tensor<1>>>,
}

/// Begins a stretch of training: nothing is remembered from before.
pub(crate) fn begin(parts: &mut [Part], training: &TrainingSpec) {
    let TrainingSpec {
        momentum,
        weight_decay,
        clip_norm,
        ..
    } = *training;
    for part in parts {
        part.descent = Descent {
            momentum,
            weight_decay,
            clip_norm,
            velocity: Vec::new(),
        };
    }
}

/// Forgets what was remembered, which is as large as the model.
pub(crate) fn end(parts: &mut [Part]) {
    parts
        .iter_mut()
        .for_each(|part| part.descent.velocity.clear());
}

/// Makes one step in all parts.
pub(super) fn step(parts: &mut [Part], mut slopes: Slopes, learning_rate: f64) {
    let longest = parts.first().map_or(0.0, |part| part.descent.clip_norm);
    if longest > 0.0 {
        clip(&mut slopes, longest);
    }
    for (part, gradients) in parts.iter_mut().zip(slopes) {
        part.descent.step(
            &mut part.weights,
            gradients,
            learning_rate,
            part.weight_decay,
        );
    }
}

impl Descent {
    fn step(
        &mut self,
        weights: &mut Weights,
        gradients: Vec<Option<Tensor<1>>>,
        learning_rate: f64,
        own_decay: f64,
    ) {
        let decay = self.weight_decay + own_decay;
        if self.momentum == 0.0 {
            return weights.descend(gradients, learning_rate, decay);
        }
        self.velocity.resize(gradients.len(), None);
        let both = gradients
            .into_iter()
            .zip(weights.tensors())
            .zip(&mut self.velocity);
        let velocities = both.map(|((gradient, now), velocity)| {
            let gradient = gradient? + now.clone().mul_scalar(decay);
            *velocity = Some(match velocity.take() {
                Some(velocity) => velocity.mul_scalar(self.momentum) + gradient,
                None => gradient,
            });
            velocity.clone()
        });
        let velocities = velocities.collect();
        weights.descend(velocities, learning_rate, 0.0);
    }
}

/// Shortens gradients that are together longer than this.
fn clip(slopes: &mut Slopes, longest: f64) {
    let square = |tensor: &Tensor<1>| {
        weights::values(tensor)
            .iter()
            .map(|value| f64::from(*value).powi(2))
            .sum::<f64>()
    };
    let length = slopes
        .iter()
        .flatten()
        .flatten()
        .map(square)
        .sum::<f64>()
        .sqrt();
    if length > longest {
        for slope in slopes.iter_mut().flatten() {
            *slope = slope.take().map(|slope| slope.mul_scalar(longest / length));
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::algorithm::Role;
    use crate::algorithm::testing::assert_close;
    use crate::model::{Initial, Net};

    fn tensor(values: &[f32]) -> Tensor<1> {
        Tensor::from_floats(values, &Device::flex())
    }

    /// Two parts of one number each, both 1, after each of some steps with the same slopes.
    fn steps(training: &TrainingSpec, slopes: [f32; 2], count: usize) -> Vec<f32> {
        let net = Net::arrays(&[("one", &[1], Initial::Ones)]);
        let mut parts =
            [0, 1].map(|slot| Part::new(Role::Private, net.clone(), 1, slot, &Device::flex()));
        begin(&mut parts, training);
        let mut numbers = Vec::new();
        for _ in 0..count {
            step(
                &mut parts,
                slopes.map(|slope| vec![Some(tensor(&[slope]))]).into(),
                0.1,
            );
            numbers.extend(
                parts
                    .iter()
                    .flat_map(|part| weights::values(&part.weights.tensor(0))),
            );
        }
        numbers
    }

    #[test]
    fn plain_steps_remember_nothing() {
        assert_close(
            &steps(&TrainingSpec::default(), [1.0, 2.0], 2),
            &[0.9, 0.8, 0.8, 0.6],
            1e-6,
        );
    }

    /// v = 1, then 0.5 * 1 + 1.
    #[test]
    fn momentum_keeps_a_share_of_the_last_step() {
        let training = TrainingSpec {
            momentum: 0.5,
            ..TrainingSpec::default()
        };
        assert_close(
            &steps(&training, [1.0, 2.0], 2),
            &[0.9, 0.8, 0.75, 0.5],
            1e-6,
        );
    }

    /// g = 1 + 0.1 * 1, then v = 0.5 * 1.1 + 1 + 0.1 * 0.89.
    #[test]
    fn decay_is_part_of_the_gradient() {
        let training = TrainingSpec {
            momentum: 0.5,
            weight_decay: 0.1,
            ..TrainingSpec::default()
        };
        assert_close(
            &steps(&training, [1.0, 1.0], 2)[..3],
            &[0.89, 0.89, 0.7261],
            1e-6,
        );
        let plain = TrainingSpec {
            weight_decay: 0.1,
            ..TrainingSpec::default()
        };
        assert_close(
            &steps(&plain, [1.0, 1.0], 2)[..3],
            &[0.89, 0.89, 0.7811],
            1e-6,
        );
    }

    /// The gradients 3 and 4 are 5 long.
    #[test]
    fn gradients_of_all_parts_are_clipped_together() {
        let training = |clip_norm| TrainingSpec {
            clip_norm,
            ..TrainingSpec::default()
        };
        assert_close(&steps(&training(1.0), [3.0, 4.0], 1), &[0.94, 0.92], 1e-6);
        assert_close(&steps(&training(6.0), [3.0, 4.0], 1), &[0.7, 0.6], 1e-6);
    }

    #[test]
    fn a_new_stretch_begins_without_a_memory() {
        let training = TrainingSpec {
            momentum: 0.5,
            ..TrainingSpec::default()
        };
        let net = Net::arrays(&[("one", &[1], Initial::Ones)]);
        let mut parts = [Part::new(Role::Private, net, 1, 0, &Device::flex())];
        for _ in 0..2 {
            begin(&mut parts, &training);
            step(&mut parts, vec![vec![Some(tensor(&[1.0]))]], 0.1);
            end(&mut parts);
        }
        assert_close(&weights::values(&parts[0].weights.tensor(0)), &[0.8], 1e-6);
    }
}
