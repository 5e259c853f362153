//! Local training: every node for itself, nothing is shared. What a federation must beat to be worth its trouble.

use fednode_core::Exchange;

use super::part::Role;
use super::{Optimizers, Row, plain};

pub(super) const ROW: Row = Row {
    name: "local",
    summary: "every node trains alone",
    reference: "the baseline of every personalised method",
    averages: "nothing",
    peer_to_peer: "nothing",
    keeps_private: "the whole model",
    trains_ahead: true,
    optimizers: Optimizers::Any,
    hyper: &[],
    profiles: &[],
    exchange: |_| Exchange::default(),
    build: |setup| plain::build(setup, Role::Private),
};
