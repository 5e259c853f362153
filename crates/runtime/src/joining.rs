//! Using a ticket: what `fednode join` and `fedboot join` have in common.
//!
//! ```text
//!   ticket ─► is the folder free and of no other federation? ─► ask the organiser ─► is that what the ticket names? ─► files
//! ```
//!
//! The key of the new member is made here and stays here. The ticket's secret is not kept: the certificate replaces it.
//! Whatever would be refused afterwards is refused before anybody is asked, since a ticket can be used by one key only.

use std::io;
use std::path::{Path, PathBuf};

use fednode_core::{FederationSpec, Role};
use fednode_files::{owner, whole_file};
use fednode_net::{
    Admitted, Identity, JoinError, JoinRefusal, MemberBook, NetworkKey, Ticket, TicketError,
};
use fednode_store::is_free;

use crate::error::RunError;
use crate::organiser::MEMBERS_FILE;

/// The federation's spec, in a member's folder.
pub const SPEC_FILE: &str = "federation.toml";
/// The pre-shared key, in a member's folder.
pub const NETWORK_KEY_FILE: &str = "network.key";

/// A member's key, in its state folder.
const KEY_FILE: &str = "key";
/// The key that takes its place as soon as the organiser has admitted it.
const NEXT_KEY_FILE: &str = "key.next";

/// The folder of a new member.
#[derive(Debug)]
pub struct Home {
    /// For what people read.
    pub dir: PathBuf,
    /// The state folder inside.
    pub state: PathBuf,
}

/// What a ticket brought.
#[derive(Debug)]
pub struct Joined {
    /// The federation's spec.
    pub spec: FederationSpec,
    /// What the organiser calls this node.
    pub name: String,
}

/// Reads a ticket as it is typed; `-` stands for a line of standard input, which no other process sees.
///
/// # Errors
/// Says what is wrong with it.
pub fn ticket(text: &str) -> Result<Ticket, TicketError> {
    if text != "-" {
        return text.parse();
    }
    let mut line = String::new();
    // What cannot be read is no ticket.
    _ = io::stdin().read_line(&mut line);
    line.parse()
}

/// Asks the organiser to admit the key in a state folder, making the key if there is none, and writes spec, network key and
/// certificate.
///
/// # Errors
/// Tells why this node may not join. Nothing but the key is left behind then. The same folder can use the ticket again.
pub async fn join(ticket: &Ticket, home: &Home, role: Role) -> Result<Joined, RunError> {
    if ticket.role != role {
        return Err(RunError::Configuration(format!(
            "this ticket is for another program: use it with `{} join TICKET`",
            program(ticket.role)
        )));
    }
    admitted(ticket, home, role, &home.state.join(KEY_FILE)).await
}

/// Gives a member that does not run another key. Checkpoints and everything else stay.
///
/// The new key takes the place of the old one when the organiser has admitted it. Until then it lies beside it, so that the same
/// ticket can be used again after a failure.
///
/// # Errors
/// As [`join`], and if there is no key to replace.
pub async fn rotate(ticket: &Ticket, home: &Home) -> Result<Joined, RunError> {
    let key = home.state.join(KEY_FILE);
    if !key.is_file() {
        return Err(RunError::StateContent(format!(
            "there is no key to replace in `{}`: use the ticket with `{} join`",
            home.state.display(),
            program(ticket.role)
        )));
    }
    let next = home.state.join(NEXT_KEY_FILE);
    let is_second_try = next.is_file();
    let mut joined = admitted(ticket, home, ticket.role, &next).await;
    if is_second_try && matches!(joined, Err(RunError::NotAdmitted(JoinRefusal::Revoked))) {
        // An answer was lost: the key beside is the member's by now, and this ticket is there to replace it.
        _ = std::fs::remove_file(&next);
        joined = admitted(ticket, home, ticket.role, &next).await;
    }
    if let Err(RunError::NotAdmitted(refusal)) = &joined
        && *refusal != JoinRefusal::Broken
    {
        // Nobody has admitted it and nobody will. A key that lies about may be seen.
        _ = std::fs::remove_file(&next);
    }
    let joined = joined?;
    // In one step: a crash leaves the old key or the new one, never none.
    std::fs::rename(&next, &key).map_err(|error| unwritable(&key, &error))?;
    Ok(joined)
}

/// Asks the organiser to admit a key, and writes what it answers.
async fn admitted(
    ticket: &Ticket,
    home: &Home,
    role: Role,
    key: &Path,
) -> Result<Joined, RunError> {
    home.check(ticket)?;
    make_folder(&home.state).map_err(|error| unwritable(&home.state, &error))?;
    let identity = Identity::load_or_create(key).map_err(content)?;
    let answer = fednode_net::join(ticket, &identity)
        .await
        .map_err(|error| match error {
            JoinError::Refused(refusal) => RunError::NotAdmitted(refusal),
            other => RunError::Network(other.to_string()),
        })?;
    let (spec, book) = checked(ticket, &answer)?;
    match book.role(&identity.node_id(), fednode_net::now()) {
        Ok(certified) if certified == role => {}
        Ok(_) => return Err(RunError::Membership(fednode_core::Absence::Role)),
        Err(absence) => return Err(RunError::Membership(absence)),
    }
    let name = book.certificate(&identity.node_id());
    let name = name.map_or_else(String::new, |certificate| certificate.name.to_string());
    home.write(ticket, &spec)?;
    // What this node has heard before stays: an organiser that was restored may have forgotten a revocation.
    let path = home.state.join(MEMBERS_FILE);
    if let Some(known) = MemberBook::load_any(&path).map_err(content)? {
        for statement in known.after(0) {
            // Of two statements of one number the organiser's answer counts.
            _ = book.take(&statement);
        }
    }
    book.save(&path).map_err(content)?;
    Ok(Joined { spec, name })
}

