//! The shapes of all values for one sample, worked out before anything runs.
//!
//! The images have a known size and a sample is computed alone, so every shape is a list of numbers. A file whose values
//! or multiplications exceed the [limits](crate::limits) is refused here, not when memory is gone. Exporters compute
//! shapes within the graph (`Shape`, `Gather`, `Concat`, `Reshape`). So small integers are computed along.
//!
//! The rules are those of ONNX's operator reference, <https://onnx.ai/onnx/operators/>.

pub(crate) mod arithmetic;
pub(crate) mod constants;
pub(crate) mod layers;
pub(crate) mod layout;
pub(crate) mod parts;
pub(crate) mod products;
pub(crate) mod reductions;

use std::collections::HashMap;

use crate::error::{Refusal, shape, shown};
use crate::graph::{Attribute, Node};
use crate::limits;
use crate::operators;
use crate::plan::Plan;
use crate::tensor::{Kind, Tensor, elements};

/// What is known of a value: a [`Tensor`] whose numbers matter only if they are few integers.
pub(crate) type Value = Tensor;

/// The rule of an operator: what it computes from its operands, or what is wrong in a few words.
pub(crate) type Rule = fn(&Call) -> Result<Outcome, String>;

/// What an operator computes, and with how many multiplications.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) values: Vec<Value>,
    pub(crate) work: u64,
}

impl Outcome {
    /// One result whose every number takes `each` multiplications.
    pub(crate) fn costly(value: Value, each: usize) -> Self {
        let n = elements(&value.dims).unwrap_or(usize::MAX);
        let work = (n as u64).saturating_mul(each as u64);
        Self {
            values: vec![value],
            work,
        }
    }
}

impl From<Value> for Outcome {
    fn from(value: Value) -> Self {
        Self::costly(value, 1)
    }
}

impl Value {
    /// A value of which nothing but its shape is known.
    pub(crate) fn unknown(kind: Kind, dims: Vec<usize>) -> Self {
        Self {
            kind,
            dims,
            ints: None,
        }
    }

    pub(crate) fn rank(&self) -> usize {
        self.dims.len()
    }
}

/// A node with what is known of its operands.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) node: &'a Node<'a>,
    pub(crate) opset: i64,
    inputs: Vec<Option<&'a Value>>,
}

impl<'a> Call<'a> {
    /// Returns an operand that must be there.
    pub(crate) fn input(&self, index: usize) -> Result<&'a Value, String> {
        self.optional(index)
            .ok_or_else(|| format!("lacks operand {index}"))
    }

    pub(crate) fn optional(&self, index: usize) -> Option<&'a Value> {
        self.inputs.get(index).copied().flatten()
    }

    pub(crate) fn inputs(&self) -> Result<Vec<&'a Value>, String> {
        (0..self.inputs.len())
            .map(|index| self.input(index))
            .collect()
    }

    pub(crate) fn int(&self, name: &str) -> Result<Option<i64>, String> {
        match self.node.attributes.get(name) {
            None => Ok(None),
            Some(Attribute::Int(value)) => Ok(Some(*value)),
            Some(_) => Err(unlike(name)),
        }
    }

    pub(crate) fn text(&self, name: &str) -> Result<Option<&'a str>, String> {
        match self.node.attributes.get(name) {
            None => Ok(None),
            Some(Attribute::Text(value)) => Ok(Some(value)),
            Some(_) => Err(unlike(name)),
        }
    }

    pub(crate) fn ints(&self, name: &str) -> Result<Option<&'a [i64]>, String> {
        match self.node.attributes.get(name) {
            None => Ok(None),
            Some(Attribute::Ints(values)) => Ok(Some(values)),
            Some(Attribute::Empty) => Ok(Some(&[])),
            Some(_) => Err(unlike(name)),
        }
    }

    /// Returns integers that older files give as an attribute and newer ones as an operand.
    pub(crate) fn ints_of(&self, name: &str, index: usize) -> Result<Option<&'a [i64]>, String> {
        match (self.ints(name)?, self.optional(index)) {
            (Some(_), Some(_)) => Err(format!("has `{name}` twice")),
            (Some(values), None) => Ok(Some(values)),
            (None, None) => Ok(None),
            (None, Some(value)) => value.ints.as_deref().map(Some).ok_or_else(|| {
                format!("takes `{name}` from a value that is not known before it runs")
            }),
        }
    }

    /// Returns how many results are wanted.
    fn wanted(&self) -> usize {
        let names = &self.node.outputs;
        names
            .iter()
            .rposition(|name| !name.is_empty())
            .map_or(0, |last| last + 1)
    }
}

