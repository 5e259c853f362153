//! A model that a spec declares layer by layer, as text.
//!
//! ```text
//! layers    layer , layer , …          in order; the last layer, fully connected to the classes, is added
//! layer     conv 64                    64 maps by a 3x3 kernel, the size kept
//!           conv 64 7x7 /2 valid       7x7 kernel, every second place, no zeros around
//!           max-pool 2                 the largest of 2x2 places; `max-pool 3 /2` of 3x3 every second place
//!           mean-pool                  the mean of each map
//!           batch-norm                 group-norm 8        normalisation, of 8 groups of maps
//!           relu                       leaky-relu
//!           linear 128                 128 units, fully connected
//!           dropout 0.5                in training, half of the features are zero
//!           residual( layers )         their output plus their input, which a 1x1 convolution fits to it if need be
//!           parallel( layers | … )     branches that read the same, their maps side by side
//!           3 * layer                  the same layer three times
//! ```
//!
//! Here is only the text and what it says; `fednode-learn` finds the shapes and makes the layers. A declaration is the same
//! however it is spaced, so two spellings of one model have one federation's id.

use std::fmt::{self, Display};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::config::unknown_name;

/// The name of the model whose layers are declared.
pub const DECLARED: &str = "declared";
/// Layers of one declaration, those inside others counted too.
pub const MOST_LAYERS: usize = 256;
/// Residual and parallel layers inside each other.
const DEEPEST: usize = 4;
/// Letters of a declaration.
const LONGEST: usize = 16 << 10;
/// Units of a layer, maps of a convolution.
const WIDEST: usize = 1 << 16;
/// Side of a kernel or of a pooling window.
const LARGEST_KERNEL: usize = 31;
const NAMES: [&str; 11] = [
    "conv",
    "max-pool",
    "mean-pool",
    "batch-norm",
    "group-norm",
    "relu",
    "leaky-relu",
    "linear",
    "dropout",
    "residual",
    "parallel",
];

/// A declared convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvSpec {
    /// Maps it makes.
    pub maps: usize,
    /// Side of its square kernel.
    pub kernel: usize,
    /// Places between two applications of the kernel.
    pub stride: usize,
    /// Whether zeros around the maps keep their size.
    pub padded: bool,
}

/// One declared layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LayerSpec {
    /// A convolution.
    Conv(ConvSpec),
    /// The largest of each window.
    MaxPool {
        /// Side of the window.
        side: usize,
        /// Places between two windows. Windows that overlap reach over the edge by the half of their side, rounded down
        /// from one less: a side of 3 by 1, a side of 2 not at all.
        stride: usize,
    },
    /// The mean of each map.
    MeanPool,
    /// Batch normalisation.
    BatchNorm,
    /// Group normalisation.
    GroupNorm {
        /// How many groups of maps.
        groups: usize,
    },
    /// `max(x, 0)`.
    Relu,
    /// `x` above zero, `x / 100` below.
    LeakyRelu,
    /// A fully connected layer.
    Linear {
        /// Its outputs.
        units: usize,
    },
    /// Features are zero in training, by chance.
    Dropout {
        /// In a thousand.
        per_mille: usize,
    },
    /// The sum of these layers and of what they read.
    Residual(Vec<Self>),
    /// Branches that read the same.
    Parallel(Vec<Vec<Self>>),
}

impl LayerSpec {
    /// Counts it and the layers inside it.
    fn size(&self) -> usize {
        1 + match self {
            Self::Residual(body) => size(body),
            Self::Parallel(branches) => branches.iter().map(|branch| size(branch)).sum(),
            _ => 0,
        }
    }
}

fn size(layers: &[LayerSpec]) -> usize {
    layers.iter().map(LayerSpec::size).sum()
}

/// The layers of a declared model; none where no model is declared.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Layers(pub Vec<LayerSpec>);

