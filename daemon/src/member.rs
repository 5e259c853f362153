//! From a node's settings to what the runtime takes: texts become keys, addresses and sets, once.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fednode_core::FederationSpec;
use fednode_net::NetworkKey;
use fednode_runtime::exit::ExitCode;
use fednode_runtime::{ControlConfig, MemberConfig, allow_list};

use crate::config::Config;
use crate::failure::{OrFail, fail};

/// Resolves the settings of a member.
///
/// # Errors
/// Fails on a network key or allow-list that cannot be read.
pub(crate) fn config(config: &Config, spec: Arc<FederationSpec>) -> anyhow::Result<MemberConfig> {
    let optional = |path: &str| (!path.is_empty()).then(|| Path::new(path).to_owned());
    let network_key = optional(&config.network_key)
        .map(|path| NetworkKey::load(&path))
        .transpose();
    let allow = optional(&config.allow)
        .map(|path| allow_list::read(&path))
        .transpose();
    let mut member = MemberConfig::new(spec, &config.state);
    member.listen.clone_from(&config.listen);
    member.external.clone_from(&config.external);
    member.peers.clone_from(&config.peers);
    member.allow = allow.map_err(|error| fail(ExitCode::Configuration, error))?;
    member.network_key = network_key.or_fail(ExitCode::Network)?;
    member.mdns = config.mdns;
    member.compression = config
        .compression
        .parse()
        .expect("validated with the settings");
    member.quota_bytes = config.quota_mib.saturating_mul(1 << 20);
    member.control = control(config);
    member.exit_when_finished = config.exit_when_finished;
    member.evaluate_every = config.evaluate_every;
    member.shares_module = config.share_module;
    member.linger = Duration::from_secs_f64(config.linger_seconds);
    Ok(member)
}

fn control(config: &Config) -> ControlConfig {
    match config.control.parse() {
        Ok(address) => ControlConfig {
            address,
            enabled: true,
        },
        // Validated: what is no address is `off`.
        Err(_) => ControlConfig {
            enabled: false,
            ..ControlConfig::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_api_can_be_off() {
        assert!(
            !control(&Config {
                control: "off".into(),
                ..Config::default()
            })
            .enabled
        );
        assert_eq!(control(&Config::default()), ControlConfig::default());
    }
}
