//! A machine under watch: whatever it is given is recorded, and what it answers is told apart by round and phase.
//!
//! The driver can look at the machine, and give it inputs here alone. So no input escapes the recording.

use std::ops::Deref;

use fednode_core::Timestamp;
use fednode_engine::{Input, Note, Output};
use tracing::Span;

use crate::machine::Machine;
use crate::recording::Recorder;
use crate::spans::Stage;

/// A machine, its recorder, and what log lines say of where it stands.
#[derive(Debug)]
pub(crate) struct Watched<M> {
    machine: M,
    recorder: Recorder,
    stage: Stage,
}

impl<M: Machine> Watched<M> {
    pub(crate) fn new(machine: M, recorder: Recorder) -> Self {
        let stage = Stage::new(machine.phase(), machine.round());
        Self {
            machine,
            recorder,
            stage,
        }
    }

    /// Returns the span of where the machine stands.
    pub(crate) fn span(&self) -> Span {
        self.stage.span()
    }

    /// Gives an input to the machine. Returns its outputs, each with the span that it belongs to.
    pub(crate) fn feed(&mut self, now: Timestamp, input: Input) -> Vec<(Span, Output)> {
        let before = self.stage.span();
        let outputs = self.recorder.feed(&mut self.machine, now, input);
        let (phase, round) = (self.machine.phase(), self.machine.round());
        let after = self.stage.enter(phase, round);
        let in_span = |output| {
            // What the machine orders belongs to where it stands now; that a round is closed, to that round.
            let closes = matches!(output, Output::Note(Note::RoundClosed { .. }));
            let span = if closes { &before } else { &after };
            (span.clone(), output)
        };
        outputs.into_iter().map(in_span).collect()
    }

    /// Ends the recording when everything is written. Cancel-safe.
    pub(crate) async fn close(self) {
        self.recorder.close().await;
    }
}

impl<M> Deref for Watched<M> {
    type Target = M;

    fn deref(&self) -> &M {
        &self.machine
    }
}
