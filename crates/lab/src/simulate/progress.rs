//! How far a simulation is: a bar with the time left, or a line per round where there is no terminal.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::Instant;

use fednode_core::{FederationSpec, Round};
use fednode_measure::Measure;
use fednode_runtime::status::RoundRecord;
use fednode_runtime::streams::say;
use indicatif::{ProgressBar, ProgressStyle};

use fednode_cli::table::{duration, score};

/// The progress of one run.
///
/// Where all nodes train in every round a round is done when all of its records are complete. Where some rest, a record is
/// complete only when its node trains again: there, and where nothing is learned, a round is done when all have closed it.
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    nodes: usize,
    rounds: u32,
    counts: Counts,
    started: Instant,
    sums: BTreeMap<Round, Sum>,
    quiet: bool,
    /// What the scores that are said are called; nothing where none are: R² of a few test samples is no number for a mean.
    score: Option<String>,
    /// Rounds of nodes that were complete before the run was interrupted.
    known: usize,
}

/// What makes a round complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Counts {
    /// The records of all nodes.
    Records,
    /// That all nodes closed it.
    Closings,
}

#[derive(Debug, Default)]
struct Sum {
    nodes: usize,
    loss: f64,
    trained: f64,
    /// Scores, weighted by test samples.
    score: f64,
    samples: f64,
}

impl Sum {
    fn enter(&mut self, record: &RoundRecord) {
        if let Some(score) = record.score() {
            self.score += score * f64::from(record.test_samples);
            self.samples += f64::from(record.test_samples);
        }
    }
}

impl Progress {
    pub(super) fn new(nodes: usize, rounds: u32, counts: Counts, quiet: bool) -> Self {
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::new(nodes as u64 * u64::from(rounds));
            let style = ProgressStyle::with_template("{bar:30} {percent:>3} %, {eta} left  {msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        Self {
            bar,
            nodes,
            rounds,
            counts,
            started: Instant::now(),
            sums: BTreeMap::new(),
            quiet,
            score: Some("accuracy".to_owned()),
            known: 0,
        }
    }

    /// Says the scores that the rounds of a federation have.
    pub(super) fn of(self, spec: &FederationSpec) -> Self {
        let name = spec.score_name();
        let is_r2 = name == "R²" || name == Measure::R2.name();
        Self {
            score: (!is_r2).then(|| name.to_owned()),
            ..self
        }
    }

    /// A node has trained.
    pub(super) fn train(&mut self, round: Round, n_samples: u32, train_loss: f64) {
        let sum = self.sums.entry(round).or_default();
        sum.loss += train_loss * f64::from(n_samples);
        sum.trained += f64::from(n_samples);
    }

    /// A node's record of a round is complete.
    pub(super) fn enter(&mut self, record: &RoundRecord) {
        if self.counts == Counts::Records {
            let sum = self.sums.entry(record.round).or_default();
            sum.enter(record);
            self.count(record.round);
        }
    }

    /// A node has closed a round.
    pub(super) fn close(&mut self, round: Round) {
        if self.counts == Counts::Closings {
            self.count(round);
        }
    }

    fn count(&mut self, round: Round) {
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
        let sum = self.sums.entry(round).or_default();
        sum.nodes += 1;
        if sum.nodes == self.nodes {
            self.say(self.line(round));
            self.sums = self.sums.split_off(&round.next());
        }
    }

    /// A node's record of a round was complete before the run was interrupted.
    pub(super) fn know(&mut self, record: &RoundRecord) {
        match self.counts {
            Counts::Records => {
                self.known += 1;
                let sum = self.sums.entry(record.round).or_default();
                sum.nodes += 1;
                sum.enter(record);
                if let Some(loss) = record.training_loss() {
                    self.train(record.round, record.n_samples, loss);
                }
                self.sums.retain(|_, sum| sum.nodes < self.nodes);
            }
            // Somebody has trained after that round.
            Counts::Closings => self.known = self.known.max(record.round.0 as usize * self.nodes),
        }
        if let Some(bar) = &self.bar {
            bar.set_position(self.known as u64);
            bar.reset_eta();
        }
    }

