//! News for people: every note once to the log, the last few in `status`; and what a long wait is for.

use std::collections::VecDeque;
use std::time::Duration;

use fednode_core::{ExpertId, NodeId, Round, Timestamp, plain_line};
use fednode_engine::{Note, Phase};
use tracing::{info, warn};

use crate::status::{Remark, WaitingFor};

/// Lines that `status` shows.
const SHOWN: usize = 20;
/// A wait is told after this.
const FIRST_TOLD: Duration = Duration::from_secs(5);
/// Longest interval between two lines about the same wait.
const LONGEST_INTERVAL: Duration = Duration::from_secs(300);
/// Names of nodes in one line.
const NAMED: usize = 5;

/// The last news.
#[derive(Debug, Default)]
pub(crate) struct Notebook {
    remarks: VecDeque<Remark>,
    /// The names of the classes, where the federation has some.
    class_names: Vec<String>,
}

impl Notebook {
    /// Begins one that calls classes by these names.
    pub(crate) fn of(class_names: &[String]) -> Self {
        Self {
            class_names: class_names.to_vec(),
            ..Self::default()
        }
    }

    /// Keeps a line for `status`.
    pub(crate) fn remark(&mut self, at: Timestamp, text: impl Into<String>) {
        self.keep(Remark {
            at,
            // Words of peers may be part of it, and a terminal obeys control characters.
            text: plain_line(&text.into()).into_owned(),
            is_trouble: false,
        });
    }

    fn keep(&mut self, remark: Remark) {
        if self.remarks.len() == SHOWN {
            self.remarks.pop_front();
        }
        self.remarks.push_back(remark);
    }

    /// Logs a note of the machine, keeps it and returns its text.
    pub(crate) fn note(&mut self, at: Timestamp, note: &Note) -> String {
        let text = plain_line(&describe(note, &self.class_names)).into_owned();
        log(note, &text);
        self.remark(at, text.clone());
        text
    }

    /// Logs trouble and keeps it.
    pub(crate) fn warn(&mut self, at: Timestamp, text: impl Into<String>) {
        let text = plain_line(&text.into()).into_owned();
        warn!("{text}");
        self.keep(Remark {
            at,
            text,
            is_trouble: true,
        });
    }

    pub(crate) fn lines(&self) -> Vec<Remark> {
        self.remarks.iter().cloned().collect()
    }
}

fn log(note: &Note, text: &str) {
    match note {
        Note::RoundStarted(round) | Note::SitsOut(round) => info!(%round, "{text}"),
        Note::RoundClosed { round, by, members } => {
            let by = by.map(|node| node.short()).unwrap_or_default();
            info!(%round, by, members, "{text}");
        }
        Note::MissingExperts { round, experts } => warn!(%round, missing = experts.len(), "{text}"),
        Note::Acting(round) => info!(%round, "{text}"),
        Note::Isolated(round) => warn!(%round, "{text}"),
        Note::Rejoined { from, to } => info!(%from, %to, "{text}"),
        Note::Equivocated(node) | Note::Revoked(node) => warn!(%node, "{text}"),
        Note::LiedAboutMasks { node, round, .. } => warn!(%node, %round, "{text}"),
        Note::CheatFound { node, round } => warn!(%node, %round, "{text}"),
        Note::Renamed { node, .. } => warn!(%node, "{text}"),
        Note::Disbelieved { round, node, .. } => warn!(%node, %round, "{text}"),
        Note::PoolGathered { missing, strangers } if missing.is_empty() && strangers.is_empty() => {
            info!("{text}")
        }
        Note::PoolGathered { .. } => warn!("{text}"),
        Note::Finished => info!("{text}"),
    }
}

/// Says what a node did, and that nothing counts any more that it says.
fn describe_dropped(node: NodeId, did: &str) -> String {
    let node = node.short();
    format!("node {node} {did}: nothing that it says counts any more")
}

fn describe(note: &Note, class_names: &[String]) -> String {
    match note {
        Note::RoundStarted(round) => format!("round {round} begins"),
        Note::SitsOut(round) => {
            format!("round {round} begins; this node is not drawn to train in it")
        }
        Note::RoundClosed {
            round,
            by: Some(by),
            members,
        } => {
            format!(
                "round {round} closed by {} with {members} members",
                by.short()
            )
        }
        Note::RoundClosed {
            round, by: None, ..
        } => format!("round {round} ended; no mean is common to all"),
        Note::MissingExperts { round, experts } => describe_missing(*round, experts),
        Note::Acting(round) => format!("no aggregator closes round {round}: this node does it"),
        Note::Isolated(round) => {
            format!(
                "round {round}: too few members are reachable; training goes on alone until they are back"
            )
        }
        Note::Rejoined { from, to } => {
            format!("the federation is ahead: from round {from} to round {to}")
        }
        Note::Equivocated(node) => {
            describe_dropped(*node, "told some nodes one thing and others another")
        }
        Note::Revoked(node) => {
            let node = node.short();
            format!("the organiser has revoked node {node}: nothing that it says counts any more")
        }
        Note::LiedAboutMasks {
            node,
            round,
            reason,
        } => describe_dropped(*node, &format!("{reason}, in round {round}")),
        Note::CheatFound { node, round } => {
            let node = node.short();
            format!("node {node} signed a false mean for round {round} and is banned")
        }
        Note::Renamed { node, classes } => describe_renamed(*node, classes, class_names),
        Note::Disbelieved {
            round,
            node,
            reason,
        } => format!(
            "round {round}: the statistics of node {} are left out: {reason}",
            node.short()
        ),
        Note::PoolGathered { missing, strangers } => describe_pool(missing, strangers),
        Note::Finished => "all rounds are done".to_owned(),
    }
}