impl Home {
    /// Refuses a folder of another federation, or one that a process uses.
    fn check(&self, ticket: &Ticket) -> Result<(), RunError> {
        let other = |path: &Path| {
            RunError::Configuration(format!(
                "`{}` is of another federation than the ticket: join in an empty folder (--dir)",
                path.display()
            ))
        };
        let path = self.dir.join(SPEC_FILE);
        if let Some(text) = read(&path)? {
            let spec = FederationSpec::from_toml(&text).map_err(|error| {
                RunError::Configuration(format!(
                    "`{}` cannot be used ({error}): move it away, and the ticket brings it",
                    path.display()
                ))
            })?;
            if spec.id() != ticket.federation {
                return Err(other(&path));
            }
        }
        let path = self.state.join("federation");
        if read(&path)?.is_some_and(|id| id.trim() != ticket.federation.to_string()) {
            return Err(other(&path));
        }
        let path = self.state.join(MEMBERS_FILE);
        let book = MemberBook::load_any(&path).map_err(content)?;
        if book.is_some_and(|book| book.organiser() != ticket.organiser) {
            return Err(other(&path));
        }
        let path = self.dir.join(NETWORK_KEY_FILE);
        if path.exists() && Some(NetworkKey::load(&path).map_err(content)?) != ticket.network_key {
            return Err(RunError::Configuration(format!(
                "`{}` is another key than the ticket's: move it away",
                path.display()
            )));
        }
        // A member that runs would go on with the key and the members that it has read.
        if !is_free(&self.state).map_err(|error| unwritable(&self.state, &error))? {
            return Err(RunError::StateContent(format!(
                "a process runs with state folder `{}`: stop it first",
                self.state.display()
            )));
        }
        Ok(())
    }

    fn write(&self, ticket: &Ticket, spec: &FederationSpec) -> Result<(), RunError> {
        let path = self.dir.join(SPEC_FILE);
        // A spec that is there is of the same federation, and its owner may have put comments into it.
        if !path.exists() {
            whole_file::write(&path, spec.to_toml().as_bytes())
                .map_err(|error| unwritable(&path, &error))?;
        }
        let path = self.dir.join(NETWORK_KEY_FILE);
        if let Some(key) = ticket.network_key.as_ref().filter(|_| !path.exists()) {
            key.save(&path).map_err(content)?;
        }
        Ok(())
    }
}

/// Checks that what came is what the ticket names.
fn checked(ticket: &Ticket, admitted: &Admitted) -> Result<(FederationSpec, MemberBook), RunError> {
    let spec = FederationSpec::from_toml(&admitted.spec)
        .map_err(|error| RunError::Configuration(format!("the organiser's spec: {error}")))?;
    if spec.id() != ticket.federation || spec.organiser != Some(ticket.organiser) {
        return Err(RunError::Configuration(
            "the organiser's process serves another federation than the ticket names: ask for a new ticket"
                .into(),
        ));
    }
    let book = MemberBook::new(ticket.organiser);
    for signed in &admitted.statements {
        book.take(signed).map_err(content)?;
    }
    Ok((spec, book))
}

fn program(role: Role) -> &'static str {
    match role {
        Role::Node => "fednode",
        Role::Aggregator => "fedboot",
    }
}

fn content(error: impl std::fmt::Display) -> RunError {
    RunError::StateContent(error.to_string())
}

fn unwritable(path: &Path, error: &io::Error) -> RunError {
    RunError::StateContent(format!("cannot use `{}`: {error}", path.display()))
}

fn read(path: &Path) -> Result<Option<String>, RunError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unwritable(path, &error)),
    }
}

fn make_folder(folder: &Path) -> io::Result<()> {
    owner::make_folders(folder)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use fednode_core::{FederationId, NodeId, Timestamp};
    use fednode_net::InvitationSecret;

    use super::*;

    fn ticket(federation: FederationId) -> Ticket {
        Ticket {
            addresses: Vec::new(),
            federation,
            organiser: NodeId::from_bytes([1; 32]),
            secret: InvitationSecret::generate(),
            role: Role::Node,
            not_after: Timestamp(0),
            network_key: None,
        }
    }

    #[tokio::test]
    async fn a_folder_of_another_federation_is_refused_before_anybody_is_asked() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home {
            dir: folder.path().to_owned(),
            state: folder.path().join("state"),
        };
        let (ours, theirs) = (FederationSpec::default(), FederationId::from_bytes([7; 32]));
        let spec = folder.path().join(SPEC_FILE);
        std::fs::write(&spec, ours.to_toml()).unwrap();
        let refusal = |result: Result<Joined, RunError>| result.unwrap_err().to_string();
        let error = refusal(join(&ticket(theirs), &home, Role::Node).await);
        assert!(error.contains("another federation"), "{error}");
        assert!(!home.state.exists(), "nothing was made");
        // The own federation goes further, and finds that the ticket names no address.
        let error = refusal(join(&ticket(ours.id()), &home, Role::Node).await);
        assert!(error.contains("names no address"), "{error}");
        std::fs::write(&spec, "cut off").unwrap();
        let error = refusal(join(&ticket(ours.id()), &home, Role::Node).await);
        assert!(error.contains("move it away, and the ticket"), "{error}");
        let error = refusal(join(&ticket(ours.id()), &home, Role::Aggregator).await);
        assert!(error.contains("`fednode join TICKET`"), "{error}");
    }
}
