//! Writes the records of nodes as TensorBoard's event files, a folder for each node, and goes on as they grow.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use fednode_core::{NodeId, Role};
use fednode_runtime::records;
use fednode_runtime::status::RoundRecord;

use crate::event_file::EventFile;
use crate::look::record;
use crate::run::numbers;
use crate::tail::{News, Tail};
use crate::watched::{Kind, Watched};

/// Name of the file in a node's folder. One name, so that writing again replaces and does not add.
const FILE: &str = "events.out.tfevents.0.fednode";

/// Follows the records of everybody who is watched.
#[derive(Debug)]
pub struct TensorBoard {
    out: PathBuf,
    sources: Vec<Source>,
    /// Whose files were begun. They are not held open: a run may have more nodes than a process may have files.
    begun: BTreeSet<String>,
}

/// A file of records, and how its nodes are called.
#[derive(Debug)]
struct Source {
    tail: Tail,
    named: Named,
}

#[derive(Debug)]
enum Named {
    /// All records are one node's.
    One(String),
    /// They are of many nodes, whose numbers the result of the run tells.
    Many { summary: PathBuf },
}

impl TensorBoard {
    /// Prepares to write into a folder.
    pub fn new(watched: &Watched, out: PathBuf) -> Self {
        let nodes = watched
            .places
            .iter()
            .filter(|place| place.role == Role::Node);
        let mut sources: Vec<Source> = nodes
            .map(|place| Source {
                tail: Tail::new(records::path_in(&place.state)),
                named: Named::One(place.name.replace(' ', "-")),
            })
            .collect();
        if watched.kind == Kind::Simulation {
            let summary = watched.folder.join(crate::watched::SUMMARY);
            sources.push(Source {
                tail: Tail::new(records::path_in(&watched.folder)),
                named: Named::Many { summary },
            });
        }
        Self {
            out,
            sources,
            begun: BTreeSet::new(),
        }
    }

    /// Writes what is new, and returns how many rounds that were. It stops early where `go_on` says so.
    ///
    /// # Errors
    /// Fails if the disk does.
    pub fn update(&mut self, go_on: impl Fn() -> bool) -> io::Result<usize> {
        let mut written = 0;
        for source in &mut self.sources {
            while go_on() {
                let news = source.tail.read()?;
                if news.lines.is_empty() && !news.is_reset {
                    break;
                }
                if news.is_reset {
                    // What was written holds no longer: the files begin anew.
                    match &source.named {
                        Named::One(name) => _ = self.begun.remove(name),
                        Named::Many { .. } => self.begun.clear(),
                    }
                }
                for (name, records) in by_node(&source.named, &news) {
                    write(&self.out, &name, &records, &mut self.begun)?;
                    written += records.len();
                }
            }
        }
        Ok(written)
    }
}

/// Sorts records by the names of their nodes.
fn by_node(named: &Named, news: &News) -> BTreeMap<String, Vec<RoundRecord>> {
    let numbers: BTreeMap<NodeId, u32> = match named {
        Named::One(_) => BTreeMap::new(),
        Named::Many { summary } => {
            let numbers = numbers(summary).into_iter();
            numbers
                .map(|number| (number.node_id, number.shard))
                .collect()
        }
    };
    let name_of = |record: &RoundRecord| match (named, numbers.get(&record.node_id)) {
        (Named::One(name), _) => name.clone(),
        (Named::Many { .. }, Some(number)) => format!("node-{number}"),
        (Named::Many { .. }, None) => format!("node-{}", record.node_id.short()),
    };
    let mut all: BTreeMap<String, Vec<RoundRecord>> = BTreeMap::new();
    for record in news.lines.iter().filter_map(|line| record(line)) {
        all.entry(name_of(&record)).or_default().push(record);
    }
    all
}

/// Appends the records of one node to its file, which begins with the first of them.
fn write(
    out: &Path,
    name: &str,
    records: &[RoundRecord],
    begun: &mut BTreeSet<String>,
) -> io::Result<()> {
    let path = out.join(name).join(FILE);
    let started = |record: &RoundRecord| record.started_at.0 as f64 / 1e3;
    let mut file = match records.first() {
        Some(first) if !begun.contains(name) => {
            fs::create_dir_all(out.join(name))?;
            let file = EventFile::create(&path, started(first))?;
            begun.insert(name.to_owned());
            file
        }
        _ => EventFile::open(&path)?,
    };
    for record in records {
        let ended = started(record) + record.round_seconds;
        file.append(ended, record.round.0, &scalars(record))?;
    }
    file.finish()
}

