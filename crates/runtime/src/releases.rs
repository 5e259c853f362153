//! What of the owner's data has left this node, what it cost together, and the owner's budget for it.
//!
//! ```text
//! update trained ─► is it in the file? ─► yes: publish it again, for nothing new leaves
//!                                     └─► no: does it fit the budget? ─► write it down, then publish ─► adverts, blobs
//!                                                                    └─► the node ends and says why; nothing has left
//! ```
//!
//! Class statistics are one release. Training under a promise makes one in each round, of so many noisy steps.
//!
//! A release is entered before anything of it is published. A federation that promises nothing is entered once, as a release
//! without a bound, and no budget allows it. Nodes that share a file share a budget: give all
//! federations of the same data the same file.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use fednode_core::work::{NoisySteps, Update};
use fednode_core::{BlobId, FederationId, FederationSpec};
use fednode_files::whole_file;
use fednode_privacy::budget::{
    Adjacency, Budget, Calibrated, Change, Mechanism, Refusal, Release, Unit,
};
use fednode_privacy::statistics::Shares;
use fednode_privacy::units::{Delta, Epsilon, Rate};
use serde::{Deserialize, Serialize};

/// The file in the state folder, unless the owner names another.
pub const FILE: &str = "privacy.json";
/// The owner's δ, unless there is another.
pub const DELTA: f64 = 1e-5;
/// Most bytes of the file: tens of thousands of releases.
const MOST_BYTES: u64 = 16 << 20;
/// What to do about a file that is too large.
const NEW_FILE: &str = "set another `releases` in node.toml under `[privacy]`, and lower `budget` by what this one holds";
/// What rounding may add to what is spent.
const A_LITTLE_MORE: f64 = 1.0 + 1e-6;

/// What the owner allows, and where it is kept.
#[derive(Debug, Clone, PartialEq)]
pub struct OwnersBudget {
    /// Most ε of everything that leaves, together; no bound if absent.
    pub epsilon: Option<f64>,
    /// The probability with which that may fail.
    pub delta: f64,
    /// The file of releases.
    pub file: PathBuf,
}

/// What was released, as the file has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// What tells this release from others: the hash of what is published, or the federation that protects nothing.
    pub id: String,
    /// In which federation.
    pub federation: FederationId,
    /// What it was.
    #[serde(flatten)]
    pub release: Release,
}

/// Tells why nothing is published.
#[derive(Debug, thiserror::Error)]
pub enum ReleaseError {
    /// The budget does not allow it.
    #[error(
        "{refusal}; the owner's budget is `privacy.budget`, and `{file}` holds what was released"
    )]
    Refused {
        /// Why.
        refusal: Refusal,
        /// The file.
        file: String,
    },
    /// The budget is none.
    #[error(
        "`privacy.budget` and `privacy.delta` are out of range: take 0.05 to 1000, and 1e-12 to 0.01"
    )]
    Budget,
    /// The file cannot be read.
    #[error(
        "`{file}`, which holds what this node has released, cannot be read: {source}; bring it back, or move it away and \
         know that what it counted is forgotten"
    )]
    Unreadable {
        /// The file.
        file: String,
        /// What happened.
        source: io::Error,
    },
    /// The file cannot be written.
    #[error("`{file}`, which counts what this node releases, cannot be written: {source}")]
    Unwritable {
        /// The file.
        file: String,
        /// What happened.
        source: io::Error,
    },
}

impl ReleaseError {
    /// Tells whether there was no space, so that it may be tried again.
    pub fn is_full_disk(&self) -> bool {
        let full = [ErrorKind::StorageFull, ErrorKind::QuotaExceeded];
        matches!(self, Self::Unwritable { source, .. } if full.contains(&source.kind()))
    }
}

/// What this member releases, and the file in which it stands.
#[derive(Debug, Clone)]
pub struct Releases {
    owner: OwnersBudget,
    federation: FederationId,
    /// Whether anything is published that samples have a part in.
    shares: bool,
    mechanism: Mechanism,
    /// What statistics are called.
    statistics: &'static str,
    rounds: u32,
    /// ε and δ of the federation.
    promised: Option<[f64; 2]>,
}

