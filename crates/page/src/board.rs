//! What is known of everybody, with versions, and what of it a browser has not seen yet.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use fednode_core::Role;
use fednode_runtime::status::RoundRecord;
use tokio::sync::watch;

use crate::events::{Event, Federation, Line, Log, Named, Others, Rounds, Row, Said};

/// Lines of a log that are kept.
const LINES: usize = 500;
/// About so many bytes are made at a time for one browser.
const BYTES_AT_A_TIME: usize = 256 << 10;
/// Rows in one event: a browser draws between two events.
const ROWS_AT_A_TIME: usize = 2000;

/// A text and how often it has changed.
#[derive(Debug, Default)]
struct Versioned {
    version: u64,
    text: String,
}

impl Versioned {
    /// Takes a new text; returns whether it is another one.
    fn set(&mut self, text: String) -> bool {
        let is_new = self.version == 0 || self.text != text;
        if is_new {
            self.version += 1;
            self.text = text;
        }
        is_new
    }

    /// Returns the text if a cursor has not seen it, and moves the cursor.
    fn unseen(&self, seen: &mut u64) -> Option<&str> {
        let is_unseen = *seen != self.version;
        *seen = self.version;
        is_unseen.then_some(self.text.as_str())
    }
}

/// What is known of one node.
#[derive(Debug)]
struct Known {
    name: String,
    role: Role,
    said: Versioned,
    others: Versioned,
    /// How often rows that had been sent lost their meaning.
    generation: u64,
    rows: Vec<Row>,
    last: Option<RoundRecord>,
    log: VecDeque<Line>,
    /// Lines that were dropped before the first that is kept.
    forgotten: usize,
}

#[derive(Debug)]
struct State {
    kind: &'static str,
    title: String,
    folder: String,
    started: u64,
    federation: u64,
    /// What is wrong with files of the whole run, by file.
    problems: BTreeMap<&'static str, String>,
    summary: Versioned,
    nodes: Vec<Known>,
    is_over: bool,
}

/// Everything that is known.
#[derive(Debug)]
pub(crate) struct Board {
    state: Mutex<State>,
    changes: watch::Sender<u64>,
    viewers: watch::Sender<usize>,
}

/// How far one browser has seen.
#[derive(Debug, Default)]
pub(crate) struct Cursor {
    federation: u64,
    summary: u64,
    nodes: Vec<Seen>,
    is_over: bool,
}

#[derive(Debug, Default, Clone)]
struct Seen {
    said: u64,
    others: u64,
    generation: u64,
    rows: usize,
    log: usize,
}

/// A browser that looks; while there is one, everybody is asked.
#[derive(Debug)]
pub(crate) struct Viewer(Arc<Board>);

impl Drop for Viewer {
    fn drop(&mut self) {
        self.0.viewers.send_modify(|viewers| *viewers -= 1);
    }
}

