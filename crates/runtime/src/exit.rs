//! Exit codes: distinct by cause, the same for every program of the project.
//!
//! A process exits with the code of what ended it, so that a script or a service manager can tell a typing error from a
//! full disk without reading logs.

use std::io::{self, IsTerminal};

use crate::streams::say;

/// Why a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ExitCode {
    /// What was asked for is done.
    Success = 0,
    /// The command line is wrong.
    Usage = 2,
    /// A configuration file or variable is wrong.
    Configuration = 3,
    /// Data are missing, damaged or empty.
    Data = 4,
    /// The network cannot be used: port in use, malformed address, unreadable network key.
    Network = 5,
    /// The federation refuses this node: another spec, another protocol, no membership.
    Refused = 6,
    /// The state folder cannot be used: locked, corrupt, of another federation, disk full; or the key runs elsewhere.
    State = 7,
    /// The computing device: no such GPU, or its driver crashed.
    Device = 8,
    /// A child process of a swarm failed.
    Child = 9,
    /// Training failed: it diverged, or the model is no better than a constant answer.
    Training = 10,
    /// Standard output cannot be written.
    Output = 11,
    /// A defect of this software.
    Internal = 70,
    /// Stopped before it was done, by Ctrl-C or a stop request.
    Interrupted = 130,
}

impl ExitCode {
    /// All codes, for documentation.
    pub const ALL: [Self; 13] = [
        Self::Success,
        Self::Usage,
        Self::Configuration,
        Self::Data,
        Self::Network,
        Self::Refused,
        Self::State,
        Self::Device,
        Self::Child,
        Self::Training,
        Self::Output,
        Self::Internal,
        Self::Interrupted,
    ];

    /// Returns the number that the operating system sees.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// Returns the cause in a few words.
    pub const fn cause(self) -> &'static str {
        match self {
            Self::Success => "what was asked for is done",
            Self::Usage => "the command line is wrong",
            Self::Configuration => "a configuration file or variable is wrong",
            Self::Data => "data are missing, damaged or empty",
            Self::Network => {
                "the network cannot be used (port in use, malformed address, network key)"
            }
            Self::Refused => {
                "the federation refuses this node (another spec or protocol, no membership)"
            }
            Self::State => {
                "the state folder cannot be used (locked, corrupt, of another federation, disk full)"
            }
            Self::Device => "the computing device is missing or its driver crashed",
            Self::Child => "a child process of a swarm failed",
            Self::Training => {
                "training failed (it diverged, or the model is no better than a constant answer)"
            }
            Self::Output => "standard output cannot be written (disk full)",
            Self::Internal => "a defect of this software",
            Self::Interrupted => "stopped before it was done",
        }
    }
}

impl ExitCode {
    /// Returns the word by which `fednode explain` and the page on exit codes know it.
    pub const fn topic(self) -> &'static str {
        match self {
            Self::Success => "done",
            Self::Usage => "usage",
            Self::Configuration => "configuration",
            Self::Data => "data",
            Self::Network => "network",
            Self::Refused => "refused",
            Self::State => "state",
            Self::Device => "device",
            Self::Child => "child",
            Self::Training => "training",
            Self::Output => "output",
            Self::Internal => "internal",
            Self::Interrupted => "interrupted",
        }
    }

    /// Says on standard error why a process ends, in one line. A person at a terminal reads where more is said about it, too.
    pub fn complain(self, line: &str) {
        // Who pressed Ctrl-C made no mistake.
        if self == Self::Interrupted {
            return say(line);
        }
        say(format_args!("error: {line}"));
        if io::stderr().is_terminal() {
            say(format_args!("more: fednode explain {}", self.topic()));
        }
    }
}

impl From<ExitCode> for std::process::ExitCode {
    fn from(code: ExitCode) -> Self {
        Self::from(code.number())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_has_its_own_number() {
        let numbers: std::collections::BTreeSet<u8> =
            ExitCode::ALL.iter().map(|code| code.number()).collect();
        assert_eq!(numbers.len(), ExitCode::ALL.len());
    }
}
