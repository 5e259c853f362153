//! Why a file or a request holds no samples for a model.

use std::io;

use fednode_data::DataError;
use fednode_data::source::{ParquetError, RowsError};
use fednode_data::table::CellError;

/// Tells why a file holds no samples for a model.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unfit {
    #[error("cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    #[error("is no image: {0}")]
    NoImage(#[from] image::ImageError),
    #[error("is an image, but the model takes {0} channels")]
    Channels(usize),
    #[error("is neither PNG, JPEG, CSV, Parquet nor a file of images in IDX form")]
    UnknownForm,
    #[error("has images of {}, but the model takes {}", sizes(.images), sizes(.model))]
    Size {
        images: [usize; 3],
        model: [usize; 3],
    },
    #[error("holds images of no size")]
    Empty,
    #[error("cannot be looked at: {0}")]
    Features(#[from] DataError),
    #[error("is a table, and the model takes images")]
    NoImages,
    #[error("is truncated: its header promises {0} images")]
    Truncated(u32),
    #[error("holds no texts")]
    NoTexts,
    #[error("is no UTF-8 text")]
    NoText(#[from] std::str::Utf8Error),
    #[error(transparent)]
    Parquet(#[from] ParquetError),
    #[error(transparent)]
    Rows(#[from] RowsError),
    #[error("holds no rows of numbers")]
    NoRows,
    #[error("has no column `{0}`, which should say whose each row is")]
    NoId(String),
    #[error("has no columns, so none can say whose each row is")]
    NoColumns,
    #[error("rows[{row}]: {cause}, in column `{column}`")]
    Cell {
        row: usize,
        column: String,
        cause: CellError,
    },
}

impl Unfit {
    /// Tells whether the samples are sound, and only nothing for this model.
    pub(crate) const fn is_of_the_model(&self) -> bool {
        matches!(self, Self::Channels(_) | Self::Size { .. })
    }
}

fn sizes(shape: &[usize; 3]) -> String {
    shape.map(|size| size.to_string()).join("x")
}
