//! The two sums of products of which every kernel is made, for one tile of results in vector registers.
//!
//! ```text
//! rows:   acc[i][j] += sum_k  row_i[k] * panel[k][j]      rows contiguous in k: forward passes, input gradients
//! outer:  acc[i][j] += sum_k  left[k][i] * right[k][j]    both contiguous across:  weight gradients
//! ```
//!
//! `i` counts the rows of a tile (each a broadcast), `j` its vectors. A tile has one or two vectors, and as many rows as
//! the registers allow. More of either would spill registers; fewer would wait for the adders.

// Loops over rows and vectors index several arrays at once.
#![allow(clippy::needless_range_loop)]

use pulp::{Simd, WithSimd};

/// Largest number of rows of a tile.
pub(crate) const MAX_ROWS: usize = 12;

/// Returns the width to which a line of `width` numbers is padded, the same on every instruction set.
pub(crate) const fn padded(width: usize) -> usize {
    if width <= 8 {
        8
    } else {
        width.next_multiple_of(16)
    }
}

/// Runs code that is compiled for the best instruction set of this processor, for lines of this padded width.
///
/// A width of eight runs in vectors of eight: half of a longer vector would be padding.
#[inline]
pub(crate) fn dispatch<Op: WithSimd>(width: usize, op: Op) -> Op::Output {
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    {
        let width = width.min(widest());
        if width > 8
            && let Some(simd) = pulp::x86::V4::try_new()
        {
            return Simd::vectorize(simd, op);
        }
        if width > 4
            && let Some(simd) = pulp::x86::V3::try_new()
        {
            return Simd::vectorize(simd, op);
        }
    }
    let _ = width;
    #[cfg(target_arch = "aarch64")]
    return pulp::Arch::new().dispatch(op);
    #[cfg(not(target_arch = "aarch64"))]
    Simd::vectorize(pulp::Scalar128b, op)
}

/// Returns the length of the longest vectors that may be used. A test lowers it, to run the code of other processors.
#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
fn widest() -> usize {
    #[cfg(test)]
    return WIDEST.load(std::sync::atomic::Ordering::SeqCst);
    #[cfg(not(test))]
    usize::MAX
}

#[cfg(test)]
pub(crate) static WIDEST: std::sync::atomic::AtomicUsize =
    std::sync::atomic::AtomicUsize::new(usize::MAX);

/// A computation for one tile of `M` rows and `V` vectors.
pub(crate) trait Tile {
    fn run<S: Simd, const M: usize, const V: usize>(self, simd: S);
}

/// Runs a tile whose height and number of vectors are known at run time only.
#[inline(always)]
pub(crate) fn run<S: Simd, T: Tile>(simd: S, rows: usize, vectors: usize, tile: T) {
    match vectors {
        1 => run_rows::<S, 1, T>(simd, rows, tile),
        _ => run_rows::<S, 2, T>(simd, rows, tile),
    }
}

#[inline(always)]
fn run_rows<S: Simd, const V: usize, T: Tile>(simd: S, rows: usize, tile: T) {
    match rows {
        1 => tile.run::<S, 1, V>(simd),
        2 => tile.run::<S, 2, V>(simd),
        3 => tile.run::<S, 3, V>(simd),
        4 => tile.run::<S, 4, V>(simd),
        5 => tile.run::<S, 5, V>(simd),
        6 => tile.run::<S, 6, V>(simd),
        7 => tile.run::<S, 7, V>(simd),
        8 => tile.run::<S, 8, V>(simd),
        9 => tile.run::<S, 9, V>(simd),
        10 => tile.run::<S, 10, V>(simd),
        11 => tile.run::<S, 11, V>(simd),
        _ => tile.run::<S, 12, V>(simd),
    }
}

/// A range of rows or columns: where it starts and how many there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: usize,
    pub(crate) count: usize,
}

/// Divides rows into tiles of about the same height, as high as the registers allow beside `vectors` vectors.
#[inline(always)]
pub(crate) fn row_spans<S: Simd>(n_rows: usize, vectors: usize) -> impl Iterator<Item = Span> {
    // One register holds the broadcast number, `vectors` hold the line of the panel; the rest are for results.
    let highest = ((S::REGISTER_COUNT - vectors - 1) / vectors).min(MAX_ROWS);
    let n_spans = n_rows.div_ceil(highest);
    // Tiles of equal height: a last tile of one row would use a twelfth of the adders.
    (0..n_spans).map(move |span| {
        let (start, end) = (span * n_rows / n_spans, (span + 1) * n_rows / n_spans);
        Span {
            start,
            count: end - start,
        }
    })
}

