//! Rules of operators that work number by number, with broadcasting.
//!
//! Broadcasting is that of ONNX and NumPy: shapes are aligned at their ends, and a size of 1 is repeated.

use super::{Call, Outcome, Value};
use crate::error::shape;
use crate::graph::Attribute;
use crate::tensor::{Kind, SMALL, elements};

/// One number in, one number out. Bounds and slopes beside the first operand change no shape.
pub(crate) fn unary(call: &Call) -> Result<Outcome, String> {
    let value = call.input(0)?;
    Ok(Value::unknown(value.kind, value.dims.clone()).into())
}

pub(crate) fn identity(call: &Call) -> Result<Outcome, String> {
    Ok(call.input(0)?.clone().into())
}

pub(crate) fn add(call: &Call) -> Result<Outcome, String> {
    pair(call, Some(i64::checked_add))
}

pub(crate) fn sub(call: &Call) -> Result<Outcome, String> {
    pair(call, Some(i64::checked_sub))
}

pub(crate) fn mul(call: &Call) -> Result<Outcome, String> {
    pair(call, Some(i64::checked_mul))
}

pub(crate) fn div(call: &Call) -> Result<Outcome, String> {
    pair(call, Some(i64::checked_div))
}

pub(crate) fn pow(call: &Call) -> Result<Outcome, String> {
    pair(call, None)
}

pub(crate) fn max(call: &Call) -> Result<Outcome, String> {
    every(call)
}

pub(crate) fn min(call: &Call) -> Result<Outcome, String> {
    every(call)
}

pub(crate) fn equal(call: &Call) -> Result<Outcome, String> {
    let same: Step = |a, b| Some(i64::from(a == b));
    let value = combined(call.input(0)?, call.input(1)?, Some(same))?;
    Ok(Value {
        kind: Kind::Bool,
        ..value
    }
    .into())
}

/// A slope for numbers below zero, which may be broadcast to the first operand and no further.
pub(crate) fn p_relu(call: &Call) -> Result<Outcome, String> {
    let (value, slope) = (call.input(0)?, call.input(1)?);
    if broadcast(&value.dims, &slope.dims)? != value.dims {
        return Err("has more slopes than numbers".to_owned());
    }
    unary(call)
}

/// `Where`: one of two numbers, by a truth value.
pub(crate) fn select(call: &Call) -> Result<Outcome, String> {
    let (condition, yes, no) = (call.input(0)?, call.input(1)?, call.input(2)?);
    let either = combined(yes, no, None)?;
    let dims = broadcast(&condition.dims, &either.dims)?;
    let ints = match (&condition.ints, &yes.ints, &no.ints) {
        (Some(condition_ints), Some(yes_ints), Some(no_ints)) => indices(&dims).map(|all| {
            let at =
                |index: &[usize], value: &Value, ints: &[i64]| ints[offset(index, &value.dims)];
            let one = |index: &Vec<usize>| match at(index, condition, condition_ints) {
                0 => at(index, no, no_ints),
                _ => at(index, yes, yes_ints),
            };
            all.iter().map(one).collect()
        }),
        _ => None,
    };
    Ok(Value {
        kind: yes.kind,
        dims,
        ints,
    }
    .into())
}

pub(crate) fn cast(call: &Call) -> Result<Outcome, String> {
    let value = call.input(0)?;
    let to = call.int("to")?.ok_or("does not say `to` what")?;
    let kind = Kind::of(to).ok_or_else(|| format!("gives ONNX's type {to}, which is not taken"))?;
    let ints = match kind {
        Kind::Float => None,
        Kind::Int => value.ints.clone(),
        Kind::Bool => value
            .ints
            .as_ref()
            .map(|ints| ints.iter().map(|&int| i64::from(int != 0)).collect()),
    };
    Ok(Value {
        kind,
        dims: value.dims.clone(),
        ints,
    }
    .into())
}

/// How two integers make one, where that has a result.
type Step = fn(i64, i64) -> Option<i64>;

