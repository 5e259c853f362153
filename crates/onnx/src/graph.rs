//! What a graph holds, and what of it the output needs.

use std::collections::HashMap;

use crate::error::GraphError;
use crate::file;
use crate::shape::{self, Element, Shape};

/// Something that a graph holds: an input, a constant, or what an operator makes. It belongs to the graph that gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Value(pub(crate) usize);

/// The numbers of a constant.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Numbers {
    Floats(Vec<f32>),
    Ints(Vec<i64>),
}

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Origin {
    Input,
    Constant(Numbers),
    Node(usize),
}

#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(crate) name: String,
    pub(crate) element: Element,
    pub(crate) shape: Shape,
    pub(crate) origin: Origin,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Attribute {
    Float(f32),
    Int(i64),
    Ints(Vec<i64>),
}

#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) operator: &'static str,
    pub(crate) inputs: Vec<Value>,
    pub(crate) outputs: Vec<Value>,
    pub(crate) attributes: Vec<(&'static str, Attribute)>,
}

/// A graph that is being built.
#[derive(Debug, Default)]
pub struct Graph {
    pub(crate) values: Vec<Known>,
    pub(crate) nodes: Vec<Node>,
    names: HashMap<String, usize>,
    /// The first call that was wrong.
    fault: Option<GraphError>,
}

impl Graph {
    /// Declares an input of samples, `[N, sizes…]`.
    pub fn input(&mut self, name: &str, element: Element, sizes: &[usize]) -> Value {
        if self.names.contains_key(name) {
            self.spoil(GraphError::Name(name.to_owned()));
        }
        self.hold(name, element, shape::of_samples(sizes), Origin::Input)
    }

    /// Adds a constant of floats.
    pub fn floats(&mut self, name: &str, values: Vec<f32>, sizes: &[usize]) -> Value {
        if !values.iter().all(|value| value.is_finite()) {
            self.spoil(GraphError::NotFinite(name.to_owned()));
        }
        self.check_constant(name, values.len(), sizes);
        let numbers = Origin::Constant(Numbers::Floats(values));
        self.hold(name, Element::Float, shape::known(sizes), numbers)
    }

    /// Adds a constant of integers.
    pub fn ints(&mut self, name: &str, values: Vec<i64>, sizes: &[usize]) -> Value {
        self.check_constant(name, values.len(), sizes);
        let numbers = Origin::Constant(Numbers::Ints(values));
        self.hold(name, Element::Int, shape::known(sizes), numbers)
    }

    /// Adds one number.
    pub fn number(&mut self, value: f64) -> Value {
        self.floats("number", vec![value as f32], &[])
    }

    /// Returns the sizes of one sample of a value; nothing of a constant.
    pub fn sizes(&self, value: Value) -> Option<Vec<usize>> {
        shape::per_sample(&self.values[value.0].shape)
    }

    /// Writes what an output needs as a file; the output is given the name, and the pairs are written beside the graph.
    ///
    /// # Errors
    /// Names the first call that was wrong. Refuses a file of more than 2 GiB, and an output called as an input.
    pub fn finish(
        mut self,
        title: &str,
        (name, output): (&str, Value),
        about: &[(&str, String)],
    ) -> Result<Vec<u8>, GraphError> {
        if self.names.contains_key(name) {
            self.spoil(GraphError::Name(name.to_owned()));
        }
        self.values[output.0].name = name.to_owned();
        match self.fault {
            Some(fault) => Err(fault),
            None => file::write(&self, title, output, about),
        }
    }

    /// Tells of every value and node whether an output needs it.
    pub(crate) fn needed(&self, output: Value) -> (Vec<bool>, Vec<bool>) {
        let (mut values, mut nodes) = (
            vec![false; self.values.len()],
            vec![false; self.nodes.len()],
        );
        values[output.0] = true;
        // Operands come before what is made of them.
        for (at, node) in self.nodes.iter().enumerate().rev() {
            nodes[at] = node.outputs.iter().any(|value| values[value.0]);
            if nodes[at] {
                let all = node.inputs.iter().chain(&node.outputs);
                all.for_each(|value| values[value.0] = true);
            }
        }
        (values, nodes)
    }

