//! What a machine answers an input with: outputs, in the order in which they came up.

use fednode_core::{Body, NodeId, Round, Timestamp};

use crate::event::{AverageReport, Lacking, Note, Output, Timer};

/// The outputs of the input that is being handled.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outbox(Vec<Output>);

impl Outbox {
    pub(crate) fn push(&mut self, output: Output) {
        self.0.push(output);
    }

    pub(crate) fn publish(&mut self, round: Round, body: Body) {
        self.push(Output::Publish { round, body });
    }

    pub(crate) fn set_timer(&mut self, timer: Timer, at: Timestamp) {
        self.push(Output::SetTimer { timer, at });
    }

    /// Asks for adverts, if there are any.
    pub(crate) fn ask(&mut self, adverts: Vec<Lacking>) {
        if !adverts.is_empty() {
            self.push(Output::Ask(adverts));
        }
    }

    pub(crate) fn note(&mut self, note: Note) {
        self.push(Output::Note(note));
    }

    /// Tells whose statistics are not in a mean that was computed.
    pub(crate) fn note_disbelieved(&mut self, report: &AverageReport) {
        for (node, reason) in &report.disbelieved {
            self.note(Note::Disbelieved {
                round: report.round,
                node: *node,
                reason: reason.clone(),
            });
        }
    }

    pub(crate) fn strike(&mut self, node: NodeId, reason: String) {
        self.push(Output::Strike { node, reason });
    }

    pub(crate) fn ban(&mut self, node: NodeId, reason: String) {
        self.push(Output::Ban { node, reason });
    }

    /// Hands all outputs over; the outbox is empty afterwards.
    pub(crate) fn take(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.0)
    }
}
