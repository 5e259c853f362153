//! Spans: every log line of a member's work names the round and the phase that the work belongs to.
//!
//! ```text
//! loop ── enters the span of where the machine stands ──► orders, tasks, worker threads, the trainer's thread
//! ```
//!
//! A task takes the span of the moment in which it was ordered along. So a line of a training that ends late still names
//! the round that was trained.

use std::future::Future;

use fednode_core::Round;
use fednode_engine::Phase;
use tracing::{Instrument, Span, error_span};

/// Where a machine stands, as a span.
#[derive(Debug)]
pub(crate) struct Stage {
    phase: Phase,
    round: Round,
    span: Span,
}

impl Stage {
    pub(crate) fn new(phase: Phase, round: Round) -> Self {
        let span = span(phase, round);
        Self { phase, round, span }
    }

    /// Returns the span of where the machine stands.
    pub(crate) fn span(&self) -> Span {
        self.span.clone()
    }

    /// Returns the span of where the machine stands now; a new one if that is another round or phase.
    pub(crate) fn enter(&mut self, phase: Phase, round: Round) -> Span {
        if (self.phase, self.round) != (phase, round) {
            *self = Self::new(phase, round);
        }
        self.span()
    }
}

/// Makes a span that no other one contains. It has the level of errors, so that it is there whatever is logged.
fn span(phase: Phase, round: Round) -> Span {
    error_span!(parent: None, "work", round = round.0, phase = phase.name())
}

/// Makes the span of what is said of a round as a whole, in whatever phase the machine is meanwhile.
pub(crate) fn of_round(round: Round) -> Span {
    error_span!(parent: None, "work", round = round.0)
}

/// Lets a task work in the span in which it was ordered.
pub(crate) fn follow<F: Future>(task: F) -> impl Future<Output = F::Output> {
    task.instrument(Span::current())
}

/// Lets a thread work in the span in which the work was ordered.
pub(crate) fn carry<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let span = Span::current();
    move || span.in_scope(work)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Log lines in memory.
    #[derive(Debug, Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(work: impl FnOnce()) -> Vec<serde_json::Value> {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .json()
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, work);
        let bytes = lines.0.lock().unwrap().clone();
        let text = String::from_utf8(bytes).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    #[test]
    fn a_line_names_the_round_and_phase_in_which_its_work_was_ordered() {
        let lines = logged(|| {
            let mut stage = Stage::new(Phase::Joining, Round(0));
            let ordered = stage.span().in_scope(|| {
                // An input moves the machine while the loop is still in the span of before.
                let training = stage.enter(Phase::Training, Round(1));
                training.in_scope(|| carry(|| tracing::info!("a batch")))
            });
            stage.enter(Phase::Merging, Round(2)).in_scope(|| {
                ordered();
                tracing::info!("mixed");
            });
        });
        let spans: Vec<_> = lines.iter().map(|line| &line["span"]).collect();
        assert_eq!(
            (&spans[0]["round"], &spans[0]["phase"]),
            (&1.into(), &"training".into())
        );
        assert_eq!(
            (&spans[1]["round"], &spans[1]["phase"]),
            (&2.into(), &"merging".into())
        );
        assert_eq!(
            lines[1]["spans"].as_array().unwrap().len(),
            1,
            "spans do not pile up"
        );
    }
}
