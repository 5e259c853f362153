//! `fednode audit`: the signed history of a federation, checked from a state folder alone.
//!
//! It asks nobody and needs neither the node's key nor its data. So an auditor to whom a copy was given gets the same answer.

use fednode_core::{NodeId, Round};
use fednode_runtime::exit::ExitCode;
use fednode_runtime::history::{self, AuditedRound, AuditedWithdrawal, History, Link, Verdict};
use serde::Serialize;

use fednode_cli::clock::utc_text;
use fednode_cli::failure::{OrFail, fail};
use fednode_cli::output::{self, Form, Report};
use fednode_cli::state::StateArgs;
use fednode_cli::table::{number, render, text};

/// What is typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    state: StateArgs,
}

/// Checks the history and prints it. Fails if a signature contradicts it.
pub(crate) fn run(args: &Args, form: Form) -> anyhow::Result<()> {
    let history = history::audit(&args.state.folder()?).or_fail(ExitCode::State)?;
    let refuted = history
        .false_rounds()
        .next()
        .map(|(round, why)| (round, why.to_owned()));
    output::print(&Answer(history), form)?;
    let Some((round, why)) = refuted else {
        return Ok(());
    };
    let text = format!(
        "round {round} is false: {why}. Audit the folder of another member: if it is not false there, this folder was changed; \
         if it is, please report it"
    );
    Err(fail(ExitCode::State, text))
}

#[derive(Debug, Serialize)]
#[serde(transparent)]
struct Answer(History);

impl Report for Answer {
    fn human(&self) -> String {
        let history = &self.0;
        if history.rounds.is_empty() {
            return "no round is kept in this folder: a node keeps those that end while it runs this version, fedboot those that have a mean\n"
                .into();
        }
        let columns = [
            number("round"),
            text("closed"),
            text("by"),
            number("members"),
            text("mean"),
            text("follows"),
            text("verdict"),
        ];
        let rows: Vec<Vec<String>> = history.rounds.iter().map(row).collect();
        format!(
            "{}\n{}",
            render(&columns, &rows),
            summary(history).join("\n")
        ) + "\n"
    }
}

fn row(audited: &AuditedRound) -> Vec<String> {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    let follows = match audited.link {
        Link::First => "nothing".to_owned(),
        Link::Linked => "the one above".to_owned(),
        Link::Gap => "one that is not here".to_owned(),
        Link::NoMean => "-".to_owned(),
    };
    let verdict = match &audited.verdict {
        Verdict::Confirmed => "confirmed".to_owned(),
        Verdict::Signed => "signed".to_owned(),
        Verdict::Unproven(why) => format!("unproven: {why}"),
        Verdict::False(why) => format!("FALSE: {why}"),
    };
    vec![
        audited.round.to_string(),
        or_dash(audited.at.map(|at| utc_text(at.0))),
        or_dash(audited.closed_by.map(|node| node.short())),
        audited.members.to_string(),
        or_dash(audited.mean.map(|mean| mean.short())),
        follows,
        verdict,
    ]
}

/// Says what became of a withdrawal: one line, and one for each thing that is left.
pub(crate) fn withdrawal(taken: &AuditedWithdrawal) -> Vec<String> {
    let joined = |words: Vec<String>| words.join(", ");
    let (keep, gone): (Vec<_>, Vec<_>) = taken.answers.iter().partition(|answer| answer.kept > 0);
    let mut lines = vec![format!(
        "withdrawal of {} in round {}: blobs taken back: {}, members that have signed that all of them are deleted: {}",
        taken.owner.short(),
        taken.round,
        taken.blobs.len(),
        gone.len(),
    )];
    if !keep.is_empty() {
        let keepers = keep
            .iter()
            .map(|answer| format!("{} ({})", answer.by.short(), answer.kept));
        lines.push(format!(
            "  kept when last asked, because a closed round counted them or others had published the same: {}",
            joined(keepers.collect())
        ));
    }
    if !taken.silent.is_empty() {
        let silent = taken.silent.iter().map(NodeId::short).collect();
        lines.push(format!("  no answer from: {}", joined(silent)));
    }
    if !taken.counted_in.is_empty() {
        let rounds = taken.counted_in.iter().map(Round::to_string).collect();
        lines.push(format!(
            "  counted all the same in round: {}",
            joined(rounds)
        ));
    }
    lines
}

fn summary(history: &History) -> Vec<String> {
    let count =
        |wanted: fn(&AuditedRound) -> bool| history.rounds.iter().filter(|row| wanted(row)).count();
    let mut lines = vec![format!(
        "{} rounds: {} confirmed, {} without a mean and signed, {} unproven, {} false; {} follow one that is not here",
        history.rounds.len(),
        count(|row| row.verdict == Verdict::Confirmed),
        count(|row| row.verdict == Verdict::Signed),
        count(|row| matches!(row.verdict, Verdict::Unproven(_))),
        history.false_rounds().count(),
        count(|row| row.link == Link::Gap),
    )];
    let statements = match history.organiser {
        Some(organiser) => format!(
            "{} statements of the organiser {}",
            history.statements,
            organiser.short()
        ),
        None => "no organiser, so anybody may have been a member".to_owned(),
    };
    lines.push(format!(
        "{} good signatures of members; {statements}",
        history.signatures
    ));
    lines.extend(history.withdrawals.iter().flat_map(withdrawal));
    lines.extend(history.faults.iter().map(|fault| {
        let (by, accused, round) = (fault.by.short(), fault.accused.short(), fault.round);
        format!("{by} says that {accused} closed round {round} falsely")
    }));
    lines
}
