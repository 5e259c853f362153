//! What the files of tests share.

/// The seed of all that is played: `FEDNODE_SIM_SEED`, or 1.
pub(crate) fn seed() -> u64 {
    std::env::var("FEDNODE_SIM_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(1)
}
