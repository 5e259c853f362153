//! The graph of an ONNX file, as far as a backbone needs it: names, operators, attributes, and where the bytes lie.
//!
//! The messages are those of `onnx.proto` (`ModelProto`, `GraphProto`, `NodeProto`, `AttributeProto`,
//! `ValueInfoProto`). Singular fields that occur twice are refused, so no other reader can see another graph.

use std::collections::HashMap;

use crate::error::{Refusal, shown};
use crate::limits;
use crate::tensor;
use crate::wire::{Fields, WireError};

/// The parts of a file that a backbone is made of.
#[derive(Debug, Default)]
pub(crate) struct Graph<'a> {
    pub(crate) ir_version: i64,
    pub(crate) opset: i64,
    pub(crate) nodes: Vec<Node<'a>>,
    /// The bytes of each initialiser, by name.
    pub(crate) tensors: HashMap<&'a str, &'a [u8]>,
    pub(crate) inputs: Vec<Input<'a>>,
    pub(crate) outputs: Vec<&'a str>,
    /// What the file says of itself: pairs of a name and a text.
    pub(crate) metadata: Vec<(&'a str, &'a str)>,
}

/// One operator with its operands.
#[derive(Debug, Default)]
pub(crate) struct Node<'a> {
    pub(crate) operator: &'a str,
    pub(crate) domain: &'a str,
    /// Names of values; an empty name stands for an operand that is left out.
    pub(crate) inputs: Vec<&'a str>,
    pub(crate) outputs: Vec<&'a str>,
    pub(crate) attributes: HashMap<&'a str, Attribute<'a>>,
    pub(crate) bytes: &'a [u8],
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Attribute<'a> {
    Int(i64),
    Float(f32),
    Text(&'a str),
    Tensor(&'a [u8]),
    Ints(Vec<i64>),
    Floats(usize),
    Graph,
    /// A list without elements.
    Empty,
    /// Anything else, or several at once.
    Other,
}

/// An input of the graph, as it is declared.
#[derive(Debug, Default, Clone)]
pub(crate) struct Input<'a> {
    pub(crate) name: &'a str,
    pub(crate) data_type: i64,
    /// Sizes; `None` stands for a free one. Without a shape the whole is `None`.
    pub(crate) dims: Option<Vec<Option<i64>>>,
}

impl<'a> Graph<'a> {
    pub(crate) fn read(file: &'a [u8]) -> Result<Self, Refusal> {
        let mut graph = None;
        let mut opset = None;
        let mut ir_version = 0;
        let mut metadata = Vec::new();
        for field in Fields::of(file) {
            let field = field?;
            match field.number {
                1 => ir_version = field.int()?,
                7 => once(&mut graph, field.bytes()?)?,
                8 => {
                    let (domain, version) = opset_import(field.bytes()?)?;
                    if is_own_domain(domain) {
                        once(&mut opset, version)?;
                    }
                }
                14 => {
                    metadata.push(property(field.bytes()?)?);
                    bounded("properties", metadata.len(), limits::LIST)?;
                }
                _ => {}
            }
        }
        let mut read = Self::body(graph.ok_or(Refusal::NoGraph)?)?;
        read.opset = opset.unwrap_or(0);
        read.ir_version = ir_version;
        read.metadata = metadata;
        if !limits::OPSETS.contains(&read.opset) {
            return Err(Refusal::Opset { found: read.opset });
        }
        Ok(read)
    }

    fn body(message: &'a [u8]) -> Result<Self, Refusal> {
        let mut graph = Self::default();
        for field in Fields::of(message) {
            let field = field?;
            match field.number {
                1 => graph.nodes.push(Node::read(field.bytes()?)?),
                5 => {
                    let bytes = field.bytes()?;
                    let name = tensor::name(bytes)?;
                    if graph.tensors.insert(name, bytes).is_some() {
                        return Err(Refusal::Twice(shown(name)));
                    }
                }
                11 => graph.inputs.push(Input::read(field.bytes()?)?),
                12 => graph.outputs.push(Input::read(field.bytes()?)?.name),
                _ => {}
            }
            bounded("nodes", graph.nodes.len(), limits::NODES)?;
            bounded("tensors", graph.tensors.len(), limits::TENSORS)?;
            bounded("outputs", graph.outputs.len(), limits::LIST)?;
            // Old files list every initialiser among the inputs.
            bounded("inputs", graph.inputs.len(), limits::TENSORS + limits::LIST)?;
        }
        Ok(graph)
    }
}

impl<'a> Node<'a> {
    fn read(message: &'a [u8]) -> Result<Self, Refusal> {
        let mut node = Self {
            bytes: message,
            ..Self::default()
        };
        for field in Fields::of(message) {
            let field = field?;
            match field.number {
                1 => node.inputs.push(field.text()?),
                2 => node.outputs.push(field.text()?),
                4 => node.operator = field.text()?,
                5 => {
                    let (name, value) = attribute(field.bytes()?)?;
                    if node.attributes.insert(name, value).is_some() {
                        return Err(Refusal::Twice(shown(name)));
                    }
                }
                7 => node.domain = field.text()?,
                _ => {}
            }
            bounded("operands of one node", node.inputs.len(), limits::LIST)?;
            bounded("results of one node", node.outputs.len(), limits::LIST)?;
            bounded(
                "attributes of one node",
                node.attributes.len(),
                limits::LIST,
            )?;
        }
        Ok(node)
    }

