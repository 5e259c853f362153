//! The list of members, as people read it.

use fednode_core::membership::{Absence, MemberName};
use fednode_core::{NodeId, Role, Timestamp};
use fednode_net::MemberBook;
use serde::Serialize;

use super::invitations::Invitation;

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

impl Row {
    /// Shows an invitation that nobody has used.
    pub(super) fn of_open(invited: &Invitation, now: Timestamp) -> Self {
        let is_open = now <= invited.not_after;
        Self {
            name: invited.name.clone(),
            node: None,
            role: invited.role,
            standing: if is_open { "invited" } else { "expired" },
            until: invited.not_after,
        }
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
