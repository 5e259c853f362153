//! Whether a simulation fits into memory, said before it starts.

use fednode_runtime::exit::ExitCode;

use crate::failure::fail;
use crate::table::bytes;

/// Copies of a node's model: the one it published, and the one it is about to train.
const COPIES: u64 = 2;

/// Returns the bytes that the models of a simulation need.
pub(crate) fn needed(nodes: usize, n_parameters: usize, learners: usize) -> u64 {
    // A learner holds a model, its gradients and a copy to go back to.
    let models = COPIES * nodes as u64 + 3 * learners as u64;
    models * n_parameters as u64 * size_of::<f32>() as u64
}

/// Refuses what does not fit.
///
/// # Errors
/// Says how much is needed and how much there is.
pub(crate) fn check(needed: u64, nodes: usize) -> anyhow::Result<()> {
    match available(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default()) {
        Some(available) if needed > available => {
            let (needed, available) = (bytes(needed), bytes(available));
            let advice = "simulate fewer nodes, fewer experts or a smaller model";
            let text = format!("{nodes} nodes need about {needed} of memory and {available} are free: {advice}");
            Err(fail(ExitCode::Configuration, text))
        }
        _ => Ok(()),
    }
}

/// Returns the free bytes that Linux reports; `None` elsewhere.
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kibibytes| kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_with_the_estimate() {
        assert_eq!(needed(500, 582_026, 2), (1000 + 6) * 582_026 * 4);
        let error = check(1 << 60, 7).unwrap_err().to_string();
        assert!(error.starts_with("7 nodes need about "), "{error}");
        assert!(check(1, 7).is_ok());
        assert_eq!(available("MemTotal: 9 kB\nMemAvailable:     2048 kB\n"), Some(2 << 20));
    }
}