fn describe_missing(round: Round, experts: &[ExpertId]) -> String {
    let names: Vec<String> = experts
        .iter()
        .take(NAMED)
        .map(ToString::to_string)
        .collect();
    let more = match experts.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let names = names.join(", ");
    format!("round {round}: did not arrive in time: experts {names}{more}")
}

fn describe_renamed(node: NodeId, classes: &[(u32, u32)], names: &[String]) -> String {
    let name = |class: u32| match names.get(class as usize) {
        Some(name) => format!("`{name}`"),
        None => format!("class {class}"),
    };
    let pairs = classes.iter().take(NAMED);
    let pairs: Vec<String> = pairs
        .map(|(own, theirs)| format!("its {} is like {} here", name(*theirs), name(*own)))
        .collect();
    format!(
        "node {} seems to call the classes by other names: {}; compare the label columns of both",
        node.short(),
        pairs.join(", ")
    )
}

fn describe_pool(missing: &[NodeId], strangers: &[NodeId]) -> String {
    let names = |nodes: &[NodeId]| {
        nodes
            .iter()
            .take(NAMED)
            .map(NodeId::short)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let mut text = "the private modules of all members are on offer".to_owned();
    if !missing.is_empty() {
        text = format!(
            "{} members offered no private module in time: {}",
            missing.len(),
            names(missing)
        );
    }
    if !strangers.is_empty() {
        let (count, names) = (strangers.len(), names(strangers));
        text += &format!(
            "; {count} belong to another shared part, or are of another size, and are left out: {names}"
        );
    }
    text
}

/// Tells what is waited for once it takes long, again and again at growing intervals.
#[derive(Debug)]
pub(crate) struct WaitLog {
    subject: Option<(Phase, Round)>,
    next: Duration,
}

impl WaitLog {
    pub(crate) const fn new() -> Self {
        Self {
            subject: None,
            next: FIRST_TOLD,
        }
    }

    /// Returns the line to tell now, if any.
    pub(crate) fn check(
        &mut self,
        phase: Phase,
        round: Round,
        waits: &[WaitingFor],
    ) -> Option<String> {
        if self.subject != Some((phase, round)) {
            (self.subject, self.next) = (Some((phase, round)), FIRST_TOLD);
        }
        // The own trainer is not a wait for anybody; `status` shows its progress.
        let first = waits.first().filter(|_| phase != Phase::Training)?;
        let since = Duration::from_secs_f64(first.seconds);
        if since < self.next {
            return None;
        }
        // Doubling intervals: a wait of an hour fills a screen, not a disk.
        self.next = (since * 2).min(since + LONGEST_INTERVAL);
        let parts: Vec<String> = waits.iter().map(|wait| wait.subject(NAMED)).collect();
        let outlook = waits.iter().find_map(WaitingFor::outlook);
        let outlook = outlook.map(|text| format!("; {text}"));
        Some(format!(
            "waiting since {} s for {}{}",
            since.as_secs(),
            parts.join("; "),
            outlook.unwrap_or_default()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(seconds: u64) -> Vec<WaitingFor> {
        vec![WaitingFor {
            what: "experts".into(),
            whom: vec![NodeId::from_bytes([1; 32])],
            seconds: seconds as f64,
            ..WaitingFor::default()
        }]
    }

    fn check(log: &mut WaitLog, round: u32, seconds: u64) -> Option<String> {
        log.check(Phase::Exchanging, Round(round), &waits(seconds))
    }

    #[test]
    fn a_long_wait_is_told_at_growing_intervals_and_names_whom() {
        let mut log = WaitLog::new();
        let told: Vec<u64> = (0..60)
            .filter(|seconds| check(&mut log, 1, *seconds).is_some())
            .collect();
        assert_eq!(told, [5, 10, 20, 40]);
        let next = check(&mut log, 2, 4);
        assert!(next.is_none(), "another wait starts afresh");
        let line = check(&mut log, 2, 5).unwrap();
        let name = NodeId::from_bytes([1; 32]).short();
        assert_eq!(line, format!("waiting since 5 s for experts from {name}"));
    }

    #[test]
    fn a_peers_words_cannot_steer_a_terminal() {
        let mut notebook = Notebook::default();
        notebook.remark(Timestamp(1), "refused: layer \u{1b}[2J\nall is well");
        notebook.warn(Timestamp(2), "\u{9b}31m");
        for line in notebook.lines() {
            assert!(!line.text.chars().any(char::is_control), "{line:?}");
        }
    }

    #[test]
    fn classes_under_other_names_are_told_by_their_names() {
        let names = ["healthy", "sick"].map(str::to_owned);
        let node = NodeId::from_bytes([1; 32]);
        let classes = vec![(0, 1), (1, 0)];
        let note = Note::Renamed { node, classes };
        let text = Notebook::of(&names).note(Timestamp(1), &note);
        assert!(
            text.contains("its `sick` is like `healthy` here, its `healthy` is like `sick` here"),
            "{text}"
        );
        let text = Notebook::default().note(Timestamp(1), &note);
        assert!(text.contains("its class 1 is like class 0 here"), "{text}");
    }

    #[test]
    fn only_the_last_lines_are_kept() {
        let mut notebook = Notebook::default();
        (0..30)
            .for_each(|n| drop(notebook.note(Timestamp(n.into()), &Note::RoundStarted(Round(n)))));
        let lines = notebook.lines();
        assert_eq!(
            (lines.len(), lines[0].text.as_str()),
            (SHOWN, "round 10 begins")
        );
    }
}
