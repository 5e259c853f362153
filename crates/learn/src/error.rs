//! What can go wrong while learning, each in one line that says what to do.

use fednode_core::{ConfigError, LayoutMismatch, ParamsError, Round};

/// Tells why a learner could not be built, trained or changed.
#[derive(Debug, thiserror::Error)]
pub enum LearnError {
    /// The spec names something unknown or out of range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// There is nothing to train on.
    #[error(
        "the training set is empty: give this node a larger shard or a smaller validation share"
    )]
    NoTrainingSamples,
    /// The data has classes that the model cannot name.
    #[error("the data has {got} classes, but `fingerprints.classes` is {expected}")]
    Classes {
        /// Classes of the data.
        got: usize,
        /// Classes of the model.
        expected: usize,
    },
    /// The data's classes are numbered otherwise than the model's.
    #[error(
        "class {number} is `{got}` in the data and `{expected}` in the federation: name all classes in the order of \
         `fingerprints.class_names`, with `classes=A|B|…` of the data source (`classes=LABEL=>A|…` where the data call it LABEL)"
    )]
    ClassNames {
        /// The first class that is called otherwise.
        number: usize,
        /// What the data calls it.
        got: String,
        /// What the spec calls it.
        expected: String,
    },
    /// The federation predicts a number, and the data have classes.
    #[error(
        "the federation predicts the number `{0}`, and the data have classes: name its column, as in \
         `csv:FILE,target={0}`"
    )]
    NoNumbers(String),
    /// The federation predicts classes, and the data have a number.
    #[error(
        "the federation predicts classes, and the data have the number `{0}`: name the column of the classes, as in \
         `csv:FILE,label=COLUMN`"
    )]
    Numbers(String),
    /// The samples do not fit the model's input.
    #[error(
        "samples are {got:?} (channels, height, width), but `fingerprints.input` is {expected:?}"
    )]
    SampleShape {
        /// Shape of the samples.
        got: [usize; 3],
        /// Shape that the model takes.
        expected: [usize; 3],
    },
    /// The samples' tokens are numbered by another vocabulary than the model's, or are none.
    #[error(
        "the data has a vocabulary of {got}, but `fingerprints.vocabulary_size` is {expected}: read the same texts with the same \
         options as whoever made the spec, or the same `vocabulary_file`"
    )]
    Vocabulary {
        /// Entries and hash of the data's; 0 entries if the samples are no texts.
        got: String,
        /// Those of the spec.
        expected: String,
    },
    /// The loss is no longer a number, or absurdly large.
    #[error(
        "training diverged in round {round}, epoch {epoch}, batch {batch} (loss {loss}): {advice}"
    )]
    Diverged {
        /// The round.
        round: Round,
        /// The epoch, counting from 1.
        epoch: u32,
        /// The batch, counting from 1.
        batch: u32,
        /// The loss.
        loss: f64,
        /// What to do about it.
        advice: String,
    },
    /// What came of a local update is no longer numbers, or absurdly large.
    #[error("round {round}: {what}, and nothing of it is published: {advice}")]
    Exploded {
        /// The round.
        round: Round,
        /// What is at fault.
        what: String,
        /// What to do about it.
        advice: String,
    },
    /// The caller asked to stop; the parameters are those from before the local update.
    #[error("local update abandoned")]
    Abandoned,
    /// What was computed once for all epochs could not be written to disk, or read back.
    #[error("cannot keep on disk what frozen parts make of the samples: {0}")]
    Cache(#[from] std::io::Error),
    /// Parameters do not fit the model.
    #[error("{part} does not fit the model: {mismatch}")]
    Layout {
        /// Which part of the model.
        part: String,
        /// The first difference.
        mismatch: LayoutMismatch,
    },
    /// Parameters contain infinities or no numbers at all.
    #[error("{part} has a value in `{tensor}` that is not a finite number")]
    NotFinite {
        /// Which part of the model.
        part: String,
        /// Where the value is.
        tensor: String,
    },
    /// Parameters to start from belong to another model.
    #[error(
        "the initial parameters have none by a name and in a shape that `{model}` has: they belong to another model"
    )]
    NothingInitial {
        /// The model's name.
        model: String,
    },
    /// There is no such expert, or no such part, in this algorithm.
    #[error("this node has no {0}")]
    NoSuchPart(String),
    /// What a node remembered is not as this version writes it.
    #[error("the memory in the state cannot be read: {0}")]
    Memory(#[source] serde_json::Error),
    /// The model cannot be written as a graph.
    #[error("the model cannot be written in the format of ONNX: {0}")]
    Graph(#[from] fednode_onnx::GraphError),
    /// Parameters cannot be put into a set.
    #[error(transparent)]
    Params(#[from] ParamsError),
}
