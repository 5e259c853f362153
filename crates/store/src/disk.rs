//! The disk: the few ways in which this crate changes files, so that durability is decided in one place.
//!
//! A file that must be whole or absent is *staged*: written under a temporary name in its own folder, fsynced, renamed,
//! and the folder fsynced. A crash leaves a temporary file, which the next start removes. This module does not know what
//! the bytes mean. Tests can give the disk a capacity, to meet a full disk without filling a real one.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::FallocateFlags;

/// Prefix of the names of files under construction. After a crash such a file is rubbish.
const STAGED_PREFIX: &str = ".staged-";

/// When own blobs reach the disk. Received blobs are always left to the operating system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Every own blob is fsynced before it counts as held. It survives a power cut.
    #[default]
    Full,
    /// Blobs are left to the operating system. They survive a crash of the process. After a power cut damaged blobs are
    /// recognised by their hash when they are read, and fetched again. For slow disks (SD cards) with many nodes.
    Relaxed,
}

/// Returns how many bytes an ordinary user may still write on the file system that holds `path`.
///
/// # Errors
/// Fails if the path does not exist or cannot be reached.
pub fn disk_free(path: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(path).map_err(|error| with_path(error.into(), path))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Adds the path to an error of the operating system, which does not name it, and keeps the kind.
pub(crate) fn with_path(error: io::Error, path: &Path) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Tells whether an error means that there is no space, on the disk or for this user.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// Tells whether a file was left behind by a write that a crash cut short.
pub(crate) fn is_staged(path: &Path) -> bool {
    path.file_name()
        .is_some_and(|name| name.to_string_lossy().starts_with(STAGED_PREFIX))
}

/// Returns the paths in a folder. A folder that does not exist has none.
pub(crate) fn list_folder(folder: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(folder) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(with_path(error, folder)),
    }
}

/// Creates folders that only their owner may enter.
pub(crate) fn create_folder(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(|error| with_path(error, folder))
}

/// Lets only its owner enter a folder that may have been there before. Where that cannot be said, as on some file systems,
/// the folder stays as it is.
pub(crate) fn make_private(folder: &Path) {
    use std::os::unix::fs::PermissionsExt;
    _ = fs::set_permissions(folder, fs::Permissions::from_mode(0o700));
}

/// Writes files.
#[derive(Debug, Clone, Default)]
pub(crate) struct Disk {
    durability: Durability,
    #[cfg(test)]
    capacity: Option<std::sync::Arc<AtomicU64>>,
}

impl Disk {
    pub(crate) fn new(durability: Durability) -> Self {
        Self {
            durability,
            #[cfg(test)]
            capacity: None,
        }
    }

    /// Pretends that so many bytes are free; they shrink and grow with what is written and removed.
    #[cfg(test)]
    pub(crate) fn with_capacity(capacity: std::sync::Arc<AtomicU64>) -> Self {
        Self {
            capacity: Some(capacity),
            ..Self::default()
        }
    }

    /// Returns how much space is left.
    pub(crate) fn free(&self, path: &Path) -> io::Result<u64> {
        #[cfg(test)]
        if let Some(capacity) = &self.capacity {
            return Ok(capacity.load(Ordering::SeqCst));
        }
        disk_free(path)
    }

    /// Writes all bytes at an offset.
    pub(crate) fn write_at(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.spend(bytes.len() as u64)?;
        file.write_all_at(bytes, offset)
    }

    /// Waits until a file's bytes are on the disk.
    pub(crate) fn sync(&self, file: &File) -> io::Result<()> {
        match self.durability {
            Durability::Full => file.sync_all(),
            Durability::Relaxed => Ok(()),
        }
    }

