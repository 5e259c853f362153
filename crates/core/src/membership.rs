//! Who belongs to a federation: what its organiser has signed, and what follows from it.
//!
//! The organiser has a key, which the spec names. Everything that it says about members is a [`Statement`] with a serial
//! number. Statements are never changed. A later one about the same node counts instead of an earlier one.
//!
//! ```text
//!   organiser ── Admit(certificate: node, name, role, not after) ──┐
//!             ── Revoke(node) ─────────────────────────────────────┴─► Members: who may speak, as what, until when
//!             ── Extend(rounds) ─────────────────────────────────────► the spec of a federation that goes on
//! ```
//!
//! Signatures are checked where the keys are (`fednode-net`). Here nothing is checked but what the words themselves say.

use std::collections::{BTreeMap, btree_map};
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::limits::CLOCK_SKEW;
use crate::spec::Extension;
use crate::{NodeId, Role, Timestamp};

/// Most statements of one organiser: what a node keeps and sends on.
pub const MAX_STATEMENTS: usize = 16_384;
/// Most letters of a member's name.
pub const MAX_NAME_LETTERS: usize = 32;

/// What people call a member: 1 to 32 letters, digits, `-`, `_` and `.`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MemberName(String);

/// Tells that a text is no name of a member.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no name of a member: it takes 1 to 32 letters, digits, `-`, `_` and `.`, as `ward-3`"
)]
pub struct NoMemberName(String);

impl FromStr for MemberName {
    type Err = NoMemberName;

    fn from_str(text: &str) -> Result<Self, NoMemberName> {
        let is_fine = |letter: char| letter.is_alphanumeric() || "-_.".contains(letter);
        let length = text.chars().count();
        if (1..=MAX_NAME_LETTERS).contains(&length) && text.chars().all(is_fine) {
            Ok(Self(text.to_owned()))
        } else {
            let shown = text.chars().filter(|letter| !letter.is_control());
            Err(NoMemberName(shown.take(MAX_NAME_LETTERS + 1).collect()))
        }
    }
}

impl TryFrom<String> for MemberName {
    type Error = NoMemberName;

    fn try_from(text: String) -> Result<Self, NoMemberName> {
        text.parse()
    }
}

impl From<MemberName> for String {
    fn from(name: MemberName) -> Self {
        name.0
    }
}

impl AsRef<str> for MemberName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for MemberName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// What makes a node a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Certificate {
    /// Who.
    pub node: NodeId,
    /// What people call it.
    pub name: MemberName,
    /// What it may be. Nobody is an aggregator by its own word.
    pub role: Role,
    /// After this it is no member any more.
    pub not_after: Timestamp,
}

/// What an organiser says of a node, or of the rounds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ruling {
    /// It is a member.
    Admit(Certificate),
    /// It is none any more, and never will be again with this key.
    Revoke(NodeId),
    /// The federation goes on after its last round.
    Extend(Extension),
}

/// One ruling with its place among all of the organiser's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Statement {
    /// Who says it; the signature is this key's.
    pub organiser: NodeId,
    /// Counts from 1, without gaps.
    pub serial: u64,
    /// When it was said, by the organiser's clock.
    pub issued_at: Timestamp,
    /// What it says.
    pub ruling: Ruling,
}

/// A statement as it travels: the encoded bytes and the organiser's signature over them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignedStatement {
    /// The encoded [`Statement`].
    #[serde(with = "serde_bytes")]
    pub payload: Vec<u8>,
    /// The organiser's signature.
    #[serde(with = "serde_bytes")]
    pub signature: Vec<u8>,
}

/// Tells why a node is not accepted as a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "kebab-case")]
pub enum Absence {
    /// The organiser has said nothing of it.
    #[error("has no certificate of the organiser")]
    Unknown,
    /// The organiser has revoked its membership.
    #[error("was revoked by the organiser")]
    Revoked,
    /// Its certificate is too old.
    #[error("has a certificate that has expired")]
    Expired,
    /// It acts as something that its certificate does not name.
    #[error("has a certificate for another role")]
    Role,
}