    /// Says what went wrong, without ending anything.
    pub(super) fn warn(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| say(format_args!("warning: {text}"))),
            None => say(format_args!("warning: {text}")),
        }
    }

    fn say(&self, line: String) {
        match &self.bar {
            Some(bar) => bar.set_message(line),
            None if !self.quiet => say(line),
            None => {}
        }
    }

    /// Returns the time left, unless the bar says it.
    fn left(&self, round: Round) -> String {
        let elapsed = self.started.elapsed().as_secs_f64();
        // Rounds that were complete before the run was interrupted took none of this time.
        let played = f64::from(round.0) - self.known as f64 / self.nodes as f64;
        let left = elapsed / played.max(1.0) * f64::from(self.rounds.saturating_sub(round.0));
        if self.bar.is_some() {
            String::new()
        } else {
            format!(", {} left", duration(left))
        }
    }

    fn line(&self, round: Round) -> String {
        let mut line = format!("round {round} of {}", self.rounds);
        if let Some(Sum {
            loss,
            trained,
            score: sum,
            samples,
            ..
        }) = self.sums.get(&round)
        {
            let mut facts = Vec::new();
            if *trained > 0.0 {
                facts.push(format!("training loss {:.4}", loss / trained));
            }
            let name = self.score.as_deref().filter(|_| *samples > 0.0);
            facts.extend(name.map(|name| {
                let (label, mean) = score(name, Some(sum / samples));
                format!("{label} {mean}")
            }));
            if !facts.is_empty() {
                line += &format!(": {}", facts.join(", "));
            }
        }
        line + &self.left(round)
    }

    pub(super) fn finish(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(round: u32, accuracy: Option<f64>) -> RoundRecord {
        let mut record = RoundRecord::new(
            Round(round),
            fednode_core::NodeId::from_bytes([1; 32]),
            fednode_core::Timestamp(0),
        );
        (record.train_loss, record.n_samples) = (0.5, 30);
        (record.accuracy, record.test_samples) =
            (accuracy, if accuracy.is_some() { 10 } else { 0 });
        record
    }

    #[test]
    fn where_all_train_a_round_is_done_with_its_records() {
        let mut progress = Progress::new(2, 3, Counts::Records, true);
        (0..2).for_each(|_| progress.train(Round(1), 30, 0.5));
        progress.close(Round(1));
        progress.enter(&record(1, Some(0.5)));
        assert_eq!(progress.sums[&Round(1)].nodes, 1);
        let line = progress.line(Round(1));
        assert!(
            line.starts_with("round 1 of 3: training loss 0.5000, accuracy 50.0 %, "),
            "{line}"
        );
        progress.enter(&record(1, Some(1.0)));
        assert!(progress.sums.is_empty(), "said and forgotten");
    }

    #[test]
    fn where_some_rest_a_round_is_done_when_all_have_closed_it() {
        let mut progress = Progress::new(3, 3, Counts::Closings, true);
        progress.train(Round(1), 30, 0.5);
        progress.close(Round(1));
        progress.enter(&record(1, Some(0.5)));
        let line = progress.line(Round(1));
        assert!(
            line.starts_with("round 1 of 3: training loss 0.5000, ") && !line.contains("accuracy"),
            "{line}"
        );
        (0..2).for_each(|_| progress.close(Round(1)));
        assert!(progress.sums.is_empty());
        // Nobody was drawn.
        assert!(progress.line(Round(2)).starts_with("round 2 of 3, "));
        let mut again = Progress::new(3, 3, Counts::Closings, true);
        again.know(&record(2, Some(0.5)));
        assert_eq!(again.known, 6);
    }
}
