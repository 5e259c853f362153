//! Looks at one place: asks its process, and reads its files.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fednode_core::names;
use fednode_runtime::control::{Client, ClientError};
use fednode_runtime::status::{Peer, Remark, RoundRecord, Status};
use fednode_runtime::{ModelCard, final_model, membership, records};

use crate::board::Board;
use crate::events::{Line, Others, Said, Standing};
use crate::privacy::Privacy;
use crate::tail::{News, Tail};
use crate::watched::Place;

/// How often a place is looked at.
pub(crate) const EVERY: Duration = Duration::from_secs(1);
/// Of a log this much is read at first.
const LOG_BYTES: u64 = 256 << 10;
/// The list of peers of a swarm of this many is looked at every time; that of a larger one more seldom, for it grows with the
/// square.
const FEW: usize = 8;

/// Looks at a place as long as the task lives, while somebody looks at the board.
pub(crate) async fn watch(board: Arc<Board>, index: usize, place: Place, places: usize) {
    let looker = Looker::new(index, place, places.div_ceil(FEW));
    repeat(board, looker, Looker::look).await;
}

/// Looks again and again as long as the task lives, while somebody looks at the board.
pub(crate) async fn repeat<T: Send + 'static>(
    board: Arc<Board>,
    mut looker: T,
    look: fn(&mut T, &Board),
) {
    loop {
        board.somebody_looks().await;
        let to = Arc::clone(&board);
        // A process that hangs holds a thread of the pool, and nobody else up.
        let looked = tokio::task::spawn_blocking(move || {
            look(&mut looker, &to);
            looker
        });
        // One that panics has printed why, and would do so again.
        let Ok(back) = looked.await else { return };
        looker = back;
        tokio::time::sleep(EVERY).await;
    }
}

/// What is remembered of a place between two looks.
struct Looker {
    index: usize,
    place: Place,
    records: Tail,
    log: Option<Tail>,
    /// The newest remark that was passed on, where there is no log.
    newest: Option<Remark>,
    /// Looks from one list of peers to the next.
    stride: usize,
    turn: usize,
}

impl Looker {
    fn new(index: usize, place: Place, stride: usize) -> Self {
        let records = Tail::new(records::path_in(&place.state));
        let log = place.log.clone();
        Self {
            index,
            place,
            records,
            log: log.map(|path| Tail::last_bytes(path, LOG_BYTES)),
            newest: None,
            stride: stride.max(1),
            turn: 0,
        }
    }

    fn look(&mut self, board: &Board) {
        let mut said = self.said(board);
        if let Some(status) = &said.status {
            board.set_title(&status.name);
            if self.log.is_none() {
                board.add_lines(self.index, new_remarks(&status.notes, &mut self.newest));
            }
        }
        match self.records.read() {
            Ok(news) => tell_rounds(board, self.index, &news),
            Err(error) => said.note(format!("its records cannot be read: {error}")),
        }
        match self.log.as_mut().map(Tail::read).transpose() {
            Ok(news) => {
                let lines = news.unwrap_or_default().lines;
                let lines = lines.iter().map(|line| of_log(line)).collect();
                board.add_lines(self.index, lines);
            }
            Err(error) => said.note(format!("its log cannot be read: {error}")),
        }
        board.set_said(&said);
    }

    fn said(&mut self, board: &Board) -> Said {
        let mut said = Said {
            index: self.index,
            card: card(&self.place.state),
            ..Said::default()
        };
        match Privacy::read(&self.place.owner) {
            Ok(privacy) => said.privacy = privacy,
            Err(problem) => said.note(problem),
        }
        match self.ask(board) {
            Ok(status) => {
                said.state = Standing::Running;
                said.status = Some(status);
                return said;
            }
            Err(ClientError::NotRunning(_)) => {}
            // One that was killed leaves its control file behind, and anybody may answer at its port.
            Err(_) if fednode_runtime::control::is_free(&self.place.state) => {}
            Err(error) => {
                said.state = Standing::Unreachable;
                said.note(error.to_string());
            }
        }
        // Nobody is connected to a process that does not answer.
        self.turn = 0;
        board.set_others(&Others {
            index: self.index,
            ..Others::default()
        });
        said
    }

