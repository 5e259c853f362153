//! Files with secrets: created once, readable by their owner only, never overwritten.
//!
//! A new secret is written beside its final name, synced, and then linked to that name. The link fails if the name
//! exists. So no crash leaves half a key, and no second process replaces the key of the first.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use fednode_files::{owner, whole_file};

/// Size of the largest secret file. A larger file is not a key.
const MAX_SECRET_BYTES: u64 = 4096;

/// Tells why a file with a secret cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecretFileError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file cannot be created; an existing one is never overwritten.
    #[error("cannot create {path}: {source}")]
    Create {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Others may read the secret.
    #[error(
        "{path} is open to others (mode {mode:03o}): run `chmod 600 {path}`, and replace the key if they may have read it"
    )]
    Exposed {
        /// Which file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The content is not such a secret.
    #[error("{path} is not a valid {what}: put it back from a backup; without one {remedy}")]
    Corrupt {
        /// Which file.
        path: PathBuf,
        /// What it should be.
        what: &'static str,
        /// What to do where there is no backup, and what is lost then.
        remedy: &'static str,
    },
}

/// Reads a secret after checking that only its owner can read it.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, SecretFileError> {
    let fail = |source| SecretFileError::Read {
        path: path.to_owned(),
        source,
    };
    // The mode of the open file, not of the path: the path may be replaced between check and read.
    let file = File::open(path).map_err(fail)?;
    if let Some(mode) = exposed_mode(&file).map_err(fail)? {
        return Err(SecretFileError::Exposed {
            path: path.to_owned(),
            mode,
        });
    }
    let mut bytes = Vec::new();
    file.take(MAX_SECRET_BYTES)
        .read_to_end(&mut bytes)
        .map_err(fail)?;
    Ok(bytes)
}

/// Creates a file with a secret. Fails if the name is taken.
pub(crate) fn create(path: &Path, secret: &[u8]) -> Result<(), SecretFileError> {
    let fail = |source| SecretFileError::Create {
        path: path.to_owned(),
        source,
    };
    let mut draft = path.as_os_str().to_owned();
    draft.push(format!(".{}.new", std::process::id()));
    let draft = PathBuf::from(draft);
    // A hard link and not a rename: a rename would replace a key that another process has just made.
    let linked = write_draft(&draft, path, secret).and_then(|()| fs::hard_link(&draft, path));
    let removed = fs::remove_file(&draft);
    // The folder is synced too; without it the new name may be gone after a power cut.
    linked
        .and(removed)
        .and_then(|()| sync_folder(path))
        .map_err(fail)
}

/// Writes a file with a secret, over an older one if there is one, which keeps its owner. A crash leaves the old content or the
/// new.
pub(crate) fn replace(path: &Path, secret: &[u8]) -> Result<(), SecretFileError> {
    whole_file::write_private(path, secret).map_err(|source| SecretFileError::Create {
        path: path.to_owned(),
        source,
    })
}

fn write_draft(draft: &Path, place: &Path, secret: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(draft)?;
    owner::keep(&file, place);
    file.write_all(secret)?;
    file.sync_all()
}

fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(unix)]
fn exposed_mode(file: &File) -> io::Result<Option<u32>> {
    let mode = std::os::unix::fs::MetadataExt::mode(&file.metadata()?) & 0o777;
    Ok((mode & 0o077 != 0).then_some(mode))
}

#[cfg(not(unix))]
fn exposed_mode(_: &File) -> io::Result<Option<u32>> {
    Ok(None)
}
