//! What the stage after the last round promises, on a few nodes with the embedded digits.
#![allow(clippy::unwrap_used)]

use std::ops::ControlFlow;
use std::sync::Arc;

use fednode_core::spec::Preset;
use fednode_core::{FederationSpec, NodeId, ParamSet, PoolOutcome, Round, Served, Weighting};
use fednode_data::{DataSource, ShardParams, Split, load_shard};
use fednode_learn::{
    ComputeDevice, GateSettings, LearnError, Learner, ModuleScore, PoolSettings, Subset, algorithm,
};
use fednode_mix::{Part, average};

const NODES: usize = 4;
/// All algorithms with a private module.
const MODULAR: [&str; 11] = [
    "fedmoe-da",
    "fedper",
    "lg-fedavg",
    "fedrep",
    "fedrod",
    "fedbabu",
    "gpfl",
    "fedcp",
    "dbe",
    "fedgh",
    "fedpac",
];

fn spec(algorithm: &str) -> FederationSpec {
    let mut spec = FederationSpec {
        algorithm: algorithm.into(),
        ..FederationSpec::default()
    };
    spec.model.name = "mlp".into();
    (spec.fingerprints.input, spec.model.experts) = ([1, 8, 8], 2);
    (
        spec.training.learning_rate,
        spec.training.batch_size,
        spec.training.local_epochs,
    ) = (0.1, 10, 2);
    algorithm::fill_exchange(&mut spec).unwrap();
    spec
}

fn pool() -> PoolSettings {
    PoolSettings {
        epochs: 6,
        batch_size: 16,
        learning_rates: vec![0.1, 0.5],
        ..PoolSettings::preset(Preset::Fixed)
    }
}

fn data(index: usize) -> Arc<Split> {
    let params = ShardParams {
        nodes: NODES,
        seed: 1,
        samples_per_node: 100,
        validation_share: 0.2,
    };
    let digits: DataSource = "digits".parse().unwrap();
    Arc::new(
        load_shard(&digits, "dirichlet:0.5", &params, index)
            .unwrap()
            .split,
    )
}

fn learner_on(spec: &FederationSpec, index: usize, data: Arc<Split>, threads: usize) -> Learner {
    Learner::new(
        spec,
        index as u64,
        data,
        &ComputeDevice::cpu(threads).unwrap(),
    )
    .unwrap()
}

fn learner(spec: &FederationSpec, index: usize) -> Learner {
    learner_on(spec, index, data(index), 1)
}

fn owner(index: usize) -> NodeId {
    NodeId::from_bytes([index as u8 + 1; 32])
}

/// Trains all nodes for some rounds; the first is who assembles a pool in the tests.
fn federation(spec: &FederationSpec, rounds: u32) -> Vec<Learner> {
    let mut learners: Vec<Learner> = (0..NODES).map(|index| learner(spec, index)).collect();
    for round in 1..=rounds {
        let updates = learners
            .iter_mut()
            .map(|learner| learner.local_update(Round(round), &mut go_on).unwrap());
        let updates: Vec<_> = updates.collect();
        let Some(averaging) = &spec.exchange.averaging else {
            continue;
        };
        let weight = |n: u32| {
            if averaging.weighting == Weighting::Samples {
                f64::from(n)
            } else {
                1.0
            }
        };
        let member = |update: &fednode_core::work::Update| Part {
            weight: weight(update.n_samples),
            params: update.shared.clone().unwrap(),
        };
        let mean = average(
            &averaging.rule,
            &updates.iter().map(member).collect::<Vec<_>>(),
        )
        .unwrap();
        learners
            .iter_mut()
            .for_each(|learner| learner.adopt(Some(mean.clone()), Vec::new()).unwrap());
    }
    learners
}

