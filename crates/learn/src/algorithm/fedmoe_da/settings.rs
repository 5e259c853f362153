//! What can be set of FedMoE-DA, its profiles, and what follows from them for the exchange.
//!
//! `matching` decides between two exchanges. By `similarity`, as in the paper, experts of similar proxies are mixed. By
//! `agreement`, statistics of peers whose class means agree go with the model of another algorithm, `base`.

use std::collections::BTreeMap;

use fednode_core::{
    Averaging, ConfigError, Exchange, ExpertExchange, FederationSpec, Matching, Weighting,
};

use super::FedMoeDa;
use crate::agreement::{self, MATCHING as AGREEMENT};
use crate::algorithm::hyper::{AGGREGATION, Hyper, Kind, PLAIN_MEAN, Profile, Values};
use crate::algorithm::{self, Algorithm, Optimizers, Row, Setup};

/// The embedding is trained, and averaged every round.
pub(super) const AVERAGED: &str = "averaged";

/// Mixed experts are tried before they are taken.
pub(super) const TRIED: &str = "on";

/// The last layers of the experts never leave the node.
pub(super) const PRIVATE: &str = "private";

pub(in crate::algorithm) const ROW: Row = Row {
    name: "fedmoe-da",
    summary: "a mixture of experts per node; experts are mixed with those of peers whose proxies are similar",
    reference: "Zhan et al., MSN 2024, arXiv 2411.02115",
    averages: "the embedding (the model's first layer), unless it is frozen",
    peer_to_peer: "experts (the other layers) and gating proxies",
    keeps_private: "which expert serves which sample",
    trains_ahead: true,
    optimizers: Optimizers::Any,
    hyper: HYPER,
    profiles: &[
        Profile {
            name: "paper",
            sets: &[PLAIN_MEAN],
        },
        Profile {
            name: "robust",
            sets: &[
                ("load_balance", "0.01"),
                ("slots_per_node", "2"),
                ("max_distance", "3"),
                ("weighting", "samples"),
                ("trial", TRIED),
            ],
        },
        Profile {
            name: "agreement",
            sets: &[("matching", AGREEMENT), ("peers_per_expert", "20")],
        },
        Profile {
            name: "personal",
            sets: &[
                ("load_balance", "0.01"),
                ("slots_per_node", "2"),
                ("max_distance", "3"),
                ("weighting", "samples"),
                ("head", PRIVATE),
            ],
        },
    ],
    exchange: |values| match values.text("matching") {
        AGREEMENT => by_agreement(values),
        _ => by_similarity(values),
    },
    build: |setup| match setup.hyper.text("matching") {
        AGREEMENT => {
            let base = algorithm::find(setup.hyper.text("base"))?;
            let hyper = &base.values(&BTreeMap::new())?;
            (base.build)(&Setup { hyper, ..*setup })
        }
        _ => FedMoeDa::new(setup).map(|algorithm| Box::new(algorithm) as Box<dyn Algorithm>),
    },
};

/// Own experts are mixed with those of similar proxies.
fn by_similarity(values: &Values) -> Exchange {
    Exchange {
        averaging: (values.text("embedding") == AVERAGED).then(|| Averaging {
            weighting: Weighting::Uniform,
            rule: values.rule(),
        }),
        experts: Some(ExpertExchange {
            peers_per_expert: values.peers("peers_per_expert"),
            refresh_every: values.count("refresh_every"),
            temperature: values.real("temperature"),
            weighting: match values.text("weighting") {
                "samples" => Weighting::Samples,
                _ => Weighting::Uniform,
            },
            slots_per_node: Some(values.count("slots_per_node")).filter(|slots| *slots > 0),
            max_distance: Some(values.real("max_distance")).filter(|distance| *distance > 0.0),
            matching: Matching::default(),
            noise: None,
        }),
        everybody_first: false,
        prepares: false,
        total: None,
    }
}

/// Statistics are mixed with those of agreeing peers; the base algorithm shares what it shares.
fn by_agreement(values: &Values) -> Exchange {
    let base = algorithm::find(values.text("base")).and_then(|row| {
        let hyper = row.values(&BTreeMap::new())?;
        Ok((row.exchange)(&hyper))
    });
    let base = base.expect("the choices of `base` are rows without conditions");
    Exchange {
        experts: Some(ExpertExchange {
            refresh_every: values.count("refresh_every"),
            ..ExpertExchange::by(
                Matching::named(agreement::MATCHING),
                values.peers("peers_per_expert"),
            )
        }),
        averaging: base.averaging.map(|averaging| Averaging {
            rule: values.rule(),
            ..averaging
        }),
        ..base
    }
}

