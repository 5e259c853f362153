//! What a browser is told: the names of events and the shapes of their documents. `assets/stream.js` reads them.

use std::collections::BTreeMap;

use fednode_core::Role;
use fednode_runtime::ModelCard;
use fednode_runtime::status::{Experts, Peer, RoundRecord, Status};
use serde::Serialize;
use serde::ser::{SerializeSeq, Serializer};

use crate::privacy::Privacy;

/// One event, ready to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) name: &'static str,
    /// JSON without line ends.
    pub(crate) data: String,
}

impl Event {
    pub(crate) fn new(name: &'static str, document: &impl Serialize) -> Self {
        let data = serde_json::to_string(document).expect("documents have text keys");
        Self { name, data }
    }
}

/// Event `federation`: what is looked at.
#[derive(Debug, Serialize)]
pub(crate) struct Federation<'a> {
    /// When the server started, in milliseconds since 1970. A new value means that all else follows again.
    pub(crate) started: u64,
    pub(crate) kind: &'static str,
    pub(crate) title: &'a str,
    pub(crate) folder: &'a str,
    pub(crate) version: &'static str,
    /// What is wrong with files of the whole run.
    pub(crate) problems: Vec<&'a str>,
    pub(crate) nodes: Vec<Named<'a>>,
}

/// One node in event `federation`.
#[derive(Debug, Serialize)]
pub(crate) struct Named<'a> {
    pub(crate) index: usize,
    pub(crate) name: &'a str,
    pub(crate) role: Role,
}

/// Whether a process answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Standing {
    Running,
    /// No process runs with the state folder.
    #[default]
    Stopped,
    /// One runs, and does not answer.
    Unreachable,
}

/// Event `node`: what one process says of itself. The event has only some of its keys at a time: these, or those of
/// [`Others`]. What it does not name has not changed.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Said {
    pub(crate) index: usize,
    pub(crate) state: Standing,
    pub(crate) problem: Option<String>,
    pub(crate) status: Option<Status>,
    pub(crate) privacy: Option<Privacy>,
    pub(crate) card: Option<ModelCard>,
}

impl Said {
    /// Adds something that is wrong.
    pub(crate) fn note(&mut self, problem: String) {
        self.problem = Some(match self.problem.take() {
            Some(before) => format!("{before}; {problem}"),
            None => problem,
        });
    }
}

/// Event `node`: what one process says of others. In a large swarm most bytes would be these.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Others {
    pub(crate) index: usize,
    pub(crate) peers: Vec<Peer>,
    pub(crate) experts: Option<Experts>,
    /// What the organiser calls the peers, by node id.
    pub(crate) names: BTreeMap<String, String>,
}

/// Event `rounds`: rounds of one node that are new.
#[derive(Debug, Serialize)]
pub(crate) struct Rounds<'a> {
    pub(crate) index: usize,
    /// Whether the rounds that were sent before no longer hold.
    pub(crate) reset: bool,
    pub(crate) rows: &'a [Row],
    /// The newest record whole, with the last of its rows.
    pub(crate) last: Option<&'a RoundRecord>,
}

/// The numbers of one round, as a list of fixed order: 200,000 of them have to fit into a browser.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Row {
    pub(crate) round: u32,
    numbers: [f64; 18],
}

impl Row {
    pub(crate) fn new(record: &RoundRecord) -> Self {
        let number = |value: Option<f64>| value.unwrap_or(f64::NAN);
        let count = |value: Option<u64>| value.map_or(f64::NAN, |value| value as f64);
        let waited = &record.waited_seconds;
        Self {
            round: record.round.0,
            numbers: [
                record.started_at.0 as f64,
                number(record.score()),
                number(record.score_after_local_training()),
                number(record.loss),
                number(record.training_loss()),
                record.round_seconds,
                record.train_seconds,
                record.bytes_sent.wire as f64,
                record.bytes_received.wire as f64,
                f64::from(record.n_sources_used),
                count(record.rss_bytes),
                f64::from(record.test_samples),
                waited.experts,
                waited.global,
                waited.merge,
                waited.evaluate,
                waited.save,
                waited.publish,
            ],
        }
    }
}

impl Serialize for Row {
    /// Writes `[round, started_at, score, …]`; what is not known is `null`.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(1 + self.numbers.len()))?;
        list.serialize_element(&self.round)?;
        for number in &self.numbers {
            // Whole numbers without a fraction, and six digits: half as many bytes.
            match (number.is_finite(), number.fract() == 0.0) {
                (false, _) => list.serialize_element(&())?,
                (true, true) => list.serialize_element(&(*number as i64))?,
                (true, false) => list.serialize_element(&((number * 1e6).round() / 1e6))?,
            }
        }
        list.end()
    }
}

/// Event `log`: lines that are new.
#[derive(Debug, Serialize)]
pub(crate) struct Log {
    pub(crate) index: usize,
    pub(crate) lines: Vec<Line>,
}

/// One line of a log, or of news.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Line {
    /// When, in milliseconds since 1970, if that is known apart from the text.
    pub(crate) at: Option<u64>,
    pub(crate) text: String,
    pub(crate) is_trouble: bool,
}
