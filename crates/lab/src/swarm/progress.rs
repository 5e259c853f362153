//! What a swarm shows while it runs: one live line per node on a terminal, else a plain line per finished round.
//!
//! Everything goes to standard error; standard output belongs to the result.

use std::collections::BTreeSet;
use std::io::IsTerminal;

use fednode_runtime::status::{RoundRecord, Status};
use fednode_runtime::streams::say;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use fednode_cli::table::{bytes, score};
use fednode_cli::waiting::describe;

/// A wait longer than this is worth a word, in seconds.
const WORTH_SAYING: f64 = 3.0;
/// A wait longer than this is worth a line of its own, in seconds.
const WORTH_A_LINE: f64 = 15.0;

/// What is known of one node.
#[derive(Debug, Clone, Default)]
pub(crate) struct View {
    /// What it is called: `node 3`.
    pub(crate) name: String,
    /// What it said last.
    pub(crate) status: Option<Box<Status>>,
    /// How it died, if it did.
    pub(crate) failed: Option<String>,
}

/// Most troubles that are said; who has more looks into the logs.
const MOST_TROUBLES: usize = 50;

/// Shows the nodes of a swarm.
#[derive(Debug)]
pub(crate) struct Progress {
    screen: Screen,
    /// Troubles that were said.
    troubles: BTreeSet<String>,
}

#[derive(Debug)]
enum Screen {
    Live {
        all: MultiProgress,
        bars: Vec<ProgressBar>,
    },
    Lines(Vec<Said>),
}

/// What has been said of a node already.
#[derive(Debug, Clone, Default)]
struct Said {
    round: u32,
    waiting: String,
    failed: bool,
}

impl Progress {
    /// Prepares a line per node.
    pub(crate) fn new(n_nodes: usize, rounds: u32) -> Self {
        if !std::io::stderr().is_terminal() {
            let screen = Screen::Lines(vec![Said::default(); n_nodes]);
            return Self {
                screen,
                troubles: BTreeSet::new(),
            };
        }
        let all = MultiProgress::new();
        let style = ProgressStyle::with_template("{prefix:>8} {bar:20} {wide_msg}")
            .expect("the template is valid");
        let bars = (0..n_nodes).map(|_| {
            let bar = all.add(ProgressBar::new(u64::from(rounds)));
            bar.set_style(style.clone());
            bar
        });
        let bars = bars.collect();
        Self {
            screen: Screen::Live { all, bars },
            troubles: BTreeSet::new(),
        }
    }

    /// Shows what is known now.
    pub(crate) fn update(&mut self, views: &[View]) {
        match &mut self.screen {
            Screen::Live { bars, .. } => bars.iter().zip(views).for_each(|(bar, view)| {
                bar.set_prefix(view.name.clone());
                bar.set_position(u64::from(view.rounds_done()));
                bar.set_message(view.line());
            }),
            Screen::Lines(said) => said.iter_mut().zip(views).for_each(|(said, view)| {
                said.news(view).iter().for_each(say);
            }),
        }
    }

    /// Says what a process has to have seen to, once.
    pub(crate) fn trouble(&mut self, name: &str, text: &str) {
        let Some(line) = new_trouble(&mut self.troubles, name, text) else {
            return;
        };
        match &self.screen {
            // What cannot be written to a terminal cannot be said elsewhere.
            Screen::Live { all, .. } => drop(all.println(line)),
            Screen::Lines(_) => say(line),
        }
    }

    /// Leaves the last state on the screen.
    pub(crate) fn finish(&self) {
        if let Screen::Live { bars, .. } = &self.screen {
            bars.iter().for_each(ProgressBar::abandon);
        }
    }
}

/// Returns the line about a trouble that was not said before.
fn new_trouble(said: &mut BTreeSet<String>, name: &str, text: &str) -> Option<String> {
    let line = format!("{name}: {text}");
    (said.len() < MOST_TROUBLES && said.insert(line.clone())).then_some(line)
}

impl View {
    /// Returns the last round whose record is complete.
    fn rounds_done(&self) -> u32 {
        let record = self
            .status
            .as_ref()
            .and_then(|status| status.last_record.as_ref());
        record.map_or(0, |record| record.round.0)
    }

    /// Returns what a node does, as it stands behind its name.
    fn line(&self) -> String {
        if let Some(failed) = &self.failed {
            return format!("failed: {failed}");
        }
        let Some(status) = &self.status else {
            return "starting".into();
        };
        let training = status
            .training
            .map(|now| format!(" {}/{}", now.epoch, now.epochs))
            .unwrap_or_default();
        let phase = if status.finished {
            "finished".into()
        } else {
            format!("{}{training}", status.phase.name())
        };
        let mut line = format!(
            "round {}/{} {phase:<13} {}",
            status.round,
            status.rounds,
            results(status)
        );
        if let Some(waiting) = status
            .waiting_for
            .first()
            .filter(|waiting| waiting.seconds > WORTH_SAYING)
        {
            line.push_str(&format!("  waits for {}", describe(waiting)));
        }
        line
    }
}