/// Neighbouring data sets have one row more or less.
const ADJACENCY: Adjacency = Adjacency {
    unit: Unit::Row,
    change: Change::AddRemove,
};

/// Tells whether nodes of a federation publish anything that their samples have a part in.
fn shares(spec: &FederationSpec) -> bool {
    let exchange = &spec.exchange;
    exchange.averaging.is_some()
        || exchange.experts.is_some()
        || exchange.total.is_some()
        || spec.pool.preset.is_some()
        || spec.statistics.enabled
}

impl Releases {
    /// Takes from a spec what a release of its nodes promises; `training` is how the steps of a round are protected.
    pub fn new(spec: &FederationSpec, owner: OwnersBudget, training: Option<NoisySteps>) -> Self {
        let experts = spec.exchange.experts.as_ref();
        let of_total = || spec.exchange.total?.least_noise(spec.nodes);
        let noise = experts.and_then(|experts| experts.noise).or_else(of_total);
        let mechanism = match training {
            Some(steps) => of_training(steps),
            None => noise.and_then(of_statistics),
        };
        Self {
            owner,
            federation: spec.id(),
            shares: mechanism.is_some() || shares(spec),
            mechanism: mechanism.unwrap_or(Mechanism::Unprotected),
            statistics: match spec.data.target {
                Some(_) => "sums of rows",
                None => "class statistics",
            },
            rounds: spec.rounds,
            promised: spec
                .privacy
                .epsilon
                .map(|epsilon| [epsilon, spec.privacy.delta]),
        }
    }

