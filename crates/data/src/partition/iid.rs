//! Every node gets the same mix: each class is shuffled and dealt round, going on where the last class stopped.

use super::split::train_and_test;
use super::{Divide, NodeIndices, Request};
use crate::error::DataError;
use fednode_core::random::Dice;

#[derive(Debug)]
struct Iid;

pub(super) fn parse(argument: &str) -> Option<Box<dyn Divide>> {
    argument
        .is_empty()
        .then(|| Box::new(Iid) as Box<dyn Divide>)
}

impl Divide for Iid {
    fn divide(
        &self,
        request: &Request<'_>,
        dice: &mut Dice,
    ) -> Result<Vec<NodeIndices>, DataError> {
        let mut nodes = vec![Vec::new(); request.nodes];
        let mut next = 0;
        for mut class in request.draw_by_class(dice) {
            dice.shuffle(&mut class);
            for index in class {
                nodes[next % request.nodes].push(index);
                next += 1;
            }
        }
        Ok(nodes
            .into_iter()
            .map(|samples| train_and_test(samples, dice))
            .collect())
    }
}
