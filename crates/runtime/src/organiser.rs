//! The organiser's folder: the key that admits members, its statements, and the invitations that are open.
//!
//! ```text
//!   organiser/
//!     key                the organiser's key, which the spec names; whoever has it decides who is a member
//!     members            all that it has said
//!     invitations.json   who was invited, with the secret of each ticket
//!     lock               held for the moment of a change, by the command line or a running process
//! ```
//!
//! Commands change the folder whether or not a process runs. A running process that was given the folder answers tickets
//! from it, and looks every other second whether a command has changed it.

mod error;
mod invitations;
mod row;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fednode_core::limits::MOST_ROUNDS;
use fednode_core::membership::SignedStatement;
use fednode_core::membership::{Absence, Certificate, MAX_STATEMENTS, MemberName, Ruling};
use fednode_core::spec::Extension;
use fednode_core::{ConfigError, FederationSpec, NodeId, Role, Round, Timestamp};
use fednode_files::owner;
use fednode_net::{Identity, InvitationSecret, JoinAsk, JoinRefusal, MemberBook, SecretFileError};

pub use error::OrganiserError;
use invitations::{Guest, Invitations};
pub use row::{Row, rows};

/// The name of the folder beside a federation's spec.
pub const FOLDER: &str = "organiser";
/// The file with the statements, here and in a state folder.
pub const MEMBERS_FILE: &str = "members";
const KEY_FILE: &str = "key";
const INVITATIONS_FILE: &str = "invitations.json";
const LOCK_FILE: &str = "lock";
/// Statements are left for revocations: a full book must still be able to shut somebody out.
const RESERVED: usize = MAX_STATEMENTS / 4;
/// How long a membership lasts, unless somebody says otherwise: ten years, longer than any federation.
pub const MEMBERSHIP: Duration = Duration::from_secs(3653 * 24 * 3600);

/// An open folder of an organiser.
#[derive(Debug)]
pub struct Organiser {
    folder: PathBuf,
    key: Identity,
}

/// The folder while it is locked.
struct Session<'a> {
    organiser: &'a Organiser,
    book: MemberBook,
    invitations: Invitations,
    _lock: File,
}

