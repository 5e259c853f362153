//! What a user types: the command line, its help, and the one table of commands.

use clap::{Parser, Subcommand};
use fednode_cli::device::PROBE_COMMAND;
use fednode_lab::command as lab;
use fednode_runtime::control::Farewell;
use fednode_runtime::exit::ExitCode;

use crate::command;
use fednode_cli::output::Form;

/// A peer-to-peer federated-learning daemon.
#[derive(Debug, Parser)]
#[command(name = "fednode", version, about, after_help = exit_codes(), max_term_width = 120)]
pub(crate) struct Cli {
    /// Print JSON instead of text for people.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

/// All commands. One row here, one file in `command/`.
#[derive(Debug, Subcommand)]
enum Command {
    /// Try it out: start a whole federation on this machine and print what it learned.
    // Scripts have defaults of their own; what is typed after them wins.
    #[command(args_override_self = true)]
    Swarm(Box<lab::swarm::Args>),
    /// Run federations in one process, for experiments, and print a table of what they learned.
    Simulate(Box<lab::simulate::Args>),
    /// Write one HTML file of what came of runs: numbers, plots, runs side by side.
    Report(lab::report::Args),
    /// Take part in a federation: train, exchange, serve.
    Start(Box<command::start::Args>),
    /// Prepare a folder: a key, a commented federation.toml and a commented node.toml.
    Init(Box<command::init::Args>),
    /// Invite somebody: print a ticket, one line of text that lets one node join.
    Invite(command::members::InviteArgs),
    /// Join a federation with a ticket: prepare a folder and start.
    Join(Box<command::join::Args>),
    /// List who belongs to the federation.
    Members(command::members::MembersArgs),
    /// End somebody's membership, or withdraw an invitation.
    Revoke(command::members::RevokeArgs),
    /// Add rounds to a federation that goes on, with other settings if you like.
    Extend(command::extend::Args),
    /// Replace a member's key, with a ticket that the organiser made for it.
    RotateKey(command::rotate_key::Args),
    /// Show what a table holds, column by column, and whether it goes with a federation.
    Data(command::data::Args),
    /// Say what to begin with, by what the data are.
    Advise(command::advise::Args),
    /// Show what everybody's table holds, column by column, as nodes agreed in the first round.
    Describe(command::describe::Args),
    /// Say what a running node does and what it waits for.
    Status(command::status::Args),
    /// Say what a running node does again and again, until Ctrl-C.
    Watch(command::watch::Args),
    /// Show what a node, a swarm or a run does in a browser, until Ctrl-C.
    Dashboard(command::dashboard::Args),
    /// Write the records of a node, a swarm or a run for TensorBoard, until Ctrl-C.
    #[command(name = "tensorboard")]
    TensorBoard(command::tensorboard::Args),
    /// Stop a running node, as Ctrl-C does, and wait until it has ended.
    Stop(command::stop::Args),
    /// Leave the federation for good: tell the others, stop, and wait until the node has ended.
    Leave(command::stop::LeaveArgs),
    /// Write all that makes a node into one file, while it runs or not.
    Backup(command::backup::Args),
    /// Put a node back from its backup, here or on another machine.
    Restore(command::restore::Args),
    /// Check the signed history in a state folder: who closed each round, how many it counts, and whether they signed it.
    Audit(command::audit::Args),
    /// Replay what a node was told and what it answered, from the recording in its state folder.
    Replay(command::replay::Args),
    /// List the members that a running node is connected to.
    Peers(command::peers::Args),
    /// Show whose experts a running node mixes into its own, with similarity and weight.
    Experts(command::experts::Args),
    /// Evaluate a node's model on data.
    Evaluate(command::evaluate::Args),
    /// Predict the classes of files: PNG, JPEG, IDX, or CSV rows.
    Predict(command::predict::Args),
    /// Answer over HTTP with a node's model, until Ctrl-C.
    Serve(command::serve::Args),
    /// Write a node's model as safetensors with a JSON card.
    Export(command::export::Args),
    /// Train what an algorithm trains for a node alone (PFL-MoE, FedBABU), at any time, and write the result.
    Personalise(command::personalise::Args),
    /// Measure at home what the parts that a node publishes tell of who is in its data.
    Privacy(Box<command::privacy::Args>),
    /// Check this machine: GPU, ports, clock, disk, data.
    Doctor(command::doctor::Args),
    /// List the federated algorithms, or explain one.
    Algorithms(command::algorithms::Args),
    /// Explain what a command ended with, or why a node waits, and say what to do.
    Explain(command::explain::Args),
    /// Print the completions for a shell.
    Completions(command::completions::Args),
    /// Answer a parent process that wants to know whether a GPU driver survives being used.
    #[command(name = PROBE_COMMAND, hide = true)]
    ProbeDevice(command::probe_device::Args),
}

impl Cli {
    /// Carries out what was typed.
    ///
    /// # Errors
    /// One line and an exit code, see [`fednode_cli::failure`].
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let form = if self.json { Form::Json } else { Form::Human };
        match self.command {
            Command::Swarm(args) => lab::swarm::run(&args, form),
            Command::Simulate(args) => lab::simulate::run(&args, form),
            Command::Report(args) => lab::report::run(&args, form),
            Command::Start(args) => command::start::run(*args, form),
            Command::Init(args) => command::init::run(&args, form),
            Command::Invite(args) => command::members::invite(&args, form),
            Command::Join(args) => command::join::run(*args, form),
            Command::Members(args) => command::members::list(&args, form),
            Command::Revoke(args) => command::members::revoke(&args, form),
            Command::Extend(args) => command::extend::run(&args, form),
            Command::RotateKey(args) => command::rotate_key::run(&args, form),
            Command::Data(args) => command::data::run(&args, form),
            Command::Advise(args) => command::advise::run(&args, form),
            Command::Describe(args) => command::describe::run(&args, form),
            Command::Status(args) => command::status::run(&args, form),
            Command::Watch(args) => command::watch::run(&args, form),
            Command::Dashboard(args) => command::dashboard::run(&args, form),
            Command::TensorBoard(args) => command::tensorboard::run(&args, form),
            Command::Stop(args) => command::stop::run(&args, Farewell::Stop, form),
            Command::Leave(args) => command::stop::leave(&args, form),
            Command::Backup(args) => command::backup::run(&args, form),
            Command::Restore(args) => command::restore::run(&args, form),
            Command::Audit(args) => command::audit::run(&args, form),
            Command::Replay(args) => command::replay::run(&args, form),
            Command::Peers(args) => command::peers::run(&args, form),
            Command::Experts(args) => command::experts::run(&args, form),
            Command::Evaluate(args) => command::evaluate::run(&args, form),
            Command::Privacy(args) => command::privacy::run(&args, form),
            Command::Predict(args) => command::predict::run(&args, form),
            Command::Serve(args) => command::serve::run(&args, form),
            Command::Export(args) => command::export::run(&args, form),
            Command::Personalise(args) => command::personalise::run(&args, form),
            Command::Doctor(args) => command::doctor::run(&args, form),
            Command::Algorithms(args) => command::algorithms::run(&args, form),
            Command::Explain(args) => command::explain::run(&args, form),
            Command::Completions(args) => command::completions::run(&args),
            Command::ProbeDevice(args) => command::probe_device::run(&args),
        }
    }
}

fn exit_codes() -> String {
    let line = |code: &ExitCode| format!("  {:>3}  {}\n", code.number(), code.cause());
    format!(
        "Exit codes:\n{}",
        ExitCode::ALL.iter().map(line).collect::<String>()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
        let help = Cli::command().render_help().to_string();
        assert!(help.contains("130  stopped before it was done"), "{help}");
        assert!(!help.contains(PROBE_COMMAND), "{help}");
    }
}