/// Tells why a statement is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StatementError {
    /// Another organiser's.
    #[error("it is the word of another organiser")]
    Organiser,
    /// Two statements have one serial number.
    #[error(
        "the organiser has signed two statements with the number {0}: its folder was copied or restored, and only one copy may be used"
    )]
    Twice(u64),
    /// The number is 0, or there are too many.
    #[error("statements are numbered from 1 to {MAX_STATEMENTS}, and this is {0}")]
    Number(u64),
}

/// All that is known of who belongs to the federation.
#[derive(Debug, Clone)]
pub struct Members {
    organiser: NodeId,
    statements: BTreeMap<u64, (Statement, SignedStatement)>,
    standings: BTreeMap<NodeId, Standing>,
}

/// How a node stands.
#[derive(Debug, Clone)]
struct Standing {
    admitted: Option<(u64, Certificate)>,
    /// When, and by which statement.
    revoked: Option<(Timestamp, u64)>,
}

impl Members {
    /// Knows nobody yet.
    pub fn new(organiser: NodeId) -> Self {
        Self {
            organiser,
            statements: BTreeMap::new(),
            standings: BTreeMap::new(),
        }
    }

    /// Returns whose word counts.
    pub fn organiser(&self) -> NodeId {
        self.organiser
    }

    /// Takes a statement whose signature is good. Tells whether it is news.
    ///
    /// # Errors
    /// Refuses what this organiser cannot have said.
    pub fn take(
        &mut self,
        statement: Statement,
        signed: SignedStatement,
    ) -> Result<bool, StatementError> {
        let serial = statement.serial;
        if statement.organiser != self.organiser {
            return Err(StatementError::Organiser);
        }
        if !(1..=MAX_STATEMENTS as u64).contains(&serial) {
            return Err(StatementError::Number(serial));
        }
        match self.statements.entry(serial) {
            btree_map::Entry::Occupied(known) if known.get().0 == statement => return Ok(false),
            btree_map::Entry::Occupied(_) => return Err(StatementError::Twice(serial)),
            btree_map::Entry::Vacant(free) => _ = free.insert((statement.clone(), signed)),
        }
        match statement.ruling {
            Ruling::Admit(certificate) => {
                let standing = self.standing(certificate.node);
                // Statements come in any order, and the latest counts.
                if standing
                    .admitted
                    .as_ref()
                    .is_none_or(|(old, _)| *old < serial)
                {
                    standing.admitted = Some((serial, certificate));
                }
            }
            Ruling::Revoke(node) => {
                let said = (statement.issued_at, serial);
                let revoked = &mut self.standing(node).revoked;
                *revoked = Some(revoked.map_or(said, |before| before.min(said)));
            }
            // Read from the statements when it is asked for: there are few.
            Ruling::Extend(_) => {}
        }
        Ok(true)
    }

    fn standing(&mut self, node: NodeId) -> &mut Standing {
        self.standings.entry(node).or_insert(Standing {
            admitted: None,
            revoked: None,
        })
    }

    /// Returns what a node may be now.
    ///
    /// # Errors
    /// Tells why it is no member.
    pub fn role(&self, node: &NodeId, now: Timestamp) -> Result<Role, Absence> {
        let standing = self.standings.get(node).ok_or(Absence::Unknown)?;
        if standing.revoked.is_some() {
            return Err(Absence::Revoked);
        }
        let (_, certificate) = standing.admitted.as_ref().ok_or(Absence::Unknown)?;
        if now > certificate.not_after {
            return Err(Absence::Expired);
        }
        Ok(certificate.role)
    }

    /// Tells whether what a node said at `issued_at` counts: it was a member then.
    ///
    /// What a node said before it was revoked still counts, because rounds that were closed with it stay closed.
    pub fn may_have_said(&self, node: &NodeId, issued_at: Timestamp) -> bool {
        let Some(standing) = self.standings.get(node) else {
            return false;
        };
        let was_admitted = standing
            .admitted
            .as_ref()
            .is_some_and(|(_, certificate)| issued_at <= certificate.not_after);
        // Clocks differ, and an honest word of just before must not be lost.
        let before = |(revoked_at, _): (Timestamp, u64)| issued_at <= revoked_at + CLOCK_SKEW;
        was_admitted && standing.revoked.is_none_or(before)
    }

