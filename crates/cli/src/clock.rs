//! Times as text: the one place that turns seconds into a date, for names of folders and for lines of a recording.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the time as `2026-11-21T10-40-00Z`: sorts by time and is a name on every file system.
pub fn utc_name(now: SystemTime) -> String {
    // A clock before 1970 is as good a name as any.
    let seconds = now
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    let (year, month, day) = civil(seconds / 86_400);
    let [hour, minute, second] = of_day(seconds);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}-{minute:02}-{second:02}Z")
}

/// Returns milliseconds since 1970 as `2026-11-21T10:40:00.000Z`, as log lines have them.
pub fn utc_text(millis: u64) -> String {
    let seconds = millis / 1000;
    let (year, month, day) = civil(seconds / 86_400);
    let [hour, minute, second] = of_day(seconds);
    let millis = millis % 1000;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// Returns hour, minute and second.
fn of_day(seconds: u64) -> [u64; 3] {
    [seconds / 3600 % 24, seconds / 60 % 60, seconds % 60]
}

/// Makes a new folder in `runs`, named by the time; of several in one second each has its own.
///
/// # Errors
/// As the disk does.
pub fn new_run(now: SystemTime) -> io::Result<PathBuf> {
    let runs = Path::new("runs");
    fs::create_dir_all(runs)?;
    let name = utc_name(now);
    let names = std::iter::once(name.clone()).chain((2..).map(|number| format!("{name}-{number}")));
    for name in names {
        let folder = runs.join(name);
        match fs::create_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|()| folder),
        }
    }
    unreachable!("there is always another number")
}

/// Turns days since 1970-01-01 into year, month and day (H. Hinnant, "chrono-compatible low-level date algorithms").
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 {
        march_month + 3
    } else {
        march_month - 9
    };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn dates_agree_with_the_calendar() {
        // `date -u -d @SECONDS +%FT%H-%M-%SZ`
        let name = |seconds| utc_name(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(name(0), "1970-01-01T00-00-00Z");
        assert_eq!(name(951_782_399), "2000-02-28T23-59-59Z");
        assert_eq!(name(951_782_400), "2000-02-29T00-00-00Z");
        assert_eq!(name(1_795_257_600), "2026-11-21T10-40-00Z");
        assert_eq!(utc_text(1_795_257_600_042), "2026-11-21T10:40:00.042Z");
    }
}
