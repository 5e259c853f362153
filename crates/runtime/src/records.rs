//! Records: what a round took and what came of it, one line per round in `metrics.jsonl`.
//!
//! ```text
//!   Train ──► trained ──► experts here ──► Merge ──► merged ──► evaluated ──► line written
//!     │          │  └────── experts ─────┘└ global ┘                │
//!     │          └── evaluated after local training ────────────────┤   (whichever is later)
//!     └───────────────────────── round_seconds ─────────────────────┘
//! ```
//!
//! A record is open from the moment its round's training starts until its evaluations are in (before the exchange only
//! now and then, see [`crate::MemberConfig::evaluate_every`]). Open records travel
//! with the checkpoint, so a restart in the middle of an exchange loses no line.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fednode_core::{MixedIn, NodeId, Round, Score, Timestamp};
use serde::{Deserialize, Serialize};

use crate::resources;
use crate::status::{Ahead, RoundRecord, Traffic};
use crate::trainer::{Evaluations, Update};

/// Rounds whose records may be open at once: the one that is merged and the one that already trains.
const MAX_OPEN: usize = 4;

/// A record that still lacks something.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct OpenRecord {
    record: RoundRecord,
    traffic_before: Traffic,
    /// When the next round began: what is moved from then on is that one's.
    #[serde(default)]
    traffic_after: Option<Traffic>,
    trained_at: Option<Timestamp>,
    experts_at: Option<Timestamp>,
    merge_at: Option<Timestamp>,
    evaluated_locally: bool,
    evaluated_merged: bool,
    closed: bool,
}

/// When the model was evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// After local training, before the merge.
    Local,
    /// After the merge.
    Merged,
}

impl Stage {
    /// The stages of a round that is evaluated fully.
    pub(crate) const BOTH: [Self; 2] = [Self::Local, Self::Merged];
}

/// The open records of a node and the newest complete one.
#[derive(Debug)]
pub(crate) struct Records {
    me: NodeId,
    open: BTreeMap<Round, OpenRecord>,
    last: Option<RoundRecord>,
}

impl Records {
    /// Starts the books, with the records that a checkpoint brought back.
    pub(crate) fn new(me: NodeId, open: Vec<OpenRecord>, last: Option<RoundRecord>) -> Self {
        let mut open: BTreeMap<Round, OpenRecord> = open
            .into_iter()
            .map(|open| (open.record.round, open))
            .collect();
        // Byte counters start again with the process.
        open.values_mut()
            .for_each(|open| (open.traffic_before, open.traffic_after) = Default::default());
        Self { me, open, last }
    }

    /// Returns the open records, for a checkpoint.
    pub(crate) fn open(&self) -> Vec<OpenRecord> {
        self.open.values().cloned().collect()
    }

    /// Returns the newest complete record.
    pub(crate) fn last(&self) -> Option<&RoundRecord> {
        self.last.as_ref()
    }

    /// Tells whether nothing is outstanding.
    pub(crate) fn all_complete(&self) -> bool {
        self.open.is_empty()
    }

    /// Tells whether a round's record is open.
    pub(crate) fn is_open(&self, round: Round) -> bool {
        self.open.contains_key(&round)
    }

    /// Sorts out what an earlier life left open, and returns the evaluations to catch up on.
    ///
    /// The model is that of the checkpoint: after the merge of every closed round, after the training of the one that is
    /// being exchanged. A round that was being trained starts anew; of one in `written` the line was written already.
    pub(crate) fn resume(&mut self, written: &BTreeSet<Round>) -> Vec<(Round, Stage)> {
        let is_lost = |round: &Round, open: &OpenRecord| {
            open.trained_at.is_none() || (open.closed && written.contains(round))
        };
        self.open.retain(|round, open| !is_lost(round, open));
        let mut lacking = Vec::new();
        for (round, open) in &mut self.open {
            if open.closed && !open.evaluated_merged {
                lacking.push((*round, Stage::Merged));
            } else if !open.closed && !open.evaluated_locally {
                lacking.push((*round, Stage::Local));
            }
            // The model after training is gone once it was merged.
            open.evaluated_locally |= open.closed;
        }
        lacking
    }

