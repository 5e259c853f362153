//! Settings that every member has, whichever program it is: declared once, a table each in the program's own file.
//!
//! ```text
//! node.toml, fedboot.toml ─► [network] ─► Network ─► MemberConfig ─► fednode-net
//!   FEDNODE_*, FEDBOOT_*  ─► [log]     ─► Log     ─► telemetry
//! ```
//!
//! The rules of layering are those of `fednode-config`. Here the layers are fetched from where they are: the environment
//! and the file.

use std::path::{Path, PathBuf};

use fednode_core::config::layers::{self, File, Settings};
use fednode_core::config::{self, ConfigError};
use fednode_net::{Compression, NetworkKey, SecretFileError};

use crate::allow_list::AllowListError;
use crate::config::{Control, MemberConfig};
use crate::exit::ExitCode;
use crate::streams::say;
use crate::{allow_list, telemetry};

fednode_core::config! {
    /// How this member is reached, and whom it meets.
    pub struct Network {
        /// Addresses to listen on. Port 0 is that of the last start, if it is free, or one that the system chooses.
        listen: Vec<String> = vec!["/ip4/0.0.0.0/tcp/0".into()] => "ADDR",
        /// Addresses under which others reach this member, where it cannot know them itself (behind a port forward).
        external: Vec<String> = Vec::new() => "ADDR",
        /// Members to join through, any of them: `/ip4/192.0.2.7/tcp/4001/p2p/12D3KooW…`.
        peers: Vec<String> = Vec::new() => "ADDR",
        /// A file with the federation's pre-shared network key (64 hexadecimal digits); without it there is none.
        @flat("network_key") key: Option<PathBuf> = None => "FILE",
        /// A file with the node ids that may take part, one a line; without it everybody may who has the spec.
        allow: Option<PathBuf> = None => "FILE",
        /// The organiser's folder, on the one process that answers tickets (`fednode init` makes it); none on all others.
        organiser: Option<PathBuf> = None => "DIR",
        /// Whether anybody may connect who can reach this member. Without a network key, a list or an organiser, a member
        /// listens at addresses of its own machine only, unless this says otherwise.
        open: bool = false,
        /// Whether to look for members on the local network.
        mdns: bool = false,
        /// Whether to ask the router to forward the port, so that others reach this node without a relay (UPnP).
        upnp: bool = false,
        /// Whether members that nobody can dial are reached through this one. Only of use where everybody can dial it.
        relay: bool = false,
        /// Most peers to keep (at least 1).
        max_peers: usize = fednode_net::DEFAULT_MAX_PEERS => "N",
        /// How experts and other blobs come here: `zstd` or `off` (as they are). `zstd` packs a blob against the version held
        /// before. The numbers are the same in fewer bytes, for about 2 ms of processor time per MB on both sides.
        compression: Compression = Compression::Zstd => "METHOD",
        /// Where the control API listens on loopback, `127.0.0.1:0` (port chosen by the system), or `off`.
        control: Control = Control::default() => "ADDR",
    }
}

fednode_core::config! {
    /// How log lines are written.
    pub struct Log {
        /// The form of a log line on standard error: `human` or `json`.
        @flat("log_format") format: telemetry::Format = telemetry::Format::Human => "FORM",
    }
}

