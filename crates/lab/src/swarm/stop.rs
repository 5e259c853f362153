//! Stopping children: asked, then told, then ended.

use std::time::{Duration, Instant};

use fednode_runtime::control::Client;

use crate::swarm::child::Child;
use fednode_cli::interrupt::Interrupts;

/// When a child that was asked is told (SIGTERM).
const TELL_AFTER: Duration = Duration::from_millis(2500);
/// When a child that was told is ended (SIGKILL). Below the five seconds that a user waits for Ctrl-C.
const END_AFTER: Duration = Duration::from_millis(4500);
/// How often children are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Stops all children and returns when none is left. Another Ctrl-C meanwhile ends them at once.
pub(crate) fn all(children: &mut [Child], interrupts: &Interrupts) {
    let asked = interrupts.count();
    ask(children);
    let started = Instant::now();
    let mut told = false;
    loop {
        children.iter_mut().for_each(|child| _ = child.ended());
        if children.iter_mut().all(|child| child.ended().is_some()) {
            return;
        }
        let waited = started.elapsed();
        if waited > END_AFTER || interrupts.count() > asked {
            children.iter_mut().for_each(Child::kill);
        } else if waited > TELL_AFTER && !told {
            told = true;
            children.iter_mut().for_each(Child::terminate);
        }
        interrupts.sleep(LOOK_EVERY);
    }
}

/// Asks all at the same time. Nobody waits for the answers: a child that hangs is told soon enough.
fn ask(children: &mut [Child]) {
    for child in children
        .iter_mut()
        .filter_map(|child| child.ended().is_none().then_some(child))
    {
        match Client::of(&child.spec.state) {
            Ok(client) => drop(std::thread::spawn(move || client.stop())),
            // It does not listen yet: the signal is the same request.
            Err(_) => child.terminate(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::swarm::child::Spec;

    fn shell(folder: &std::path::Path, script: &str) -> Child {
        let arguments = vec!["-c".to_owned(), script.to_owned()];
        let (log, state) = (folder.join("log"), folder.to_owned());
        Child::start(Spec {
            name: "shell".into(),
            program: "/bin/sh".into(),
            arguments,
            log,
            state,
        })
        .unwrap()
    }

    #[test]
    fn children_that_do_not_listen_are_ended() {
        let folder = tempfile::tempdir().unwrap();
        let mut children = vec![
            shell(folder.path(), "exit 0"),
            shell(folder.path(), "exec sleep 60"),
            shell(folder.path(), "trap '' TERM; while :; do sleep 0.1; done"),
        ];
        let started = Instant::now();
        all(&mut children, &Interrupts::default());
        // With room for a busy machine; the one that listens to nothing would be there for ever.
        assert!(
            started.elapsed() < Duration::from_secs(8),
            "{:?}",
            started.elapsed()
        );
        assert!(children.iter_mut().all(|child| child.ended().is_some()));
    }
}
