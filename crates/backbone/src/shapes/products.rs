//! Rules of matrix products.

use super::arithmetic::broadcast;
use super::{Call, Outcome, Value};
use crate::error::shape;

/// `MatMul`: products of the last two dimensions, the others broadcast.
pub(crate) fn mat_mul(call: &Call) -> Result<Outcome, String> {
    let (a, b) = (call.input(0)?, call.input(1)?);
    let unlike = || format!("cannot multiply {} and {}", shape(&a.dims), shape(&b.dims));
    let ([a_outer @ .., rows, inner], [b_outer @ .., depth, columns]) = (&a.dims[..], &b.dims[..])
    else {
        return Err(unlike());
    };
    if inner != depth || a.kind != b.kind {
        return Err(unlike());
    }
    let mut dims = broadcast(a_outer, b_outer)?;
    dims.extend([*rows, *columns]);
    Ok(Outcome::costly(Value::unknown(a.kind, dims), *inner))
}

/// `Gemm`: one product of matrices, either of which may be transposed, and a bias.
pub(crate) fn gemm(call: &Call) -> Result<Outcome, String> {
    let (a, b) = (call.input(0)?, call.input(1)?);
    let unlike = || format!("cannot multiply {} and {}", shape(&a.dims), shape(&b.dims));
    let sides = |value: &Value, flag: &str| -> Result<(usize, usize), String> {
        let &[rows, columns] = &value.dims[..] else {
            return Err(unlike());
        };
        let turned = call.int(flag)?.unwrap_or(0) != 0;
        Ok(if turned {
            (columns, rows)
        } else {
            (rows, columns)
        })
    };
    let ((rows, inner), (depth, columns)) = (sides(a, "transA")?, sides(b, "transB")?);
    if inner != depth || a.kind != b.kind {
        return Err(unlike());
    }
    let dims = vec![rows, columns];
    if let Some(bias) = call.optional(2)
        && broadcast(&dims, &bias.dims)? != dims
    {
        return Err(format!(
            "has a bias of {} for {}",
            shape(&bias.dims),
            shape(&dims)
        ));
    }
    Ok(Outcome::costly(Value::unknown(a.kind, dims), inner))
}
