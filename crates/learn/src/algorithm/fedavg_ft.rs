//! FedAvg with local fine-tuning: McMahan et al., AISTATS 2017, Algorithm 1, then each node for itself, as Wang et al.
//! measure it in "Federated Evaluation of On-device Personalization", arXiv 1910.10252.
//!
//! ```text
//! rounds        w <- sum_i n_i w_i / sum_i n_i         FedAvg; n_i: training samples of node i
//! afterwards    w_i <- w, then `fine_tuning_epochs` epochs of SGD on the samples of node i
//! ```
//!
//! The tuning is the stage that `fedbabu` has: after the last round, at the learning rate of `training`, in its batches. It
//! is the plainest personalised model, and the one that others have to beat. Two epochs are this project's choice; the
//! paper searches the learning rate, the batch size and the number of epochs. With 0 epochs it is FedAvg.

use super::hyper::{AGGREGATION, FINE_TUNING_EPOCHS, fine_tuning_epochs};
use super::{Optimizers, Row, averaged, plain};

pub(super) const ROW: Row = Row {
    name: "fedavg-ft",
    summary: "FedAvg, whose model every node tunes for itself after the last round",
    reference: "Wang et al., 2019, arXiv 1910.10252",
    averages: "the whole model",
    peer_to_peer: "nothing",
    keeps_private: "the model that it tunes after the last round",
    trains_ahead: true,
    optimizers: Optimizers::Any,
    hyper: &[fine_tuning_epochs("2"), AGGREGATION],
    profiles: &[],
    exchange: averaged,
    build: |setup| plain::build_tuned(setup, setup.hyper.count(FINE_TUNING_EPOCHS)),
};

#[cfg(test)]
mod tests {
    use super::FINE_TUNING_EPOCHS;
    use crate::algorithm::Stage;
    use crate::algorithm::testing::{Driven, batch, build, numbers};

    #[test]
    fn rounds_are_those_of_fedavg() {
        let (mut tuned, mut average) = (build("fedavg-ft", &[]), build("fedavg", &[]));
        for _ in 0..3 {
            assert_eq!(tuned.train(0, batch()), average.train(0, batch()));
        }
        assert_eq!(numbers(tuned.as_ref(), ""), numbers(average.as_ref(), ""));
    }

    /// A step of the tuning is one more step of SGD on the whole model.
    #[test]
    fn the_whole_model_goes_on_learning_after_the_last_round() {
        let (mut tuned, mut average) = (build("fedavg-ft", &[]), build("fedavg", &[]));
        tuned.train(0, batch());
        average.train(0, batch());
        let step = tuned.train_in(Stage::FineTuning(0), batch());
        assert_eq!(step, average.train(0, batch()));
        assert_eq!(numbers(tuned.as_ref(), ""), numbers(average.as_ref(), ""));
    }

    #[test]
    fn tuning_has_the_epochs_that_were_asked_for() {
        assert_eq!(build("fedavg-ft", &[]).fine_tuning_passes(), [2]);
        let longer = build("fedavg-ft", &[(FINE_TUNING_EPOCHS, 7.0)]);
        assert_eq!(longer.fine_tuning_passes(), [7]);
        assert!(build("fedavg", &[]).fine_tuning_passes().is_empty());
    }
}
