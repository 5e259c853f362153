//! Dividing a pool among nodes: one file per rule, one table that lists them all.
//!
//! A partition is a pure function of the labels, the number of nodes and the seed; every node computes it for itself
//! and all compare its hash. Except where a rule says otherwise, a node's samples are shuffled and cut 75 to 25 into
//! training and test (unstratified, as PFLlib does), so a class may be in the test samples only.
//!
//! `samples_per_node` counts training and test samples together. The fixed rules and `iid` give each node exactly so
//! many; `dirichlet` and `pathological` draw so many per node *on average* from the pool and divide those.
//!
//! Behind a rule may stand transforms, as in `iid+rotated:4:2`: [`crate::transform`]. Those that change lists are done
//! here, and the hash of a partition covers all of them.

mod dirichlet;
mod fixed;
mod iid;
mod indices;
mod list;
mod own;
mod pathological;
mod split;

use std::fmt;
use std::str::FromStr;

pub use indices::{Labelling, NodeIndices, Partition, PartitionFileError};
pub use split::TEST_SHARE;
pub(crate) use split::{by_group, stratified};

use crate::error::{DataError, TextError};
use crate::transform::Transforms;
use fednode_core::random::Dice;

/// What a rule divides.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The class of each sample of the pool; of numbers, the band that it lies in.
    pub labels: &'a [u16],
    /// Number of classes; every label is below it.
    pub classes: usize,
    /// Nodes to divide among; at least 1.
    pub nodes: usize,
    /// Samples per node, training and test together; 0 divides everything.
    pub samples_per_node: usize,
    /// What the data themselves say of how they are to be divided.
    pub known: Known<'a>,
}

/// What data say themselves of how one's own samples are to be divided.
#[derive(Debug, Clone, Copy, Default)]
pub struct Known<'a> {
    /// Which samples are for tests.
    pub tests: Option<&'a [bool]>,
    /// Which group each sample belongs to; groups stay together.
    pub groups: Option<&'a [u32]>,
}

/// The rule by which each node keeps its own data.
const OWN: &str = "own";
/// Fewest samples of a node: one to train and one to test on.
const MIN_SAMPLES: usize = 2;

impl Request<'_> {
    /// Returns how many samples a node gets on average.
    fn mean_samples(&self) -> usize {
        if self.samples_per_node == 0 {
            self.labels.len() / self.nodes
        } else {
            self.samples_per_node
        }
    }

    /// Draws the samples that are divided (all, or `nodes * samples_per_node`) and groups them by class; within a
    /// class they stay in the order of the pool, as PFLlib has it.
    fn draw_by_class(&self, dice: &mut Dice) -> Vec<Vec<u32>> {
        let mut chosen: Vec<u32> = (0..self.labels.len() as u32).collect();
        if self.samples_per_node > 0 {
            dice.shuffle(&mut chosen);
            chosen.truncate(self.nodes * self.samples_per_node);
            chosen.sort_unstable();
        }
        let mut classes = vec![Vec::new(); self.classes];
        chosen
            .into_iter()
            .for_each(|index| classes[usize::from(self.labels[index as usize])].push(index));
        classes
    }
}

/// A way to divide.
trait Divide: fmt::Debug + Send + Sync {
    /// Returns how many samples the pool must have at least.
    fn needed(&self, request: &Request<'_>) -> usize {
        request
            .nodes
            .saturating_mul(request.samples_per_node.max(MIN_SAMPLES))
    }

    /// Tells whether no samples for tests are what was asked for.
    fn keeps_no_test(&self) -> bool {
        false
    }

    fn divide(&self, request: &Request<'_>, dice: &mut Dice)
    -> Result<Vec<NodeIndices>, DataError>;
}

/// A row of the table of rules.
#[derive(Debug)]
pub struct Kind {
    /// The word before the colon.
    pub name: &'static str,
    /// How it is written.
    pub form: &'static str,
    /// What it does, in one line.
    pub about: &'static str,
    parse: fn(&str) -> Option<Box<dyn Divide>>,
}

/// All rules.
pub const KINDS: [Kind; 9] = [
    Kind {
        name: "iid",
        form: "iid",
        about: "every node gets the same mix of classes",
        parse: iid::parse,
    },
    Kind {
        name: "dirichlet",
        form: "dirichlet:ALPHA",
        about: "each class is cut by Dirichlet(ALPHA) shares of the nodes, as PFLlib does; sizes differ",
        parse: dirichlet::parse,
    },
    Kind {
        name: "dirichlet-uncapped",
        form: "dirichlet-uncapped:ALPHA",
        about: "the same whatever a node holds already, so that sizes differ more (PFL-MoE)",
        parse: dirichlet::parse_uncapped,
    },
    Kind {
        name: "dirichlet-shared",
        form: "dirichlet-shared:ALPHA,S",
        about: "S percent of each class are dealt equally, the rest as `dirichlet` (PM-MoE)",
        parse: dirichlet::parse_shared,
    },
    Kind {
        name: "pathological",
        form: "pathological:CLASSES[,balanced|unbalanced]",
        about: "each node holds so many classes, in random (default) or equal amounts, as PFLlib does",
        parse: pathological::parse,
    },
    Kind {
        name: "fixed-dirichlet",
        form: "fixed-dirichlet:ALPHA",
        about: "nodes of equal size with label shares from Dirichlet(ALPHA * prior) (FedMoE-DA)",
        parse: fixed::parse_dirichlet,
    },
    Kind {
        name: "fixed-pathological",
        form: "fixed-pathological:CLASSES[,balanced|unbalanced]",
        about: "nodes of equal size with so many random classes, equal (default) or 3 to 1 (FedMoE-DA)",
        parse: fixed::parse_pathological,
    },
    Kind {
        name: "file",
        form: "file:PATH",
        about: "explicit index lists, as JSON",
        parse: list::parse,
    },
    Kind {
        name: OWN,
        form: "own[:SHARE]",
        about: "each node brings its own data and keeps all of it, this share for tests (a quarter)",
        parse: own::parse,
    },
];

/// A partition as the user writes it, for example `dirichlet:0.1` or `iid+rotated:4:2`.
#[derive(Debug)]
pub struct Rule {
    text: String,
    kind: &'static Kind,
    divide: Box<dyn Divide>,
    transforms: Transforms,
}

impl Rule {
    /// Tells whether no samples for tests are what was asked for.
    pub fn keeps_no_test(&self) -> bool {
        self.divide.keeps_no_test()
    }

