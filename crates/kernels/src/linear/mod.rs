//! A fully connected layer: product with the weights, bias, optional ReLU. Forward pass and gradients.
//!
//! Weights are `[inputs][outputs]`, the transpose of PyTorch's. So the forward pass reads them in order, and the weight
//! gradient is an outer product. The input gradient is computed for many samples side by side, with the samples as
//! vectors. So it too reads the weights in order.

mod backward;
mod forward;

use pulp::Simd;
use rayon::prelude::*;

use crate::tile::{self, Span};

pub use backward::Gradients;

/// The function that follows the product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `max(x, 0)`; NaN stays NaN.
    Relu,
    /// No function.
    Identity,
}

/// The shape of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layer {
    /// Number of input features.
    pub inputs: usize,
    /// Number of output features.
    pub outputs: usize,
    /// The function that follows the product.
    pub activation: Activation,
}

/// Returns how many of `n_rows` rows each thread takes. The sums of a row do not depend on that.
fn share(n_rows: usize) -> usize {
    n_rows
        .div_ceil(rayon::current_num_threads())
        .max(LEAST_SHARE)
}

/// Fewest rows that are worth another thread, because each thread packs the other operand anew.
const LEAST_SHARE: usize = 32;

/// Rows that a product reads, one per sample.
#[derive(Clone, Copy)]
struct Operand<'a> {
    values: &'a [f32],
    width: usize,
}

/// Computes `[samples, columns]` of an operand, by many threads.
///
/// Threads share the samples of a narrow result and the columns of a wide one: small batches have few samples.
fn share_out(
    operand: Operand<'_>,
    columns: usize,
    result: &mut [f32],
    compute: impl Fn(&[f32], Span, &mut [f32]) + Sync,
) {
    let n_samples = operand.values.len() / operand.width;
    if columns >= 2 * LEAST_COLUMNS {
        return by_columns(n_samples, columns, result, |columns, result| {
            compute(operand.values, columns, result);
        });
    }
    let all = Span {
        start: 0,
        count: columns,
    };
    let share = share(n_samples);
    let shares = result
        .par_chunks_mut(share * columns)
        .zip(operand.values.par_chunks(share * operand.width));
    shares.for_each(|(result, values)| compute(values, all, result));
}

/// Computes a result whose many columns are shared out among threads.
///
/// Each thread computes `[rows, its columns]`, and a copy brings them into place. So each thread reads only its share of
/// the weights, which are most of what is read in small batches. The sums of a column do not depend on the threads.
fn by_columns(
    rows: usize,
    columns: usize,
    result: &mut [f32],
    compute: impl Fn(Span, &mut [f32]) + Sync,
) {
    let threads = rayon::current_num_threads();
    if threads == 1 {
        return compute(
            Span {
                start: 0,
                count: columns,
            },
            result,
        );
    }
    // Whole panels per thread: then panels begin at the same columns whatever the number of threads.
    let share = columns.div_ceil(threads).next_multiple_of(LEAST_COLUMNS);
    let shares = (0..columns.div_ceil(share)).into_par_iter().map(|number| {
        let start = number * share;
        let span = Span {
            start,
            count: share.min(columns - start),
        };
        let mut part = vec![0.0; rows * span.count];
        compute(span, &mut part);
        (span, part)
    });
    for (Span { start, count }, part) in shares.collect::<Vec<_>>() {
        for (line, part) in result
            .chunks_exact_mut(columns)
            .zip(part.chunks_exact(count))
        {
            line[start..start + count].copy_from_slice(part);
        }
    }
}

/// Fewest columns that are worth another thread. A multiple of the widest panel, so that panels begin at the same columns
/// with any number of threads.
const LEAST_COLUMNS: usize = 64;

/// Copies columns of a matrix into lines of `count` numbers, and fills up with zeros.
#[inline(always)]
fn pack(source: &[f32], columns: usize, start: usize, count: usize, lines: &mut [f32]) {
    let present = count.min(columns - start);
    for (line, source) in lines
        .chunks_exact_mut(count)
        .zip(source.chunks_exact(columns))
    {
        line[..present].copy_from_slice(&source[start..start + present]);
        line[present..].fill(0.0);
    }
}

/// Stores the first `present` numbers of a row; the rest are padding.
#[inline(always)]
fn store_present<S: Simd, const V: usize>(
    values: &mut [f32],
    present: usize,
    row: [S::f32s; V],
    simd: S,
) {
    for (vector, values) in row
        .into_iter()
        .zip(values[..present].chunks_mut(S::F32_LANES))
    {
        if values.len() == S::F32_LANES {
            tile::store::<S, 1>(values, [vector])
        } else {
            simd.partial_store_f32s(values, vector)
        }
    }
}
