//! The names of the files that commands write beside each other.

/// The node's settings.
pub const NODE: &str = "node.toml";
/// The federation's spec.
pub const SPEC: &str = "federation.toml";
/// The pre-shared key.
pub const NETWORK_KEY: &str = "network.key";
