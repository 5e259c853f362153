//! A source whose classes are a federation's, though some of them may not occur in it.

use std::sync::Arc;

use super::{Facts, Label, Pool, Source};
use crate::error::DataError;
use crate::samples::Samples;
use crate::table::Survey;
use crate::vocabulary::Vocabulary;

/// A source, and what a federation calls its classes.
#[derive(Debug)]
pub(super) struct Federated {
    pub(super) source: Box<dyn Source>,
    pub(super) classes: Arc<[String]>,
}

impl Source for Federated {
    fn grows_at_the_end(&self) -> bool {
        self.source.grows_at_the_end()
    }

    fn describe(&self) -> Result<Facts, DataError> {
        self.source.describe()
    }

    fn label(&self) -> Result<Option<Label>, DataError> {
        self.source.label()
    }

    /// Counts classes as the federation does, if it has all that occur here. Others are found out by whoever compares them.
    fn pool(&self) -> Result<Pool, DataError> {
        let pool = self.source.pool()?;
        if pool.targets.is_some() {
            return Ok(pool);
        }
        let place = |name: &String| self.classes.iter().position(|known| known == name);
        let places: Option<Vec<usize>> = pool.class_names.iter().map(place).collect();
        Ok(match places {
            Some(places) => Pool {
                labels: pool
                    .labels
                    .iter()
                    .map(|label| places[usize::from(*label)] as u16)
                    .collect(),
                class_names: Arc::clone(&self.classes),
                ..pool
            },
            None => pool,
        })
    }

    fn survey(&self) -> Result<Option<Survey>, DataError> {
        self.source.survey()
    }

    fn common_words(&self, fewest_texts: u64) -> Result<Option<Vocabulary>, DataError> {
        self.source.common_words(fewest_texts)
    }

    fn read(&self, pool: &Pool, wanted: &[u32]) -> Result<Samples, DataError> {
        self.source.read(pool, wanted)
    }
}
