//! Checkpoints of a member: the machine's state and the model of one and the same moment.
//!
//! ```text
//!  Save ──► state taken now ─┬─► model copied on the trainer's thread, in its turn ──► written by a worker
//!                            │   (while training: at its end, with the state of then)    at most one at a time,
//!                            └─► a newer one replaces one that still waits                the newest wins
//! ```
//!
//! The trainer's queue is what keeps both together: the copy runs after everything that was ordered before the save
//! and before everything that is ordered after it. Copies are turned into bytes side by side, so one may arrive after a
//! newer one: snapshots are numbered when they are taken, and a late one is dropped.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use fednode_core::{BlobId, Round};
use fednode_engine::book::Pages;
use fednode_store::{Checkpoint, Checkpoints, LoadError, Loaded, SaveError, Saved};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::answers::Answer;
use crate::base::{Base, on_worker};
use crate::desk::Desk;
use crate::error::RunError;
use crate::trainer::{Timed, TrainerThread};

/// Name of a member's checkpoint.
const NAME: &str = "member";
/// Name of the section that holds the model.
const MODEL: &str = "model";

/// What a checkpoint says beside the model.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Meta {
    /// The machine's state.
    pub(crate) machine: serde_json::Value,
    /// The own blobs of the last rounds, which others may still want.
    pub(crate) own: OwnBlobs,
    /// The pages of the books.
    #[serde(flatten)]
    pub(crate) books: Pages,
}

/// A checkpoint ready to be written.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// The number that [`Saving::order`] gave it.
    pub(crate) number: u64,
    pub(crate) meta: Meta,
    pub(crate) model: Option<Vec<u8>>,
    pub(crate) partition_hash: String,
}

/// Which checkpoint is being written and which waits.
#[derive(Debug, Default)]
pub(crate) struct Saving {
    writing: bool,
    waiting: Option<Box<Snapshot>>,
    /// A save was ordered while the model was being trained.
    pub(crate) after_training: bool,
    /// Copies ordered but not yet made.
    copying: usize,
    /// How many snapshots were ordered in this life: the number of the newest.
    ordered: u64,
    /// The highest number that was offered; 0 before the first.
    newest_offered: u64,
    complained: bool,
}

impl Saving {
    /// Counts a copy that is ordered now and returns its snapshot's number, higher than all before.
    pub(crate) fn order(&mut self) -> u64 {
        self.copying += 1;
        self.ordered += 1;
        self.ordered
    }

    /// A copy that was ordered cannot be made.
    pub(crate) fn not_copied(&mut self) {
        self.copying = self.copying.saturating_sub(1);
    }

    /// Takes a snapshot whose copy was ordered and returns it if it can be written now.
    ///
    /// One that is older than another that was offered is dropped: written last, it would pass for the newest.
    pub(crate) fn offer(&mut self, snapshot: Box<Snapshot>) -> Option<Box<Snapshot>> {
        self.copying = self.copying.saturating_sub(1);
        if snapshot.number < self.newest_offered {
            return None;
        }
        self.newest_offered = snapshot.number;
        if self.writing {
            // The one that waited is dropped: nobody would ever load it once the newer one is
            // written.
            self.waiting = Some(snapshot);
            return None;
        }
        self.writing = true;
        Some(snapshot)
    }

    /// A write has ended; returns the next to write, if one waits.
    pub(crate) fn written(&mut self) -> Option<Box<Snapshot>> {
        self.writing = false;
        let next = self.waiting.take()?;
        self.writing = true;
        Some(next)
    }

    /// Tells whether everything ordered is on the disk.
    pub(crate) fn is_idle(&self) -> bool {
        !self.writing && self.waiting.is_none() && self.copying == 0
    }

    /// Returns the line to tell about a result: the first failure of a streak, and the recovery.
    pub(crate) fn remark(&mut self, result: &Result<Saved, SaveError>) -> Option<String> {
        let line = match result {
            Err(_) if self.complained => None,
            Err(error) => Some(format!(
                "{error}; training goes on, a restart would go back to the last checkpoint"
            )),
            Ok(saved) if saved.disk_was_full && !self.complained => Some(
                "the disk is full: this checkpoint took the reserved space, free some soon"
                    .to_owned(),
            ),
            Ok(saved) if saved.disk_was_full => None,
            Ok(_) if self.complained => Some("checkpoints can be written again".to_owned()),
            Ok(_) => None,
        };
        // A disk that lives on its reserve is trouble already, so its end is news too.
        self.complained = result.as_ref().map_or(true, |saved| saved.disk_was_full);
        line
    }
}

/// Keeps checkpoints, and the own blobs that others may still want.
pub(crate) struct Keeper {
    checkpoints: Arc<Checkpoints>,
    pub(crate) saving: Saving,
    pub(crate) own: OwnBlobs,
}

