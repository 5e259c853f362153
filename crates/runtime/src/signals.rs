//! Ctrl-C: the first asks the process to stop, the second ends it at once. And what else stops a process.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::ExitCode;

/// Cancels when the other end of standard input is gone, so that a child ends with whoever started it.
pub fn stop_when_stdin_closes(stop: CancellationToken) {
    // No task of the runtime: a read of standard input cannot be cancelled, and the end would wait for it.
    std::thread::spawn(move || {
        // Whatever comes is not for us; an error is as final as an end.
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        stop.cancel();
    });
}

/// Installs handlers for SIGINT and SIGTERM and returns the token that the first of them cancels.
///
/// The second signal exits with [`ExitCode::Interrupted`] without waiting for anything.
///
/// # Errors
/// Fails outside a tokio runtime or if the operating system refuses.
pub fn install() -> io::Result<CancellationToken> {
    let token = CancellationToken::new();
    // Before the task runs: a signal that comes meanwhile would end the process without a checkpoint.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let asked = token.clone();
    tokio::spawn(async move {
        loop {
            let received = tokio::select! {
                received = interrupt.recv() => received,
                received = terminate.recv() => received,
            };
            match received {
                Some(()) if asked.is_cancelled() => {
                    std::process::exit(i32::from(ExitCode::Interrupted.number()))
                }
                Some(()) => asked.cancel(),
                None => return,
            }
        }
    });
    Ok(token)
}