impl Layers {
    /// Tells whether nothing is declared.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A text declares no model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayersError {
    /// It is far too long.
    #[error("a model of more than {MOST_LAYERS} layers, or a text of more than {LONGEST} letters")]
    TooLong,
    /// A layer is repeated too often, or not at all.
    #[error("a layer can be repeated 1 to {MOST_LAYERS} times")]
    Times,
    /// Layers are nested too deeply.
    #[error("layers inside layers inside layers: at most {DEEPEST} deep")]
    TooDeep,
    /// The text ends, or goes on, where it must not.
    #[error("expected {expected}, found {found}")]
    Syntax {
        /// What can stand there.
        expected: &'static str,
        /// What stands there.
        found: String,
    },
    /// There is no such layer.
    #[error("{0}")]
    Unknown(String),
    /// A layer has something that it does not take, or lacks something.
    #[error("`{layer}`: {expected}")]
    Arguments {
        /// The layer as it was written.
        layer: String,
        /// What it takes.
        expected: &'static str,
    },
}

impl FromStr for Layers {
    type Err = LayersError;

    fn from_str(text: &str) -> Result<Self, LayersError> {
        if text.len() > LONGEST {
            return Err(LayersError::TooLong);
        }
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let mut parser = Parser {
            rest: text,
            left: MOST_LAYERS,
        };
        let layers = parser.layers(0)?;
        match parser.peek() {
            "" => Ok(Self(layers)),
            _ => Err(parser.expected("`,` or the end")),
        }
    }
}

/// Reads a declaration from left to right.
struct Parser<'a> {
    rest: &'a str,
    /// How many layers may follow.
    left: usize,
}

impl<'a> Parser<'a> {
    /// Returns the next word or mark without taking it; nothing at the end.
    fn peek(&mut self) -> &'a str {
        self.rest = self.rest.trim_start();
        let is_mark = |letter: char| ",()|*".contains(letter);
        let end = match self.rest.chars().next() {
            None => 0,
            Some(first) if is_mark(first) => first.len_utf8(),
            Some(_) => self
                .rest
                .find(|letter: char| letter.is_whitespace() || is_mark(letter))
                .unwrap_or(self.rest.len()),
        };
        &self.rest[..end]
    }

    fn take(&mut self) -> &'a str {
        let word = self.peek();
        self.rest = &self.rest[word.len()..];
        word
    }

    fn takes(&mut self, mark: &str) -> bool {
        let is_next = self.peek() == mark;
        if is_next {
            self.take();
        }
        is_next
    }

    fn expect(&mut self, mark: &str, expected: &'static str) -> Result<(), LayersError> {
        if self.takes(mark) {
            return Ok(());
        }
        Err(self.expected(expected))
    }

    fn expected(&mut self, expected: &'static str) -> LayersError {
        let found = match self.peek() {
            "" => "the end".to_owned(),
            word => format!("`{}`", word.chars().take(40).collect::<String>()),
        };
        LayersError::Syntax { expected, found }
    }

    fn layers(&mut self, depth: usize) -> Result<Vec<LayerSpec>, LayersError> {
        if depth > DEEPEST {
            return Err(LayersError::TooDeep);
        }
        let mut layers = Vec::new();
        loop {
            let times = self.times()?;
            let layer = self.layer(depth)?;
            // The layer itself was counted when it was read.
            let more = layer.size() * (times - 1);
            self.left = self.left.checked_sub(more).ok_or(LayersError::TooLong)?;
            layers.extend(std::iter::repeat_n(layer, times));
            if !self.takes(",") {
                return Ok(layers);
            }
            // A comma may end a list, as in TOML.
            if ["", ")", "|"].contains(&self.peek()) {
                return Ok(layers);
            }
        }
    }

    /// Takes `3 *` if it stands here.
    fn times(&mut self) -> Result<usize, LayersError> {
        if !self
            .peek()
            .starts_with(|letter: char| letter.is_ascii_digit())
        {
            return Ok(1);
        }
        let number = self.take();
        self.expect("*", "`*` after a number of layers")?;
        match number.parse() {
            Ok(times) if (1..=MOST_LAYERS).contains(&times) => Ok(times),
            _ => Err(LayersError::Times),
        }
    }

    fn layer(&mut self, depth: usize) -> Result<LayerSpec, LayersError> {
        self.left = self.left.checked_sub(1).ok_or(LayersError::TooLong)?;
        let name = self.peek();
        if name.is_empty() || ",()|*".contains(name) {
            return Err(self.expected("a layer"));
        }
        self.take();
        if !NAMES.contains(&name) {
            let shown: String = name.chars().take(40).collect();
            return Err(LayersError::Unknown(unknown_name("layer", &shown, &NAMES)));
        }
        if name == "residual" || name == "parallel" {
            return self.nest(name, depth);
        }
        let mut words = Vec::new();
        while !self.peek().is_empty() && !",()|*".contains(self.peek()) {
            words.push(self.take());
        }
        simple(name, &words).map_err(|expected| LayersError::Arguments {
            layer: [&[name], &words[..]].concat().join(" "),
            expected,
        })
    }

    fn nest(&mut self, name: &str, depth: usize) -> Result<LayerSpec, LayersError> {
        self.expect("(", "`(`")?;
        let mut branches = vec![self.layers(depth + 1)?];
        while name == "parallel" && self.takes("|") {
            branches.push(self.layers(depth + 1)?);
        }
        self.expect(")", "`,` or `)`")?;
        Ok(match name {
            "residual" => LayerSpec::Residual(branches.remove(0)),
            _ => LayerSpec::Parallel(branches),
        })
    }
}