/// Returns what a record has to show, by TensorBoard's tags.
fn scalars(record: &RoundRecord) -> Vec<(Cow<'static, str>, f64)> {
    let count = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64);
    let all = [
        ("accuracy/after-exchange", record.accuracy),
        (
            "accuracy/before-exchange",
            record.accuracy_after_local_training,
        ),
        ("loss/after-exchange", record.loss),
        ("loss/before-exchange", record.loss_after_local_training),
        ("loss/training", record.training_loss()),
        ("seconds/round", Some(record.round_seconds)),
        ("seconds/training", Some(record.train_seconds)),
        ("bytes/sent", Some(record.bytes_sent.wire as f64)),
        ("bytes/received", Some(record.bytes_received.wire as f64)),
        ("experts/foreign", Some(f64::from(record.n_sources_used))),
        ("memory/resident", count(record.rss_bytes)),
    ];
    let judged = [
        (&record.judged, "after-exchange"),
        (&record.judged_after_local_training, "before-exchange"),
    ];
    let judged = judged.into_iter().filter_map(|(judged, moment)| {
        let judged = judged.as_ref()?;
        let tag = format!("{}/{moment}", judged.measure);
        Some((Cow::<str>::Owned(tag), judged.value?))
    });
    let known = all
        .into_iter()
        .filter_map(|(tag, number)| Some((Cow::Borrowed(tag), number?)));
    // Accuracy is there anyway.
    let known = known.chain(judged.filter(|(tag, _)| !tag.starts_with("accuracy/")));
    known.filter(|(_, number)| number.is_finite()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fednode_core::{Judged, Round, Timestamp};

    fn line(round: u32, node: u8) -> String {
        let node = NodeId::from_bytes([node; 32]);
        let record = RoundRecord::new(Round(round), node, Timestamp(1000));
        serde_json::to_string(&record).unwrap() + "\n"
    }

    #[test]
    fn a_measure_has_a_curve_of_its_own_beside_accuracy() {
        let node = NodeId::from_bytes([1; 32]);
        let tags = |measure: &str, value| {
            let record = RoundRecord {
                accuracy: Some(0.5),
                judged: Some(Judged {
                    measure: measure.to_owned(),
                    value,
                }),
                ..RoundRecord::new(Round(1), node, Timestamp(1000))
            };
            let scalars = scalars(&record);
            let of = |tag: &str| {
                let mut found = scalars.iter().filter(|(name, _)| name == tag);
                (
                    found.next().map(|(_, number)| *number),
                    found.next().is_some(),
                )
            };
            (of("auroc/after-exchange").0, of("accuracy/after-exchange"))
        };
        assert_eq!(tags("auroc", Some(0.75)), (Some(0.75), (Some(0.5), false)));
        assert_eq!(tags("auroc", None), (None, (Some(0.5), false)));
        assert_eq!(tags("accuracy", Some(0.5)), (None, (Some(0.5), false)));
    }

    #[test]
    fn every_node_of_a_run_has_a_folder_that_grows() {
        let (run, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let ids = [1, 2].map(|byte| NodeId::from_bytes([byte; 32]));
        let summary = serde_json::json!({"per_node": [
            {"shard": 1, "node_id": ids[1]}, {"shard": 2, "node_id": ids[0]}
        ]});
        fs::write(run.path().join("summary.json"), summary.to_string()).unwrap();
        let records = records::path_in(run.path());
        fs::write(&records, line(1, 1) + &line(1, 2)).unwrap();
        let watched = Watched::folder(run.path()).unwrap();
        let mut board = TensorBoard::new(&watched, out.path().to_owned());
        let size = |name: &str| {
            fs::metadata(out.path().join(name).join(FILE))
                .unwrap()
                .len()
        };
        assert_eq!(board.update(|| true).unwrap(), 2);
        let (first, second) = (size("node-1"), size("node-2"));
        assert_eq!(board.update(|| true).unwrap(), 0);
        fs::write(&records, line(1, 1) + &line(1, 2) + &line(2, 2)).unwrap();
        assert_eq!(board.update(|| true).unwrap(), 1);
        assert!(size("node-1") > first && size("node-2") == second);
        // A run that began anew leaves nothing of the old one.
        fs::write(&records, line(1, 2)).unwrap();
        assert_eq!(board.update(|| true).unwrap(), 1);
        assert_eq!(size("node-1"), first);
    }
}