    /// Tells whether each node brings its own data.
    pub fn is_own(&self) -> bool {
        self.kind.name == OWN
    }

    /// Returns what changes the division and its samples.
    pub(crate) fn transforms(&self) -> &Transforms {
        &self.transforms
    }

    /// Divides a pool, and changes the lists as the transforms say.
    ///
    /// # Errors
    /// Fails if there are too few samples and if an index list does not fit the pool.
    pub fn divide(&self, request: &Request<'_>, seed: u64) -> Result<Partition, DataError> {
        let (nodes, needed, available) = (
            request.nodes,
            self.divide.needed(request),
            request.labels.len(),
        );
        if nodes == 0 || available < needed {
            return Err(DataError::TooFew {
                nodes,
                needed,
                available,
            });
        }
        let mut nodes = self
            .divide
            .divide(request, &mut Dice::new("partition", seed, 0))?;
        self.transforms.change_lists(&mut nodes, seed);
        Ok(Partition::new(nodes).transformed(&self.transforms, seed))
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Rule {
    type Err = DataError;

    fn from_str(text: &str) -> Result<Self, DataError> {
        let wrong = |cause: TextError| DataError::Text {
            text: text.to_owned(),
            what: "partition",
            cause,
        };
        let (base, transforms) = Transforms::take_off(text)?;
        let (name, argument) = base.split_once(':').unwrap_or((base, ""));
        let Some(kind) = KINDS.iter().find(|kind| kind.name == name) else {
            let forms = KINDS.iter().map(|kind| kind.form.to_owned()).collect();
            return Err(wrong(TextError::Kind(forms)));
        };
        let divide =
            (kind.parse)(argument).ok_or_else(|| wrong(TextError::Form(kind.form.to_owned())))?;
        if kind.name == OWN && !transforms.is_empty() {
            let cause = "data that each node brings are taken as they are, without transforms";
            return Err(wrong(TextError::Transforms(cause.into())));
        }
        Ok(Self {
            text: text.to_owned(),
            kind,
            divide,
            transforms,
        })
    }
}

/// Reads a concentration.
fn parse_alpha(text: &str) -> Option<f64> {
    text.parse()
        .ok()
        .filter(|alpha: &f64| (1e-4..=1e6).contains(alpha))
}

/// Reads `CLASSES[,balanced|unbalanced]`; the second part tells whether amounts are equal.
fn parse_classes(text: &str, balanced_by_default: bool) -> Option<(usize, bool)> {
    let (classes, amounts) = text
        .split_once(',')
        .map_or((text, None), |(classes, amounts)| (classes, Some(amounts)));
    let balanced = match amounts {
        None => balanced_by_default,
        Some("balanced") => true,
        Some("unbalanced") => false,
        Some(_) => return None,
    };
    let classes = classes.parse().ok().filter(|classes| *classes >= 1)?;
    Some((classes, balanced))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_form_and_prints_it_back() {
        let texts = [
            "iid",
            "dirichlet:0.1",
            "dirichlet-uncapped:0.5",
            "dirichlet-shared:0.1,20",
            "pathological:2",
            "pathological:2,balanced",
            "fixed-dirichlet:1",
            "fixed-pathological:2,unbalanced",
            "file:/some/list.json",
            "own",
            "iid+rotated:4:2",
            "dirichlet:0.5+renamed:4:2+sizes:10",
            "file:/some/list.json+blur:3",
        ];
        for text in texts {
            assert_eq!(text.parse::<Rule>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn refuses_wrong_arguments_and_shows_the_form() {
        for text in [
            "iid:3",
            "dirichlet",
            "dirichlet:0",
            "dirichlet:nan",
            "dirichlet:-1",
            "dirichlet-shared:1,101",
            "pathological:0",
            "pathological:2,even",
            "fixed-dirichlet:x",
            "file",
            "own:1",
            "dirichle:1",
            "",
            "own+rotated:4",
            "rotated:4",
            "iid:3+rotated:4",
        ] {
            assert!(text.parse::<Rule>().is_err(), "{text}");
        }
        let error = "dirichlet:0".parse::<Rule>().unwrap_err().to_string();
        assert_eq!(
            error,
            "`dirichlet:0` is not a partition: expected `dirichlet:ALPHA`"
        );
    }

    #[test]
    fn counts_samples_before_dividing() {
        let request = Request {
            labels: &[0; 10],
            classes: 1,
            nodes: 6,
            samples_per_node: 0,
            known: Known::default(),
        };
        let error = "iid"
            .parse::<Rule>()
            .unwrap()
            .divide(&request, 1)
            .unwrap_err()
            .to_string();
        assert_eq!(
            error,
            "6 nodes need at least 12 samples, but the data set has 10"
        );
    }
}