impl Keeper {
    pub(crate) fn new(checkpoints: Checkpoints, own: OwnBlobs) -> Self {
        Self {
            checkpoints: Arc::new(checkpoints),
            saving: Saving::default(),
            own,
        }
    }

    /// Orders a checkpoint of this moment; during training, of the moment when it ends.
    pub(crate) fn save(
        &mut self,
        base: &mut Base,
        desk: &Desk,
        machine: impl FnOnce() -> serde_json::Value,
        round: Round,
    ) {
        // The worker's queue is busy for the whole update. A copy ordered now would be made after
        // it, with the state of before.
        if desk.is_training() {
            self.saving.after_training = true;
            return;
        }
        let snapshot = Snapshot {
            number: self.saving.order(),
            meta: Meta {
                // Made only now: a save that is ordered during training needs no state yet.
                machine: machine(),
                own: self.own.clone(),
                books: desk.book.pages(),
            },
            model: None,
            partition_hash: desk.card().unwrap_or_default().partition_hash,
        };
        let copying = desk.trainer.as_ref().map(TrainerThread::state);
        base.start(async move {
            let Some(copying) = copying else {
                return Answer::Copied {
                    snapshot: Box::new(snapshot),
                    round,
                    took: Duration::ZERO,
                };
            };
            match copying.await {
                Ok(Timed { value, took }) => {
                    // Turning into bytes takes as long as writing them. Done here, it holds up
                    // neither the loop nor the trainer.
                    let model = on_worker(move || value.to_bytes()).await;
                    let snapshot = Box::new(Snapshot {
                        model: Some(model),
                        ..snapshot
                    });
                    Answer::Copied {
                        snapshot,
                        round,
                        took,
                    }
                }
                Err(error) => Answer::NotCopied(error),
            }
        });
    }

    /// Writes a checkpoint whose model is copied, in its turn.
    pub(crate) fn copied(&mut self, base: &mut Base, snapshot: Box<Snapshot>) {
        if let Some(snapshot) = self.saving.offer(snapshot) {
            self.write(base, snapshot);
        }
    }

    /// Takes note of a checkpoint that was written, or was not, and writes the next one.
    pub(crate) fn saved(&mut self, base: &mut Base, result: &Result<Saved, SaveError>) {
        if let Some(line) = self.saving.remark(result) {
            base.warn(line);
        }
        if let Some(next) = self.saving.written() {
            self.write(base, next);
        }
    }

    fn write(&self, base: &mut Base, mut snapshot: Box<Snapshot>) {
        let checkpoints = Arc::clone(&self.checkpoints);
        base.start(async move {
            Answer::Saved(on_worker(move || write(&mut snapshot, &checkpoints)).await)
        });
    }
}

/// Writes a snapshot. Blocks.
///
/// # Errors
/// Fails if the disk does.
fn write(snapshot: &mut Snapshot, checkpoints: &Checkpoints) -> Result<Saved, SaveError> {
    let partition_hash = std::mem::take(&mut snapshot.partition_hash);
    let checkpoint =
        Checkpoint::new(partition_hash, &snapshot.meta).map_err(std::io::Error::from)?;
    let checkpoint = match snapshot.model.take() {
        Some(model) => checkpoint.with_section(MODEL, model),
        None => checkpoint,
    };
    checkpoints.save(NAME, &checkpoint)
}

/// What a checkpoint brought back.
#[derive(Debug)]
pub(crate) struct Restored {
    pub(crate) meta: Meta,
    pub(crate) model: Option<Vec<u8>>,
    pub(crate) warning: Option<String>,
}

impl Restored {
    /// Returns the state of the machine.
    ///
    /// # Errors
    /// Fails if the checkpoint is of another kind of machine.
    pub(crate) fn machine<T: DeserializeOwned>(&self) -> Result<T, RunError> {
        serde_json::from_value(self.meta.machine.clone()).map_err(|error| {
            RunError::StateContent(format!("the checkpoint cannot be understood: {error}"))
        })
    }
}

/// Loads the newest checkpoint that is intact. Blocks.
///
/// # Errors
/// Fails if it is of another federation or partition, if none is intact, and if the disk fails.
pub(crate) fn load(
    checkpoints: &Checkpoints,
    partition_hash: &str,
) -> Result<Option<Restored>, RunError> {
    restored(checkpoints.load(NAME, partition_hash))
}