fn unlike(name: &str) -> String {
    format!("has an attribute `{name}` of another type than ONNX says")
}

/// Returns which dimension an axis means; negative ones count from the end.
pub(crate) fn axis(axis: i64, rank: usize) -> Result<usize, String> {
    let counted = if axis < 0 {
        axis.saturating_add(rank as i64)
    } else {
        axis
    };
    usize::try_from(counted)
        .ok()
        .filter(|&dimension| dimension < rank)
        .ok_or_else(|| format!("has axis {axis}, but its operand has {rank} dimensions"))
}

/// What all values together take.
#[derive(Debug, Default)]
struct Bill {
    values: usize,
    work: u64,
}

impl Bill {
    fn add(&mut self, name: &str, value: &Value) -> Result<(), Refusal> {
        let n = elements(&value.dims).unwrap_or(usize::MAX);
        if n > limits::VALUE || value.rank() > limits::RANK {
            let (value, shape) = (shown(name), shape(&value.dims));
            return Err(Refusal::Value { value, shape });
        }
        self.values = self.values.saturating_add(n);
        if self.values > limits::VALUES {
            return Err(Refusal::Memory);
        }
        Ok(())
    }

    fn add_work(&mut self, work: u64) -> Result<(), Refusal> {
        self.work = self.work.saturating_add(work);
        if self.work > limits::WORK {
            return Err(Refusal::Work);
        }
        Ok(())
    }
}

/// Works out the shape of the output for one sample, given the shape of the input.
///
/// # Errors
///
/// A tensor, operator, shape or limit that stands against it.
pub(crate) fn of_output(plan: &Plan, input: [usize; 4]) -> Result<Value, Refusal> {
    let mut known: HashMap<&str, Value> = HashMap::new();
    for (name, bytes) in &plan.tensors {
        known.insert(name, Tensor::read(bytes, name)?);
    }
    known.insert(plan.input.name, Value::unknown(Kind::Float, input.to_vec()));
    let mut bill = Bill::default();
    for node in &plan.nodes {
        let results = results(node, plan.opset(), &known, &mut bill)?;
        known.extend(results);
    }
    known.remove(plan.output).ok_or_else(|| Refusal::Undefined {
        value: shown(plan.output),
    })
}

/// Works out what one node computes.
fn results<'a>(
    node: &'a Node<'a>,
    opset: i64,
    known: &HashMap<&str, Value>,
    bill: &mut Bill,
) -> Result<Vec<(&'a str, Value)>, Refusal> {
    let fault = |cause: String| Refusal::Shape {
        operator: node.full_operator(),
        value: node.result(),
        cause,
    };
    let inputs = node.inputs.iter().map(|name| known.get(name)).collect();
    let call = Call {
        node,
        opset,
        inputs,
    };
    let Some(rule) = operators::rule(node.operator) else {
        return Err(Refusal::Operator {
            operator: node.full_operator(),
        });
    };
    let outcome = rule(&call).map_err(fault)?;
    if call.wanted() > outcome.values.len() {
        let most = outcome.values.len();
        return Err(fault(format!(
            "should give {} results and gives {most}",
            call.wanted()
        )));
    }
    let work = outcome.work;
    let mut results = Vec::new();
    for (&name, value) in node.outputs.iter().zip(outcome.values) {
        bill.add(name, &value)?;
        if value.kind == Kind::Float && value.dims.contains(&0) {
            return Err(fault(
                "gives nothing: the images are too small for it".to_owned(),
            ));
        }
        results.push((name, value));
    }
    bill.add_work(work)?;
    Ok(results)
}
