//! Who watches a run: every input of every machine, and every output, in order.

use fednode_core::Timestamp;
use fednode_engine::{Input, Output};

/// Watches the machines of a run.
pub trait Observer {
    /// A member is given an input.
    fn input(&mut self, _now: Timestamp, _member: usize, _input: &Input) {}

    /// A member's machine answers with an output.
    fn output(&mut self, _now: Timestamp, _member: usize, _output: &Output) {}
}

/// Watches nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Nobody;

impl Observer for Nobody {}
