//! `fedboot join TICKET`: becomes a member, and writes what `fedboot start` needs.

use std::path::Path;

use fednode_config::sample;
use fednode_core::Role;
use fednode_runtime::joining::{self, Home, NETWORK_KEY_FILE};
use fednode_runtime::settings::Network;
use fednode_runtime::{ExitCode as Cause, whole_file};

use crate::cli::JoinArgs;
use crate::config::{Config, DEFAULT_FILE};
use crate::{Failure, print};

pub(crate) fn join(args: &JoinArgs, json: bool) -> Result<(), Failure> {
    let ticket =
        joining::ticket(&args.ticket).map_err(|error| Failure::new(Cause::Usage, error))?;
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
    let home = Home {
        dir: args.dir.clone(),
        state: args.dir.join(&config.storage.state),
    };
    let joined = runtime
        .block_on(joining::join(&ticket, &home, Role::Aggregator))
        .map_err(|error| Failure::new(error.exit_code(), error))?;
    let settings = args.dir.join(DEFAULT_FILE);
    write_if_absent(&settings, &sample(&config, &Config::doc()))?;
    print::joined(&joined.name, &settings, json)
}

fn write_if_absent(path: &Path, text: &str) -> Result<(), Failure> {
    if path.exists() {
        return Ok(());
    }
    whole_file::write(path, text.as_bytes())
        .map_err(|error| Failure::new(Cause::State, format!("{}: {error}", path.display())))
}