    /// Returns what was released before. A file that is not there holds nothing.
    ///
    /// # Errors
    /// Fails if the file cannot be read as one of releases.
    pub fn read(path: &Path) -> Result<Vec<Entry>, ReleaseError> {
        let failed = |source: io::Error| ReleaseError::Unreadable {
            file: path.display().to_string(),
            source,
        };
        let size = match fs::metadata(path) {
            Ok(found) => found.len(),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        if size > MOST_BYTES {
            let text =
                format!("it has {size} bytes, and {MOST_BYTES} are read at most: {NEW_FILE}");
            return Err(failed(io::Error::other(text)));
        }
        let text = fs::read(path).map_err(failed)?;
        serde_json::from_slice(&text).map_err(|error| failed(error.into()))
    }

    /// Returns ε of these releases together, at the owner's δ: infinite if one of them has no bound.
    ///
    /// # Errors
    /// Fails on an owner's δ out of range.
    pub fn spent(owner: &OwnersBudget, entries: &[Entry]) -> Result<f64, ReleaseError> {
        // Whatever the budget: what is spent does not depend on it.
        let budget = budget(1.0, owner.delta)?;
        let releases = entries.iter().map(|entry| &entry.release);
        Ok(budget.spent(releases).epsilon)
    }

    /// Refuses at once what the budget will not allow: a federation without a promise, or a release that does not fit. Who has
    /// released in this federation before may do so again, for it will be the same.
    ///
    /// # Errors
    /// As [`Self::admit`]; nothing is written.
    pub fn check(&self) -> Result<(), ReleaseError> {
        if !self.shares {
            return Ok(());
        }
        let entries = Self::read(&self.owner.file)?;
        let is_ours = |entry: &Entry| entry.federation == self.federation;
        if entries.iter().any(is_ours) && self.mechanism != Mechanism::Unprotected {
            return Ok(());
        }
        let mut release = self.release(0);
        if let Mechanism::Training { steps, .. } = &mut release.mechanism {
            *steps = steps.saturating_mul(self.rounds);
        }
        self.refuse(&entries, &release)
    }

    /// Enters a release before it is published; one that was entered before costs nothing. `when` is in seconds since 1970.
    ///
    /// # Errors
    /// Refuses what does not fit the owner's budget, and fails if the file cannot be read or written. Nothing may be published
    /// then.
    pub fn admit(&self, update: &Update, when: u64) -> Result<(), ReleaseError> {
        if !self.shares {
            return Ok(());
        }
        if self.mechanism == Mechanism::Unprotected {
            return self.admit_as(self.federation.to_string(), when);
        }
        let experts = update.experts.iter().map(|(params, _)| params);
        let published = experts.chain(&update.shared);
        let name = name_of(published.map(|part| part.to_blob().0.id));
        // An update without parts tells nothing but that there is one.
        name.map_or(Ok(()), |id| self.admit_as(id, when))
    }

    fn release(&self, when: u64) -> Release {
        Release {
            what: match self.mechanism {
                Mechanism::Unprotected => "whatever the federation's algorithm shares",
                Mechanism::Gaussian { .. } => self.statistics,
                Mechanism::Training { .. } => "the training of a round",
            }
            .to_owned(),
            when,
            mechanism: self.mechanism,
        }
    }

    /// Refuses a release that does not fit the owner's budget, if there is one.
    fn refuse(&self, entries: &[Entry], release: &Release) -> Result<(), ReleaseError> {
        let Some(epsilon) = self.owner.epsilon else {
            return Ok(());
        };
        let budget = budget(epsilon, self.owner.delta)?;
        let before: Vec<Release> = entries.iter().map(|entry| entry.release.clone()).collect();
        let admitted = budget.may_release(&before, release);
        admitted.map(drop).map_err(|refusal| ReleaseError::Refused {
            refusal,
            file: self.owner.file.display().to_string(),
        })
    }

    fn admit_as(&self, id: String, when: u64) -> Result<(), ReleaseError> {
        let file = &self.owner.file;
        let failed = |source: io::Error| ReleaseError::Unwritable {
            file: file.display().to_string(),
            source,
        };
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        // Of nodes that share the file, one at a time reads and writes it.
        let guard = File::create(lock_of(file)).map_err(failed)?;
        guard.lock().map_err(failed)?;
        let mut entries = Self::read(file)?;
        let release = self.release(when);
        let is_known = entries.iter().any(|entry| entry.id == id);
        // What nothing protects is another one in every round, whatever it is called.
        if !is_known || self.mechanism == Mechanism::Unprotected {
            self.refuse(&entries, &release)?;
        }
        if is_known {
            return Ok(());
        }
        entries.push(Entry {
            id,
            federation: self.federation,
            release,
        });
        self.warn_if_passed(&entries);
        let text = serde_json::to_vec_pretty(&entries).expect("entries have text keys");
        if text.len() as u64 > MOST_BYTES {
            let text = format!("it would be too large to be read again: {NEW_FILE}");
            return Err(failed(io::Error::other(text)));
        }
        whole_file::write(file, &text).map_err(failed)
    }

    /// Says that what this node released in this federation is more than the federation promises, if it is: rounds were trained again
    /// with other parameters, or on another device.
    fn warn_if_passed(&self, entries: &[Entry]) {
        let ours = entries
            .iter()
            .filter(|one| one.federation == self.federation);
        let ours: Vec<Entry> = ours.cloned().collect();
        let (Some([epsilon, delta]), count) = (self.promised, ours.len()) else {
            return;
        };
        let owner = OwnersBudget {
            delta,
            ..self.owner.clone()
        };
        let spent = Self::spent(&owner, &ours).unwrap_or(f64::INFINITY);
        if spent > epsilon * A_LITTLE_MORE {
            tracing::warn!(
                "this node has released {count} times in this federation, which is epsilon {spent:.2} instead of the promised \
                 {epsilon}: some of it was trained or added up again; `privacy.budget` of node.toml sets a bound"
            );
        }
    }
}

/// Returns what tells what is published from everything else: its one part's name, or that of all parts together. `None` without
/// parts.
fn name_of(parts: impl Iterator<Item = BlobId>) -> Option<String> {
    let parts: Vec<BlobId> = parts.collect();
    let of_all = || {
        let names: Vec<&[u8]> = parts.iter().map(|part| &part.as_bytes()[..]).collect();
        BlobId::of(&names.concat())
    };
    match parts[..] {
        [] => None,
        [only] => Some(only.to_string()),
        _ => Some(of_all().to_string()),
    }
}

/// Returns the mechanism of class statistics. The exchange names the noise of a class sum, whose numbers have the root of their
/// share of a sample's length.
fn of_statistics(noise: f64) -> Option<Mechanism> {
    let noise = Calibrated::new(noise * Shares::STUDY.parts().1.sqrt(), 1.0).ok()?;
    Some(Mechanism::Gaussian {
        noise,
        adjacency: ADJACENCY,
    })
}

/// Returns the mechanism of a round's training.
fn of_training(of_a_round: NoisySteps) -> Option<Mechanism> {
    Some(Mechanism::Training {
        rate: Rate::new(of_a_round.rate).ok()?,
        noise: Calibrated::new(of_a_round.noise, 1.0).ok()?,
        steps: of_a_round.steps,
        adjacency: ADJACENCY,
    })
}

/// Returns the file with which nodes that share a file of releases take turns. It is emptied, so no releases may be in it.
fn lock_of(file: &Path) -> PathBuf {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(".lock");
    file.with_file_name(name)
}

fn budget(epsilon: f64, delta: f64) -> Result<Budget, ReleaseError> {
    let numbers = Epsilon::new(epsilon).ok().zip(Delta::new(delta).ok());
    let (epsilon, delta) = numbers.ok_or(ReleaseError::Budget)?;
    Ok(Budget {
        epsilon,
        delta,
        adjacency: ADJACENCY,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fednode_core::{ExpertExchange, Matching, ParamSet, PeersPerExpert};

    use super::*;

    /// The noise of ε = 4 (the study's table: sigma 1.081), for numbers of class sums.
    const NOISE: f64 = 1.081 / 0.692_820_323_027_551;

    fn releases(folder: &Path, epsilon: Option<f64>, noise: Option<f64>) -> Releases {
        let mut spec = FederationSpec::default();
        spec.exchange.experts = Some(ExpertExchange {
            noise,
            ..ExpertExchange::by(Matching::named("noised-agreement"), PeersPerExpert::ALL)
        });
        let owner = OwnersBudget {
            epsilon,
            delta: 1e-5,
            file: folder.join(FILE),
        };
        Releases::new(&spec, owner, None)
    }

    fn update(value: f32) -> Update {
        let mut params = ParamSet::new();
        params.insert("noised.counts", &[1], vec![value]).unwrap();
        Update {
            shared: None,
            experts: vec![(Arc::new(params), 0)],
            proxies: None,
            n_samples: 1,
            train_loss: 0.0,
            expert_share: Vec::new(),
            steps: 0,
            multiply_adds: 0,
        }
    }

    #[test]
    fn a_release_counts_once_and_another_one_adds_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let ours = releases(folder.path(), Some(6.0), Some(NOISE));
        ours.check().unwrap();
        for when in [10, 20] {
            ours.admit(&update(1.0), when).unwrap();
        }
        let entries = Releases::read(&ours.owner.file).unwrap();
        assert_eq!((entries.len(), entries[0].release.when), (1, 10));
        let spent = Releases::spent(&ours.owner, &entries).unwrap();
        assert!((spent - 4.0).abs() < 0.01, "{spent}");
        // Two of them are 1.081 / sqrt(2): epsilon 5.98 by the analytic formula.
        ours.admit(&update(2.0), 30).unwrap();
        let refused = ours.admit(&update(3.0), 40).unwrap_err().to_string();
        assert!(refused.contains("above the budget of 6"), "{refused}");
        assert_eq!(Releases::read(&ours.owner.file).unwrap().len(), 2);
    }

    #[test]
    fn a_file_may_be_called_like_a_lock() {
        let folder = tempfile::tempdir().unwrap();
        let mut ours = releases(folder.path(), Some(6.0), Some(NOISE));
        ours.owner.file = folder.path().join("releases.lock");
        for (value, when) in [(1.0, 10), (2.0, 20)] {
            ours.admit(&update(value), when).unwrap();
        }
        assert_eq!(Releases::read(&ours.owner.file).unwrap().len(), 2);
    }

    /// 1,000 steps at rate 0.01 and noise 1 are ε = 2.10 (dp-accounting), in ten rounds of 100.
    #[test]
    fn each_round_of_training_counts_and_a_repeated_one_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let steps = NoisySteps {
            rate: 0.01,
            noise: 1.0,
            steps: 100,
        };
        let training = |budget: f64, rounds: u32| {
            let mut spec = FederationSpec {
                rounds,
                ..FederationSpec::default()
            };
            spec.exchange.experts = None;
            let owner = OwnersBudget {
                epsilon: Some(budget),
                delta: 1e-5,
                file: folder.path().join(FILE),
            };
            Releases::new(&spec, owner, Some(steps))
        };
        let refused = training(2.0, 10).check().unwrap_err().to_string();
        assert!(refused.contains("above the budget of 2 "), "{refused}");
        let ours = training(2.11, 10);
        ours.check().unwrap();
        for round in 1..=10 {
            for when in [10 * round, 10 * round + 1] {
                ours.admit(&update(round as f32), when).unwrap();
            }
        }
        let entries = Releases::read(&ours.owner.file).unwrap();
        assert_eq!(entries.len(), 10);
        let spent = Releases::spent(&ours.owner, &entries).unwrap();
        assert!((spent - 2.1017).abs() < 1e-3, "{spent}");
        let refused = ours.admit(&update(11.0), 200).unwrap_err().to_string();
        assert!(refused.contains("above the budget of 2.11"), "{refused}");
        // The shared part counts as well as experts.
        let shared = Update {
            shared: Some(Arc::clone(&update(1.0).experts[0].0)),
            experts: Vec::new(),
            ..update(1.0)
        };
        ours.admit(&shared, 300).unwrap();
        let other = Update {
            shared: shared.shared.clone(),
            ..update(2.0)
        };
        assert!(
            ours.admit(&other, 400).is_err(),
            "another pair of parts is another release"
        );
    }

    #[test]
    fn what_nothing_protects_has_no_bound() {
        let folder = tempfile::tempdir().unwrap();
        let open = releases(folder.path(), None, None);
        open.check().unwrap();
        open.admit(&update(1.0), 1).unwrap();
        open.admit(&update(2.0), 2).unwrap();
        let entries = Releases::read(&open.owner.file).unwrap();
        assert_eq!(entries.len(), 1, "a federation is entered once");
        assert_eq!(
            Releases::spent(&open.owner, &entries).unwrap(),
            f64::INFINITY
        );
        // From then on no budget can hold.
        let bounded = releases(folder.path(), Some(6.0), Some(NOISE));
        let refused = bounded.admit(&update(1.0), 3).unwrap_err().to_string();
        assert!(refused.contains("has no bound"), "{refused}");
        // A budget that is set later ends a federation that was entered without one.
        let later = releases(folder.path(), Some(6.0), None);
        for refused in [later.check(), later.admit(&update(1.0), 4)] {
            let refused = refused.unwrap_err().to_string();
            assert!(refused.contains("nothing protects it"), "{refused}");
        }
    }

    /// Such is an algorithm that stays at home, like `local`.
    #[test]
    fn where_nothing_is_shared_nothing_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let owner = releases(folder.path(), Some(1.0), None).owner;
        let alone = Releases::new(&FederationSpec::default(), owner, None);
        alone.check().unwrap();
        alone.admit(&update(1.0), 1).unwrap();
        assert!(!alone.owner.file.exists());
    }

