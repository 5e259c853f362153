//! The model zoo: one file per model, one row per model in [`TABLE`].
//!
//! A model is a tree of [`layer`]s, a chain at its top. Algorithms split it where they need: after the first block
//! (FedMoE-DA's embedding), before the first fully connected layer (PFL-MoE's classifier), before the last one (the head
//! of FedPer and its like).

mod cnn;
mod cnn_family;
mod cpu;
mod declared;
mod embedding;
mod fasttext;
mod gpu;
pub mod layer;
mod lenet5;
mod linear;
mod mlp;
pub(crate) mod multiply_adds;
mod net;
mod resnet8;
#[cfg(test)]
mod testing;
mod vgg16;

use fednode_core::ConfigError;
use fednode_core::config::unknown_name;
use fednode_core::spec::Architecture;

pub(crate) use cpu::sgd_step;
pub use embedding::{Embedding, Mean};
pub(crate) use layer::affine;
pub use layer::{Activation, Conv, Dropout, Initial, LayerNorm, Linear, Parameter, ParameterKind};
pub use net::{Block, Cut, Net, leaf};

/// One model of the zoo.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// The name in `model.name`.
    pub name: &'static str,
    /// What it is, in one line.
    pub summary: &'static str,
    /// What it reads.
    pub reads: Reads,
    /// Makes its blocks for an input and a number of classes.
    pub layers: fn(&Architecture) -> Result<Vec<Block>, ConfigError>,
}

/// What a model reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reads {
    /// Images: what is near in a sample belongs together.
    Images,
    /// Any numbers: images, and rows of tables.
    Numbers,
    /// Texts: numbers of words, which are names and no amounts.
    Texts,
}

/// All models.
pub static TABLE: &[Row] = &[
    cnn::ROW,
    lenet5::ROW,
    mlp::ROW,
    linear::ROW,
    vgg16::ROW,
    resnet8::ROW,
    cnn_family::ROWS[0],
    cnn_family::ROWS[1],
    cnn_family::ROWS[2],
    cnn_family::ROWS[3],
    cnn_family::ROWS[4],
    fasttext::ROWS[0],
    fasttext::ROWS[1],
    declared::ROW,
];

/// Builds the model that a spec describes.
///
/// # Errors
/// Fails on an unknown name (offering the nearest), on an input that is too small for the model, on texts for a model of
/// images and the reverse.
pub fn build(spec: &Architecture) -> Result<Net, ConfigError> {
    let Some(row) = TABLE.iter().find(|row| row.name == spec.name) else {
        let names: Vec<&str> = TABLE.iter().map(|row| row.name).collect();
        return Err(ConfigError(unknown_name("model", &spec.name, &names)));
    };
    check_vocabulary(row, spec)?;
    Ok(Net::new((row.layers)(spec)?))
}

/// Builds the model that a spec describes, cut in two.
///
/// # Errors
/// As [`build`]. Refuses a model that has nothing on one side of the cut: an algorithm that divides models needs both. Before
/// the first fully connected layer there may be nothing.
pub(crate) fn halves(spec: &Architecture, cut: Cut) -> Result<(Net, Net), ConfigError> {
    let (base, rest) = build(spec)?.split(cut);
    let lacks_base = cut == Cut::Head && base.parameters().is_empty();
    if lacks_base || rest.parameters().is_empty() {
        return Err(ConfigError(format!(
            "model `{}` has one layer, and this algorithm divides a model in two: choose `mlp` or another model, or an \
             algorithm that takes it whole, as `fedavg`",
            spec.name
        )));
    }
    Ok((base, rest))
}

/// Checks that a model of texts is given words, and any other none.
fn check_vocabulary(row: &Row, spec: &Architecture) -> Result<(), ConfigError> {
    let Architecture {
        name, vocabulary, ..
    } = spec;
    let least = embedding::FIRST_WORD + 1;
    let message = match row.reads {
        Reads::Texts if *vocabulary < least => {
            format!(
                "model `{name}` is for texts: `fingerprints.vocabulary_size` must be at least {least}, got {vocabulary}"
            )
        }
        Reads::Images | Reads::Numbers if *vocabulary > 0 => {
            let texts = TABLE.iter().filter(|row| row.reads == Reads::Texts);
            let models: Vec<String> = texts.map(|row| format!("`{}`", row.name)).collect();
            format!(
                "model `{name}` cannot read texts (`fingerprints.vocabulary_size` is {vocabulary}): use {}",
                models.join(" or ")
            )
        }
        Reads::Images | Reads::Numbers | Reads::Texts => return Ok(()),
    };
    Err(ConfigError(message))
}

/// Refuses texts where an algorithm computes with the raw input: numbers of words are names, not amounts.
pub(crate) fn refuse_texts(spec: &Architecture, algorithm: &str) -> Result<(), ConfigError> {
    match spec.vocabulary {
        0 => Ok(()),
        _ => Err(ConfigError(format!(
            "algorithm `{algorithm}` has a gate on the raw input, which texts have no use for"
        ))),
    }
}

/// Says that an input is too small for a model.
fn too_small(model: &str, input: [usize; 3], smallest: usize) -> ConfigError {
    let [_, height, width] = input;
    ConfigError(format!(
        "model `{model}` needs images of at least {smallest}x{smallest} pixels, got {height}x{width}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn n_parameters(name: &str, input: [usize; 3], classes: usize) -> usize {
        let spec = Architecture {
            name: name.into(),
            input,
            classes,
            experts: 1,
            ..Architecture::default()
        };
        let net = build(&spec).unwrap();
        net.parameters().iter().map(Parameter::n_values).sum()
    }

    #[test]
    fn parameter_counts_are_those_of_the_literature() {
        // PFLlib's CNN, PFL-MoE's LeNet-5; the 2NN of McMahan et al. 2017.
        assert_eq!(n_parameters("cnn", [1, 28, 28], 10), 582_026);
        assert_eq!(n_parameters("cnn", [3, 32, 32], 10), 878_538);
        assert_eq!(n_parameters("cnn", [3, 32, 32], 100), 924_708);
        assert_eq!(n_parameters("cnn", [3, 64, 64], 200), 5_694_600);
        assert_eq!(n_parameters("lenet5", [1, 28, 28], 10), 61_706);
        assert_eq!(n_parameters("lenet5", [1, 32, 32], 10), 61_706);
        assert_eq!(n_parameters("lenet5", [3, 32, 32], 10), 62_006);
        assert_eq!(n_parameters("mlp", [1, 28, 28], 10), 199_210);
    }

    #[test]
    fn every_model_takes_small_images() {
        assert_eq!(
            n_parameters("cnn", [1, 8, 8], 10),
            320 + 18_496 + (256 * 512 + 512) + 5_130
        );
        assert_eq!(n_parameters("lenet5", [1, 8, 8], 10), 61_706);
        assert_eq!(
            n_parameters("mlp", [1, 8, 8], 10),
            65 * 200 + 201 * 200 + 2_010
        );
    }

    #[test]
    fn names_what_is_wrong() {
        let mut spec = Architecture {
            name: "cnn5".into(),
            ..Architecture::default()
        };
        assert_eq!(
            build(&spec).unwrap_err().0,
            "unknown model `cnn5`: did you mean `cnn-5`?"
        );
        spec = Architecture {
            name: "cnn".into(),
            input: [1, 3, 28],
            ..Architecture::default()
        };
        assert_eq!(
            build(&spec).unwrap_err().0,
            "model `cnn` needs images of at least 4x4 pixels, got 3x28"
        );
    }
}
