//! Explicit index lists from a JSON file, so that results can be compared on the very same division.

use std::path::PathBuf;

use super::{Divide, NodeIndices, Partition, Request};
use crate::error::DataError;
use fednode_core::random::Dice;

/// Largest accepted file: a hundred million samples need less.
const MAX_FILE_BYTES: u64 = 1 << 30;

#[derive(Debug)]
struct List {
    path: PathBuf,
}

pub(super) fn parse(argument: &str) -> Option<Box<dyn Divide>> {
    (!argument.is_empty()).then(|| {
        Box::new(List {
            path: argument.into(),
        }) as Box<dyn Divide>
    })
}

impl Divide for List {
    fn needed(&self, _: &Request<'_>) -> usize {
        0 // every index is checked instead
    }

    fn divide(&self, request: &Request<'_>, _: &mut Dice) -> Result<Vec<NodeIndices>, DataError> {
        let malformed = |cause: String| DataError::malformed(&self.path, cause);
        let size = std::fs::metadata(&self.path)
            .map_err(DataError::read(&self.path))?
            .len();
        if size > MAX_FILE_BYTES {
            return Err(malformed(format!(
                "is too large for a partition: {size} bytes"
            )));
        }
        let text = std::fs::read_to_string(&self.path).map_err(DataError::read(&self.path))?;
        let (partition, _) =
            Partition::from_json(&text).map_err(|error| malformed(error.to_string()))?;
        let nodes = partition.nodes();
        if nodes.len() != request.nodes {
            return Err(malformed(format!(
                "divides among {} nodes, not {}",
                nodes.len(),
                request.nodes
            )));
        }
        let available = request.labels.len();
        if let Some(beyond) = nodes
            .iter()
            .flat_map(NodeIndices::all)
            .find(|index| *index as usize >= available)
        {
            return Err(malformed(format!(
                "lists sample {beyond}, but the data set has {available}"
            )));
        }
        Ok(nodes.to_vec())
    }
}