    /// Waits until a folder's names are on the disk.
    pub(crate) fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        self.sync(&File::open(folder).map_err(|error| with_path(error, folder))?)
    }

    /// Writes a file under a temporary name in `folder` and returns that name. On failure nothing is left.
    pub(crate) fn stage(&self, folder: &Path, parts: &[&[u8]]) -> io::Result<PathBuf> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("{STAGED_PREFIX}{}-{number}", std::process::id()));
        match self.fill(&path, parts) {
            Ok(()) => Ok(path),
            Err(error) => {
                // The cause matters more than a failed clean-up, which the next start repeats.
                let _ = self.remove(&path);
                Err(with_path(error, folder))
            }
        }
    }

    fn fill(&self, path: &Path, parts: &[&[u8]]) -> io::Result<()> {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        let mut offset = 0;
        for part in parts {
            self.write_at(&file, part, offset)?;
            offset += part.len() as u64;
        }
        self.sync(&file)
    }

    /// Replaces a file. After a crash either the old or the new content is there, never a mixture.
    pub(crate) fn replace(&self, path: &Path, parts: &[&[u8]]) -> io::Result<()> {
        let folder = path.parent().expect("a file of the store lies in a folder");
        let staged = self.stage(folder, parts)?;
        fs::rename(&staged, path).map_err(|error| with_path(error, path))?;
        // Without this the rename itself may be lost in a power cut.
        self.sync_folder(folder)
    }

    /// Removes a file. It is no error if there is no such file.
    pub(crate) fn remove(&self, path: &Path) -> io::Result<()> {
        #[cfg(test)]
        if let (Some(capacity), Ok(metadata)) = (&self.capacity, fs::metadata(path)) {
            capacity.fetch_add(metadata.len(), Ordering::SeqCst);
        }
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(with_path(error, path)),
            _ => Ok(()),
        }
    }

    /// Makes a file of `len` bytes whose blocks are really allocated.
    pub(crate) fn allocate(&self, path: &Path, len: u64) -> io::Result<()> {
        self.spend(len)?;
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(path)?;
        // Setting a length would make a sparse file, whose space another process could take.
        match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::OPNOTSUPP) => fill_with_zeros(&file, len),
            Err(error) => Err(error.into()),
        }
    }

    #[cfg(test)]
    fn spend(&self, bytes: u64) -> io::Result<()> {
        let Some(capacity) = &self.capacity else {
            return Ok(());
        };
        let left = capacity.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
            left.checked_sub(bytes)
        });
        left.map(|_| ()).map_err(|_| {
            io::Error::new(io::ErrorKind::StorageFull, "no space left on the test disk")
        })
    }

    #[cfg(not(test))]
    #[expect(
        clippy::unused_self,
        clippy::unnecessary_wraps,
        reason = "the test double of this function needs both"
    )]
    fn spend(&self, _bytes: u64) -> io::Result<()> {
        Ok(())
    }
}

/// Takes space on file systems that cannot preallocate.
fn fill_with_zeros(file: &File, len: u64) -> io::Result<()> {
    const BLOCK: usize = 64 << 10;
    let zeros = [0; BLOCK];
    let mut offset = 0;
    while offset < len {
        let n = usize::try_from(len - offset).map_or(BLOCK, |left| left.min(BLOCK));
        file.write_all_at(&zeros[..n], offset)?;
        offset += n as u64;
    }
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small_disk(bytes: u64) -> Disk {
        Disk::with_capacity(std::sync::Arc::new(AtomicU64::new(bytes)))
    }

    #[test]
    fn replaces_whole_files_and_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let disk = small_disk(8);
        disk.replace(&path, &[b"ab", b"cd"]).unwrap();
        let error = disk.replace(&path, &[b"12", b"345"]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert_eq!(fs::read(&path).unwrap(), b"abcd", "the old content stays");
        assert_eq!(
            list_folder(folder.path()).unwrap(),
            [path],
            "no temporary file stays"
        );
    }

    #[test]
    fn knows_the_free_space() {
        assert!(disk_free(Path::new("/")).unwrap() > 0);
        assert!(
            disk_free(Path::new("/does/not/exist"))
                .unwrap_err()
                .to_string()
                .starts_with("/does/not/exist")
        );
    }

    #[test]
    fn allocation_takes_real_blocks() {
        use std::os::unix::fs::MetadataExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("reserve");
        Disk::default().allocate(&path, 100_000).unwrap();
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!(metadata.len(), 100_000);
        assert!(
            metadata.blocks() * 512 >= 100_000,
            "{} blocks",
            metadata.blocks()
        );
        fill_with_zeros(&File::options().write(true).open(&path).unwrap(), 150_000).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 150_000);
    }
}