    /// All rounds are done: what is not closed now never will be.
    pub(crate) fn give_up_unclosed(&mut self) {
        self.open.retain(|_, open| open.closed);
    }

    /// A round's training starts; `stages` are those at which it will be evaluated.
    pub(crate) fn begin(
        &mut self,
        round: Round,
        now: Timestamp,
        traffic: Traffic,
        stages: &[Stage],
    ) {
        while self.open.len() >= MAX_OPEN {
            self.open.pop_first();
        }
        self.open
            .values_mut()
            .for_each(|open| open.traffic_after = open.traffic_after.or(Some(traffic)));
        let open = OpenRecord {
            record: RoundRecord::new(round, self.me, now),
            traffic_before: traffic,
            traffic_after: None,
            trained_at: None,
            experts_at: None,
            merge_at: None,
            evaluated_locally: !stages.contains(&Stage::Local),
            evaluated_merged: !stages.contains(&Stage::Merged),
            closed: false,
        };
        self.open.insert(round, open);
    }

    fn with(&mut self, round: Round, change: impl FnOnce(&mut OpenRecord)) {
        if let Some(open) = self.open.get_mut(&round) {
            change(open);
        }
    }

    /// The local update is done and its blobs are written.
    pub(crate) fn trained(&mut self, round: Round, now: Timestamp, summary: &TrainedSummary) {
        self.with(round, |open| {
            open.trained_at = Some(now);
            open.record.train_seconds = summary.took.as_secs_f64();
            open.record.waited_seconds.publish = summary.publish.as_secs_f64();
            open.record.train_loss = summary.train_loss;
            open.record.n_samples = summary.n_samples;
            open.record.expert_share.clone_from(&summary.expert_share);
            open.record.multiply_adds = Some(summary.multiply_adds);
        });
    }

    /// The first epochs of the next round are trained.
    pub(crate) fn trained_ahead(&mut self, round: Round, now: Timestamp, took: Duration) {
        let started_at = Timestamp(now.0.saturating_sub(took.as_millis() as u64));
        let ahead = Ahead {
            started_at,
            seconds: took.as_secs_f64(),
        };
        self.with(round, |open| open.record.ahead = Some(ahead));
    }

    /// An expert arrived, or will not.
    pub(crate) fn expert_settled(&mut self, now: Timestamp) {
        if let Some(mut last) = self.open.last_entry() {
            let open = last.get_mut();
            if open.trained_at.is_some() && open.merge_at.is_none() {
                open.experts_at = Some(now);
            }
        }
    }

    /// Everything is here and the merge begins.
    pub(crate) fn merge_begins(&mut self, round: Round, now: Timestamp) {
        self.with(round, |open| {
            open.merge_at = Some(now);
            let trained_at = open.trained_at.unwrap_or(now);
            let experts_at = open.experts_at.unwrap_or(trained_at);
            open.record.waited_seconds.experts = experts_at.since(trained_at).as_secs_f64();
            open.record.waited_seconds.global = now.since(experts_at.max(trained_at)).as_secs_f64();
        });
    }

    /// The merge is done.
    pub(crate) fn merged(
        &mut self,
        round: Round,
        took: Duration,
        n_sources_used: u32,
        mixed: Vec<MixedIn>,
    ) {
        self.with(round, |open| {
            open.record.waited_seconds.merge = took.as_secs_f64();
            open.record.n_sources_used = n_sources_used;
            open.record.mixed = mixed;
        });
    }

    /// The round is closed.
    pub(crate) fn closed(&mut self, round: Round, by: Option<NodeId>, members: u32) {
        self.with(round, |open| {
            open.closed = true;
            open.record.closed_by = by;
            open.record.members = members;
        });
    }

