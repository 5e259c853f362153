//! `fednode stop` and `fednode leave`: end a running node from outside.
//!
//! Both wait until the process has let go of its state folder, so that what comes next in a script finds it free.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fednode_core::Timestamp;
use fednode_net::Identity;
use fednode_runtime::control::{self, ClientError, Farewell};
use fednode_runtime::exit::ExitCode;
use fednode_runtime::history::{self, AuditedWithdrawal};
use serde::Serialize;

use super::audit;

use fednode_cli::failure::{OrFail, fail};
use fednode_cli::output::{self, Form, Report};
use fednode_cli::state::StateArgs;

/// What is typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    state: StateArgs,
}

/// What is typed after `leave`.
#[derive(Debug, clap::Args)]
pub(crate) struct LeaveArgs {
    #[command(flatten)]
    end: Args,
    /// Also ask the others to delete what this node has published. They delete what nobody else needs, and sign that they
    /// did; `fednode audit` shows who.
    #[arg(long)]
    withdraw: bool,
}

/// Asks the node to leave the federation.
pub(crate) fn leave(args: &LeaveArgs, form: Form) -> anyhow::Result<()> {
    let farewell = if args.withdraw {
        Farewell::Withdraw
    } else {
        Farewell::Leave
    };
    run(&args.end, farewell, form)
}

/// Asks the node to end, waits, and says what happened.
pub(crate) fn run(args: &Args, farewell: Farewell, form: Form) -> anyhow::Result<()> {
    let folder = args.state.folder()?;
    let asked_at = just_before(SystemTime::now());
    let process = match control::end(&folder, farewell) {
        Err(ClientError::NotRunning(folder)) => {
            return Err(fail(ExitCode::State, nobody(farewell, &folder)));
        }
        ended => ended.or_fail(ExitCode::State)?,
    };
    let withdrawn = if farewell == Farewell::Withdraw {
        withdrawn_since(&folder, asked_at)
    } else {
        Vec::new()
    };
    let ended = Ended {
        farewell,
        process,
        state: folder.display().to_string(),
        withdrawn,
    };
    output::print(&ended, form)
}

/// Returns a moment before this one by any clock that is set: a process may be behind after it was set.
fn just_before(now: SystemTime) -> Timestamp {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(since.saturating_sub(Duration::from_secs(60)).as_millis() as u64)
}

/// Returns what became of what the node with this folder has taken back since a moment, as far as that can be read.
fn withdrawn_since(state: &Path, since: Timestamp) -> Vec<AuditedWithdrawal> {
    let history = history::audit(state)
        .inspect_err(|error| tracing::warn!(%error, "who has answered cannot be read"));
    let (Ok(node), Ok(history)) = (Identity::load(&state.join("key")), history) else {
        return Vec::new();
    };
    let mut withdrawn = history.withdrawals;
    withdrawn.retain(|taken| taken.owner == node.node_id() && taken.at >= since);
    withdrawn
}

/// Says that no node runs, and what to do.
fn nobody(farewell: Farewell, folder: &str) -> String {
    match farewell {
        Farewell::Stop => format!(
            "nothing to stop: no node runs with state folder `{folder}`; name another with --state"
        ),
        Farewell::Leave | Farewell::Withdraw => format!(
            "cannot say goodbye: no node runs with state folder `{folder}`; name another with --state, or start this one \
             first. A node that never starts again is left out by the others all the same, only later"
        ),
    }
}

/// A node that has ended.
#[derive(Debug, Serialize)]
struct Ended {
    #[serde(serialize_with = "word")]
    farewell: Farewell,
    process: u32,
    state: String,
    /// What the others have answered, of a node that took back what it published.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    withdrawn: Vec<AuditedWithdrawal>,
}

fn word<S: serde::Serializer>(farewell: &Farewell, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(match farewell {
        Farewell::Stop => "stopped",
        Farewell::Leave => "left",
        Farewell::Withdraw => "withdrawn",
    })
}

impl Report for Ended {
    fn human(&self) -> String {
        let Self { process, state, .. } = self;
        match self.farewell {
            Farewell::Stop => format!(
                "the node has stopped (process {process}); `fednode start` goes on from `{state}`\n"
            ),
            Farewell::Leave => format!(
                "the node has left the federation and stopped (process {process}); the others go on without it. Its model \
                 stays in `{state}`; `fednode start` would join again\n"
            ),
            Farewell::Withdraw => {
                let mut answers: String = self
                    .withdrawn
                    .iter()
                    .flat_map(audit::withdrawal)
                    .fold(String::new(), |text, line| text + &line + "\n");
                if self.withdrawn.is_empty() {
                    answers = "No answer is known here: `fednode audit` of another member's folder shows them\n".into();
                }
                format!(
                    "the node has asked the others to delete what it published, has left the federation and stopped \
                     (process {process}). Means that count it stay as they are. Its model stays in `{state}`\n{answers}"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_say_what_happened_and_what_can_be_done_next() {
        let ended = |farewell| Ended {
            farewell,
            process: 7,
            state: "s".into(),
            withdrawn: Vec::new(),
        };
        let (stopped, left) = (ended(Farewell::Stop), ended(Farewell::Leave));
        let withdrawn = ended(Farewell::Withdraw).human();
        assert!(withdrawn.contains("asked the others to delete"));
        assert!(withdrawn.ends_with("another member's folder shows them\n"));
        assert_eq!(
            stopped.human(),
            "the node has stopped (process 7); `fednode start` goes on from `s`\n"
        );
        assert!(left.human().contains("would join again"));
        assert_eq!(serde_json::to_value(&left).unwrap()["farewell"], "left");
        assert!(nobody(Farewell::Stop, "s").contains("`s`; name another with --state"));
        assert!(nobody(Farewell::Leave, "s").contains("start this one first"));
    }
}
