//! From a node's settings to what the runtime takes.

use std::sync::Arc;
use std::time::Duration;

use fednode_core::FederationSpec;
use fednode_runtime::MemberConfig;
use fednode_runtime::settings::bytes_of_mib;

use fednode_cli::config::Config;
use fednode_cli::failure::fail;

/// Resolves the settings of a member.
///
/// # Errors
/// Fails on a network key or allow-list that cannot be read.
pub(crate) fn config(config: &Config, spec: Arc<FederationSpec>) -> anyhow::Result<MemberConfig> {
    let mut member = MemberConfig::new(spec, config.state());
    config
        .network
        .clone()
        .apply(&mut member)
        .map_err(|error| fail(error.exit_code(), error.to_string()))?;
    member.quota_bytes = config.storage.quota_mib.saturating_mul(1 << 20);
    member.recording_bytes = bytes_of_mib(config.storage.recording_mib);
    member.exit_when_finished = config.exit_when_finished;
    member.evaluate_every = config.evaluate_every;
    member.shares_module = config.share_module;
    member.privacy = config.owners_budget();
    member.linger = Duration::from_secs_f64(config.linger_seconds);
    Ok(member)
}
