//! What can be wrong with a backbone: one line that names the file, the cause, the limit and what to do.

use std::io;
use std::path::PathBuf;

use crate::limits;
use crate::wire::WireError;

/// Tells why a backbone cannot be opened or run.
#[derive(Debug, thiserror::Error)]
pub enum BackboneError {
    /// The file cannot be read.
    #[error("cannot read the backbone `{}`: {source}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file was refused before anything ran.
    #[error("`{}` cannot be a backbone: {cause}", path.display())]
    Refused {
        /// Which.
        path: PathBuf,
        /// Why.
        cause: Refusal,
    },
    /// An option does not fit.
    #[error("the backbone's `{option}` is {given}: {advice}")]
    Option {
        /// Which.
        option: &'static str,
        /// Its value.
        given: String,
        /// What would fit.
        advice: String,
    },
    /// The runtime refused the graph, or gave up.
    #[error("the backbone `{}` does not run: {cause}; export it again, or choose an inner `output`", path.display())]
    Runtime {
        /// Which.
        path: PathBuf,
        /// What the runtime said.
        cause: String,
    },
    /// Pixels and shape of the images disagree.
    #[error(
        "{pixels} pixels are no whole number of images of {channels} × {height} × {width}: give all of each image"
    )]
    Pixels {
        /// How many pixels came.
        pixels: usize,
        /// Channels of an image.
        channels: usize,
        /// Height of an image.
        height: usize,
        /// Width of an image.
        width: usize,
    },
    /// The images have other channels than the backbone.
    #[error(
        "images of {images} channels do not fit a backbone of {backbone}: give {backbone}, or grey images of 1 channel"
    )]
    Channels {
        /// Channels of the images.
        images: usize,
        /// Channels that the backbone takes.
        backbone: usize,
    },
    /// A pixel is not a finite number.
    #[error("image {image} has a pixel that is no finite number: repair or leave out that image")]
    Pixel {
        /// The number of the image, from 0.
        image: usize,
    },
    /// A feature is not a finite number.
    #[error(
        "the backbone `{}` gives a feature that is no finite number for image {image}: check its weights, `mean` and `scale`", path.display()
    )]
    NotFinite {
        /// Which backbone.
        path: PathBuf,
        /// The number of the image, from 0.
        image: usize,
    },
}

