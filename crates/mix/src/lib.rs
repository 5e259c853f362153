//! Exchange maths: whose experts resemble mine, with which weight they are mixed in, and what is not let in.
//!
//! | module | formula | is |
//! |---|---|---|
//! | [`similarity`] | FedMoE-DA Eq. 8 | cosines of gating proxies |
//! | [`sketch`] | SimHash | whose proxies are worth fetching, in a large federation |
//! | [`plan`](fn@plan) | | the sources of each own expert and their weights |
//! | [`matching`] | Eq. 9 and 10, FedPAC | a table of ways to choose and weight those sources |
//! | [`merge`] | Eq. 11 | an own expert mixed with what arrived of its row |
//! | [`rule`] | Eq. 5, FedAvg, Krum … | a table of ways in which many members' parameters become one |
//! | [`ridge`] | ridge regression, PRESS | the closed form where a number is predicted |
//! | [`names`] | | names of tensors that a rule recognises |
//! | [`slots`] | here, after mixture discriminant analysis | experts in closed form: parts within the classes |
//! | [`sphere`] | a study of the project, 2.1 | features that noise spares, by public directions |
//! | [`energy`] | PM-MoE Eq. 10 to 12 | how well others' modules fit a node, and which it drops |
//! | [`blend`] | here | how much of the statistics expert, sample by sample |
//! | [`redraw`] | a study of the project, 5a | inputs redrawn from mean features: an attack |
//! | [`mod@screen`] | | what a received part must fulfil before it is mixed |
//!
//! Everything here is a pure function of its arguments: no tensors, threads, I/O, clocks or randomness, and the same
//! bits whatever the order in which parts arrived. Sums run in `f64` in a fixed order; weights enter and leave as `f32`.
//!
//! ```
//! use std::{collections::BTreeMap, sync::Arc};
//! use fednode_core::{BlobId, ExpertExchange, Matching, NodeId, ParamSet, PeersPerExpert, ProxySet, Round, Weighting};
//!
//! let (own, peer) = (NodeId::from_bytes([1; 32]), NodeId::from_bytes([2; 32]));
//! let known = BTreeMap::from([
//!     (own, Arc::new(ProxySet::new(2, vec![1.0, 0.0])?)),
//!     (peer, Arc::new(ProxySet::new(2, vec![3.0, 4.0])?)),
//! ]);
//! let exchange = ExpertExchange {
//!     peers_per_expert: PeersPerExpert::Count(5),
//!     refresh_every: 5,
//!     temperature: 1.0,
//!     weighting: Weighting::Uniform,
//!     slots_per_node: None,
//!     max_distance: None,
//!     matching: Matching::default(),
//!     noise: None,
//! };
//! let plan = fednode_mix::plan(own, Round(1), BlobId::of(b"embedding"), &known, &exchange);
//! let sources = &plan.rows[0].sources;
//! assert_eq!((sources[0].expert.owner, sources[1].expert.owner), (own, peer));
//! assert!((sources[1].similarity - 0.6).abs() < 1e-12);
//!
//! let expert = |value| {
//!     let mut params = ParamSet::new();
//!     params.insert("w", &[1], vec![value]).map(|()| Arc::new(params))
//! };
//! let (mine, theirs) = (expert(1.0)?, expert(2.0)?);
//! let merged = fednode_mix::merge_row(&plan.rows[0], &mut |id| {
//!     Some(if id.owner == own { mine.clone() } else { theirs.clone() })
//! });
//! assert_eq!(merged?.sources.len(), 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod blend;
pub mod energy;
mod exact;
pub mod matching;
pub mod merge;
pub mod names;
pub mod plan;
pub mod redraw;
pub mod ridge;
pub mod rule;
pub mod screen;
pub mod similarity;
pub mod sites;
pub mod sketch;
pub mod slots;
pub mod sphere;
pub mod statistics;

pub use energy::Measure;
pub use merge::{MergeError, Merged, merge_row};
pub use plan::plan;
pub use rule::{Accumulator, AverageError, Part, average};
pub use screen::{ScreenFault, distance, far_sources, screen};
pub use similarity::{Proxies, cosine};
pub use statistics::{Discriminant, Statistics, StatisticsError};
