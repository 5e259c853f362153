//! Operators that move numbers and change none.

use crate::graph::{Attribute, Graph, Origin, Value};
use crate::shape::{Element, Shape, Size, all_known, known, of_samples, per_sample};

impl Graph {
    /// Gives every sample another shape. Shapes in between are left out, and so is a shape that is there already.
    pub fn reshape(&mut self, value: Value, sizes: &[usize]) -> Value {
        let source = self.before_reshape(value);
        let before = per_sample(&self.known(source).shape);
        let count = |sizes: &[usize]| sizes.iter().product::<usize>();
        match &before {
            Some(before) if before == sizes => return source,
            Some(before) if count(before) == count(sizes) => (),
            _ => self.refuse("Reshape", &[value]),
        }
        // A size of 0 is that of the input: as many samples as there are.
        let new = std::iter::once(0).chain(sizes.iter().map(|size| *size as i64));
        let new = self.ints("shape", new.collect(), &[sizes.len() + 1]);
        let made = (self.known(source).element, of_samples(sizes));
        self.node("Reshape", vec![source, new], Vec::new(), made)
    }

    /// Puts all numbers of a sample into one row.
    pub fn flat(&mut self, value: Value) -> Value {
        let sizes = self.sizes(value).unwrap_or_default();
        self.reshape(value, &[sizes.iter().product()])
    }

    /// Returns what a value was before it was given its shape.
    fn before_reshape(&self, value: Value) -> Value {
        match self.known(value).origin {
            Origin::Node(at) if self.nodes[at].operator == "Reshape" => self.nodes[at].inputs[0],
            _ => value,
        }
    }

    /// Puts values side by side along a dimension.
    pub fn concat(&mut self, values: &[Value], axis: usize) -> Value {
        if let [alone] = values {
            return *alone;
        }
        let shapes: Vec<Shape> = values
            .iter()
            .map(|value| self.known(*value).shape.clone())
            .collect();
        let element = values.first().map(|value| self.known(*value).element);
        let is_of_one_kind = values
            .iter()
            .all(|value| Some(self.known(*value).element) == element);
        let made = joined(&shapes, axis).filter(|_| is_of_one_kind);
        if made.is_none() {
            self.refuse("Concat", values);
        }
        let made = made.or_else(|| shapes.first().cloned()).unwrap_or_default();
        let axis = vec![("axis", Attribute::Int(axis as i64))];
        let element = element.unwrap_or(Element::Float);
        self.node("Concat", values.to_vec(), axis, (element, made))
    }

    /// Takes a stretch of a dimension.
    pub fn narrow(&mut self, value: Value, axis: usize, start: usize, length: usize) -> Value {
        let mut shape = self.known(value).shape.clone();
        match shape.get_mut(axis) {
            Some(Size::Is(size)) if start + length <= *size => *size = length,
            _ => self.refuse("Slice", &[value]),
        }
        let bounds = [start, start + length, axis];
        let bounds = bounds.map(|bound| self.ints("bound", vec![bound as i64], &[1]));
        let inputs = [vec![value], bounds.to_vec()].concat();
        let element = self.known(value).element;
        self.node("Slice", inputs, Vec::new(), (element, shape))
    }

    /// Takes columns of rows, `[N, …]`, in the order of their numbers.
    pub fn columns(&mut self, rows: Value, columns: &[usize]) -> Value {
        let width = self.sizes(rows).filter(|sizes| sizes.len() == 1);
        let is_there = |width: &Vec<usize>| columns.iter().all(|column| *column < width[0]);
        if !width.as_ref().is_some_and(is_there) {
            self.refuse("Gather", &[rows]);
        }
        let all: Vec<usize> = (0..width.map_or(0, |sizes| sizes[0])).collect();
        if all == columns {
            return rows;
        }
        let numbers = columns.iter().map(|column| *column as i64).collect();
        let numbers = self.ints("columns", numbers, &[columns.len()]);
        let made = (self.known(rows).element, of_samples(&[columns.len()]));
        let axis = vec![("axis", Attribute::Int(1))];
        self.node("Gather", vec![rows, numbers], axis, made)
    }

    /// Takes for every number the row of a table, a constant `[rows, …]`.
    pub fn look_up(&mut self, table: Value, numbers: Value) -> Value {
        let rows = all_known(&self.known(table).shape);
        let is_right = rows.as_ref().is_some_and(|rows| !rows.is_empty())
            && self.known(numbers).element == Element::Int;
        if !is_right {
            self.refuse("Gather", &[table, numbers]);
        }
        let mut shape = self.known(numbers).shape.clone();
        shape.extend(known(rows.unwrap_or_default().get(1..).unwrap_or_default()));
        let made = (self.known(table).element, shape);
        let axis = vec![("axis", Attribute::Int(0))];
        self.node("Gather", vec![table, numbers], axis, made)
    }
}

/// Returns the shape of values side by side; nothing if they differ elsewhere.
fn joined(shapes: &[Shape], axis: usize) -> Option<Shape> {
    let mut sum = shapes.first()?.clone();
    for shape in &shapes[1..] {
        for (at, (one, other)) in sum.iter_mut().zip(shape).enumerate() {
            match (at == axis, one, other) {
                (true, Size::Is(one), Size::Is(other)) => *one += other,
                (false, one, other) if one == other => (),
                _ => return None,
            }
        }
    }
    let is_of_one_rank = shapes.iter().all(|shape| shape.len() == sum.len());
    (is_of_one_rank && axis < sum.len()).then_some(sum)
}
