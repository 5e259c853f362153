//! Changes of layout: images with the channels outermost or innermost, weights in panels.
//!
//! Between layers an image lies channel by channel, as in PyTorch. Inside a kernel the channels are innermost.

/// Columns of one block of a transpose: so few that the target's lines stay in the fastest cache.
const BLOCK: usize = 16;

/// Writes the transpose of a `rows × columns` matrix.
///
/// `target` has `columns` lines of `stride` numbers. Numbers of a line beyond `rows` stay as they are.
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
