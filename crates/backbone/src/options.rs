//! How a backbone is used: which output, which size of images, which numbers to subtract and divide by.
//!
//! What an option leaves open the file may say of itself, in `metadata_props`: `fednode.size` as `HEIGHTxWIDTH`,
//! `fednode.mean` and `fednode.scale` as one number, or as one for each channel with commas between them.

use crate::error::{BackboneError, shown};
use crate::images::Channel;
use crate::limits;

/// How a backbone is used. [`Options::default`] suits most networks that were trained on ImageNet.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// The name of the value that holds the features; it may be an inner one. Default: the only output.
    pub output: Option<String>,
    /// Height and width to which images are brought where the file leaves them free, 1 to 1024. Default: what the file
    /// says, else the usual size.
    pub size: Option<[usize; 2]>,
    /// Height and width where neither the option nor the file says any. Default: 224 × 224.
    pub usual_size: [usize; 2],
    /// What is subtracted from pixels from 0 to 1: one number per channel, or one for all.
    ///
    /// Default: what the file says, else ImageNet's 0.485, 0.456 and 0.406 for three channels, or their average, 0.449.
    pub mean: Option<Vec<f32>>,
    /// By what the rest is divided: one number per channel, or one for all.
    ///
    /// Default: what the file says, else ImageNet's 0.229, 0.224 and 0.225 for three channels, or their average, 0.226.
    pub scale: Option<Vec<f32>>,
    /// How many images are computed at a time, 1 to 1024. The features do not depend on it. Default: 1.
    pub threads: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            output: None,
            size: None,
            usual_size: [limits::USUAL_SIDE; 2],
            mean: None,
            scale: None,
            threads: 1,
        }
    }
}

impl Options {
    /// Checks what can be checked without the file.
    pub(crate) fn check(&self) -> Result<(), BackboneError> {
        if !(1..=limits::THREADS).contains(&self.threads) {
            let advice = format!("give 1 to {}", limits::THREADS);
            return Err(unfit("threads", self.threads.to_string(), advice));
        }
        let sizes = self.size.iter().chain([&self.usual_size]);
        let fits = |size: &&[usize; 2]| size.iter().all(|side| (1..=limits::SIDE).contains(side));
        if let Some(size) = sizes.into_iter().find(|size| !fits(size)) {
            let advice = format!("give a height and a width from 1 to {}", limits::SIDE);
            return Err(unfit("size", format!("{size:?}"), advice));
        }
        Ok(())
    }

    /// Returns the same options, and what a file says of itself where they leave something open.
    pub(crate) fn or_said(&self, metadata: &[(&str, &str)]) -> Result<Self, BackboneError> {
        let said = |name: &str| {
            let property = metadata.iter().find(|(key, _)| *key == name);
            property.map(|(_, text)| *text)
        };
        let mut whole = self.clone();
        if whole.size.is_none()
            && let Some(text) = said("fednode.size")
        {
            whole.size = Some(size_of(text)?);
        }
        if whole.mean.is_none()
            && let Some(text) = said("fednode.mean")
        {
            whole.mean = Some(numbers_of("mean", text)?);
        }
        if whole.scale.is_none()
            && let Some(text) = said("fednode.scale")
        {
            whole.scale = Some(numbers_of("scale", text)?);
        }
        whole.check()?;
        Ok(whole)
    }

    /// Returns mean and scale of each channel.
    pub(crate) fn normalisation(&self, channels: usize) -> Result<Vec<Channel>, BackboneError> {
        let mean = per_channel(
            "mean",
            self.mean.as_deref(),
            channels,
            [0.485, 0.456, 0.406],
            0.449,
        )?;
        let scale = per_channel(
            "scale",
            self.scale.as_deref(),
            channels,
            [0.229, 0.224, 0.225],
            0.226,
        )?;
        if let Some(zero) = scale.iter().find(|scale| !scale.is_normal()) {
            return Err(unfit(
                "scale",
                zero.to_string(),
                "give numbers other than 0".to_owned(),
            ));
        }
        let pairs = mean.into_iter().zip(scale);
        Ok(pairs.map(|(mean, scale)| Channel { mean, scale }).collect())
    }
}

/// Reads a size from what a file says of itself.
fn size_of(text: &str) -> Result<[usize; 2], BackboneError> {
    let sides = text.split_once('x');
    let sides = sides.and_then(|(height, width)| Some([height.parse().ok()?, width.parse().ok()?]));
    let advice = || "the file's own property must be as 224x224: give `size`".to_owned();
    sides.ok_or_else(|| unfit("size", shown(text), advice()))
}

/// Reads numbers from what a file says of itself.
fn numbers_of(option: &'static str, text: &str) -> Result<Vec<f32>, BackboneError> {
    let numbers: Result<Vec<f32>, _> = text.split(',').map(|part| part.trim().parse()).collect();
    numbers.map_err(|_| {
        let advice = format!(
            "the file's own property must be numbers with commas between them: give `{option}`"
        );
        unfit(option, shown(text), advice)
    })
}

/// Returns one number for each channel.
fn per_channel(
    option: &'static str,
    given: Option<&[f32]>,
    channels: usize,
    colours: [f32; 3],
    grey: f32,
) -> Result<Vec<f32>, BackboneError> {
    let numbers = match given {
        Some(&[one]) => vec![one; channels],
        Some(all) => all.to_vec(),
        None if channels == 3 => colours.to_vec(),
        None => vec![grey; channels],
    };
    if numbers.len() != channels || !numbers.iter().all(|number| number.is_finite()) {
        let advice =
            format!("give {channels} finite numbers, one for each channel, or one for all");
        return Err(unfit(
            option,
            format!("{:?}", given.unwrap_or_default()),
            advice,
        ));
    }
    Ok(numbers)
}

pub(crate) fn unfit(option: &'static str, given: String, advice: String) -> BackboneError {
    BackboneError::Option {
        option,
        given,
        advice,
    }
}
