//! `fednode watch`: what `fednode status` says, again and again, until Ctrl-C.
//!
//! On a terminal the text stays in place and changes. Elsewhere a line is printed whenever there is another one to say.

use std::io::IsTerminal;
use std::path::Path;
use std::time::Duration;

use fednode_core::plain;
use fednode_runtime::control::{Client, ClientError};
use fednode_runtime::exit::ExitCode;
use fednode_runtime::membership;
use fednode_runtime::releases::OwnersBudget;
use fednode_runtime::status::Status;
use fednode_runtime::streams::{self, Reader};

use crate::command::status::{Answer, doing, spent};
use fednode_cli::failure::{OrFail, fail};
use fednode_cli::interrupt::Interrupts;
use fednode_cli::output::{Form, Report};
use fednode_cli::state::StateArgs;
use fednode_cli::table::score;

/// Names of nodes in one line.
const NAMED: usize = 4;
/// To the upper left corner, and clear what is below.
const CLEAR: &str = "\x1b[H\x1b[J";

/// What is typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    state: StateArgs,
    /// Seconds between two looks (0.1 to 3600).
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    every: f64,
}

/// Prints until somebody stops it. A node that is not there is waited for: it may be about to start again.
pub(crate) fn run(args: &Args, form: Form) -> anyhow::Result<()> {
    if !(0.1..=3600.0).contains(&args.every) {
        let text = format!("--every {} is out of range: take 0.1 to 3600", args.every);
        return Err(fail(ExitCode::Usage, text));
    }
    let folder = args.state.folder()?;
    let owner = args.state.owners_budget()?;
    let interrupts = Interrupts::install().or_fail(ExitCode::Internal)?;
    // What is printed calls members by their names.
    _ = membership::look(&folder);
    let in_place = form == Form::Human && std::io::stdout().is_terminal();
    let mut said = String::new();
    loop {
        let text = match look(&folder, owner.clone()) {
            Ok(answer) if form == Form::Json => serde_json::to_string(&answer)? + "\n",
            Ok(answer) if in_place => answer.human(),
            Ok(answer) => line(answer.status()),
            Err(error) if form == Form::Json => {
                serde_json::json!({ "error": error.to_string() }).to_string() + "\n"
            }
            Err(error) => format!("{error}\n"),
        };
        let place = if in_place { CLEAR } else { "" };
        let is_news = in_place || form == Form::Json || text != said;
        if is_news && print(&format!("{place}{}", plain(&text)))? == Reader::Gone {
            return Ok(());
        }
        said = text;
        // A signal that came during the look counts as well.
        if interrupts.count() > 0 || !interrupts.sleep(Duration::from_secs_f64(args.every)) {
            return Ok(());
        }
    }
}

/// Prints, and tells whether anybody still reads.
fn print(text: &str) -> anyhow::Result<Reader> {
    streams::write(text).or_fail(ExitCode::Output)
}

fn look(folder: &Path, owner: OwnersBudget) -> Result<Answer, ClientError> {
    let client = Client::of(folder)?;
    let (status, peers) = (client.status()?, client.peers()?);
    Ok(Answer::new(status, &peers, spent(owner)))
}

/// Says what matters in one line, without numbers that change all the time.
fn line(status: &Status) -> String {
    let mut parts = match status.training {
        // The batches go by too fast for lines.
        Some(now) => vec![format!(
            "{} round {} of {}, epoch {}/{}",
            status.phase.name(),
            status.round,
            status.rounds,
            now.epoch,
            now.epochs
        )],
        None => vec![doing(status)],
    };
    let record = status.last_record.as_ref();
    parts.extend(record.and_then(|record| {
        let (label, score) = score(&status.score, Some(record.score()?));
        Some(format!("round {}: {label} {score}", record.round))
    }));
    let waits = status.waiting_for.first();
    parts.extend(waits.map(|wait| format!("waits for {}", wait.subject(NAMED))));
    parts.join("; ") + "\n"
}
