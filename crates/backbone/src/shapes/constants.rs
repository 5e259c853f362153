//! Rules of values that are known before anything runs: constants, and the shapes of other values.

use super::{Call, Outcome, Value};
use crate::graph::Attribute;
use crate::limits;
use crate::tensor::{Kind, SMALL, Tensor, elements};

/// A constant within the graph. The runtime reads the same few ways to write one.
pub(crate) fn constant(call: &Call) -> Result<Outcome, String> {
    let mut attributes = call.node.attributes.iter();
    let (Some((&name, value)), None) = (attributes.next(), attributes.next()) else {
        return Err("has no single value".to_owned());
    };
    let list = |ints: &[i64]| Value {
        kind: Kind::Int,
        dims: vec![ints.len()],
        ints: (ints.len() <= SMALL).then(|| ints.to_vec()),
    };
    let value = match (name, value) {
        ("value", Attribute::Tensor(bytes)) => Tensor::read(bytes, &call.node.result())
            .map_err(|refusal| format!("is wrong: {refusal}"))?,
        ("value_int", &Attribute::Int(int)) => Value {
            kind: Kind::Int,
            dims: vec![],
            ints: Some(vec![int]),
        },
        ("value_ints", Attribute::Ints(ints)) => list(ints),
        ("value_ints", Attribute::Empty) => list(&[]),
        ("value_float", Attribute::Float(_)) => Value::unknown(Kind::Float, vec![]),
        ("value_floats", &Attribute::Floats(n)) => Value::unknown(Kind::Float, vec![n]),
        _ => return Err("has a value of another form than ONNX says".to_owned()),
    };
    Ok(value.into())
}

pub(crate) fn constant_of_shape(call: &Call) -> Result<Outcome, String> {
    let dims = known_sizes(call, 0)?;
    let fill = match call.node.attributes.get("value") {
        None => Value::unknown(Kind::Float, vec![1]),
        Some(Attribute::Tensor(bytes)) => Tensor::read(bytes, &call.node.result())
            .map_err(|refusal| format!("is wrong: {refusal}"))?,
        Some(_) => return Err("has a value of another form than ONNX says".to_owned()),
    };
    let few = elements(&dims).filter(|&n| n <= SMALL);
    let ints = match (fill.ints.as_deref(), few) {
        (Some(&[int]), Some(n)) => Some(vec![int; n]),
        _ => None,
    };
    Ok(Value {
        kind: fill.kind,
        dims,
        ints,
    }
    .into())
}

pub(crate) fn shape(call: &Call) -> Result<Outcome, String> {
    let dims = &call.input(0)?.dims;
    let rank = dims.len() as i64;
    let bound =
        |at: i64| (if at < 0 { at.saturating_add(rank) } else { at }).clamp(0, rank) as usize;
    let start = bound(call.int("start")?.unwrap_or(0));
    let end = bound(call.int("end")?.unwrap_or(rank)).max(start);
    let ints: Vec<i64> = dims[start..end].iter().map(|&size| size as i64).collect();
    Ok(Value {
        kind: Kind::Int,
        dims: vec![ints.len()],
        ints: Some(ints),
    }
    .into())
}

/// Returns sizes that an operand holds.
pub(crate) fn known_sizes(call: &Call, index: usize) -> Result<Vec<usize>, String> {
    let ints = call.input(index)?.ints.as_deref();
    let ints = ints.ok_or("takes a shape that is not known before it runs")?;
    let size = |&size: &i64| usize::try_from(size).map_err(|_| format!("gives a size of {size}"));
    if ints.len() > limits::RANK {
        return Err(format!(
            "gives {} dimensions, at most {} are taken",
            ints.len(),
            limits::RANK
        ));
    }
    ints.iter().map(size).collect()
}
