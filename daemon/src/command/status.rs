//! `fednode status`: what a running node does and what it waits for.

use fednode_runtime::exit::ExitCode;
use fednode_runtime::releases::OwnersBudget;
use fednode_runtime::status::{Peer, Status, ways};
use fednode_runtime::streams::say;
use serde::Serialize;

use super::spent::Spent;
use fednode_cli::failure::OrFail;
use fednode_cli::output::{self, Form, Report};
use fednode_cli::state::StateArgs;
use fednode_cli::table::{bytes, duration, score};
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
    let privacy = spent(args.state.owners_budget()?);
    output::print(&Answer::new(status, &members, privacy), form)
}

/// Reads what the node's releases cost. That it cannot be read is said, and is no reason to say nothing else.
pub(crate) fn spent(owner: OwnersBudget) -> Option<Spent> {
    let spent = Spent::read(owner);
    spent
        .map_err(|error| say(format_args!("note: {error:#}")))
        .ok()
}

/// What a node says, with how it reaches the others.
#[derive(Debug, Serialize)]
pub(crate) struct Answer {
    #[serde(flatten)]
    status: Status,
    /// How many members are reached in which way, in words; `fednode peers --json` has them one by one.
    #[serde(skip)]
    ways: String,
    /// What has left the node of its owner's data.
    privacy: Option<Spent>,
}

impl Answer {
    pub(crate) fn new(status: Status, members: &[Peer], privacy: Option<Spent>) -> Self {
        let ways = ways(members);
        Self {
            status,
            ways,
            privacy,
        }
    }

    pub(crate) const fn status(&self) -> &Status {
        &self.status
    }
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
            let (label, after) = score(&status.score, record.score());
            let (_, before) = score(&status.score, record.score_after_local_training());
            format!(
                "last round  {}: {label} {after} after the exchange, {before} before",
                record.round
            )
        }));
        lines.extend(status.trainer.as_ref().map(|card| {
            format!(
                "trains      {} ({} parameters) on {}, {} training and {} test samples",
                card.model, card.n_parameters, card.device, card.train_samples, card.test_samples
            )
        }));
        let composition = status.composition();
        lines.extend(composition.map(|made_of| format!("serves      {made_of}")));
        let traffic = &status.traffic;
        lines.push(format!(
            "peers       {}; sent {}, received {}",
            self.ways,
            bytes(traffic.sent.wire),
            bytes(traffic.received.wire)
        ));
        let privacy = self.privacy.as_ref();
        lines.extend(privacy.map(|spent| format!("privacy     {}", spent.sentence().trim_end())));
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
        let loss = now.loss.map(|loss| format!(", loss {loss:.4}"));
        format!(
            " (epoch {}/{}, batch {}/{}{})",
            now.epoch,
            now.epochs,
            now.batch,
            now.batches,
            loss.unwrap_or_default()
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
