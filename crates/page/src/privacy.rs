//! What has left a node of its owner's data, as the file of releases tells it.

use fednode_runtime::releases::{Entry, OwnersBudget, Releases};
use serde::Serialize;

/// What was released and what it cost.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Privacy {
    /// `open` if something left without protection, else `dp`.
    pub(crate) mode: &'static str,
    /// ε of all releases together; absent if nothing bounds it.
    pub(crate) epsilon: Option<f64>,
    /// The probability with which that may fail.
    pub(crate) delta: f64,
    /// Most ε that the owner allows; absent for no bound.
    pub(crate) budget_epsilon: Option<f64>,
    pub(crate) releases: Vec<Released>,
}

/// One release.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Released {
    pub(crate) what: String,
    /// When, in milliseconds since 1970.
    pub(crate) at: u64,
    /// Its own ε; absent if nothing bounds it.
    pub(crate) epsilon: Option<f64>,
}

impl Privacy {
    /// Reads the owner's file; `None` while nothing was released.
    ///
    /// # Errors
    /// Says in one line what is wrong with the file.
    pub(crate) fn read(owner: &OwnersBudget) -> Result<Option<Self>, String> {
        let entries = Releases::read(&owner.file).map_err(|error| error.to_string())?;
        if entries.is_empty() {
            return Ok(None);
        }
        let spent = |entries: &[Entry]| {
            let spent = Releases::spent(owner, entries).map_err(|error| error.to_string())?;
            Ok::<_, String>(Some(spent).filter(|spent: &f64| spent.is_finite()))
        };
        let released = |entry: &Entry| {
            Ok::<_, String>(Released {
                what: entry.release.what.clone(),
                at: entry.release.when.saturating_mul(1000),
                epsilon: spent(std::slice::from_ref(entry))?,
            })
        };
        let epsilon = spent(&entries)?;
        Ok(Some(Self {
            mode: if epsilon.is_some() { "dp" } else { "open" },
            epsilon,
            delta: owner.delta,
            budget_epsilon: owner.epsilon,
            releases: entries.iter().map(released).collect::<Result<_, _>>()?,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_without_protection_has_no_bound() {
        let folder = tempfile::tempdir().unwrap();
        let owner = OwnersBudget {
            epsilon: Some(8.0),
            delta: 1e-5,
            file: folder.path().join("privacy.json"),
        };
        assert_eq!(Privacy::read(&owner).unwrap(), None);
        let id = "9174ca24054ba8443a9846e6fb9ce9731c7f54b7004425e648162e4259b6b44b";
        // The noise of epsilon 4 in the study's table: deviation 1.081 for a sensitivity of 1.
        let protected = r#"{"gaussian":{"noise":{"deviation":1.081,"sensitivity":1.0},
            "adjacency":{"unit":"row","change":"add-remove"}}}"#;
        let entry = |mechanism: &str| {
            format!(
                r#"{{"id":"{id}","federation":"{id}","what":"w","when":2,"mechanism":{mechanism}}}"#
            )
        };
        std::fs::write(&owner.file, format!("[{}]", entry(protected))).unwrap();
        let one = Privacy::read(&owner).unwrap().unwrap();
        assert_eq!((one.mode, one.releases[0].at), ("dp", 2000));
        assert!((one.epsilon.unwrap() - 4.0).abs() < 0.01, "{one:?}");
        let both = format!("[{},{}]", entry(protected), entry(r#""unprotected""#));
        std::fs::write(&owner.file, both).unwrap();
        let both = Privacy::read(&owner).unwrap().unwrap();
        assert_eq!((both.mode, both.epsilon), ("open", None));
        std::fs::write(&owner.file, "[").unwrap();
        let said = Privacy::read(&owner).unwrap_err();
        assert!(said.contains("cannot be read"), "{said}");
    }
}
