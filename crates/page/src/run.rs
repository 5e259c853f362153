//! Looks at the files of a run: its result, and the rounds of a simulated one.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fednode_core::{FederationSpec, NodeId, Role};
use fednode_runtime::records;
use fednode_runtime::status::RoundRecord;

use crate::board::Board;
use crate::look::{record, repeat};
use crate::tail::{News, Tail};
use crate::watched::{SPEC, SUMMARY};

/// What a problem with the records is filed under.
const RECORDS: &str = "records";
/// Most bytes of a result that is shown.
const MOST_BYTES: u64 = 64 << 20;

/// Follows the result of a run as long as the task lives, while somebody looks.
pub(crate) async fn watch_summary(board: Arc<Board>, path: PathBuf) {
    repeat(board, path, |path, board| match summary(path) {
        Ok(text) => {
            board.set_problem(SUMMARY, None);
            text.into_iter().for_each(|text| board.set_summary(text));
        }
        Err(problem) => board.set_problem(SUMMARY, Some(problem)),
    })
    .await;
}

/// Reads the result as JSON on one line; `None` while it is not there. Says in one line what is wrong with it.
fn summary(path: &Path) -> Result<Option<String>, String> {
    let wrong = |why: &dyn Display| format!("{} cannot be read: {why}.", path.display());
    let size = match std::fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        found => found.map_err(|error| wrong(&error))?.len(),
    };
    if size > MOST_BYTES {
        return Err(wrong(&format!(
            "it has {size} bytes, and {MOST_BYTES} are shown at most"
        )));
    }
    let text = std::fs::read(path).map_err(|error| wrong(&error))?;
    let value: serde_json::Value = serde_json::from_slice(&text).map_err(|error| wrong(&error))?;
    Ok(Some(value.to_string()))
}

/// Reads the spec in a run's folder.
pub(crate) fn spec(folder: &Path) -> Option<FederationSpec> {
    let text = std::fs::read_to_string(folder.join(SPEC)).ok()?;
    FederationSpec::from_toml(&text).ok()
}

/// Follows the rounds of all nodes of a simulated run as long as the task lives, while somebody looks.
pub(crate) async fn watch_simulation(board: Arc<Board>, folder: PathBuf) {
    repeat(board, Nodes::new(&folder), Nodes::look).await;
}

/// The nodes of a simulated run, as far as its records name them.
struct Nodes {
    summary: PathBuf,
    tail: Tail,
    known: BTreeMap<NodeId, usize>,
    are_named: bool,
}

impl Nodes {
    fn new(folder: &Path) -> Self {
        Self {
            summary: folder.join(SUMMARY),
            tail: Tail::new(records::path_in(folder)),
            known: BTreeMap::new(),
            are_named: false,
        }
    }

    fn look(&mut self, board: &Board) {
        if self.known.is_empty() {
            // Of a run that has ended the nodes come in the order of their numbers.
            for Number { shard, node_id } in numbers(&self.summary) {
                let index = board.add_node(format!("node {shard}"), Role::Node);
                self.known.insert(node_id, index);
            }
            self.are_named = !self.known.is_empty();
        }
        loop {
            match self.tail.read() {
                Ok(news) if news.lines.is_empty() && !news.is_reset => {
                    board.set_problem(RECORDS, None);
                    break;
                }
                Ok(news) => self.tell(board, &news),
                Err(error) => {
                    board.set_problem(
                        RECORDS,
                        Some(format!("The records cannot be read: {error}.")),
                    );
                    break;
                }
            }
        }
        self.name(board);
    }

    fn tell(&mut self, board: &Board, news: &News) {
        if news.is_reset {
            for index in self.known.values() {
                board.forget_rounds(*index);
            }
        }
        let mut by_node: BTreeMap<NodeId, Vec<RoundRecord>> = BTreeMap::new();
        for record in news.lines.iter().filter_map(|line| record(line)) {
            by_node.entry(record.node_id).or_default().push(record);
        }
        for (node, records) in by_node {
            let index = *self.known.entry(node).or_insert_with(|| {
                let name = format!("node {}", node.short());
                board.add_node(name, Role::Node)
            });
            board.add_rounds(index, records);
        }
    }

