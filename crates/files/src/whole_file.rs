//! Files that are there as a whole or not at all: what a full disk cut off must not be taken for the real thing.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::owner;

/// The rights of files that others may read, before the process's mask.
const OPEN: u32 = 0o666;
/// The rights of secrets.
const PRIVATE: u32 = 0o600;

/// Writes a file beside its place and puts it there when all of it is written. A file that was there keeps its owner.
///
/// # Errors
/// As the disk does; nothing is left behind then, and what was there before stays.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace(path, bytes, OPEN)
}

/// As [`write()`], for secrets: only its owner can read the file, from its first byte on. Its name is on the disk, too, when this
/// returns.
///
/// # Errors
/// As [`write()`].
pub fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace(path, bytes, PRIVATE)?;
    let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let partial = partial_of(path);
    // What a process left that died while it wrote must not be in the way, nor lend its mode to the new file.
    _ = fs::remove_file(&partial);
    let written =
        write_through(&partial, path, bytes, mode).and_then(|()| fs::rename(&partial, path));
    if written.is_err() {
        let _ = fs::remove_file(&partial);
    }
    written
}

/// Writes a draft, and returns when it is on the disk: a power cut after the renaming must not leave an empty one.
///
/// The draft must be new. Root must not write into a file elsewhere, to which somebody has laid a link, and give it away.
fn write_through(draft: &Path, place: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(mode);
    let mut file = options.open(draft)?;
    owner::keep(&file, place);
    file.write_all(bytes)?;
    file.sync_all()
}

/// Where a file is written before it gets its name.
fn partial_of(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".partial");
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_write_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        write(&path, b"first").unwrap();
        write(&path, b"second").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"second");
        fs::create_dir(folder.path().join("folder")).unwrap();
        assert!(write(&folder.path().join("folder"), b"x").is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn secrets_are_for_their_owner_alone_whatever_was_there_before() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        for name in ["token", "token.partial"] {
            write(&folder.path().join(name), b"an old one").unwrap();
        }
        write_private(&path, b"secret").unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read(&path).unwrap(), b"secret");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
