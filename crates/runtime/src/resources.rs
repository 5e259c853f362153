//! What the process uses: memory, from `/proc`.
//!
//! Where `/proc` does not exist the figures are absent, never invented.

/// Memory of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Memory {
    /// Resident bytes now.
    pub rss_bytes: Option<u64>,
    /// Most resident bytes so far.
    pub peak_rss_bytes: Option<u64>,
}

/// Measures this process's memory.
pub fn memory() -> Memory {
    std::fs::read_to_string("/proc/self/status")
        .map(|text| parse(&text))
        .unwrap_or_default()
}

fn parse(status: &str) -> Memory {
    let bytes_of = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        // The kernel writes kB and means 1,024 bytes.
        let kibibytes: u64 = line
            .trim_start_matches(':')
            .trim()
            .strip_suffix(" kB")?
            .trim()
            .parse()
            .ok()?;
        Some(kibibytes * 1024)
    };
    Memory {
        rss_bytes: bytes_of("VmRSS"),
        peak_rss_bytes: bytes_of("VmHWM"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_linux_writes() {
        let text = "Name:\tfednode\nVmHWM:\t   90332 kB\nVmRSS:\t    1024 kB\n";
        let expected = Memory {
            rss_bytes: Some(1024 * 1024),
            peak_rss_bytes: Some(90332 * 1024),
        };
        assert_eq!(parse(text), expected);
        assert_eq!(parse("Name: x"), Memory::default());
    }
}
