//! FedBABU: Oh et al., "FedBABU: Toward Enhanced Representation for Federated Image Classification", ICLR 2022.
//!
//! In the rounds only the base learns, under a head that stays as it was drawn, the same on all nodes; the base is
//! averaged, weighted by the number of training samples. After the last round every node tunes its model for itself,
//! base and head together as PFLlib does, or the head alone: then the base remains everyone's, and heads of other nodes
//! fit it too. Ten epochs are PFLlib's default; PM-MoE takes 50. Tuning starts from the last mean, which every node holds
//! here; in PFLlib from the base that the node itself trained last, since nothing is sent after the last average.

use super::halves::{self, BASE, HEAD, Pass, Plan};
use super::hyper::{AGGREGATION, FINE_TUNING_EPOCHS, Hyper, Kind, fine_tuning_epochs};
use super::part::Role;
use super::{Optimizers, Row, averaged};

pub(super) const ROW: Row = Row {
    name: "fedbabu",
    summary: "an averaged base under a head that never changes; both are tuned after the last round",
    reference: "Oh et al., ICLR 2022, arXiv 2106.06042",
    averages: "the base (all layers but the last)",
    peer_to_peer: "nothing",
    keeps_private: "the head (the last layer), which only learns after the last round",
    trains_ahead: false,
    optimizers: Optimizers::Any,
    hyper: &[
        fine_tuning_epochs("10"),
        Hyper {
            name: "fine_tuning",
            kind: Kind::Choice(&["all", "head"]),
            default: "all",
            doc: "what learns after the last round: the whole model, or the head alone",
        },
        AGGREGATION,
    ],
    profiles: &[],
    exchange: averaged,
    build: |setup| {
        let passes = vec![Pass {
            trains: &[BASE],
            epochs: setup.training.local_epochs,
        }];
        let trains: &[usize] = if setup.hyper.text("fine_tuning") == "head" {
            &[HEAD]
        } else {
            &[BASE, HEAD]
        };
        let fine_tuning = Some(Pass {
            trains,
            epochs: setup.hyper.count(FINE_TUNING_EPOCHS),
        });
        halves::build(
            setup,
            Plan {
                base: Role::Shared,
                head: Role::Private,
                passes,
                fine_tuning,
            },
        )
    },
};
