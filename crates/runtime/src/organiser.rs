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

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fednode_core::membership::SignedStatement;
use fednode_core::membership::{Absence, Certificate, MAX_STATEMENTS, MemberName, Ruling};
use fednode_core::{NodeId, Role, Timestamp};
use fednode_net::{
    Identity, InvitationSecret, JoinAsk, JoinRefusal, MemberBook, MembershipError, SecretFileError,
};
use serde::{Deserialize, Serialize};

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

/// Tells why the organiser's folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OrganiserError {
    /// A file of the folder cannot be read or written.
    #[error("cannot use `{}`: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A secret cannot be used.
    #[error(transparent)]
    Secret(#[from] SecretFileError),
    /// The statements cannot be used.
    #[error(transparent)]
    Members(#[from] MembershipError),
    /// The invitations are damaged.
    #[error("`{}` is damaged: restore it from a backup, or delete it and invite again", .0.display())]
    Invitations(PathBuf),
    /// The name is taken.
    #[error(
        "`{0}` is the name of a member or of somebody invited: take another, or revoke that one first"
    )]
    NameTaken(MemberName),
    /// Nobody has that name or id.
    #[error("nobody here is called `{0}`: `fednode members` lists all")]
    Nobody(String),
    /// There are too many statements.
    #[error("this organiser has admitted as many members as it may: begin a new federation")]
    Full,
}

/// Somebody who was invited.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Invitation {
    secret: String,
    /// What people will call it.
    pub name: MemberName,
    /// What it may be.
    pub role: Role,
    /// Until when the ticket can be used.
    pub not_after: Timestamp,
    /// Until when the membership lasts.
    pub member_until: Timestamp,
    /// Who has used it.
    pub used_by: Option<NodeId>,
    /// Whose membership ends when it is used: the same member with its key before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<NodeId>,
}

/// A line of the list of members.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Row {
    /// What people call it.
    pub name: MemberName,
    /// Its id; none yet for somebody who is invited.
    pub node: Option<NodeId>,
    /// What it may be.
    pub role: Role,
    /// `member`, `invited`, `revoked` or `expired`.
    pub standing: &'static str,
    /// Until when.
    pub until: Timestamp,
}

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
    invitations: Vec<Invitation>,
    _lock: File,
}

impl Organiser {
    /// Makes the folder and its key. The folder must have none.
    ///
    /// # Errors
    /// Fails if there is a key already, or nothing can be written.
    pub fn create(folder: &Path) -> Result<Self, OrganiserError> {
        fs::create_dir_all(folder).map_err(|source| OrganiserError::Io {
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
        Ok(Self {
            folder: folder.to_owned(),
            key: Identity::load(&folder.join(KEY_FILE))?,
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
        session.invite(name, role, None, life, now)
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
        let secret = session.invite(name, role, Some(node), life, now)?;
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
            session.book.say(&self.key, now, Ruling::Revoke(node))?;
            session.book.save(&self.members_file())?;
            // A ticket for another key would bring it back.
            session.invitations.retain(|it| !it.would_replace(&node));
            session.save_invitations()?;
            return Ok(Some(node));
        }
        let before = session.invitations.len();
        session
            .invitations
            .retain(|old| old.name.as_ref() != who || old.used_by.is_some());
        if session.invitations.len() == before {
            return Err(OrganiserError::Nobody(who.to_owned()));
        }
        session.save_invitations()?;
        Ok(None)
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
        let found = session.invitations.iter().position(|invitation| {
            invitation.secret().is_some_and(|secret| {
                let expected = secret.proof(joiner, responder);
                secret.name() == ask.invitation && is_same(&expected, &ask.proof)
            })
        });
        let at = found.ok_or(JoinRefusal::Unknown)?;
        let invitation = session.invitations[at].clone();
        if session.book.role(&joiner, now) == Err(Absence::Revoked) {
            return Err(JoinRefusal::Revoked);
        }
        if invitation.replaces == Some(joiner) {
            return Err(JoinRefusal::Revoked);
        }
        match invitation.used_by {
            Some(node) if node != joiner => return Err(JoinRefusal::Used),
            Some(_) if session.book.certificate(&joiner).is_some() => {
                return Ok(session.book.after(0));
            }
            // Used and never admitted, for want of disk space perhaps: it is the same node, so it is admitted now.
            Some(_) => {}
            None if now > invitation.not_after => return Err(JoinRefusal::Expired),
            None => {}
        }
        if session.is_full() {
            return Err(broken(OrganiserError::Full));
        }
        // First the note that the ticket is used: a crash in between costs a ticket and never gives two memberships.
        session.invitations[at].used_by = Some(joiner);
        session.save_invitations().map_err(broken)?;
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
        let open = session.invitations.iter();
        rows.extend(
            open.filter(|invited| invited.used_by.is_none())
                .map(|invited| {
                    let is_open = now <= invited.not_after;
                    Row {
                        name: invited.name.clone(),
                        node: None,
                        role: invited.role,
                        standing: if is_open { "invited" } else { "expired" },
                        until: invited.not_after,
                    }
                }),
        );
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
        lock.lock().map_err(failed)?;
        let path = self.folder.join(INVITATIONS_FILE);
        let invitations = match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|_| OrganiserError::Invitations(path.clone()))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(source) => return Err(OrganiserError::Io { path, source }),
        };
        Ok(Session {
            organiser: self,
            book: self.book()?,
            invitations,
            _lock: lock,
        })
    }
}

/// Lists the members of a book.
pub fn rows(book: &MemberBook, now: Timestamp) -> Vec<Row> {
    let all = book.all(now).into_iter();
    all.map(|(certificate, role)| Row {
        standing: match role {
            Ok(_) => "member",
            Err(Absence::Expired) => "expired",
            Err(_) => "revoked",
        },
        name: certificate.name,
        node: Some(certificate.node),
        role: certificate.role,
        until: certificate.not_after,
    })
    .collect()
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
        let is_invited = self.invitations.iter().any(|invited| {
            invited.name == *name && invited.used_by.is_none() && now <= invited.not_after
        });
        if is_member || is_invited {
            return Err(OrganiserError::NameTaken(name.clone()));
        }
        Ok(())
    }

