//! `fednode completions SHELL`.

use clap::CommandFactory;

use crate::cli::Cli;
use fednode_cli::output;

/// What is typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The shell.
    shell: clap_complete::Shell,
}

/// Prints the script that the shell sources.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "fednode", &mut script);
    output::write(&String::from_utf8_lossy(&script))
}