    /// Returns the operator's name, with its domain if that is not ONNX's own.
    pub(crate) fn full_operator(&self) -> String {
        if is_own_domain(self.domain) {
            shown(self.operator)
        } else {
            format!("{}.{}", shown(self.domain), shown(self.operator))
        }
    }

    pub(crate) fn has_own_domain(&self) -> bool {
        is_own_domain(self.domain)
    }

    /// Returns the name of the first value that the node computes, for messages.
    pub(crate) fn result(&self) -> String {
        shown(self.outputs.first().copied().unwrap_or_default())
    }
}

impl<'a> Input<'a> {
    /// Reads a `ValueInfoProto`; of its types only tensors are looked into.
    fn read(message: &'a [u8]) -> Result<Self, WireError> {
        let mut input = Self::default();
        for field in Fields::of(message) {
            let field = field?;
            match field.number {
                1 => input.name = field.text()?,
                2 => input.read_type(field.bytes()?)?,
                _ => {}
            }
        }
        Ok(input)
    }

    fn read_type(&mut self, message: &'a [u8]) -> Result<(), WireError> {
        for field in Fields::of(message) {
            let field = field?;
            if field.number != 1 {
                continue;
            }
            for field in Fields::of(field.bytes()?) {
                let field = field?;
                match field.number {
                    1 => self.data_type = field.int()?,
                    2 => self.dims = Some(dimensions(field.bytes()?)?),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

/// Reads a `TensorShapeProto`.
fn dimensions(message: &[u8]) -> Result<Vec<Option<i64>>, WireError> {
    let mut dims = Vec::new();
    for field in Fields::of(message) {
        let field = field?;
        if field.number != 1 {
            continue;
        }
        let mut size = None;
        for field in Fields::of(field.bytes()?) {
            let field = field?;
            if field.number == 1 {
                size = Some(field.int()?);
            }
        }
        dims.push(size);
        if dims.len() > limits::RANK {
            break;
        }
    }
    Ok(dims)
}

/// Reads an `AttributeProto`: its name and its only value.
fn attribute(message: &[u8]) -> Result<(&str, Attribute<'_>), WireError> {
    let mut name = "";
    let mut value = Attribute::Empty;
    for field in Fields::of(message) {
        let field = field?;
        let new = match field.number {
            1 => {
                name = field.text()?;
                continue;
            }
            2 => Attribute::Float(field.float()?),
            3 => Attribute::Int(field.int()?),
            4 => Attribute::Text(field.text()?),
            5 => Attribute::Tensor(field.bytes()?),
            6 | 11 => Attribute::Graph,
            7 => Attribute::Floats(1),
            8 => Attribute::Ints(vec![field.int()?]),
            9 | 10 | 14 | 15 | 21 | 22 | 23 => Attribute::Other,
            _ => continue,
        };
        value = joined(value, new);
    }
    Ok((name, value))
}

/// Returns a list that has grown by an element; anything else may come only once.
fn joined<'a>(old: Attribute<'a>, new: Attribute<'a>) -> Attribute<'a> {
    match (old, new) {
        (Attribute::Empty, new) => new,
        (Attribute::Graph, _) | (_, Attribute::Graph) => Attribute::Graph,
        (Attribute::Ints(mut ints), Attribute::Ints(more)) => {
            ints.extend(more);
            Attribute::Ints(ints)
        }
        (Attribute::Floats(n), Attribute::Floats(more)) => Attribute::Floats(n + more),
        _ => Attribute::Other,
    }
}

/// Reads an `OperatorSetIdProto`.
fn opset_import(message: &[u8]) -> Result<(&str, i64), WireError> {
    let (mut domain, mut version) = ("", 0);
    for field in Fields::of(message) {
        let field = field?;
        match field.number {
            1 => domain = field.text()?,
            2 => version = field.int()?,
            _ => {}
        }
    }
    Ok((domain, version))
}

/// Reads a `StringStringEntryProto`.
fn property(message: &[u8]) -> Result<(&str, &str), WireError> {
    let (mut name, mut text) = ("", "");
    for field in Fields::of(message) {
        let field = field?;
        match field.number {
            1 => name = field.text()?,
            2 => text = field.text()?,
            _ => {}
        }
    }
    Ok((name, text))
}

fn is_own_domain(domain: &str) -> bool {
    matches!(domain, "" | "ai.onnx")
}

fn once<T>(slot: &mut Option<T>, value: T) -> Result<(), WireError> {
    match slot.replace(value) {
        Some(_) => Err(WireError::Form),
        None => Ok(()),
    }
}

fn bounded(what: &'static str, found: usize, limit: usize) -> Result<(), Refusal> {
    if found > limit {
        return Err(Refusal::Many { what, found, limit });
    }
    Ok(())
}
