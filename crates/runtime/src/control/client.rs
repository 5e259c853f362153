//! A small client of the control API, so that no program needs an HTTP library to ask its own daemon.
//!
//! Blocking, one connection per request, loopback only in practice. It reads at most a bounded answer.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::file;
use crate::status::{ControlFile, Experts, Peer, Problem, RoundRecord, Status};

/// How long a daemon may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Largest answer: the records of many thousand rounds.
const MAX_ANSWER_BYTES: u64 = 256 << 20;
/// The settings that lie beside a state folder, and the program that starts with them.
const SETTINGS: [(&str, &str); 2] = [("node.toml", "fednode"), ("fedboot.toml", "fedboot")];

/// Tells why a daemon could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No daemon runs with this state folder.
    #[error(
        "no daemon runs with state folder {0}: start one, or name the right folder with --state"
    )]
    NotRunning(String),
    /// One runs, and nobody can ask it anything.
    #[error(
        "{owner} uses state folder {folder} and takes no commands: it is just starting, or its settings have `network.control` off. \
         Try again, or end it as its service does, or by Ctrl-C"
    )]
    Silent {
        /// The state folder.
        folder: String,
        /// Who holds it.
        owner: String,
    },
    /// One ran, and was killed or has crashed: its control file is left over.
    #[error(
        "no daemon runs with state folder {folder}: process {pid} has ended without a stop. Start it again, {again}: it goes on from \
         its last checkpoint"
    )]
    Ended {
        /// The state folder.
        folder: String,
        /// The process that has ended.
        pid: u32,
        /// How it is started again.
        again: String,
    },
    /// `control.json` or the lock of the folder cannot be read.
    #[error("control file or lock of {folder} cannot be read: {source}")]
    File {
        /// The state folder.
        folder: String,
        /// The cause.
        source: io::Error,
    },
    /// The daemon does not answer.
    #[error("the daemon (process {pid}) does not answer at {address}: {source}")]
    Unreachable {
        /// Its process.
        pid: u32,
        /// Its address.
        address: std::net::SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// The daemon was asked to end, and has not.
    #[error(
        "process {pid} was asked to stop and still runs after {seconds} s: wait, or end it with `kill {pid}`"
    )]
    StillRunning {
        /// Its process.
        pid: u32,
        /// How long was waited.
        seconds: u64,
    },
    /// The daemon refused.
    #[error("the daemon says: {0}")]
    Refused(String),
    /// It has no time to answer: it may be about to stop, or about to go on after an end.
    #[error("the daemon says: {0}")]
    Busy(String),
    /// The answer is not what this version understands.
    #[error("the daemon's answer cannot be understood: {0}")]
    Malformed(String),
}

/// A client of one daemon.
#[derive(Debug, Clone)]
pub struct Client {
    control: ControlFile,
    /// The state folder, where it is known.
    state: Option<PathBuf>,
}

impl Client {
    /// Finds the daemon that runs with a state folder.
    ///
    /// # Errors
    /// Fails if none does or its control file cannot be read.
    pub fn of(state: &Path) -> Result<Self, ClientError> {
        let folder = state.display().to_string();
        match file::read(state) {
            Ok(Some(control)) => Ok(Self {
                control,
                state: Some(state.to_owned()),
            }),
            // The lock tells more than the file: a daemon without a control API writes none.
            Ok(None) => Err(match fednode_store::holder(state) {
                Ok(Some(owner)) => ClientError::Silent { folder, owner },
                Ok(None) => ClientError::NotRunning(folder),
                Err(source) => ClientError::File { folder, source },
            }),
            Err(source) => Err(ClientError::File { folder, source }),
        }
    }

    /// Makes a client from the content of a control file.
    pub fn new(control: ControlFile) -> Self {
        Self {
            control,
            state: None,
        }
    }

    /// Returns the daemon's process.
    pub fn pid(&self) -> u32 {
        self.control.pid
    }

    /// Asks what the daemon is doing.
    ///
    /// # Errors
    /// Fails if the daemon does not answer.
    pub fn status(&self) -> Result<Status, ClientError> {
        self.get("/v1/status")
    }