/// Returns a node's last results in columns.
fn results(status: &Status) -> String {
    let record = status.last_record.as_ref();
    let loss = record.and_then(RoundRecord::training_loss);
    let loss = loss.map_or("-".into(), |loss| format!("{loss:.3}"));
    let (label, score) = score(&status.score, record.and_then(RoundRecord::score));
    let moved = bytes(status.traffic.sent.wire + status.traffic.received.wire);
    format!(
        "loss {loss:>6}  {label} {score:>7}  peers {}  {moved:>8}",
        status.peers
    )
}

impl Said {
    /// Returns the lines that a view is worth, given what has been said.
    fn news(&mut self, view: &View) -> Vec<String> {
        let mut lines = Vec::new();
        let name = &view.name;
        if let Some(failed) = view.failed.as_ref().filter(|_| !self.failed) {
            self.failed = true;
            lines.push(format!("{name} failed: {failed}"));
        }
        let Some(status) = view.status.as_ref().filter(|_| view.failed.is_none()) else {
            return lines;
        };
        if view.rounds_done() > self.round {
            self.round = view.rounds_done();
            lines.push(format!(
                "{name}  round {}/{} done  {}",
                self.round,
                status.rounds,
                results(status)
            ));
        }
        let waiting = status
            .waiting_for
            .first()
            .filter(|waiting| waiting.seconds > WORTH_A_LINE);
        if let Some(waiting) = waiting.filter(|waiting| waiting.what != self.waiting) {
            self.waiting.clone_from(&waiting.what);
            lines.push(format!(
                "{name}  round {}/{} waits for {}",
                status.round,
                status.rounds,
                describe(waiting)
            ));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::swarm::fixtures::status;
    use fednode_runtime::status::WaitingFor;

    fn view(round: u32) -> View {
        View {
            name: "node 2".into(),
            status: Some(Box::new(status(round))),
            failed: None,
        }
    }

    #[test]
    fn a_finished_round_is_said_once() {
        let mut said = Said::default();
        assert_eq!(said.news(&view(0)), Vec::<String>::new());
        let lines = said.news(&view(1));
        let expected = "node 2  round 1/3 done  loss  0.500  accuracy  75.0 %  peers 4    3.0 kB";
        assert_eq!(lines, [expected]);
        assert_eq!(said.news(&view(1)), Vec::<String>::new());
        assert_eq!(said.news(&view(2)).len(), 1);
    }

    #[test]
    fn long_waits_and_deaths_are_said_once() {
        let mut said = Said {
            round: 1,
            ..Said::default()
        };
        let mut waiting = view(1);
        let wait = WaitingFor {
            what: "the mean".into(),
            seconds: 20.0,
            ..WaitingFor::default()
        };
        waiting.status.as_mut().unwrap().waiting_for = vec![wait];
        assert_eq!(
            said.news(&waiting),
            ["node 2  round 2/3 waits for the mean, for 20 s"]
        );
        assert!(waiting.line().ends_with("waits for the mean, for 20 s"));
        assert_eq!(said.news(&waiting), Vec::<String>::new());
        let failed = View {
            failed: Some("killed".into()),
            ..view(1)
        };
        assert_eq!(said.news(&failed), ["node 2 failed: killed"]);
        assert_eq!(said.news(&failed), Vec::<String>::new());
    }

    #[test]
    fn a_trouble_is_said_once_for_everybody_who_has_it() {
        let mut said = BTreeSet::new();
        let full = "the disk is full";
        assert_eq!(
            new_trouble(&mut said, "node 1", full).unwrap(),
            "node 1: the disk is full"
        );
        assert_eq!(new_trouble(&mut said, "node 1", full), None);
        assert!(new_trouble(&mut said, "node 2", full).is_some());
        assert_eq!(
            (0..100)
                .filter_map(|at| new_trouble(&mut said, "node 1", &at.to_string()))
                .count(),
            MOST_TROUBLES - 2
        );
    }

    #[test]
    fn a_line_says_where_training_is() {
        let mut training = view(1);
        training.status.as_mut().unwrap().training = Some(fednode_core::work::Progress {
            epoch: 1,
            epochs: 2,
            ..Default::default()
        });
        assert!(
            training.line().starts_with("round 2/3 training 1/2"),
            "{}",
            training.line()
        );
        assert_eq!(View::default().line(), "starting");
    }
}
