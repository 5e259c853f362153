//! `fednode dashboard`: a page in a browser of what a node, a swarm or a run does or did.

use std::net::SocketAddr;
use std::time::Duration;

use fednode_page::Background;
use fednode_runtime::exit::ExitCode;

use fednode_cli::failure::OrFail;
use fednode_cli::interrupt::Interrupts;
use fednode_cli::output::Form;
use fednode_cli::page::{self, To, WatchedArgs};

/// How long a wait may be that only Ctrl-C ends.
const LONG: Duration = Duration::from_secs(3600);

/// What is typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    watched: WatchedArgs,
    /// Where to listen; port 0 is one that the system chooses.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    bind: SocketAddr,
}

/// Serves the page until somebody stops it.
pub(crate) fn run(args: &Args, form: Form) -> anyhow::Result<()> {
    let interrupts = Interrupts::install().or_fail(ExitCode::Internal)?;
    let (settings, _) = page::settings(args.bind, To::Output(form));
    let served = Background::start(args.watched.watched()?, settings);
    let served = served.map_err(|error| page::refused(&error))?;
    while interrupts.count() == 0 && interrupts.sleep(LONG) {}
    drop(served);
    Ok(())
}
