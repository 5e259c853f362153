//! Ctrl-C for a program that waits with plain sleeps: signals are counted, and whoever waits looks at the count.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::signal::unix::{SignalKind, signal};

/// How long a sleep may overlook a signal.
const STEP: Duration = Duration::from_millis(50);

/// How often the user asked to stop.
#[derive(Debug, Clone, Default)]
pub struct Interrupts(Arc<AtomicUsize>);

impl Interrupts {
    /// Starts counting SIGINT, SIGTERM and SIGHUP.
    ///
    /// # Errors
    /// Fails if the operating system refuses the handlers or the thread.
    pub fn install() -> io::Result<Self> {
        let counted = Self::default();
        let count = Arc::clone(&counted.0);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()?;
        let guard = runtime.enter();
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hang_up = signal(SignalKind::hangup())?;
        drop(guard);
        let listen = async move {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    _ = hang_up.recv() => {}
                }
                count.fetch_add(1, Ordering::Relaxed);
            }
        };
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || runtime.block_on(listen))?;
        Ok(counted)
    }

    /// Returns how often.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Sleeps, but not beyond a change of the count; tells whether the whole time has passed.
    pub fn sleep(&self, time: Duration) -> bool {
        let (before, started) = (self.count(), Instant::now());
        while self.count() == before {
            let left = time.saturating_sub(started.elapsed());
            if left.is_zero() {
                return true;
            }
            std::thread::sleep(left.min(STEP));
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_ends_a_sleep() {
        let interrupts = Interrupts::default();
        assert!(interrupts.sleep(Duration::from_millis(1)));
        let other = interrupts.clone();
        let signaller = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            other.0.fetch_add(1, Ordering::Relaxed);
        });
        assert!(!interrupts.sleep(Duration::from_secs(60)));
        signaller.join().unwrap();
    }
}
