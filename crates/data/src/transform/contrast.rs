//! Images of less and less contrast: a shift of features that changes no label.
//!
//! Level `l` of `L` multiplies each pixel's deviation from mid-grey by a factor that falls evenly from 1 at level 0 to
//! [`FAINTEST`] at level `L - 1`. Mid-grey is half of white. Pixels stay bytes, so faint images have fewer shades.

use super::image::rounded;
use super::{Change, Domains, Image, Kind, MOST_LEVELS, Nature};

pub(super) const KIND: Kind = Kind {
    name: "contrast",
    form: "contrast:LEVELS[:HELD]",
    bounds: "LEVELS from 2 to 16 and HELD from 1 to LEVELS",
    about: "images of full contrast down to a quarter of it; node i holds HELD (1) of the levels, from level i mod LEVELS on",
    parse,
};

/// What is left of the contrast at the last level.
const FAINTEST: f64 = 0.25;

#[derive(Debug)]
struct Contrast {
    levels: Domains,
}

fn parse(arguments: &[&str]) -> Option<Box<dyn Change>> {
    Some(Box::new(Contrast {
        levels: Domains::parse(arguments, MOST_LEVELS)?,
    }))
}

impl Change for Contrast {
    fn check(&self, nature: &Nature) -> Result<(), String> {
        nature.need_images("fades")
    }

    fn domains(&self) -> Domains {
        self.levels
    }

    fn change_image(&self, domain: u16, image: &mut Image<'_>) {
        let factor = 1.0 - (1.0 - FAINTEST) * self.levels.level(domain);
        let grey = f64::from(image.white()) / 2.0;
        image.map(|value| rounded(grey + (f64::from(value) - grey) * factor));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mid-grey is 127.5; the factors of three levels are 1, 0.625 and 0.25.
    #[test]
    fn deviations_from_mid_grey_shrink() {
        let faded = |level| {
            let mut values = [0, 100, 255];
            let contrast = parse(&["3"]).unwrap();
            contrast.change_image(level, &mut Image::new(&mut values, [1, 1, 3], 255));
            values
        };
        assert_eq!(faded(0), [0, 100, 255]);
        assert_eq!(faded(1), [48, 110, 207]); // 47.8, 110.3, 207.2
        assert_eq!(faded(2), [96, 121, 159]); // 95.6, 120.6, 159.4
    }

    #[test]
    fn mid_grey_is_half_of_white() {
        let mut values = [0, 8, 16];
        let contrast = parse(&["2"]).unwrap();
        contrast.change_image(1, &mut Image::new(&mut values, [1, 1, 3], 16));
        assert_eq!(values, [6, 8, 10]);
    }
}