impl Board {
    pub(crate) fn new(kind: &'static str, title: String, folder: String) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let state = State {
            kind,
            title,
            folder,
            started: since.map_or(0, |since| since.as_millis() as u64),
            federation: 1,
            problems: BTreeMap::new(),
            summary: Versioned::default(),
            nodes: Vec::new(),
            is_over: false,
        };
        Self {
            state: Mutex::new(state),
            changes: watch::Sender::new(0),
            viewers: watch::Sender::new(0),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Whoever panicked did so while building a text: what is here is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what is known, and wakes the browsers if that is new to them.
    fn change(&self, change: impl FnOnce(&mut State) -> bool) {
        if change(&mut self.state()) {
            self.changes.send_modify(|version| *version += 1);
        }
    }

    /// Enters a node and returns its index.
    pub(crate) fn add_node(&self, name: String, role: Role) -> usize {
        let mut index = 0;
        self.change(|state| {
            index = state.nodes.len();
            let said = Said {
                index,
                ..Said::default()
            };
            let mut first = Versioned::default();
            first.set(Event::new("node", &said).data);
            state.nodes.push(Known {
                name,
                role,
                said: first,
                others: Versioned::default(),
                generation: 1,
                rows: Vec::new(),
                last: None,
                log: VecDeque::new(),
                forgotten: 0,
            });
            state.federation += 1;
            true
        });
        index
    }

    /// Calls a node by another name.
    pub(crate) fn rename(&self, index: usize, name: String) {
        self.change(|state| {
            let is_new = state.nodes[index].name != name;
            state.nodes[index].name = name;
            state.federation += u64::from(is_new);
            is_new
        });
    }

    /// Takes the federation's name, once somebody has said it.
    pub(crate) fn set_title(&self, title: &str) {
        self.change(|state| {
            let is_new = state.title != title;
            title.clone_into(&mut state.title);
            state.federation += u64::from(is_new);
            is_new
        });
    }

    /// Takes what is wrong with a file of the whole run, or that nothing is.
    pub(crate) fn set_problem(&self, file: &'static str, problem: Option<String>) {
        self.change(|state| {
            let before = state.problems.get(file).cloned();
            let is_new = before != problem;
            match problem {
                Some(problem) => _ = state.problems.insert(file, problem),
                None => _ = state.problems.remove(file),
            }
            state.federation += u64::from(is_new);
            is_new
        });
    }

    /// Takes what a node says.
    pub(crate) fn set_said(&self, said: &Said) {
        let text = Event::new("node", said).data;
        self.change(|state| state.nodes[said.index].said.set(text));
    }

    /// Takes what a node says of others.
    pub(crate) fn set_others(&self, others: &Others) {
        let text = Event::new("node", others).data;
        self.change(|state| state.nodes[others.index].others.set(text));
    }

    /// Takes the result of a run, as JSON on one line.
    pub(crate) fn set_summary(&self, summary: String) {
        self.change(|state| state.summary.set(summary));
    }

    /// Forgets a node's rounds: they follow again.
    pub(crate) fn forget_rounds(&self, index: usize) {
        self.change(|state| {
            let node = &mut state.nodes[index];
            node.generation += 1;
            node.rows.clear();
            node.last = None;
            true
        });
    }

    /// Takes the records of rounds. Of a round that was trained again the last record counts.
    pub(crate) fn add_rounds(&self, index: usize, records: Vec<RoundRecord>) {
        self.change(|state| {
            let node = &mut state.nodes[index];
            for record in &records {
                let row = Row::new(record);
                let keep = node.rows.partition_point(|known| known.round < row.round);
                if keep < node.rows.len() {
                    node.generation += 1;
                    node.rows.truncate(keep);
                }
                node.rows.push(row);
            }
            let last = records.into_iter().next_back();
            let is_new = last.is_some();
            node.last = last.or(node.last.take());
            is_new
        });
    }

    /// Takes lines of a node's log.
    pub(crate) fn add_lines(&self, index: usize, lines: Vec<Line>) {
        self.change(|state| {
            let node = &mut state.nodes[index];
            let is_new = !lines.is_empty();
            node.log.extend(lines);
            let surplus = node.log.len().saturating_sub(LINES);
            node.log.drain(..surplus);
            node.forgotten += surplus;
            is_new
        });
    }

    /// Says that the server ends.
    pub(crate) fn end(&self) {
        self.change(|state| {
            state.is_over = true;
            true
        });
    }

    /// Counts a browser until the answer is dropped.
    pub(crate) fn view(self: &Arc<Self>) -> Viewer {
        self.viewers.send_modify(|viewers| *viewers += 1);
        Viewer(Arc::clone(self))
    }

    /// Returns a receiver that is woken by every change.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Waits until somebody looks. Cancel-safe.
    pub(crate) async fn somebody_looks(&self) {
        let mut viewers = self.viewers.subscribe();
        // The sender lives in this board, so it cannot be gone.
        let _ = viewers.wait_for(|viewers| *viewers > 0).await;
    }

    /// Returns what a cursor has not seen, up to some size, and moves it; nothing if it has seen all, `None` once the end was
    /// told.
    pub(crate) fn unseen(&self, cursor: &mut Cursor) -> Option<Vec<Event>> {
        if cursor.is_over {
            return None;
        }
        let state = self.state();
        let mut events = Vec::new();
        if cursor.federation != state.federation {
            cursor.federation = state.federation;
            events.push(Event::new("federation", &state.described()));
        }
        if let Some(summary) = state.summary.unseen(&mut cursor.summary) {
            let data = summary.to_owned();
            events.push(Event {
                name: "summary",
                data,
            });
        }
        cursor.nodes.resize(state.nodes.len(), Seen::default());
        for (index, (node, seen)) in state.nodes.iter().zip(&mut cursor.nodes).enumerate() {
            node.unseen(index, seen, &mut events);
            if events.iter().map(|event| event.data.len()).sum::<usize>() > BYTES_AT_A_TIME {
                return Some(events);
            }
        }
        if state.is_over {
            cursor.is_over = true;
            events.push(Event::new("goodbye", &serde_json::json!({})));
        }
        Some(events)
    }
}

impl State {
    fn described(&self) -> Federation<'_> {
        let named = |(index, node)| {
            let Known { name, role, .. }: &Known = node;
            Named {
                index,
                name,
                role: *role,
            }
        };
        Federation {
            started: self.started,
            kind: self.kind,
            title: &self.title,
            folder: &self.folder,
            version: env!("CARGO_PKG_VERSION"),
            problems: self.problems.values().map(String::as_str).collect(),
            nodes: self.nodes.iter().enumerate().map(named).collect(),
        }
    }
}

