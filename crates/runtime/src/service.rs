//! What a service manager is told, if there is one: ready, alive, where it is, stopping (systemd's `sd_notify`).
//!
//! ```text
//! sockets open, peers may connect ─► READY=1      every second ─► WATCHDOG=1, if one is on      told to stop ─► STOPPING=1
//! ```
//!
//! The word that it lives comes from the loop that does everything else. So a member whose loop hangs is started anew, and one
//! that trains for hours is not. Between an end and the next start it comes from whatever answers for the member.

use fednode_core::Round;
use sd_notify::NotifyState;
use tracing::debug;

/// The manager of this process, or nobody.
#[derive(Debug)]
pub(crate) struct Manager {
    is_watching: bool,
    /// The line that it was told last.
    status: String,
}

impl Manager {
    /// Finds out whether somebody watches.
    pub(crate) fn find() -> Self {
        Self {
            // Asked once: the manager says so in the environment, before the process starts.
            is_watching: sd_notify::watchdog_enabled().is_some(),
            status: String::new(),
        }
    }

    /// Says that the member is ready.
    pub(crate) fn ready(&self) {
        tell(&[NotifyState::Ready]);
    }

    /// Says that the member lives, and where it is if that has changed.
    pub(crate) fn alive(&mut self, phase: &str, round: Round, rounds: u32) {
        self.lives(format!("{phase}, round {round} of {rounds}"));
    }

    /// Says that the process lives and what it waits for before its member goes on.
    pub(crate) fn waits(&mut self, what: &str) {
        self.lives(format!("waiting for {what}"));
    }

    fn lives(&mut self, status: String) {
        if self.is_watching {
            tell(&[NotifyState::Watchdog]);
        }
        if status != self.status {
            tell(&[NotifyState::Status(&status)]);
            self.status = status;
        }
    }

    /// Says that the member saves its state and ends.
    pub(crate) fn stopping(&self) {
        tell(&[NotifyState::Stopping]);
    }
}

/// Nobody there is no trouble, and nobody who listens is none of this member's.
fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        debug!(%error, "the service manager was not told");
    }
}
