//! Reading a backup, and putting it back.
//!
//! ```text
//!   archive ─► PLACE.restoring/… ─ every file is as the manifest says ─► PLACE
//!                     └─ anything else ─► removed
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use super::write::{Hashing, sync_parent};
use super::{ABOUT, About, BackupError, MANIFEST, MAX_MANIFEST_BYTES, Manifest, Sum, VERSION, at};
use crate::disk::create_folder;

/// The name, or the ending of the name, of what is not in its place yet.
const STAGED: &str = ".restoring";

/// Where a part of an archive goes: a file, or a folder with all that is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The first part of the names in the archive.
    pub part: String,
    /// The path that it gets.
    pub path: PathBuf,
}

impl Place {
    /// Returns where it is put until all of the archive was verified: within a folder that is there already, which may be a
    /// disk of its own, else beside the place.
    fn staged(&self) -> PathBuf {
        if self.path.is_dir() {
            return self.path.join(STAGED);
        }
        let mut name = self.path.as_os_str().to_owned();
        name.push(STAGED);
        name.into()
    }

    /// Lists the moves that put it from there to its place.
    fn moves(&self) -> Result<Vec<(PathBuf, PathBuf)>, BackupError> {
        let staged = self.staged();
        if !staged.exists() {
            return Ok(Vec::new());
        }
        if !self.path.is_dir() {
            return Ok(vec![(staged, self.path.clone())]);
        }
        if !staged.is_dir() {
            return Err(BackupError::Exists(self.path.clone()));
        }
        let entries = fs::read_dir(&staged).map_err(at(&staged))?;
        let entry = |entry: io::Result<fs::DirEntry>| {
            let from = entry.map_err(at(&staged))?;
            Ok((from.path(), self.path.join(from.file_name())))
        };
        entries.map(entry).collect()
    }
}

/// Says what an archive is a backup of.
///
/// # Errors
/// Fails if it cannot be read, is something else, or is of a newer version.
pub fn about(from: &Path) -> Result<About, BackupError> {
    let mut archive = tar::Archive::new(File::open(from).map_err(at(from))?);
    let foreign = |what: String| BackupError::Foreign {
        path: from.to_owned(),
        what,
    };
    let mut entries = archive.entries().map_err(at(from))?;
    let first = entries
        .next()
        .ok_or_else(|| foreign("it is empty".into()))?;
    // What the library says of a file that is none quotes it, and it may hold anything.
    let mut first = first.map_err(|_| foreign("it is no tar archive".into()))?;
    let name = name_of(&first).map_err(foreign)?;
    if name != ABOUT {
        return Err(foreign(format!("it does not begin with {ABOUT}")));
    }
    let mut text = Vec::new();
    let mut limited = (&mut first).take(MAX_MANIFEST_BYTES);
    limited.read_to_end(&mut text).map_err(at(from))?;
    // The version first: what a newer one says may not be understood.
    let version: serde_json::Value =
        serde_json::from_slice(&text).map_err(|error| foreign(error.to_string()))?;
    let version = version["version"].as_u64().unwrap_or(0);
    if version > u64::from(VERSION) {
        return Err(BackupError::Version(version.try_into().unwrap_or(u32::MAX)));
    }
    serde_json::from_slice(&text).map_err(|error| foreign(error.to_string()))
}

/// Puts an archive back: each of its parts at its place. A place that is taken is refused.
///
/// # Errors
/// Fails if a place is taken, if the archive has a part without a place, is cut off or changed, or if the disk fails. Then
/// nothing was put anywhere.
pub fn restore(from: &Path, places: &[Place]) -> Result<Manifest, BackupError> {
    if let Some(taken) = places.iter().find(|place| is_taken(&place.path)) {
        return Err(BackupError::Exists(taken.path.clone()));
    }
    let restored = unpacked(from, places).and_then(|manifest| {
        put_in_place(places)?;
        Ok(manifest)
    });
    places.iter().for_each(clear);
    restored
}

/// Moves all parts to their places, or none.
fn put_in_place(places: &[Place]) -> Result<(), BackupError> {
    let moves: Result<Vec<_>, BackupError> = places.iter().map(Place::moves).collect();
    let moves: Vec<(PathBuf, PathBuf)> = moves?.into_iter().flatten().collect();
    for (n, (from, to)) in moves.iter().enumerate() {
        if let Err(error) = fs::rename(from, to).and_then(|()| sync_parent(to)) {
            for (from, to) in moves[..=n].iter().rev() {
                // The one that failed is not there.
                _ = fs::rename(to, from);
            }
            return Err(at(to)(error));
        }
    }
    Ok(())
}

