//! The operators of a graph, each with a check of its operands: <https://onnx.ai/onnx/operators/>.
//!
//! | file | operators |
//! |---|---|
//! | here | element by element |
//! | `layout` | that move numbers: shapes, columns, rows of tables |
//! | `layers` | that multiply: products, convolutions, poolings, normalisation |
//! | `reductions` | that go over one dimension |

mod layers;
mod layout;
mod reductions;

use crate::graph::{Attribute, Graph, Value};
use crate::shape::{Element, Shape, broadcast};

pub use layers::Window;
pub use reductions::Reduction;

/// Kind and shape of what cannot be made; the graph is spoiled anyway.
fn nothing(like: &Shape) -> (Element, Shape) {
    (Element::Float, like.clone())
}

impl Graph {
    /// Adds two values.
    pub fn add(&mut self, a: Value, b: Value) -> Value {
        self.arithmetic("Add", a, b)
    }

    /// Subtracts the second value from the first.
    pub fn sub(&mut self, a: Value, b: Value) -> Value {
        self.arithmetic("Sub", a, b)
    }

    /// Multiplies two values.
    pub fn mul(&mut self, a: Value, b: Value) -> Value {
        self.arithmetic("Mul", a, b)
    }

    /// Divides the first value by the second.
    pub fn div(&mut self, a: Value, b: Value) -> Value {
        self.arithmetic("Div", a, b)
    }

    /// Takes the larger of two numbers.
    pub fn larger(&mut self, a: Value, b: Value) -> Value {
        self.arithmetic("Max", a, b)
    }

    /// Takes the smaller of two numbers.
    pub fn smaller(&mut self, a: Value, b: Value) -> Value {
        self.arithmetic("Min", a, b)
    }

    /// Adds one number to every number.
    pub fn add_number(&mut self, value: Value, number: f64) -> Value {
        let number = self.number(number);
        self.add(value, number)
    }

    /// Multiplies every number by one number.
    pub fn mul_number(&mut self, value: Value, number: f64) -> Value {
        let number = self.number(number);
        self.mul(value, number)
    }

    /// Returns which numbers are the same in both values.
    pub fn equal(&mut self, a: Value, b: Value) -> Value {
        self.comparison("Equal", a, b)
    }

    /// Returns which numbers of the first value are at least those of the second.
    pub fn at_least(&mut self, a: Value, b: Value) -> Value {
        self.comparison("GreaterOrEqual", a, b)
    }

    /// Returns which numbers are none.
    pub fn is_nan(&mut self, value: Value) -> Value {
        self.check_floats("IsNaN", &[value]);
        let shape = self.known(value).shape.clone();
        self.node("IsNaN", vec![value], Vec::new(), (Element::Truth, shape))
    }

    /// Takes numbers of the first value where the condition holds, and of the second where it does not.
    pub fn choose(&mut self, condition: Value, a: Value, b: Value) -> Value {
        let kinds = [condition, a, b].map(|value| self.known(value).element);
        let shapes = [condition, a, b].map(|value| &self.known(value).shape);
        let shape = broadcast(shapes[1], shapes[2]).and_then(|both| broadcast(shapes[0], &both));
        let made = match shape {
            Some(shape) if kinds[0] == Element::Truth && kinds[1] == kinds[2] => (kinds[1], shape),
            _ => {
                let made = nothing(shapes[1]);
                self.refuse("Where", &[condition, a, b]);
                made
            }
        };
        self.node("Where", vec![condition, a, b], Vec::new(), made)
    }

    /// Makes other numbers of numbers; a truth becomes 0 or 1, and a float loses what follows the point.
    pub fn cast(&mut self, value: Value, element: Element) -> Value {
        let shape = self.known(value).shape.clone();
        let to = vec![("to", Attribute::Int(element.number()))];
        self.node("Cast", vec![value], to, (element, shape))
    }

