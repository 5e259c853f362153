//! A partition as index lists, its hash, and its JSON form.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use crate::transform::Transforms;

/// The samples of one node, as indices into the pool, ascending.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeIndices {
    /// What it trains (and validates) on.
    pub train: Vec<u32>,
    /// What it is tested on.
    pub test: Vec<u32>,
}

impl NodeIndices {
    /// Returns all of the node's samples, training first.
    pub fn all(&self) -> impl Iterator<Item = u32> + '_ {
        self.train.iter().chain(&self.test).copied()
    }

    /// Returns the number of samples.
    pub fn len(&self) -> usize {
        self.train.len() + self.test.len()
    }

    /// Tells whether the node has no samples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The samples of all nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    nodes: Vec<NodeIndices>,
    /// What else nodes must agree on: the transforms and the seed of their draws. Empty without any.
    transforms: String,
}

/// What a partition file says about itself, beside the lists.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Labelling {
    /// The data set.
    #[serde(default)]
    pub dataset: String,
    /// The rule that made the lists.
    #[serde(default)]
    pub partition: String,
    /// The seed they were made with.
    #[serde(default)]
    pub seed: u64,
}

/// The JSON form; other keys are ignored.
#[derive(Deserialize)]
struct File {
    #[serde(flatten)]
    labelling: Labelling,
    clients: Option<usize>,
    nodes: Vec<NodeIndices>,
}

/// Separates the hash of a partition from every other hash.
const DOMAIN: &str = "fednode partition 1";
/// The same for one with transforms.
const TRANSFORMED_DOMAIN: &str = "fednode partition with transforms 1";

/// Tells what is wrong with a file of index lists.
#[derive(Debug, thiserror::Error)]
pub enum PartitionFileError {
    /// It is not of the form.
    #[error("is no partition file: {0}")]
    Form(#[from] serde_json::Error),
    /// It does not list as many clients as it says.
    #[error("speaks of {clients} clients, but lists {listed}")]
    Clients {
        /// How many it says.
        clients: usize,
        /// How many it lists.
        listed: usize,
    },
    /// It lists a sample more than once.
    #[error("lists sample {sample} a second time, at node {node}")]
    Twice {
        /// Which.
        sample: u32,
        /// Where, the second time.
        node: usize,
    },
}

impl Partition {
    /// Takes the lists of all nodes and puts each into ascending order: the order of a list means nothing.
    pub fn new(mut nodes: Vec<NodeIndices>) -> Self {
        for node in &mut nodes {
            node.train.sort_unstable();
            node.test.sort_unstable();
        }
        Self {
            nodes,
            transforms: String::new(),
        }
    }

    /// Returns the same lists with the transforms of their samples, which are then part of the hash.
    pub(crate) fn transformed(mut self, transforms: &Transforms, seed: u64) -> Self {
        self.transforms = if transforms.is_empty() {
            String::new()
        } else {
            format!("{transforms} seed {seed}")
        };
        self
    }

    /// Returns the lists in the order of the shards.
    pub fn nodes(&self) -> &[NodeIndices] {
        &self.nodes
    }

    /// Returns the BLAKE3 hash of the lists in hexadecimal; the same for everybody who divided alike. Where samples are
    /// transformed, it covers the transforms and their seed.
    pub fn hash(&self) -> String {
        let mut hasher = blake3::Hasher::new_derive_key(DOMAIN);
        let mut list = |indices: &[u32]| {
            hasher.update(&(indices.len() as u64).to_le_bytes());
            indices.iter().for_each(|index| {
                hasher.update(&index.to_le_bytes());
            });
        };
        for node in &self.nodes {
            list(&node.train);
            list(&node.test);
        }
        let lists = hasher.finalize();
        if self.transforms.is_empty() {
            return lists.to_hex().to_string();
        }
        let mut hasher = blake3::Hasher::new_derive_key(TRANSFORMED_DOMAIN);
        hasher
            .update(lists.as_bytes())
            .update(self.transforms.as_bytes());
        hasher.finalize().to_hex().to_string()
    }

