//! A page on a thread of its own, for a program that has no asynchronous runtime.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread::JoinHandle;

use tokio_util::sync::CancellationToken;

use crate::{Page, Settings, StartError, Watched};

/// A page that is served until this is dropped.
#[derive(Debug)]
pub struct Background {
    address: SocketAddr,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Starts the thread and the page.
    ///
    /// # Errors
    /// As [`Page::start`]; or the system refuses the thread.
    pub fn start(watched: Watched, settings: Settings) -> Result<Self, StartError> {
        let bind = settings.bind;
        let failed = |source| StartError {
            address: bind,
            source,
        };
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().build().map_err(failed)?;
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let (send, started) = mpsc::sync_channel(1);
        let thread = std::thread::Builder::new().name("page".into());
        let serve = async move {
            match Page::start(watched, settings).await {
                Ok(page) => {
                    // Nobody hears it only if whoever asked is gone; then the token is cancelled.
                    _ = send.send(Ok(page.address()));
                    stopped.cancelled().await;
                    page.stop().await;
                }
                Err(error) => _ = send.send(Err(error)),
            }
        };
        let spawned = thread.spawn(move || {
            runtime.block_on(serve);
            // A process that hangs while it is asked must not hold up the end.
            runtime.shutdown_background();
        });
        let thread = spawned.map_err(failed)?;
        let address = started.recv().unwrap_or_else(|_| {
            let text = "the thread of the page has ended";
            Err(failed(std::io::Error::other(text)))
        })?;
        Ok(Self {
            address,
            stop,
            thread: Some(thread),
        })
    }

    /// Returns where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop.cancel();
        let thread = self.thread.take();
        // A panic there was printed already, and is no reason for another.
        _ = thread.map(JoinHandle::join);
    }
}
