//! What a node remembers from round to round besides its numbers: a mode, a choice, a selection.
//!
//! ```text
//! algorithm, statistics expert, pool ─► NodeMemory ─► JSON ─► the note of the state's ParamSet
//! ```
//!
//! Each owner has a type of its own for what it remembers; everybody else passes it on unread. A memory never leaves the
//! node: what is shared are parts. Nothing is written where there is nothing to remember. States from before there were
//! memories kept the same things in small arrays; they are still read.

use fednode_core::ParamSet;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::LearnError;

/// One owner's memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Memory(serde_json::Value);

impl Memory {
    /// Writes what an owner remembers.
    ///
    /// # Panics
    /// If the type cannot be written as JSON, which would be a mistake in its declaration.
    pub fn of<T: Serialize>(remembered: &T) -> Self {
        Self(serde_json::to_value(remembered).expect("memories have text keys and finite numbers"))
    }

    /// Reads what an owner remembers, if it remembers anything; otherwise it begins anew.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(crate) fn recalled<T: DeserializeOwned + Default>(
        memory: Option<&Self>,
    ) -> Result<T, LearnError> {
        memory.map_or_else(|| Ok(T::default()), Self::read)
    }

    /// Reads what an owner remembers.
    ///
    /// # Errors
    /// Says what is not as the owner would have written it.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, LearnError> {
        T::deserialize(&self.0).map_err(LearnError::Memory)
    }
}

/// Everything that a node remembers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct NodeMemory {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) algorithm: Option<Memory>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) statistics: Option<Memory>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pool: Option<Memory>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) agreement: Option<Memory>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) regression: Option<Memory>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) noised: Option<Memory>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) preparation: Option<Memory>,
}

impl NodeMemory {
    /// Reads the memory of a state; a state without a note has nothing to remember.
    ///
    /// # Errors
    /// Refuses a note that is no memory.
    pub(crate) fn of(state: &ParamSet) -> Result<Self, LearnError> {
        let read = |note| serde_json::from_str(note).map_err(LearnError::Memory);
        state.note().map_or_else(|| Ok(Self::default()), read)
    }

    /// Writes the memory into a state.
    pub(crate) fn write(&self, state: &mut ParamSet) {
        let note = (*self != Self::default())
            .then(|| serde_json::to_string(self).expect("memories have text keys"));
        state
            .set_note(note)
            .expect("a memory is a few names and numbers");
    }
}
