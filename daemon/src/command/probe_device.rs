//! `fednode __probe-device QUESTION`, hidden: what may crash is done in this child, see [`fednode_learn::probe`].

use fednode_learn::probe;

use fednode_cli::output;

/// What is typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// `list`, or a device.
    question: String,
}

/// Prints the answer as one line.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    output::write(&(probe::answer(&args.question) + "\n"))
}
