//! Who may ask: a token, and the file that tells it to those who may read it.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Bytes of randomness in a token.
const TOKEN_BYTES: usize = 32;

/// Where a server is and what opens it, as its file says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessFile {
    /// Where it listens.
    pub address: SocketAddr,
    /// The token that requests need.
    pub token: String,
    /// Its process.
    pub pid: u32,
}

impl AccessFile {
    /// Makes the content of a file, with a new token.
    #[expect(clippy::disallowed_methods, reason = "nobody may foresee a token")]
    pub(crate) fn new(address: SocketAddr) -> Self {
        let bytes: [u8; TOKEN_BYTES] = rand::random();
        Self {
            address,
            token: bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
            pid: std::process::id(),
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// Fails if it is not there, or is none.
    pub fn read(path: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&fs::read(path)?)?)
    }
}

/// Keeps the file while it lives and removes it afterwards. The lock on it says that its server runs.
#[derive(Debug)]
pub(crate) struct AccessGuard {
    path: PathBuf,
    _locked: File,
}

impl AccessGuard {
    /// Writes the file, readable by its owner only from its first byte on.
    ///
    /// # Errors
    /// Fails if another server has a file there, or if the disk does.
    pub(crate) fn write(path: &Path, content: &AccessFile) -> io::Result<Self> {
        refuse_another(path)?;
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".draft");
        let draft = path.with_file_name(name);
        match fs::remove_file(&draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // `create_new` with the mode: the token is never readable by others, not even for a moment.
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&draft)?;
        // Where a disk knows no locks, a second server is not noticed; the first one serves all the same.
        let _ = file.try_lock();
        file.write_all(&serde_json::to_vec(content)?)?;
        fs::rename(&draft, path)?;
        Ok(Self {
            path: path.to_owned(),
            _locked: file,
        })
    }
}

/// Refuses a file whose server runs. One that was killed leaves a file without a lock.
fn refuse_another(path: &Path) -> io::Result<()> {
    let Ok(file) = File::open(path) else {
        return Ok(());
    };
    if !matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)) {
        return Ok(());
    }
    let who = AccessFile::read(path).map_or_else(
        |_| "another server".to_owned(),
        |other| format!("process {}, at {},", other.pid, other.address),
    );
    let text = format!("it is that of {who} which still runs");
    Err(io::Error::new(io::ErrorKind::AlreadyExists, text))
}

impl Drop for AccessGuard {
    fn drop(&mut self) {
        // If it cannot be removed, its token is worthless all the same: the server is gone.
        let _ = fs::remove_file(&self.path);
    }
}

/// Compares without telling by its duration how much was right. The length of a token is no secret.
pub(crate) fn equal_in_constant_time(given: &[u8], expected: &[u8]) -> bool {
    let difference = given
        .iter()
        .zip(expected)
        .fold(0, |difference, (a, b)| difference | (a ^ b));
    given.len() == expected.len() && std::hint::black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_file_is_private_belongs_to_one_server_and_goes_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("serve.json");
        let content = AccessFile::new(([127, 0, 0, 1], 80).into());
        // What a killed server left is no obstacle.
        fs::write(&path, "{").unwrap();
        let guard = AccessGuard::write(&path, &content).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(AccessFile::read(&path).unwrap(), content);
        let refused = AccessGuard::write(&path, &content).unwrap_err().to_string();
        let process = format!("process {}, at 127.0.0.1:80, which still runs", content.pid);
        assert!(refused.contains(&process), "{refused}");
        drop(guard);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn only_the_whole_token_opens() {
        assert!(equal_in_constant_time(b"secret", b"secret"));
        assert!(!equal_in_constant_time(b"secret", b"secreT"));
        assert!(!equal_in_constant_time(b"secre", b"secret"));
        assert!(!equal_in_constant_time(b"", b"secret"));
        let token = || AccessFile::new(([127, 0, 0, 1], 80).into()).token;
        assert_ne!(token(), token());
        assert_eq!(token().len(), 64);
    }
}