    /// Returns a node's newest certificate, also if it does not count any more.
    pub fn certificate(&self, node: &NodeId) -> Option<&Certificate> {
        let (_, certificate) = self.standings.get(node)?.admitted.as_ref()?;
        Some(certificate)
    }

    /// Returns the signed statement that holds a node's newest certificate.
    pub fn proof_of(&self, node: &NodeId) -> Option<&SignedStatement> {
        let (serial, _) = self.standings.get(node)?.admitted.as_ref()?;
        self.statements.get(serial).map(|(_, signed)| signed)
    }

    /// Returns the signed statement that revokes a node.
    pub fn revocation_of(&self, node: &NodeId) -> Option<&SignedStatement> {
        let (_, serial) = self.standings.get(node)?.revoked?;
        self.statements.get(&serial).map(|(_, signed)| signed)
    }

    /// Visits all nodes that the organiser ever named.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeId> {
        self.standings.keys()
    }

    /// Visits the nodes whose membership was revoked.
    pub fn revoked(&self) -> impl Iterator<Item = NodeId> + '_ {
        let revoked = |(_, standing): &(&NodeId, &Standing)| standing.revoked.is_some();
        self.standings.iter().filter(revoked).map(|(node, _)| *node)
    }

    /// Visits the rounds that the organiser has added, in the order in which it said so.
    pub fn extensions(&self) -> impl Iterator<Item = &Extension> {
        // What comes after a gap may be contradicted by what is missing.
        let statements = self.statements.range(..=self.reached());
        let statements = statements.map(|(_, said)| said);
        statements.filter_map(|(statement, _)| match &statement.ruling {
            Ruling::Extend(extension) => Some(extension),
            Ruling::Admit(_) | Ruling::Revoke(_) => None,
        })
    }

    /// Returns up to which number no statement is missing.
    pub fn reached(&self) -> u64 {
        let numbers = self.statements.keys().zip(1..);
        let last = numbers.take_while(|(serial, expected)| **serial == *expected);
        last.last().map_or(0, |(serial, _)| *serial)
    }

    /// Returns the highest number of a statement.
    pub fn newest(&self) -> u64 {
        self.statements
            .last_key_value()
            .map_or(0, |(serial, _)| *serial)
    }

    /// Visits the statements after a number, in order.
    pub fn after(&self, serial: u64) -> impl Iterator<Item = &SignedStatement> {
        let later = self.statements.range(serial.saturating_add(1)..);
        later.map(|(_, (_, signed))| signed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORGANISER: NodeId = NodeId::from_bytes([9; 32]);
    const ANN: NodeId = NodeId::from_bytes([1; 32]);
    const BOB: NodeId = NodeId::from_bytes([2; 32]);
    const HOUR: std::time::Duration = std::time::Duration::from_secs(3600);
    const NOW: Timestamp = Timestamp(1_700_000_000_000);

    fn say(
        members: &mut Members,
        serial: u64,
        at: Timestamp,
        ruling: Ruling,
    ) -> Result<bool, StatementError> {
        let statement = Statement {
            organiser: ORGANISER,
            serial,
            issued_at: at,
            ruling,
        };
        let signed = SignedStatement {
            payload: serial.to_le_bytes().to_vec(),
            signature: Vec::new(),
        };
        members.take(statement, signed)
    }

    fn admit(node: NodeId, role: Role, hours: u32) -> Ruling {
        Ruling::Admit(Certificate {
            node,
            name: "ann".parse().unwrap(),
            role,
            not_after: NOW + HOUR * hours,
        })
    }

    #[test]
    fn a_certificate_counts_until_it_expires_or_is_revoked() {
        let mut members = Members::new(ORGANISER);
        assert_eq!(members.role(&ANN, NOW), Err(Absence::Unknown));
        say(&mut members, 1, NOW, admit(ANN, Role::Node, 10)).unwrap();
        assert_eq!(members.role(&ANN, NOW), Ok(Role::Node));
        assert_eq!(members.role(&ANN, NOW + HOUR * 11), Err(Absence::Expired));
        assert!(members.may_have_said(&ANN, NOW) && !members.may_have_said(&BOB, NOW));
        say(&mut members, 2, NOW + HOUR, Ruling::Revoke(ANN)).unwrap();
        assert_eq!(members.role(&ANN, NOW + HOUR), Err(Absence::Revoked));
        assert!(members.may_have_said(&ANN, NOW), "it was a member then");
        assert!(!members.may_have_said(&ANN, NOW + HOUR * 2));
        say(&mut members, 3, NOW + HOUR, admit(ANN, Role::Node, 99)).unwrap();
        assert_eq!(
            members.role(&ANN, NOW + HOUR),
            Err(Absence::Revoked),
            "a revoked key stays so"
        );
    }

    #[test]
    fn the_order_in_which_statements_come_does_not_matter() {
        let said = [
            (1, admit(ANN, Role::Node, 1)),
            (2, admit(ANN, Role::Aggregator, 5)),
            (3, admit(BOB, Role::Node, 5)),
            (4, Ruling::Revoke(BOB)),
        ];
        for turn in 0..said.len() {
            let mut members = Members::new(ORGANISER);
            let mut order = said.clone();
            order.rotate_left(turn);
            for (serial, ruling) in order {
                assert_eq!(say(&mut members, serial, NOW, ruling), Ok(true));
            }
            assert_eq!(members.role(&ANN, NOW + HOUR * 2), Ok(Role::Aggregator));
            assert_eq!(members.role(&BOB, NOW), Err(Absence::Revoked));
            assert_eq!((members.reached(), members.after(2).count()), (4, 2));
        }
    }

    #[test]
    fn added_rounds_come_in_the_order_of_their_numbers() {
        let more = |after, rounds| {
            Ruling::Extend(Extension {
                federation: crate::FederationId::from_bytes([5; 32]),
                after: crate::Round(after),
                rounds,
                settings: BTreeMap::new(),
            })
        };
        let mut members = Members::new(ORGANISER);
        say(&mut members, 3, NOW, more(15, 2)).unwrap();
        say(&mut members, 1, NOW, admit(ANN, Role::Node, 1)).unwrap();
        assert_eq!(members.extensions().count(), 0, "one is missing");
        say(&mut members, 2, NOW, more(10, 5)).unwrap();
        let rounds: Vec<u32> = members.extensions().map(|more| more.rounds).collect();
        assert_eq!(rounds, [5, 2]);
    }

    #[test]
    fn gaps_are_known_and_two_statements_of_one_number_are_refused() {
        let mut members = Members::new(ORGANISER);
        say(&mut members, 1, NOW, admit(ANN, Role::Node, 1)).unwrap();
        say(&mut members, 3, NOW, Ruling::Revoke(ANN)).unwrap();
        assert_eq!((members.reached(), members.newest()), (1, 3));
        assert_eq!(
            say(&mut members, 1, NOW, admit(ANN, Role::Node, 1)),
            Ok(false)
        );
        assert_eq!(
            say(&mut members, 1, NOW, admit(BOB, Role::Node, 1)),
            Err(StatementError::Twice(1))
        );
        assert_eq!(
            say(&mut members, 0, NOW, Ruling::Revoke(BOB)),
            Err(StatementError::Number(0))
        );
        let mut others = Members::new(ANN);
        let foreign = say(&mut others, 1, NOW, Ruling::Revoke(BOB));
        assert_eq!(foreign, Err(StatementError::Organiser));
    }

    #[test]
    fn names_are_short_and_plain() {
        for fine in ["a", "ward-3", "Malmö_2.b", &"x".repeat(32)] {
            assert!(fine.parse::<MemberName>().is_ok(), "{fine}");
        }
        for bad in ["", "a b", "a\u{1b}[31m", "a/b", &"x".repeat(33)] {
            let error = bad.parse::<MemberName>().unwrap_err().to_string();
            assert!(!error.contains('\u{1b}'), "{error}");
        }
    }
}
