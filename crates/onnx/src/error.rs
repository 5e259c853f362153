//! Why a graph cannot be written, each in one line.

/// Tells why a graph is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    /// Operands do not go together.
    #[error("`{operator}` cannot take {operands}")]
    Operands {
        /// The operator.
        operator: &'static str,
        /// Kinds and shapes of what it was given.
        operands: String,
    },
    /// The values of a constant do not fill its shape.
    #[error("constant `{name}` has {values} values, and its shape {shape:?} needs others")]
    Constant {
        /// Its name.
        name: String,
        /// How many there are.
        values: usize,
        /// The shape.
        shape: Vec<usize>,
    },
    /// A constant holds an infinity or no number at all.
    #[error("constant `{0}` has a value that is not a finite number")]
    NotFinite(String),
    /// A name is given to two things.
    #[error("the name `{0}` is given twice")]
    Name(String),
    /// The file would be larger than the format allows.
    #[error("the file would have {0} bytes, and the format ends at 2 GiB")]
    TooLarge(usize),
}
