//! The file of a node's records: `metrics.jsonl`, one line per round ([`fednode_engine::book`]).

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use fednode_core::{NodeId, Round};
use fednode_files::whole_file;

use crate::status::RoundRecord;

/// Most bytes of a line that is looked at.
const MOST_OF_A_LINE: u64 = 1 << 20;

/// Most bytes of the newest lines that a start looks at: some thousands of rounds.
const NEWEST_BYTES: u64 = 8 << 20;
/// Most bytes of the newest lines that an answer of the control API is made of: some ten thousands of rounds.
const ANSWERED_BYTES: u64 = 32 << 20;

/// What tells a line's round.
#[derive(serde::Deserialize)]
struct OfRound {
    round: Round,
}

/// What a start has to know of the newest records.
#[derive(Debug, Default)]
pub(crate) struct Newest {
    /// Their rounds.
    pub(crate) rounds: BTreeSet<Round>,
    /// Whose parts were mixed in, in the newest round in which some were.
    pub(crate) mixed: Vec<NodeId>,
}

/// Appends records to `metrics.jsonl`; each line is one write, so a crash tears at most the last one. A node that goes on within
/// an exchange has written its round before: the new record takes the place of the last line, if that is of the same round.
///
/// # Errors
/// Fails if the disk does.
pub(crate) fn append(path: &Path, records: &[RoundRecord]) -> io::Result<()> {
    let mut file = std::fs::OpenOptions::new()
        .create(true)
        .read(true)
        .append(true)
        .open(path)?;
    // A record on the same line as a torn one could not be read either.
    if is_torn(&mut file)? {
        file.write_all(b"\n")?;
    }
    for record in records {
        remove_last_of(&mut file, record.round)?;
        let mut line = serde_json::to_vec(record)?;
        line.push(b'\n');
        file.write_all(&line)?;
    }
    Ok(())
}

