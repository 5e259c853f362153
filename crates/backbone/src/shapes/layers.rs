//! Rules of convolutions, poolings and normalisations.

use super::{Call, Outcome, Value};
use crate::error::shape;
use crate::tensor::elements;

/// A window that moves over the spatial dimensions.
struct Window {
    kernel: Vec<usize>,
    strides: Vec<usize>,
    dilations: Vec<usize>,
    /// Sums of the padding at both ends; `None` where the output has the size of the input over the stride.
    pads: Option<Vec<usize>>,
    rounds_up: bool,
}

impl Window {
    fn of(call: &Call, spatial: usize) -> Result<Self, String> {
        let list =
            |name: &str, usual: usize, length: usize, least: i64| -> Result<Vec<usize>, String> {
                let Some(given) = call.ints(name)? else {
                    return Ok(vec![usual; length]);
                };
                let fits = |value: &i64| (least..=1 << 16).contains(value);
                if given.len() != length || !given.iter().all(fits) {
                    return Err(format!("has `{name}` that do not fit {spatial} dimensions"));
                }
                Ok(given.iter().map(|&value| value as usize).collect())
            };
        if call.ints("kernel_shape")?.is_none() {
            return Err("does not say its `kernel_shape`".to_owned());
        }
        let pads = list("pads", 0, 2 * spatial, 0)?;
        let pads = match call.text("auto_pad")?.unwrap_or("NOTSET") {
            "NOTSET" => Some(
                (0..spatial)
                    .map(|at| pads[at] + pads[at + spatial])
                    .collect(),
            ),
            "VALID" if pads.iter().all(|&pad| pad == 0) => Some(vec![0; spatial]),
            "SAME_UPPER" if pads.iter().all(|&pad| pad == 0) => None,
            _ => return Err("has an `auto_pad` that is not taken".to_owned()),
        };
        Ok(Self {
            kernel: list("kernel_shape", 1, spatial, 1)?,
            strides: list("strides", 1, spatial, 1)?,
            dilations: list("dilations", 1, spatial, 1)?,
            pads,
            rounds_up: call.int("ceil_mode")?.unwrap_or(0) != 0,
        })
    }

    /// Returns the spatial sizes of the output.
    fn slide(&self, sizes: &[usize]) -> Result<Vec<usize>, String> {
        (0..sizes.len())
            .map(|at| self.slide_along(at, sizes[at]))
            .collect()
    }

    fn slide_along(&self, at: usize, size: usize) -> Result<usize, String> {
        let stride = self.strides[at];
        let Some(pads) = &self.pads else {
            return Ok(size.div_ceil(stride));
        };
        let reach = self.dilations[at] * (self.kernel[at] - 1) + 1;
        let room = (size + pads[at])
            .checked_sub(reach)
            .ok_or_else(|| format!("has a window of {reach} on {size} pixels"))?;
        let steps = if self.rounds_up {
            room.div_ceil(stride)
        } else {
            room / stride
        };
        Ok(steps + 1)
    }
}

pub(crate) fn conv(call: &Call) -> Result<Outcome, String> {
    let (value, weight) = (call.input(0)?, call.input(1)?);
    let spatial = value.rank().saturating_sub(2);
    let window = Window::of(call, spatial)?;
    let groups = call.int("group")?.unwrap_or(1);
    let groups = usize::try_from(groups).ok().filter(|&groups| groups > 0);
    let groups = groups.ok_or("has no groups")?;
    let fits = value.rank() >= 3
        && weight.rank() == value.rank()
        && weight.dims[1].checked_mul(groups) == Some(value.dims[1])
        && weight.dims[0].is_multiple_of(groups)
        && weight.dims[2..] == window.kernel[..];
    let biased = call
        .optional(2)
        .is_none_or(|bias| bias.dims == weight.dims[..1]);
    if !fits || !biased {
        return Err(format!(
            "has weights of {} for {}",
            shape(&weight.dims),
            shape(&value.dims)
        ));
    }
    let mut dims = vec![value.dims[0], weight.dims[0]];
    dims.extend(window.slide(&value.dims[2..])?);
    let each = elements(&weight.dims[1..]).unwrap_or(usize::MAX);
    Ok(Outcome::costly(Value::unknown(value.kind, dims), each))
}

/// Pooling by mean or maximum in a window.
pub(crate) fn pool(call: &Call) -> Result<Outcome, String> {
    let value = call.input(0)?;
    let (Some(outer), Some(sizes)) = (value.dims.get(..2), value.dims.get(2..)) else {
        return Err(format!("pools {}", shape(&value.dims)));
    };
    let window = Window::of(call, sizes.len())?;
    if window.dilations.iter().any(|&dilation| dilation != 1) {
        return Err("has dilations".to_owned());
    }
    // ONNX has a default, but the runtime has none.
    if call.ints("strides")?.is_none() {
        return Err("does not say its `strides`".to_owned());
    }
    let mut dims = outer.to_vec();
    dims.extend(window.slide(sizes)?);
    let each = elements(&window.kernel).unwrap_or(usize::MAX);
    Ok(Outcome::costly(Value::unknown(value.kind, dims), each))
}

/// Normalisations leave the shape as it is.
pub(crate) fn normalisation(call: &Call) -> Result<Outcome, String> {
    let value = call.input(0)?;
    Ok(Outcome::costly(
        Value::unknown(value.kind, value.dims.clone()),
        4,
    ))
}

/// Softmax along one dimension. Before version 13 it meant all dimensions from the axis on.
pub(crate) fn softmax(call: &Call) -> Result<Outcome, String> {
    let value = call.input(0)?;
    let at = call
        .int("axis")?
        .unwrap_or(if call.opset < 13 { 1 } else { -1 });
    let at = super::axis(at, value.rank())?;
    let said = call.int("axis")?.is_some();
    if call.opset < 13 && !(said && at + 1 == value.rank()) {
        return Err("has another meaning before version 13 of the operators".to_owned());
    }
    Ok(Outcome::costly(
        Value::unknown(value.kind, value.dims.clone()),
        4,
    ))
}
