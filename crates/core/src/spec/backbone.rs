//! A frozen network that turns images into features, as all members agree on it.
//!
//! ```text
//! image ─► resized to `size` ─► (pixel - mean) / scale ─► the file, up to `output` ─► features
//! ```
//!
//! The file itself lies with each node. It is known by its hash, and all that shapes the features by the key.

use serde::{Deserialize, Serialize};

use crate::BlobId;

/// Largest side of a prepared image.
const LARGEST_SIDE: usize = 1024;
/// Most channels of an image.
const MOST_CHANNELS: usize = 64;

/// A frozen network that turns images into features.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackboneSpec {
    /// BLAKE3 of the ONNX file.
    pub file: BlobId,
    /// A hash of all that features depend on: the file, what follows here, and how this software prepares images.
    pub key: BlobId,
    /// The name of the value that holds the features.
    pub output: String,
    /// Height and width to which images are brought.
    pub size: [usize; 2],
    /// What is subtracted from the pixels of each channel, which go from 0 to 1.
    pub mean: Vec<f64>,
    /// By what the rest is divided.
    pub scale: Vec<f64>,
}

impl BackboneSpec {
    /// Says what is wrong with it, if anything is.
    pub(super) fn fault(&self) -> Option<&'static str> {
        let sides = self.size.iter();
        let numbers = || self.mean.iter().chain(&self.scale);
        if !sides.clone().all(|side| (1..=LARGEST_SIDE).contains(side)) {
            Some("`size` must be a height and a width from 1 to 1024")
        } else if self.mean.len() != self.scale.len()
            || !(1..=MOST_CHANNELS).contains(&self.mean.len())
        {
            Some("`mean` and `scale` need one number for each channel, of 1 to 64 channels")
        } else if !numbers().all(|number| number.is_finite()) || self.scale.contains(&0.0) {
            Some("`mean` and `scale` must be finite numbers, and no scale may be 0")
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FederationSpec;

    fn backbone() -> BackboneSpec {
        BackboneSpec {
            file: BlobId::of(b"file"),
            key: BlobId::of(b"key"),
            output: "features".into(),
            size: [128, 96],
            mean: vec![0.498; 3],
            scale: vec![0.502; 3],
        }
    }

    #[test]
    fn another_backbone_is_another_federation() {
        let mut spec = FederationSpec::default();
        let plain = spec.id();
        spec.model.backbone = Some(backbone());
        assert_ne!(spec.id(), plain);
        assert_eq!(FederationSpec::from_toml(&spec.to_toml()), Ok(spec.clone()));
        let with = spec.id();
        spec.model.backbone = Some(BackboneSpec {
            size: [96, 128],
            ..backbone()
        });
        assert_ne!(spec.id(), with);
    }

    #[test]
    fn what_no_network_can_use_is_named() {
        let refused = |change: fn(&mut BackboneSpec)| {
            let mut spec = FederationSpec::default();
            let mut wrong = backbone();
            change(&mut wrong);
            spec.model.backbone = Some(wrong);
            spec.validate().unwrap_err().0
        };
        assert!(refused(|wrong| wrong.size = [0, 9]).contains("`size`"));
        assert!(refused(|wrong| wrong.mean = vec![0.5]).contains("one number for each channel"));
        assert!(refused(|wrong| wrong.scale[1] = 0.0).contains("no scale may be 0"));
        assert!(refused(|wrong| wrong.mean[1] = f64::NAN).contains("finite"));
    }
}
