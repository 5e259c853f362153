//! A frozen feature extractor from an ONNX file, run on the CPU once per sample.
//!
//! ```text
//! file ─► graph ─► plan: what the output needs ─► shapes of one sample, against limits ─► a file written here ─► runtime
//!   │                                                                                                            │
//!   └─► BLAKE3: the id                     images ─► resized, normalised ─► one sample at a time ─► features ◄───┘
//! ```
//!
//! The file is hostile input. Before the runtime sees anything, [`Backbone::open`] refuses unknown operators, cycles,
//! graphs within nodes, data in other files, tensors that disagree with their data, and NaN among weights. It works out
//! every shape for one sample, so memory and time are bounded before they are spent ([`limits`]). The runtime is given a
//! file that was written here. It holds what the chosen output needs, and nothing else.
//!
//! Each sample is computed alone. So its features depend neither on its neighbours in a batch nor on the number of
//! threads, and may be cached under [`Backbone::key`]. On one core a batch would be no quicker: with EfficientNet-lite0 at
//! 128 × 128 the runtime took 15.4 ms for an image alone, and 15.2 to 16.2 in batches of 4 to 64.
//!
//! This crate never trains, opens no network connection and starts no thread that outlives a call, but for the
//! runtime's idle pools. It reads one file. `scripts/backbone` makes such a file from public weights.
//!
//! ```no_run
//! use fednode_backbone::{Backbone, Images, Options, Pixels};
//!
//! // Most networks want the default mean and scale; this one was trained on pixels from -1 to 1.
//! let options = Options {
//!     size: Some([128, 128]),
//!     mean: Some(vec![0.498]),
//!     scale: Some(vec![0.502]),
//!     ..Options::default()
//! };
//! let backbone = Backbone::open("efficientnet-lite0.onnx", &options)?;
//! let photographs = vec![0_u8; 2 * 3 * 100 * 80];
//! let images = Images::new(Pixels::Bytes(&photographs), [3, 100, 80])?;
//! let features = backbone.run(&images)?;
//! assert_eq!(features.len(), 2 * backbone.features());
//! # Ok::<(), fednode_backbone::BackboneError>(())
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod error;
mod graph;
mod images;
pub mod limits;
mod operators;
mod options;
mod plan;
mod resize;
mod runtime;
mod shapes;
mod tensor;
mod wire;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

pub use error::{BackboneError, Refusal};
pub use images::{Images, Pixels};
pub use options::Options;
pub use wire::WireError;

use graph::{Graph, Input};
use images::{Channel, Preparation};
use plan::Plan;
use runtime::{Runtime, Source};
use tensor::{Kind, elements};

/// The number of an ONNX type: 32-bit floats.
const FLOAT: i64 = 1;

/// A change of how images are prepared changes this, and with it every key of cached features.
const PREPARATION: u8 = 1;

/// What a network wants to see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InputShape {
    /// Channels of an image.
    pub channels: usize,
    /// The height that the file fixes, or nothing where any will do.
    pub height: Option<usize>,
    /// The width that the file fixes, or nothing where any will do.
    pub width: Option<usize>,
}

/// A frozen feature extractor.
#[derive(Debug)]
pub struct Backbone {
    path: PathBuf,
    id: blake3::Hash,
    key: blake3::Hash,
    output: String,
    input: InputShape,
    size: [usize; 2],
    features: usize,
    channels: Vec<Channel>,
    runtime: Runtime,
}

impl Backbone {
    /// Reads, checks and loads an ONNX file, and runs it once on a grey image.
    ///
    /// # Errors
    ///
    /// The file cannot be read, is refused or does not run; an option does not fit. One line says which.
    pub fn open(path: impl AsRef<Path>, options: &Options) -> Result<Self, BackboneError> {
        let path = path.as_ref();
        options.check()?;
        let file = read(path)?;
        let refused = |cause| BackboneError::Refused {
            path: path.to_owned(),
            cause,
        };
        let graph = Graph::read(&file).map_err(refused)?;
        let options = &options.or_said(&graph.metadata)?;
        let plan = Plan::of(&graph, options.output.as_deref()).map_err(refused)?;
        let input = InputShape::of(plan.input).map_err(refused)?;
        let size = input.size(options)?;
        let channels = options.normalisation(input.channels)?;
        let shape = [1, input.channels, size[0], size[1]];
        let features = n_features(&plan, shape).map_err(refused)?;
        let id = blake3::hash(&file);
        let key = key(id, plan.output, size, &channels);
        let source = Source {
            path,
            file: plan.file(shape),
            input: plan.input.name,
            output: plan.output,
            shape,
            features,
        };
        let runtime = Runtime::load(source, options.threads)?;
        let backbone = Self {
            path: path.to_owned(),
            id,
            key,
            output: plan.output.to_owned(),
            input,
            size,
            features,
            channels,
            runtime,
        };
        let grey = vec![0.5; input.channels * size[0] * size[1]];
        backbone.run(&Images::new(
            Pixels::Floats(&grey),
            [input.channels, size[0], size[1]],
        )?)?;
        Ok(backbone)
    }

    /// Returns the BLAKE3 hash of the file.
    #[must_use]
    pub fn id(&self) -> blake3::Hash {
        self.id
    }

    /// Returns a hash of all that features depend on: the file, the output, the size, mean and scale.
    #[must_use]
    pub fn key(&self) -> blake3::Hash {
        self.key
    }

