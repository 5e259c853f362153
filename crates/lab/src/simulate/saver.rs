//! When a simulation is saved, and what is remembered for it in between.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use fednode_sim::{Answer, Moment};
use serde_json::Value;

use super::models::Kept;
use super::places::Places;
use super::snapshot::{self, Snapshot, State};
use fednode_cli::interrupt::Interrupts;

/// Time between two snapshots: what a crash can cost.
const EVERY: Duration = Duration::from_secs(300);
/// Writing may take this part of the time at most: with large models the snapshots are further apart.
const SHARE: u32 = 20;

/// Saves one run.
#[derive(Debug)]
pub(super) struct Saver {
    path: PathBuf,
    settings: Value,
    interrupts: Interrupts,
    /// All answers so far, one after the other.
    history: Vec<u8>,
    /// Time spent before the run was interrupted.
    before: Duration,
    started: Instant,
    last: Instant,
    pause: Duration,
    /// Why the newest snapshot could not be written.
    failed: Option<String>,
}

impl Saver {
    /// Saves to a file; goes on after what was remembered before.
    pub(super) fn new(
        path: PathBuf,
        settings: Value,
        interrupts: Interrupts,
        (history, before): (Vec<u8>, Duration),
    ) -> Self {
        let now = Instant::now();
        let (started, last) = (now, now);
        Self {
            path,
            settings,
            interrupts,
            history,
            before,
            started,
            last,
            pause: EVERY,
            failed: None,
        }
    }

    /// Returns the time that the run took so far.
    pub(super) fn took(&self) -> Duration {
        self.before + self.started.elapsed()
    }

    /// Returns why the newest snapshot could not be written.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    /// Remembers an answer.
    pub(super) fn remember(&mut self, answer: &Answer) {
        let history = std::mem::take(&mut self.history);
        self.history =
            postcard::to_extend(answer, history).expect("plain data can be written to memory");
    }

    /// Tells whether it is time for the next snapshot.
    pub(super) fn is_due(&self) -> bool {
        self.last.elapsed() >= self.pause
    }

    /// Writes a snapshot.
    pub(super) fn save(&mut self, moment: &Moment<'_>, nodes: Vec<Kept>) {
        let started = Instant::now();
        let mut places = Places::default();
        let nodes = nodes
            .into_iter()
            .map(|node| node.map(&mut |params| places.place(&params)))
            .collect();
        let mut contents: Vec<_> = moment
            .contents
            .iter()
            .map(|(blob, params)| (*blob, places.place(params)))
            .collect();
        contents.sort_unstable();
        let state = State {
            events: moment.events,
            took: self.took(),
            nodes,
            contents,
        };
        let history = std::mem::take(&mut self.history);
        let snapshot = Snapshot {
            state,
            history,
            params: places.params,
        };
        let stops = || self.interrupts.count() > 1;
        let written = snapshot::write(&self.path, &self.settings, &snapshot, stops);
        self.history = snapshot.history;
        self.failed = written.err().map(|error| self.reason(&error));
        self.last = Instant::now();
        self.pause = EVERY.max(started.elapsed() * SHARE);
    }

    fn reason(&self, error: &io::Error) -> String {
        match error.kind() {
            io::ErrorKind::Interrupted => {
                "interrupted again while saving: the last snapshot is kept".into()
            }
            _ => format!("cannot write `{}`: {error}", self.path.display()),
        }
    }
}

/// Reads answers that were remembered, in order, as far as they are whole.
pub(super) fn answers(history: Vec<u8>) -> impl Iterator<Item = Answer> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let (answer, rest) = postcard::take_from_bytes(&history[at..]).ok()?;
        at = history.len() - rest.len();
        Some(answer)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use fednode_core::masked::{Bytes32, MaskOffer, Unmask};
    use fednode_core::{
        BlobId, BlobRef, ExpertOffer, InlineProxies, LocalReport, NodeId, ProxyOffer, Round,
    };
    use fednode_sim::{Made, Told};

    #[test]
    fn answers_come_back_as_they_were() {
        let blob = BlobRef {
            id: BlobId::of(b"x"),
            size: 9,
        };
        let report = LocalReport {
            round: Round(3),
            lineage: BlobId::of(b"y"),
            shared: Some(blob),
            experts: vec![ExpertOffer {
                blob,
                samples_routed: 4,
            }],
            own_experts: vec![blob],
            proxies: Some(ProxyOffer::Inline(InlineProxies::new(vec![1, 2]))),
            sketches: None,
            n_samples: 5,
            train_loss: f64::NAN,
            expert_share: vec![0.1],
            offer: Some(Box::new(MaskOffer {
                mask_key: Bytes32::new([1; 32]),
                seal_key: Bytes32::new([2; 32]),
                own_mask: Bytes32::new([3; 32]),
                threshold: 2,
                holders: Vec::new(),
            })),
        };
        let made = vec![Made {
            blob,
            round: Round(3),
            proxies: Some(vec![7]),
        }];
        let first = Answer {
            member: 2,
            told: Told::Trained(report),
            made,
        };
        let word = Unmask {
            survivors: Bytes32::new([4; 32]),
            own_mask: None,
            shares: vec![(NodeId::from_bytes([5; 32]), Bytes32::new([6; 32]))],
        };
        let second = Answer {
            member: 0,
            told: Told::Unmasked(Round(3), Some(word)),
            made: Vec::new(),
        };
        let folder = tempfile::tempdir().unwrap();
        let nothing = (Vec::new(), Duration::ZERO);
        let mut saver = Saver::new(
            folder.path().join("x"),
            Value::Null,
            Interrupts::default(),
            nothing,
        );
        saver.remember(&first);
        saver.remember(&second);
        let read: Vec<Answer> = answers(saver.history).collect();
        // A loss that is no number differs from itself, its text does not.
        assert_eq!(format!("{read:?}"), format!("{:?}", [first, second]));
    }
}