impl Organiser {
    /// Makes the folder and its key. The folder must have none.
    ///
    /// # Errors
    /// Fails if there is a key already, or nothing can be written.
    pub fn create(folder: &Path) -> Result<Self, OrganiserError> {
        owner::make_folders(folder).map_err(|source| OrganiserError::Io {
            path: folder.to_owned(),
            source,
        })?;
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            _ = fs::set_permissions(folder, fs::Permissions::from_mode(0o700));
        }
        let key = Identity::create(&folder.join(KEY_FILE))?;
        Ok(Self {
            folder: folder.to_owned(),
            key,
        })
    }

    /// Opens the folder.
    ///
    /// # Errors
    /// Fails if the key cannot be read.
    pub fn open(folder: &Path) -> Result<Self, OrganiserError> {
        let key = Identity::load(&folder.join(KEY_FILE)).map_err(|error| match error {
            // What is said of a node's key does not hold here.
            SecretFileError::Corrupt { path, .. } => OrganiserError::Key(path),
            error => error.into(),
        })?;
        Ok(Self {
            folder: folder.to_owned(),
            key,
        })
    }

    /// Returns whose word this is: what the spec names.
    pub fn id(&self) -> NodeId {
        self.key.node_id()
    }

    /// Returns the file with the statements.
    pub fn members_file(&self) -> PathBuf {
        self.folder.join(MEMBERS_FILE)
    }

    /// Reads the statements.
    ///
    /// # Errors
    /// Fails if they cannot be read.
    pub fn book(&self) -> Result<MemberBook, OrganiserError> {
        Ok(MemberBook::load(&self.members_file(), self.id())?)
    }

    /// Brings the folder and a book up to date with each other. A folder that was restored from a backup so learns what it had
    /// signed, and does not use a number twice.
    ///
    /// # Errors
    /// Fails if a file cannot be used, or if the two contradict each other; what does not is exchanged all the same.
    pub fn exchange(&self, book: &MemberBook) -> Result<(), OrganiserError> {
        let session = self.session()?;
        let (mut trouble, mut has_news) = (None, false);
        for signed in book.after(0) {
            match session.book.take(&signed) {
                Ok(is_new) => has_news |= is_new,
                Err(error) => trouble = Some(error),
            }
        }
        if has_news {
            session.book.save(&self.members_file())?;
        }
        for signed in session.book.after(0) {
            if let Err(error) = book.take(&signed) {
                trouble = Some(error);
            }
        }
        trouble.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Admits a node without a ticket: the organiser's own.
    ///
    /// # Errors
    /// Fails if the name is another member's, or nothing can be written.
    pub fn admit(
        &self,
        node: NodeId,
        name: MemberName,
        role: Role,
        now: Timestamp,
    ) -> Result<(), OrganiserError> {
        let session = self.session()?;
        session.refuse_name(&name, Some(node), now)?;
        session.admit(
            Certificate {
                node,
                name,
                role,
                not_after: now + MEMBERSHIP,
            },
            now,
        )
    }

    /// Invites somebody, and returns the secret of the ticket.
    ///
    /// # Errors
    /// Fails if the name is taken, or nothing can be written.
    pub fn invite(
        &self,
        name: MemberName,
        role: Role,
        life: Duration,
        now: Timestamp,
    ) -> Result<InvitationSecret, OrganiserError> {
        let mut session = self.session()?;
        session.refuse_name(&name, None, now)?;
        let guest = Guest {
            name,
            role,
            replaces: None,
        };
        session.invitations.add(guest, life, now)
    }

    /// Invites a member to come back with another key. When the ticket is used, its membership with the key that it has now ends.
    /// Returns the secret and what the member may be.
    ///
    /// # Errors
    /// Fails if no member has that name, or nothing can be written.
    pub fn invite_again(
        &self,
        name: MemberName,
        life: Duration,
        now: Timestamp,
    ) -> Result<(InvitationSecret, Role), OrganiserError> {
        let mut session = self.session()?;
        let all = session.book.all(now);
        let found = all.iter().find_map(|(certificate, role)| {
            let role = role.as_ref().ok().filter(|_| certificate.name == name)?;
            Some((certificate.node, *role))
        });
        let (node, role) = found.ok_or_else(|| OrganiserError::Nobody(name.to_string()))?;
        let guest = Guest {
            name,
            role,
            replaces: Some(node),
        };
        let secret = session.invitations.add(guest, life, now)?;
        Ok((secret, role))
    }

    /// Revokes a member, by its name or node id, or withdraws an invitation. Returns who it was, unless it had not joined yet.
    ///
    /// # Errors
    /// Fails if nobody has that name, or nothing can be written.
    pub fn revoke(&self, who: &str, now: Timestamp) -> Result<Option<NodeId>, OrganiserError> {
        let mut session = self.session()?;
        let all = session.book.all(now);
        // Of several with one name, those that were members before count no more.
        let found = all.iter().find(|(certificate, role)| {
            role.is_ok()
                && (certificate.name.as_ref() == who || certificate.node.to_string() == who)
        });
        if let Some((certificate, _)) = found {
            let node = certificate.node;
            // A ticket for another key would bring it back. It goes first: where the second write fails the member is still one, and
            // the same command does the rest.
            session.invitations.withdraw_for(node)?;
            session.book.say(&self.key, now, Ruling::Revoke(node))?;
            session.book.save(&self.members_file())?;
            return Ok(Some(node));
        }
        match session.invitations.withdraw(who)? {
            true => Ok(None),
            false => Err(OrganiserError::Nobody(who.to_owned())),
        }
    }

    /// Withdraws the ticket of a name that was not used. Whoever is a member under that name stays one.
    ///
    /// # Errors
    /// Fails if nothing can be written.
    pub fn withdraw(&self, name: &MemberName) -> Result<(), OrganiserError> {
        let mut session = self.session()?;
        session.invitations.withdraw(name.as_ref()).map(drop)
    }

    /// Adds rounds after the last one of a federation whose spec was this at first. `check` looks whether members can start with
    /// the spec that follows. Returns that.
    ///
    /// An endless federation is only given other settings, after an end that it has not `reached` yet.
    ///
    /// # Errors
    /// Fails if the federation cannot go on so, if there are too many statements, or nothing can be written.
    pub fn extend(
        &self,
        agreed: &FederationSpec,
        (rounds, settings): (u32, BTreeMap<String, String>),
        reached: Round,
        check: impl FnOnce(&FederationSpec) -> Result<(), ConfigError>,
        now: Timestamp,
    ) -> Result<FederationSpec, OrganiserError> {
        let session = self.session()?;
        if session.is_full() {
            return Err(OrganiserError::Full);
        }
        let done = match agreed.end_after(session.book.last_change(agreed).max(reached)) {
            Some(end) => Round(end.0.saturating_sub(1)),
            None => Round(MOST_ROUNDS),
        };
        let before = session.book.extended(agreed, done);
        // An endless federation goes on without what cannot be followed.
        let trouble = before.trouble.filter(|_| !agreed.endless);
        let before = trouble.map_or(Ok(before.spec), Err)?;
        let extension = Extension {
            federation: agreed.id(),
            after: Round(before.rounds),
            rounds,
            settings,
        };
        let extended = before.extended(&extension)?;
        // Before anything is signed: a statement cannot be taken back.
        check(&extended)?;
        let said = Ruling::Extend(extension);
        session.book.say(&self.key, now, said)?;
        session.book.save(&self.members_file())?;
        Ok(extended)
    }

    /// Answers a ticket. The same node may ask again, and gets the same answer.
    ///
    /// # Errors
    /// Tells the joiner why not, or nothing but that something is broken here, which the log then says.
    pub fn answer(
        &self,
        ask: &JoinAsk,
        joiner: NodeId,
        responder: NodeId,
        now: Timestamp,
    ) -> Result<Vec<SignedStatement>, JoinRefusal> {
        let broken = |error: OrganiserError| {
            tracing::error!(%error, "a ticket cannot be answered");
            JoinRefusal::Broken
        };
        let mut session = self.session().map_err(broken)?;
        let shown = session.invitations.shown(ask, joiner, responder);
        let (place, invitation) = shown.ok_or(JoinRefusal::Unknown)?;
        if session.book.role(&joiner, now) == Err(Absence::Revoked) {
            return Err(JoinRefusal::Revoked);
        }
        invitation.check(joiner, now)?;
        // Used and never admitted, for want of disk space perhaps: it is the same node, so it is admitted now.
        if invitation.used_by.is_some() && session.book.certificate(&joiner).is_some() {
            return Ok(session.book.after(0));
        }
        if session.is_full() {
            return Err(broken(OrganiserError::Full));
        }
        // First the note that the ticket is used: a crash in between costs a ticket and never gives two memberships.
        let noted = session.invitations.note_use(place, joiner);
        noted.map_err(broken)?;
        // The old key first: a crash in between costs a moment of membership and never gives two keys to one member.
        if let Some(before) = invitation.replaces {
            let said = session.book.say(&self.key, now, Ruling::Revoke(before));
            said.map_err(|error| broken(error.into()))?;
        }
        let certificate = Certificate {
            node: joiner,
            name: invitation.name.clone(),
            role: invitation.role,
            not_after: invitation.member_until,
        };
        session.admit(certificate, now).map_err(broken)?;
        tracing::info!(node = %joiner, name = %invitation.name, "a new member");
        Ok(session.book.after(0))
    }

    /// Lists members, former members and open invitations.
    ///
    /// # Errors
    /// Fails if the folder cannot be read.
    pub fn list(&self, now: Timestamp) -> Result<Vec<Row>, OrganiserError> {
        let session = self.session()?;
        let mut rows = rows(&session.book, now);
        let unused = session.invitations.unused();
        rows.extend(unused.map(|invited| Row::of_open(invited, now)));
        Ok(rows)
    }

    fn session(&self) -> Result<Session<'_>, OrganiserError> {
        let path = self.folder.join(LOCK_FILE);
        let failed = |source| OrganiserError::Io {
            path: path.clone(),
            source,
        };
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(failed)?;
        owner::of_its_folder(&lock, &path);
        lock.lock().map_err(failed)?;
        Ok(Session {
            organiser: self,
            // Read under the lock: another process may have changed both while this one waited.
            book: self.book()?,
            invitations: Invitations::load(self.folder.join(INVITATIONS_FILE))?,
            _lock: lock,
        })
    }
}

impl Session<'_> {
    /// Refuses a name that somebody else has now or will have.
    fn refuse_name(
        &self,
        name: &MemberName,
        node: Option<NodeId>,
        now: Timestamp,
    ) -> Result<(), OrganiserError> {
        let is_member = self.book.all(now).iter().any(|(certificate, role)| {
            role.is_ok() && certificate.name == *name && Some(certificate.node) != node
        });
        if is_member || self.invitations.promise(name, now) {
            return Err(OrganiserError::NameTaken(name.clone()));
        }
        Ok(())
    }

    fn admit(&self, certificate: Certificate, now: Timestamp) -> Result<(), OrganiserError> {
        if self.is_full() {
            return Err(OrganiserError::Full);
        }
        let organiser = self.organiser;
        self.book
            .say(&organiser.key, now, Ruling::Admit(certificate))?;
        Ok(self.book.save(&organiser.members_file())?)
    }

    /// Tells whether only revocations fit.
    fn is_full(&self) -> bool {
        self.book.reached() as usize >= MAX_STATEMENTS - RESERVED
    }
}

#[cfg(test)]
mod tests;
