//! Ends a running daemon from outside, and waits until it has let go of its state folder.

use std::path::Path;
use std::time::{Duration, Instant};

use super::client::{Client, ClientError};

/// How long a daemon may take: a last checkpoint, a last word to its peers, and the work that cannot be abandoned.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often the folder is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How a daemon is asked to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Farewell {
    /// As by Ctrl-C: it saves and stops, and may start again.
    Stop,
    /// It tells the federation that it will not come back, then stops.
    Leave,
    /// It asks the others to delete what it has published, then leaves.
    Withdraw,
}

/// Tells whether no daemon holds a state folder, whatever its control file says. One that cannot be asked counts as held.
pub fn is_free(state: &Path) -> bool {
    fednode_store::is_free(state).unwrap_or(false)
}

/// Asks the daemon of a state folder to end, and returns its process once the folder is free.
///
/// # Errors
/// Fails if no daemon runs with the folder, if it does not answer, or if it has not ended in time.
pub fn end(state: &Path, farewell: Farewell) -> Result<u32, ClientError> {
    let folder = || state.display().to_string();
    let client = Client::of(state)?;
    let started = Instant::now();
    let mut was_busy = false;
    let asked = loop {
        match ask(&client, farewell) {
            // Between an end and the next start there is nobody who could say goodbye.
            Err(ClientError::Busy(_)) if started.elapsed() < PATIENCE => {
                was_busy = true;
                std::thread::sleep(LOOK_EVERY);
            }
            asked => break asked,
        }
    };
    let is_free = || {
        let free = fednode_store::is_free(state);
        free.map_err(|source| ClientError::File {
            folder: folder(),
            source,
        })
    };
    match asked {
        // It was about to stop.
        Err(
            ClientError::Unreachable { .. }
            | ClientError::Ended { .. }
            | ClientError::NotRunning(_),
        ) if was_busy && farewell == Farewell::Stop => {}
        // A daemon that was killed leaves its control file behind.
        Err(ClientError::Unreachable { .. } | ClientError::Ended { .. }) if is_free()? => {
            return Err(ClientError::NotRunning(folder()));
        }
        asked => asked?,
    }
    let started = Instant::now();
    // The lock of the folder is the only proof of the end: a process identifier may be taken over
    // by another process.
    while !is_free()? {
        if started.elapsed() > PATIENCE {
            let pid = client.pid();
            return Err(ClientError::StillRunning {
                pid,
                seconds: PATIENCE.as_secs(),
            });
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(client.pid())
}

fn ask(client: &Client, farewell: Farewell) -> Result<(), ClientError> {
    match farewell {
        Farewell::Stop => client.stop(),
        Farewell::Leave => client.leave(),
        Farewell::Withdraw => client.withdraw(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::ControlGuard;
    use crate::status::ControlFile;

    #[test]
    fn a_control_file_that_a_killed_daemon_left_is_no_daemon() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |folder: &Path| end(folder, Farewell::Stop).unwrap_err();
        assert!(matches!(refused(folder.path()), ClientError::NotRunning(_)));
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let content = ControlFile {
            address: closed.local_addr().unwrap(),
            token: "t".into(),
            pid: 7,
        };
        drop(closed);
        let _guard = ControlGuard::write(folder.path(), &content).unwrap();
        assert!(matches!(refused(folder.path()), ClientError::NotRunning(_)));
    }

    /// Its settings have `network.control` off, or it is still starting.
    #[test]
    fn a_daemon_that_takes_no_commands_is_no_missing_one() {
        let folder = tempfile::tempdir().unwrap();
        let federation = fednode_core::FederationId::from_bytes([1; 32]);
        let held = fednode_store::Store::open(folder.path(), federation, &Default::default());
        let refused = end(folder.path(), Farewell::Stop).unwrap_err();
        let process = format!("process {} uses", std::process::id());
        assert!(refused.to_string().starts_with(&process), "{refused}");
        drop(held);
        let refused = end(folder.path(), Farewell::Stop).unwrap_err();
        assert!(matches!(refused, ClientError::NotRunning(_)));
    }
}
