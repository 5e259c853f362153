//! Data sets and their division among nodes.
//!
//! ```text
//! DataSource ── open ─► Source ── pool ─► labels ── Rule::divide ─► Partition ── one node's indices ─┐
//! "mnist:DIR"              └────────────────────────── read: only the wanted samples ◄───────────────┘
//!                                                           └─► Shard { train, validation, test }
//! ```
//!
//! Transforms behind a rule (`iid+rotated:4:2`) change lists before the reading, and images and labels after it. Where a
//! source has an [`Extractor`], images become features in the end.
//!
//! [`load_shard`] does all of it in one call. A node holds its own samples and nothing else: files are streamed and
//! unwanted rows dropped, images stay bytes and texts numbers of tokens until they are trained on. Every draw depends on
//! the seed alone, so all nodes compute the same [`Partition`] and compare its hash; in the same way they count the same
//! [`Vocabulary`] of the same texts.
//!
//! There is no network here, no tensor library and no clock. A new reader is a file under `source/` and a row of
//! [`source::KINDS`]; a new division is a file under `partition/` and a row of [`partition::KINDS`]. A new transform is a
//! file under `transform/` and a row of [`transform::KINDS`].
//!
//! ```
//! use fednode_data::{DataSource, ShardParams, load_shard};
//!
//! let digits: DataSource = "digits".parse()?;
//! let params = ShardParams { nodes: 5, seed: 1, samples_per_node: 100, validation_share: 0.1 };
//! let shard = load_shard(&digits, "dirichlet:0.5", &params, 2)?;
//! assert_eq!(shard.split.train.shape, [1, 8, 8]);
//!
//! let mut pixels = Vec::new();
//! shard.split.train.write_batch(&[0, 1], &mut pixels);
//! assert_eq!(pixels.len(), 2 * 64);
//! # Ok::<(), fednode_data::DataError>(())
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod error;
mod extractor;
mod grown;
pub mod partition;
mod samples;
mod shard;
pub mod source;
mod stamp;
pub mod table;
mod tokenizer;
pub mod transform;
mod vocabulary;

pub use error::{DataError, TextError};
pub use extractor::Extractor;
pub use grown::Beginning;
pub use partition::{NodeIndices, Partition};
pub use samples::{Pixels, Samples, SamplesError, Split};
pub use shard::{
    ClassCounts, Divided, Shard, ShardParams, divide, load_first_shard, load_grown_shard,
    load_shard, load_shards, n_validation,
};
pub use source::{Columns, DataSource, Facts, Label, Pool, Source};
pub use stamp::Stamp;
pub use tokenizer::normalize;
pub use vocabulary::Vocabulary;
