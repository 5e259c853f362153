//! The places of parameters in the file of an interrupted simulation.

use std::collections::HashMap;
use std::sync::Arc;

use fednode_core::ParamSet;

/// Gives each set of parameters a place. What is one in memory is one in the file.
#[derive(Debug, Default)]
pub(super) struct Places {
    places: HashMap<*const ParamSet, u32>,
    /// The parameters, in the order of their places.
    pub(super) params: Vec<Arc<ParamSet>>,
}

impl Places {
    /// Returns the place of parameters.
    pub(super) fn place(&mut self, params: &Arc<ParamSet>) -> u32 {
        *self.places.entry(Arc::as_ptr(params)).or_insert_with(|| {
            self.params.push(Arc::clone(params));
            u32::try_from(self.params.len() - 1).expect("fewer sets than memory has room for")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_parameters_have_one_place() {
        let (one, other) = (Arc::new(ParamSet::new()), Arc::new(ParamSet::new()));
        let mut places = Places::default();
        let found = [&one, &other, &Arc::clone(&one)].map(|params| places.place(params));
        assert_eq!((found, places.params.len()), ([0, 1, 0], 2));
    }
}
