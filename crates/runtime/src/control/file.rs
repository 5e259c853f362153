//! `control.json`: where a daemon's control API is, for those who may read the state folder's secrets.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use fednode_files::whole_file;

use crate::status::ControlFile;

/// Name of the file in the state folder.
pub const FILE_NAME: &str = "control.json";

/// Reads the file of a running daemon; `None` if there is none, so that no daemon runs with this folder.
///
/// # Errors
/// Fails if the file is there but cannot be read or is damaged.
pub fn read(state: &Path) -> io::Result<Option<ControlFile>> {
    let bytes = match fs::read(state.join(FILE_NAME)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        bytes => bytes?,
    };
    Ok(Some(serde_json::from_slice(&bytes)?))
}

/// Tells whether this user may not look into a state folder: whatever lies in it seems not to be there.
pub fn is_closed(state: &Path) -> bool {
    let looked = state.join(FILE_NAME).try_exists();
    looked.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

/// Keeps the file while it lives and removes it afterwards.
#[derive(Debug)]
pub(crate) struct ControlGuard {
    path: PathBuf,
    token: String,
}

impl ControlGuard {
    /// Writes the file, readable by its owner only from its first byte on.
    ///
    /// # Errors
    /// Fails if the disk does.
    pub(crate) fn write(state: &Path, content: &ControlFile) -> io::Result<Self> {
        let path = state.join(FILE_NAME);
        whole_file::write_private(&path, &serde_json::to_vec(content)?)?;
        Ok(Self {
            path,
            token: content.token.clone(),
        })
    }
}

impl Drop for ControlGuard {
    fn drop(&mut self) {
        // Another process may have taken the folder over.
        let written = self.path.parent().map(read);
        if matches!(written, Some(Ok(Some(written))) if written.token == self.token) {
            // If it cannot be removed, its token is worthless all the same: the server is gone.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_folder_that_may_not_be_entered_is_closed() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        assert!(!is_closed(&state), "it is not there");
        fs::create_dir(&state).unwrap();
        assert!(!is_closed(&state));
        fs::set_permissions(&state, fs::Permissions::from_mode(0o000)).unwrap();
        // Root may enter it all the same.
        let may_enter = fs::read_dir(&state).is_ok();
        assert_eq!(is_closed(&state), !may_enter);
        fs::set_permissions(&state, fs::Permissions::from_mode(0o700)).unwrap();
    }

    #[test]
    fn the_file_is_private_and_goes_with_its_guard() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read(folder.path()).unwrap(), None);
        let content = ControlFile {
            address: ([127, 0, 0, 1], 80).into(),
            token: "t".into(),
            pid: 7,
        };
        let guard = ControlGuard::write(folder.path(), &content).unwrap();
        let mode = fs::metadata(folder.path().join(FILE_NAME))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(read(folder.path()).unwrap(), Some(content.clone()));
        let other = ControlFile {
            token: "another".into(),
            ..content.clone()
        };
        let others = ControlGuard::write(folder.path(), &other).unwrap();
        drop(guard);
        assert_eq!(read(folder.path()).unwrap(), Some(other));
        drop(others);
        assert_eq!(read(folder.path()).unwrap(), None);
    }
}
