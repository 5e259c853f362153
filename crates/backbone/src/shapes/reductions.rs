//! Rules of sums, means and maxima over dimensions.

use super::{Call, Outcome, Value, axis};
use crate::error::shape;
use crate::tensor::elements;

/// `ReduceMean` and its like.
pub(crate) fn reduce(call: &Call) -> Result<Outcome, String> {
    let value = call.input(0)?;
    let given = call.ints_of("axes", 1)?.unwrap_or_default();
    let keeps = call.int("keepdims")?.unwrap_or(1) != 0;
    let does_nothing = call.int("noop_with_empty_axes")?.unwrap_or(0) != 0;
    if given.is_empty() && does_nothing {
        return Ok(value.clone().into());
    }
    let axes: Vec<usize> = if given.is_empty() {
        (0..value.rank()).collect()
    } else {
        given
            .iter()
            .map(|&at| axis(at, value.rank()))
            .collect::<Result<_, _>>()?
    };
    let size = |at: usize| match axes.contains(&at) {
        true => keeps.then_some(1),
        false => Some(value.dims[at]),
    };
    let dims = (0..value.rank()).filter_map(size).collect();
    Ok(reduced(value, dims))
}

/// The mean of each channel.
pub(crate) fn global_pool(call: &Call) -> Result<Outcome, String> {
    let value = call.input(0)?;
    let Some(outer) = value.dims.get(..2).filter(|_| value.rank() > 2) else {
        return Err(format!("pools {}", shape(&value.dims)));
    };
    let mut dims = outer.to_vec();
    dims.resize(value.rank(), 1);
    Ok(reduced(value, dims))
}

fn reduced(value: &Value, dims: Vec<usize>) -> Outcome {
    let work = elements(&value.dims).unwrap_or(usize::MAX) as u64;
    Outcome {
        values: vec![Value::unknown(value.kind, dims)],
        work,
    }
}