    #[test]
    fn what_will_not_fit_is_refused_before_anything_is_trained() {
        let folder = tempfile::tempdir().unwrap();
        let new = folder.path().join("new");
        let refused = releases(&new, Some(3.0), Some(NOISE)).check();
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("above the budget of 3"), "{refused}");
        assert!(!new.exists(), "nothing is written");
        let ours = releases(&new, Some(5.0), Some(NOISE));
        ours.check().unwrap();
        ours.admit(&update(1.0), 1).unwrap();
        ours.check().unwrap();
    }

    #[test]
    fn no_space_is_waited_for_and_nothing_else() {
        let error = |kind| ReleaseError::Unwritable {
            file: FILE.into(),
            source: io::Error::from(kind),
        };
        assert!(error(ErrorKind::StorageFull).is_full_disk());
        assert!(!error(ErrorKind::PermissionDenied).is_full_disk());
    }

    #[test]
    fn a_broken_file_stops_publishing() {
        let folder = tempfile::tempdir().unwrap();
        let ours = releases(folder.path(), Some(6.0), Some(NOISE));
        fs::write(&ours.owner.file, b"[{").unwrap();
        let error = ours.admit(&update(1.0), 1).unwrap_err().to_string();
        assert!(error.contains("cannot be read"), "{error}");
        assert_eq!(
            fs::read(&ours.owner.file).unwrap(),
            b"[{",
            "and stays as it is"
        );
    }
}
