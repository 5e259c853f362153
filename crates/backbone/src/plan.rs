//! What of a graph is needed for the features, in an order in which it can be computed.
//!
//! ```text
//! output ─► the nodes that it depends on, each once, operands first ─► the file that the runtime reads
//! ```
//!
//! Whatever else the file holds is left behind: a classifier behind the features, descriptions, declared shapes of inner
//! values. The runtime sees a file that was written here.

use std::collections::{HashMap, HashSet};

use crate::error::{Refusal, shown};
use crate::graph::{Attribute, Graph, Input, Node};
use crate::operators;
use crate::wire::Message;

/// The needed part of a graph.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    /// Operands come before what is computed from them.
    pub(crate) nodes: Vec<&'a Node<'a>>,
    /// The needed initialisers, by name.
    pub(crate) tensors: Vec<(&'a str, &'a [u8])>,
    pub(crate) input: &'a Input<'a>,
    pub(crate) output: &'a str,
    ir_version: i64,
    opset: i64,
}

/// A step of the walk from the output to the input.
enum Step<'a> {
    Enter(&'a str),
    Leave(&'a Node<'a>),
}

impl<'a> Plan<'a> {
    /// Finds what `output` needs, or what the only output needs.
    pub(crate) fn of(graph: &'a Graph<'a>, output: Option<&str>) -> Result<Self, Refusal> {
        let makers = makers(graph)?;
        let output = chosen(graph, &makers, output)?;
        let inputs: HashMap<&str, &Input> = graph
            .inputs
            .iter()
            .map(|input| (input.name, input))
            .collect();
        let mut plan = Walk::new(graph, &makers, &inputs);
        plan.walk(output)?;
        let &[input] = plan.inputs.as_slice() else {
            return Err(Refusal::Inputs(plan.inputs.len()));
        };
        Ok(Self {
            nodes: plan.nodes,
            tensors: plan.tensors,
            input,
            output,
            ir_version: graph.ir_version,
            opset: graph.opset,
        })
    }

    pub(crate) fn opset(&self) -> i64 {
        self.opset
    }

    /// Writes the needed part as an ONNX file with one input of this shape and one output.
    pub(crate) fn file(&self, shape: [usize; 4]) -> Vec<u8> {
        let data: usize = self.tensors.iter().map(|(_, bytes)| bytes.len() + 16).sum();
        let nodes: usize = self.nodes.iter().map(|node| node.bytes.len() + 16).sum();
        let mut graph = Message::with_capacity(data + nodes + 1024);
        for node in &self.nodes {
            graph.bytes(1, node.bytes);
        }
        graph.text(2, "backbone");
        for (_, bytes) in &self.tensors {
            graph.bytes(5, bytes);
        }
        graph.message(11, &declared(self.input.name, Some(&shape)));
        graph.message(12, &declared(self.output, None));
        let mut opset = Message::default();
        opset.int(2, self.opset);
        let mut file = Message::with_capacity(data + nodes + 1024);
        file.int(1, self.ir_version);
        file.message(7, &graph);
        file.message(8, &opset);
        file.finish()
    }
}

/// Writes a `ValueInfoProto` of floats.
fn declared(name: &str, shape: Option<&[usize]>) -> Message {
    let mut tensor = Message::default();
    tensor.int(1, 1);
    if let Some(shape) = shape {
        let mut dims = Message::default();
        for &size in shape {
            let mut dim = Message::default();
            dim.int(1, size as i64);
            dims.message(1, &dim);
        }
        tensor.message(2, &dims);
    }
    let mut kind = Message::default();
    kind.message(1, &tensor);
    let mut value = Message::default();
    value.text(1, name);
    value.message(2, &kind);
    value
}

/// Which node computes a value.
type Makers<'a> = HashMap<&'a str, &'a Node<'a>>;

/// Returns which node computes each value; no value may have two origins.
fn makers<'a>(graph: &'a Graph<'a>) -> Result<Makers<'a>, Refusal> {
    let mut makers = Makers::new();
    let given: HashSet<&str> = graph.inputs.iter().map(|input| input.name).collect();
    for node in &graph.nodes {
        for &name in node.outputs.iter().filter(|name| !name.is_empty()) {
            let is_given = graph.tensors.contains_key(name) || given.contains(name);
            if is_given || makers.insert(name, node).is_some() {
                return Err(Refusal::Twice(shown(name)));
            }
        }
    }
    Ok(makers)
}