/// Removes the last line if it is a record of this round.
fn remove_last_of(file: &mut std::fs::File, round: Round) -> io::Result<()> {
    let end = file.seek(SeekFrom::End(0))?;
    let start = end.saturating_sub(MOST_OF_A_LINE);
    file.seek(SeekFrom::Start(start))?;
    let mut tail = Vec::new();
    file.take(MOST_OF_A_LINE).read_to_end(&mut tail)?;
    let line = tail.strip_suffix(b"\n").unwrap_or(&tail);
    // Only the last line: a node goes on within one round, and older lines are left for the next start.
    let begins = line.iter().rposition(|byte| *byte == b'\n');
    let begins = begins.map_or(0, |newline| newline + 1);
    let last: Option<OfRound> = serde_json::from_slice(&line[begins..]).ok();
    if last.is_some_and(|last| last.round == round) {
        file.set_len(start + begins as u64)?;
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

/// Reads the newest lines of `metrics.jsonl`: a federation without an end has ever more of them.
///
/// # Errors
/// Fails if the disk does.
pub(crate) fn newest(path: &Path) -> io::Result<Newest> {
    let text = newest_lines(path, NEWEST_BYTES)?;
    let records = text.lines().rev();
    let mut records = records.filter_map(|line| serde_json::from_str::<RoundRecord>(line).ok());
    let mixed = records.find(|record| !record.mixed.is_empty());
    let mixed = mixed.map_or(Vec::new(), |record| record.mixed);
    Ok(Newest {
        rounds: rounds_of(&text),
        mixed: mixed.into_iter().map(|from| from.node).collect(),
    })
}

fn rounds_of(text: &str) -> BTreeSet<Round> {
    let lines = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    lines.map(|line: OfRound| line.round).collect()
}

/// Reads the newest whole lines, of so many bytes at most.
fn newest_lines(path: &Path, bytes: u64) -> io::Result<String> {
    let mut file = match std::fs::File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        file => file?,
    };
    let end = file.seek(SeekFrom::End(0))?;
    let start = end.saturating_sub(bytes);
    file.seek(SeekFrom::Start(start))?;
    let mut read = Vec::new();
    file.take(bytes).read_to_end(&mut read)?;
    // The cut may be anywhere in a line, and half a record is none.
    if start > 0 {
        let first = read.iter().position(|byte| *byte == b'\n');
        read.drain(..first.map_or(read.len(), |newline| newline + 1));
    }
    // A torn line may end within a letter. It is no record in any case.
    Ok(String::from_utf8_lossy(&read).into_owned())
}

/// Reads `metrics.jsonl`. A torn last line, left by a crash, is passed over; of a round that was trained again after a
/// restart the last record counts.
///
/// # Errors
/// Fails if the disk does.
pub fn read(path: &Path) -> io::Result<Vec<RoundRecord>> {
    newest_lines(path, u64::MAX).map(|text| records_of(&text))
}

/// As [`read`], of the newest records alone: a federation without an end has ever more of them.
///
/// # Errors
/// Fails if the disk does.
pub(crate) fn read_newest(path: &Path) -> io::Result<Vec<RoundRecord>> {
    newest_lines(path, ANSWERED_BYTES).map(|text| records_of(&text))
}

fn records_of(text: &str) -> Vec<RoundRecord> {
    let records = text
        .lines()
        .filter_map(|line| serde_json::from_str::<RoundRecord>(line).ok());
    let by_round: BTreeMap<Round, RoundRecord> =
        records.map(|record| (record.round, record)).collect();
    by_round.into_values().collect()
}

/// Removes lines that a kill left: torn ones, and those of rounds that were trained again. Of each round the last line stays
/// as it was written. Returns how many lines went. What an earlier start has tidied is not read again.
///
/// # Errors
/// Fails if the disk does; the file is as it was then.
pub(crate) fn tidy(path: &Path) -> io::Result<usize> {
    let newest = newest_lines(path, NEWEST_BYTES)?;
    if newest.lines().count() == rounds_of(&newest).len() {
        return Ok(0);
    }
    let text = newest_lines(path, u64::MAX)?;
    let round_of = |line: &str| serde_json::from_str::<OfRound>(line).ok();
    let lines = text.lines().filter(|line| !line.is_empty());
    let by_round: BTreeMap<Round, &str> = lines
        .filter_map(|line| Some((round_of(line)?.round, line)))
        .collect();
    let surplus = text.lines().count() - by_round.len();
    if surplus > 0 {
        let kept: String = by_round.values().flat_map(|line| [*line, "\n"]).collect();
        // Synced before it takes the place of the records: a power cut must not leave an empty file.
        whole_file::write(path, kept.as_bytes())?;
    }
    Ok(surplus)
}

/// Returns where a state folder keeps its records.
pub fn path_in(state: &Path) -> PathBuf {
    state.join("metrics.jsonl")
}

#[cfg(test)]
mod tests {
    use super::*;
    use fednode_core::{MixedIn, Timestamp};

    const ME: NodeId = NodeId::from_bytes([1; 32]);

    #[test]
    fn a_round_that_is_written_again_takes_the_place_of_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = path_in(folder.path());
        let record = |round, at| RoundRecord::new(Round(round), ME, Timestamp(at));
        for at in 1..=3 {
            append(&path, &[record(1, at)]).unwrap();
        }
        append(&path, &[record(2, 4), record(2, 5)]).unwrap();
        assert_eq!(read(&path).unwrap(), [record(1, 3), record(2, 5)]);
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 2);
        assert_eq!(tidy(&path).unwrap(), 0, "nothing is left to tidy");
    }

    #[test]
    fn a_start_looks_at_the_newest_lines_of_a_long_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = path_in(folder.path());
        assert_eq!(newest(&path).unwrap().rounds, BTreeSet::new(), "no file");
        let pad = "x".repeat(1 << 20);
        let line = |round: u32| format!("{{\"round\":{round},\"pad\":\"{pad}\"}}\n");
        let text: String = (1..=10).map(line).collect();
        std::fs::write(&path, &text).unwrap();
        let newest = newest(&path).unwrap().rounds.into_iter();
        let newest: Vec<u32> = newest.map(|one| one.0).collect();
        assert_eq!(newest, [4, 5, 6, 7, 8, 9, 10], "whole lines of 8 MiB");
        assert_eq!(tidy(&path).unwrap(), 0);
        std::fs::write(&path, text.clone() + &line(10)).unwrap();
        assert_eq!(tidy(&path).unwrap(), 1, "trained again after a kill");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    }

    #[test]
    fn what_was_mixed_in_is_known_after_rounds_in_which_nothing_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = path_in(folder.path());
        assert_eq!(newest(&path).unwrap().mixed, []);
        let record = |round, mixed: &[u8]| {
            let node = |byte: &u8| MixedIn {
                node: NodeId::from_bytes([*byte; 32]),
                similarity: 0.5,
                weight: 0.25,
            };
            RoundRecord {
                mixed: mixed.iter().map(node).collect(),
                ..RoundRecord::new(Round(round), ME, Timestamp(1))
            }
        };
        append(
            &path,
            &[record(1, &[2]), record(2, &[3, 4]), record(3, &[])],
        )
        .unwrap();
        let newest = newest(&path).unwrap();
        assert_eq!(
            newest.mixed,
            [3, 4].map(|byte| NodeId::from_bytes([byte; 32]))
        );
        assert_eq!(newest.rounds.len(), 3);
    }

    #[test]
    fn the_file_survives_a_torn_line_and_keeps_the_last_of_each_round() {
        let folder = tempfile::tempdir().unwrap();
        let path = path_in(folder.path());
        assert_eq!(read(&path).unwrap(), []);
        let first = RoundRecord::new(Round(1), ME, Timestamp(1));
        let again = RoundRecord::new(Round(1), ME, Timestamp(2));
        let second = RoundRecord::new(Round(2), ME, Timestamp(3));
        append(&path, &[first, second.clone(), again.clone()]).unwrap();
        std::fs::OpenOptions::new()
            .append(true)
            .open(&path)
            .unwrap()
            // Half a name in the middle of a letter.
            .write_all(b"{\"round\":3,\"name\":\"Z\xc3")
            .unwrap();
        assert_eq!(read(&path).unwrap(), [again.clone(), second.clone()]);
        let fourth = RoundRecord::new(Round(4), ME, Timestamp(4));
        append(&path, std::slice::from_ref(&fourth)).unwrap();
        assert_eq!(
            read(&path).unwrap(),
            [again, second, fourth],
            "the torn line does not spoil the next one"
        );
        let before = read(&path).unwrap();
        assert_eq!(read_newest(&path).unwrap(), before);
        assert_eq!(tidy(&path).unwrap(), 2, "a torn line and a round's first");
        assert_eq!(read(&path).unwrap(), before);
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 3);
        assert_eq!(tidy(&path).unwrap(), 0, "once is enough");
    }
}