/// Makes a layer with no layers inside of its words. Says what it takes if they do not fit.
fn simple(name: &str, words: &[&str]) -> Result<LayerSpec, &'static str> {
    let number = |word: &str, most: usize| {
        let number = whole(word);
        number.filter(|number| (1..=most).contains(number))
    };
    let none = |layer| match words {
        [] => Ok(layer),
        _ => Err("it takes no number"),
    };
    match name {
        "conv" => conv(words).map(LayerSpec::Conv).ok_or(
            "a number of maps (1 to 65536), then as you like a kernel `5x5` (up to 31x31), a stride `/2`, and `valid` for \
             no zeros around",
        ),
        "max-pool" => {
            let (side, stride) = match words {
                [side] => (number(side, LARGEST_KERNEL), number(side, LARGEST_KERNEL)),
                [side, stride] => (number(side, LARGEST_KERNEL), stride_of(stride)),
                _ => (None, None),
            };
            let pool = side.zip(stride).filter(|(side, stride)| stride <= side);
            let (side, stride) = pool.ok_or(
                "the side of its window (1 to 31), then as you like a stride `/2` that is not larger",
            )?;
            Ok(LayerSpec::MaxPool { side, stride })
        }
        "mean-pool" => none(LayerSpec::MeanPool),
        "batch-norm" => none(LayerSpec::BatchNorm),
        "relu" => none(LayerSpec::Relu),
        "leaky-relu" => none(LayerSpec::LeakyRelu),
        "group-norm" => match words {
            [groups] => number(groups, WIDEST).map(|groups| LayerSpec::GroupNorm { groups }),
            _ => None,
        }
        .ok_or("a number of groups"),
        "dropout" => match words {
            [share] => per_mille(share).map(|per_mille| LayerSpec::Dropout { per_mille }),
            _ => None,
        }
        .ok_or("a share above 0 and below 1, in thousandths"),
        _ => match words {
            [units] => number(units, WIDEST).map(|units| LayerSpec::Linear { units }),
            _ => None,
        }
        .ok_or("a number of units (1 to 65536)"),
    }
}

