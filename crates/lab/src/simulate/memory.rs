//! Whether a simulation fits into memory, said before it starts.
//!
//! ```text
//! node     what it knows (private, shared, experts) + the private part saved before it trained + its mixed experts
//! network  for each earlier round that somebody may still ask for: shared parts and experts of all nodes
//! learner  a model, its gradients, a copy to go back to
//! data     every sample once
//! toy      of a federation without training: what it has heard of the others
//! ```
//!
//! Free is what Linux calls available, or what the own control group may still take, if that is less.

use std::fs;

use fednode_learn::Learner;
use fednode_runtime::exit::ExitCode;

use fednode_cli::failure::fail;
use fednode_cli::table::bytes;

/// What a toy knows and what is on its way to it: about 160 kB each with 3,000 and with 10,000 of them, after 20 rounds.
const BYTES_PER_TOY: u64 = 192 << 10;
/// Parts of a toy's size that there are of it: shared part and two experts, as they are, as they were saved, and as blobs of
/// two rounds.
const PARTS_OF_TOY: u64 = 3 * 4;

/// Bytes of one model's parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parts {
    private: u64,
    shared: u64,
    experts: u64,
}

impl Parts {
    /// Weighs a learner's model.
    pub(crate) fn of(learner: &Learner) -> Self {
        let weigh = |values: usize| (values * size_of::<f32>()) as u64;
        Self {
            private: weigh(learner.private_state().n_values()),
            shared: weigh(learner.shared().map_or(0, |shared| shared.n_values())),
            experts: learner
                .experts()
                .iter()
                .map(|expert| weigh(expert.n_values()))
                .sum(),
        }
    }

    const fn whole(self) -> u64 {
        self.private + self.shared + self.experts
    }
}

/// What a simulation holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Load {
    /// Nodes.
    pub(crate) nodes: usize,
    /// The models, which fall to the nodes in turn.
    pub(crate) models: Vec<Parts>,
    /// Earlier rounds whose blobs are kept.
    pub(crate) kept_rounds: u32,
    /// Threads, each with a learner of each model.
    pub(crate) threads: usize,
    /// Bytes of all samples.
    pub(crate) data: u64,
}

impl Load {
    /// Returns the bytes that the models need.
    fn parameters(&self) -> u64 {
        let node = |parts: &Parts| {
            let own = parts.whole() + parts.private + parts.experts;
            own + u64::from(self.kept_rounds) * (parts.shared + parts.experts)
        };
        let nodes: u64 = self.models.iter().cycle().take(self.nodes).map(node).sum();
        let learners: u64 = self
            .models
            .iter()
            .map(|parts| 3 * self.threads as u64 * parts.whole())
            .sum();
        nodes + learners
    }

    /// Refuses what does not fit.
    ///
    /// # Errors
    /// Says how much is needed and how much there is.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        free().map_or(Ok(()), |free| self.fits(free))
    }

    fn fits(&self, free: u64) -> anyhow::Result<()> {
        let (nodes, parameters, data) = (self.nodes, self.parameters(), self.data);
        if parameters + data <= free {
            return Ok(());
        }
        let [needed, parameters, data, free] =
            [parameters + data, parameters, data, free].map(bytes);
        let text = format!(
            "{nodes} nodes need about {needed} of memory ({parameters} of parameters, {data} of data) and {free} are \
             free: simulate fewer nodes, fewer experts or a smaller model"
        );
        Err(fail(ExitCode::Configuration, text))
    }
}

/// Refuses more toys than fit.
///
/// # Errors
/// Says how much is needed and how much there is.
pub(crate) fn check_toys(nodes: usize, floats: usize) -> anyhow::Result<()> {
    free().map_or(Ok(()), |free| toys_fit(nodes, floats, free))
}

