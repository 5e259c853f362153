//! Operators that multiply: products, convolutions, poolings, normalisation.

use crate::graph::{Attribute, Graph, Value};
use crate::shape::{Element, Shape, all_known, of_samples};

/// Which places of a map are pooled together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Its side.
    pub side: usize,
    /// Places between two windows.
    pub stride: usize,
    /// How far it reaches over the edge.
    pub padding: usize,
}

impl Window {
    /// Returns how many windows there are along a side of so many places.
    pub const fn places(self, side: usize) -> usize {
        (side + 2 * self.padding - self.side) / self.stride + 1
    }

    /// Tells whether there is a window along a side of so many places, and none outside of it.
    pub const fn fits(self, side: usize) -> bool {
        self.stride > 0 && 2 * self.padding <= self.side && self.side <= side + 2 * self.padding
    }
}

impl Graph {
    /// Multiplies rows, `[N, n]`, by a matrix, `[n, m]`, and adds a row, `[m]`.
    pub fn affine(&mut self, rows: Value, matrix: Value, bias: Option<Value>) -> Value {
        let inputs: Vec<Value> = [rows, matrix].into_iter().chain(bias).collect();
        self.check_floats("Gemm", &inputs);
        let shape = |value: &Value| all_known(&self.known(*value).shape);
        let outputs = match (self.sizes(rows).as_deref(), shape(&matrix).as_deref()) {
            (Some([width]), Some([rows, columns])) if width == rows => Some(*columns),
            _ => None,
        };
        let is_bias = |bias: &Value| shape(bias).as_deref() == outputs.as_slice().into();
        if outputs.is_none() || !bias.as_ref().is_none_or(is_bias) {
            self.refuse("Gemm", &inputs);
        }
        let made = of_samples(&[outputs.unwrap_or_default()]);
        self.node("Gemm", inputs, Vec::new(), (Element::Float, made))
    }

    /// Runs kernels, `[filters, channels, side, side]`, over maps, `[N, channels, height, width]`, at every `stride`th
    /// place, with so many zeros around at top and bottom, left and right; adds a number to each map.
    pub fn conv(
        &mut self,
        maps: Value,
        (kernels, bias): (Value, Option<Value>),
        stride: usize,
        [vertical, horizontal]: [usize; 2],
    ) -> Value {
        let inputs: Vec<Value> = [maps, kernels].into_iter().chain(bias).collect();
        self.check_floats("Conv", &inputs);
        let shape = all_known(&self.known(kernels).shape);
        let made = match (self.sizes(maps).as_deref(), shape.as_deref()) {
            (Some([channels, height, width]), Some([filters, depth, tall, wide]))
                if channels == depth =>
            {
                let side = |side: usize, padding: usize, kernel: usize| {
                    Some((side + 2 * padding).checked_sub(kernel)? / stride + 1)
                };
                let sides = [
                    side(*height, vertical, *tall),
                    side(*width, horizontal, *wide),
                ];
                sides[0]
                    .zip(sides[1])
                    .map(|(height, width)| [*filters, height, width])
            }
            _ => None,
        };
        if made.is_none() {
            self.refuse("Conv", &inputs);
        }
        let padding = [vertical, horizontal, vertical, horizontal];
        let kernel = shape.unwrap_or_default();
        let attributes = vec![
            ("kernel_shape", ints(kernel.get(2..).unwrap_or_default())),
            ("dilations", ints(&[1, 1])),
            ("pads", ints(&padding)),
            ("strides", ints(&[stride; 2])),
        ];
        let made = of_samples(&made.unwrap_or_default());
        self.node("Conv", inputs, attributes, (Element::Float, made))
    }

    /// Takes the largest of every square of places; what fills no square at the right and at the bottom is left out.
    pub fn max_pool(&mut self, maps: Value, side: usize) -> Value {
        self.pool("MaxPool", maps, side)
    }

    /// Takes the mean of every square of places likewise.
    pub fn average_pool(&mut self, maps: Value, side: usize) -> Value {
        self.pool("AveragePool", maps, side)
    }

    /// Takes the largest of every window of places; windows may overlap, and reach over the edge.
    pub fn max_pool_by(&mut self, maps: Value, window: Window) -> Value {
        self.pool_by("MaxPool", maps, window)
    }

    fn pool(&mut self, operator: &'static str, maps: Value, side: usize) -> Value {
        let window = Window {
            side,
            stride: side,
            padding: 0,
        };
        self.pool_by(operator, maps, window)
    }

    fn pool_by(&mut self, operator: &'static str, maps: Value, window: Window) -> Value {
        let Window {
            side,
            stride,
            padding,
        } = window;
        if (side, stride) == (1, 1) {
            return maps;
        }
        self.check_floats(operator, &[maps]);
        let shape = match self.sizes(maps).as_deref() {
            Some([maps, height, width]) if window.fits(*height.min(width)) => {
                of_samples(&[*maps, window.places(*height), window.places(*width)])
            }
            _ => {
                self.refuse(operator, &[maps]);
                Shape::new()
            }
        };
        let mut attributes = vec![
            ("kernel_shape", ints(&[side; 2])),
            ("strides", ints(&[stride; 2])),
        ];
        if padding > 0 {
            attributes.push(("pads", ints(&[padding; 4])));
        }
        self.node(operator, vec![maps], attributes, (Element::Float, shape))
    }

    /// Normalises every channel of maps, `[N, channels, …]`: `(x - mean) / sqrt(variance + epsilon) * scale + shift`.
    /// All four are `[channels]`, in the order scale, shift, mean, variance.
    pub fn batch_norm(&mut self, maps: Value, norms: [Value; 4], epsilon: f64) -> Value {
        let inputs = [vec![maps], norms.to_vec()].concat();
        self.check_floats("BatchNormalization", &inputs);
        let sizes = self.sizes(maps);
        let channels = sizes.as_ref().and_then(|sizes| sizes.first().copied());
        let is_norm = |norm: &Value| {
            let shape = all_known(&self.known(*norm).shape);
            shape.as_deref() == channels.as_slice().into()
        };
        if channels.is_none() || !norms.iter().all(is_norm) {
            self.refuse("BatchNormalization", &inputs);
        }
        let shape = self.known(maps).shape.clone();
        let epsilon = vec![("epsilon", Attribute::Float(epsilon as f32))];
        self.node(
            "BatchNormalization",
            inputs,
            epsilon,
            (Element::Float, shape),
        )
    }
}

fn ints(values: &[usize]) -> Attribute {
    Attribute::Ints(values.iter().map(|value| *value as i64).collect())
}
