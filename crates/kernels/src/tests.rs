//! Every kernel against plain loops in double precision.
//!
//! Some shapes fill vectors and tiles and some do not. Every instruction set of this processor is tried.

use std::sync::atomic::Ordering;

use crate::Wants;
use crate::conv::Block;
use crate::linear::{Activation, Layer};
use crate::tile::WIDEST;

#[test]
fn kernels_agree_with_plain_loops() {
    for widest in [usize::MAX, 8, 4] {
        // No other test looks at which instructions are used.
        WIDEST.store(widest, Ordering::SeqCst);
        blocks_agree_with_plain_loops();
        layers_agree_with_plain_loops();
    }
}

/// Draws independent numbers in -1..1.
fn random(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 8) as f32 / 8_388_608.0 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

#[track_caller]
fn assert_close(what: &str, got: &[f32], expected: &[f64]) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let scale = expected
        .iter()
        .fold(0f64, |largest, value| largest.max(value.abs()))
        .max(1e-3);
    for (at, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert!(
            (f64::from(*got) - expected).abs() < 1e-5 * scale,
            "{what}[{at}]: {got}, expected {expected}"
        );
    }
}

/// A block in plain loops, with its numbers.
struct PlainBlock<'a> {
    shape: &'a Block,
    x: &'a [f32],
    w: &'a [f32],
    b: &'a [f32],
    /// Channel, line and column of every weight of a filter.
    offsets: Vec<[usize; 3]>,
}

impl<'a> PlainBlock<'a> {
    fn new(shape: &'a Block, x: &'a [f32], w: &'a [f32], b: &'a [f32]) -> Self {
        let k = shape.kernel;
        let offset = |at| [at / (k * k), at / k % k, at % k];
        Self {
            shape,
            x,
            w,
            b,
            offsets: (0..shape.input[0] * k * k).map(offset).collect(),
        }
    }

    fn n_inputs(&self) -> usize {
        self.shape.input.iter().product()
    }

    /// Returns where in the input a number under the kernel is, if that is not padding.
    fn under(&self, sample: usize, c: usize, y: usize, x: usize) -> Option<usize> {
        let ([_, height, width], [top, left]) = (self.shape.input, self.shape.padding);
        let inside = y >= top && x >= left && y - top < height && x - left < width;
        inside.then(|| {
            sample * self.n_inputs()
                + (c * height + y.wrapping_sub(top)) * width
                + x.wrapping_sub(left)
        })
    }

    /// Returns the convolution's value for filter `f` at a position.
    fn sum(&self, sample: usize, f: usize, [y, x]: [usize; 2]) -> f64 {
        let product = |(at, [c, ky, kx]): (usize, &[usize; 3])| {
            let input = self.under(sample, *c, y + ky, x + kx);
            let value = input.map_or(0.0, |at| f64::from(self.x[at]));
            value * f64::from(self.w[f * self.offsets.len() + at])
        };
        f64::from(self.b[f]) + self.offsets.iter().enumerate().map(product).sum::<f64>()
    }

    /// Returns the largest value in a window, the first of equal ones, with its position.
    fn winner(&self, sample: usize, f: usize, [py, px]: [usize; 2]) -> (f64, [usize; 2]) {
        let pool = self.shape.pool;
        let window = (0..pool * pool).map(|q| [py * pool + q / pool, px * pool + q % pool]);
        let values: Vec<_> = window.map(|at| (self.sum(sample, f, at), at)).collect();
        let larger =
            |best: (f64, _), value: &(f64, _)| if value.0 > best.0 { *value } else { best };
        values.iter().fold(values[0], larger)
    }

    /// Returns the output, and the gradients of input, weight and bias.
    fn run(&self, gradient: &[f32]) -> [Vec<f64>; 4] {
        let Block {
            kernel,
            pool,
            padding: [top, left],
            input: [_, height, width],
            ..
        } = *self.shape;
        let (rows, columns) = (height + 2 * top + 1 - kernel, width + 2 * left + 1 - kernel);
        let zeros = |values: &[f32]| vec![0.0; values.len()];
        let (mut dx, mut dw, mut db) = (zeros(self.x), zeros(self.w), zeros(self.b));
        let mut output = Vec::new();
        let windows: Vec<[usize; 2]> = (0..rows / pool)
            .flat_map(|py| (0..columns / pool).map(move |px| [py, px]))
            .collect();
        for sample in 0..self.x.len() / self.n_inputs() {
            for (f, window) in
                (0..self.shape.filters).flat_map(|f| windows.iter().map(move |window| (f, *window)))
            {
                let (best, [y, x]) = self.winner(sample, f, window);
                let g = f64::from(gradient[output.len()]);
                output.push(best.max(0.0));
                if best <= 0.0 {
                    continue;
                }
                db[f] += g;
                for (at, [c, ky, kx]) in self.offsets.iter().enumerate() {
                    if let Some(input) = self.under(sample, *c, y + ky, x + kx) {
                        let weight = f * self.offsets.len() + at;
                        dw[weight] += g * f64::from(self.x[input]);
                        dx[input] += g * f64::from(self.w[weight]);
                    }
                }
            }
        }
        [output, dx, dw, db]
    }
}

