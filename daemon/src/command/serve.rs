//! `fednode serve`: a node's model answers over HTTP until Ctrl-C ([`crate::served`]).

use std::net::SocketAddr;
use std::path::PathBuf;

use fednode_runtime::exit::ExitCode;
use fednode_runtime::streams::say;
use fednode_runtime::{signals, telemetry};
use fednode_serve::{ModelFacts, Server, Settings};
use serde::Serialize;

use super::start::executor;
use crate::served::{self, ACCESS_FILE};
use fednode_cli::device::Choice;
use fednode_cli::failure::{OrFail, fail};
use fednode_cli::model::ModelArgs;
use fednode_cli::output::{self, Form, Report};

/// What is typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Where to listen; port 0 is one that the system chooses.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    bind: SocketAddr,
    /// The file for address and token [default: `serve.json` in the state folder, or beside an exported model].
    #[arg(long, value_name = "FILE")]
    access_file: Option<PathBuf>,
    /// Threads that compute; 0 for one per core. One is quickest for single rows.
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: usize,
    /// Stop when standard input closes; a server that a program started ends with it.
    #[arg(long, hide = true)]
    stop_when_stdin_closes: bool,
}

/// Serves until somebody stops it.
pub(crate) fn run(args: &Args, form: Form) -> anyhow::Result<()> {
    let config = args.model.state.config()?;
    telemetry::install(config.log.format).or_fail(ExitCode::Configuration)?;
    let device = Choice::find(&args.model.device)?.open(args.threads)?;
    let (served, predicting) = served::open(&args.model, &device)?;
    let access_file = match &args.access_file {
        Some(path) => path.clone(),
        None => args.model.beside(ACCESS_FILE)?,
    };
    let settings = Settings {
        bind: args.bind,
        access_file,
    };
    warn(&served.known(), args.bind);
    executor()?.block_on(async {
        let stop = signals::install().or_fail(ExitCode::Internal)?;
        if args.stop_when_stdin_closes {
            signals::stop_when_stdin_closes(stop.clone());
        }
        let server = Server::start(served, predicting, &settings)
            .await
            .map_err(|error| fail(served::code(&error), error.to_string()))?;
        let serving = Serving {
            serving: format!("http://{}", server.address()),
            access_file: settings.access_file.display().to_string(),
        };
        output::print_line(&serving, form)?;
        stop.cancelled().await;
        server.stop().await;
        Ok(())
    })
}

/// Says on standard error what a user may not expect.
fn warn(facts: &ModelFacts, bind: SocketAddr) {
    if !facts.is_final {
        let ModelFacts { round, rounds, .. } = facts;
        say(format_args!(
            "this is the model of round {round} of {rounds}; those of later rounds take its place"
        ));
    }
    served::warn_of_reach(bind);
}

/// Where predictions are to be had.
#[derive(Debug, Serialize)]
struct Serving {
    serving: String,
    access_file: String,
}

impl Report for Serving {
    fn human(&self) -> String {
        format!(
            "serving at {}, with the token in {}\n",
            self.serving, self.access_file
        )
    }
}
