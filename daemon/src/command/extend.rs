//! `fednode extend`: the organiser adds rounds to its federation.

use std::collections::BTreeMap;
use std::path::PathBuf;

use fednode_core::spec::CHANGEABLE;
use fednode_core::{ConfigError, FederationSpec};
use serde::Serialize;

use super::members;
use fednode_cli::dotted::Assignment;
use fednode_cli::output::{self, Form, Report};
use fednode_learn::{LearnError, algorithm, last_stage, own_model};

/// What is typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How many rounds follow the last one.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=99_999))]
    rounds: u32,
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
    let more = (args.rounds, settings.clone());
    let extended = organiser
        .extend(&agreed, more, check, fednode_net::now())
        .map_err(members::failure)?;
    output::print(
        &Extended {
            federation: agreed.id().to_string(),
            first: extended.rounds + 1 - args.rounds,
            last: extended.rounds,
            settings,
        },
        form,
    )
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
    settings: BTreeMap<String, String>,
}

impl Report for Extended {
    fn human(&self) -> String {
        let Self {
            first,
            last,
            settings,
            ..
        } = self;
        let changed = settings
            .iter()
            .map(|(key, value)| format!("{key} = {value}"));
        let changed: Vec<String> = changed.collect();
        let changed = if changed.is_empty() {
            String::new()
        } else {
            format!("In them {}.\n", changed.join(", "))
        };
        format!(
            "rounds {first} to {last} are added\n{changed}Members that run hear of it within seconds, and go on when they are done \
             with what they knew.\nMembers that have ended are started again as before: `fednode start --config node.toml`\n"
        )
    }
}