    /// Asks the process for itself, and now and then for others.
    fn ask(&mut self, board: &Board) -> Result<Status, ClientError> {
        let client = Client::of(&self.place.state)?;
        let status = client.status()?;
        if self.turn.is_multiple_of(self.stride) {
            let peers = client.peers()?;
            // What the organiser calls members stands in the state folder. Without it they have no names, and that is all.
            _ = membership::look(&self.place.state);
            let name = |peer: &Peer| Some((peer.node_id.to_string(), names::of(&peer.node_id)?));
            board.set_others(&Others {
                index: self.index,
                names: peers.iter().filter_map(name).collect(),
                experts: Some(client.experts()?),
                peers,
            });
        }
        self.turn += 1;
        Ok(status)
    }
}

/// Reads the final model's card, if there is one that can be read.
fn card(state: &Path) -> Option<ModelCard> {
    let text = std::fs::read(state.join(final_model::FOLDER).join("card.json")).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Passes on the records of lines.
pub(crate) fn tell_rounds(board: &Board, index: usize, news: &News) {
    if news.is_reset {
        board.forget_rounds(index);
    }
    // A line that a crash has torn is passed over, as everywhere.
    let records = news.lines.iter().filter_map(|line| record(line));
    board.add_rounds(index, records.collect());
}

/// Reads one line of `metrics.jsonl`.
pub(crate) fn record(line: &[u8]) -> Option<RoundRecord> {
    serde_json::from_slice(line).ok()
}

/// Returns the remarks that are newer than one.
fn new_remarks(remarks: &[Remark], newest: &mut Option<Remark>) -> Vec<Line> {
    let known = newest.as_ref();
    let known = known.and_then(|newest| remarks.iter().rposition(|remark| remark == newest));
    let new = &remarks[known.map_or(0, |known| known + 1)..];
    if let Some(last) = new.last() {
        *newest = Some(last.clone());
    }
    let line = |remark: &Remark| Line {
        at: Some(remark.at.0),
        text: remark.text.clone(),
        is_trouble: remark.is_trouble,
    };
    new.iter().map(line).collect()
}

/// Reads a line of a log in its human or its JSON form.
fn of_log(line: &[u8]) -> Line {
    let text = String::from_utf8_lossy(line).trim_end().to_owned();
    let words = || text.split_whitespace().take(2);
    let is_trouble = words().any(|word| matches!(word, "WARN" | "ERROR" | "error:"))
        || ["\"level\":\"WARN\"", "\"level\":\"ERROR\""]
            .iter()
            .any(|level| text.contains(level));
    Line {
        at: None,
        text,
        is_trouble,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fednode_core::Timestamp;

    #[test]
    fn remarks_are_passed_on_once() {
        let remark = |number: u64| Remark {
            at: Timestamp(number),
            text: number.to_string(),
            is_trouble: number == 2,
        };
        let mut newest = None;
        let mut new = |numbers: &[u64]| {
            let remarks: Vec<Remark> = numbers.iter().map(|number| remark(*number)).collect();
            let lines = new_remarks(&remarks, &mut newest);
            lines
                .iter()
                .map(|line| line.at.unwrap())
                .collect::<Vec<_>>()
        };
        assert!(new(&[]).is_empty());
        assert_eq!(new(&[1, 2]), [1, 2]);
        assert!(new(&[1, 2]).is_empty());
        assert_eq!(new(&[2, 3, 4]), [3, 4]);
        // The notebook has forgotten what was newest.
        assert_eq!(new(&[8, 9]), [8, 9]);
    }

    #[test]
    fn trouble_in_a_log_is_seen() {
        let trouble = |text: &str| of_log(text.as_bytes()).is_trouble;
        assert!(trouble("2026-01-01T00:00:00Z  WARN work: the disk is full"));
        assert!(trouble("error: no data"));
        assert!(trouble(r#"{"timestamp":"x","level":"ERROR","fields":{}}"#));
        assert!(!trouble("2026-01-01T00:00:00Z  INFO work: says WARN later"));
    }
}
