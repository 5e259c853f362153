//! Operators that go over one dimension.

use crate::graph::{Attribute, Graph, Origin, Value};
use crate::shape::{Element, Shape, Size};

/// What is made of the numbers along a dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// Their sum.
    Sum,
    /// Their mean.
    Mean,
    /// The largest of them.
    Largest,
}

impl Graph {
    /// Makes one number of those along a dimension, which stays with a size of 1.
    pub fn reduce(&mut self, reduction: Reduction, value: Value, axis: usize) -> Value {
        let operator = match reduction {
            Reduction::Sum => "ReduceSum",
            Reduction::Mean => "ReduceMean",
            Reduction::Largest => "ReduceMax",
        };
        self.check_floats(operator, &[value]);
        let shape = self.of_one(operator, value, axis);
        // In this set of operators the sum takes its dimensions as an input, and others as an attribute.
        let mut attributes = vec![("keepdims", Attribute::Int(1))];
        let mut inputs = vec![value];
        if reduction == Reduction::Sum {
            inputs.push(self.ints("axis", vec![axis as i64], &[1]));
        } else {
            attributes.push(("axes", Attribute::Ints(vec![axis as i64])));
        }
        self.node(operator, inputs, attributes, (Element::Float, shape))
    }

    /// Returns where the largest number of each row is, `[N, columns]` to `[N, 1]`; of equal ones the first.
    pub fn arg_max(&mut self, rows: Value) -> Value {
        self.check_floats("ArgMax", &[rows]);
        let shape = self.of_one("ArgMax", rows, 1);
        let attributes = vec![
            ("axis", Attribute::Int(1)),
            ("keepdims", Attribute::Int(1)),
            ("select_last_index", Attribute::Int(0)),
        ];
        self.node("ArgMax", vec![rows], attributes, (Element::Int, shape))
    }

    /// Returns where the largest numbers of each row are, `[N, columns]` to `[N, count]`; of equal ones the first count.
    pub fn top(&mut self, rows: Value, count: usize) -> Value {
        self.check_floats("TopK", &[rows]);
        let mut shape = self.known(rows).shape.clone();
        match shape.as_mut_slice() {
            [_, Size::Is(columns)] if count <= *columns => *columns = count,
            _ => self.refuse("TopK", &[rows]),
        }
        let number = self.ints("count", vec![count as i64], &[1]);
        let made = Origin::Node(self.nodes.len());
        // The operator makes two values: the largest numbers, which nobody needs, and where they are.
        let largest = self.hold("TopK", Element::Float, shape.clone(), made.clone());
        let axis = vec![("axis", Attribute::Int(1))];
        let places = self.node("TopK", vec![rows, number], axis, (Element::Int, shape));
        if let Some(node) = self.nodes.last_mut() {
            node.outputs = vec![largest, places];
        }
        places
    }

    /// Returns a shape in which a dimension has a size of 1.
    fn of_one(&mut self, operator: &'static str, value: Value, axis: usize) -> Shape {
        let mut shape = self.known(value).shape.clone();
        match shape.get_mut(axis) {
            Some(Size::Is(size)) => *size = 1,
            _ => self.refuse(operator, &[value]),
        }
        shape
    }
}