fn go_on(_: fednode_core::work::Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// The modules of all nodes but the first.
fn foreign(learners: &[Learner]) -> Vec<(NodeId, Arc<ParamSet>)> {
    let module = |learner: &Learner| learner.module().unwrap().params;
    learners
        .iter()
        .enumerate()
        .skip(1)
        .map(|(index, learner)| (owner(index), module(learner)))
        .collect()
}

fn assemble(
    learner: &mut Learner,
    spec: &PoolSettings,
    members: Vec<(NodeId, Arc<ParamSet>)>,
) -> PoolOutcome {
    learner.assemble_pool(spec, members, &mut go_on).unwrap()
}

/// A tensor's name and numbers.
type Named = (String, Vec<f32>);
/// Something that changes a node's model.
type Change<'a> = Box<dyn FnMut(&mut Learner) + 'a>;

/// A state without what belongs to the pool.
fn without_pool(state: &ParamSet) -> Vec<Named> {
    let own = state.iter().filter(|(name, _)| !name.starts_with("pool."));
    own.map(|(name, tensor)| (name.to_owned(), tensor.values().to_vec()))
        .collect()
}

/// Serves the mixture whatever the validation samples say.
fn unguarded() -> PoolSettings {
    PoolSettings {
        guard: false,
        ..pool()
    }
}

#[test]
fn every_pooled_mixture_survives_a_restart() {
    for algorithm in MODULAR {
        let spec = spec(algorithm);
        let mut learners = federation(&spec, 2);
        let members = foreign(&learners);
        let node = &mut learners[0];
        let (before, alone) = (node.state(), node.evaluate(Subset::Test));
        let outcome = assemble(
            node,
            &PoolSettings {
                top_k: 2,
                ..unguarded()
            },
            members,
        );

        assert_eq!(outcome.served, Served::Mixture, "{algorithm}");
        assert_eq!(
            (outcome.epochs, outcome.best_epoch, outcome.learning_rate),
            (6, Some(6), Some(0.1)),
            "{algorithm}"
        );
        assert_eq!(outcome.unseen, 0, "{algorithm}");
        assert!(node.serves_pool() && outcome.refused.is_empty());
        assert_eq!(outcome.test.own, alone.score, "{algorithm}");
        assert_eq!(
            outcome.test.mixture.unwrap(),
            node.evaluate(Subset::Test).score,
            "{algorithm}"
        );
        assert_eq!(
            outcome.validation.mixture.unwrap(),
            node.evaluate(Subset::Validation).score,
            "{algorithm}"
        );
        assert_eq!(
            without_pool(&node.state()),
            without_pool(&before),
            "{algorithm}: only the gate is trained"
        );
        // gamma 0.2 of three foreign members drops none.
        assert!(outcome.members.len() == NODES && outcome.members.iter().all(|member| member.kept));
        assert_eq!(
            (outcome.members[0].node, outcome.members[0].score),
            (None, None)
        );
        assert!(
            outcome.members[1..]
                .iter()
                .all(|member| member.score.unwrap().is_finite()),
            "{algorithm}"
        );
        let mass: f64 = outcome.members.iter().map(|member| member.gate_mass).sum();
        let renormalizes = ["lg-fedavg", "fedrod", "fedcp", "dbe", "fedgh"].contains(&algorithm);
        assert!(
            mass <= 1.0 + 1e-6 && (!renormalizes || mass > 1.0 - 1e-6),
            "{algorithm}: {mass}"
        );

        let bytes = node.state().to_bytes();
        let mut again = learner(&spec, 0);
        again.restore(&ParamSet::decode(&bytes).unwrap()).unwrap();
        assert_eq!(again.state().to_bytes(), bytes, "{algorithm}");
        assert_eq!(
            again.predict(&data(0).test).unwrap(),
            node.predict(&data(0).test).unwrap(),
            "{algorithm}"
        );
        again.restore(&before).unwrap();
        assert!(!again.serves_pool());
        assert_eq!(
            again.evaluate(Subset::Test),
            alone,
            "{algorithm}: without the pool all is as before"
        );

        let read: PoolOutcome =
            serde_json::from_str(&serde_json::to_string(&outcome).unwrap()).unwrap();
        assert_eq!(
            (read.served, read.best_epoch, read.members.len()),
            (Served::Mixture, Some(6), NODES)
        );
    }
}

#[test]
fn paper_and_code_pools_differ_and_survive_a_restart() {
    for algorithm in ["fedper", "lg-fedavg", "dbe", "fedmoe-da"] {
        let spec = spec(algorithm);
        let mut learners = federation(&spec, 2);
        let members = foreign(&learners);
        let node = &mut learners[0];
        let mut predictions = Vec::new();
        for preset in [Preset::Fixed, Preset::Paper, Preset::Code] {
            let pool = PoolSettings {
                epochs: 3,
                guard: false,
                ..PoolSettings::preset(preset)
            };
            assert_eq!(
                assemble(node, &pool, members.clone()).served,
                Served::Mixture,
                "{algorithm} {preset:?}"
            );
            let mut again = learner(&spec, 0);
            again
                .restore(&ParamSet::decode(&node.state().to_bytes()).unwrap())
                .unwrap();
            predictions.push(node.predict(&data(0).test).unwrap());
            assert_eq!(
                again.predict(&data(0).test).unwrap(),
                predictions[predictions.len() - 1],
                "{algorithm} {preset:?}"
            );
        }
        assert!(
            predictions[0] != predictions[1] && predictions[1] != predictions[2],
            "{algorithm}"
        );
    }
}

#[test]
fn a_pool_of_one_is_the_own_module() {
    let mut learners = federation(&spec("fedper"), 2);
    let node = &mut learners[0];
    let (before, alone) = (node.state(), node.evaluate(Subset::Test));
    let outcome = assemble(
        node,
        &PoolSettings {
            controls: true,
            ..pool()
        },
        Vec::new(),
    );
    assert_eq!(
        outcome.served,
        Served::Own {
            reason: "there is no other member".into()
        }
    );
    assert_eq!(
        (
            outcome.epochs,
            outcome.members.len(),
            outcome.members[0].gate_mass
        ),
        (0, 1, 1.0)
    );
    assert_eq!(
        (outcome.test.own, outcome.test.mixture),
        (alone.score, Some(alone.score))
    );
    let controls = outcome.controls.unwrap();
    assert_eq!(
        (controls.uniform, controls.without_denoising),
        (alone.score, Some(alone.score))
    );
    assert_eq!((node.state(), node.evaluate(Subset::Test)), (before, alone));
}

#[test]
fn the_result_does_not_depend_on_threads_or_on_the_order_of_members() {
    for algorithm in ["fedper", "lg-fedavg", "fedmoe-da"] {
        let spec = spec(algorithm);
        let learners = federation(&spec, 1);
        let run = |threads, reversed: bool| {
            let mut node = learner_on(&spec, 0, data(0), threads);
            node.restore(&learners[0].state()).unwrap();
            let mut members = foreign(&learners);
            if reversed {
                members.reverse();
            }
            let outcome = assemble(
                &mut node,
                &PoolSettings {
                    gate: GateSettings {
                        dropout: 0.1,
                        ..unguarded().gate
                    },
                    ..unguarded()
                },
                members,
            );
            (outcome, node.state().to_blob().0)
        };
        let first = run(1, false);
        assert_eq!(first, run(1, true), "{algorithm}");
        assert_eq!(first, run(3, false), "{algorithm}");
    }
}

#[test]
fn members_that_do_not_fit_are_left_out_with_a_reason() {
    let mut learners = federation(&spec("fedper"), 1);
    let good = foreign(&learners)[0].1.clone();
    let filled = |value: f32| {
        let mut params = ParamSet::clone(&good);
        params
            .iter_mut()
            .for_each(|(_, tensor)| tensor.values_mut().fill(value));
        params
    };
    let mut broken = ParamSet::clone(&good);
    broken.iter_mut().last().unwrap().1.values_mut()[3] = f32::NAN;
    let other = ParamSet::clone(&learner(&spec("fedrod"), 1).module().unwrap().params);
    let good = || ParamSet::clone(&good);
    let members = [
        (5, broken),
        (1, good()),
        (3, filled(1e6)),
        (4, filled(0.0)),
        (2, other),
        (1, good()),
    ];
    let members = members
        .map(|(index, params)| (owner(index), Arc::new(params)))
        .to_vec();
    let pool = PoolSettings {
        drop_share: 0.0,
        ..unguarded()
    };
    let outcome = assemble(&mut learners[0], &pool, members.clone());
    let refused: Vec<(NodeId, &str)> = outcome
        .refused
        .iter()
        .map(|(node, why)| (*node, why.as_str()))
        .collect();
    let expected = [
        (owner(1), "it is there twice"),
        (
            owner(2),
            "it does not fit the model: tensor `fc.bias` is missing",
        ),
        (owner(3), "its norm is 4.483e7, and "),
        (
            owner(5),
            "it has a value in `fc.weight` that is not a finite number",
        ),
    ];
    let starts = |(got, expected): (&(NodeId, &str), &(NodeId, &str))| {
        got.0 == expected.0 && got.1.starts_with(expected.1)
    };
    assert!(
        refused.len() == 4 && refused.iter().zip(&expected).all(starts),
        "{refused:?}"
    );
    let nodes: Vec<_> = outcome.members.iter().map(|member| member.node).collect();
    assert_eq!(nodes, [None, Some(owner(1)), Some(owner(4))]);

    // Where most modules are huge, the usual norm is huge as well, and their outputs give them away.
    let members = vec![
        (owner(1), Arc::new(good())),
        (owner(2), Arc::new(filled(f32::MAX))),
        (owner(3), Arc::new(filled(f32::MAX / 2.0))),
        (owner(4), Arc::new(filled(f32::MAX))),
    ];
    let outcome = assemble(&mut learner(&spec("fedper"), 0), &pool, members);
    let reason = "its outputs are not finite, or too large to work with";
    let mut expected = [2, 3, 4].map(|index| (owner(index), reason.to_owned()));
    expected.sort();
    let mut refused = outcome.refused;
    refused.sort();
    assert_eq!(refused, expected);
}

/// Of twice as many modules as there is room for, the two that are most like the own one come in; nobody is blamed for the rest.
#[test]
fn with_too_little_room_the_best_scores_come_in() {
    for score in [ModuleScore::Energy(1.0), ModuleScore::Cosine] {
        let mut learners = federation(&spec("fedper"), 2);
        let own = ParamSet::clone(&learners[0].module().unwrap().params);
        let turned = |factor: f32, index: usize| {
            let mut params = own.clone();
            params.iter_mut().for_each(|(_, tensor)| {
                let half = tensor.values().len() / 2;
                tensor.values_mut()[half..]
                    .iter_mut()
                    .for_each(|value| *value *= factor);
            });
            (owner(index), Arc::new(params))
        };
        let members = vec![
            turned(-1.0, 1),
            turned(0.9, 2),
            turned(-0.5, 3),
            turned(0.8, 4),
        ];
        let pool = PoolSettings {
            max_members: 3,
            score,
            drop_share: 0.0,
            ..unguarded()
        };
        let outcome = assemble(&mut learners[0], &pool, members);
        let kept: Vec<_> = outcome
            .members
            .iter()
            .filter(|member| member.kept)
            .map(|member| member.node)
            .collect();
        assert_eq!(
            kept,
            [None, Some(owner(2)), Some(owner(4))],
            "{score:?}: {:?}",
            outcome.members
        );
        assert_eq!(
            (outcome.members.len(), outcome.refused.len()),
            (5, 0),
            "{score:?}"
        );
        let left_out = outcome.members.iter().filter(|member| !member.kept);
        assert!(
            left_out
                .into_iter()
                .all(|member| member.score.is_some() && member.gate_mass == 0.0),
            "{score:?}"
        );
    }
}

#[test]
fn the_lowest_scores_are_dropped_and_the_own_module_never() {
    for score in [ModuleScore::Energy(1.0), ModuleScore::Cosine] {
        let mut learners = federation(&spec("fedrod"), 2);
        let mut members = foreign(&learners);
        let mut opposite = ParamSet::clone(&learners[0].module().unwrap().params);
        opposite.iter_mut().for_each(|(_, tensor)| {
            tensor
                .values_mut()
                .iter_mut()
                .for_each(|value| *value = -*value)
        });
        members.push((owner(9), Arc::new(opposite)));
        let spec = |drop_share| PoolSettings {
            drop_share,
            score,
            ..unguarded()
        };
        let outcome = assemble(&mut learners[0], &spec(0.25), members.clone());
        let kept: Vec<bool> = outcome.members.iter().map(|member| member.kept).collect();
        assert_eq!(
            kept,
            [true, true, true, true, false],
            "{score:?}: what says the opposite goes"
        );
        assert_eq!(outcome.members[4].gate_mass, 0.0);
        let outcome = assemble(&mut learners[0], &spec(1.0), members);
        assert_eq!(
            outcome.members.iter().filter(|member| member.kept).count(),
            1
        );
        assert!(outcome.members[0].kept && outcome.served != Served::Mixture);
    }
}

/// The training labels say the opposite of the validation labels, and so do all foreign modules: the gate learns to take
/// them.
#[test]
fn the_guard_keeps_the_own_module_where_the_mixture_is_worse() {
    let spec = spec("fedper");
    let learners = federation(&spec, 4);
    let right = learners[0].state();
    let turned = |values: &mut [f32], row: usize| values.rotate_right(row);
    let mut wrong = ParamSet::clone(&learners[0].module().unwrap().params);
    for (name, tensor) in wrong.iter_mut() {
        turned(tensor.values_mut(), if name == "fc.bias" { 1 } else { 200 });
    }
    let mut split = Split::clone(&data(0));
    split
        .train
        .labels
        .iter_mut()
        .for_each(|label| *label = (*label + 1) % 10);
    let members: Vec<_> = (1..6)
        .map(|index| (owner(index), Arc::new(wrong.clone())))
        .collect();
    let mut node = learner_on(&spec, 0, Arc::new(split), 1);
    node.restore(&right).unwrap();
    let alone = node.evaluate(Subset::Test);

    let outcome = assemble(&mut node, &pool(), members.clone());
    assert_eq!(
        outcome.served,
        Served::Own {
            reason: "the mixture is worse than the own module on the validation samples".into()
        }
    );
    let (own, mixture) = (outcome.validation.own, outcome.validation.mixture.unwrap());
    assert!(mixture.accuracy < own.accuracy, "{mixture:?} {own:?}");
    assert_eq!(
        (node.state(), node.evaluate(Subset::Test)),
        (right.clone(), alone.clone())
    );
    assert_eq!(
        assemble(&mut node, &unguarded(), members).served,
        Served::Mixture
    );
    assert_ne!(node.evaluate(Subset::Test), alone);
}

#[test]
fn few_samples_one_class_and_no_validation_samples_work() {
    for algorithm in ["fedper", "dbe", "lg-fedavg", "fedmoe-da"] {
        let spec = spec(algorithm);
        let learners = federation(&spec, 1);
        let whole = data(0);
        let most = (0..10)
            .max_by_key(|class| {
                whole
                    .train
                    .labels
                    .iter()
                    .filter(|label| *label == class)
                    .count()
            })
            .unwrap();
        let of_class = |samples: &fednode_data::Samples| {
            let positions =
                (0..samples.len() as u32).filter(|at| samples.labels[*at as usize] == most);
            samples.subset(&positions.collect::<Vec<_>>())
        };
        let one_class = Split {
            train: of_class(&whole.train),
            ..Split::clone(&whole)
        };
        let few = Split {
            train: whole.train.subset(&[0, 1, 2]),
            ..Split::clone(&whole)
        };
        let single = Split {
            train: whole.train.subset(&[0]),
            validation: whole.train.subset(&[1]),
            ..Split::clone(&whole)
        };
        let unvalidated = Split {
            validation: whole.train.subset(&[]),
            ..Split::clone(&whole)
        };
        for split in [one_class, few, single] {
            let is_judged = split.train.len() + split.validation.len() >= 50;
            let mut node = learner_on(&spec, 0, Arc::new(split), 1);
            node.restore(&learners[0].state()).unwrap();
            let outcome = assemble(
                &mut node,
                &PoolSettings {
                    controls: true,
                    ..unguarded()
                },
                foreign(&learners),
            );
            assert!(
                outcome.test.mixture.unwrap().loss.is_finite(),
                "{algorithm}"
            );
            let guarded = assemble(&mut node, &pool(), foreign(&learners));
            let too_few = matches!(&guarded.served, Served::Own { reason } if reason.contains("fewer than 50 samples"));
            assert_ne!(is_judged, too_few, "{algorithm}: {:?}", guarded.served);
        }
        let mut node = learner_on(&spec, 0, Arc::new(unvalidated), 1);
        let outcome = assemble(&mut node, &pool(), foreign(&learners));
        let reason = "there are no validation samples to judge the mixture by";
        assert_eq!(
            outcome.served,
            Served::Own {
                reason: reason.into()
            },
            "{algorithm}"
        );
        assert_eq!((outcome.epochs, outcome.validation.own.n_samples), (0, 0));
        assert_eq!(
            assemble(&mut node, &unguarded(), foreign(&learners)).served,
            Served::Mixture,
            "{algorithm}"
        );
    }
}

#[test]
fn controls_are_computed_beside_the_mixture() {
    for (algorithm, is_tuned) in [("fedper", true), ("fedgh", false)] {
        let learners = &mut federation(&spec(algorithm), 2);
        let members = foreign(learners);
        let run = |node: &mut Learner, controls| {
            assemble(
                node,
                &PoolSettings {
                    controls,
                    drop_share: 0.5,
                    ..pool()
                },
                members.clone(),
            )
        };
        let plain = run(&mut learners[0], false);
        let outcome = run(&mut learners[0], true);
        let controls = outcome.controls.unwrap();
        assert_eq!(
            (plain.controls, controls.fine_tuned_head.is_some()),
            (None, is_tuned),
            "{algorithm}"
        );
        assert_eq!(
            PoolOutcome {
                controls: None,
                ..outcome.clone()
            },
            plain,
            "controls change nothing else"
        );
        assert!(controls.without_denoising.unwrap().loss.is_finite());
        assert_ne!(Some(controls.uniform), outcome.test.mixture);
        assert_eq!(
            outcome.members.iter().filter(|member| !member.kept).count(),
            1
        );
    }
}

#[test]
fn changing_the_model_drops_the_pool() {
    let spec = spec("fedper");
    let mut learners = federation(&spec, 1);
    let members = foreign(&learners);
    let shared = learners[0].shared();
    let node = &mut learners[0];
    let mut changes: [Change<'_>; 4] = [
        Box::new(|node| drop(node.local_update(Round(2), &mut go_on).unwrap())),
        Box::new(|node| node.adopt(shared.clone(), Vec::new()).unwrap()),
        Box::new(|node| {
            assert!(
                node.fine_tune_module(&pool(), &mut go_on)
                    .unwrap()
                    .is_some()
            )
        }),
        Box::new(|node| drop(assemble(node, &pool(), Vec::new()))),
    ];
    for change in &mut changes {
        assemble(node, &unguarded(), members.clone());
        assert!(node.serves_pool());
        change(node);
        assert!(!node.serves_pool());
        assert!(
            node.state()
                .iter()
                .all(|(name, _)| !name.starts_with("pool."))
        );
    }
    assemble(node, &unguarded(), members);
    node.adopt::<ParamSet>(None, Vec::new()).unwrap();
    node.finish(Round(2), &mut go_on).unwrap();
    assert!(node.serves_pool(), "nothing was changed");
}

#[test]
fn a_learner_takes_the_pool_along_when_it_becomes_another_node() {
    for algorithm in ["fedper", "fedmoe-da"] {
        let spec = spec(algorithm);
        let mut learners = federation(&spec, 1);
        let members = foreign(&learners);
        assemble(&mut learners[0], &unguarded(), members);
        let known: Vec<_> = learners
            .iter()
            .map(|learner| {
                let experts: Vec<_> = learner.experts().into_iter().map(Arc::new).collect();
                (learner.private_state(), learner.shared(), experts)
            })
            .collect();
        let mut any = learner(&spec, 0);
        for index in [0, 1, 0] {
            let (private, shared, experts) = &known[index];
            any.become_node(index as u64, data(index), private, shared.as_ref(), experts)
                .unwrap();
            assert_eq!(any.serves_pool(), index == 0, "{algorithm}");
            assert_eq!(
                any.evaluate(Subset::Test),
                learners[index].evaluate(Subset::Test),
                "{algorithm} {index}"
            );
            assert_eq!(any.state(), learners[index].state(), "{algorithm} {index}");
        }
    }
}

#[test]
fn an_abandoned_stage_changes_nothing() {
    let mut learners = federation(&spec("fedper"), 1);
    let members = foreign(&learners);
    let node = &mut learners[0];
    let before = node.state();
    let mut seen = Vec::new();
    let mut stop = |progress: fednode_core::work::Progress| {
        seen.push(progress);
        if progress.epoch == 8 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    assert!(matches!(
        node.assemble_pool(&pool(), members, &mut stop),
        Err(LearnError::Abandoned)
    ));
    assert_eq!(node.state(), before);
    assert_eq!(
        (seen[0].epoch, seen.last().unwrap().epochs),
        (0, 12),
        "two step sizes of six epochs"
    );
    let mut stop = |_: fednode_core::work::Progress| ControlFlow::Break(());
    assert!(matches!(
        node.fine_tune_module(&pool(), &mut stop),
        Err(LearnError::Abandoned)
    ));
    assert_eq!(node.state(), before);
}

#[test]
fn fine_tuning_changes_the_module_alone_and_only_for_the_better() {
    for algorithm in MODULAR {
        let spec = spec(algorithm);
        let mut learners = federation(&spec, 1);
        let node = &mut learners[0];
        let (before, module) = (node.state(), node.module().unwrap());
        assert_eq!(Some(module.params.layout()), node.module_layout());
        let loss = node.evaluate(Subset::Validation).score.loss;
        let steps = node.fine_tune_module(&pool(), &mut go_on).unwrap();
        if module.kind == "extractor" {
            assert_eq!((steps, node.state()), (None, before), "{algorithm}");
            continue;
        }
        let samples = data(0).train.len() as u32;
        assert_eq!(steps, Some(6 * samples.div_ceil(10)), "{algorithm}");
        assert!(
            node.evaluate(Subset::Validation).score.loss <= loss + 1e-6,
            "{algorithm}"
        );
        let changed =
            |(before, after): (&Named, &Named)| (before.1 != after.1).then(|| before.0.clone());
        let after = node.state();
        let moved: Vec<String> = without_pool(&before)
            .iter()
            .zip(&without_pool(&after))
            .filter_map(changed)
            .collect();
        assert!(
            !moved.is_empty() && moved.iter().all(|name| module.params.get(name).is_some()),
            "{algorithm} {moved:?}"
        );
    }
}

#[test]
fn fine_tuning_that_does_not_help_leaves_the_module_as_it_was() {
    let mut spec = spec("fedper");
    let learners = federation(&spec, 1);
    let before = learners[0].state();
    spec.training.learning_rate = 1e9;
    let mut node = learner(&spec, 0);
    node.restore(&before).unwrap();
    assert!(
        node.fine_tune_module(&pool(), &mut go_on)
            .unwrap()
            .is_some()
    );
    assert_eq!(node.state(), before);
    let split = Split {
        validation: data(0).train.subset(&[]),
        ..Split::clone(&data(0))
    };
    let mut node = learner_on(&spec, 0, Arc::new(split), 1);
    assert_eq!(
        node.fine_tune_module(&pool(), &mut go_on).unwrap(),
        Some(0),
        "there is nothing to judge it by"
    );
}

#[test]
fn algorithms_without_a_private_module_have_no_pool() {
    for algorithm in ["fedavg", "local"] {
        let mut node = learner(&spec(algorithm), 0);
        assert!(node.module().is_none() && node.module_layout().is_none());
        let refused = node
            .assemble_pool(&pool(), Vec::new(), &mut go_on)
            .unwrap_err();
        assert_eq!(refused.to_string(), "this node has no private module");
        assert!(node.fine_tune_module(&pool(), &mut go_on).is_err());
    }
}

/// Temperature and weight are chosen anew with the pool's prediction as the own one, which is among the choices.
#[test]
fn the_statistics_expert_is_mixed_on_top_of_the_pool() {
    let mut spec = FederationSpec {
        rounds: 3,
        ..spec("fedper")
    };
    spec.statistics.enabled = true;
    let mut learners = federation(&spec, 3);
    let members = foreign(&learners);
    let node = &mut learners[0];
    let outcome = assemble(node, &unguarded(), members);
    assert_eq!(outcome.served, Served::Mixture);
    let (pooled, mixed) = (
        outcome.validation.mixture.unwrap(),
        node.evaluate(Subset::Validation).score,
    );
    assert!(mixed.loss <= pooled.loss + 1e-6, "{mixed:?} {pooled:?}");
    assert_ne!(mixed, pooled);
    let mut again = learner(&spec, 0);
    again.restore(&node.state()).unwrap();
    assert_eq!(again.evaluate(Subset::Test), node.evaluate(Subset::Test));
}
