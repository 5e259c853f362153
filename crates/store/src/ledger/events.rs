//! The last events of a run, for a person who asks what happened.

use fednode_core::Timestamp;

use super::{Ledger, LedgerError, cut, stored};

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
}
