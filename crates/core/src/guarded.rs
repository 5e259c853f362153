//! Panics that are caught: some libraries give up by a panic where another would return an error.
//!
//! A tensor library panics when a driver loses its device, and a reader of files on bytes that nobody wrote. Such work goes through
//! [`guarded`]. A program whose panic hook ends the process asks [`is_guarded`] first, and leaves the panic to whoever catches it.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// How many threads do guarded work.
static GUARDED: AtomicUsize = AtomicUsize::new(0);
/// Whether what helpers work for is given up, see [`give_helpers_up`].
static ARE_GIVEN_UP: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// How many guards the work of this thread is within.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Does what may panic.
///
/// # Errors
/// Returns the first line of what the panic said.
pub fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    let _within = Within::enter();
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied());
        let first_line = text.and_then(|text| text.lines().next());
        first_line.unwrap_or("without a word").to_owned()
    })
}

/// The guard of a thread, for work that another thread does in its place and whose panics come back.
#[derive(Debug, Clone, Copy)]
pub struct Carried(usize);

impl Carried {
    /// Takes up the guard of this thread, if it is within one.
    pub fn from_here() -> Self {
        Self(DEPTH.get())
    }

    /// Does work under that guard. A panic goes on to whoever waits for it.
    pub fn over<T>(self, work: impl FnOnce() -> T) -> T {
        let _within = (self.0 > 0).then(Within::enter);
        work()
    }
}

/// Says that a device is given up after a panic: its helpers may panic again while it is put away, and nobody waits for them.
pub fn give_helpers_up() {
    ARE_GIVEN_UP.store(true, Ordering::Relaxed);
}

/// Who works for others, and passes panics on to them.
#[derive(Debug, Clone, Copy)]
pub struct Helpers {
    /// How the names of such threads begin.
    pub threads: &'static [&'static str],
    /// What the paths of such libraries' sources hold; they may have threads without a name.
    pub sources: &'static [&'static str],
}

/// Tells whether a panic of this thread, at this place, is caught by a guard, or harms nobody any more.
///
/// Helpers are guarded while anybody is, and once they are given up.
pub fn is_guarded(place: Option<&Location<'_>>, helpers: Helpers) -> bool {
    let thread = std::thread::current();
    let is_thread = |name: &str| {
        helpers
            .threads
            .iter()
            .any(|helper| name.starts_with(helper))
    };
    let is_source = |place: &Location<'_>| {
        helpers
            .sources
            .iter()
            .any(|source| place.file().contains(source))
    };
    let is_helper = match thread.name() {
        Some(name) => is_thread(name),
        None => place.is_some_and(is_source),
    };
    let is_waited_for = GUARDED.load(Ordering::Relaxed) > 0;
    DEPTH.get() > 0 || is_helper && (is_waited_for || ARE_GIVEN_UP.load(Ordering::Relaxed))
}

/// Counts while it lives.
struct Within;

impl Within {
    fn enter() -> Self {
        DEPTH.set(DEPTH.get() + 1);
        GUARDED.fetch_add(1, Ordering::Relaxed);
        Self
    }
}

impl Drop for Within {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
        GUARDED.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELPERS: Helpers = Helpers {
        threads: &["DSU-"],
        sources: &["/guarded.rs"],
    };

    fn is_guarded_here() -> bool {
        is_guarded(Some(Location::caller()), HELPERS)
    }

    #[test]
    fn a_panic_is_what_it_said_and_the_guard_ends_with_it() {
        let name = std::thread::current().name().map(str::to_owned);
        assert!(
            name.is_some_and(|name| name.contains("a_panic")),
            "no helper"
        );
        assert!(!is_guarded_here());
        let said = guarded(|| -> u8 {
            assert!(is_guarded_here());
            panic!("the device is lost\nfor ever")
        });
        assert_eq!(said, Err("the device is lost".to_owned()));
        assert!(!is_guarded_here());
        assert_eq!(guarded(|| 5), Ok(5));
    }

    #[test]
    fn work_that_another_thread_does_is_under_the_same_guard() {
        let elsewhere = |guard: Carried| {
            let thread = std::thread::Builder::new();
            let asked = thread.spawn(move || guard.over(|| DEPTH.get() > 0));
            asked.unwrap().join().unwrap()
        };
        assert!(!elsewhere(Carried::from_here()));
        assert_eq!(guarded(|| elsewhere(Carried::from_here())), Ok(true));
    }

    #[test]
    fn a_helper_is_guarded_while_somebody_waits_for_it() {
        let ask = |name: Option<&str>, helpers: Helpers| {
            let mut thread = std::thread::Builder::new();
            if let Some(name) = name {
                thread = thread.name(name.into());
            }
            let place = Location::caller();
            let asked = thread.spawn(move || is_guarded(Some(place), helpers));
            asked.unwrap().join().unwrap()
        };
        let elsewhere = Helpers {
            sources: &["/wgpu"],
            ..HELPERS
        };
        let asked = guarded(|| {
            [
                ask(Some("DSU-0-0"), HELPERS),
                ask(Some("recorder"), HELPERS),
                ask(None, HELPERS),
                ask(None, elsewhere),
            ]
        });
        assert_eq!(asked, Ok([true, false, true, false]));
    }
}