    /// The model was copied for a checkpoint.
    pub(crate) fn saved(&mut self, round: Round, took: Duration) {
        self.with(round, |open| {
            open.record.waited_seconds.save += took.as_secs_f64()
        });
    }

    /// The model was evaluated; `None` if that failed.
    pub(crate) fn evaluated(
        &mut self,
        round: Round,
        stage: Stage,
        result: Option<(&Evaluations, Duration)>,
    ) {
        self.with(round, |open| {
            if let Some((evaluations, took)) = result {
                open.record.waited_seconds.evaluate += took.as_secs_f64();
                open.enter(stage, evaluations);
            }
            match stage {
                Stage::Local => open.evaluated_locally = true,
                Stage::Merged => open.evaluated_merged = true,
            }
        });
    }

    /// The merge changed nothing, so the model is as good as it was.
    pub(crate) fn unchanged(&mut self, round: Round) {
        self.with(round, |open| open.evaluated_merged = true);
    }

    /// Takes the records that have become complete, oldest first.
    pub(crate) fn take_complete(
        &mut self,
        now: Timestamp,
        traffic: impl FnOnce() -> Traffic,
    ) -> Vec<RoundRecord> {
        let complete =
            |open: &OpenRecord| open.closed && open.evaluated_locally && open.evaluated_merged;
        let rounds: Vec<Round> = self
            .open
            .iter()
            .filter(|(_, open)| complete(open))
            .map(|(round, _)| *round)
            .collect();
        if rounds.is_empty() {
            return Vec::new();
        }
        let traffic = traffic();
        let finished = rounds
            .into_iter()
            .filter_map(|round| self.open.remove(&round));
        let records: Vec<RoundRecord> = finished.map(|open| open.finish(now, traffic)).collect();
        self.last = records.last().cloned().or(self.last.take());
        records
    }
}

impl OpenRecord {
    fn enter(&mut self, stage: Stage, evaluations: &Evaluations) {
        let (accuracy, loss) = (
            evaluations.test.map(|s| s.accuracy),
            evaluations.test.map(|s| s.loss),
        );
        let record = &mut self.record;
        match stage {
            Stage::Local => {
                record.accuracy_after_local_training = accuracy;
                record.loss_after_local_training = loss;
                record.validation_after_local_training = evaluations.validation;
            }
            Stage::Merged => {
                (record.accuracy, record.loss) = (accuracy, loss);
                record.validation = evaluations.validation;
            }
        }
        record
            .test_expert_share
            .clone_from(&evaluations.expert_share);
        record.test_samples = evaluations.test.map_or(0, |score: Score| score.n_samples);
    }

    fn finish(self, now: Timestamp, traffic: Traffic) -> RoundRecord {
        let mut record = self.record;
        if record.accuracy.is_none() {
            record.accuracy = record.accuracy_after_local_training;
            record.loss = record.loss_after_local_training;
            record.validation = record.validation_after_local_training;
        }
        let spent = self
            .traffic_after
            .unwrap_or(traffic)
            .since(self.traffic_before);
        (record.bytes_sent, record.bytes_received) = (spent.sent, spent.received);
        record.round_seconds = now.since(record.started_at).as_secs_f64();
        let memory = resources::memory();
        (record.rss_bytes, record.peak_rss_bytes) = (memory.rss_bytes, memory.peak_rss_bytes);
        record
    }
}

/// What of an update goes into its record.
#[derive(Debug, Clone, Default)]
pub(crate) struct TrainedSummary {
    took: Duration,
    publish: Duration,
    train_loss: f64,
    n_samples: u32,
    expert_share: Vec<f64>,
    multiply_adds: u64,
}

impl TrainedSummary {
    pub(crate) fn new(update: &Update, took: Duration) -> Self {
        let expert_share = update.expert_share.clone();
        let Update {
            train_loss,
            n_samples,
            multiply_adds,
            ..
        } = *update;
        Self {
            took,
            publish: Duration::ZERO,
            train_loss,
            n_samples,
            expert_share,
            multiply_adds,
        }
    }

