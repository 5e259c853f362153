//! What happens to images on their way into a training step: shifted, mirrored, or nothing.

use serde::{Deserialize, Serialize};

/// Pixels by which a crop may be shifted, up, down, left or right.
pub const CROP_SHIFT: usize = 4;

/// What is done to every training image, drawn anew in every epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Augmentation {
    /// Nothing.
    #[default]
    None,
    /// A crop of the image's own size out of the image with [`CROP_SHIFT`] black pixels around it.
    Crop,
    /// Left and right are swapped, half of the time.
    Flip,
    /// First the crop, then the flip.
    CropFlip,
}

impl Augmentation {
    /// Tells whether images are cropped.
    pub const fn crops(self) -> bool {
        matches!(self, Self::Crop | Self::CropFlip)
    }

    /// Tells whether images are mirrored.
    pub const fn flips(self) -> bool {
        matches!(self, Self::Flip | Self::CropFlip)
    }

    /// Tells whether it is possible with samples: texts have no sides, and a row of a table has no height.
    pub(crate) fn suits(self, known: &crate::spec::Fingerprints) -> bool {
        let [_, height, width] = known.input;
        self == Self::None || (known.vocabulary_size == 0 && height.min(width) > CROP_SHIFT)
    }
}

#[cfg(test)]
mod tests {
    use crate::FederationSpec;

    #[test]
    fn only_images_have_sides() {
        let text = "[training]\naugmentation = \"crop-flip\"\n";
        let training = FederationSpec::from_toml(text).unwrap().training;
        assert!(training.augmentation.crops() && training.augmentation.flips());
        for other in [
            "vocabulary_size = 9",
            "input = [1, 1, 784]",
            "input = [3, 4, 32]",
        ] {
            let error =
                FederationSpec::from_toml(&format!("{text}[fingerprints]\n{other}")).unwrap_err();
            let expected = "`training.augmentation` is out of range: it must be `none` unless inputs are images of 5×5 pixels or more";
            assert_eq!(error.0, expected, "{other}");
        }
        let error = FederationSpec::from_toml("[training]\naugmentation = \"crops\"").unwrap_err();
        assert_eq!(
            error.0,
            "line 2: unknown value `crops`: did you mean `crop`? Allowed are `none`, `crop`, `flip`, `crop-flip`"
        );
    }
}