    /// Reads the JSON form.
    ///
    /// # Errors
    /// Says what is wrong: no JSON, no lists, a sample that appears twice.
    pub fn from_json(text: &str) -> Result<(Self, Labelling), PartitionFileError> {
        let file: File = serde_json::from_str(text)?;
        let nodes = file.nodes;
        if let Some(clients) = file.clients.filter(|clients| *clients != nodes.len()) {
            let listed = nodes.len();
            return Err(PartitionFileError::Clients { clients, listed });
        }
        let mut seen = HashSet::new();
        for (node, indices) in nodes.iter().enumerate() {
            if let Some(twice) = indices.all().find(|index| !seen.insert(*index)) {
                return Err(PartitionFileError::Twice {
                    sample: twice,
                    node,
                });
            }
        }
        Ok((Self::new(nodes), file.labelling))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> Partition {
        let node = |train: &[u32], test: &[u32]| NodeIndices {
            train: train.to_vec(),
            test: test.to_vec(),
        };
        Partition::new(vec![node(&[5, 1], &[2]), node(&[3], &[4, 0])])
    }

    #[test]
    fn reads_lists_and_what_their_file_says_of_them() {
        let text = r#"{"dataset":"digits","partition":"iid","seed":7,"clients":2,"made":"by hand",
            "nodes":[{"train":[5,1],"test":[2]},{"train":[3],"test":[4,0]}]}"#;
        let labelling = Labelling {
            dataset: "digits".into(),
            partition: "iid".into(),
            seed: 7,
        };
        assert_eq!(Partition::from_json(text).unwrap(), (two(), labelling));
    }

    #[test]
    fn hash_depends_on_every_list_and_not_on_the_order_within() {
        let same = Partition::new(
            two()
                .nodes
                .iter()
                .cloned()
                .map(|mut node| {
                    node.train.reverse();
                    node
                })
                .collect(),
        );
        assert_eq!(same.hash(), two().hash());
        let mut moved = two();
        moved.nodes[0].test.clear();
        moved.nodes[0].train = vec![1, 2, 5];
        assert_ne!(moved.hash(), two().hash());
        let swapped = Partition::new(two().nodes.into_iter().rev().collect());
        assert_ne!(swapped.hash(), two().hash());
        // Pinned: another form would refuse the checkpoints of every running federation.
        assert_eq!(
            two().hash(),
            "8e704c6fa6e104a32e2ec1388f1ab38bddd25ff3bc2e64bbf85ac192bda8bd1b"
        );
    }

    #[test]
    fn hash_depends_on_the_transforms_and_their_seed() {
        let hash = |text: &str, seed| {
            let (_, transforms) = Transforms::take_off(text).unwrap();
            two().transformed(&transforms, seed).hash()
        };
        assert_eq!(hash("iid", 1), two().hash());
        let all = [
            hash("iid", 1),
            hash("iid+rotated:4:2", 1),
            hash("iid+rotated:4:2", 2),
            hash("iid+rotated:4:1", 1),
            hash("iid+rotated:4:2+sizes:2", 1),
        ];
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
        // Pinned, as the other.
        assert_eq!(
            hash("iid+rotated:4:2", 1),
            "f59df3f3940481d177478cb939f56b9e01e4ae0072241c4b09be107d10f2e271"
        );
    }

    #[test]
    fn refuses_doubled_samples_and_wrong_counts() {
        let error =
            Partition::from_json(r#"{"nodes":[{"train":[1],"test":[2]},{"train":[2],"test":[]}]}"#);
        assert_eq!(
            error.unwrap_err().to_string(),
            "lists sample 2 a second time, at node 1"
        );
        let error = Partition::from_json(r#"{"clients":3,"nodes":[{"train":[1],"test":[2]}]}"#)
            .unwrap_err();
        assert_eq!(error.to_string(), "speaks of 3 clients, but lists 1");
        assert!(
            Partition::from_json("{}")
                .unwrap_err()
                .to_string()
                .starts_with("is no partition file: missing field `nodes`")
        );
        assert!(Partition::from_json(r#"{"nodes":[{"train":[-1],"test":[]}]}"#).is_err());
    }
}
