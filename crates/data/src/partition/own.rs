//! Each node brings its own data and keeps all of it: one shard, cut 75 to 25.

use super::split::train_and_test;
use super::{Divide, MIN_SAMPLES, NodeIndices, Request};
use crate::error::DataError;
use fednode_core::random::Dice;

#[derive(Debug)]
struct Own;

pub(super) fn parse(argument: &str) -> Option<Box<dyn Divide>> {
    argument
        .is_empty()
        .then(|| Box::new(Own) as Box<dyn Divide>)
}

impl Divide for Own {
    fn needed(&self, _: &Request<'_>) -> usize {
        MIN_SAMPLES
    }

    fn divide(
        &self,
        request: &Request<'_>,
        dice: &mut Dice,
    ) -> Result<Vec<NodeIndices>, DataError> {
        Ok(vec![train_and_test(
            (0..request.labels.len() as u32).collect(),
            dice,
        )])
    }
}