    /// Cuts every number off at two bounds.
    pub fn clip(&mut self, value: Value, [low, high]: [f64; 2]) -> Value {
        let bounds = [low, high].map(|bound| self.number(bound));
        self.check_floats("Clip", &[value]);
        let shape = self.known(value).shape.clone();
        let inputs = vec![value, bounds[0], bounds[1]];
        self.node("Clip", inputs, Vec::new(), (Element::Float, shape))
    }

    /// Returns `max(x, 0)`.
    pub fn relu(&mut self, value: Value) -> Value {
        self.function("Relu", value, Vec::new())
    }

    /// Returns `x` above zero, and that share of it below.
    pub fn leaky_relu(&mut self, value: Value, share: f64) -> Value {
        let share = vec![("alpha", Attribute::Float(share as f32))];
        self.function("LeakyRelu", value, share)
    }

    /// Returns `1 / (1 + exp(-x))`.
    pub fn sigmoid(&mut self, value: Value) -> Value {
        self.function("Sigmoid", value, Vec::new())
    }

    /// Returns the exponentials.
    pub fn exp(&mut self, value: Value) -> Value {
        self.function("Exp", value, Vec::new())
    }

    /// Returns the natural logarithms.
    pub fn log(&mut self, value: Value) -> Value {
        self.function("Log", value, Vec::new())
    }

    /// Returns the square roots.
    pub fn sqrt(&mut self, value: Value) -> Value {
        self.function("Sqrt", value, Vec::new())
    }

    /// Returns the amounts.
    pub fn abs(&mut self, value: Value) -> Value {
        self.function("Abs", value, Vec::new())
    }

    /// Returns the signs: -1, 0 or 1.
    pub fn sign(&mut self, value: Value) -> Value {
        self.function("Sign", value, Vec::new())
    }

    /// Returns the softmax over the last dimension.
    pub fn softmax(&mut self, value: Value) -> Value {
        self.function("Softmax", value, vec![("axis", Attribute::Int(-1))])
    }

    /// Returns the logarithm of the softmax over the last dimension.
    pub fn log_softmax(&mut self, value: Value) -> Value {
        self.function("LogSoftmax", value, vec![("axis", Attribute::Int(-1))])
    }

    /// Adds a node that leaves the shape of floats as it is.
    fn function(
        &mut self,
        operator: &'static str,
        value: Value,
        attributes: Vec<(&'static str, Attribute)>,
    ) -> Value {
        self.check_floats(operator, &[value]);
        let shape = self.known(value).shape.clone();
        self.node(operator, vec![value], attributes, (Element::Float, shape))
    }

    /// Adds a node on two values of one kind.
    fn arithmetic(&mut self, operator: &'static str, a: Value, b: Value) -> Value {
        let made = self.both(operator, a, b);
        if made.0 == Element::Truth {
            self.refuse(operator, &[a, b]);
        }
        self.node(operator, vec![a, b], Vec::new(), made)
    }

    fn comparison(&mut self, operator: &'static str, a: Value, b: Value) -> Value {
        let (_, shape) = self.both(operator, a, b);
        self.node(operator, vec![a, b], Vec::new(), (Element::Truth, shape))
    }

    /// Returns kind and shape of what two values make element by element.
    fn both(&mut self, operator: &'static str, a: Value, b: Value) -> (Element, Shape) {
        let (one, other) = (self.known(a), self.known(b));
        let is_of_one_kind = one.element == other.element;
        let element = one.element;
        match broadcast(&one.shape, &other.shape) {
            Some(shape) if is_of_one_kind => (element, shape),
            _ => {
                let made = nothing(&one.shape);
                self.refuse(operator, &[a, b]);
                made
            }
        }
    }

    /// Checks that values are floats.
    fn check_floats(&mut self, operator: &'static str, values: &[Value]) {
        let mut values_of = values.iter();
        if !values_of.all(|value| self.known(*value).element == Element::Float) {
            self.refuse(operator, values);
        }
    }
}
