//! Writing a backup.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::{ABOUT, About, BackupError, MANIFEST, Manifest, Sum, at};
use crate::disk::{is_staged, list_folder};
use crate::ledger::{Ledger, LedgerError};

/// Files of a state folder that a start makes again. A lock or a token of one process means nothing to the next.
const MADE_AGAIN: [&str; 3] = ["lock", "partial", "checkpoints/reserve"];
/// The ledger, which is copied by SQLite, and its logs, which that copy takes in.
const LEDGER: &str = "ledger.sqlite";
/// The part of a state folder that is read first; it names blobs.
const FIRST: &str = "checkpoints";

/// A file for a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// Its name in the archive, with `/` between its parts.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
}

/// Lists what a backup needs of a state folder, under the name `state`. Paths in `without` are left out, too.
///
/// # Errors
/// Fails if a folder cannot be read.
pub fn items_of_state(state: &Path, without: &[&str]) -> io::Result<Vec<Item>> {
    let mut items = Vec::new();
    walk(state, "", without, &mut items)?;
    // Stable, so the rest stays in the order of names.
    items.sort_by_key(|item| !item.name.starts_with(FIRST));
    for item in &mut items {
        item.name = format!("state/{}", item.name);
    }
    Ok(items)
}

fn walk(folder: &Path, under: &str, without: &[&str], items: &mut Vec<Item>) -> io::Result<()> {
    let mut paths = list_folder(folder)?;
    paths.sort();
    for path in paths {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            continue;
        };
        let name = if under.is_empty() {
            name.to_owned()
        } else {
            format!("{under}/{name}")
        };
        let is_log = name.starts_with(LEDGER) && name != LEDGER;
        let is_left_out = MADE_AGAIN.iter().chain(without).any(|out| *out == name);
        if is_left_out || is_log || is_staged(&path) || is_draft(&path) {
            continue;
        }
        if path.is_dir() {
            walk(&path, &name, without, items)?;
        } else {
            items.push(Item { name, path });
        }
    }
    Ok(())
}

/// Tells whether a file is being written: it gets its real name when it is whole.
fn is_draft(path: &Path) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str());
    matches!(ending, Some("partial" | "new" | "corrupt"))
}

/// Writes an archive. The file must not exist; on failure nothing is left of it. A ledger that is damaged is left out: it is
/// the one part that no round depends on.
///
/// # Errors
/// Fails if the name is taken or the disk fails.
pub fn write(to: &Path, about: &About, items: &[Item]) -> Result<Manifest, BackupError> {
    // By its own name from the start, as some disks have no links. Until its manifest is written, nobody takes it for whole.
    let file = match private(to) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            return Err(BackupError::Exists(to.to_owned()));
        }
        file => file.map_err(at(to))?,
    };
    let mut copy = to.as_os_str().to_owned();
    copy.push(format!(".{}.ledger", std::process::id()));
    let copy = PathBuf::from(copy);
    let written = fill(file, to, &copy, about, items).and_then(|manifest| {
        sync_parent(to).map_err(at(to))?;
        Ok(manifest)
    });
    _ = fs::remove_file(&copy);
    if written.is_err() {
        _ = fs::remove_file(to);
    }
    written
}

/// Makes a file that only its owner may read. It must not exist.
fn private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600).open(path)
}

/// Waits until the name of a file is on the disk.
pub(super) fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

fn fill(
    file: File,
    to: &Path,
    copy: &Path,
    about: &About,
    items: &[Item],
) -> Result<Manifest, BackupError> {
    let mut archive = Archive {
        tar: tar::Builder::new(file),
        manifest: Manifest::default(),
    };
    let text = serde_json::to_vec_pretty(about).expect("plain data");
    archive
        .add(ABOUT, text.len() as u64, &mut &text[..])
        .map_err(at(to))?;
    for item in items {
        let is_ledger = item.path.file_name().is_some_and(|name| name == LEDGER);
        let from = if is_ledger { copy } else { &item.path };
        if is_ledger {
            match copied(&item.path, copy) {
                Err(error) if error.is_of_content() => {
                    tracing::warn!(%error, "the ledger cannot be read: it is left out");
                    continue;
                }
                copied => copied.map_err(io::Error::other).map_err(at(&item.path))?,
            }
        }
        let mut file = match File::open(from) {
            // A running node removes what it does not need any more.
            Err(error) if error.kind() == io::ErrorKind::NotFound && is_fleeting(&item.name) => {
                continue;
            }
            file => file.map_err(at(from))?,
        };
        let bytes = file.metadata().map_err(at(from))?.len();
        // A file that grows is taken as it was a moment ago.
        let mut file = (&mut file).take(bytes);
        archive
            .add(&item.name, bytes, &mut file)
            .map_err(at(&item.path))?;
    }
    let manifest = archive.manifest.clone();
    let text = serde_json::to_vec_pretty(&manifest).expect("plain data");
    archive
        .add(MANIFEST, text.len() as u64, &mut &text[..])
        .map_err(at(to))?;
    let file = archive.tar.into_inner().map_err(at(to))?;
    file.sync_all().map_err(at(to))?;
    Ok(manifest)
}

/// Tells whether a running node may remove a file of its own accord.
fn is_fleeting(name: &str) -> bool {
    let mut parts = name.split('/').skip(1);
    matches!(parts.next(), Some("blobs" | "checkpoints"))
}

/// Copies the ledger as it is at one moment, with what its logs hold.
fn copied(ledger: &Path, copy: &Path) -> Result<(), LedgerError> {
    let state = ledger.parent().unwrap_or(Path::new("."));
    let ledger = Ledger::open_read_only(state)?;
    // SQLite takes an empty file as it is, with its mode, and makes others for everybody to read.
    drop(private(copy)?);
    ledger.copy_to(copy)
}

/// An archive that grows, and the proof of what is in it.
struct Archive {
    tar: tar::Builder<File>,
    manifest: Manifest,
}

impl Archive {
    fn add(&mut self, name: &str, bytes: u64, content: &mut dyn Read) -> io::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes);
        header.set_mode(0o600);
        let mut hashing = Hashing {
            content,
            hasher: blake3::Hasher::new(),
            bytes: 0,
        };
        self.tar.append_data(&mut header, name, &mut hashing)?;
        if hashing.bytes != bytes {
            return Err(io::Error::other("it became shorter while it was read"));
        }
        let blake3 = hashing.hasher.finalize().to_string();
        let sum = Sum { bytes, blake3 };
        self.manifest.files.insert(name.to_owned(), sum);
        Ok(())
    }
}

/// Reads, and hashes what is read.
pub(super) struct Hashing<'a> {
    pub(super) content: &'a mut dyn Read,
    pub(super) hasher: blake3::Hasher,
    pub(super) bytes: u64,
}

impl Read for Hashing<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let n = self.content.read(into)?;
        _ = self.hasher.write(&into[..n])?;
        self.bytes += n as u64;
        Ok(n)
    }
}
