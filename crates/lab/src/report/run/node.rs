//! One node of a run, and the models with which the model that it ends with is compared.

use fednode_core::{Composition, PoolOutcome, Score, Served};
use fednode_runtime::status::RoundRecord;
use serde::Serialize;

use crate::report::words::known;

/// One node of a run.
#[derive(Debug, Clone, Default)]
pub(crate) struct Node {
    /// Its shard, or the end of its name where the shard is not known.
    pub(crate) label: String,
    /// Its shard, counting from 1.
    pub(crate) shard: Option<u32>,
    /// Its name in the federation.
    pub(crate) node_id: String,
    /// The last round it finished.
    pub(crate) last_round: u32,
    /// Its training samples.
    pub(crate) train_samples: u32,
    /// Its test samples.
    pub(crate) test_samples: u32,
    /// What its accuracy counts for in means.
    pub(crate) weight: f64,
    /// Classes among its training samples.
    pub(crate) classes: Vec<u32>,
    /// Accuracy in its last round, after the exchange.
    pub(crate) accuracy: Option<f64>,
    /// Accuracy in its last round, before the exchange.
    pub(crate) before_exchange: Option<f64>,
    /// Accuracy after the stage that follows the last round.
    pub(crate) after_last_stage: Option<f64>,
    /// The global test, if wanted: accuracy of its final model on everyone's test samples.
    pub(crate) on_everyone: Option<f64>,
    /// The local test: the same with classes weighted as the node has them.
    pub(crate) on_own_classes: Option<f64>,
    /// Accuracy of always predicting its commonest training class.
    pub(crate) floor: Option<f64>,
    /// The outcome of its pool.
    pub(crate) pool: Option<PoolOutcome>,
    /// Share of its test samples that each of its experts decided.
    pub(crate) expert_share: Vec<f64>,
    /// What its model is made of, where it is more than the algorithm's.
    pub(crate) composition: Option<Composition>,
    /// Bytes it sent.
    pub(crate) bytes_sent: Option<f64>,
    /// Bytes it received.
    pub(crate) bytes_received: Option<f64>,
    /// Its peak memory.
    pub(crate) peak_rss_bytes: Option<f64>,
}

impl Node {
    /// Puts together a node of a run under way, out of its last record and those of all nodes.
    pub(super) fn under_way(
        id: &str,
        shard: Option<u32>,
        last: &RoundRecord,
        records: &[RoundRecord],
    ) -> Self {
        let mine = || {
            records
                .iter()
                .filter(|record| record.node_id == last.node_id)
        };
        Self {
            label: shard.map_or_else(|| short(id), |shard| shard.to_string()),
            shard,
            node_id: id.to_owned(),
            last_round: last.round.0,
            train_samples: last.n_samples,
            test_samples: last.test_samples,
            weight: f64::from(last.test_samples),
            accuracy: known(last.accuracy),
            before_exchange: known(last.accuracy_after_local_training),
            expert_share: last.test_expert_share.clone(),
            composition: last.composition.clone(),
            bytes_sent: Some(mine().map(|record| record.bytes_sent.wire as f64).sum()),
            bytes_received: Some(mine().map(|record| record.bytes_received.wire as f64).sum()),
            peak_rss_bytes: last.peak_rss_bytes.map(|bytes| bytes as f64),
            ..Self::default()
        }
    }

    /// Returns a comparator's test accuracy, if there is a pool.
    ///
    /// The served accuracy is that of the node's final model. If that is unknown, it is that of the mixture or of the own
    /// module, without the statistics expert.
    pub(crate) fn pool_accuracy(&self, comparator: Comparator) -> Option<f64> {
        let pool = self.pool.as_ref()?;
        let in_the_end = self
            .after_last_stage
            .filter(|_| comparator == Comparator::Served);
        in_the_end.or_else(|| known(comparator.score_without_statistics(pool)?.accuracy))
    }

    /// Returns the accuracy of the model that the node ends with.
    pub(crate) fn final_accuracy(&self) -> Option<f64> {
        self.after_last_stage.or(self.accuracy)
    }
}

/// The pool, and the models with which it is compared. All but [`Self::Served`] are without the statistics expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Comparator {
    /// The baseline: the model with its own module as it was pooled. The preset says whether that is fine-tuned.
    Own,
    /// The model with the mixture.
    Mixture,
    /// The served model: the mixture or, if that is no better, the own module. It includes the statistics expert if that is
    /// mixed in after the pool.
    Served,
    /// The own module after as many epochs as the gate.
    FineTunedHead,
    /// The plain average of all members' outputs.
    Uniform,
    /// The mixture of all members, none dropped.
    WithoutDenoising,
}

impl Comparator {
    /// All of them, the baseline first.
    pub(crate) const ALL: [Self; 6] = [
        Self::Own,
        Self::Mixture,
        Self::Served,
        Self::FineTunedHead,
        Self::Uniform,
        Self::WithoutDenoising,
    ];

    /// Returns its name for people.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Own => "own module",
            Self::Mixture => "mixture",
            Self::Served => "served",
            Self::FineTunedHead => "fine-tuned head",
            Self::Uniform => "uniform average",
            Self::WithoutDenoising => "without denoising",
        }
    }

    /// Returns its score on a node's test samples without the statistics expert, if it was evaluated.
    ///
    /// For [`Self::Served`] the served model may have another score; for its accuracy see [`Node::pool_accuracy`].
    pub(crate) fn score_without_statistics(self, pool: &PoolOutcome) -> Option<Score> {
        let controls = pool.controls.as_ref();
        match (self, &pool.served) {
            (Self::Own, _) | (Self::Served, Served::Own { .. }) => Some(pool.test.own),
            (Self::Mixture, _) | (Self::Served, Served::Mixture) => pool.test.mixture,
            (Self::FineTunedHead, _) => controls?.fine_tuned_head,
            (Self::Uniform, _) => Some(controls?.uniform),
            (Self::WithoutDenoising, _) => controls?.without_denoising,
        }
    }
}

/// Returns the end of a node's name, which is where names differ.
pub(crate) fn short(node_id: &str) -> String {
    let skipped = node_id.chars().count().saturating_sub(8);
    node_id.chars().skip(skipped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixtures;

    #[test]
    fn served_is_what_the_pool_says_where_the_end_is_not_known() {
        let pool = fixtures::summary(1).per_node[0].pool.clone().unwrap();
        let node = |pool| Node {
            pool: Some(pool),
            ..Node::default()
        };
        let mixture = node(pool.clone());
        assert_eq!(
            mixture.pool_accuracy(Comparator::Served),
            mixture.pool_accuracy(Comparator::Mixture)
        );
        let own = node(PoolOutcome {
            served: Served::Own {
                reason: "no better".into(),
            },
            controls: None,
            ..pool
        });
        assert_eq!(
            own.pool_accuracy(Comparator::Served),
            own.pool_accuracy(Comparator::Own)
        );
        assert_ne!(
            own.pool_accuracy(Comparator::Served),
            mixture.pool_accuracy(Comparator::Served)
        );
        assert_eq!(own.pool_accuracy(Comparator::Uniform), None);
    }
}
