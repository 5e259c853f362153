//! Features that a backbone computed before: one folder for each key, one file for each process that computed any.
//!
//! ```text
//! ~/.cache/fednode/features/KEY/PROCESS-TIME.rows     (or $XDG_CACHE_HOME/fednode/features/…)
//!
//! row   name of the image (32 bytes) │ features (4 bytes each) │ check (8 bytes of BLAKE3 of both)
//! ```
//!
//! Rows are only added. A file that ends in the middle of a row, or a row whose check fails, costs no more than that
//! row. Processes need not know of each other: each writes a file of its own. The folder is for its owner alone,
//! because features tell much about images. Nothing in it is needed: whoever deletes it waits a little longer once.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use fednode_core::BlobId;

/// The name of an image.
type Name = [u8; 32];

/// Bytes of a row's check.
const CHECK: usize = 8;
/// Most bytes of one backbone's features.
const MOST_BYTES: u64 = 8 << 30;
/// How the files end.
const ENDING: &str = "rows";

/// Where the features of one backbone are kept, if anywhere.
#[derive(Debug)]
pub(super) struct Store {
    folder: Option<PathBuf>,
}

/// The rows that somebody wants, and those that are there.
#[derive(Debug)]
pub(super) struct Wanted {
    names: Vec<Name>,
    rows: Vec<Option<Vec<f32>>>,
}

/// Adds rows to a file of its own; does nothing once that failed.
#[derive(Debug)]
pub(super) struct Writer {
    path: Option<PathBuf>,
    file: Option<BufWriter<File>>,
}

impl Store {
    /// Finds the folder of a backbone. A folder that cannot be had is none.
    pub(super) fn open(key: &BlobId, width: usize) -> Self {
        let named = |variable: &str| std::env::var_os(variable).filter(|value| !value.is_empty());
        let cache = named("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .or_else(|| Some(PathBuf::from(named("HOME")?).join(".cache")));
        let folder = cache.map(|cache| cache.join("fednode/features").join(key.to_string()));
        Self::at(folder, width)
    }

    /// Keeps nothing.
    #[cfg(test)]
    pub(super) fn nowhere() -> Self {
        Self { folder: None }
    }

    fn at(folder: Option<PathBuf>, width: usize) -> Self {
        let made = |folder: &PathBuf| {
            let mut builder = fs::DirBuilder::new();
            builder.recursive(true).mode(0o700).create(folder).is_ok()
        };
        let folder = folder.filter(made);
        tracing::debug!(?folder, width, "features are kept");
        Self { folder }
    }

    /// Puts in what was kept.
    pub(super) fn fill(&self, wanted: &mut Wanted, width: usize) {
        let mut places: HashMap<Name, Vec<usize>> = HashMap::new();
        for at in wanted.missing() {
            places.entry(wanted.names[at]).or_default().push(at);
        }
        for path in self.files() {
            if places.is_empty() {
                break;
            }
            let Ok(file) = File::open(&path) else {
                continue;
            };
            let mut file = BufReader::with_capacity(1 << 20, file);
            let mut row = vec![0; row_bytes(width)];
            while file.read_exact(&mut row).is_ok() {
                let Some((name, features)) = read(&row) else {
                    continue;
                };
                for at in places.remove(&name).unwrap_or_default() {
                    wanted.put(at, features.clone());
                }
            }
        }
    }

    /// Returns the files, the oldest first.
    fn files(&self) -> Vec<PathBuf> {
        let entries = self
            .folder
            .as_ref()
            .and_then(|folder| fs::read_dir(folder).ok());
        let paths = entries.into_iter().flatten().filter_map(Result::ok);
        let is_ours = |path: &PathBuf| path.extension().is_some_and(|ending| ending == ENDING);
        let mut files: Vec<PathBuf> = paths.map(|entry| entry.path()).filter(is_ours).collect();
        files.sort_unstable();
        files
    }

    /// Returns what adds rows; nothing is kept where the folder is full.
    pub(super) fn writer(&self) -> Writer {
        let sizes = self
            .files()
            .into_iter()
            .filter_map(|path| fs::metadata(path).ok());
        let is_full = sizes.map(|file| file.len()).sum::<u64>() >= MOST_BYTES;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let nanoseconds = now.map_or(0, |now| now.as_nanos());
        let file = format!("{}-{nanoseconds}.{ENDING}", std::process::id());
        let folder = self.folder.as_deref().filter(|_| !is_full);
        Writer {
            path: folder.map(|folder: &Path| folder.join(file)),
            file: None,
        }
    }
}

impl Writer {
    /// Adds a row.
    pub(super) fn write(&mut self, name: &Name, features: &[f32]) {
        if let Some(path) = self.path.take() {
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).mode(0o600);
            match options.open(path) {
                Ok(file) => self.file = Some(BufWriter::new(file)),
                Err(error) => give_up(&error),
            }
        }
        let row = written(name, features);
        self.carry_on(|file| file.write_all(&row));
    }

