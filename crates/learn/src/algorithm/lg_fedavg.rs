//! LG-FedAvg: Liang et al., "Think Locally, Act Globally: Federated Learning with Local and Global Representations",
//! arXiv 2001.01523.
//!
//! The mirror image of FedPer: every node has a base of its own, and the head is averaged, weighted by the number of
//! training samples. Both learn together. As in PFLlib there is no warm-up by FedAvg.

use super::halves::{self, BASE, HEAD, Pass, Plan};
use super::hyper::AGGREGATION;
use super::part::Role;
use super::{Optimizers, Row, averaged};

pub(super) const ROW: Row = Row {
    name: "lg-fedavg",
    summary: "a base of one's own under an averaged head, trained together",
    reference: "Liang et al., arXiv 2001.01523",
    averages: "the head (the last layer)",
    peer_to_peer: "nothing",
    keeps_private: "the base (all layers but the last)",
    trains_ahead: true,
    optimizers: Optimizers::Any,
    hyper: &[AGGREGATION],
    profiles: &[],
    exchange: averaged,
    build: |setup| {
        let passes = vec![Pass {
            trains: &[BASE, HEAD],
            epochs: setup.training.local_epochs,
        }];
        halves::build(
            setup,
            Plan {
                base: Role::Private,
                head: Role::Shared,
                passes,
                fine_tuning: None,
            },
        )
    },
};
