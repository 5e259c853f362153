//! Asks one child how it is, again and again, on a thread of its own: a child that hangs delays nobody.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fednode_runtime::control::Client;
use fednode_runtime::status::Status;

/// How often a child is asked; an answer costs it well under a millisecond.
const ASK_EVERY: Duration = Duration::from_millis(200);
/// How often a child that does not listen yet is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The newest answer of a child.
#[derive(Debug)]
pub(crate) struct Watcher {
    latest: Arc<Mutex<Option<Status>>>,
    is_over: Arc<AtomicBool>,
}

impl Watcher {
    /// Starts to ask the process that runs, or will run, on a state folder.
    pub(crate) fn start(state: &Path) -> Self {
        let watcher = Self {
            latest: Arc::default(),
            is_over: Arc::default(),
        };
        let (latest, is_over, state) = (
            Arc::clone(&watcher.latest),
            Arc::clone(&watcher.is_over),
            state.to_owned(),
        );
        std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                let answer = Client::of(&state).and_then(|client| client.status()).ok();
                let pause = if answer.is_some() {
                    ASK_EVERY
                } else {
                    LOOK_EVERY
                };
                if answer.is_some() {
                    *latest.lock().unwrap_or_else(PoisonError::into_inner) = answer;
                }
                std::thread::sleep(pause);
            }
        });
        watcher
    }

    /// Returns what it said last, if it ever said anything.
    pub(crate) fn latest(&self) -> Option<Status> {
        self.latest
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}
