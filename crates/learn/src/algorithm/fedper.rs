//! FedPer: Arivazhagan et al., "Federated Learning with Personalization Layers", arXiv 1912.00818.
//!
//! The base is averaged, weighted by the number of training samples; the head never leaves the node. Both learn together.

use super::halves::{self, BASE, HEAD, Pass, Plan};
use super::hyper::AGGREGATION;
use super::part::Role;
use super::{Optimizers, Row, averaged};

pub(super) const ROW: Row = Row {
    name: "fedper",
    summary: "an averaged base with a head of one's own, trained together",
    reference: "Arivazhagan et al., arXiv 1912.00818",
    averages: "the base (all layers but the last)",
    peer_to_peer: "nothing",
    keeps_private: "the head (the last layer)",
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
                base: Role::Shared,
                head: Role::Private,
                passes,
                fine_tuning: None,
            },
        )
    },
};
