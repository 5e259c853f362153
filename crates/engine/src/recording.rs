//! The recording of a machine: its inputs and their times, which are all that its life depends on.
//!
//! A machine reads no clock and draws no number, so whoever keeps its inputs can live its life again, stop anywhere and
//! look. A flight recorder writes a [`Record`] for every input; [`replay`] gives them to a machine that stands where the
//! recording begins.
//!
//! ```
//! use std::sync::Arc;
//! use fednode_core::{FederationSpec, NodeId, Timestamp};
//! use fednode_engine::recording::{Record, replay};
//! use fednode_engine::{Input, Node, Output};
//!
//! let recording = vec![Record { at: Timestamp(5), input: Input::Start }];
//! let spec = Arc::new(FederationSpec { nodes: 1, ..FederationSpec::default() });
//! let mut node = Node::new(spec, NodeId::from_bytes([7; 32]), None);
//! let moments: Vec<_> = replay(|at, input| node.handle(at, input), recording).collect();
//! assert!(moments[0].outputs.iter().any(|output| matches!(output, Output::Train { .. })));
//! ```

use fednode_core::Timestamp;
use serde::{Deserialize, Serialize};

use crate::event::{Input, Output};

/// An input, and when a machine was given it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record {
    /// The machine's time.
    pub at: Timestamp,
    /// The input.
    pub input: Input,
}

/// What happened once more.
#[derive(Debug, Clone)]
pub struct Moment {
    /// The input and its time.
    pub record: Record,
    /// What the machine answered.
    pub outputs: Vec<Output>,
}

/// Gives the records to a machine, one for each moment that is asked for. `handle` is the machine's method of that name.
pub fn replay(
    mut handle: impl FnMut(Timestamp, Input) -> Vec<Output>,
    records: impl IntoIterator<Item = Record>,
) -> impl Iterator<Item = Moment> {
    records.into_iter().map(move |record| {
        let outputs = handle(record.at, record.input.clone());
        Moment { record, outputs }
    })
}