/// An empty folder is no obstacle: somebody made it for this, and it may be a disk of its own.
fn is_taken(path: &Path) -> bool {
    let is_of_no_account = |entry: fs::DirEntry| {
        ["lost+found", STAGED]
            .map(Into::into)
            .contains(&entry.file_name())
    };
    let is_empty = || {
        let mut entries = fs::read_dir(path).into_iter().flatten().flatten();
        path.is_dir() && entries.all(is_of_no_account)
    };
    path.symlink_metadata().is_ok() && !is_empty()
}

fn clear(place: &Place) {
    let staged = place.staged();
    // One of both fails, as does either if nothing was unpacked.
    _ = fs::remove_dir_all(&staged);
    _ = fs::remove_file(&staged);
}

fn unpacked(from: &Path, places: &[Place]) -> Result<Manifest, BackupError> {
    places.iter().for_each(clear);
    let damaged = |what: String| BackupError::Damaged {
        path: from.to_owned(),
        what,
    };
    let mut archive = tar::Archive::new(File::open(from).map_err(at(from))?);
    let mut found = Manifest::default();
    for entry in archive.entries().map_err(at(from))? {
        let mut entry = entry.map_err(|error| damaged(error.to_string()))?;
        let name = name_of(&entry).map_err(damaged)?;
        if name == MANIFEST {
            let mut text = Vec::new();
            let mut limited = (&mut entry).take(MAX_MANIFEST_BYTES);
            limited
                .read_to_end(&mut text)
                .map_err(|error| damaged(error.to_string()))?;
            let manifest: Manifest =
                serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
            return match difference(&manifest, &found) {
                None => Ok(manifest),
                Some(name) => Err(damaged(format!("`{name}` is not what it was"))),
            };
        }
        let sum = if name == ABOUT {
            let sum = copied(&mut entry, &mut io::sink());
            sum.map_err(|error| damaged(error.to_string()))?
        } else {
            let path = place_of(&name, places)
                .ok_or_else(|| damaged(format!("it has `{name}`, for which there is no place")))?;
            let mut file = created(&path)?;
            let sum = copied(&mut entry, &mut file).map_err(at(&path))?;
            file.sync_all().map_err(at(&path))?;
            sum
        };
        if found.files.insert(name.clone(), sum).is_some() {
            return Err(damaged(format!("it has `{name}` twice")));
        }
    }
    Err(damaged("its end is missing".into()))
}

/// Returns the first file in which two manifests differ.
fn difference(said: &Manifest, found: &Manifest) -> Option<String> {
    let names = said.files.keys().chain(found.files.keys());
    let mut names = names.filter(|name| said.files.get(*name) != found.files.get(*name));
    names.next().cloned()
}

/// Returns the name of an entry, if it is one that a backup has: a plain file, within the archive.
fn name_of(entry: &tar::Entry<'_, File>) -> Result<String, String> {
    let path = entry.path().map_err(|error| error.to_string())?;
    let name = path.to_str().ok_or("a name in it is no text")?;
    let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_));
    // `a//b` has the parts of `a/b`, and would be another path where it is joined to a folder.
    let rebuilt: PathBuf = path.components().collect();
    let is_within = path.components().all(is_plain) && rebuilt.as_os_str() == path.as_os_str();
    if !is_within || name.is_empty() || !entry.header().entry_type().is_file() {
        return Err(format!("`{name}` in it is no plain file"));
    }
    Ok(name.to_owned())
}

fn place_of(name: &str, places: &[Place]) -> Option<PathBuf> {
    let (part, rest) = name.split_once('/').unwrap_or((name, ""));
    let staged = places.iter().find(|place| place.part == part)?.staged();
    Some(if rest.is_empty() {
        staged
    } else {
        staged.join(rest)
    })
}

fn created(path: &Path) -> Result<File, BackupError> {
    if let Some(folder) = path.parent().filter(|it| !it.as_os_str().is_empty()) {
        create_folder(folder).map_err(at(folder))?;
    }
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    file.map_err(at(path))
}

fn copied(from: &mut dyn Read, to: &mut dyn io::Write) -> io::Result<Sum> {
    let mut hashing = Hashing {
        content: from,
        hasher: blake3::Hasher::new(),
        bytes: 0,
    };
    io::copy(&mut hashing, to)?;
    Ok(Sum {
        bytes: hashing.bytes,
        blake3: hashing.hasher.finalize().to_string(),
    })
}
