//! One process of a swarm: how it is started, watched and stopped.
//!
//! Children are the ordinary binaries in process groups of their own, so that a Ctrl-C in the terminal reaches the
//! swarm alone and the swarm stops them in order. Each holds the reading end of a pipe as standard input; when the
//! swarm dies, however it dies, the pipe closes and the child stops by itself (`--stop-when-stdin-closes`).

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use fednode_cli::config::is_setting;

/// How much of the end of a log is read to find its last lines.
const TAIL_BYTES: u64 = 16 << 10;

/// What to start.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    /// What it is called: `node 3`, `fedboot`.
    pub(crate) name: String,
    /// The binary.
    pub(crate) program: PathBuf,
    /// Its arguments.
    pub(crate) arguments: Vec<String>,
    /// Where its output goes.
    pub(crate) log: PathBuf,
    /// Its state folder, where `control.json` appears.
    pub(crate) state: PathBuf,
}

/// A running or ended process.
#[derive(Debug)]
pub(crate) struct Child {
    /// What it was started as.
    pub(crate) spec: Spec,
    process: std::process::Child,
}

impl Child {
    /// Starts a process.
    ///
    /// # Errors
    /// Fails if its log cannot be written or its binary cannot be started.
    pub(crate) fn start(spec: Spec) -> io::Result<Self> {
        let log = File::create(&spec.log)?;
        let mut command = Command::new(&spec.program);
        command
            .args(&spec.arguments)
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0);
        // Variables of ours configure the swarm; a child's settings are all on its command line or in its file.
        let is_ours = |name: &str| is_setting(name) || name.starts_with("FEDBOOT_");
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_ours))
        {
            command.env_remove(name);
        }
        Ok(Self {
            process: command.spawn()?,
            spec,
        })
    }

    /// Returns how it ended, if it has ended.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        // A process that cannot be asked about is not ours any more, which never happens to a direct child.
        self.process.try_wait().ok().flatten()
    }

    /// Asks it to end.
    pub(crate) fn terminate(&mut self) {
        self.signal(Signal::TERM);
    }

    /// Ends it.
    pub(crate) fn kill(&mut self) {
        self.signal(Signal::KILL);
    }

    fn signal(&mut self, signal: Signal) {
        if self.ended().is_none() {
            // It may end between the question and the signal; until it is waited for, its number is not reused.
            let _ = kill_process(Pid::from_child(&self.process), signal);
        }
    }

    /// Returns the last lines of its log, for people.
    pub(crate) fn last_lines(&self, count: usize) -> Vec<String> {
        tail(&self.spec.log, count).unwrap_or_default()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
        let _ = self.process.wait();
    }
}

fn tail(path: &Path, count: usize) -> io::Result<Vec<String>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    Ok(lines[lines.len().saturating_sub(count)..]
        .iter()
        .map(|line| (*line).to_owned())
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(folder: &Path, script: &str) -> Child {
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

    fn end(child: &mut Child) -> ExitStatus {
        child.process.stdin.take();
        child.process.wait().unwrap()
    }

    #[test]
    fn output_goes_to_the_log_and_its_end_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let mut child = shell(
            folder.path(),
            "echo one; echo; echo two >&2; echo three; exit 7",
        );
        assert_eq!(end(&mut child).code(), Some(7));
        assert_eq!(child.last_lines(2), ["two", "three"]);
        assert_eq!(child.last_lines(9).len(), 3);
    }

    #[test]
    fn closing_standard_input_tells_a_child_that_nobody_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let mut child = shell(folder.path(), "cat; exit 3");
        assert!(child.ended().is_none());
        assert_eq!(end(&mut child).code(), Some(3));
    }

    #[test]
    fn a_dropped_child_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let child = shell(folder.path(), "trap '' TERM; while :; do sleep 1; done");
        let pid = Pid::from_child(&child.process);
        drop(child);
        assert!(rustix::process::test_kill_process(pid).is_err());
    }
}
