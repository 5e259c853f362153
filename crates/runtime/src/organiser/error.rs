//! Why the organiser's folder cannot be used.

use std::io;
use std::path::PathBuf;

use fednode_core::ConfigError;
use fednode_core::membership::MemberName;
use fednode_net::{MembershipError, SecretFileError};

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
    /// The organiser's key is damaged.
    #[error(
        "`{}` is no valid key of an organiser: put it back from a backup. Do not remove it: without it nobody can be invited or \
         revoked and no rounds can be added, while members go on to their last round. Without a backup begin a new federation by \
         `fednode init` in another folder, which all join with new tickets", .0.display()
    )]
    Key(PathBuf),
    /// The statements cannot be used.
    #[error(transparent)]
    Members(#[from] MembershipError),
    /// The invitations are damaged.
    #[error(
        "`{}` is damaged: put it back from a backup, or move it away and invite again: tickets that nobody has used are void then",
        .0.display()
    )]
    Invitations(PathBuf),
    /// The name is taken.
    #[error(
        "`{0}` is the name of a member or of somebody invited: take another, or revoke that one first"
    )]
    NameTaken(MemberName),
    /// Nobody has that name or id.
    #[error(
        "no member and nobody invited is called `{0}`: `fednode members` lists all, and whoever is revoked needs a new ticket by \
         `fednode invite`"
    )]
    Nobody(String),
    /// The federation cannot go on so.
    #[error(transparent)]
    Extension(#[from] ConfigError),
    /// There are too many statements.
    #[error("this organiser has said as much as it may: begin a new federation")]
    Full,
}
