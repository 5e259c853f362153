//! `fednode status`: what a running node does and what it waits for.

use fednode_runtime::exit::ExitCode;
use fednode_runtime::status::{Status, ways};
use serde::Serialize;

use fednode_cli::failure::OrFail;
use fednode_cli::output::{self, Form, Report};
use fednode_cli::state::StateArgs;
use fednode_cli::table::{bytes, duration, percent};
use fednode_cli::waiting::describe;

/// Lines of news that are printed.
const NOTES: usize = 5;

/// What is typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    state: StateArgs,
}

/// Asks the node and prints its answer.
pub(crate) fn run(args: &Args, form: Form) -> anyhow::Result<()> {
    let client = args.state.client()?;
    let status = client.status().or_fail(ExitCode::State)?;
    let members = client.peers().or_fail(ExitCode::State)?;
    let ways = ways(&members);
    output::print(&Answer { status, ways }, form)
}

#[derive(Debug, Serialize)]
struct Answer {
    #[serde(flatten)]
    status: Status,
    /// How many members are reached in which way, in words; `fednode peers --json` has them one by one.
    #[serde(skip)]
    ways: String,
}

impl Report for Answer {
    fn human(&self) -> String {
        let status = &self.status;
        let mut lines = vec![
            format!("node        {}", status.node_id),
            format!(
                "federation  {} ({}), {}",
                status.name,
                status.federation.short(),
                status.algorithm
            ),
            format!("doing       {}", doing(status)),
        ];
        for waiting in &status.waiting_for {
            lines.push(format!("waits for   {}", describe(waiting)));
            lines.extend(waiting.outlook().map(|text| format!("            {text}")));
        }
        lines.extend(status.last_record.as_ref().map(|record| {
            let [before, after] = [record.accuracy_after_local_training, record.accuracy]
                .map(|share| share.map_or("-".into(), percent));
            format!(
                "last round  {}: accuracy {after} after the exchange, {before} before",
                record.round
            )
        }));
        lines.extend(status.trainer.as_ref().map(|card| {
            format!(
                "trains      {} ({} parameters) on {}, {} training and {} test samples",
                card.model, card.n_parameters, card.device, card.train_samples, card.test_samples
            )
        }));
        let traffic = &status.traffic;
        lines.push(format!(
            "peers       {}; sent {}, received {}",
            self.ways,
            bytes(traffic.sent.wire),
            bytes(traffic.received.wire)
        ));
        lines.push(format!(
            "up for      {}, version {}",
            duration(status.uptime_seconds),
            status.version
        ));
        lines.extend(
            status
                .listeners
                .iter()
                .map(|address| format!("reach it at {address}")),
        );
        let notes = &status.notes[status.notes.len().saturating_sub(NOTES)..];
        lines.extend(
            notes
                .iter()
                .map(|note| format!("news        {}", note.text)),
        );
        lines.join("\n") + "\n"
    }
}

/// Says what a node does, in a few words.
pub(crate) fn doing(status: &Status) -> String {
    let progress = status.training.map(|now| {
        format!(
            " (epoch {}/{}, batch {}/{}, loss {:.4})",
            now.epoch, now.epochs, now.batch, now.batches, now.loss
        )
    });
    let finished = if status.finished {
        ", all rounds done"
    } else {
        ""
    };
    let (round, rounds) = (status.round, status.rounds);
    format!(
        "{} round {round} of {rounds}{}{finished}",
        status.phase.name(),
        progress.unwrap_or_default()
    )
}