/// Returns the name of the output that was asked for, or of the only one.
fn chosen<'a>(
    graph: &Graph<'a>,
    makers: &Makers<'a>,
    output: Option<&str>,
) -> Result<&'a str, Refusal> {
    let known = || {
        graph
            .outputs
            .iter()
            .take(8)
            .map(|name| shown(name))
            .collect()
    };
    let Some(output) = output else {
        return match graph.outputs[..] {
            [] => Err(Refusal::NoOutput),
            [only] => Ok(only),
            _ => Err(Refusal::WhichOutput(known())),
        };
    };
    let inner = makers.keys().copied();
    let mut all = graph.outputs.iter().copied().chain(inner);
    all.find(|name| *name == output)
        .ok_or_else(|| Refusal::UnknownOutput {
            output: shown(output),
            known: known(),
        })
}

/// The walk through the graph, operands first, without recursion.
struct Walk<'a, 'b> {
    graph: &'a Graph<'a>,
    makers: &'b Makers<'a>,
    known_inputs: &'b HashMap<&'a str, &'a Input<'a>>,
    /// Values whose operands are being visited.
    open: HashSet<&'a str>,
    done: HashSet<&'a str>,
    nodes: Vec<&'a Node<'a>>,
    tensors: Vec<(&'a str, &'a [u8])>,
    inputs: Vec<&'a Input<'a>>,
}

impl<'a, 'b> Walk<'a, 'b> {
    fn new(
        graph: &'a Graph<'a>,
        makers: &'b Makers<'a>,
        known_inputs: &'b HashMap<&'a str, &'a Input<'a>>,
    ) -> Self {
        Self {
            graph,
            makers,
            known_inputs,
            open: HashSet::new(),
            done: HashSet::new(),
            nodes: Vec::new(),
            tensors: Vec::new(),
            inputs: Vec::new(),
        }
    }

    fn walk(&mut self, output: &'a str) -> Result<(), Refusal> {
        let mut steps = vec![Step::Enter(output)];
        while let Some(step) = steps.pop() {
            match step {
                Step::Enter(name) => self.enter(name, &mut steps)?,
                Step::Leave(node) => {
                    for name in &node.outputs {
                        self.open.remove(name);
                        self.done.insert(name);
                    }
                    self.nodes.push(node);
                }
            }
        }
        Ok(())
    }

    fn enter(&mut self, name: &'a str, steps: &mut Vec<Step<'a>>) -> Result<(), Refusal> {
        if name.is_empty() || self.done.contains(name) {
            return Ok(());
        }
        if self.open.contains(name) {
            return Err(Refusal::Cycle { value: shown(name) });
        }
        if let Some(&bytes) = self.graph.tensors.get(name) {
            self.done.insert(name);
            self.tensors.push((name, bytes));
        } else if let Some(&input) = self.known_inputs.get(name) {
            self.done.insert(name);
            self.inputs.push(input);
        } else if let Some(&node) = self.makers.get(name) {
            permitted(node)?;
            self.open
                .extend(node.outputs.iter().filter(|name| !name.is_empty()));
            steps.push(Step::Leave(node));
            steps.extend(node.inputs.iter().rev().map(|name| Step::Enter(name)));
        } else {
            return Err(Refusal::Undefined { value: shown(name) });
        }
        Ok(())
    }
}

/// Checks that a node's operator is on the list and holds no graph of its own.
fn permitted(node: &Node) -> Result<(), Refusal> {
    let operator = || node.full_operator();
    if node
        .attributes
        .values()
        .any(|value| *value == Attribute::Graph)
    {
        return Err(Refusal::Subgraph {
            operator: operator(),
        });
    }
    if !node.has_own_domain() || operators::rule(node.operator).is_none() {
        return Err(Refusal::Operator {
            operator: operator(),
        });
    }
    let other = node
        .attributes
        .iter()
        .find(|(_, value)| **value == Attribute::Other);
    if let Some((name, _)) = other {
        return Err(Refusal::Attribute {
            attribute: shown(name),
            operator: operator(),
        });
    }
    Ok(())
}
