//! How far a simulation is: a bar with the time left, or a line per round where there is no terminal.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::Instant;

use fednode_core::Round;
use fednode_runtime::status::RoundRecord;
use indicatif::{ProgressBar, ProgressStyle};

use crate::table::{duration, percent};

/// The progress of one run.
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    nodes: usize,
    /// Nodes of which something is learned in a round, but for the last one.
    cohort: usize,
    rounds: u32,
    started: Instant,
    sums: BTreeMap<Round, Sum>,
    quiet: bool,
    /// Rounds of nodes that were complete before the run was interrupted.
    known: usize,
}

#[derive(Debug, Default)]
struct Sum {
    nodes: usize,
    loss: f64,
    trained: f64,
    correct: f64,
    samples: f64,
}

impl Progress {
    pub(super) fn new(nodes: usize, cohort: usize, rounds: u32, quiet: bool) -> Self {
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::new(cohort as u64 * u64::from(rounds.saturating_sub(1)) + nodes as u64);
            let style = ProgressStyle::with_template("{bar:30} {percent:>3} %, {eta} left  {msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        Self { bar, nodes, cohort, rounds, started: Instant::now(), sums: BTreeMap::new(), quiet, known: 0 }
    }

    /// A node's round is complete.
    pub(super) fn enter(&mut self, record: &RoundRecord) {
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
        if self.sum(record) == self.expected(record.round) {
            self.say(self.line(record.round));
            self.sums.remove(&record.round);
        }
    }

    /// Adds a record to its round's, and returns how many there are.
    fn sum(&mut self, record: &RoundRecord) -> usize {
        let sum = self.sums.entry(record.round).or_default();
        sum.nodes += 1;
        sum.loss += record.train_loss * f64::from(record.n_samples);
        sum.trained += f64::from(record.n_samples);
        sum.correct += record.accuracy.unwrap_or(0.0) * f64::from(record.test_samples);
        sum.samples += f64::from(record.test_samples);
        sum.nodes
    }

    /// A node's round was complete before the run was interrupted.
    pub(super) fn know(&mut self, record: &RoundRecord) {
        if let Some(bar) = &self.bar {
            bar.inc(1);
            bar.reset_eta();
        }
        self.known += 1;
        if self.sum(record) == self.expected(record.round) {
            self.sums.remove(&record.round);
        }
    }

    /// Returns how many nodes a round has.
    fn expected(&self, round: Round) -> usize {
        if round.0 == self.rounds { self.nodes } else { self.cohort }
    }

    /// Says what went wrong, without ending anything.
    pub(super) fn warn(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("warning: {text}")),
            None => eprintln!("warning: {text}"),
        }
    }

    /// A node's round is over of which nothing else is known.
    pub(super) fn pass(&mut self, round: Round) {
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
        let sum = self.sums.entry(round).or_default();
        sum.nodes += 1;
        if sum.nodes == self.cohort {
            let line = format!("round {round} of {}{}", self.rounds, self.left(round));
            self.say(line);
            self.sums.remove(&round);
        }
    }

    fn say(&self, line: String) {
        match &self.bar {
            Some(bar) => bar.set_message(line),
            None if !self.quiet => eprintln!("{line}"),
            None => {}
        }
    }

    /// Returns the time left, unless the bar says it.
    fn left(&self, round: Round) -> String {
        let elapsed = self.started.elapsed().as_secs_f64();
        // Rounds that were complete before the run was interrupted took none of this time.
        let played = f64::from(round.0) - self.known as f64 / self.cohort as f64;
        let left = elapsed / played.max(1.0) * f64::from(self.rounds.saturating_sub(round.0));
        if self.bar.is_some() { String::new() } else { format!(", {} left", duration(left)) }
    }

    fn line(&self, round: Round) -> String {
        let Some(Sum { loss, trained, correct, samples, .. }) = self.sums.get(&round) else { return String::new() };
        let (loss, accuracy) = (loss / trained.max(1.0), percent(correct / samples.max(1.0)));
        let left = self.left(round);
        format!("round {round} of {}: training loss {loss:.4}, accuracy {accuracy}{left}", self.rounds)
    }

    pub(super) fn finish(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
