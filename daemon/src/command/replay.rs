//! `fednode replay`: plays what the flight recorder wrote into the same machine, and shows what it answers.
//!
//! ```text
//! state folder ─► recording/ ─► Player ─► a line per input and output ─► the machine's status, or the verdict
//! ```
//!
//! It only reads: the node may be running, and its data are not needed.

use std::path::PathBuf;

use fednode_core::{BlobId, NodeId, Role, Round, Timestamp};
use fednode_engine::{Input, Output, Phase};
use fednode_runtime::exit::ExitCode;
use fednode_runtime::recording::{Beginning, Image, Player, ReadError, Recording, Standing, Step};
use fednode_runtime::status::WaitingFor;
use fednode_runtime::streams::say;
use serde::Serialize;

use fednode_cli::clock::utc_text;
use fednode_cli::failure::{OrFail, fail};
use fednode_cli::output::{self, Form, Report};
use fednode_cli::state::{meant, refuse_closed};
use fednode_cli::waiting::describe;

/// What is typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The state folder of a node, or of fedboot. Nothing in it is changed, and the node may be running.
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Print from this input on; those before it are given to the machine without being shown.
    #[arg(long, value_name = "N")]
    from: Option<u64>,
    /// Stop after this input and print the machine's status; with --json its whole state as well.
    #[arg(long, value_name = "N")]
    until: Option<u64>,
}

/// Replays and prints.
pub(crate) fn run(args: &Args, form: Form) -> anyhow::Result<()> {
    let folder = meant(&args.folder);
    refuse_closed(&folder)?;
    let recording = Recording::open(&folder).or_fail(ExitCode::State)?;
    args.check(&recording)?;
    for remark in recording.remarks() {
        say(format_args!("note: {remark}"));
    }
    let mut player = Player::new(&recording, args.from).or_fail(ExitCode::Usage)?;
    let mut replayed = Replayed::of(&recording);
    while let Some(step) = player.step().or_fail(ExitCode::Internal)? {
        if let Some(gap) = step.gap {
            say(format_args!(
                "note: inputs {} to {} were not recorded",
                gap.first, gap.last
            ));
        }
        let (number, is_same) = (step.number, step.is_same);
        replayed.count(number);
        if args.from.is_none_or(|from| number >= from) {
            output::print_line(&Line::of(&step), form)?;
        }
        if !is_same {
            return Err(differs(number));
        }
        if args.until == Some(number) {
            return stop(&player, &step, form);
        }
    }
    output::print_line(&replayed, form)
}

impl Args {
    /// Checks the numbers before anything is replayed.
    fn check(&self, recording: &Recording) -> anyhow::Result<()> {
        if let (Some(from), Some(until)) = (self.from, self.until)
            && from > until
        {
            let text = format!("--from {from} is after --until {until}: exchange them");
            return Err(fail(ExitCode::Usage, text));
        }
        let numbers = self.from.iter().chain(&self.until);
        let mut checks = numbers.map(|number| recording.check(*number));
        let checked: Result<(), ReadError> = checks.try_for_each(|checked| checked);
        checked.or_fail(ExitCode::Usage)
    }
}

fn differs(number: u64) -> anyhow::Error {
    let text = format!(
        "the machine answers input {number} otherwise than it did then: this is a defect, unless another build recorded it; \
         look at it with --from {number} --until {number}"
    );
    fail(ExitCode::Internal, text)
}

/// Prints where the machine stands.
fn stop(player: &Player<'_>, step: &Step, form: Form) -> anyhow::Result<()> {
    let (Some(status), Some(image)) = (player.status(), player.image()) else {
        return Ok(());
    };
    let waiting = status.waiting.into_iter().map(|waiting| WaitingFor {
        what: waiting.what,
        whom: waiting.whom,
        seconds: waiting.since.as_secs_f64(),
        cause: Some(waiting.cause),
        ends_in_seconds: waiting.ends_in.map(|left| left.as_secs_f64()),
        ..WaitingFor::default()
    });
    let stopped = Stopped {
        until: step.number,
        at: step.at,
        phase: status.phase,
        round: status.round,
        closed_round: status.head.round,
        mean: status.head.mean.map(|mean| mean.id),
        waiting_for: waiting.collect(),
        machine: image,
    };
    output::print_line(&stopped, form)
}

