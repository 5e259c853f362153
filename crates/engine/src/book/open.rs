//! A record that still lacks something, and what completes it.

use fednode_core::work::Evaluations;
use fednode_core::{Score, Timestamp};
use serde::{Deserialize, Serialize};

use super::Point;
use super::record::{RoundRecord, Traffic};

/// What the environment measured of a round.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Measured {
    /// Bytes so far.
    pub traffic: Traffic,
    /// Seconds that the round took.
    pub round_seconds: f64,
    /// Resident bytes now.
    pub rss_bytes: Option<u64>,
    /// Most resident bytes so far.
    pub peak_rss_bytes: Option<u64>,
}

/// A record that still lacks something.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OpenRecord {
    pub(super) record: RoundRecord,
    pub(super) traffic_before: Traffic,
    /// Bytes when the next round began: what is moved from then on belongs to that one.
    #[serde(default)]
    pub(super) traffic_after: Option<Traffic>,
    pub(super) trained_at: Option<Timestamp>,
    pub(super) experts_at: Option<Timestamp>,
    pub(super) merge_at: Option<Timestamp>,
    pub(super) evaluated_locally: bool,
    pub(super) evaluated_merged: bool,
    pub(super) closed: bool,
}

impl OpenRecord {
    /// Enters what the model scored.
    pub(super) fn enter(&mut self, point: Point, evaluations: &Evaluations) {
        let (validation, test) = (evaluations.validation, evaluations.test);
        let accuracy = test.map(|score| score.accuracy);
        let loss = test.map(|score| score.loss);
        let record = &mut self.record;
        match point {
            Point::AfterTraining => {
                record.accuracy_after_local_training = accuracy;
                record.loss_after_local_training = loss;
                record
                    .judged_after_local_training
                    .clone_from(&evaluations.judged);
                record.validation_after_local_training = validation;
                self.evaluated_locally = true;
            }
            Point::AfterExchange => {
                record.accuracy = accuracy;
                record.loss = loss;
                record.judged.clone_from(&evaluations.judged);
                record.validation = validation;
                self.evaluated_merged = true;
            }
        }
        let record = &mut self.record;
        record
            .test_expert_share
            .clone_from(&evaluations.expert_share);
        record.test_domain_information = evaluations.domain_information;
        record.lacks.clone_from(&evaluations.lacks);
        record.useless.clone_from(&evaluations.useless);
        record.composition.clone_from(&evaluations.composition);
        record.test_samples = test.map_or(0, |score: Score| score.n_samples);
    }

    /// Completes the record with what was measured.
    pub(super) fn finish(self, measured: Measured) -> RoundRecord {
        let mut record = self.record;
        // A model that the exchange left as it was is not evaluated a second time.
        if record.accuracy.is_none() {
            record.accuracy = record.accuracy_after_local_training;
            record.loss = record.loss_after_local_training;
            record
                .judged
                .clone_from(&record.judged_after_local_training);
            record.validation = record.validation_after_local_training;
        }
        let after = self.traffic_after.unwrap_or(measured.traffic);
        let spent = after.since(self.traffic_before);
        record.bytes_sent = spent.sent;
        record.bytes_received = spent.received;
        record.round_seconds = measured.round_seconds;
        record.rss_bytes = measured.rss_bytes;
        record.peak_rss_bytes = measured.peak_rss_bytes;
        record
    }
}
