//! Who was invited, with the secret of each ticket: one file, written whole after every change.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use fednode_core::membership::MemberName;
use fednode_core::{NodeId, Role, Timestamp};
use fednode_files::whole_file;
use fednode_net::{InvitationSecret, JoinAsk, JoinRefusal};
use serde::{Deserialize, Serialize};

use super::{MEMBERSHIP, OrganiserError};

/// Somebody who was invited.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Invitation {
    secret: String,
    /// What people will call it.
    pub(super) name: MemberName,
    /// What it may be.
    pub(super) role: Role,
    /// Until when the ticket can be used.
    pub(super) not_after: Timestamp,
    /// Until when the membership lasts.
    pub(super) member_until: Timestamp,
    /// Who has used it.
    pub(super) used_by: Option<NodeId>,
    /// Whose membership ends when it is used: the same member with its key before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) replaces: Option<NodeId>,
}

/// Whom a new invitation is for.
#[derive(Debug)]
pub(super) struct Guest {
    pub(super) name: MemberName,
    pub(super) role: Role,
    pub(super) replaces: Option<NodeId>,
}

/// All invitations of an organiser.
#[derive(Debug)]
pub(super) struct Invitations {
    path: PathBuf,
    all: Vec<Invitation>,
}

impl Invitations {
    pub(super) fn load(path: PathBuf) -> Result<Self, OrganiserError> {
        let all = match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|_| OrganiserError::Invitations(path.clone()))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(source) => return Err(OrganiserError::Io { path, source }),
        };
        Ok(Self { path, all })
    }

    /// Visits those that nobody has used, whether or not they have expired.
    pub(super) fn unused(&self) -> impl Iterator<Item = &Invitation> {
        self.all.iter().filter(|invited| invited.used_by.is_none())
    }

    /// Tells whether somebody is invited under a name.
    pub(super) fn promise(&self, name: &MemberName, now: Timestamp) -> bool {
        let mut unused = self.unused();
        unused.any(|invited| invited.name == *name && now <= invited.not_after)
    }

    /// Invites somebody. A ticket of that name that was never used gives the name back.
    pub(super) fn add(
        &mut self,
        guest: Guest,
        life: Duration,
        now: Timestamp,
    ) -> Result<InvitationSecret, OrganiserError> {
        let secret = InvitationSecret::generate();
        self.forget_unused(|old| old.name == guest.name);
        self.all.push(Invitation {
            secret: secret.to_string(),
            name: guest.name,
            role: guest.role,
            not_after: now + life,
            member_until: now + MEMBERSHIP,
            used_by: None,
            replaces: guest.replaces,
        });
        self.save()?;
        Ok(secret)
    }

    /// Withdraws what was sent to a name and not used. Returns whether there was any.
    pub(super) fn withdraw(&mut self, name: &str) -> Result<bool, OrganiserError> {
        let before = self.all.len();
        self.forget_unused(|old| old.name.as_ref() == name);
        let is_found = self.all.len() < before;
        if is_found {
            self.save()?;
        }
        Ok(is_found)
    }

    /// Withdraws the tickets with which a member could have changed its key: it is no member any more.
    pub(super) fn withdraw_for(&mut self, member: NodeId) -> Result<(), OrganiserError> {
        self.forget_unused(|old| old.replaces == Some(member));
        self.save()
    }

    /// Finds the invitation whose secret a node shows, and its place.
    pub(super) fn shown(
        &self,
        ask: &JoinAsk,
        joiner: NodeId,
        responder: NodeId,
    ) -> Option<(usize, Invitation)> {
        let is_it = |invitation: &Invitation| {
            let secret: Option<InvitationSecret> = invitation.secret.parse().ok();
            secret.is_some_and(|secret| {
                let expected = secret.proof(joiner, responder);
                secret.name() == ask.invitation && is_same(&expected, &ask.proof)
            })
        };
        let place = self.all.iter().position(is_it)?;
        Some((place, self.all[place].clone()))
    }

    /// Notes who has used an invitation.
    pub(super) fn note_use(&mut self, place: usize, by: NodeId) -> Result<(), OrganiserError> {
        self.all[place].used_by = Some(by);
        self.save()
    }

    fn forget_unused(&mut self, is_meant: impl Fn(&Invitation) -> bool) {
        // Used ones stay, because who has used one may ask again.
        self.all
            .retain(|old| old.used_by.is_some() || !is_meant(old));
    }

    fn save(&self) -> Result<(), OrganiserError> {
        let text = serde_json::to_vec_pretty(&self.all)
            .map_err(|_| OrganiserError::Invitations(self.path.clone()))?;
        whole_file::write_private(&self.path, &text).map_err(|source| OrganiserError::Io {
            path: self.path.clone(),
            source,
        })
    }
}

impl Invitation {
    /// Refuses a node that cannot use it. Who has used it may ask again.
    pub(super) fn check(&self, joiner: NodeId, now: Timestamp) -> Result<(), JoinRefusal> {
        match self.used_by {
            // It is there to end the membership of that key.
            _ if self.replaces == Some(joiner) => Err(JoinRefusal::Revoked),
            Some(node) if node != joiner => Err(JoinRefusal::Used),
            // Only for those who have not used it: an answer that was lost may be asked for later.
            None if now > self.not_after => Err(JoinRefusal::Expired),
            _ => Ok(()),
        }
    }
}

/// Compares in a time that tells nothing.
fn is_same(expected: &[u8; 32], given: &[u8; 32]) -> bool {
    let differences = expected.iter().zip(given).map(|(a, b)| a ^ b);
    differences.fold(0, |all, difference| all | difference) == 0
}