/// Loads the newest checkpoint that is intact, of whatever partition: who only looks mixes nothing. Blocks.
///
/// # Errors
/// Fails if none is intact and if the disk fails.
pub(crate) fn look(
    checkpoints: &Checkpoints,
    likely_partition: &str,
) -> Result<Option<Restored>, RunError> {
    let loaded = match checkpoints.load(NAME, likely_partition) {
        Err(LoadError::Mismatch {
            what: "partition hash",
            found,
            ..
        // A reader has no data and so cannot know the partition. The error names the one that was
        // found.
        }) => checkpoints.load(NAME, found.trim_matches('`')),
        loaded => loaded,
    };
    restored(loaded)
}

fn restored(loaded: Result<Option<Loaded>, LoadError>) -> Result<Option<Restored>, RunError> {
    let unusable = |error: LoadError| RunError::StateContent(error.to_string());
    let Some(loaded) = loaded.map_err(unusable)? else {
        return Ok(None);
    };
    let meta = loaded.checkpoint.meta().map_err(unusable)?;
    let model = loaded.checkpoint.section(MODEL).map(<[u8]>::to_vec);
    Ok(Some(Restored {
        meta,
        model,
        warning: loaded.warning,
    }))
}

/// The own blobs of the last rounds, oldest first.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct OwnBlobs(VecDeque<(Round, Vec<BlobId>)>);

impl OwnBlobs {
    /// Adds a round's blobs and drops those of rounds that nobody may ask for any more.
    pub(crate) fn add(&mut self, round: Round, blobs: Vec<BlobId>, keep_rounds: u32) {
        // A round that is trained again after a restart replaces its own blobs instead of keeping
        // both.
        self.0
            .retain(|(kept, _)| *kept != round && kept.0 + keep_rounds > round.0);
        self.0.push_back((round, blobs));
    }

    pub(crate) fn ids(&self) -> BTreeSet<BlobId> {
        self.0
            .iter()
            .flat_map(|(_, blobs)| blobs)
            .copied()
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(number: u64) -> Box<Snapshot> {
        let meta = Meta {
            machine: serde_json::Value::Null,
            own: OwnBlobs::default(),
            books: Pages::default(),
        };
        Box::new(Snapshot {
            number,
            meta,
            model: None,
            partition_hash: String::new(),
        })
    }

    #[test]
    fn one_is_written_at_a_time_and_the_newest_waits() {
        let mut saving = Saving::default();
        let [first, second, third] = std::array::from_fn(|_| saving.order());
        assert!(saving.offer(snapshot(first)).is_some());
        assert!(saving.offer(snapshot(second)).is_none());
        assert!(saving.offer(snapshot(third)).is_none());
        assert!(!saving.is_idle());
        assert_eq!(saving.written().unwrap().number, third);
        assert!(saving.written().is_none());
        assert!(saving.is_idle());
    }

    #[test]
    fn a_snapshot_that_arrives_after_a_newer_one_is_dropped() {
        let mut saving = Saving::default();
        let [first, second, third, fourth] = std::array::from_fn(|_| saving.order());
        assert!(saving.offer(snapshot(second)).is_some());
        assert!(saving.offer(snapshot(fourth)).is_none());
        assert!(saving.offer(snapshot(third)).is_none());
        assert_eq!(
            saving.written().unwrap().number,
            fourth,
            "the late one does not take the newer one's place"
        );
        assert!(saving.written().is_none());
        assert!(!saving.is_idle(), "one copy is still under way");
        assert!(
            saving.offer(snapshot(first)).is_none(),
            "nothing is being written, and it is too old all the same"
        );
        assert!(saving.is_idle());
    }

    #[test]
    fn a_copy_that_cannot_be_made_is_not_waited_for() {
        let mut saving = Saving::default();
        saving.order();
        assert!(!saving.is_idle());
        saving.not_copied();
        assert!(saving.is_idle());
    }

    #[test]
    fn a_full_disk_is_told_once_and_so_is_its_end() {
        let mut saving = Saving::default();
        let full = || {
            Err(SaveError::Full {
                name: "member".into(),
                bytes: 5,
            })
        };
        let good = |disk_was_full| {
            Ok(Saved {
                generation: 1,
                bytes: 5,
                disk_was_full,
            })
        };
        let told = [
            full(),
            full(),
            good(false),
            good(false),
            good(true),
            good(true),
            full(),
        ];
        let told: Vec<bool> = told
            .iter()
            .map(|result| saving.remark(result).is_some())
            .collect();
        assert_eq!(told, [true, false, true, false, true, false, false]);
    }

    #[test]
    fn blobs_of_old_rounds_are_let_go() {
        let mut own = OwnBlobs::default();
        (1..=6).for_each(|n| own.add(Round(n), vec![BlobId::of(&n.to_le_bytes())], 3));
        let expected: BTreeSet<BlobId> =
            (4..=6_u32).map(|n| BlobId::of(&n.to_le_bytes())).collect();
        assert_eq!(own.ids(), expected);
    }
}
