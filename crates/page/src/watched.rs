//! What is looked at: one state folder, or the folder of a run with many.

use std::io;
use std::path::{Path, PathBuf};

use fednode_core::Role;
use fednode_runtime::releases::OwnersBudget;
use fednode_runtime::{records, releases};

use crate::run;

/// The file with the result of a run.
pub(crate) const SUMMARY: &str = "summary.json";

/// The spec of a run.
pub(crate) const SPEC: &str = "federation.toml";

/// One process that is looked at.
#[derive(Debug, Clone)]
pub struct Place {
    /// What people call it.
    pub name: String,
    /// What it is to the federation.
    pub role: Role,
    /// Its state folder.
    pub state: PathBuf,
    /// Its log, if that is a file.
    pub log: Option<PathBuf>,
    /// What its owner allows to be published.
    pub owner: OwnersBudget,
}

impl Place {
    /// Makes a place of a state folder whose owner has set no budget.
    fn new(name: String, role: Role, state: PathBuf) -> Self {
        let owner = OwnersBudget {
            epsilon: None,
            delta: releases::DELTA,
            file: state.join(releases::FILE),
        };
        Self {
            name,
            role,
            state,
            log: None,
            owner,
        }
    }
}

/// What is looked at.
#[derive(Debug, Clone)]
pub struct Watched {
    pub(crate) kind: Kind,
    /// The folder that a user named.
    pub(crate) folder: PathBuf,
    /// The processes. A simulated run has none: its nodes are found in its records.
    pub(crate) places: Vec<Place>,
}

/// What a page is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Node,
    Aggregator,
    Swarm,
    Simulation,
}

impl Kind {
    /// Returns the kind's name, as events have it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Aggregator => "aggregator",
            Self::Swarm => "swarm",
            Self::Simulation => "simulation",
        }
    }
}

/// Tells why there is nothing to look at.
#[derive(Debug, thiserror::Error)]
pub enum WatchedError {
    /// The folder cannot be read.
    #[error("cannot read `{}`: {source}", folder.display())]
    Unreadable {
        /// The folder.
        folder: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The folder is of another kind.
    #[error(
        "`{}` is neither a state folder nor the folder of a swarm or of a simulated run that has ended: name one of those", .0.display()
    )]
    Unknown(PathBuf),
}

impl Watched {
    /// Looks at one node.
    pub fn node(state: PathBuf, owner: OwnersBudget) -> Self {
        let place = Place {
            owner,
            ..Place::new("this node".to_owned(), Role::Node, state)
        };
        Self::one(Kind::Node, place)
    }

    /// Looks at one aggregator.
    pub fn aggregator(state: PathBuf) -> Self {
        let place = Place::new("fedboot".to_owned(), Role::Aggregator, state);
        Self::one(Kind::Aggregator, place)
    }

    fn one(kind: Kind, place: Place) -> Self {
        Self {
            kind,
            folder: place.state.clone(),
            places: vec![place],
        }
    }

    /// Looks at a swarm of so many nodes, whose folders may not be there yet.
    pub fn swarm(folder: &Path, nodes: u32, has_aggregator: bool) -> Self {
        let log = |name: &str| Some(folder.join("logs").join(name));
        let node = |number: u32| Place {
            log: log(&format!("node-{number}.log")),
            ..Place::new(
                format!("node {number}"),
                Role::Node,
                folder.join(format!("nodes/{number}/state")),
            )
        };
        let fedboot = Place {
            log: log("fedboot.log"),
            ..Place::new(
                "fedboot".to_owned(),
                Role::Aggregator,
                folder.join("fedboot/state"),
            )
        };
        Self {
            kind: Kind::Swarm,
            folder: folder.to_owned(),
            places: (1..=nodes)
                .map(node)
                .chain(has_aggregator.then_some(fedboot))
                .collect(),
        }
    }

    /// Finds out what a folder is, and looks at it.
    ///
    /// # Errors
    /// Fails if it cannot be read, or is nothing that can be looked at.
    pub fn folder(folder: &Path) -> Result<Self, WatchedError> {
        let unreadable = |source| WatchedError::Unreadable {
            folder: folder.to_owned(),
            source,
        };
        // A folder that cannot be read is told from one of another kind.
        drop(std::fs::read_dir(folder).map_err(unreadable)?);
        let has = |name: &str| folder.join(name).exists();
        if has("layout") {
            // An aggregator trains nothing, so no data is its.
            return Ok(if has("data.toml") || records::path_in(folder).exists() {
                let place = Place::new(String::new(), Role::Node, folder.to_owned());
                Self::node(place.state, place.owner)
            } else {
                Self::aggregator(folder.to_owned())
            });
        }
        // Of a swarm that starts, the folders of the nodes are not all there; how many there will be says the spec.
        if has("nodes") || (has("logs") && has(SPEC)) {
            let spec = run::spec(folder).map(|spec| spec.nodes);
            let there =
                || (1..).take_while(|number| folder.join(format!("nodes/{number}")).is_dir());
            let nodes = spec.unwrap_or_else(|| there().count() as u32);
            let has_aggregator = has("fedboot/state") || !has("nodes");
            return Ok(Self::swarm(folder, nodes, has_aggregator));
        }
        if has(SUMMARY) {
            return Ok(Self {
                kind: Kind::Simulation,
                folder: folder.to_owned(),
                places: Vec::new(),
            });
        }
        Err(WatchedError::Unknown(folder.to_owned()))
    }

    /// Tells whether this is one node.
    pub fn is_node(&self) -> bool {
        self.kind == Kind::Node
    }

    /// Returns the file that will hold the result, if this is a run.
    pub(crate) fn summary(&self) -> Option<PathBuf> {
        let is_run = matches!(self.kind, Kind::Swarm | Kind::Simulation);
        is_run.then(|| self.folder.join(SUMMARY))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fednode_core::FederationSpec;

    fn folder_with(names: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for name in names {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        folder
    }

    #[test]
    fn a_folder_is_known_by_what_lies_in_it() {
        let kind = |names: &[&str]| {
            let folder = folder_with(names);
            Watched::folder(folder.path()).map(|watched| (watched.kind, watched.places.len()))
        };
        assert_eq!(kind(&["layout", "data.toml"]).unwrap(), (Kind::Node, 1));
        assert_eq!(kind(&["layout", "key"]).unwrap(), (Kind::Aggregator, 1));
        let swarm = [
            "nodes/1/node.toml",
            "nodes/2/node.toml",
            "fedboot/state/key",
        ];
        assert_eq!(kind(&swarm).unwrap(), (Kind::Swarm, 3));
        let starting = folder_with(&["logs/fedboot.log"]);
        let spec = FederationSpec {
            nodes: 7,
            ..FederationSpec::default()
        };
        std::fs::write(starting.path().join(SPEC), spec.to_toml()).unwrap();
        let starting = Watched::folder(starting.path()).unwrap();
        assert_eq!((starting.kind, starting.places.len()), (Kind::Swarm, 8));
        assert_eq!(kind(&["summary.json"]).unwrap(), (Kind::Simulation, 0));
        assert!(kind(&["federation.toml"]).is_err());
        let refused = kind(&["holiday.png"]).unwrap_err().to_string();
        assert!(refused.contains("neither a state folder"), "{refused}");
        let gone = Watched::folder(Path::new("/nowhere")).unwrap_err();
        assert!(matches!(gone, WatchedError::Unreadable { .. }));
    }
}
