//! Rules of operators that give the numbers of a value another shape or order.

use super::arithmetic::{broadcast, indices};
use super::constants::known_sizes;
use super::{Call, Outcome, Value, axis};
use crate::error::shape;
use crate::limits;
use crate::tensor::elements;

pub(crate) fn reshape(call: &Call) -> Result<Outcome, String> {
    let value = call.input(0)?;
    let wanted = call.ints_of("shape", 1)?.ok_or("lacks a shape")?;
    let keeps_zero = call.int("allowzero")?.unwrap_or(0) != 0;
    if wanted.len() > limits::RANK {
        return Err(format!(
            "gives {} dimensions, at most {} are taken",
            wanted.len(),
            limits::RANK
        ));
    }
    let mut dims = Vec::new();
    for (index, &size) in wanted.iter().enumerate() {
        dims.push(match size {
            0 if !keeps_zero => *value
                .dims
                .get(index)
                .ok_or("copies a size that is not there")?,
            // Placeholder of the size that follows from the others.
            -1 => 1,
            _ => usize::try_from(size).map_err(|_| format!("gives a size of {size}"))?,
        });
    }
    let unlike = || format!("cannot bring {} to {wanted:?}", shape(&value.dims));
    let all = elements(&value.dims).ok_or_else(unlike)?;
    let others = elements(&dims).ok_or_else(unlike)?;
    let mut open = (0..wanted.len()).filter(|&index| wanted[index] == -1);
    match (open.next(), open.next()) {
        (None, _) if others == all => {}
        (Some(index), None) if others > 0 && all.is_multiple_of(others) => {
            dims[index] = all / others
        }
        _ => return Err(unlike()),
    }
    Ok(Value {
        dims,
        ..value.clone()
    }
    .into())
}

pub(crate) fn flatten(call: &Call) -> Result<Outcome, String> {
    let value = call.input(0)?;
    let at = match call.int("axis")?.unwrap_or(1) {
        end if end == value.rank() as i64 => value.rank(),
        inner => axis(inner, value.rank())?,
    };
    let too_large = || "gives too many numbers".to_owned();
    let rows = elements(&value.dims[..at]).ok_or_else(too_large)?;
    let columns = elements(&value.dims[at..]).ok_or_else(too_large)?;
    Ok(Value {
        dims: vec![rows, columns],
        ..value.clone()
    }
    .into())
}

pub(crate) fn squeeze(call: &Call) -> Result<Outcome, String> {
    let value = call.input(0)?;
    let dropped: Vec<usize> = match call.ints_of("axes", 1)? {
        Some(axes) => axes
            .iter()
            .map(|&at| axis(at, value.rank()))
            .collect::<Result<_, _>>()?,
        None => (0..value.rank())
            .filter(|&at| value.dims[at] == 1)
            .collect(),
    };
    if let Some(&wide) = dropped.iter().find(|&&at| value.dims[at] != 1) {
        return Err(format!("drops a dimension of {}", value.dims[wide]));
    }
    let kept = (0..value.rank()).filter(|at| !dropped.contains(at));
    let dims = kept.map(|at| value.dims[at]).collect();
    Ok(Value {
        dims,
        ..value.clone()
    }
    .into())
}

pub(crate) fn unsqueeze(call: &Call) -> Result<Outcome, String> {
    let value = call.input(0)?;
    let axes = call.ints_of("axes", 1)?.ok_or("lacks axes")?;
    let rank = value.rank() + axes.len();
    if rank > limits::RANK {
        return Err(format!(
            "gives {rank} dimensions, at most {} are taken",
            limits::RANK
        ));
    }
    let new: Vec<usize> = axes
        .iter()
        .map(|&at| axis(at, rank))
        .collect::<Result<_, _>>()?;
    let mut old = value.dims.iter().copied();
    let size = |at: usize| {
        if new.contains(&at) {
            Some(1)
        } else {
            old.next()
        }
    };
    let dims: Vec<usize> = (0..rank).filter_map(size).collect();
    if dims.len() != rank {
        return Err("names an axis twice".to_owned());
    }
    Ok(Value {
        dims,
        ..value.clone()
    }
    .into())
}

pub(crate) fn transpose(call: &Call) -> Result<Outcome, String> {
    let value = call.input(0)?;
    let rank = value.rank();
    let order: Vec<usize> = match call.ints("perm")? {
        Some(order) => order
            .iter()
            .map(|&at| axis(at, rank))
            .collect::<Result<_, _>>()?,
        None => (0..rank).rev().collect(),
    };
    let mut seen = order.clone();
    seen.sort_unstable();
    if !seen.into_iter().eq(0..rank) {
        return Err(format!(
            "has an order that does not name each of {rank} dimensions once"
        ));
    }
    let dims: Vec<usize> = order.iter().map(|&at| value.dims[at]).collect();
    let source = |index: &[usize]| {
        let mut from = vec![0; rank];
        for (&at, &place) in order.iter().zip(index) {
            from[at] = place;
        }
        from
    };
    Ok(moved(value, dims, source).into())
}

pub(crate) fn expand(call: &Call) -> Result<Outcome, String> {
    let value = call.input(0)?;
    let dims = broadcast(&value.dims, &known_sizes(call, 1)?)?;
    Ok(Value::unknown(value.kind, dims).into())
}

/// Returns a value whose numbers come from other places of `value`.
pub(crate) fn moved(
    value: &Value,
    dims: Vec<usize>,
    source: impl Fn(&[usize]) -> Vec<usize>,
) -> Value {
    let ints = value.ints.as_ref().and_then(|ints| {
        let from = |index: &Vec<usize>| {
            let place = source(index);
            let steps = place.iter().zip(&value.dims);
            ints.get(steps.fold(0, |so_far, (&at, &size)| so_far * size + at))
                .copied()
        };
        indices(&dims)?.iter().map(from).collect()
    });
    Value {
        kind: value.kind,
        dims,
        ints,
    }
}
