//! Writes the records of nodes as TensorBoard's event files, a folder for each node, and goes on as they grow.

use std::collections::BTreeMap;
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
    files: BTreeMap<String, EventFile>,
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
            files: BTreeMap::new(),
        }
    }

    /// Writes what is new, and returns how many rounds that were.
    ///
    /// # Errors
    /// Fails if the disk does.
    pub fn update(&mut self) -> io::Result<usize> {
        let mut written = 0;
        for source in &mut self.sources {
            loop {
                let news = source.tail.read()?;
                if news.lines.is_empty() && !news.is_reset {
                    break;
                }
                written += write(&self.out, &source.named, &news, &mut self.files)?;
            }
        }
        Ok(written)
    }
}

fn write(
    out: &Path,
    named: &Named,
    news: &News,
    files: &mut BTreeMap<String, EventFile>,
) -> io::Result<usize> {
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
    if news.is_reset {
        // What was written holds no longer: the files begin anew.
        match named {
            Named::One(name) => _ = files.remove(name),
            Named::Many { .. } => files.clear(),
        }
    }
    let mut written = 0;
    for record in news.lines.iter().filter_map(|line| record(line)) {
        let name = name_of(&record);
        let started = record.started_at.0 as f64 / 1e3;
        if !files.contains_key(&name) {
            let folder = out.join(&name);
            fs::create_dir_all(&folder)?;
            let file = EventFile::create(&folder.join(FILE), started)?;
            files.insert(name.clone(), file);
        }
        if let Some(file) = files.get_mut(&name) {
            let ended = started + record.round_seconds;
            file.append(ended, record.round.0, &scalars(&record))?;
            written += 1;
        }
    }
    Ok(written)
}

/// Returns what a record has to show, by TensorBoard's tags.
fn scalars(record: &RoundRecord) -> Vec<(&'static str, f64)> {
    let count = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64);
    let all = [
        ("accuracy/after-exchange", record.accuracy),
        (
            "accuracy/before-exchange",
            record.accuracy_after_local_training,
        ),
        ("loss/after-exchange", record.loss),
        ("loss/before-exchange", record.loss_after_local_training),
        ("loss/training", Some(record.train_loss)),
        ("seconds/round", Some(record.round_seconds)),
        ("seconds/training", Some(record.train_seconds)),
        ("bytes/sent", Some(record.bytes_sent.wire as f64)),
        ("bytes/received", Some(record.bytes_received.wire as f64)),
        ("experts/foreign", Some(f64::from(record.n_sources_used))),
        ("memory/resident", count(record.rss_bytes)),
    ];
    let known = all
        .into_iter()
        .filter_map(|(tag, number)| Some((tag, number?)));
    known.filter(|(_, number)| number.is_finite()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fednode_core::{Round, Timestamp};

    fn line(round: u32, node: u8) -> String {
        let node = NodeId::from_bytes([node; 32]);
        let record = RoundRecord::new(Round(round), node, Timestamp(1000));
        serde_json::to_string(&record).unwrap() + "\n"
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
        assert_eq!(board.update().unwrap(), 2);
        let (first, second) = (size("node-1"), size("node-2"));
        assert_eq!(board.update().unwrap(), 0);
        fs::write(&records, line(1, 1) + &line(1, 2) + &line(2, 2)).unwrap();
        assert_eq!(board.update().unwrap(), 1);
        assert!(size("node-1") > first && size("node-2") == second);
        // A run that began anew leaves nothing of the old one.
        fs::write(&records, line(1, 2)).unwrap();
        assert_eq!(board.update().unwrap(), 1);
        assert_eq!(size("node-1"), first);
    }
}
