//! Data for the tests: the first 640 training images of Fashion-MNIST (MIT licence, Zalando Research), kept beside
//! the tests so that none of them can pass by finding no data.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

pub mod federation;
pub mod golden;

use std::io::Read;
use std::sync::Arc;

use fednode_core::FederationSpec;
use fednode_data::{Pixels, Samples, Split};

/// Side of the images.
pub const SIDE: usize = 28;

/// Returns the path of a test file.
pub fn path(name: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

fn unpack(name: &str, header: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path(name)).unwrap();
    flate2::read::GzDecoder::new(file)
        .read_to_end(&mut bytes)
        .unwrap();
    bytes.split_off(header)
}

fn names() -> Arc<[String]> {
    (0..10).map(|class| class.to_string()).collect()
}

/// Returns the 640 images.
pub fn fashion() -> Samples {
    let values = unpack("fashion-640-images-idx3-ubyte.gz", 16);
    let labels = unpack("fashion-640-labels-idx1-ubyte.gz", 8)
        .into_iter()
        .map(u16::from)
        .collect();
    Samples::new(
        [1, SIDE, SIDE],
        Pixels::Bytes { values, white: 255 },
        labels,
        names(),
    )
    .unwrap()
}

/// Returns the 640 images as 7×7: every pixel the mean of 4×4.
pub fn small_fashion() -> Samples {
    let large = fashion();
    let mut pixels = Vec::new();
    large.write_batch(&(0..large.len() as u32).collect::<Vec<_>>(), &mut pixels);
    let mut values = Vec::new();
    for image in pixels.chunks_exact(SIDE * SIDE) {
        for (row, column) in (0..7).flat_map(|row| (0..7).map(move |column| (row, column))) {
            let block = (0..16).map(|i| image[(4 * row + i / 4) * SIDE + 4 * column + i % 4]);
            values.push(block.sum::<f32>() / 16.0);
        }
    }
    Samples::new([1, 7, 7], Pixels::Floats(values), large.labels, names()).unwrap()
}

/// Divides samples: the first for training, 70 each for validation and test.
pub fn split(samples: &Samples, n_train: u32) -> Arc<Split> {
    let range = |from: u32, to: u32| samples.subset(&(from..to).collect::<Vec<_>>());
    Arc::new(Split {
        train: range(0, n_train),
        validation: range(500, 570),
        test: range(570, 640),
    })
}

/// Returns a valid spec for the samples.
pub fn spec(algorithm: &str, model: &str, samples: &Samples) -> FederationSpec {
    let mut spec = FederationSpec {
        algorithm: algorithm.into(),
        ..FederationSpec::default()
    };
    spec.model.name = model.into();
    spec.fingerprints.input = samples.shape;
    spec.training.learning_rate = 0.1;
    fednode_learn::algorithm::fill_exchange(&mut spec).unwrap();
    spec
}