    pub(crate) fn published_in(mut self, publish: Duration) -> Self {
        self.publish = publish;
        self
    }
}

/// Appends records to `metrics.jsonl`; each line is one write, so a crash tears at most the last one.
///
/// # Errors
/// Fails if the disk does.
pub(crate) fn append(path: &Path, records: &[RoundRecord]) -> io::Result<()> {
    let mut file = std::fs::OpenOptions::new()
        .create(true)
        .read(true)
        .append(true)
        .open(path)?;
    if is_torn(&mut file)? {
        file.write_all(b"\n")?;
    }
    for record in records {
        let mut line = serde_json::to_vec(record)?;
        line.push(b'\n');
        file.write_all(&line)?;
    }
    Ok(())
}

/// Tells whether a crash left a last line without its end.
fn is_torn(file: &mut std::fs::File) -> io::Result<bool> {
    let mut last = [b'\n'];
    if file.seek(SeekFrom::End(0))? > 0 {
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
    }
    Ok(last != [b'\n'])
}

/// Reads `metrics.jsonl`. A torn last line, left by a crash, is passed over; of a round that was trained again after a
/// restart the last record counts.
///
/// # Errors
/// Fails if the disk does.
pub fn read(path: &Path) -> io::Result<Vec<RoundRecord>> {
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text?,
    };
    let records = text
        .lines()
        .filter_map(|line| serde_json::from_str::<RoundRecord>(line).ok());
    let by_round: BTreeMap<Round, RoundRecord> =
        records.map(|record| (record.round, record)).collect();
    Ok(by_round.into_values().collect())
}

