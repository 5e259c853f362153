//! `fedboot start`: reads the spec, then hands over to the runtime.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fednode_core::FederationSpec;
use fednode_net::NetworkKey;
use fednode_runtime::{
    ControlConfig, ExitCode as Cause, MemberConfig, allow_list, run_aggregator, signals, telemetry,
};
use tokio::sync::mpsc;

use crate::cli::StartArgs;
use crate::{Failure, print};

/// Worker threads: it averages small parts and passes bytes on, which two cores do for a thousand nodes.
const WORKERS: usize = 2;
/// Threads for disk and averaging; each costs memory of its own.
const BLOCKING: usize = 4;
/// Addresses that may wait to be printed.
const ADDRESSES: usize = 64;
/// How long tasks that block may take to end after the last word.
const LAST_PATIENCE: Duration = Duration::from_millis(500);

pub(crate) fn start(args: StartArgs) -> Result<(), Failure> {
    fednode_runtime::allocator::settle();
    telemetry::install(args.log, &telemetry::Target::Stderr)
        .map_err(|e| Failure::new(Cause::Configuration, e))?;
    let (json, with_stdin) = (args.json, args.stop_when_stdin_closes);
    let config = resolve(args)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .max_blocking_threads(BLOCKING)
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Cause::Internal, error))?;
    let result = runtime.block_on(run(config, json, with_stdin));
    runtime.shutdown_timeout(LAST_PATIENCE);
    result
}

async fn run(
    mut config: MemberConfig,
    json: bool,
    stop_when_stdin_closes: bool,
) -> Result<(), Failure> {
    let stop = signals::install().map_err(|error| Failure::new(Cause::Internal, error))?;
    if stop_when_stdin_closes {
        signals::stop_when_stdin_closes(stop.clone());
    }
    let (told, mut addresses) = mpsc::channel(ADDRESSES);
    config.on_listening = Some(told);
    let printing = tokio::spawn(async move {
        while let Some(address) = addresses.recv().await {
            print::listening(&address, json)?;
        }
        Ok::<(), Failure>(())
    });
    let result = run_aggregator(config, stop).await;
    printing.abort();
    result
        .map(|_| ())
        .map_err(|error| Failure::new(error.exit_code(), error))
}

fn resolve(args: StartArgs) -> Result<MemberConfig, Failure> {
    let network_key = args
        .network_key
        .as_deref()
        .map(NetworkKey::load)
        .transpose();
    let network_key = network_key.map_err(|error| Failure::new(Cause::Network, error))?;
    let allow = args.allow.as_deref().map(allow_list::read).transpose();
    let allow = allow.map_err(|error| Failure::new(Cause::Configuration, error))?;
    Ok(MemberConfig {
        listen: args.listen,
        external: args.external,
        peers: args.peers,
        allow,
        network_key,
        mdns: args.mdns,
        compression: args.compression,
        max_peers: args.max_peers,
        quota_bytes: args.quota_mib.saturating_mul(1 << 20),
        control: ControlConfig {
            address: args.control,
            enabled: !args.no_control,
        },
        exit_when_finished: args.exit_when_finished,
        linger: Duration::from_secs(args.linger_seconds),
        software: concat!("fedboot/", env!("CARGO_PKG_VERSION")).into(),
        ..MemberConfig::new(Arc::new(read_spec(&args.spec)?), args.state)
    })
}

fn read_spec(path: &Path) -> Result<FederationSpec, Failure> {
    let wrong = |error: &dyn std::fmt::Display| {
        Failure::new(
            Cause::Configuration,
            format!("federation spec {}: {error}", path.display()),
        )
    };
    let text = std::fs::read_to_string(path).map_err(|error| wrong(&error))?;
    let reading = FederationSpec::read(&text).map_err(|error| wrong(&error))?;
    if let Some(notice) = reading.notice {
        eprintln!("warning: {notice}");
    }
    Ok(reading.spec)
}
