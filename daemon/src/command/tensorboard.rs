//! `fednode tensorboard`: the records of a node, a swarm or a run as TensorBoard's event files.

use std::path::PathBuf;
use std::time::Duration;

use fednode_page::TensorBoard;
use fednode_runtime::exit::ExitCode;
use serde::Serialize;

use fednode_cli::failure::{OrFail, fail};
use fednode_cli::interrupt::Interrupts;
use fednode_cli::output::{self, Form, Report};
use fednode_cli::page::WatchedArgs;

/// How often new records are looked for.
const EVERY: Duration = Duration::from_secs(1);

/// What is typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    watched: WatchedArgs,
    /// The folder to write into, one below it for each node; files that are there are replaced.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// End when all that is there is written, instead of going on until Ctrl-C.
    #[arg(long)]
    once: bool,
}

/// Writes until somebody stops it, or until all is written.
pub(crate) fn run(args: &Args, form: Form) -> anyhow::Result<()> {
    let interrupts = Interrupts::install().or_fail(ExitCode::Internal)?;
    let watched = args.watched.watched()?;
    let mut board = TensorBoard::new(&watched, args.out.clone());
    let mut rounds = 0;
    loop {
        let go_on = || interrupts.count() == 0;
        let written = board.update(go_on).map_err(|error| {
            let out = args.out.display();
            fail(
                ExitCode::State,
                format!("cannot write below `{out}`, or read records: {error}"),
            )
        })?;
        rounds += written;
        if written > 0 {
            let out = args.out.display().to_string();
            output::print_line(&Written { out, rounds }, form)?;
        }
        // A signal that came during the update counts as well.
        if args.once || interrupts.count() > 0 || !interrupts.sleep(EVERY) {
            return Ok(());
        }
    }
}

/// What was written so far.
#[derive(Debug, Serialize)]
struct Written {
    out: String,
    /// Rounds of all nodes.
    rounds: usize,
}

impl Report for Written {
    fn human(&self) -> String {
        let Self { out, rounds } = self;
        format!("{rounds} rounds are in {out}; look at them with `tensorboard --logdir {out}`\n")
    }
}