    /// Calls the nodes by their numbers, once the result tells them.
    fn name(&mut self, board: &Board) {
        if self.are_named {
            return;
        }
        for Number { shard, node_id } in numbers(&self.summary) {
            if let Some(index) = self.known.get(&node_id) {
                board.rename(*index, format!("node {shard}"));
                self.are_named = true;
            }
        }
    }
}

/// Reads the nodes' numbers in the result of a run; there are none before it has ended.
pub(crate) fn numbers(path: &Path) -> Vec<Number> {
    let read = |text: String| serde_json::from_str::<Numbered>(&text).ok();
    // What is wrong with the result is said where it is shown; without numbers nodes have names of their ids.
    let numbered = summary(path).ok().flatten().and_then(read);
    numbered.map_or_else(Vec::new, |numbered| numbered.per_node)
}

/// What of a result tells the nodes' numbers.
#[derive(Debug, serde::Deserialize)]
struct Numbered {
    per_node: Vec<Number>,
}

/// Which number a node has.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct Number {
    pub(crate) shard: u32,
    pub(crate) node_id: NodeId,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::Cursor;
    use fednode_core::{Round, Timestamp};

    #[test]
    fn the_nodes_of_a_simulated_run_have_the_numbers_of_its_result() {
        let folder = tempfile::tempdir().unwrap();
        let ids = [2, 1].map(|byte| NodeId::from_bytes([byte; 32]));
        let line = |round: u32, node: NodeId| {
            let record = RoundRecord::new(Round(round), node, Timestamp(0));
            serde_json::to_string(&record).unwrap() + "\n"
        };
        let lines: String = ids.iter().rev().map(|node| line(1, *node)).collect();
        std::fs::write(records::path_in(folder.path()), lines).unwrap();
        let board = Board::new("simulation", "demo".into(), "/demo".into());
        let names = |nodes: &mut Nodes, board: &Board| {
            nodes.look(board);
            let events = board.unseen(&mut Cursor::default()).unwrap();
            let rounds = events.iter().filter(|event| event.name == "rounds");
            assert_eq!(rounds.count(), 2);
            let told: serde_json::Value = serde_json::from_str(&events[0].data).unwrap();
            [0, 1].map(|index| told["nodes"][index]["name"].as_str().unwrap().to_owned())
        };
        let mut under_way = Nodes::new(folder.path());
        let [first, second] = names(&mut under_way, &board);
        assert_eq!(
            [first, second],
            [ids[1], ids[0]].map(|id| format!("node {}", id.short()))
        );
        let per_node: Vec<serde_json::Value> = (1..)
            .zip(ids)
            .map(|(shard, node_id)| serde_json::json!({"shard": shard, "node_id": node_id}))
            .collect();
        let result = serde_json::json!({ "per_node": per_node }).to_string();
        std::fs::write(folder.path().join("summary.json"), result).unwrap();
        assert_eq!(names(&mut under_way, &board), ["node 2", "node 1"]);
        let other = Board::new("simulation", "demo".into(), "/demo".into());
        assert_eq!(
            names(&mut Nodes::new(folder.path()), &other),
            ["node 1", "node 2"]
        );
    }

    #[test]
    fn a_result_that_is_not_whole_is_said_and_not_shown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("summary.json");
        assert_eq!(summary(&path), Ok(None));
        std::fs::write(&path, "{\"served\":").unwrap();
        let problem = summary(&path).unwrap_err();
        assert!(problem.contains("summary.json cannot be read"), "{problem}");
        let board = Board::new("simulation", "demo".into(), "/demo".into());
        board.set_problem(SUMMARY, Some(problem.clone()));
        let told = |board: &Board| -> serde_json::Value {
            let events = board.unseen(&mut Cursor::default()).unwrap();
            serde_json::from_str(&events[0].data).unwrap()
        };
        assert_eq!(told(&board)["problems"][0], problem);
        board.set_problem(SUMMARY, None);
        assert_eq!(told(&board)["problems"].as_array().unwrap().len(), 0);
        std::fs::write(&path, "{\n \"served\": 0.5\n}").unwrap();
        assert_eq!(summary(&path).unwrap().unwrap(), "{\"served\":0.5}");
    }
}