/// Checks what a spec says of the exchange: what would be ignored is refused.
///
/// # Errors
/// Names the key to change.
pub(in crate::algorithm) fn check(spec: &FederationSpec) -> Result<(), ConfigError> {
    if spec.algorithm != ROW.name {
        return Ok(());
    }
    let values = ROW.values(&spec.hyper)?;
    let base = algorithm::find(values.text("base"))?;
    let is_by_agreement = values.text("matching") == AGREEMENT;
    let unused = if is_by_agreement {
        &OF_THE_GATE[..]
    } else {
        &["base"]
    };
    if let Some(name) = unused.iter().find(|name| spec.hyper.contains_key(**name)) {
        let others = if is_by_agreement {
            "similarity"
        } else {
            AGREEMENT
        };
        return Err(ConfigError(format!(
            "`hyper.{name}` belongs to `matching={others}`: leave it out, or choose another `hyper.profile`"
        )));
    }
    if !is_by_agreement {
        return Ok(());
    }
    if spec.training.ahead_epochs > 0 && !base.trains_ahead {
        return Err(ConfigError(format!(
            "`training.ahead_epochs` must be 0 with `hyper.base={}`",
            base.name
        )));
    }
    agreement::check(spec)
}

/// What only a gate and its experts have.
const OF_THE_GATE: [&str; 9] = [
    "temperature",
    "load_balance",
    "weighting",
    "slots_per_node",
    "max_distance",
    "trial",
    "init",
    "embedding",
    "head",
];

const HYPER: &[Hyper] = &[
    Hyper {
        name: "peers_per_expert",
        kind: Kind::CountOrAll { max: 100_000 },
        default: "5",
        doc: "P: how many other experts an own expert is mixed with each round; 0 mixes nothing",
    },
    Hyper {
        name: "refresh_every",
        kind: Kind::Integer {
            min: 1,
            max: 100_000,
        },
        default: "5",
        doc: "I: rounds between two exchanges of proxies; who is mixed with whom is decided anew then",
    },
    Hyper {
        name: "temperature",
        kind: Kind::Real {
            min: 1e-6,
            max: 1e6,
        },
        default: "1",
        doc: "tau: temperature of the softmax over similarities; smaller keeps more of the own expert",
    },
    Hyper {
        name: "load_balance",
        kind: Kind::Real { min: 0.0, max: 1e3 },
        default: "0",
        doc: "lambda: weight of the load-balancing loss of Switch Transformers; 0 as in the paper",
    },
    Hyper {
        name: "weighting",
        kind: Kind::Choice(&["uniform", "samples"]),
        default: "uniform",
        doc: "`samples` also weights a source by the share of its owner's samples that chose it; unused ones stay out",
    },
    Hyper {
        name: "slots_per_node",
        kind: Kind::Integer { min: 0, max: 64 },
        default: "0",
        doc: "most experts of one other node in one mix, against a node that copies proxies; 0 for no bound",
    },
    Hyper {
        name: "max_distance",
        kind: Kind::Real { min: 0.0, max: 1e6 },
        default: "0",
        doc: "largest distance of a mixed expert from the own one, as a multiple of the median; 0 for no bound",
    },
    Hyper {
        name: "trial",
        kind: Kind::Choice(&["off", TRIED]),
        default: "off",
        doc: "`on` tries each mixed expert on the node's validation samples; one that makes the loss clearly larger is left out, and \
              the own one stays",
    },
    Hyper {
        name: "init",
        kind: Kind::Choice(&["shared", "per-slot"]),
        default: "shared",
        doc: "whether all experts start alike, or only those of one slot; the mixes join slots, so `shared` is sound",
    },
    Hyper {
        name: "embedding",
        kind: Kind::Choice(&[AVERAGED, "frozen"]),
        default: AVERAGED,
        doc: "`frozen` keeps the embedding as the federation starts with it, pre-trained (`--initial`): nothing is averaged",
    },
    Hyper {
        name: "head",
        kind: Kind::Choice(&["mixed", PRIVATE]),
        default: "mixed",
        doc: "`private` keeps the last layer of every expert at its node; the layers before it are mixed all the same",
    },
    Hyper {
        name: "matching",
        kind: Kind::Choice(&["similarity", AGREEMENT]),
        default: "similarity",
        doc: "`agreement`: statistics of peers whose class means agree, in closed form, times the model of `base`; the paper mixes experts by similarity",
    },
    Hyper {
        name: "base",
        kind: Kind::Choice(&[
            "local",
            "fedavg",
            "fedper",
            "fedrep",
            "lg-fedavg",
            "fedprox",
            "fedbn",
        ]),
        default: "local",
        doc: "the algorithm that trains a node's own model beside `matching=agreement`",
    },
    AGGREGATION,
];