/// One input, and what the machine answers.
#[derive(Debug, Serialize)]
struct Line<'a> {
    number: u64,
    at: Timestamp,
    /// Why a segment begins here, if one does.
    begins: Option<Beginning>,
    role: Role,
    phase: Phase,
    round: Round,
    says: String,
    input: &'a Input,
    phase_after: Phase,
    round_after: Round,
    answers: Vec<String>,
    outputs: &'a [Output],
    is_same: bool,
}

impl<'a> Line<'a> {
    fn of(step: &'a Step) -> Self {
        let Standing { role, phase, round } = step.before;
        Self {
            number: step.number,
            at: step.at,
            begins: step.begins,
            role,
            phase,
            round,
            says: step.input.brief().to_string(),
            input: &step.input,
            phase_after: step.after.phase,
            round_after: step.after.round,
            answers: step
                .outputs
                .iter()
                .map(|output| output.brief().to_string())
                .collect(),
            outputs: &step.outputs,
            is_same: step.is_same,
        }
    }
}

impl Report for Line<'_> {
    /// The form is that of the trace lines (`FEDNODE_LOG=fednode::machine=trace`), with the number before it.
    fn human(&self) -> String {
        let (number, at) = (self.number, utc_text(self.at.0));
        let role = match self.role {
            Role::Node => "node",
            Role::Aggregator => "aggregator",
        };
        let line = |phase: Phase, round: Round, what: &str, text: &str| {
            let phase = phase.name();
            format!(
                "{number:>6} {at} role=\"{role}\" phase=\"{phase}\" round={round} {what}={text}\n"
            )
        };
        let input = line(self.phase, self.round, "input", &self.says);
        let answers = self.answers.iter();
        let outputs = answers.map(|text| line(self.phase_after, self.round_after, "output", text));
        input + &outputs.collect::<String>()
    }
}

/// Where the machine stands after the last input that was asked for.
#[derive(Debug, Serialize)]
struct Stopped {
    until: u64,
    at: Timestamp,
    phase: Phase,
    round: Round,
    closed_round: Round,
    mean: Option<BlobId>,
    waiting_for: Vec<WaitingFor>,
    machine: Image,
}

impl Report for Stopped {
    fn human(&self) -> String {
        let (at, phase) = (utc_text(self.at.0), self.phase.name());
        let mut text = format!(
            "\nafter input {} ({at})\ndoing       {phase} round {}\nclosed      round {}\n",
            self.until, self.round, self.closed_round
        );
        for waiting in &self.waiting_for {
            text += &format!("waits for   {}\n", describe(waiting));
        }
        text
    }
}

/// The verdict on a whole recording.
#[derive(Debug, Serialize)]
struct Replayed {
    node: Option<NodeId>,
    segments: usize,
    first: Option<u64>,
    last: Option<u64>,
    inputs: u64,
}

impl Replayed {
    fn of(recording: &Recording) -> Self {
        Self {
            node: recording.owner().map(|(node, _)| node),
            segments: recording.n_segments(),
            first: None,
            last: None,
            inputs: 0,
        }
    }

    fn count(&mut self, number: u64) {
        self.first.get_or_insert(number);
        self.last = Some(number);
        self.inputs += 1;
    }
}

impl Report for Replayed {
    fn human(&self) -> String {
        let (first, last) = (
            self.first.unwrap_or_default(),
            self.last.unwrap_or_default(),
        );
        let whose = self.node.map(|node| node.short()).unwrap_or_default();
        format!(
            "\nreplayed {} inputs of {whose}, {first} to {last} (segments: {}): every answer is the same as \
             it was then\n",
            self.inputs, self.segments
        )
    }
}
