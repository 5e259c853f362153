//! The built-in data set: 1,797 handwritten digits of 8×8 pixels with values from 0 to 16 (UCI, CC BY 4.0; see
//! `data/NOTICE.md`). It needs no download, so it is the default for a first try and for tests.

use std::io::Read;
use std::path::Path;

use fednode_config::{TableDoc, config};
use flate2::read::GzDecoder;

use super::kind::Reader;
use super::{Columns, Facts, Pool, Source, numbered};
use crate::error::DataError;
use crate::samples::{Pixels, Samples};

/// One line per image: 64 pixels, then the digit.
const PACKED: &[u8] = include_bytes!("../../data/digits.csv.gz");
const SHAPE: [usize; 3] = [1, 8, 8];
const PIXELS: usize = 64;
const WHITE: u8 = 16;

#[derive(Debug)]
struct Digits;

config! {
    /// The built-in digits have no options.
    pub(super) struct Options {}
}

impl Reader for Options {
    const NAME: &'static str = "digits";
    const ABOUT: &'static str = "1,797 handwritten digits of 8x8 pixels, built in";
    const ARGUMENT: Option<&'static str> = None;

    fn table() -> TableDoc {
        Self::doc()
    }

    fn open(self, _columns: &Columns) -> Result<Box<dyn Source>, DataError> {
        Ok(Box::new(Digits))
    }
}

/// Returns pixels and labels of all images.
fn unpack() -> Result<(Vec<u8>, Vec<u16>), DataError> {
    let name = Path::new("built-in digits");
    let mut text = String::new();
    GzDecoder::new(PACKED)
        .read_to_string(&mut text)
        .map_err(DataError::read(name))?;
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    for line in text.lines() {
        let numbers: Result<Vec<u8>, _> = line.split(',').map(str::parse).collect();
        let numbers = numbers.map_err(|error| DataError::malformed(name, error.to_string()))?;
        let (image, label) = numbers.split_at(PIXELS.min(numbers.len()));
        pixels.extend_from_slice(image);
        labels.extend(label.iter().map(|label| u16::from(*label)));
    }
    Ok((pixels, labels))
}

impl Source for Digits {
    fn describe(&self) -> Result<Facts, DataError> {
        Ok(Facts::Images)
    }

    fn pool(&self) -> Result<Pool, DataError> {
        Ok(Pool {
            shape: SHAPE,
            labels: unpack()?.1,
            class_names: numbered(10),
            ..Pool::default()
        })
    }

    fn read(&self, pool: &Pool, wanted: &[u32]) -> Result<Samples, DataError> {
        let (values, labels) = unpack()?;
        let all = Samples::new(
            SHAPE,
            Pixels::Bytes {
                values,
                white: WHITE,
            },
            labels,
            pool.class_names.clone(),
        )?;
        Ok(all.subset(wanted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_the_published_data_set() {
        let pool = Digits.pool().unwrap();
        let all: Vec<u32> = (0..1797).collect();
        let samples = Digits.read(&pool, &all).unwrap();
        // Counts and sums as scikit-learn's load_digits gives them.
        assert_eq!(
            samples.class_counts(),
            [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
        );
        let Pixels::Bytes { values, white: 16 } = &samples.pixels else {
            panic!("bytes of 0 to 16 expected")
        };
        assert_eq!(
            values.iter().map(|value| u64::from(*value)).sum::<u64>(),
            561_718
        );
        assert_eq!(values.iter().max(), Some(&16));
        assert_eq!(values[..8], [0, 0, 5, 13, 9, 1, 0, 0]);
    }

    #[test]
    fn reads_the_wanted_images_in_order() {
        let pool = Digits.pool().unwrap();
        let samples = Digits.read(&pool, &[1, 0]).unwrap();
        assert_eq!(samples.labels, [1, 0]);
        let mut buffer = Vec::new();
        samples.write_batch(&[1], &mut buffer);
        assert_eq!(buffer[..4], [-1.0, -1.0, 5.0 / 8.0 - 1.0, 13.0 / 8.0 - 1.0]);
    }
}