/// Tells why what a setting names cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The network key cannot be read.
    #[error(transparent)]
    NetworkKey(#[from] SecretFileError),
    /// The allow-list cannot be read.
    #[error(transparent)]
    Allow(#[from] AllowListError),
}

impl SettingsError {
    /// Returns the exit code of a process that ends with this.
    pub const fn exit_code(&self) -> ExitCode {
        match self {
            Self::NetworkKey(_) => ExitCode::Network,
            Self::Allow(_) => ExitCode::Configuration,
        }
    }
}

impl Network {
    /// Puts these settings into those of a member, reading the files that they name.
    ///
    /// # Errors
    /// Fails on a network key or an allow-list that cannot be read.
    pub fn apply(self, member: &mut MemberConfig) -> Result<(), SettingsError> {
        let key = self.key.as_deref().map(NetworkKey::load).transpose();
        let allow = self.allow.as_deref().map(allow_list::read).transpose();
        member.network_key = key?;
        member.allow = allow?;
        member.organiser = self.organiser;
        member.open = self.open;
        member.listen = self.listen;
        member.external = self.external;
        member.peers = self.peers;
        member.mdns = self.mdns;
        member.upnp = self.upnp;
        member.relay = self.relay;
        member.max_peers = self.max_peers;
        member.compression = self.compression;
        member.control = self.control;
        Ok(())
    }
}

/// Layers flags over the environment over a file: the one named, else the one that `PREFIX_CONFIG` names, else the default
/// one if it is in the current folder, else none. Says on standard error if the file is of the old form.
///
/// # Errors
/// Fails if a named file cannot be read, and on everything that the layers refuse.
pub fn load<T: Settings>(
    flags: &toml::Table,
    file: Option<&Path>,
    default_file: &str,
) -> Result<T, ConfigError> {
    let variable = format!("{}CONFIG", T::VARIABLES.prefix);
    // An empty variable is one that was not set.
    let variable = std::env::var_os(variable).filter(|path| !path.is_empty());
    let named = file
        .map(Path::to_owned)
        .or_else(|| variable.map(PathBuf::from));
    let path = named.clone().unwrap_or_else(|| default_file.into());
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => Some(text),
        Err(error) if named.is_none() && error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => {
            let shown = path.display();
            return Err(ConfigError(format!("cannot read `{shown}`: {error}")));
        }
    };
    let folder = path.parent().unwrap_or(Path::new(""));
    let file = text.as_deref().map(|text| File { text, folder });
    // Variables that are no text cannot be ours: all our names are ASCII.
    let variables = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let resolved = layers::resolve(flags, variables, file).map_err(|error| {
        // Only errors of the file know a line.
        if error.0.starts_with("line ") {
            ConfigError(format!("`{}`, {error}", path.display()))
        } else {
            error
        }
    })?;
    if let Some(note) = resolved.note {
        say(format_args!("note: `{}` {note}", path.display()));
    }
    Ok(resolved.settings)
}

/// Returns mebibytes as whole bytes.
pub fn bytes_of_mib(mib: f64) -> u64 {
    // A negative number, and none at all, become 0.
    (mib * f64::from(1 << 20)) as u64
}

/// Checks what no type says of the tables here.
///
/// # Errors
/// Names the key and its range.
pub fn check(
    network: &Network,
    quota_mib: u64,
    recording_mib: f64,
    linger_seconds: f64,
) -> Result<(), ConfigError> {
    config::in_range(&[
        (network.max_peers >= 1, "max_peers", "at least 1"),
        (quota_mib >= 1, "quota_mib", "at least 1"),
        (
            (0.0..=4096.0).contains(&recording_mib),
            "recording_mib",
            "0 to 4096",
        ),
        (
            (0.0..=86_400.0).contains(&linger_seconds),
            "linger_seconds",
            "0 to 86400",
        ),
    ])
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fednode_core::FederationSpec;

    use super::*;

    fn member() -> MemberConfig {
        MemberConfig::new(Arc::new(FederationSpec::default()), "state")
    }

    #[test]
    fn files_that_are_not_there_have_the_exit_code_of_their_cause() {
        let missing = || Some(PathBuf::from("no such file"));
        let key = Network {
            key: missing(),
            ..Network::default()
        };
        let allow = Network {
            allow: missing(),
            ..Network::default()
        };
        let error = key.apply(&mut member()).unwrap_err();
        assert_eq!(error.exit_code(), ExitCode::Network);
        let error = allow.apply(&mut member()).unwrap_err();
        assert_eq!(error.exit_code(), ExitCode::Configuration);
        assert!(error.to_string().contains("no such file"), "{error}");
    }

    #[test]
    fn closed_sets_are_read_by_their_names() {
        let read = |text: &str| config::parse::<Network>(text).map_err(|error| error.0);
        let network = read("compression = 'off'\ncontrol = 'off'").unwrap();
        assert_eq!(
            (network.compression, network.control),
            (Compression::Off, Control::Off)
        );
        let network = read("control = '127.0.0.1:80'").unwrap();
        assert_eq!(network.control, Control::At(([127, 0, 0, 1], 80).into()));
        assert_eq!(
            read("compression = 'lz4'").unwrap_err(),
            "line 1: unknown value `lz4`: expected one of `off`, `zstd`"
        );
        assert_eq!(
            read("control = 'localhost'").unwrap_err(),
            "line 1: `localhost` is no address as `127.0.0.1:0`, nor `off`"
        );
        for open in ["0.0.0.0:80", "192.0.2.1:0", "[::]:0", "[::ffff:10.0.0.1]:9"] {
            let error = read(&format!("control = '{open}'")).unwrap_err();
            assert!(error.contains("SSH tunnel"), "{error}");
        }
        for closed in ["127.8.0.1:80", "[::1]:0", "[::ffff:127.0.0.1]:9"] {
            assert!(read(&format!("control = '{closed}'")).is_ok(), "{closed}");
        }
        let log = config::parse::<Log>("format = 'xml'").unwrap_err();
        assert_eq!(
            log.0,
            "line 1: unknown value `xml`: expected one of `human`, `json`"
        );
    }
}
