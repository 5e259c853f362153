//! The book of members: what the organiser has signed, shared by all who ask whether a node belongs here.
//!
//! ```text
//!   hello (its own certificate) ─┐                    ┌─► reception: whom to let in, as what
//!   sync (what is missing) ──────┼─► MemberBook ──────┼─► gate: whose adverts count
//!   organiser's folder ──────────┘   (signatures)     └─► dialing, and a file in the state folder
//! ```
//!
//! Every statement is checked for the organiser's signature before it is taken, wherever it comes from.

use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use fednode_core::membership::{
    Absence, Certificate, MAX_STATEMENTS, Members, SignedStatement, Statement, StatementError,
};
use fednode_core::spec::Followed;
use fednode_core::{FederationSpec, NodeId, Role, Round, Timestamp};
use tokio::sync::watch;

use crate::codec;
use crate::identity::{self, Identity, StatementVerifyError};
use crate::secret_file::{self, SecretFileError};

/// Largest file of statements.
const MAX_FILE_BYTES: usize = MAX_STATEMENTS * 512;

/// Tells why statements are not taken.
#[derive(Debug, thiserror::Error)]
pub enum MembershipError {
    /// The organiser did not sign them.
    #[error(transparent)]
    Verify(#[from] StatementVerifyError),
    /// The organiser cannot have meant them.
    #[error(transparent)]
    Statement(#[from] StatementError),
    /// Their file cannot be used.
    #[error(transparent)]
    File(#[from] SecretFileError),
    /// Their file is damaged.
    #[error(
        "`{}` is damaged. That of an organiser must be restored, and not deleted: with it go all revocations. A member moves it away and joins again with the same ticket", .0.display()
    )]
    Damaged(PathBuf),
}

/// Who belongs to the federation, as far as this node has heard.
#[derive(Debug)]
pub struct MemberBook {
    members: RwLock<Members>,
    changes: watch::Sender<u64>,
}

impl MemberBook {
    /// Knows nobody yet.
    pub fn new(organiser: NodeId) -> Self {
        Self {
            members: RwLock::new(Members::new(organiser)),
            changes: watch::Sender::new(0),
        }
    }

    /// Reads the statements of a file; knows nobody if there is none.
    ///
    /// # Errors
    /// Fails if the file cannot be read, and on a statement that this organiser did not sign.
    pub fn load(path: &Path, organiser: NodeId) -> Result<Self, MembershipError> {
        let book = Self::new(organiser);
        for signed in read(path)? {
            book.take(&signed)?;
        }
        Ok(book)
    }

    /// Reads the statements of a file of which only the file itself says whose they are; `None` if there is none. For looking
    /// at one's own folder.
    ///
    /// # Errors
    /// As [`MemberBook::load`].
    pub fn load_any(path: &Path) -> Result<Option<Self>, MembershipError> {
        let Some(first) = read(path)?.into_iter().next() else {
            return Ok(None);
        };
        let organiser = identity::said_by(&first)?;
        Self::load(path, organiser).map(Some)
    }

    /// Writes all statements to a file, whole or not at all.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), MembershipError> {
        let bytes = codec::encode(&self.after(0));
        // A file that says the same stays, so that a start that is refused later has changed nothing.
        if std::fs::read(path).is_ok_and(|kept| kept == bytes) {
            return Ok(());
        }
        Ok(secret_file::replace(path, &bytes)?)
    }

    /// Takes a statement. Tells whether it is news.
    ///
    /// # Errors
    /// Refuses what the organiser did not sign, and what it cannot have meant.
    pub fn take(&self, signed: &SignedStatement) -> Result<bool, MembershipError> {
        let statement = identity::verify_statement(signed, self.organiser())?;
        let is_new = self.write().take(statement, signed.clone())?;
        // The lock is free again by now: whoever wakes reads the book at once.
        if is_new {
            self.changes.send_modify(|n| *n = n.wrapping_add(1));
        }
        Ok(is_new)
    }

    /// Signs the next statement and takes it.
    ///
    /// # Errors
    /// Refuses if there are too many.
    pub fn say(
        &self,
        organiser: &Identity,
        now: Timestamp,
        ruling: fednode_core::membership::Ruling,
    ) -> Result<(), MembershipError> {
        let serial = self.read().newest() + 1;
        let statement = Statement {
            organiser: organiser.node_id(),
            serial,
            issued_at: now,
            ruling,
        };
        self.take(&organiser.seal_statement(&statement)).map(drop)
    }

    /// Returns whose word counts.
    pub fn organiser(&self) -> NodeId {
        self.read().organiser()
    }

    /// Returns what a node may be now.
    ///
    /// # Errors
    /// Tells why it is no member.
    pub fn role(&self, node: &NodeId, now: Timestamp) -> Result<Role, Absence> {
        self.read().role(node, now)
    }

    /// Tells whether what a node said then counts.
    pub fn may_have_said(&self, node: &NodeId, issued_at: Timestamp) -> bool {
        self.read().may_have_said(node, issued_at)
    }

    /// Returns a node's newest certificate, also if it does not count any more.
    pub fn certificate(&self, node: &NodeId) -> Option<Certificate> {
        self.read().certificate(node).cloned()
    }