/// Divides a padded width into panels of two vectors; the last panel may have one. Counts are in numbers.
#[inline(always)]
pub(crate) fn panel_spans<S: Simd>(padded: usize) -> impl Iterator<Item = Span> {
    debug_assert!(
        padded.is_multiple_of(S::F32_LANES),
        "the width was padded and the instructions chosen for it"
    );
    let widest = 2 * S::F32_LANES;
    (0..padded.div_ceil(widest)).map(move |panel| {
        let start = panel * widest;
        Span {
            start,
            count: widest.min(padded - start),
        }
    })
}

/// The registers of a tile.
pub(crate) type Registers<S, const M: usize, const V: usize> = [[<S as Simd>::f32s; V]; M];

/// Returns a tile with the same vectors in every row, or zeros.
#[inline(always)]
pub(crate) fn filled<S: Simd, const M: usize, const V: usize>(
    simd: S,
    row: Option<&[f32]>,
) -> Registers<S, M, V> {
    match row {
        Some(row) => [load::<S, V>(row); M],
        None => [[simd.splat_f32s(0.0); V]; M],
    }
}

/// Loads the vectors of one row.
#[inline(always)]
pub(crate) fn load<S: Simd, const V: usize>(values: &[f32]) -> [S::f32s; V] {
    let (vectors, _) = S::as_simd_f32s(&values[..V * S::F32_LANES]);
    std::array::from_fn(|vector| vectors[vector])
}

/// Stores the vectors of one row.
#[inline(always)]
pub(crate) fn store<S: Simd, const V: usize>(values: &mut [f32], row: [S::f32s; V]) {
    let (vectors, _) = S::as_mut_simd_f32s(&mut values[..V * S::F32_LANES]);
    vectors.copy_from_slice(&row);
}

/// Adds the product of rows and a panel. The panel has one line for each number of a row.
#[inline(always)]
pub(crate) fn rows<S: Simd, const M: usize, const V: usize>(
    simd: S,
    mut tile: Registers<S, M, V>,
    rows: [&[f32]; M],
    panel: &[f32],
    stride: usize,
) -> Registers<S, M, V> {
    let depth = rows[0].len();
    // Cut to one length, so that the compiler checks bounds once and not in the inner loop.
    let rows: [&[f32]; M] = std::array::from_fn(|row| &rows[row][..depth]);
    for k in 0..depth {
        let line = load::<S, V>(&panel[k * stride..]);
        for row in 0..M {
            let value = simd.splat_f32s(rows[row][k]);
            for vector in 0..V {
                tile[row][vector] = simd.mul_add_e_f32s(value, line[vector], tile[row][vector]);
            }
        }
    }
    tile
}

/// Lines at equal distances in memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lines<'a> {
    pub(crate) values: &'a [f32],
    pub(crate) stride: usize,
}

/// Adds outer products of the first `depth` lines of two matrices.
#[inline(always)]
pub(crate) fn outer<S: Simd, const M: usize, const V: usize>(
    simd: S,
    mut tile: Registers<S, M, V>,
    left: Lines<'_>,
    right: Lines<'_>,
    depth: usize,
) -> Registers<S, M, V> {
    for k in 0..depth {
        let column = &left.values[k * left.stride..][..M];
        let line = load::<S, V>(&right.values[k * right.stride..]);
        for row in 0..M {
            let value = simd.splat_f32s(column[row]);
            for vector in 0..V {
                tile[row][vector] = simd.mul_add_e_f32s(value, line[vector], tile[row][vector]);
            }
        }
    }
    tile
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_cover_everything_once() {
        for n in 1..100 {
            let spans: Vec<Span> = row_spans::<pulp::Scalar>(n, 2).collect();
            assert_eq!(spans.iter().map(|span| span.count).sum::<usize>(), n);
            assert!(
                spans
                    .windows(2)
                    .all(|pair| pair[0].start + pair[0].count == pair[1].start)
            );
            assert!(
                spans
                    .iter()
                    .all(|span| span.count <= MAX_ROWS && span.count > 0)
            );
        }
    }

    #[test]
    fn widths_are_padded_to_whole_vectors() {
        assert_eq!(
            [1, 6, 8, 9, 16, 17, 64].map(padded),
            [8, 8, 8, 16, 16, 32, 64]
        );
    }
}