/// Reads digits and nothing else.
fn whole(word: &str) -> Option<usize> {
    let is_whole = word.bytes().all(|letter| letter.is_ascii_digit());
    is_whole.then(|| word.parse().ok())?
}

fn conv(words: &[&str]) -> Option<ConvSpec> {
    let (maps, options) = words.split_first()?;
    let maps = whole(maps).filter(|n| (1..=WIDEST).contains(n))?;
    let (mut kernel, mut stride, mut padded) = (3, 1, true);
    for word in options {
        if *word == "valid" {
            padded = false;
        } else if word.starts_with('/') {
            stride = stride_of(word)?;
        } else {
            let (height, width) = word.split_once('x')?;
            kernel = whole(height).filter(|_| height == width)?;
        }
    }
    // An even kernel has no middle: zeros cannot keep the size.
    let is_fine = (1..=LARGEST_KERNEL).contains(&kernel) && (kernel % 2 == 1 || !padded);
    is_fine.then_some(ConvSpec {
        maps,
        kernel,
        stride,
        padded,
    })
}

fn stride_of(word: &str) -> Option<usize> {
    let stride = whole(word.strip_prefix('/')?)?;
    (1..=LARGEST_KERNEL).contains(&stride).then_some(stride)
}

fn per_mille(word: &str) -> Option<usize> {
    let digits = word.strip_prefix("0.").filter(|digits| digits.len() <= 3)?;
    let per_mille = whole(&format!("{digits:0<3}"))?;
    (per_mille > 0).then_some(per_mille)
}

impl Display for ConvSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            maps,
            kernel,
            stride,
            padded,
        } = self;
        write!(f, "conv {maps}")?;
        if *kernel != 3 {
            write!(f, " {kernel}x{kernel}")?;
        }
        if *stride != 1 {
            write!(f, " /{stride}")?;
        }
        f.write_str(if *padded { "" } else { " valid" })
    }
}

impl Display for LayerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Conv(conv) => conv.fmt(f),
            Self::MaxPool { side, stride } if side == stride => write!(f, "max-pool {side}"),
            Self::MaxPool { side, stride } => write!(f, "max-pool {side} /{stride}"),
            Self::MeanPool => f.write_str("mean-pool"),
            Self::BatchNorm => f.write_str("batch-norm"),
            Self::GroupNorm { groups } => write!(f, "group-norm {groups}"),
            Self::Relu => f.write_str("relu"),
            Self::LeakyRelu => f.write_str("leaky-relu"),
            Self::Linear { units } => write!(f, "linear {units}"),
            Self::Dropout { per_mille } => {
                let digits = format!("{per_mille:03}");
                write!(f, "dropout 0.{}", digits.trim_end_matches('0'))
            }
            Self::Residual(body) => write!(f, "residual({})", Joined(body)),
            Self::Parallel(branches) => {
                f.write_str("parallel(")?;
                for (n, branch) in branches.iter().enumerate() {
                    f.write_str(if n == 0 { "" } else { " | " })?;
                    Joined(branch).fmt(f)?;
                }
                f.write_str(")")
            }
        }
    }
}

/// Layers with commas between them; equal ones in a row are counted.
struct Joined<'a>(&'a [LayerSpec]);

impl Display for Joined<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, row) in self.0.chunk_by(|one, next| one == next).enumerate() {
            f.write_str(if n == 0 { "" } else { ", " })?;
            match row.len() {
                1 => row[0].fmt(f)?,
                times => write!(f, "{times} * {}", row[0])?,
            }
        }
        Ok(())
    }
}

impl Display for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Joined(&self.0).fmt(f)
    }
}

impl TryFrom<String> for Layers {
    type Error = LayersError;

    fn try_from(text: String) -> Result<Self, LayersError> {
        text.parse()
    }
}

impl From<Layers> for String {
    fn from(layers: Layers) -> Self {
        layers.to_string()
    }
}

#[cfg(test)]
mod tests;
