//! Using a ticket: what `fednode join` and `fedboot join` have in common.
//!
//! The key of the new member is made here and stays here. The ticket's secret is not kept: the certificate replaces it.

use std::path::Path;

use fednode_core::{FederationSpec, Role};
use fednode_net::{Identity, JoinError, MemberBook, Ticket};

use crate::error::RunError;
use crate::organiser::MEMBERS_FILE;

/// What a ticket brought.
#[derive(Debug)]
pub struct Joined {
    /// The federation's spec.
    pub spec: FederationSpec,
    /// What the organiser calls this node.
    pub name: String,
}

/// Asks the organiser to admit the key in a state folder, making the key if there is none, and keeps the certificate there.
///
/// # Errors
/// Tells why this node may not join. Nothing but the key is left behind then, and the ticket can be used again.
pub async fn join(ticket: &Ticket, state: &Path, role: Role) -> Result<Joined, RunError> {
    let unusable = |error: &dyn std::fmt::Display| RunError::StateContent(error.to_string());
    make_folder(state).map_err(|error| unusable(&format!("`{}`: {error}", state.display())))?;
    let identity =
        Identity::load_or_create(&state.join("key")).map_err(|error| unusable(&error))?;
    let admitted = fednode_net::join(ticket, &identity)
        .await
        .map_err(|error| match error {
            JoinError::Refused(refusal) => RunError::NotAdmitted(refusal),
            other => RunError::Network(other.to_string()),
        })?;
    let spec = FederationSpec::from_toml(&admitted.spec)
        .map_err(|error| RunError::Configuration(format!("the organiser's spec: {error}")))?;
    if spec.id() != ticket.federation || spec.organiser != Some(ticket.organiser) {
        return Err(RunError::Configuration(
            "the organiser's process sent another federation than the ticket names: ask for a new ticket".into(),
        ));
    }
    let book = MemberBook::new(ticket.organiser);
    for signed in &admitted.statements {
        book.take(signed).map_err(|error| unusable(&error))?;
    }
    match book.role(&identity.node_id(), fednode_net::now()) {
        Ok(certified) if certified == role => {}
        Ok(Role::Node) => return Err(wrong_program("fednode")),
        Ok(Role::Aggregator) => return Err(wrong_program("fedboot")),
        Err(absence) => return Err(RunError::Membership(absence)),
    }
    let name = book.certificate(&identity.node_id());
    let name = name.map_or_else(String::new, |certificate| certificate.name.to_string());
    book.save(&state.join(MEMBERS_FILE))
        .map_err(|error| unusable(&error))?;
    Ok(Joined { spec, name })
}

fn wrong_program(program: &str) -> RunError {
    RunError::Configuration(format!(
        "this ticket is for another role: use it with `{program} join TICKET` in this folder"
    ))
}

fn make_folder(folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}