/// Tells why an ONNX file is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// The file is too large.
    #[error("it has more than {} MiB; choose a smaller network", limits::FILE_BYTES >> 20)]
    FileSize,
    /// The bytes are no message of Protocol Buffers.
    #[error("{0}; fetch or export the file again")]
    Wire(#[from] WireError),
    /// There is no graph.
    #[error(
        "it has no graph, so it is no ONNX file; give a file that an exporter wrote as `.onnx`"
    )]
    NoGraph,
    /// The graph has no output.
    #[error("its graph has no outputs; name an inner value as `output`, or export it again")]
    NoOutput,
    /// The operators have a version with other meanings.
    #[error("it uses version {found} of ONNX's operators, known are {} to {}; export it with version 18", limits::OPSETS.start(), limits::OPSETS.end())]
    Opset {
        /// The version that the file names, or 0.
        found: i64,
    },
    /// A list is too long.
    #[error("it has {found} {what}, at most {limit} are taken; choose a smaller network")]
    Many {
        /// Of what.
        what: &'static str,
        /// How many.
        found: usize,
        /// How many are taken.
        limit: usize,
    },
    /// Two things have one name.
    #[error("it defines `{0}` twice; export it again")]
    Twice(String),
    /// A node has a graph of its own (`If`, `Loop`, `Scan`).
    #[error(
        "`{operator}` holds a graph of its own, and such control flow is not taken; export the network without it"
    )]
    Subgraph {
        /// The operator.
        operator: String,
    },
    /// An operator is not on the list.
    #[error(
        "the operator `{operator}` is not taken; choose an `output` before it, or export without it"
    )]
    Operator {
        /// The operator, with its domain if that is not ONNX's own.
        operator: String,
    },
    /// An attribute is written in an unexpected way.
    #[error(
        "the attribute `{attribute}` of `{operator}` is not written as ONNX says; export the file again"
    )]
    Attribute {
        /// The attribute.
        attribute: String,
        /// The operator.
        operator: String,
    },
    /// The data of a tensor lie in another file.
    #[error("the tensor `{tensor}` lies in another file; export with all data inside")]
    External {
        /// Its name.
        tensor: String,
    },
    /// A tensor's shape and data disagree.
    #[error(
        "the tensor `{tensor}` says {said}, but its data have {bytes} bytes; fetch or export the file again"
    )]
    Data {
        /// Its name.
        tensor: String,
        /// The shape and type that it states.
        said: String,
        /// The bytes that are there.
        bytes: usize,
    },
    /// A tensor has numbers of a type that is not taken.
    #[error(
        "the tensor `{tensor}` has numbers of ONNX's type {kind}, which is not taken; export with 32-bit floats"
    )]
    Kind {
        /// Its name.
        tensor: String,
        /// The number of the type.
        kind: i64,
    },
    /// A weight is not a number.
    #[error("the tensor `{tensor}` holds NaN; train or fetch the weights again")]
    NotANumber {
        /// Its name.
        tensor: String,
    },
    /// The graph has several outputs and none was chosen.
    #[error("it has several outputs; set `output` to one of {}", .0.join(", "))]
    WhichOutput(Vec<String>),
    /// There is no value of the chosen name.
    #[error("it has no value `{output}`; its outputs are {}", .known.join(", "))]
    UnknownOutput {
        /// The chosen name.
        output: String,
        /// What the graph offers.
        known: Vec<String>,
    },
    /// Nothing computes a value that is needed.
    #[error("nothing computes `{value}`, which is needed; export the file again")]
    Undefined {
        /// Its name.
        value: String,
    },
    /// A value depends on itself.
    #[error("`{value}` depends on itself; export the file again")]
    Cycle {
        /// Its name.
        value: String,
    },
    /// The features depend on more than one input, or on none.
    #[error("the features depend on {0} inputs, exactly one is taken: the images")]
    Inputs(usize),
    /// The input is no batch of images.
    #[error(
        "its input is {0}; a batch of images is wanted: samples (1 or free), channels, height, width in 32-bit floats"
    )]
    Input(String),
    /// An operator cannot take what it is given.
    #[error(
        "`{operator}`, which computes `{value}`, {cause}; export the file again, or choose an `output` before it"
    )]
    Shape {
        /// The operator.
        operator: String,
        /// The value that it computes.
        value: String,
        /// What is wrong.
        cause: String,
    },
    /// A value is too large.
    #[error(
        "`{value}` would have {shape} numbers, at most {} are taken; choose a smaller size of images or network",
        limits::VALUE
    )]
    Value {
        /// Its name.
        value: String,
        /// Its shape.
        shape: String,
    },
    /// All values together are too large.
    #[error("one sample would take more than {} MiB of values; choose a smaller size of images or network", limits::VALUES >> 18)]
    Memory,
    /// One sample would take too many operations.
    #[error("one sample would take more than {} thousand million multiplications; choose a smaller size of images or network", limits::WORK / 1_000_000_000)]
    Work,
    /// The output is no list of features.
    #[error(
        "`{value}` is {shape} of {kind}, wanted are at most {} features of one sample in 32-bit floats; choose another `output`",
        limits::FEATURES
    )]
    Features {
        /// Its name.
        value: String,
        /// Its shape for one sample.
        shape: String,
        /// Its type.
        kind: &'static str,
    },
}

/// Writes a name from a hostile file so that it stays short and on one line.
pub(crate) fn shown(name: &str) -> String {
    on_one_line(name, 60)
}

/// Writes a text on one line of at most `most` characters.
pub(crate) fn on_one_line(text: &str, most: usize) -> String {
    let mut characters = text.chars();
    let visible = |character: char| match character {
        control if control.is_control() => char::REPLACEMENT_CHARACTER,
        other => other,
    };
    let mut line: String = characters.by_ref().take(most).map(visible).collect();
    if characters.next().is_some() {
        line.push('…');
    }
    line
}

/// Writes a shape as `2 × 3`.
pub(crate) fn shape(dims: &[usize]) -> String {
    let sizes: Vec<String> = dims.iter().take(8).map(usize::to_string).collect();
    sizes.join(" × ")
}