    /// Makes sure that what was added can be read by others.
    pub(super) fn flush(&mut self) {
        self.carry_on(BufWriter::flush);
    }

    /// Writes, or keeps nothing more.
    fn carry_on(&mut self, act: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) {
        if let Some(Err(error)) = self.file.as_mut().map(act) {
            give_up(&error);
            // What is buffered would fail again.
            if let Some(file) = self.file.take() {
                drop(file.into_parts());
            }
        }
    }
}

/// Says that features must be computed anew next time.
fn give_up(error: &io::Error) {
    tracing::warn!(%error, "features cannot be kept, so the next start computes them again");
}

impl Wanted {
    pub(super) fn new(names: impl Iterator<Item = Name>) -> Self {
        let names: Vec<Name> = names.collect();
        Self {
            rows: vec![None; names.len()],
            names,
        }
    }

    pub(super) fn name(&self, at: usize) -> &Name {
        &self.names[at]
    }

    pub(super) fn put(&mut self, at: usize, row: Vec<f32>) {
        self.rows[at] = Some(row);
    }

    /// Returns where no row is yet.
    pub(super) fn missing(&self) -> Vec<usize> {
        let rows = self.rows.iter().enumerate();
        rows.filter(|(_, row)| row.is_none())
            .map(|(at, _)| at)
            .collect()
    }

    /// Returns all rows, one after another.
    pub(super) fn into_rows(self) -> Vec<f32> {
        self.rows.into_iter().flatten().flatten().collect()
    }
}

fn row_bytes(width: usize) -> usize {
    size_of::<Name>() + width * size_of::<f32>() + CHECK
}

fn written(name: &Name, features: &[f32]) -> Vec<u8> {
    let mut row = name.to_vec();
    row.extend(features.iter().flat_map(|value| value.to_le_bytes()));
    let check = blake3::hash(&row);
    row.extend_from_slice(&check.as_bytes()[..CHECK]);
    row
}

/// Reads a row; nothing if it is damaged.
fn read(row: &[u8]) -> Option<(Name, Vec<f32>)> {
    let (body, check) = row.split_at(row.len() - CHECK);
    if blake3::hash(body).as_bytes()[..CHECK] != *check {
        return None;
    }
    let (name, features) = body.split_first_chunk::<32>()?;
    let values = features.as_chunks::<4>().0.iter();
    Some((
        *name,
        values.map(|bytes| f32::from_le_bytes(*bytes)).collect(),
    ))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn name_of(number: u8) -> Name {
        [number; 32]
    }

    fn wanted(numbers: &[u8]) -> Wanted {
        Wanted::new(numbers.iter().copied().map(name_of))
    }

    #[test]
    fn rows_come_back_from_several_files_and_past_damage() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("a/b");
        let store = Store::at(Some(folder.clone()), 2);
        let mode = fs::metadata(&folder).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "for its owner alone");
        for numbers in [&[1_u8, 2, 3][..], &[4]] {
            let mut writer = store.writer();
            for number in numbers {
                writer.write(&name_of(*number), &[f32::from(*number), -0.5]);
            }
            writer.flush();
        }
        let mut all = wanted(&[4, 1, 9, 1, 3]);
        store.fill(&mut all, 2);
        assert_eq!(all.missing(), [2], "nobody computed the ninth");
        all.put(2, vec![9.0, 9.0]);
        let rows = [4.0, -0.5, 1.0, -0.5, 9.0, 9.0, 1.0, -0.5, 3.0, -0.5];
        assert_eq!(all.into_rows(), rows);

        // The second row of the first file is damaged, the third is cut short.
        let path = store.files().remove(0);
        let mut bytes = fs::read(&path).unwrap();
        bytes[row_bytes(2) + 33] ^= 1;
        bytes.truncate(3 * row_bytes(2) - 1);
        fs::write(&path, bytes).unwrap();
        let mut all = wanted(&[1, 2, 3, 4]);
        store.fill(&mut all, 2);
        assert_eq!(all.missing(), [1, 2]);
    }

    #[test]
    fn without_a_folder_nothing_is_kept() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        fs::write(&file, "").unwrap();
        let store = Store::at(Some(file.join("inner")), 1);
        let mut writer = store.writer();
        writer.write(&name_of(1), &[1.0]);
        writer.flush();
        let mut all = wanted(&[1]);
        store.fill(&mut all, 1);
        assert_eq!(all.missing(), [0]);
    }
}
