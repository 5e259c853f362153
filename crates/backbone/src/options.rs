//! How a backbone is used: which output, which size of images, which numbers to subtract and divide by.

use crate::error::BackboneError;
use crate::images::Channel;
use crate::limits;

/// How a backbone is used. [`Options::default`] suits most networks that were trained on ImageNet.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// The name of the value that holds the features; it may be an inner one. Default: the only output.
    pub output: Option<String>,
    /// Height and width to which images are brought where the file leaves them free, 1 to 1024. Default: 224 × 224.
    pub size: Option<[usize; 2]>,
    /// What is subtracted from pixels from 0 to 1: one number per channel, or one for all.
    ///
    /// Default: ImageNet's 0.485, 0.456 and 0.406 for three channels, else their average, 0.449.
    pub mean: Option<Vec<f32>>,
    /// By what the rest is divided: one number per channel, or one for all.
    ///
    /// Default: ImageNet's 0.229, 0.224 and 0.225 for three channels, else their average, 0.226.
    pub scale: Option<Vec<f32>>,
    /// How many images are computed at a time, 1 to 1024. The features do not depend on it. Default: 1.
    pub threads: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            output: None,
            size: None,
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
        if let Some(size) = self.size
            && size.iter().any(|side| !(1..=limits::SIDE).contains(side))
        {
            let advice = format!("give a height and a width from 1 to {}", limits::SIDE);
            return Err(unfit("size", format!("{size:?}"), advice));
        }
        Ok(())
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
