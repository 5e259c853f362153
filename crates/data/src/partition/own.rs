//! Each node brings its own data and keeps all of it: one shard, cut 75 to 25 unless somebody says otherwise.
//!
//! Test samples are those that the data say themselves (a file or a column of their own), else a share of all. Samples of
//! one group, the visits of one patient, stay together.

use super::split::{TEST_SHARE, by_group, cut_off, train_and_test};
use super::{Divide, MIN_SAMPLES, NodeIndices, Request};
use crate::error::DataError;
use fednode_core::random::Dice;

#[derive(Debug)]
struct Own {
    /// The share of test samples; nothing for a quarter.
    test_share: Option<f64>,
}

pub(super) fn parse(argument: &str) -> Option<Box<dyn Divide>> {
    let test_share = match argument {
        "" => None,
        share => {
            let share = share.parse::<f64>().ok()?;
            Some(share)
                .filter(|share| (0.0..=0.9).contains(share))
                .map(Some)?
        }
    };
    Some(Box::new(Own { test_share }))
}

impl Divide for Own {
    fn needed(&self, _: &Request<'_>) -> usize {
        MIN_SAMPLES
    }

    fn keeps_no_test(&self) -> bool {
        self.test_share == Some(0.0)
    }

    fn divide(
        &self,
        request: &Request<'_>,
        dice: &mut Dice,
    ) -> Result<Vec<NodeIndices>, DataError> {
        let all: Vec<u32> = (0..request.labels.len() as u32).collect();
        if let Some(is_test) = request.known.tests {
            let (test, train) = all.into_iter().partition(|index| is_test[*index as usize]);
            return Ok(vec![NodeIndices { train, test }]);
        }
        let wanted = |share: f64| (all.len() as f64 * share).round() as usize;
        let node = match (request.known.groups, self.test_share) {
            (None, None) => train_and_test(all, dice),
            (None, Some(share)) => cut_off(all.clone(), wanted(share), dice),
            (Some(groups), share) => {
                by_group(&all, groups, wanted(share.unwrap_or(TEST_SHARE)), dice)
            }
        };
        Ok(vec![node])
    }
}
