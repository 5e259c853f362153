//! Changes of layout: images with the channels outermost or innermost, weights in panels.
//!
//! Layers exchange images as PyTorch has them, channel by channel; inside, the channels are innermost.

/// Columns of the blocks that a matrix is transposed in, so that the lines written to stay in the fastest cache.
const BLOCK: usize = 16;

/// Writes the transpose of a `rows × columns` matrix, leaving what `target`'s longer lines hold beyond `rows` alone.
///
/// `target` has `columns` lines of `stride` numbers.
#[inline(always)]
pub(crate) fn transpose(
    source: &[f32],
    [rows, columns]: [usize; 2],
    target: &mut [f32],
    stride: usize,
) {
    for first_column in (0..columns).step_by(BLOCK) {
        let n_columns = BLOCK.min(columns - first_column);
        let target = &mut target[first_column * stride..];
        for row in 0..rows {
            let source = &source[row * columns + first_column..][..n_columns];
            for (value, line) in source.iter().zip(target.chunks_mut(stride)) {
                line[row] = *value;
            }
        }
    }
}
