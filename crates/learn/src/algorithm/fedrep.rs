//! FedRep: Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", ICML 2021,
//! Algorithm 1.
//!
//! Split as FedPer's, but the halves learn one after the other: first `head_epochs` for the head on the base that came
//! in, then `local_epochs` for the base under that head. The paper takes about ten head epochs; the default here is
//! PFLlib's one (`plocal_epochs`), which PM-MoE uses.

use super::halves::{self, BASE, HEAD, Pass, Plan};
use super::hyper::{AGGREGATION, Hyper, Kind};
use super::part::Role;
use super::{Optimizers, Row, averaged};

pub(super) const ROW: Row = Row {
    name: "fedrep",
    summary: "an averaged base with a head of one's own; first the head learns, then the base",
    reference: "Collins et al., ICML 2021, arXiv 2102.07078",
    averages: "the base (all layers but the last)",
    peer_to_peer: "nothing",
    keeps_private: "the head (the last layer)",
    trains_ahead: false,
    optimizers: Optimizers::Any,
    hyper: &[
        Hyper {
            name: "head_epochs",
            kind: Kind::Integer { min: 1, max: 1000 },
            default: "1",
            doc: "epochs of a local update in which the head learns, before the local epochs in which the base does",
        },
        AGGREGATION,
    ],
    profiles: &[],
    exchange: averaged,
    build: |setup| {
        let head = Pass {
            trains: &[HEAD],
            epochs: setup.hyper.count("head_epochs"),
        };
        let base = Pass {
            trains: &[BASE],
            epochs: setup.training.local_epochs,
        };
        let plan = Plan {
            base: Role::Shared,
            head: Role::Private,
            passes: vec![head, base],
            fine_tuning: None,
        };
        halves::build(setup, plan)
    },
};