fn blocks_agree_with_plain_loops() {
    let shape = |input, filters, kernel, padding, pool| Block {
        input,
        filters,
        kernel,
        padding,
        pool,
    };
    let shapes = [
        (shape([1, 28, 28], 32, 5, [0, 0], 2), 3),
        (shape([32, 12, 12], 64, 5, [0, 0], 2), 3),
        (shape([1, 28, 28], 6, 5, [2, 2], 2), 2),
        (shape([6, 14, 14], 16, 5, [0, 0], 2), 37),
        (shape([3, 9, 11], 20, 3, [1, 2], 3), 2),
        (shape([2, 5, 6], 3, 3, [0, 1], 1), 70),
        (shape([17, 7, 7], 33, 2, [1, 0], 2), 4),
    ];
    for (shape, n_samples) in shapes {
        assert!(shape.is_supported());
        let n_inputs: usize = shape.input.iter().product();
        let x = random(n_samples * n_inputs, 1);
        let w = random(
            shape.filters * shape.input[0] * shape.kernel * shape.kernel,
            2,
        );
        let b = random(shape.filters, 3);
        let gradient = random(n_samples * shape.n_outputs(), 4);
        let [output, dx, dw, db] = PlainBlock::new(&shape, &x, &w, &b).run(&gradient);
        let (got, trace) = shape.forward(&x, &w, &b);
        assert_close("output", &got, &output);
        let gradients = shape.backward(&trace, &w, &gradient, Wants::InputGradient);
        assert_close("input gradient", &gradients.input.unwrap(), &dx);
        assert_close("weight gradient", &gradients.weight, &dw);
        assert_close("bias gradient", &gradients.bias, &db);
        let parameters = shape.backward(&trace, &w, &gradient, Wants::ParametersOnly);
        assert!(parameters.input.is_none());
        assert_eq!(
            (parameters.weight, parameters.bias),
            (gradients.weight, gradients.bias)
        );
    }
}

/// The layer in plain loops: output, and gradients of input, weight and bias.
fn layer(shape: &Layer, x: &[f32], w: &[f32], b: &[f32], gradient: &[f32]) -> [Vec<f64>; 4] {
    let Layer {
        inputs,
        outputs,
        activation,
    } = *shape;
    let [mut output, mut dx, mut dw, mut db] = [
        Vec::new(),
        vec![0.0; x.len()],
        vec![0.0; w.len()],
        vec![0.0; b.len()],
    ];
    for sample in 0..x.len() / inputs {
        for o in 0..outputs {
            let product =
                |i: usize| f64::from(x[sample * inputs + i]) * f64::from(w[i * outputs + o]);
            let sum = f64::from(b[o]) + (0..inputs).map(product).sum::<f64>();
            let cut = activation == Activation::Relu && sum <= 0.0;
            output.push(if cut { 0.0 } else { sum });
            let g = if cut {
                0.0
            } else {
                f64::from(gradient[sample * outputs + o])
            };
            db[o] += g;
            for i in 0..inputs {
                dw[i * outputs + o] += g * f64::from(x[sample * inputs + i]);
                dx[sample * inputs + i] += g * f64::from(w[i * outputs + o]);
            }
        }
    }
    [output, dx, dw, db]
}

fn layers_agree_with_plain_loops() {
    for (inputs, outputs, n_samples) in [
        (1024, 512, 10),
        (512, 10, 10),
        (400, 120, 64),
        (120, 84, 7),
        (33, 3, 1),
        (1, 1, 1),
        (70, 48, 100),
        (13, 17, 40),
    ] {
        for activation in [Activation::Relu, Activation::Identity] {
            let shape = Layer {
                inputs,
                outputs,
                activation,
            };
            let x = random(n_samples * inputs, 1);
            let (w, b) = (random(inputs * outputs, 2), random(outputs, 3));
            let gradient = random(n_samples * outputs, 4);
            let [output, dx, dw, db] = layer(&shape, &x, &w, &b, &gradient);
            let got = shape.forward(&x, &w, Some(&b));
            assert_close("output", &got, &output);
            let gradients = shape.backward(&x, &got, &w, &gradient, Wants::InputGradient);
            assert_close("input gradient", &gradients.input.unwrap(), &dx);
            assert_close("weight gradient", &gradients.weight, &dw);
            assert_close("bias gradient", &gradients.bias, &db);
            assert!(
                shape
                    .backward(&x, &got, &w, &gradient, Wants::ParametersOnly)
                    .input
                    .is_none()
            );
        }
    }
}

#[test]
fn numbers_do_not_depend_on_the_number_of_threads() {
    // Columns are shared out where there are 128 or more, else rows from 33 on; 205 columns fill neither vectors nor tiles.
    let shapes = [
        (1024, 512, 10),
        (205, 205, 32),
        (160, 10, 10),
        (160, 10, 100),
        (10, 300, 7),
        (300, 130, 100),
    ];
    for (inputs, outputs, n_samples) in shapes {
        let shape = Layer {
            inputs,
            outputs,
            activation: Activation::Relu,
        };
        let (x, w) = (random(n_samples * inputs, 1), random(inputs * outputs, 2));
        let (b, gradient) = (random(outputs, 3), random(n_samples * outputs, 4));
        let run = |threads| {
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .build()
                .unwrap();
            pool.install(|| {
                let output = shape.forward(&x, &w, Some(&b));
                let gradients = shape.backward(&x, &output, &w, &gradient, Wants::InputGradient);
                (output, gradients.input, gradients.weight, gradients.bias)
            })
        };
        let alone = run(1);
        assert!(
            [2, 3, 5].into_iter().all(|threads| run(threads) == alone),
            "{inputs} to {outputs}"
        );
    }
}

#[test]
fn nan_is_never_hidden() {
    let shape = Block {
        input: [1, 4, 4],
        filters: 1,
        kernel: 1,
        padding: [0, 0],
        pool: 2,
    };
    let mut x = vec![1.0; 16];
    x[5] = f32::NAN;
    let (output, _) = shape.forward(&x, &[1.0], &[0.0]);
    assert!(output[0].is_nan() && output[1..] == [1.0; 3]);
    let layer = Layer {
        inputs: 1,
        outputs: 1,
        activation: Activation::Relu,
    };
    assert!(layer.forward(&[f32::NAN], &[1.0], None)[0].is_nan());
}
