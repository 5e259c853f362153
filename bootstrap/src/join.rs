//! `fedboot join TICKET`: becomes a member, and writes what `fedboot start` needs.

use std::path::Path;

use fednode_config::sample;
use fednode_core::Role;
use fednode_net::Ticket;
use fednode_runtime::settings::Network;
use fednode_runtime::{ExitCode as Cause, joining};

use crate::cli::JoinArgs;
use crate::config::{Config, DEFAULT_FILE};
use crate::{Failure, print};

/// The federation's spec.
const SPEC_FILE: &str = "federation.toml";
/// The pre-shared key.
const NETWORK_KEY_FILE: &str = "network.key";

pub(crate) fn join(args: &JoinArgs, json: bool) -> Result<(), Failure> {
    let ticket: Ticket = args
        .ticket
        .parse()
        .map_err(|error| Failure::new(Cause::Usage, error))?;
    let plain = Config::default();
    let config = Config {
        network: Network {
            peers: ticket.addresses.iter().map(ToString::to_string).collect(),
            key: ticket.network_key.as_ref().map(|_| NETWORK_KEY_FILE.into()),
            ..plain.network.clone()
        },
        ..plain
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Cause::Internal, error))?;
    let state = args.dir.join(&config.storage.state);
    let joined = runtime
        .block_on(joining::join(&ticket, &state, Role::Aggregator))
        .map_err(|error| Failure::new(error.exit_code(), error))?;
    write_if_absent(&args.dir.join(SPEC_FILE), &joined.spec.to_toml())?;
    write_if_absent(
        &args.dir.join(DEFAULT_FILE),
        &sample(&config, &Config::doc()),
    )?;
    let key = args.dir.join(NETWORK_KEY_FILE);
    if let Some(network_key) = ticket.network_key.filter(|_| !key.exists()) {
        network_key
            .save(&key)
            .map_err(|error| Failure::new(Cause::State, error))?;
    }
    print::joined(&joined.name, &args.dir.join(DEFAULT_FILE), json)
}

fn write_if_absent(path: &Path, text: &str) -> Result<(), Failure> {
    if path.exists() {
        return Ok(());
    }
    std::fs::write(path, text)
        .map_err(|error| Failure::new(Cause::State, format!("{}: {error}", path.display())))
}
