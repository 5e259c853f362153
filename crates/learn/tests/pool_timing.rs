//! How long the pool stage takes, and what computing everything anew in every epoch would cost; run by hand:
//! `cargo test -p fednode-learn --test pool_timing -- --ignored --nocapture`.
#![allow(clippy::unwrap_used)]

mod common;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use fednode_core::spec::Preset;
use fednode_core::{NodeId, ParamSet, Round};
use fednode_learn::{CacheBudget, ComputeDevice, Learner, PoolSettings, Subset};

/// A module as another node might have it: the own one, each number a little off.
fn disturbed(module: &ParamSet, seed: u32) -> Arc<ParamSet> {
    let mut module = module.clone();
    let mut state = seed;
    for (_, tensor) in module.iter_mut() {
        for value in tensor.values_mut() {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *value += 0.02 * (state as f32 / u32::MAX as f32 - 0.5);
        }
    }
    Arc::new(module)
}

#[test]
#[ignore = "a measurement"]
fn a_node_of_450_samples_with_a_pool_of_20() {
    let samples = common::fashion();
    for algorithm in ["fedper", "lg-fedavg"] {
        let spec = common::spec(algorithm, "cnn", &samples);
        let mut learner = Learner::new(
            &spec,
            0,
            common::split(&samples, 450),
            &ComputeDevice::cpu(1).unwrap(),
        )
        .unwrap();
        learner
            .local_update(Round(1), &mut |_| ControlFlow::Continue(()))
            .unwrap();
        let own = learner.module().unwrap().params;
        let members: Vec<_> = (1..20)
            .map(|n| (NodeId::from_bytes([n; 32]), disturbed(&own, n.into())))
            .collect();
        let pool = PoolSettings::preset(Preset::Fixed);
        let folder = tempfile::tempdir().unwrap();
        let spilled = CacheBudget {
            memory_bytes: 0,
            folder: Some(folder.path().to_owned()),
            ..CacheBudget::default()
        };
        for (place, budget) in [
            ("in memory", CacheBudget::default()),
            ("in a file", spilled),
        ] {
            learner.keep_in(budget);
            let (started, mut trained) = (Instant::now(), None);
            let mut watch = |progress: fednode_core::work::Progress| {
                if progress.epoch == 1 {
                    trained.get_or_insert_with(Instant::now);
                }
                ControlFlow::Continue(())
            };
            let outcome = learner
                .assemble_pool(&pool, members.clone(), &mut watch)
                .unwrap();
            let (cached, whole) = (trained.unwrap() - started, started.elapsed());
            let epochs = pool.epochs * pool.learning_rates.len() as u32;
            let served = outcome.served;
            eprintln!(
                "{algorithm}, {place}: {whole:.2?}, {cached:.2?} before the first epoch; {served:?}"
            );
            eprintln!(
                "{algorithm}, computed anew in each of {epochs} epochs: {:.1?} more",
                cached * (epochs - 1)
            );
        }
        let evaluating = Instant::now();
        let n_samples = learner.evaluate(Subset::Train).score.n_samples;
        eprintln!(
            "{algorithm}: {:.2?} to predict {n_samples} samples",
            evaluating.elapsed()
        );
    }
}
