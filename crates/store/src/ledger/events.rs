//! The last events of a run, for a person who asks what happened.

use fednode_core::Timestamp;
use rusqlite::Row;

use super::{Ledger, LedgerError, cut, stored, time, unknown_word};

/// Most events remembered.
pub const MAX_EVENTS: u32 = 10_000;
/// Longest text of one event.
const MAX_TEXT_BYTES: usize = 1024;

/// How serious an event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventLevel {
    /// As expected.
    Info,
    /// Worth a look; the run goes on.
    Warning,
    /// A wanted action failed.
    Error,
}

impl EventLevel {
    const ALL: [Self; 3] = [Self::Info, Self::Warning, Self::Error];

    /// Returns it as one word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// When.
    pub time: Timestamp,
    /// How serious.
    pub level: EventLevel,
    /// What, in one line.
    pub text: String,
}

impl Ledger {
    /// Notes an event. A very long text is cut.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub fn record_event(&self, event: &Event) -> Result<(), LedgerError> {
        let mut connection = self.connection();
        let transaction = connection.transaction()?;
        transaction
            .prepare_cached("INSERT INTO events (time, level, text) VALUES (?1, ?2, ?3)")?
            .execute((
                stored(event.time.0),
                event.level.word(),
                cut(&event.text, MAX_TEXT_BYTES),
            ))?;
        let oldest = transaction.last_insert_rowid() - i64::from(MAX_EVENTS);
        transaction
            .prepare_cached("DELETE FROM events WHERE id <= ?1")?
            .execute([oldest])?;
        Ok(transaction.commit()?)
    }

    /// Returns the newest events, at most `n`, in the order they happened.
    ///
    /// # Errors
    /// Fails if the database fails.
    pub fn last_events(&self, n: u32) -> Result<Vec<Event>, LedgerError> {
        let connection = self.connection();
        let mut statement =
            connection.prepare_cached("SELECT * FROM events ORDER BY id DESC LIMIT ?1")?;
        let mut events: Vec<_> = statement
            .query_map([n], read_event)?
            .collect::<Result<_, _>>()?;
        events.reverse();
        Ok(events)
    }
}

fn read_event(row: &Row<'_>) -> rusqlite::Result<Event> {
    let word: String = row.get("level")?;
    let level = EventLevel::ALL
        .into_iter()
        .find(|level| level.word() == word);
    let level = level.ok_or_else(|| unknown_word(row, "level", word))?;
    Ok(Event {
        time: time(row, "time")?,
        level,
        text: row.get("text")?,
    })
}