    /// Returns where the file was read.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns what the network wants to see, as the file declares it.
    #[must_use]
    pub fn shape(&self) -> InputShape {
        self.input
    }

    /// Returns the height and width to which images are brought.
    #[must_use]
    pub fn size(&self) -> [usize; 2] {
        self.size
    }

    /// Returns the name of the value that holds the features.
    #[must_use]
    pub fn output(&self) -> &str {
        &self.output
    }

    /// Returns what is subtracted from the pixels of each channel, and by what the rest is divided.
    #[must_use]
    pub fn normalisation(&self) -> (Vec<f32>, Vec<f32>) {
        let pairs = self.channels.iter();
        pairs.map(|channel| (channel.mean, channel.scale)).unzip()
    }

    /// Returns the number of features of one sample.
    #[must_use]
    pub fn features(&self) -> usize {
        self.features
    }

    /// Computes the features of images: image after image, [`features`](Self::features) numbers each.
    ///
    /// Images are resized, and grey ones repeated for every channel.
    ///
    /// # Errors
    ///
    /// Images of other channels, a pixel or a feature that is not finite (the line names the image), or a runtime that
    /// gives up. No features are returned then.
    pub fn run(&self, images: &Images) -> Result<Vec<f32>, BackboneError> {
        let (given, wanted) = (images.channels(), self.input.channels);
        if given != wanted && given != 1 {
            return Err(BackboneError::Channels {
                images: given,
                backbone: wanted,
            });
        }
        let preparation = Preparation::new(images.size(), self.size, &self.channels);
        self.runtime
            .run(images.len(), |image| preparation.apply(images, image))
    }
}

impl InputShape {
    /// Reads the declared shape of a batch of images.
    fn of(input: &Input) -> Result<Self, Refusal> {
        let refused = || Refusal::Input(declared(input));
        let Some(&[samples, Some(channels), height, width]) = input.dims.as_deref() else {
            return Err(refused());
        };
        let sized = |size: i64, most: usize| {
            usize::try_from(size)
                .ok()
                .filter(|size| (1..=most).contains(size))
                .ok_or_else(refused)
        };
        let side = |size: Option<i64>| size.map(|size| sized(size, limits::SIDE)).transpose();
        if samples.is_some_and(|samples| samples != 1) || input.data_type != FLOAT {
            return Err(refused());
        }
        let channels = sized(channels, limits::CHANNELS)?;
        Ok(Self {
            channels,
            height: side(height)?,
            width: side(width)?,
        })
    }

    /// Returns the size of images: what the file fixes, then what the options say, then the usual one.
    fn size(&self, options: &Options) -> Result<[usize; 2], BackboneError> {
        let given = options.size.unwrap_or(options.usual_size);
        let size = [
            self.height.unwrap_or(given[0]),
            self.width.unwrap_or(given[1]),
        ];
        if options.size.is_some() && size != given {
            let advice = format!(
                "the file fixes {} × {}, so give that or nothing",
                size[0], size[1]
            );
            return Err(options::unfit("size", format!("{given:?}"), advice));
        }
        Ok(size)
    }
}

/// Writes a declared shape, with `?` for free sizes.
fn declared(input: &Input) -> String {
    let Some(dims) = &input.dims else {
        return "of no declared shape".to_owned();
    };
    let size = |size: &Option<i64>| size.map_or("?".to_owned(), |size| size.to_string());
    let sizes: Vec<String> = dims.iter().map(size).collect();
    format!("{} of ONNX's type {}", sizes.join(" × "), input.data_type)
}

/// Works out the number of features of one sample.
fn n_features(plan: &Plan, shape: [usize; 4]) -> Result<usize, Refusal> {
    let output = shapes::of_output(plan, shape)?;
    let n = elements(&output.dims).unwrap_or(usize::MAX);
    let is_one_sample = output.dims.first() == Some(&1) && output.dims.len() > 1;
    if output.kind != Kind::Float || !is_one_sample || !(1..=limits::FEATURES).contains(&n) {
        return Err(Refusal::Features {
            value: error::shown(plan.output),
            shape: error::shape(&output.dims),
            kind: output.kind.name(),
        });
    }
    Ok(n)
}

/// Hashes all that the features of an image depend on.
fn key(id: blake3::Hash, output: &str, size: [usize; 2], channels: &[Channel]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&[PREPARATION]).update(id.as_bytes());
    hasher
        .update(&(output.len() as u64).to_le_bytes())
        .update(output.as_bytes());
    for side in size {
        hasher.update(&(side as u64).to_le_bytes());
    }
    for channel in channels {
        hasher
            .update(&channel.mean.to_le_bytes())
            .update(&channel.scale.to_le_bytes());
    }
    hasher.finalize()
}

/// Reads a whole file that may not be too large.
fn read(path: &Path) -> Result<Vec<u8>, BackboneError> {
    let cannot = |source| BackboneError::Read {
        path: path.to_owned(),
        source,
    };
    let mut bytes = Vec::new();
    // One byte beyond the limit tells a file of just that size from a longer one.
    let mut file = File::open(path)
        .map_err(cannot)?
        .take(limits::FILE_BYTES + 1);
    file.read_to_end(&mut bytes).map_err(cannot)?;
    if bytes.len() as u64 > limits::FILE_BYTES {
        return Err(BackboneError::Refused {
            path: path.to_owned(),
            cause: Refusal::FileSize,
        });
    }
    Ok(bytes)
}
