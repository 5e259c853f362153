//! `fednode extend`: the organiser adds rounds to its federation, or changes settings of one that is endless.

use std::collections::BTreeMap;
use std::path::PathBuf;

use fednode_core::spec::CHANGEABLE;
use fednode_core::{ConfigError, FederationSpec, Round};
use fednode_runtime::ExitCode;
use serde::Serialize;

use super::members;
use fednode_cli::dotted::Assignment;
use fednode_cli::failure::fail;
use fednode_cli::output::{self, Form, Report};
use fednode_learn::{LearnError, algorithm, last_stage, own_model};

/// What is typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How many rounds follow the last one. An endless federation goes on by itself.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=99_999))]
    rounds: Option<u32>,
    #[arg(long, value_name = "KEY=VALUE", help = help())]
    set: Vec<Assignment>,
    /// The folder in which `fednode init` prepared the federation.
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
}

fn help() -> String {
    format!(
        "What is different in them; may be repeated: {}",
        CHANGEABLE.join(", ")
    )
}

/// Signs more rounds.
pub(crate) fn run(args: &Args, form: Form) -> anyhow::Result<()> {
    let organiser = members::open(&args.dir)?;
    let agreed = members::own_spec(&args.dir, &organiser)?;
    let settings = args.set.iter();
    let settings: BTreeMap<String, String> = settings
        .map(|one| (one.key.clone(), one.value.clone()))
        .collect();
    let rounds = rounds(args.rounds, &agreed)?;
    let reached = if agreed.endless {
        fednode_runtime::newest_round(members::config(&args.dir)?.state())
            .map_err(|error| fail(error.exit_code(), error.to_string()))?
    } else {
        Round::ZERO
    };
    let more = (rounds, settings.clone());
    let extended = organiser
        .extend(&agreed, more, reached, check, fednode_net::now())
        .map_err(members::failure)?;
    output::print(
        &Extended {
            federation: agreed.id().to_string(),
            first: extended.rounds + 1 - rounds,
            last: extended.rounds,
            endless: agreed.endless,
            settings,
        },
        form,
    )
}

/// Returns how many rounds follow an end.
///
/// # Errors
/// Says what to type in this federation.
fn rounds(typed: Option<u32>, agreed: &FederationSpec) -> anyhow::Result<u32> {
    let text = match (typed, agreed.endless) {
        (Some(rounds), false) => return Ok(rounds),
        (None, true) => return Ok(agreed.rounds),
        (None, false) => "say how many rounds are added, with --rounds",
        (Some(_), true) => {
            "this federation is endless and goes on by itself: leave --rounds out, and name a setting with --set to change it"
        }
    };
    Err(fail(ExitCode::Usage, text))
}

/// Refuses what members could not start with: what is signed cannot be taken back.
fn check(extended: &FederationSpec) -> Result<(), ConfigError> {
    let refuse = |error: LearnError| ConfigError(error.to_string());
    algorithm::check_exchange(extended)?;
    own_model::check(extended).map_err(refuse)?;
    last_stage::check(extended).map_err(refuse)
}

/// What was added.
#[derive(Debug, Serialize)]
struct Extended {
    federation: String,
    first: u32,
    last: u32,
    endless: bool,
    settings: BTreeMap<String, String>,
}

impl Report for Extended {
    fn human(&self) -> String {
        let Self {
            first,
            last,
            endless,
            settings,
            ..
        } = self;
        let changed = settings
            .iter()
            .map(|(key, value)| format!("{key} = {value}"));
        let changed: Vec<String> = changed.collect();
        let changed = changed.join(", ");
        if *endless {
            return format!(
                "from round {first} on {changed}\nMembers that run hear of it within seconds. Whoever hears of it after that round has begun \
                 takes it up after the next end.\n"
            );
        }
        let changed = if changed.is_empty() {
            changed
        } else {
            format!("In them {changed}.\n")
        };
        format!(
            "rounds {first} to {last} are added\n{changed}Members that run hear of it within seconds, and go on when they are done \
             with what they knew.\nMembers that have ended are started again as before: `fednode start --config node.toml`\n"
        )
    }
}