impl Known {
    fn unseen(&self, index: usize, seen: &mut Seen, events: &mut Vec<Event>) {
        let said = self.said.unseen(&mut seen.said);
        let others = self.others.unseen(&mut seen.others);
        events.extend(said.into_iter().chain(others).map(|data| Event {
            name: "node",
            data: data.to_owned(),
        }));
        let mut reset = seen.generation != self.generation;
        if reset {
            // A cursor that has seen nothing has nothing to forget.
            seen.rows = 0;
            reset = std::mem::replace(&mut seen.generation, self.generation) > 0;
        }
        let new = &self.rows[seen.rows..];
        let pieces = new.len().div_ceil(ROWS_AT_A_TIME);
        for (piece, rows) in new.chunks(ROWS_AT_A_TIME).enumerate() {
            let last = self.last.as_ref().filter(|_| piece + 1 == pieces);
            let reset = std::mem::take(&mut reset);
            events.push(Event::new(
                "rounds",
                &Rounds {
                    index,
                    reset,
                    rows,
                    last,
                },
            ));
        }
        if reset {
            let (rows, last) = (&[], None);
            events.push(Event::new(
                "rounds",
                &Rounds {
                    index,
                    reset,
                    rows,
                    last,
                },
            ));
        }
        seen.rows = self.rows.len();
        let known = self.forgotten + self.log.len();
        let lines = self
            .log
            .iter()
            .skip(seen.log.saturating_sub(self.forgotten));
        if seen.log < known {
            seen.log = known;
            let lines = lines.cloned().collect();
            events.push(Event::new("log", &Log { index, lines }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fednode_core::{NodeId, Round, Timestamp};
    use serde_json::Value;

    fn record(round: u32) -> RoundRecord {
        let node = NodeId::from_bytes([1; 32]);
        RoundRecord::new(Round(round), node, Timestamp(7))
    }

    fn board() -> Board {
        let board = Board::new("node", "demo".into(), "/demo".into());
        board.add_node("node 1".into(), Role::Node);
        board
    }

    fn told(board: &Board, cursor: &mut Cursor) -> Vec<(&'static str, Value)> {
        let events = board.unseen(cursor).unwrap().into_iter();
        let read = |event: Event| (event.name, serde_json::from_str(&event.data).unwrap());
        events.map(read).collect()
    }

    fn rounds(events: &[(&'static str, Value)]) -> Vec<(bool, Vec<u64>)> {
        let of_rounds = events.iter().filter(|(name, _)| *name == "rounds");
        let read = |(_, data): &(&str, Value)| {
            let rows = data["rows"].as_array().unwrap().iter();
            let numbers = rows.map(|row| row[0].as_u64().unwrap()).collect();
            (data["reset"].as_bool().unwrap(), numbers)
        };
        of_rounds.map(read).collect()
    }

    #[test]
    fn everything_is_told_once_and_then_only_what_is_new() {
        let (board, mut cursor) = (board(), Cursor::default());
        board.add_rounds(0, vec![record(1), record(2)]);
        let first = told(&board, &mut cursor);
        let names: Vec<&str> = first.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["federation", "node", "rounds"]);
        assert_eq!(rounds(&first), [(false, vec![1, 2])]);
        assert!(told(&board, &mut cursor).is_empty());
        board.add_rounds(0, vec![record(3)]);
        assert_eq!(rounds(&told(&board, &mut cursor)), [(false, vec![3])]);
        let late = told(&board, &mut Cursor::default());
        assert_eq!(rounds(&late), [(false, vec![1, 2, 3])]);
    }

    #[test]
    fn a_round_that_was_trained_again_replaces_what_was_told() {
        let (board, mut cursor) = (board(), Cursor::default());
        board.add_rounds(0, vec![record(1), record(2), record(3)]);
        told(&board, &mut cursor);
        board.add_rounds(0, vec![record(2)]);
        assert_eq!(rounds(&told(&board, &mut cursor)), [(true, vec![1, 2])]);
        board.forget_rounds(0);
        assert_eq!(rounds(&told(&board, &mut cursor)), [(true, vec![])]);
    }

    #[test]
    fn many_rounds_come_in_pieces() {
        let (board, mut cursor) = (board(), Cursor::default());
        board.add_rounds(0, (1..=4500).map(record).collect());
        let pieces = rounds(&told(&board, &mut cursor));
        let sizes: Vec<usize> = pieces.iter().map(|(_, rows)| rows.len()).collect();
        assert_eq!(sizes, [2000, 2000, 500]);
    }

    #[test]
    fn of_a_long_log_the_last_lines_are_told() {
        let (board, mut cursor) = (board(), Cursor::default());
        let line = |number: usize| Line {
            at: None,
            text: number.to_string(),
            is_trouble: false,
        };
        board.add_lines(0, (0..600).map(line).collect());
        let lines = |events: Vec<(&str, Value)>| -> Vec<String> {
            let log = events.into_iter().find(|(name, _)| *name == "log");
            let lines = log.map(|(_, data)| data["lines"].as_array().unwrap().clone());
            let text = |line: &Value| line["text"].as_str().unwrap().to_owned();
            lines.unwrap_or_default().iter().map(text).collect()
        };
        let first = lines(told(&board, &mut cursor));
        assert_eq!((first.len(), first[0].as_str()), (500, "100"));
        board.add_lines(0, vec![line(600)]);
        assert_eq!(lines(told(&board, &mut cursor)), ["600"]);
    }

    #[test]
    fn the_end_is_told_once() {
        let (board, mut cursor) = (board(), Cursor::default());
        board.end();
        let last = told(&board, &mut cursor).pop().unwrap();
        assert_eq!(last.0, "goodbye");
        assert!(board.unseen(&mut cursor).is_none());
    }

    #[test]
    fn a_row_has_null_where_nothing_is_known() {
        let mut record = record(4);
        record.accuracy = Some(0.123_456_789);
        let row = serde_json::to_string(&Row::new(&record)).unwrap();
        assert_eq!(
            row,
            "[4,7,0.123457,null,null,0,0,0,0,0,0,null,0,0,0,0,0,0,0]"
        );
    }
}