fn pair(call: &Call, step: Option<Step>) -> Result<Outcome, String> {
    if call
        .node
        .attributes
        .values()
        .any(|value| *value != Attribute::Empty)
    {
        return Err("has attributes, and ONNX knows none".to_owned());
    }
    Ok(combined(call.input(0)?, call.input(1)?, step)?.into())
}

fn every(call: &Call) -> Result<Outcome, String> {
    let inputs = call.inputs()?;
    let (first, rest) = inputs.split_first().ok_or("has no operands")?;
    let mut value = Value::unknown(first.kind, first.dims.clone());
    for next in rest {
        value = combined(&value, next, None)?;
    }
    Ok(value.into())
}

fn combined(a: &Value, b: &Value, step: Option<Step>) -> Result<Value, String> {
    if a.kind != b.kind {
        return Err(format!("mixes {} and {}", a.kind.name(), b.kind.name()));
    }
    let dims = broadcast(&a.dims, &b.dims)?;
    let ints = match (&a.ints, &b.ints, step) {
        (Some(a_ints), Some(b_ints), Some(step)) => indices(&dims).and_then(|all| {
            let one = |index: &Vec<usize>| {
                step(
                    a_ints[offset(index, &a.dims)],
                    b_ints[offset(index, &b.dims)],
                )
            };
            all.iter().map(one).collect()
        }),
        _ => None,
    };
    Ok(Value {
        kind: a.kind,
        dims,
        ints,
    })
}

/// Returns the common shape of two that are broadcast to each other.
pub(crate) fn broadcast(a: &[usize], b: &[usize]) -> Result<Vec<usize>, String> {
    let rank = a.len().max(b.len());
    let size = |dims: &[usize], from_end: usize| {
        dims.len()
            .checked_sub(from_end)
            .map_or(1, |index| dims[index])
    };
    let common = |from_end: usize| match (size(a, from_end), size(b, from_end)) {
        (x, y) if x == y => Ok(x),
        (1, size) | (size, 1) => Ok(size),
        _ => Err(format!("cannot join {} and {}", shape(a), shape(b))),
    };
    (1..=rank).rev().map(common).collect()
}

/// Returns the places of all numbers of a small shape, in their order.
pub(crate) fn indices(dims: &[usize]) -> Option<Vec<Vec<usize>>> {
    let n = elements(dims).filter(|&n| n <= SMALL)?;
    let place = |mut number: usize| {
        let mut index = vec![0; dims.len()];
        for (at, &size) in index.iter_mut().zip(dims).rev() {
            *at = number % size;
            number /= size;
        }
        index
    };
    Some((0..n).map(place).collect())
}

/// Returns where the number at a place lies in a value that may be broadcast to that place's shape.
pub(crate) fn offset(index: &[usize], dims: &[usize]) -> usize {
    let aligned = &index[index.len() - dims.len()..];
    let step = |so_far: usize, (&at, &size): (&usize, &usize)| so_far * size + at.min(size - 1);
    aligned.iter().zip(dims).fold(0, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_aligned_at_their_ends() {
        assert_eq!(broadcast(&[2, 3, 4], &[3, 1]), Ok(vec![2, 3, 4]));
        assert_eq!(broadcast(&[], &[5]), Ok(vec![5]));
        assert_eq!(broadcast(&[1, 0], &[7, 1]), Ok(vec![7, 0]));
        assert!(broadcast(&[2, 3], &[2]).is_err());
    }

    #[test]
    fn integers_are_computed_along() {
        let of = |dims: &[usize], ints: &[i64]| Value {
            kind: Kind::Int,
            dims: dims.to_vec(),
            ints: Some(ints.to_vec()),
        };
        let sum = combined(
            &of(&[2, 1], &[10, 20]),
            &of(&[3], &[1, 2, 3]),
            Some(i64::checked_add),
        );
        assert_eq!(sum, Ok(of(&[2, 3], &[11, 12, 13, 21, 22, 23])));
        let by_zero = combined(&of(&[], &[1]), &of(&[], &[0]), Some(i64::checked_div)).unwrap();
        assert_eq!(by_zero.ints, None);
    }
}