/// Returns where a state folder keeps its records.
pub fn path_in(state: &Path) -> PathBuf {
    state.join("metrics.jsonl")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{Bytes, Waited};

    const ME: NodeId = NodeId::from_bytes([1; 32]);

    fn evaluations(accuracy: f64) -> Evaluations {
        let score = Score {
            accuracy,
            loss: 1.0 - accuracy,
            n_samples: 40,
        };
        Evaluations {
            validation: Some(score),
            test: Some(score),
            expert_share: vec![1.0],
        }
    }

    fn traffic(peer_to_peer: u64) -> Traffic {
        Traffic {
            sent: Bytes {
                peer_to_peer,
                ..Bytes::default()
            },
            received: Bytes::default(),
        }
    }

    #[test]
    fn a_record_tells_where_the_round_went() {
        let mut records = Records::new(ME, vec![], None);
        records.begin(Round(1), Timestamp(0), traffic(100), &Stage::BOTH);
        let summary = TrainedSummary {
            took: Duration::from_secs(4),
            n_samples: 90,
            ..TrainedSummary::default()
        };
        records.trained(Round(1), Timestamp(4_000), &summary);
        records.expert_settled(Timestamp(5_000));
        records.merge_begins(Round(1), Timestamp(7_500));
        records.merged(Round(1), Duration::from_millis(250), 3, vec![]);
        records.evaluated(
            Round(1),
            Stage::Local,
            Some((&evaluations(0.5), Duration::from_millis(100))),
        );
        records.evaluated(
            Round(1),
            Stage::Merged,
            Some((&evaluations(0.75), Duration::from_millis(100))),
        );
        assert!(
            records
                .take_complete(Timestamp(9_000), || traffic(150))
                .is_empty(),
            "not closed yet"
        );
        records.closed(Round(1), Some(ME), 5);
        let done = records.take_complete(Timestamp(9_000), || traffic(150));
        let record = &done[0];
        let waited = Waited {
            experts: 1.0,
            global: 2.5,
            merge: 0.25,
            evaluate: 0.2,
            save: 0.0,
            publish: 0.0,
        };
        assert_eq!(
            (
                record.waited_seconds,
                record.train_seconds,
                record.round_seconds
            ),
            (waited, 4.0, 9.0)
        );
        assert_eq!(
            (record.accuracy, record.accuracy_after_local_training),
            (Some(0.75), Some(0.5))
        );
        assert_eq!(
            (
                record.bytes_sent.peer_to_peer,
                record.members,
                record.n_sources_used
            ),
            (50, 5, 3)
        );
        assert!(records.all_complete());
    }

    #[test]
    fn what_is_fetched_ahead_counts_for_the_next_round_alone() {
        let mut records = Records::new(ME, vec![], None);
        records.begin(Round(1), Timestamp(0), traffic(100), &[]);
        records.begin(Round(2), Timestamp(10), traffic(130), &[]);
        records.closed(Round(1), Some(ME), 2);
        let spent = |done: Vec<RoundRecord>| done[0].bytes_sent.peer_to_peer;
        assert_eq!(
            spent(records.take_complete(Timestamp(20), || traffic(170))),
            30
        );
        records.closed(Round(2), Some(ME), 2);
        assert_eq!(
            spent(records.take_complete(Timestamp(30), || traffic(180))),
            50
        );
    }

    #[test]
    fn a_merge_that_changed_nothing_is_not_evaluated_twice() {
        let mut records = Records::new(ME, vec![], None);
        records.begin(Round(1), Timestamp(0), Traffic::default(), &Stage::BOTH);
        records.unchanged(Round(1));
        records.closed(Round(1), None, 0);
        records.evaluated(
            Round(1),
            Stage::Local,
            Some((&evaluations(0.5), Duration::ZERO)),
        );
        let done = records.take_complete(Timestamp(1), Traffic::default);
        assert_eq!(done[0].accuracy, Some(0.5));
    }

    #[test]
    fn a_restart_loses_no_line_and_writes_none_twice() {
        let mut before = Records::new(ME, vec![], None);
        for round in 1..=4 {
            before.begin(Round(round), Timestamp(0), traffic(100), &Stage::BOTH);
        }
        for round in 1..=3 {
            before.trained(Round(round), Timestamp(1), &TrainedSummary::default());
        }
        before.closed(Round(1), Some(ME), 2);
        before.closed(Round(2), Some(ME), 2);
        let mut after = Records::new(ME, before.open(), None);
        let lacking = after.resume(&BTreeSet::from([Round(1)]));
        assert_eq!(
            lacking,
            [(Round(2), Stage::Merged), (Round(3), Stage::Local)]
        );
        assert!(!after.is_open(Round(1)), "its line was written");
        assert!(!after.is_open(Round(4)), "it is trained anew");
        after.evaluated(
            Round(2),
            Stage::Merged,
            Some((&evaluations(0.5), Duration::ZERO)),
        );
        let done = after.take_complete(Timestamp(9), || traffic(3));
        assert_eq!(
            (
                done.len(),
                done[0].accuracy,
                done[0].bytes_sent.peer_to_peer
            ),
            (1, Some(0.5), 3)
        );
        after.give_up_unclosed();
        assert!(after.all_complete());
    }

    #[test]
    fn the_file_survives_a_torn_line_and_keeps_the_last_of_each_round() {
        let folder = tempfile::tempdir().unwrap();
        let path = path_in(folder.path());
        assert_eq!(read(&path).unwrap(), []);
        let first = RoundRecord::new(Round(1), ME, Timestamp(1));
        let again = RoundRecord::new(Round(1), ME, Timestamp(2));
        let second = RoundRecord::new(Round(2), ME, Timestamp(3));
        append(&path, &[first, again.clone(), second.clone()]).unwrap();
        std::fs::OpenOptions::new()
            .append(true)
            .open(&path)
            .unwrap()
            .write_all(b"{\"round\":3,")
            .unwrap();
        assert_eq!(read(&path).unwrap(), [again.clone(), second.clone()]);
        let fourth = RoundRecord::new(Round(4), ME, Timestamp(4));
        append(&path, std::slice::from_ref(&fourth)).unwrap();
        assert_eq!(
            read(&path).unwrap(),
            [again, second, fourth],
            "the torn line does not spoil the next one"
        );
    }
}
