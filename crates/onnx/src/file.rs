//! The messages of an ONNX file: <https://github.com/onnx/onnx/blob/main/onnx/onnx.proto>.

use crate::error::GraphError;
use crate::graph::{Attribute, Graph, Known, Node, Numbers, Origin, Value};
use crate::shape::Size;
use crate::wire::Message;
use crate::{IR_VERSION, OPSET};

/// Most bytes of a message of Protocol Buffers.
const LARGEST: usize = i32::MAX as usize;

/// Writes what an output needs.
pub(crate) fn write(
    graph: &Graph,
    title: &str,
    output: Value,
    about: &[(&str, String)],
) -> Result<Vec<u8>, GraphError> {
    let body = body(graph, title, output);
    let mut opset = Message::default();
    opset.text(1, "");
    opset.int(2, OPSET);
    let mut file = Message::default();
    file.int(1, IR_VERSION);
    file.text(2, "fednode");
    file.text(3, env!("CARGO_PKG_VERSION"));
    file.message(7, &body);
    file.message(8, &opset);
    for (key, value) in about {
        let mut entry = Message::default();
        entry.text(1, key);
        entry.text(2, value);
        file.message(14, &entry);
    }
    match file.len() {
        bytes if bytes > LARGEST => Err(GraphError::TooLarge(bytes)),
        _ => Ok(file.finish()),
    }
}

/// Writes a `GraphProto`.
fn body(graph: &Graph, title: &str, output: Value) -> Message {
    let (values, nodes) = graph.needed(output);
    let mut body = Message::default();
    for (node, _) in graph.nodes.iter().zip(nodes).filter(|(_, needed)| *needed) {
        body.message(1, &node_proto(graph, node));
    }
    body.text(2, title);
    let needed = graph.values.iter().zip(values);
    for (value, is_needed) in needed {
        match &value.origin {
            Origin::Constant(numbers) if is_needed => body.message(5, &tensor(value, numbers)),
            // What is declared is there, whether it is looked at or not.
            Origin::Input => body.message(11, &declared(value)),
            Origin::Constant(_) | Origin::Node(_) => (),
        }
    }
    body.message(12, &declared(graph.known(output)));
    body
}

/// Writes a `NodeProto`.
fn node_proto(graph: &Graph, node: &Node) -> Message {
    let mut message = Message::default();
    for input in &node.inputs {
        message.text(1, &graph.known(*input).name);
    }
    for output in &node.outputs {
        message.text(2, &graph.known(*output).name);
    }
    message.text(4, node.operator);
    for (name, attribute) in &node.attributes {
        message.message(5, &attribute_proto(name, attribute));
    }
    message
}

/// Writes an `AttributeProto`.
fn attribute_proto(name: &str, attribute: &Attribute) -> Message {
    let mut message = Message::default();
    message.text(1, name);
    let kind = match attribute {
        Attribute::Float(value) => {
            message.float(2, *value);
            1
        }
        Attribute::Int(value) => {
            message.int(3, *value);
            2
        }
        Attribute::Ints(values) => {
            values.iter().for_each(|value| message.int(8, *value));
            7
        }
    };
    message.int(20, kind);
    message
}

/// Writes a `TensorProto`.
fn tensor(value: &Known, numbers: &Numbers) -> Message {
    let mut message = Message::default();
    for size in &value.shape {
        if let Size::Is(size) = size {
            message.int(1, *size as i64);
        }
    }
    message.int(2, value.element.number());
    message.text(8, &value.name);
    let bytes: Vec<u8> = match numbers {
        Numbers::Floats(values) => values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect(),
        Numbers::Ints(values) => values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect(),
    };
    message.bytes(9, &bytes);
    message
}

/// Writes a `ValueInfoProto`; the number of samples is called `N`.
fn declared(value: &Known) -> Message {
    let mut sizes = Message::default();
    for size in &value.shape {
        let mut dimension = Message::default();
        match size {
            Size::Samples => dimension.text(2, "N"),
            Size::Is(size) => dimension.int(1, *size as i64),
        }
        sizes.message(1, &dimension);
    }
    let mut tensor = Message::default();
    tensor.int(1, value.element.number());
    tensor.message(2, &sizes);
    let mut kind = Message::default();
    kind.message(1, &tensor);
    let mut message = Message::default();
    message.text(1, &value.name);
    message.message(2, &kind);
    message
}
