//! FedAvg: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017,
//! Algorithm 1.
//!
//! Every node trains the whole model on its own data; the models are averaged, weighted by the number of training
//! samples. One model for all, no experts: the baseline that personalised algorithms are measured against.

use super::hyper::AGGREGATION;
use super::part::Role;
use super::{Optimizers, Row, averaged, plain};

pub(super) const ROW: Row = Row {
    name: "fedavg",
    summary: "one model for all, averaged by number of samples",
    reference: "McMahan et al., AISTATS 2017, arXiv 1602.05629",
    averages: "the whole model",
    peer_to_peer: "nothing",
    keeps_private: "nothing",
    trains_ahead: true,
    optimizers: Optimizers::Any,
    hyper: &[AGGREGATION],
    profiles: &[],
    exchange: averaged,
    build: |setup| plain::build(setup, Role::Shared),
};
