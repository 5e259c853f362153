//! From a node's settings to what the runtime takes: texts become keys, addresses and sets, once.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fednode_core::{FederationSpec, NodeId};
use fednode_net::NetworkKey;
use fednode_runtime::exit::ExitCode;
use fednode_runtime::{ControlConfig, MemberConfig};

use crate::config::Config;
use crate::failure::{OrFail, fail};

/// Resolves the settings of a member.
///
/// # Errors
/// Fails on a network key or allow-list that cannot be read.
pub(crate) fn config(config: &Config, spec: Arc<FederationSpec>) -> anyhow::Result<MemberConfig> {
    let optional = |path: &str| (!path.is_empty()).then(|| Path::new(path).to_owned());
    let network_key = optional(&config.network_key).map(|path| NetworkKey::load(&path)).transpose();
    let allow = optional(&config.allow).map(|path| read_allow_list(&path)).transpose()?;
    let mut member = MemberConfig::new(spec, &config.state);
    member.listen.clone_from(&config.listen);
    member.external.clone_from(&config.external);
    member.peers.clone_from(&config.peers);
    member.allow = allow;
    member.network_key = network_key.or_fail(ExitCode::Network)?;
    member.mdns = config.mdns;
    member.compression = config.compression.parse().expect("validated with the settings");
    member.quota_bytes = config.quota_mib.saturating_mul(1 << 20);
    member.control = control(config);
    member.exit_when_finished = config.exit_when_finished;
    member.evaluate_every = config.evaluate_every;
    member.linger = Duration::from_secs_f64(config.linger_seconds);
    Ok(member)
}

fn control(config: &Config) -> ControlConfig {
    match config.control.parse() {
        Ok(address) => ControlConfig { address, enabled: true },
        // Validated: what is no address is `off`.
        Err(_) => ControlConfig { enabled: false, ..ControlConfig::default() },
    }
}

/// Reads node ids, one a line; empty lines and what follows `#` are for people.
fn read_allow_list(path: &Path) -> anyhow::Result<BTreeSet<NodeId>> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| fail(ExitCode::Configuration, format!("cannot read the allow-list `{shown}`: {error}")))?;
    parse_allow_list(&text).map_err(|error| fail(ExitCode::Configuration, format!("`{shown}`, {error}")))
}

fn parse_allow_list(text: &str) -> Result<BTreeSet<NodeId>, String> {
    let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.split('#').next().unwrap_or_default().trim()));
    let ids = lines.filter(|(_, line)| !line.is_empty());
    ids.map(|(at, line)| line.parse().map_err(|error| format!("line {at}: {error}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allow_lists_may_have_comments() {
        let id = NodeId::from_bytes([0; 32]);
        let text = format!("# hospitals\n\n{id}  # Lund\n");
        assert_eq!(parse_allow_list(&text).unwrap(), BTreeSet::from([id]));
        assert!(parse_allow_list("\nnobody").unwrap_err().starts_with("line 2: `nobody`"));
    }

    #[test]
    fn the_control_api_can_be_off() {
        assert!(!control(&Config { control: "off".into(), ..Config::default() }).enabled);
        assert_eq!(control(&Config::default()), ControlConfig::default());
    }
}