    /// Adds a node that makes one value.
    pub(crate) fn node(
        &mut self,
        operator: &'static str,
        inputs: Vec<Value>,
        attributes: Vec<(&'static str, Attribute)>,
        (element, shape): (Element, Shape),
    ) -> Value {
        let made = Origin::Node(self.nodes.len());
        let value = self.hold(operator, element, shape, made);
        self.nodes.push(Node {
            operator,
            inputs,
            outputs: vec![value],
            attributes,
        });
        value
    }

    /// Adds a value; a name that is taken is numbered.
    pub(crate) fn hold(
        &mut self,
        name: &str,
        element: Element,
        shape: Shape,
        origin: Origin,
    ) -> Value {
        let count = self.names.entry(name.to_owned()).or_insert(0);
        *count += 1;
        let name = match *count {
            1 if origin == Origin::Input => name.to_owned(),
            // The mark keeps it from being a name that somebody gave.
            count => format!("{name}#{count}"),
        };
        self.values.push(Known {
            name,
            element,
            shape,
            origin,
        });
        Value(self.values.len() - 1)
    }

    pub(crate) fn known(&self, value: Value) -> &Known {
        &self.values[value.0]
    }

    /// Notes that a call was wrong; only the first one counts.
    pub(crate) fn spoil(&mut self, fault: GraphError) {
        self.fault.get_or_insert(fault);
    }

    /// Notes that operands do not go together.
    pub(crate) fn refuse(&mut self, operator: &'static str, operands: &[Value]) {
        let one = |value: &Value| {
            let Known { element, shape, .. } = self.known(*value);
            format!("{element:?} {}", shape::shown(shape))
        };
        let operands: Vec<String> = operands.iter().map(one).collect();
        let operands = operands.join(" and ");
        self.spoil(GraphError::Operands { operator, operands });
    }

    fn check_constant(&mut self, name: &str, values: usize, sizes: &[usize]) {
        if sizes.iter().product::<usize>() != values {
            let (name, shape) = (name.to_owned(), sizes.to_vec());
            self.spoil(GraphError::Constant {
                name,
                values,
                shape,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_wrong_call_is_named() {
        let mut graph = Graph::default();
        let a = graph.input("a", Element::Float, &[3]);
        let b = graph.floats("b", vec![1.0, 2.0], &[2]);
        let sum = graph.add(a, b);
        let _ = graph.floats("c", vec![1.0], &[2]);
        let error = graph.finish("test", ("sum", sum), &[]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "`Add` cannot take Float [N, 3] and Float [2]"
        );
    }

    #[test]
    fn constants_fill_their_shapes_with_finite_numbers() {
        let of = |values: Vec<f32>| {
            let mut graph = Graph::default();
            let a = graph.input("a", Element::Float, &[2]);
            let b = graph.floats("b", values, &[2]);
            let sum = graph.add(a, b);
            graph.finish("test", ("sum", sum), &[])
        };
        assert!(of(vec![1.0, 2.0]).is_ok());
        assert_eq!(
            of(vec![1.0, f32::NAN]),
            Err(GraphError::NotFinite("b".into()))
        );
        let error = of(vec![1.0]).unwrap_err().to_string();
        assert_eq!(
            error,
            "constant `b` has 1 values, and its shape [2] needs others"
        );
    }

    #[test]
    fn an_output_is_not_called_as_an_input() {
        let mut graph = Graph::default();
        let a = graph.input("a", Element::Float, &[2]);
        let b = graph.relu(a);
        let error = graph.finish("test", ("a", b), &[]).unwrap_err();
        assert_eq!(error, GraphError::Name("a".into()));
    }
}