    fn invite(
        &mut self,
        name: MemberName,
        role: Role,
        replaces: Option<NodeId>,
        life: Duration,
        now: Timestamp,
    ) -> Result<InvitationSecret, OrganiserError> {
        let secret = InvitationSecret::generate();
        // A ticket that was never used gives its name back.
        self.invitations
            .retain(|old| old.name != name || old.used_by.is_some());
        self.invitations.push(Invitation {
            secret: secret.to_string(),
            name,
            role,
            not_after: now + life,
            member_until: now + MEMBERSHIP,
            used_by: None,
            replaces,
        });
        self.save_invitations()?;
        Ok(secret)
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

    fn save_invitations(&self) -> Result<(), OrganiserError> {
        let path = self.organiser.folder.join(INVITATIONS_FILE);
        let text = serde_json::to_vec_pretty(&self.invitations)
            .map_err(|_| OrganiserError::Invitations(path.clone()))?;
        Ok(fednode_net::replace_secret_file(&path, &text)?)
    }
}

impl Invitation {
    /// Tells whether this is an open invitation to replace that key.
    fn would_replace(&self, node: &NodeId) -> bool {
        self.replaces.as_ref() == Some(node) && self.used_by.is_none()
    }

    fn secret(&self) -> Option<InvitationSecret> {
        self.secret.parse().ok()
    }
}

/// Compares in a time that tells nothing.
fn is_same(expected: &[u8; 32], given: &[u8; 32]) -> bool {
    let differences = expected.iter().zip(given).map(|(a, b)| a ^ b);
    differences.fold(0, |all, difference| all | difference) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_700_000_000_000);
    const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);
    const FEDBOOT: NodeId = NodeId::from_bytes([7; 32]);

    fn ask(secret: InvitationSecret, joiner: NodeId) -> JoinAsk {
        JoinAsk {
            invitation: secret.name(),
            proof: secret.proof(joiner, FEDBOOT),
        }
    }

    fn name(text: &str) -> MemberName {
        text.parse().unwrap()
    }

    #[test]
    fn a_ticket_admits_one_node_and_answers_it_again() {
        let folder = tempfile::tempdir().unwrap();
        let organiser = Organiser::create(folder.path()).unwrap();
        let secret = organiser
            .invite(name("ward-b"), Role::Node, WEEK, NOW)
            .unwrap();
        let (bob, eve) = (NodeId::from_bytes([1; 32]), NodeId::from_bytes([2; 32]));
        // Eve has heard Bob's request, and sends it as her own.
        let stolen = organiser.answer(&ask(secret, bob), eve, FEDBOOT, NOW);
        assert_eq!(stolen, Err(JoinRefusal::Unknown));
        let organiser = Organiser::open(folder.path()).unwrap();
        let statements = organiser
            .answer(&ask(secret, bob), bob, FEDBOOT, NOW)
            .unwrap();
        let again = organiser.answer(&ask(secret, bob), bob, FEDBOOT, NOW + WEEK * 2);
        assert_eq!(again, Ok(statements), "the answer was lost on its way");
        let used = organiser.answer(&ask(secret, eve), eve, FEDBOOT, NOW);
        assert_eq!(used, Err(JoinRefusal::Used));
        assert_eq!(organiser.book().unwrap().role(&bob, NOW), Ok(Role::Node));
        let rows = organiser.list(NOW).unwrap();
        assert_eq!((rows.len(), rows[0].standing), (1, "member"));
    }

    #[test]
    fn a_restored_folder_learns_what_it_had_signed_and_uses_no_number_twice() {
        let folder = tempfile::tempdir().unwrap();
        let organiser = Organiser::create(folder.path()).unwrap();
        let (ann, bob) = (NodeId::from_bytes([1; 32]), NodeId::from_bytes([2; 32]));
        organiser.admit(ann, name("ann"), Role::Node, NOW).unwrap();
        let backup = fs::read(organiser.members_file()).unwrap();
        organiser.admit(bob, name("bob"), Role::Node, NOW).unwrap();
        let others = organiser.book().unwrap();
        fs::write(organiser.members_file(), backup).unwrap();
        organiser.exchange(&others).unwrap();
        assert_eq!(organiser.revoke("ann", NOW).unwrap(), Some(ann));
        organiser.exchange(&others).unwrap();
        assert_eq!(others.role(&ann, NOW), Err(Absence::Revoked));
        assert_eq!(others.role(&bob, NOW), Ok(Role::Node));
    }

    #[test]
    fn a_ticket_whose_certificate_was_lost_to_a_full_disk_still_admits_its_node() {
        let folder = tempfile::tempdir().unwrap();
        let organiser = Organiser::create(folder.path()).unwrap();
        let secret = organiser
            .invite(name("bob"), Role::Node, WEEK, NOW)
            .unwrap();
        let bob = NodeId::from_bytes([1; 32]);
        organiser
            .answer(&ask(secret, bob), bob, FEDBOOT, NOW)
            .unwrap();
        // The ticket is noted as used, and the statement is gone.
        fs::remove_file(organiser.members_file()).unwrap();
        let again = organiser.answer(&ask(secret, bob), bob, FEDBOOT, NOW);
        assert_eq!(again.unwrap().len(), 1);
    }

    #[test]
    fn tickets_expire_and_can_be_withdrawn() {
        let folder = tempfile::tempdir().unwrap();
        let organiser = Organiser::create(folder.path()).unwrap();
        let invite = |who: &str| organiser.invite(name(who), Role::Node, WEEK, NOW).unwrap();
        let (old, withdrawn) = (invite("old"), invite("withdrawn"));
        let bob = NodeId::from_bytes([1; 32]);
        let late = organiser.answer(&ask(old, bob), bob, FEDBOOT, NOW + WEEK * 2);
        assert_eq!(late, Err(JoinRefusal::Expired));
        assert_eq!(organiser.revoke("withdrawn", NOW).unwrap(), None);
        let answer = organiser.answer(&ask(withdrawn, bob), bob, FEDBOOT, NOW);
        assert_eq!(answer, Err(JoinRefusal::Unknown));
        assert!(organiser.revoke("withdrawn", NOW).is_err());
    }

    #[test]
    fn a_revoked_member_cannot_come_back_with_its_key_and_gives_its_name_back() {
        let folder = tempfile::tempdir().unwrap();
        let organiser = Organiser::create(folder.path()).unwrap();
        let bob = NodeId::from_bytes([1; 32]);
        organiser.admit(bob, name("bob"), Role::Node, NOW).unwrap();
        let taken = organiser.invite(name("bob"), Role::Node, WEEK, NOW);
        assert!(matches!(taken, Err(OrganiserError::NameTaken(_))));
        assert_eq!(organiser.revoke("bob", NOW).unwrap(), Some(bob));
        let secret = organiser
            .invite(name("bob"), Role::Node, WEEK, NOW)
            .unwrap();
        let answer = organiser.answer(&ask(secret, bob), bob, FEDBOOT, NOW);
        assert_eq!(answer, Err(JoinRefusal::Revoked));
        let other = NodeId::from_bytes([2; 32]);
        assert!(
            organiser
                .answer(&ask(secret, other), other, FEDBOOT, NOW)
                .is_ok()
        );
    }

    #[test]
    fn a_member_with_another_key_keeps_its_name_and_role_and_loses_the_old_key() {
        let folder = tempfile::tempdir().unwrap();
        let organiser = Organiser::create(folder.path()).unwrap();
        let (old, new) = (NodeId::from_bytes([1; 32]), NodeId::from_bytes([2; 32]));
        let hub = Role::Aggregator;
        organiser.admit(old, name("hub"), hub, NOW).unwrap();
        let (secret, role) = organiser.invite_again(name("hub"), WEEK, NOW).unwrap();
        assert_eq!(role, hub);
        let book = organiser.book().unwrap();
        assert_eq!(book.role(&old, NOW), Ok(hub), "until the ticket is used");
        let answer = |who| organiser.answer(&ask(secret, who), who, FEDBOOT, NOW);
        answer(new).unwrap();
        let book = organiser.book().unwrap();
        assert_eq!(book.role(&new, NOW), Ok(hub));
        assert_eq!(book.role(&old, NOW), Err(Absence::Revoked));
        assert_eq!(book.certificate(&new).unwrap().name, name("hub"));
        assert_eq!(answer(old), Err(JoinRefusal::Revoked));
        // Neither the old key nor a revoked member can use a ticket for another key.
        let (again, _) = organiser.invite_again(name("hub"), WEEK, NOW).unwrap();
        let used_by = |who| organiser.answer(&ask(again, who), who, FEDBOOT, NOW);
        assert_eq!(used_by(new), Err(JoinRefusal::Revoked));
        assert_eq!(organiser.revoke("hub", NOW).unwrap(), Some(new));
        let third = NodeId::from_bytes([3; 32]);
        assert_eq!(used_by(third), Err(JoinRefusal::Unknown));
        let nobody = organiser.invite_again(name("bob"), WEEK, NOW);
        assert!(matches!(nobody, Err(OrganiserError::Nobody(_))));
    }
}
