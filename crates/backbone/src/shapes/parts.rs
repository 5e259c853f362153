//! Rules of operators that join values, and that take parts of them.

use super::layout::moved;
use super::{Call, Outcome, Value, axis};
use crate::error::shape;
use crate::tensor::{SMALL, elements};

pub(crate) fn concat(call: &Call) -> Result<Outcome, String> {
    let inputs = call.inputs()?;
    let (first, rest) = inputs.split_first().ok_or("has no operands")?;
    let at = axis(call.int("axis")?.ok_or("lacks an axis")?, first.rank())?;
    let mut dims = first.dims.clone();
    for next in rest {
        let mut common = next.dims.clone();
        if common.len() != dims.len() || next.kind != first.kind {
            return Err("joins values of other ranks or types".to_owned());
        }
        common[at] = dims[at];
        if common != dims {
            return Err(format!(
                "cannot join {} and {}",
                shape(&first.dims),
                shape(&next.dims)
            ));
        }
        dims[at] = dims[at]
            .checked_add(next.dims[at])
            .ok_or("gives too many numbers")?;
    }
    let parts: Option<Vec<&[i64]>> = inputs.iter().map(|value| value.ints.as_deref()).collect();
    // Lists are joined end to end; the few integers of more dimensions are not followed.
    let ints = parts
        .filter(|_| dims.len() == 1 && dims[0] <= SMALL)
        .map(|parts| parts.concat());
    Ok(Value {
        kind: first.kind,
        dims,
        ints,
    }
    .into())
}

pub(crate) fn split(call: &Call) -> Result<Outcome, String> {
    let value = call.input(0)?;
    let at = axis(call.int("axis")?.unwrap_or(0), value.rank())?;
    let n = call.node.outputs.len();
    let whole = value.dims[at];
    let sizes: Vec<usize> = match call.ints_of("split", 1)? {
        Some(sizes) => sizes
            .iter()
            .filter_map(|&size| usize::try_from(size).ok())
            .collect(),
        // The last part is smaller where the whole does not divide.
        None => {
            let part = whole.div_ceil(n.max(1));
            (0..n)
                .map(|index| whole.saturating_sub(index * part).min(part))
                .collect()
        }
    };
    if call
        .int("num_outputs")?
        .is_some_and(|said| said != n as i64)
        || sizes.len() != n
        || sizes
            .iter()
            .try_fold(0_usize, |sum, &size| sum.checked_add(size))
            != Some(whole)
    {
        return Err(format!("cannot divide {whole} into {n} parts as it says"));
    }
    let part = |size: &usize| {
        let mut dims = value.dims.clone();
        dims[at] = *size;
        Value::unknown(value.kind, dims)
    };
    let work = elements(&value.dims).unwrap_or(usize::MAX) as u64;
    Ok(Outcome {
        values: sizes.iter().map(part).collect(),
        work,
    })
}

pub(crate) fn gather(call: &Call) -> Result<Outcome, String> {
    let (value, places) = (call.input(0)?, call.input(1)?);
    let at = axis(call.int("axis")?.unwrap_or(0), value.rank())?;
    let size = value.dims[at];
    let mut dims = value.dims[..at].to_vec();
    dims.extend(&places.dims);
    dims.extend(&value.dims[at + 1..]);
    // Places that are computed from the images cannot be checked here; the runtime checks them.
    let sources: Option<Vec<usize>> = match &places.ints {
        Some(places) => Some(
            places
                .iter()
                .map(|&place| within(place, size))
                .collect::<Result<_, _>>()?,
        ),
        None => None,
    };
    let ints = match (&value.ints, sources) {
        (Some(ints), Some(sources)) if value.rank() == 1 => {
            Some(sources.iter().map(|&source| ints[source]).collect())
        }
        _ => None,
    };
    Ok(Value {
        kind: value.kind,
        dims,
        ints,
    }
    .into())
}

