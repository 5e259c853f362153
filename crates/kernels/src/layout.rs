//! Changes of layout: images with the channels outermost or innermost, weights in panels.
//!
//! Layers exchange images as PyTorch has them, channel by channel; inside, the channels are innermost.

/// Side of the blocks that a matrix is transposed in, so that both sides of a block stay in the fastest cache.
const BLOCK: usize = 16;

/// Writes the transpose of a `rows × columns` matrix, leaving what `target`'s longer lines hold beyond `rows` alone.
///
/// `target` has `columns` lines of `stride` numbers.
#[inline(always)]
pub(crate) fn transpose(source: &[f32], [rows, columns]: [usize; 2], target: &mut [f32], stride: usize) {
    for first_row in (0..rows).step_by(BLOCK) {
        let n_rows = BLOCK.min(rows - first_row);
        for first_column in (0..columns).step_by(BLOCK) {
            let n_columns = BLOCK.min(columns - first_column);
            for column in first_column..first_column + n_columns {
                let line = &mut target[column * stride + first_row..][..n_rows];
                for (row, value) in line.iter_mut().enumerate() {
                    *value = source[(first_row + row) * columns + column];
                }
            }
        }
    }
}
