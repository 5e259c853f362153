//! `fedboot start`: reads the spec, then hands over to the runtime.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fednode_core::{FederationSpec, Round};
use fednode_runtime::settings::bytes_of_mib;
use fednode_runtime::streams::say;
use fednode_runtime::{
    ExitCode as Cause, MemberConfig, Outcome, Process, run_aggregator, signals, telemetry,
};
use tokio::sync::mpsc;

use crate::cli::StartArgs;
use crate::config::{Config, DEFAULT_FILE};
use crate::{Failure, print};

/// Worker threads. Averaging small parts and passing bytes on needs two cores for a thousand nodes.
const WORKERS: usize = 2;
/// Threads for disk and averaging. Each costs memory, so there are few.
const BLOCKING: usize = 4;
/// Addresses that may wait to be printed.
const ADDRESSES: usize = 64;
/// How long blocking tasks may take to end after the result is known.
const LAST_PATIENCE: Duration = Duration::from_millis(500);

pub(crate) fn start(args: &StartArgs, json: bool) -> Result<(), Failure> {
    let config = args.config()?;
    fednode_runtime::allocator::settle();
    telemetry::install(config.log.format)
        .map_err(|error| Failure::new(Cause::Configuration, error))?;
    let with_stdin = args.stop_when_stdin_closes;
    let member = resolve(&config, Round::ZERO)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .max_blocking_threads(BLOCKING)
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Cause::Internal, error))?;
    let result = runtime.block_on(run(member, &config, json, with_stdin));
    runtime.shutdown_timeout(LAST_PATIENCE);
    result
}

/// Runs once, and once more whenever rounds were added.
async fn run(
    member: MemberConfig,
    config: &Config,
    json: bool,
    stop_when_stdin_closes: bool,
) -> Result<(), Failure> {
    let stop = signals::install().map_err(|error| Failure::new(Cause::Internal, error))?;
    if stop_when_stdin_closes {
        signals::stop_when_stdin_closes(stop.clone());
    }
    let mut process = Process::new(&stop);
    let result = to_the_end(member, config, json, &mut process).await;
    process.close().await;
    result
}

async fn to_the_end(
    mut member: MemberConfig,
    config: &Config,
    json: bool,
    process: &mut Process,
) -> Result<(), Failure> {
    loop {
        let (told, mut addresses) = mpsc::channel(ADDRESSES);
        member.on_listening = Some(told);
        let printing = tokio::spawn(async move {
            while let Some(address) = addresses.recv().await {
                print::listening(&address, json)?;
            }
            Ok::<(), Failure>(())
        });
        let result = run_aggregator(member, process).await;
        printing.abort();
        let finished = result.map_err(|error| Failure::new(error.exit_code(), error))?;
        let Outcome::Extended { done } = finished.outcome else {
            return Ok(());
        };
        if process.stop().is_cancelled() {
            return Ok(());
        }
        member = resolve(config, done)?;
    }
}

/// All ends up to `done` are done with.
fn resolve(config: &Config, done: Round) -> Result<MemberConfig, Failure> {
    let (state, organiser) = (&config.storage.state, config.network.organiser.as_deref());
    let spec = fednode_runtime::extended(read_spec(&config.spec)?, (state, organiser), done);
    let spec = spec.map_err(|error| Failure::new(error.exit_code(), error))?;
    let mut member = MemberConfig::new(Arc::new(spec), state.clone());
    let applied = config.network.clone().apply(&mut member);
    applied.map_err(|error| Failure::new(error.exit_code(), error))?;
    member.quota_bytes = config.storage.quota_mib.saturating_mul(1 << 20);
    member.recording_bytes = bytes_of_mib(config.storage.recording_mib);
    member.exit_when_finished = config.exit_when_finished;
    member.linger = Duration::from_secs_f64(config.linger_seconds);
    member.software = concat!("fedboot/", env!("CARGO_PKG_VERSION")).into();
    Ok(member)
}

fn read_spec(path: &Path) -> Result<FederationSpec, Failure> {
    let wrong = |error: &dyn std::fmt::Display| {
        Failure::new(
            Cause::Configuration,
            format!("federation spec {}: {error}", path.display()),
        )
    };
    let text = std::fs::read_to_string(path).map_err(|error| {
        let path = path.display();
        let text = format!(
            "cannot read the federation's spec `{path}`: {error}; get it with a ticket (`fedboot join TICKET --dir DIR`) and start \
             with `--config DIR/{DEFAULT_FILE}`, name it with --spec, or make one with `fednode init`"
        );
        Failure::new(Cause::Configuration, text)
    })?;
    let reading = FederationSpec::read(&text).map_err(|error| wrong(&error))?;
    if let Some(notice) = reading.notice {
        say(format_args!("warning: {notice}"));
    }
    Ok(reading.spec)
}