/// Returns which of `size` places is meant; negative ones count from the end.
fn within(place: i64, size: usize) -> Result<usize, String> {
    axis(place, size).map_err(|_| format!("takes place {place} of {size}"))
}

pub(crate) fn slice(call: &Call) -> Result<Outcome, String> {
    let value = call.input(0)?;
    let starts = call.ints_of("starts", 1)?.ok_or("lacks starts")?;
    let ends = call.ints_of("ends", 2)?.ok_or("lacks ends")?;
    let given_axes = call.ints_of("axes", 3)?;
    let given_steps = call.ints_of("steps", 4)?;
    let n = starts.len();
    if ends.len() != n
        || [given_axes, given_steps]
            .iter()
            .flatten()
            .any(|list| list.len() != n)
    {
        return Err("has lists of other lengths".to_owned());
    }
    let mut dims = value.dims.clone();
    let mut cuts = vec![(0, 1); value.rank()];
    for index in 0..n {
        let at = axis(
            given_axes.map_or(index as i64, |axes| axes[index]),
            value.rank(),
        )?;
        let step = given_steps.map_or(1, |steps| steps[index]);
        let cut = Cut::new(value.dims[at], starts[index], ends[index], step)?;
        dims[at] = cut.length;
        cuts[at] = (cut.start, step);
    }
    let source = |index: &[usize]| {
        let from = |(&place, &(start, step)): (&usize, &(i64, i64))| {
            usize::try_from(start + place as i64 * step).unwrap_or(0)
        };
        index.iter().zip(&cuts).map(from).collect()
    };
    Ok(moved(value, dims, source).into())
}

/// Where a slice of one dimension starts, and how long it is.
struct Cut {
    start: i64,
    length: usize,
}

impl Cut {
    fn new(size: usize, start: i64, end: i64, step: i64) -> Result<Self, String> {
        let size = size as i64;
        let counted = |at: i64| if at < 0 { at.saturating_add(size) } else { at };
        let (start, length) = match step {
            0 => return Err("has a step of 0".to_owned()),
            1.. => {
                let start = counted(start).clamp(0, size);
                (
                    start,
                    (counted(end).clamp(0, size) - start).max(0).unsigned_abs(),
                )
            }
            _ => {
                let start = counted(start).clamp(0, (size - 1).max(0));
                (
                    start,
                    (start - counted(end).clamp(-1, size - 1))
                        .max(0)
                        .unsigned_abs(),
                )
            }
        };
        let length = length.div_ceil(step.unsigned_abs());
        Ok(Self {
            start,
            length: length as usize,
        })
    }
}

pub(crate) fn pad(call: &Call) -> Result<Outcome, String> {
    let value = call.input(0)?;
    let pads = call.ints_of("pads", 1)?.ok_or("lacks pads")?;
    if call.optional(3).is_some() {
        return Err("pads chosen axes, which is not taken".to_owned());
    }
    if pads.len() != 2 * value.rank() {
        return Err(format!(
            "has {} pads for {} dimensions",
            pads.len(),
            value.rank()
        ));
    }
    let mut dims = value.dims.clone();
    for at in 0..value.rank() {
        for pad in [pads[at], pads[at + value.rank()]] {
            let added = usize::try_from(pad).map_err(|_| format!("has a pad of {pad}"))?;
            dims[at] = dims[at]
                .checked_add(added)
                .ok_or("gives too many numbers")?;
        }
    }
    Ok(Value::unknown(value.kind, dims).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_count_from_both_ends_and_backwards() {
        let length = |size, start, end, step| Cut::new(size, start, end, step).unwrap().length;
        assert_eq!(length(10, 2, -1, 3), 3);
        assert_eq!(length(10, -3, i64::MAX, 1), 3);
        assert_eq!(length(10, -1, i64::MIN, -1), 10);
        assert_eq!(length(10, 8, 2, -4), 2);
        assert_eq!(length(4, 7, 9, 1), 0);
        assert!(Cut::new(4, 0, 4, 0).is_err());
    }
}
