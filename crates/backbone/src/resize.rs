//! Bilinear resizing with a window that widens when an image shrinks, so that no pixel is skipped.
//!
//! Pixel *i* of `out` pixels has its centre at *c* = (*i* + ½) · *s* in the source, with the scale *s* = `in` / `out`.
//! Pixel *j* of the source weighs max(0, 1 − |*j* + ½ − *c*| / max(*s*, 1)), and the weights of a pixel sum to 1. That is
//! the bilinear filter of Pillow, and of PyTorch with `antialias=True`. Without shrinking it is the usual bilinear one.

/// The source pixels of one pixel along one dimension.
#[derive(Debug, Clone, PartialEq)]
struct Taps {
    first: usize,
    weights: Vec<f32>,
}

impl Taps {
    fn of(index: usize, from: usize, to: usize) -> Self {
        let scale = from as f64 / to as f64;
        let reach = scale.max(1.0);
        let centre = (index as f64 + 0.5) * scale;
        let distance = |pixel: usize| (pixel as f64 + 0.5 - centre).abs() / reach;
        let first = (centre - reach - 0.5).ceil().max(0.0) as usize;
        let end = ((centre + reach + 0.5).floor() as usize).min(from);
        let weights: Vec<f64> = (first..end)
            .map(|pixel| (1.0 - distance(pixel)).max(0.0))
            .collect();
        let sum: f64 = weights.iter().sum();
        let weights = weights.iter().map(|weight| (weight / sum) as f32).collect();
        Self { first, weights }
    }
}

/// A resizing from one size to another.
#[derive(Debug)]
pub(crate) struct Resize {
    from: [usize; 2],
    rows: Vec<Taps>,
    columns: Vec<Taps>,
}

impl Resize {
    /// Prepares a resizing of `[height, width]`, or nothing where the sizes are the same.
    pub(crate) fn new(from: [usize; 2], to: [usize; 2]) -> Option<Self> {
        let taps = |at: usize| {
            (0..to[at])
                .map(|index| Taps::of(index, from[at], to[at]))
                .collect()
        };
        (from != to).then(|| Self {
            from,
            rows: taps(0),
            columns: taps(1),
        })
    }

    /// Resizes one channel and appends it.
    pub(crate) fn apply(&self, channel: &[f32], into: &mut Vec<f32>) {
        let [_, width] = self.from;
        let mut narrow = Vec::with_capacity(channel.len() / width * self.columns.len());
        for row in channel.chunks_exact(width) {
            narrow.extend(self.columns.iter().map(|taps| {
                let pixels = &row[taps.first..][..taps.weights.len()];
                pixels
                    .iter()
                    .zip(&taps.weights)
                    .map(|(pixel, weight)| pixel * weight)
                    .sum::<f32>()
            }));
        }
        let width = self.columns.len();
        for taps in &self.rows {
            let start = into.len();
            into.resize(start + width, 0.0);
            let rows = narrow[taps.first * width..].chunks_exact(width);
            for (row, weight) in rows.zip(&taps.weights) {
                for (sum, pixel) in into[start..].iter_mut().zip(row) {
                    *sum += pixel * weight;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halving_takes_a_window_of_four() {
        // Centre 1 of the first pixel, reach 2: distances 0.25, 0.25 and 0.75 within the image.
        let taps = Taps::of(0, 4, 2);
        assert_eq!(taps.first, 0);
        let expected = [0.75, 0.75, 0.25].map(|weight: f32| weight / 1.75);
        assert_eq!(taps.weights[..3], expected);
    }

    #[test]
    fn doubling_mixes_neighbours_by_quarters() {
        let resize = Resize::new([1, 2], [1, 4]).unwrap();
        let mut out = Vec::new();
        resize.apply(&[0.0, 1.0], &mut out);
        assert_eq!(out, [0.0, 0.25, 0.75, 1.0]);
    }

    #[test]
    fn an_even_image_stays_even() {
        for (from, to) in [([7, 5], [3, 9]), ([1, 1], [4, 4]), ([100, 3], [1, 1])] {
            let mut out = Vec::new();
            let resize = Resize::new(from, to).unwrap();
            resize.apply(&vec![0.5; from[0] * from[1]], &mut out);
            assert_eq!(out.len(), to[0] * to[1]);
            assert!(
                out.iter().all(|pixel| (pixel - 0.5).abs() < 1e-6),
                "{from:?} {out:?}"
            );
        }
    }
}
