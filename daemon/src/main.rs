//! `fednode`: one participant of a federation, and the tools around it.
//!
//! ```text
//! main ─► cli (what was typed) ─► command/<name>.rs ─► start:  config, data, learner, fednode-runtime
//!                                                   ├► swarm, simulate, report: the laboratory, fednode-lab
//!                                                   └► status, peers, …: the control API of a running node
//! ```
//!
//! Wiring only: no maths, no round logic, no socket of its own but the control API's client. Errors are one line on
//! standard error and an exit code by cause; nothing prints a backtrace.
#![deny(clippy::print_stderr)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod advice;
mod cli;
mod command;
mod home;
mod member;
mod rows;
mod served;
mod trainer;
mod unlabelled;

use std::process;

use clap::Parser;
use fednode_core::guarded::{self, Helpers};
use fednode_runtime::exit::ExitCode;
use fednode_runtime::streams::say;

fn main() -> process::ExitCode {
    std::panic::set_hook(Box::new(panicked));
    match cli::Cli::parse().run() {
        Ok(()) => ExitCode::Success.into(),
        Err(error) => {
            let code = fednode_cli::failure::code(&error);
            code.complain(&fednode_cli::failure::one_line(&error));
            code.into()
        }
    }
}

/// What computes for others, and passes its panics on to them: the tensor library's two threads of a device. A device is polled in
/// threads without a name.
const HELPERS: Helpers = Helpers {
    threads: &["DSU-", "DSD-"],
    sources: &["/cubecl", "/wgpu", "/burn-"],
};

/// Says in one line what is a defect of ours, and ends the process: whatever state it left must not go on.
fn panicked(info: &std::panic::PanicHookInfo<'_>) {
    let message = info
        .payload_as_str()
        .unwrap_or("no message")
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    let place = info
        .location()
        .map(|place| format!(" ({}:{})", place.file(), place.line()))
        .unwrap_or_default();
    if guarded::is_guarded(info.location(), HELPERS) {
        // Whoever catches it says what comes of it; where it was is for those who look for the cause.
        tracing::warn!("a library gave up: {message}{place}");
        return;
    }
    say(format_args!(
        "error: internal error: {message}{place}; please report it with the log"
    ));
    process::exit(i32::from(ExitCode::Internal.number()));
}