fn toys_fit(nodes: usize, floats: usize, free: u64) -> anyhow::Result<()> {
    let models = (floats * size_of::<f32>()) as u64 * PARTS_OF_TOY;
    let needed = nodes as u64 * (BYTES_PER_TOY + models);
    if needed <= free {
        return Ok(());
    }
    let [needed, free] = [needed, free].map(bytes);
    let text = format!(
        "{nodes} nodes need about {needed} of memory and {free} are free: simulate fewer nodes"
    );
    Err(fail(ExitCode::Configuration, text))
}

/// Returns the bytes that may still be taken; `None` where nobody says.
fn free() -> Option<u64> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let of_machine = available(&read("/proc/meminfo"));
    let group = read("/proc/self/cgroup")
        .lines()
        .find_map(|line| line.strip_prefix("0::").map(str::to_owned));
    let of_group = group.and_then(|group| {
        let file = |name: &str| {
            read(&format!(
                "/sys/fs/cgroup/{}/{name}",
                group.trim_matches('/')
            ))
        };
        left(
            &file("memory.max"),
            &file("memory.current"),
            &file("memory.stat"),
        )
    });
    [of_machine, of_group].into_iter().flatten().min()
}

/// Returns the free bytes that Linux reports; `None` elsewhere.
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim()
        .strip_suffix(" kB")?
        .trim()
        .parse::<u64>()
        .ok()
        .map(|kibibytes| kibibytes * 1024)
}

/// Returns what a control group may still take; pages of files that nobody uses make room. `None` without a limit.
fn left(max: &str, current: &str, stat: &str) -> Option<u64> {
    let bytes = |text: &str| text.trim().parse::<u64>().ok();
    let unused = stat
        .lines()
        .find_map(|line| line.strip_prefix("inactive_file "))
        .and_then(bytes)
        .unwrap_or(0);
    Some(bytes(max)?.saturating_sub(bytes(current)?.saturating_sub(unused)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_beyond_memory_is_refused_with_the_estimate() {
        // Two models in turn, of 10 + 20 + 30 and 6 + 0 + 0 bytes, for three nodes.
        let models = vec![
            Parts {
                private: 10,
                shared: 20,
                experts: 30,
            },
            Parts {
                private: 6,
                shared: 0,
                experts: 0,
            },
        ];
        let load = Load {
            nodes: 3,
            models,
            kept_rounds: 4,
            threads: 2,
            data: 7,
        };
        let (first, second) = (60 + 10 + 30 + 4 * 50, 6 + 6);
        assert_eq!(load.parameters(), 2 * first + second + 3 * 2 * 66);
        let needed = load.parameters() + 7;
        assert!(load.fits(needed).is_ok());
        let error = load.fits(needed - 1).unwrap_err().to_string();
        let start = "3 nodes need about 1.0 kB of memory (1.0 kB of parameters, 7 B of data) and 1.0 kB are free";
        assert!(
            error.starts_with(start) && error.lines().count() == 1,
            "{error}"
        );
    }

    #[test]
    fn free_memory_is_what_linux_calls_available() {
        assert_eq!(
            available("MemTotal: 9 kB\nMemAvailable:     2048 kB\n"),
            Some(2 << 20)
        );
        assert_eq!(available(""), None);
    }

    #[test]
    fn a_control_group_may_leave_less() {
        let stat = "anon 5\nfile 700\ninactive_file 300\n";
        assert_eq!(left("1000\n", "900\n", stat), Some(400));
        assert_eq!(left("1000\n", "2000\n", ""), Some(0), "over its limit");
        assert_eq!(left("max\n", "900\n", stat), None);
        assert_eq!(left("", "", ""), None, "no such file");
    }

    #[test]
    fn more_toys_than_fit_are_refused() {
        assert!(toys_fit(1000, 0, 1000 * BYTES_PER_TOY).is_ok());
        assert!(toys_fit(1000, 1, 1000 * BYTES_PER_TOY).is_err());
        let error = toys_fit(100_000, 0, 4 << 30).unwrap_err().to_string();
        assert_eq!(
            error,
            "100000 nodes need about 19.7 GB of memory and 4.3 GB are free: simulate fewer nodes"
        );
    }
}
