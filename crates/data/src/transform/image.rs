//! One image as bytes, channel by channel and row by row, changed in its place.

/// The bytes of one image.
#[derive(Debug)]
pub(super) struct Image<'a> {
    values: &'a mut [u8],
    height: usize,
    width: usize,
    white: u8,
}

impl<'a> Image<'a> {
    /// Takes the bytes of an image of `[channels, height, width]`.
    pub(super) fn new(values: &'a mut [u8], shape: [usize; 3], white: u8) -> Self {
        let [channels, height, width] = shape;
        debug_assert_eq!(values.len(), channels * height * width, "one whole image");
        Self {
            values,
            height,
            width,
            white,
        }
    }

    /// Returns the byte of a white pixel.
    pub(super) fn white(&self) -> u8 {
        self.white
    }

    /// Returns the shorter side in pixels.
    pub(super) fn shorter_side(&self) -> usize {
        self.height.min(self.width)
    }

    /// Changes every byte by itself.
    pub(super) fn map(&mut self, change: impl Fn(u8) -> u8) {
        self.values
            .iter_mut()
            .for_each(|value| *value = change(*value));
    }

    /// Turns a square image counter-clockwise by so many quarters of a circle, as `numpy.rot90` does.
    pub(super) fn turn(&mut self, quarters: u16) {
        let side = self.width;
        debug_assert_eq!(side, self.height, "transforms refuse other images before");
        let mut turned = vec![0; side * side];
        for plane in self.values.chunks_exact_mut((side * side).max(1)) {
            for _ in 0..quarters % 4 {
                for row in 0..side {
                    for column in 0..side {
                        turned[row * side + column] = plane[column * side + side - 1 - row];
                    }
                }
                plane.copy_from_slice(&turned);
            }
        }
    }

    /// Gives each pixel the weighted mean of those around it, first along the rows, then along the columns.
    ///
    /// `weights[d]` counts for both pixels at distance `d`; beyond the edge the pixel at the edge goes on.
    pub(super) fn smooth(&mut self, weights: &[f64]) {
        let (height, width) = (self.height, self.width);
        for plane in self.values.chunks_exact_mut((height * width).max(1)) {
            let floats: Vec<f64> = plane.iter().map(|value| f64::from(*value)).collect();
            let along_rows = smoothed(&floats, weights, Line::row(width));
            let both = smoothed(&along_rows, weights, Line::column(height, width));
            for (value, smooth) in plane.iter_mut().zip(both) {
                *value = rounded(smooth);
            }
        }
    }
}

/// How the lines of a plane lie along which it is smoothed.
#[derive(Debug, Clone, Copy)]
struct Line {
    /// Pixels of a line.
    length: usize,
    /// Places from one pixel of a line to the next.
    step: usize,
}

impl Line {
    fn row(width: usize) -> Self {
        Self {
            length: width,
            step: 1,
        }
    }

    fn column(height: usize, width: usize) -> Self {
        Self {
            length: height,
            step: width,
        }
    }
}

fn smoothed(plane: &[f64], weights: &[f64], Line { length, step }: Line) -> Vec<f64> {
    let total: f64 = weights[0] + 2.0 * weights[1..].iter().sum::<f64>();
    let pixel = |at: usize| {
        let along = at / step % length;
        let start = at - along * step;
        let value = |place: usize| plane[start + place.min(length - 1) * step];
        let sum: f64 = (1..).zip(&weights[1..]).fold(
            weights[0] * plane[at],
            |sum, (distance, weight): (usize, &f64)| {
                sum + weight * (value(along + distance) + value(along.saturating_sub(distance)))
            },
        );
        sum / total
    };
    (0..plane.len()).map(pixel).collect()
}

/// Returns the nearest byte.
pub(super) fn rounded(value: f64) -> u8 {
    (value + 0.5).clamp(0.0, 255.0) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turned(quarters: u16, values: &[u8], shape: [usize; 3]) -> Vec<u8> {
        let mut values = values.to_vec();
        Image::new(&mut values, shape, 255).turn(quarters);
        values
    }

    /// `numpy.rot90([[1, 2, 3], [4, 5, 6], [7, 8, 9]])` is `[[3, 6, 9], [2, 5, 8], [1, 4, 7]]`.
    #[test]
    fn turns_are_those_of_numpy() {
        let image = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        let turned = |quarters| turned(quarters, &image, [1, 3, 3]);
        assert_eq!(turned(0), image);
        assert_eq!(turned(1), [3, 6, 9, 2, 5, 8, 1, 4, 7]);
        assert_eq!(turned(2), [9, 8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(turned(3), [7, 4, 1, 8, 5, 2, 9, 6, 3]);
    }

    #[test]
    fn channels_turn_by_themselves() {
        assert_eq!(
            turned(1, &[1, 2, 3, 4, 5, 6, 7, 8], [2, 2, 2]),
            [2, 4, 1, 3, 6, 8, 5, 7]
        );
    }

    /// Weights 2, 1 are means of 1/4, 1/2, 1/4. Along the row 0 100 0 0 that gives 25 50 25 0. The column repeats its edge.
    #[test]
    fn smoothing_is_a_weighted_mean_with_the_edge_going_on() {
        let mut row = [0, 100, 0, 0];
        Image::new(&mut row, [1, 1, 4], 255).smooth(&[2.0, 1.0]);
        assert_eq!(row, [25, 50, 25, 0]);
        let mut column = [0, 100, 0, 0];
        Image::new(&mut column, [1, 4, 1], 255).smooth(&[2.0, 1.0]);
        assert_eq!(column, [25, 50, 25, 0]);
        let mut square = [0, 0, 0, 0, 160, 0, 0, 0, 0];
        Image::new(&mut square, [1, 3, 3], 255).smooth(&[2.0, 1.0]);
        assert_eq!(square, [10, 20, 10, 20, 40, 20, 10, 20, 10]);
        let mut even = [7; 9];
        Image::new(&mut even, [1, 3, 3], 255).smooth(&[3.0, 2.0, 1.0]);
        assert_eq!(even, [7; 9]);
    }
}