    /// Asks for the daemon's peers.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub fn peers(&self) -> Result<Vec<Peer>, ClientError> {
        self.get("/v1/peers")
    }

    /// Asks for the plan in force and the experts held.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub fn experts(&self) -> Result<Experts, ClientError> {
        self.get("/v1/experts")
    }

    /// Asks for the records of the newest rounds: all but those of a very long federation.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub fn rounds(&self) -> Result<Vec<RoundRecord>, ClientError> {
        self.get("/v1/rounds")
    }

    /// Asks for the figures in Prometheus' text form.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub fn metrics(&self) -> Result<String, ClientError> {
        let body = self.request("GET", "/metrics")?;
        String::from_utf8(body).map_err(|error| ClientError::Malformed(error.to_string()))
    }

    /// Asks the daemon to leave the federation for good and stop.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub fn leave(&self) -> Result<(), ClientError> {
        self.request("POST", "/v1/leave").map(|_| ())
    }

    /// Asks the daemon to take back what it has published, leave the federation for good and stop.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub fn withdraw(&self) -> Result<(), ClientError> {
        self.request("POST", "/v1/withdraw").map(|_| ())
    }

    /// Asks the daemon to stop.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub fn stop(&self) -> Result<(), ClientError> {
        self.request("POST", "/v1/stop").map(|_| ())
    }

    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        let body = self.request("GET", path)?;
        serde_json::from_slice(&body).map_err(|error| ClientError::Malformed(error.to_string()))
    }

    fn request(&self, method: &str, path: &str) -> Result<Vec<u8>, ClientError> {
        let answer = self.ask(method, path);
        answer.map_err(|error| match error {
            // Another program may listen at the address of a daemon that was killed.
            ClientError::Unreachable { .. }
            | ClientError::Malformed(_)
            | ClientError::Refused(_) => self.ended().unwrap_or(error),
            error => error,
        })
    }

    /// Says that the daemon has ended, if nobody holds its folder any more.
    fn ended(&self) -> Option<ClientError> {
        let state = self.state.as_deref()?;
        if !fednode_store::is_free(state).ok()? {
            return None;
        }
        let folder = state.display().to_string();
        // One that was just stopped takes its control file along.
        if file::read(state).ok()?.is_none() {
            return Some(ClientError::NotRunning(folder));
        }
        Some(ClientError::Ended {
            folder,
            pid: self.control.pid,
            again: again(state),
        })
    }

    fn ask(&self, method: &str, path: &str) -> Result<Vec<u8>, ClientError> {
        let ControlFile { address, pid, .. } = self.control;
        let answer = self.exchange(method, path);
        let answer = answer.map_err(|source| ClientError::Unreachable {
            pid,
            address,
            source,
        })?;
        let (status, body) =
            split(&answer).ok_or_else(|| ClientError::Malformed("not HTTP".into()))?;
        if (200..300).contains(&status) {
            return Ok(body.to_vec());
        }
        let said = serde_json::from_slice::<Problem>(body).map(|problem| problem.error);
        let said = said.unwrap_or_else(|_| format!("status {status}"));
        Err(match status {
            503 => ClientError::Busy(said),
            _ => ClientError::Refused(said),
        })
    }

    fn exchange(&self, method: &str, path: &str) -> io::Result<Vec<u8>> {
        let ControlFile { address, token, .. } = &self.control;
        let mut stream = TcpStream::connect_timeout(address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        // HTTP/1.0 keeps the answer in one piece and ends it with the connection.
        let head = format!(
            "{method} {path} HTTP/1.0\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\r\n"
        );
        stream.write_all(head.as_bytes())?;
        let mut answer = Vec::new();
        // The port may be anybody's by now, so even our own answer is bounded.
        stream.take(MAX_ANSWER_BYTES).read_to_end(&mut answer)?;
        Ok(answer)
    }
}

/// Says how the daemon of a state folder is started again.
fn again(state: &Path) -> String {
    let folder = state.parent().unwrap_or(Path::new(""));
    let found = SETTINGS
        .iter()
        .map(|(file, program)| (folder.join(file), program))
        .find(|(file, _)| file.is_file());
    found.map_or_else(
        || "as before".to_owned(),
        |(file, program)| format!("by `{program} start --config {}`", file.display()),
    )
}

/// Splits an answer into its status and its body.
fn split(answer: &[u8]) -> Option<(u16, &[u8])> {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..end]).ok()?;
    let status = head.lines().next()?.split(' ').nth(1)?.parse().ok()?;
    Some((status, &answer[end + 4..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_was_killed_is_told_from_one_that_does_not_answer() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        std::fs::create_dir(&state).unwrap();
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let content = ControlFile {
            address: closed.local_addr().unwrap(),
            token: "t".into(),
            pid: 7,
        };
        drop(closed);
        let _guard = file::ControlGuard::write(&state, &content).unwrap();
        let said = || {
            Client::of(&state)
                .unwrap()
                .status()
                .unwrap_err()
                .to_string()
        };
        let text = said();
        assert!(
            text.contains("process 7 has ended without a stop. Start it again, as before"),
            "{text}"
        );
        let settings = folder.path().join("node.toml");
        std::fs::write(&settings, "").unwrap();
        let start = format!("by `fednode start --config {}`", settings.display());
        assert!(said().contains(&start), "{}", said());
        let federation = fednode_core::FederationId::from_bytes([1; 32]);
        let held = fednode_store::Store::open(&state, federation, &Default::default()).unwrap();
        assert!(said().contains("(process 7) does not answer"), "{}", said());
        drop(held);
    }

    #[test]
    fn reads_an_answer() {
        assert_eq!(
            split(b"HTTP/1.0 202 Accepted\r\na: b\r\n\r\nbody"),
            Some((202, b"body".as_slice()))
        );
        assert_eq!(split(b"nonsense"), None);
        assert_eq!(split(b"HTTP/1.0\r\n\r\n"), None);
    }
}