    /// Returns all certificates, with why they do not count now, if they do not.
    pub fn all(&self, now: Timestamp) -> Vec<(Certificate, Result<Role, Absence>)> {
        let members = self.read();
        let nodes = members.nodes();
        nodes
            .filter_map(|node| Some((members.certificate(node)?.clone(), members.role(node, now))))
            .collect()
    }

    /// Returns the nodes whose membership was revoked.
    pub fn revoked(&self) -> Vec<NodeId> {
        self.read().revoked().collect()
    }

    /// Returns the spec with the rounds that the organiser has added after all ends up to `done`.
    pub fn extended(&self, spec: &FederationSpec, done: Round) -> Followed {
        spec.extended_by(self.read().extensions(), done)
    }

    /// Returns the end after which the organiser has changed this federation last; 0 if it never has.
    pub fn last_change(&self, spec: &FederationSpec) -> Round {
        let (id, members) = (spec.id(), self.read());
        let own = members.extensions().filter(|more| more.federation == id);
        own.map(|more| more.after).max().unwrap_or(Round::ZERO)
    }

    /// Returns up to which number no statement is missing.
    pub fn reached(&self) -> u64 {
        self.read().reached()
    }

    /// Returns all statements after a number.
    pub fn after(&self, serial: u64) -> Vec<SignedStatement> {
        self.read().after(serial).cloned().collect()
    }

    /// Returns a receiver that wakes at every change.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Counts the changes so far.
    pub(crate) fn changes(&self) -> u64 {
        *self.changes.borrow()
    }

    /// Returns the signed statement with a node's certificate.
    pub(crate) fn proof_of(&self, node: &NodeId) -> Option<SignedStatement> {
        self.read().proof_of(node).cloned()
    }

    /// Returns the signed statement that revokes a node.
    pub(crate) fn revocation_of(&self, node: &NodeId) -> Option<SignedStatement> {
        self.read().revocation_of(node).cloned()
    }

    /// Returns the first statements after a number.
    pub(crate) fn some_after(&self, serial: u64, most: usize) -> Vec<SignedStatement> {
        self.read().after(serial).take(most).cloned().collect()
    }

    // A panic elsewhere while the lock was held leaves a book that is still well formed.
    fn read(&self) -> RwLockReadGuard<'_, Members> {
        self.members.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Members> {
        self.members.write().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read(path: &Path) -> Result<Vec<SignedStatement>, MembershipError> {
    let damaged = || MembershipError::Damaged(path.to_owned());
    match std::fs::read(path) {
        Ok(bytes) => codec::decode(&bytes, MAX_FILE_BYTES).map_err(|_| damaged()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(source) => Err(MembershipError::File(SecretFileError::Read {
            path: path.to_owned(),
            source,
        })),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fednode_core::membership::Ruling;
    use fednode_core::spec::{CHANGEABLE, Extension, MOST_SETTINGS};

    use super::*;

    const NOW: Timestamp = Timestamp(1_700_000_000_000);

    fn admit(node: NodeId) -> Ruling {
        Ruling::Admit(Certificate {
            node,
            name: "ann".parse().unwrap(),
            role: Role::Node,
            not_after: NOW + Duration::from_secs(60),
        })
    }

    #[test]
    fn statements_survive_their_file_and_no_other_key_can_add_one() {
        let (organiser, ann) = (Identity::generate(), Identity::generate().node_id());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("members");
        let book = MemberBook::load(&path, organiser.node_id()).unwrap();
        book.say(&organiser, NOW, admit(ann)).unwrap();
        book.save(&path).unwrap();
        let again = MemberBook::load(&path, organiser.node_id()).unwrap();
        assert_eq!(again.role(&ann, NOW), Ok(Role::Node));
        assert_eq!((again.reached(), again.changes()), (1, 1));
        let any = MemberBook::load_any(&path).unwrap().unwrap();
        assert_eq!(any.organiser(), organiser.node_id());

        let thief = Identity::generate();
        assert!(book.say(&thief, NOW, admit(thief.node_id())).is_err());
        let mut forged = book.after(0).remove(0);
        forged.signature[5] ^= 1;
        assert!(again.take(&forged).is_err(), "a signature that is wrong");
        assert!(MemberBook::load(&path, thief.node_id()).is_err());
        std::fs::write(&path, b"not a list").unwrap();
        let error = MemberBook::load(&path, organiser.node_id()).unwrap_err();
        assert!(error.to_string().contains("is damaged"), "{error}");
    }

    #[test]
    fn the_longest_extension_fits_a_statement() {
        let organiser = Identity::generate();
        let book = MemberBook::new(organiser.node_id());
        let agreed = FederationSpec::default();
        let mut longest = CHANGEABLE;
        longest.sort_by_key(|key| std::cmp::Reverse(key.len()));
        let settings = longest[..MOST_SETTINGS].iter();
        let value = "0.1000000000000000055511151231257";
        let extension = Extension {
            federation: agreed.id(),
            after: Round(agreed.rounds),
            rounds: 50_000,
            settings: settings
                .map(|key| ((*key).to_owned(), value[..24].to_owned()))
                .collect(),
        };
        book.say(&organiser, NOW, Ruling::Extend(extension))
            .unwrap();
        let trouble = book.extended(&agreed, Round(10)).trouble;
        let error = trouble.unwrap().to_string();
        assert!(error.contains("0.1"), "not refused for its length: {error}");
        assert_eq!(book.reached(), 1);
    }
}
