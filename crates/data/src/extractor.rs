//! What turns images into features before anybody sees them: a frozen network, which runs in another crate.
//!
//! ```text
//! read ─► transforms ─► images of this node ─► Extractor ─► rows of features ─► training, validation, test
//! ```

use std::fmt;

use crate::error::DataError;
use crate::samples::{Pixels, Samples};

/// Turns each image into a row of features, whatever its neighbours are.
pub trait Extractor: fmt::Debug + Send + Sync {
    /// Returns the number of features of an image.
    fn width(&self) -> usize;

    /// Returns the features of all images, one row after another.
    ///
    /// # Errors
    /// One line that says what is wrong with the samples, or with the network.
    fn features(&self, samples: &Samples) -> Result<Vec<f32>, String>;
}

impl Samples {
    /// Returns the features that an extractor makes of images, `[1, 1, width]` each.
    ///
    /// # Errors
    /// Refuses samples that are no images, or that change from round to round, and passes on what the extractor says.
    pub fn extracted(&self, extractor: &dyn Extractor) -> Result<Self, DataError> {
        if !matches!(self.pixels, Pixels::Bytes { .. }) {
            let text =
                "a backbone looks at images, and these samples are none: leave out --backbone";
            return Err(DataError::Features(text.to_owned()));
        }
        if self.drift.is_some() {
            let text = "a backbone sees each image once, and `+drift` changes it from round to round: leave out one of them";
            return Err(DataError::Features(text.to_owned()));
        }
        let features = extractor.features(self).map_err(DataError::Features)?;
        let shape = [1, 1, extractor.width()];
        let (labels, names) = (self.labels.clone(), self.class_names.clone());
        let mut samples = Self::new(shape, Pixels::Floats(features), labels, names)?;
        samples.domains.clone_from(&self.domains);
        samples.targets.clone_from(&self.targets);
        Ok(samples)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{DataSource, ShardParams, load_shard, load_shards};

    /// The mean and the largest byte of an image.
    #[derive(Debug)]
    struct Coarse;

    impl Extractor for Coarse {
        fn width(&self) -> usize {
            2
        }

        fn features(&self, samples: &Samples) -> Result<Vec<f32>, String> {
            let Pixels::Bytes { values, .. } = &samples.pixels else {
                return Err("no images".into());
            };
            let row = |image: &[u8]| {
                let sum: f32 = image.iter().map(|byte| f32::from(*byte)).sum();
                let largest = image.iter().max().copied().unwrap_or(0);
                [sum / image.len() as f32, f32::from(largest)]
            };
            Ok(values
                .chunks_exact(samples.values_per_sample())
                .flat_map(row)
                .collect())
        }
    }

    const PARAMS: ShardParams = ShardParams {
        nodes: 3,
        seed: 1,
        samples_per_node: 40,
        validation_share: 0.1,
    };

    #[test]
    fn shards_hold_features_of_changed_images() {
        let plain: DataSource = "digits".parse().unwrap();
        let source = plain.clone().with_extractor(Some(Arc::new(Coarse)));
        let partition = "iid+contrast:3";
        let images = load_shard(&plain, partition, &PARAMS, 1).unwrap();
        let features = load_shard(&source, partition, &PARAMS, 1).unwrap();
        for (images, features) in [
            (&images.split.train, &features.split.train),
            (&images.split.validation, &features.split.validation),
            (&images.split.test, &features.split.test),
        ] {
            let expected = images.extracted(&Coarse).unwrap();
            assert_eq!(&expected, features);
            assert_eq!((features.shape, features.len()), ([1, 1, 2], images.len()));
        }
        assert_eq!(
            load_shards(&source, partition, &PARAMS).unwrap()[1],
            features
        );
    }

    #[test]
    fn what_is_no_still_image_is_refused() {
        let source: DataSource = "digits".parse().unwrap();
        let source = source.with_extractor(Some(Arc::new(Coarse)));
        let error = load_shard(&source, "iid+drift:1", &PARAMS, 0).unwrap_err();
        assert!(
            error.to_string().contains("leave out one of them"),
            "{error}"
        );
        let rows = Samples::new(
            [1, 1, 2],
            Pixels::Floats(vec![1.0, 2.0]),
            vec![0],
            ["a".to_owned()].into(),
        );
        let error = rows.unwrap().extracted(&Coarse).unwrap_err();
        assert!(
            error.to_string().contains("these samples are none"),
            "{error}"
        );
    }
}
