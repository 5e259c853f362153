//! The vocabulary of a federation.
//!
//! Every other crate speaks in these words and none of them reaches past them to another's internals:
//!
//! | word | is |
//! |---|---|
//! | [`NodeId`], [`FederationId`], [`BlobId`], [`ExpertId`], [`Round`], [`Slot`] | names |
//! | [`ParamSet`], [`Precision`] | parameters as plain numbers, with one canonical byte form; how many bits they have on their way |
//! | [`BlobRef`], [`SegmentList`], [`BlobStore`] | immutable bytes named by their hash, verified piece by piece |
//! | [`ProxySet`], [`Sketches`] | where a node's experts are good, exactly and nearly |
//! | [`Advert`], [`BroadcastSet`] | what nodes say to each other, and who receives it |
//! | [`AggregationPlan`] | whose experts are mixed into one's own |
//! | [`FederationSpec`], [`Exchange`], [`Augmentation`] | what all members agree on, and what its algorithm shares |
//! | [`mod@work`] | what is ordered of a node's worker, and what comes of it |
//! | [`Schedule`] | what each round is, and what comes after the last one |
//! | [`LocalReport`], [`Score`] | what a trainer reports |
//! | [`Hello`] | what two nodes tell each other when they meet |
//! | [`mod@membership`], [`mod@names`] | who belongs to the federation, by its organiser's word; what people call it |
//! | [`masked`] | what members of a masked sum say |
//! | [`limits`] | bounds that every member has alike |
//! | [`mod@config`] | configuration that documents itself |
//! | [`random`] | draws that are the same everywhere |
//! | [`stack`] | several sets of parameters in one |
//!
//! Constructors validate, so what exists is well formed and nobody re-checks. There is no async, no I/O, no clock and
//! no tensor here: [`Timestamp`]s come from outside, weights are plain `f32`.
//!
//! ```
//! use fednode_core::{BlobRef, ParamSet};
//!
//! let mut params = ParamSet::new();
//! params.insert("fc.bias", &[2], vec![0.5, -0.5])?;
//! let (blob, bytes) = params.to_blob();
//! assert_eq!(blob, BlobRef::of(&bytes));
//! assert_eq!(ParamSet::decode(&bytes)?, params);
//! # Ok::<(), fednode_core::ParamsError>(())
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod advert;
mod augmentation;
pub mod blob;
mod broadcast_set;
mod composition;
pub mod draw;
mod exchange;
pub mod guarded;
pub mod hello;
mod id;
pub mod limits;
pub mod masked;
pub mod membership;
pub mod names;
mod params;
mod plain;
mod plan;
mod pool;
mod precision;
mod proxy;
pub mod random;
mod report;
mod schedule;
pub mod shared;
pub mod sketch;
pub mod slicing;
pub mod spec;
pub mod stack;
mod time;
pub mod work;

pub use advert::{
    ADVERT_LIFE, Accepted, Advert, AdvertError, Body, ExpertOffer, Fault, Global, Local,
    MAX_ADVERT_BYTES, MAX_INLINE_PROXY_BYTES, MAX_MEMBERS, MAX_PEERS, MAX_REMOVALS, MAX_WITHDRAWN,
    Member, PoolOffer, ProxyOffer, Removal, Removed, Sequence, SignedAdvert, SliceMean, Slices,
    Withdraw,
};
pub use augmentation::{Augmentation, CROP_SHIFT};
pub use blob::{
    BlobRef, BlobStore, ChainingValue, MAX_BLOB_BYTES, Partial, SEGMENT_BYTES, SegmentError,
    SegmentList, VerifiedSegment,
};
pub use broadcast_set::BroadcastSet;
pub use composition::{Component, Composition, Share};
pub use exchange::{
    All, Averaging, Exchange, ExpertExchange, Matching, NoCount, ParamName, PeersPerExpert, Rule,
    RuleParams, Total, Weighting,
};
pub use fednode_config::{self as config, ConfigError, config};
pub use hello::{Greeting, Hello, HelloReply, PROTOCOL_VERSION, Proof, Refusal, Role};
pub use id::{
    AdvertId, BlobId, ClosingId, ExpertId, FederationId, Lineage, NameError, NodeId, Round, Slot,
};
pub use membership::{Absence, Certificate, MemberName, Members, SignedStatement};
pub use params::{
    Layout, LayoutMismatch, MAX_NAME_BYTES, MAX_RANK, MAX_TENSORS, ParamSet, ParamsError, Tensor,
};
pub use plain::{plain, plain_line};
pub use plan::{AggregationPlan, PlanRow, Source};
pub use pool::{Controls, PoolMember, PoolOutcome, Scores, Served};
pub use precision::Precision;
pub use proxy::{InlineProxies, MAX_EXPERTS, ProxySet};
pub use report::{Judged, LocalReport, MixedIn, Score};
pub use schedule::{Ends, Schedule, Stage, Trainees, Training};
pub use sketch::Sketches;
pub use slicing::{MAX_SLICES, Slicing};
pub use spec::{FederationSpec, HyperValue};
pub use time::Timestamp;
