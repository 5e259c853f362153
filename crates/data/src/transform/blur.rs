//! Images that are less and less sharp: a shift of features that changes no label.
//!
//! ```text
//! level l of L:  sigma = l / (L - 1) * shorter side / 14      2 pixels of 28 at the last level
//! weight of a pixel at distance d along a row or a column:  exp(-d² / 2 sigma²),  d up to 3 sigma
//! ```
//!
//! Beyond the edge the pixel at the edge goes on.

use super::{Change, Domains, Image, Kind, MOST_LEVELS, Nature};

pub(super) const KIND: Kind = Kind {
    name: "blur",
    form: "blur:LEVELS[:HELD]",
    bounds: "LEVELS from 2 to 16 and HELD from 1 to LEVELS",
    about: "sharp images to blurred ones (Gaussian, 2 pixels of 28); node i holds HELD (1) of the levels, from level i mod \
            LEVELS on",
    parse,
};

/// How many sigmas of the last level the shorter side has.
const SIGMAS_PER_SIDE: f64 = 14.0;
/// Pixels beyond so many sigmas count for nothing.
const REACH: f64 = 3.0;

#[derive(Debug)]
struct Blur {
    levels: Domains,
}

fn parse(arguments: &[&str]) -> Option<Box<dyn Change>> {
    Some(Box::new(Blur {
        levels: Domains::parse(arguments, MOST_LEVELS)?,
    }))
}

impl Change for Blur {
    fn check(&self, nature: &Nature) -> Result<(), String> {
        nature.need_images("blurs")
    }

    fn domains(&self) -> Domains {
        self.levels
    }

    fn change_image(&self, domain: u16, image: &mut Image<'_>) {
        let sigma = self.levels.level(domain) * image.shorter_side() as f64 / SIGMAS_PER_SIDE;
        if sigma > 0.0 {
            image.smooth(&weights(sigma));
        }
    }
}

/// Returns the weights of pixels at distances 0, 1, … in pixels.
fn weights(sigma: f64) -> Vec<f64> {
    let reach = (REACH * sigma).ceil() as usize;
    (0..=reach)
        .map(|distance| {
            let in_sigmas = distance as f64 / sigma;
            libm::exp(-in_sigmas * in_sigmas / 2.0)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With sigma 1: exp(0), exp(-1/2), exp(-2), exp(-9/2).
    #[test]
    fn weights_are_gaussian() {
        let expected = [1.0, 0.606_530_66, 0.135_335_28, 0.011_109];
        let found = weights(1.0);
        assert_eq!(found.len(), 4);
        assert!(
            found
                .iter()
                .zip(expected)
                .all(|(found, expected)| (found - expected).abs() < 1e-6),
            "{found:?}"
        );
    }

    /// Fourteen pixels have a sigma of 1 at the last level: a point of 200 in one row spreads as the weights say.
    #[test]
    fn a_point_spreads() {
        let blur = parse(&["2"]).unwrap();
        let mut image = vec![0; 14 * 14];
        image[7 * 14..8 * 14].fill(200); // a line, so that only columns smooth it
        let sharp = image.clone();
        blur.change_image(0, &mut Image::new(&mut image, [1, 14, 14], 255));
        assert_eq!(image, sharp);
        blur.change_image(1, &mut Image::new(&mut image, [1, 14, 14], 255));
        let column: Vec<u8> = (3..12).map(|row| image[row * 14 + 5]).collect();
        // 200 / 2.50595 * (1, 0.60653, 0.13534, 0.01111) is 79.8, 48.4, 10.8, 0.9.
        assert_eq!(column, [0, 1, 11, 48, 80, 48, 11, 1, 0]);
    }
}
